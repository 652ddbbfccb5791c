"""Files of the repository as pages: each that a page links to or names, so that no link leaves the site."""

import json
from pathlib import PurePosixPath

from generated import DOCS, PAGES, ROOT, page_of, relinked, targets, write

LANGUAGES = {".py": "python", ".json": "json", ".sh": "sh", ".md": "markdown"}


def notebook(path):
    """Return a notebook as Markdown."""
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    return "\n\n".join(
        f"```python\n{text}\n```" if cell["cell_type"] == "code" else text for cell, text in zip(cells, texts)
    )


def source_page(path, page):
    """Return the page of a file: Markdown and notebooks as text, others as code."""
    path = PurePosixPath(path)
    if (ROOT / path).is_dir():
        names = sorted(each.name for each in (ROOT / path).iterdir() if not each.name.startswith(("_", ".")))
        return f"---\norphan: true\n---\n# {path}\n\nA folder of the repository.\n\n" + "".join(
            f"- {n}\n" for n in names
        )
    if path.suffix == ".ipynb":
        return f"---\norphan: true\n---\n{notebook(path)}\n"
    if path.suffix == ".md":
        return relinked((ROOT / path).read_text(encoding="utf-8"), path.parent, page)
    up = "../" * (len(PurePosixPath(page).parts) - 1)
    language = "docker" if path.name == "Dockerfile" else LANGUAGES.get(path.suffix, "text")
    return (
        f"---\norphan: true\nhtml_theme.sidebar_secondary.remove: true\n---\n# {path}\n\n"
        f"A file of the repository.\n\n```{{literalinclude}} {up}../{path}\n:language: {language}\n```\n"
    )


def write_pages(app):
    """Write a page for each file that a page of docs/ names, and for those that these name in turn."""
    texts = [(page.read_text(encoding="utf-8"), PurePosixPath("docs")) for page in DOCS.glob("*.md")]
    texts += [(p.read_text(encoding="utf-8"), PurePosixPath("docs/coming_from")) for p in DOCS.glob("coming_from/*.md")]
    waiting = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"}
    waiting.update(path for text, folder in texts for path in targets(text, folder))
    done = set()
    while waiting - done:
        path = (waiting - done).pop()
        done.add(path)
        page = page_of(path)
        if not page.startswith("source/") and path not in ("CHANGELOG.md",):
            continue
        write(page, source_page(path, page))
        if path.endswith(".md"):
            folder = PurePosixPath(path).parent
            waiting.update(targets((ROOT / path).read_text(encoding="utf-8"), folder))


def relink(app, docname, source):
    """Turn the links of a page to files of the repository into links to their pages."""
    if docname + ".md" in PAGES.values() or docname.startswith(("source/", "reference/", "examples/")):
        return
    if not (DOCS / "paper.md").is_file():
        source[0] = source[0].replace("\npaper\n", "\n")
    page = PurePosixPath(docname)
    source[0] = relinked(source[0], PurePosixPath("docs") / page.parent, f"{docname}.md")


def setup(app):
    app.connect("builder-inited", write_pages)
    app.connect("source-read", relink)
    return {"parallel_read_safe": True}
