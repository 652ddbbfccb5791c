"""`llms.txt`: the pages of the site as a list for programs that read, with the first sentence of each."""

import re

from docutils import nodes

START = """# vit_keras

> Vision Transformers for Keras 3, on TensorFlow, JAX and PyTorch: any published checkpoint, exact to 1e-5 of its
> original; attention maps that are measured; fine-tuning, export and serving. Python 3.11 to 3.14.

Each page is also there as the text that it was made from: `_sources/PAGE.md.txt`, or `.rst.txt`.
"""


def first_sentence(document):
    """Return the first sentence of the first paragraph of a page."""
    for node in document.findall(nodes.paragraph):
        text = " ".join(node.astext().split())
        if len(text) > 30 and isinstance(node.parent, nodes.section):
            return re.split(r"(?<=[.])\s", text)[0]
    return ""


def write_list(app, error):
    """Write `llms.txt` beside the pages, in the order of the navigation."""
    if error or app.builder.format != "html":
        return
    lines, seen = [START], set()

    def walk(docname, depth):
        if docname in seen:
            return
        seen.add(docname)
        title = app.env.titles[docname].astext()
        if depth == 1:
            lines.append(f"\n## {title}\n")
        if depth:
            page = app.builder.get_target_uri(docname)
            sentence = first_sentence(app.env.get_doctree(docname))
            lines.append(f"- [{title}]({page}): {sentence}" if sentence else f"- [{title}]({page})")
        for child in app.env.toctree_includes.get(docname, ()):
            walk(child, depth + 1)

    walk(app.config.root_doc, 0)
    (app.outdir / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app):
    app.connect("build-finished", write_list)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
