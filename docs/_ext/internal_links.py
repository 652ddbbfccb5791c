"""A check of the built site, without a network: each link and picture leads to a file of it, each anchor to a place."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

from sphinx.errors import ExtensionError

ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """Collect what a page links to, and where one can link to in it."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.places = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.places.update(filter(None, (attributes.get("id"), attributes.get("name") if tag == "a" else None)))
        target = attributes.get(ATTRIBUTES.get(tag, ""))
        if target:
            self.targets.add(target)


def read(folder):
    """Return all pages of a site; what the theme keeps in `_static` are none."""
    paths = (path for path in sorted(folder.rglob("*.html")) if path.relative_to(folder).parts[0] != "_static")
    return {path: Page(path.read_text(encoding="utf-8")) for path in paths}


def mend_ways_back(folder):
    """Mend the links from the source of a name to its page, where a file has names of two modules of the reference.

    sphinx.ext.viewcode takes all names of a file for those of one module.
    """
    pages = read(folder)

    def mended(found):
        there = (path.parent / found[1]).resolve()
        places = pages[there].places if there in pages else ()
        _, dot, name = found[2].rpartition(".")
        own = [place for place in places if place.endswith(dot + name)]
        anchor = found[2] if found[2] in places or not own else min(own, key=len)
        return f'href="{found[1]}#{anchor}"'

    for path in pages:
        if path.relative_to(folder).parts[0] == "_modules":
            text = path.read_text(encoding="utf-8")
            new = re.sub(r'href="([^"#]*reference/[^"#]*)#([^"]+)"', mended, text)
            if new != text:
                path.write_text(new, encoding="utf-8")


def broken(folder):
    """Return what is wrong with the links of a built site, a line each, and its links to other sites."""
    pages = read(folder)
    wrong, outside = [], set()
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                outside.add(target)
                if parts.scheme not in ("http", "https", "mailto", "data"):
                    wrong.append(f"{path.relative_to(folder)}: {target} is no address")
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.is_file():
                wrong.append(f"{path.relative_to(folder)}: there is no {target}")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].places:
                wrong.append(f"{path.relative_to(folder)}: there is no place {target}")
    return wrong, sorted(outside)


def check(app, error):
    """Fail the build if a link is broken, and list the links to other sites beside it."""
    if error or app.builder.name != "html":
        return
    mend_ways_back(app.outdir.resolve())
    wrong, outside = broken(app.outdir.resolve())
    (app.doctreedir.parent / "docs-external-links.txt").write_text("\n".join(outside) + "\n", encoding="utf-8")
    if wrong:
        raise ExtensionError(f"{len(wrong)} links are broken:\n" + "\n".join(wrong[:40]))


def setup(app):
    app.connect("build-finished", check, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
