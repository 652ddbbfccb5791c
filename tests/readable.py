"""Measure in a browser whether the text of a page can be read."""


def contrasts(tab):
    """Contrast of each text to what is behind it, as WCAG defines it."""
    return tab.evaluate("""() => {
        for (const animation of document.getAnimations()) if (animation instanceof CSSTransition) animation.finish();
        const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
            .getContext("2d", { willReadFrequently: true });
        const rgb = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
            return pen.getImageData(0, 0, 1, 1).data; };
        const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, k) => {
            const v = c[k] / 255; return sum + w * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
        const found = [];
        for (const element of document.querySelectorAll("body *")) {
            const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
            const style = getComputedStyle(element);
            const own = rgb(style.fill && element.ownerSVGElement ? style.fill : style.color);
            if (!text || own[3] === 0 || !element.getClientRects().length) continue;
            let behind = element;
            while (rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
            const [a, b] = [light(own), light(rgb(getComputedStyle(behind).backgroundColor))].sort((x, y) => y - x);
            found.push([(a + 0.05) / (b + 0.05), element.outerHTML.slice(0, 80)]);
        }
        return found;
    }""")
