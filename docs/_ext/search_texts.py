"""What a search needs: numbers such as 384 in its index, and excerpts where the site is opened from a folder.

`_static/search_texts.js` has what pages say. `_static/search.js` uses both.
"""

import json

from docutils import nodes
from sphinx.search.en import SearchEnglish

LEFT_OUT = ("source/", "reference/", "_modules/", "tables/")


class EnglishWithNumbers(SearchEnglish):
    """Sphinx leaves all numbers out of its index."""

    def word_filter(self, word):
        return word not in self.stopwords and (not word.isdigit() or 2 <= len(word) <= 4)


def write_texts(app, error):
    """Write the texts of the pages that people read."""
    if error or app.builder.format != "html":
        return
    texts = {}
    for page in sorted(app.env.found_docs):
        if not page.startswith(LEFT_OUT):
            found = app.env.get_doctree(page).findall(nodes.paragraph)
            texts[page] = " ".join(" ".join(node.astext() for node in found).split())
    script = f"var SEARCH_TEXTS = {json.dumps(texts, ensure_ascii=False)};\n"
    (app.outdir / "_static" / "search_texts.js").write_text(script, encoding="utf-8")


def add_texts(app, page, template, context, doctree):
    """Load them in the page of the search alone."""
    if page == "search":
        app.add_js_file("search_texts.js", priority=100)


def setup(app):
    app.add_search_language(EnglishWithNumbers)
    app.connect("html-page-context", add_texts)
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
