"""Every text color of the pages that the package writes, and of the site, can be read on what is behind it."""

import re

import pytest
from support import ROOT

EXPLORER = "vit_keras/visualize/explore/explorer.html"
REPORT = "vit_keras/training/evaluation/report.html"
DEMO = "vit_keras/_internal/picture_page.html"
SITE = "docs/_static/site.css"
THEME = {  # pydata-sphinx-theme's own
    "light": {"background": "#fff", "surface": "#f3f4f5", "primary-text": "#fff", "text-base": "#222832"},
    "dark": {"background": "#14181e", "surface": "#29313d", "primary-text": "#14181e", "text-base": "#ced6dd"},
}
TEXTS = {
    EXPLORER: ("ink", "soft", "accent"),
    REPORT: ("ink", "soft"),
    DEMO: ("ink", "soft", "accent", "bad"),
    SITE: ("primary", "secondary", "link", "link-hover", "inline-code", "link-higher-contrast", "text-base"),
}
BEHIND = {
    EXPLORER: ("paper", "card", "fill"),
    REPORT: ("paper", "card", "fill"),
    DEMO: ("paper", "card"),
    SITE: ("background", "surface"),
}
PAIRS = [(page, text, behind) for page, texts in TEXTS.items() for text in texts for behind in BEHIND[page]]
PAIRS += [(EXPLORER, "on-accent", "accent"), (DEMO, "on-accent", "accent"), (SITE, "primary-text", "primary")]
PAIRS += [(SITE, "text-base", "primary-bg")]


def colors(page, scheme):
    """The colors that a style sheet names, in a scheme; those of dark follow those of light."""
    css = (ROOT / page).read_text(encoding="utf-8").split("</style>")[0].split("@media print")[0]
    css = re.sub(r"light-dark\((.*?), (.*?)\)", r"\1" if scheme == "light" else r"\2", css)
    found = {}
    for selector, body in re.findall(r"((?::root|html)(?:\[data-theme=\"\w+\"\])?) \{([^}]*)\}", css):
        named = dict(re.findall(r"--(?:pst-color-)?([\w-]+): (#[0-9a-f]{3}(?:[0-9a-f]{3})?)\b", body))
        is_dark = "dark" in selector or (found and "light" not in selector)
        found |= {} if is_dark and scheme == "light" else named
    return (THEME[scheme] if page == SITE else {}) | found


def luminance(color):
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    channels = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_is_that_of_wcag():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.005)  # the known near miss


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("page", "text", "behind"), PAIRS)
def test_text_can_be_read(page, text, behind, scheme):
    """WCAG 2.1, level AA: 4.5 to 1."""
    named = colors(page, scheme)
    found = contrast(named[text], named[behind])
    assert found >= 4.5, f"{page}, {scheme}: {text} {named[text]} on {behind} {named[behind]} is {found:.2f} to 1"


@pytest.mark.parametrize("page", TEXTS)
def test_the_dark_scheme_is_dark(page):
    light, dark = (colors(page, scheme)[BEHIND[page][0]] for scheme in ("light", "dark"))
    assert luminance(light) > 0.8 and luminance(dark) < 0.02
