"""Pages that a build writes below docs/, and the links between what is a page and what is a file of the repository."""

import os
import re
from pathlib import Path, PurePosixPath

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?(?=\))")
FILE = r"(?:tools|examples|tests|benchmarks)/[\w./-]+\.(?:py|csv|json|md|ipynb|log)"
NAMED = re.compile(rf"`[^`\n]*?\b({FILE})[^`\n]*`")
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changes.md"}


def write(name, text):
    """Write a page below docs/, if it is not there already as it is: an unchanged page is not read again."""
    path = DOCS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def page_of(path):
    """Return the page, below docs/, of a file of the repository; the page of a folder is the list of examples."""
    path = PurePosixPath(path)
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    if path.parts[0] == "examples" and path.suffix in ("", ".py") and path.name != "Dockerfile":
        return f"examples/{path.stem if path.suffix else 'index'}.rst"
    return PAGES.get(str(path), f"source/{path}" if path.suffix == ".md" else f"source/{path}.md")


def targets(text, folder):
    """Yield the files of the repository that a Markdown text in `folder` links to or names."""
    for found in LINK.finditer(text):
        path = os.path.normpath(folder / found[1])
        if (ROOT / path).exists():
            yield path.replace(os.sep, "/")
    for found in NAMED.finditer(text):
        if (ROOT / found[1]).is_file():
            yield found[1]


def relinked(text, folder, page):
    """Return a Markdown text of the repository's `folder` with links that hold on the site's `page`."""

    def link(found):
        path = os.path.normpath(folder / found[1]).replace(os.sep, "/")
        if not (ROOT / path).exists() or (path.startswith("docs/") and folder == PurePosixPath("docs")):
            return found[0]  # a page of the site, or a mistake, which the build will name
        return os.path.relpath(page_of(path), PurePosixPath(page).parent).replace(os.sep, "/") + (found[2] or "")

    return LINK.sub(link, text)
