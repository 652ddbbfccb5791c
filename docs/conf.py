"""The documentation site: `make docs` builds it into build/docs."""

import logging
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("VIT_KERAS_OFFLINE", "1")  # the build asks no network

import example_pages

import vit_keras

logging.getLogger("vit_keras").setLevel(logging.WARNING)

project = "vit_keras"
author = "the authors of vit_keras"
copyright = "the authors of vit_keras, Apache-2.0"
version = release = vit_keras.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "reference_pages",
    "repository_pages",
    "search_texts",
    "checkpoint_pages",
    "code_links",
    "internal_links",
    "llms",
]
exclude_patterns = ["_*"]
templates_path = ["_templates"]
nitpicky = True
# Types of other packages have no pages here. Types of our own signatures that are not public have none either.
nitpick_ignore_regex = [("py:(class|exc|obj|meth|attr|data|func|mod)", r".*")]
suppress_warnings = ["misc.highlighting_failure"]  # JSON with an ellipsis in it

default_role = "literal"  # `name` in a docstring is code, as in Markdown
highlight_language = "python"
pygments_style = "a11y-high-contrast-light"

myst_enable_extensions = ["colon_fence", "html_image", "attrs_inline", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # Keras' own docstrings are Keras'
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Call arguments", "params_style"), "Input shape", "Output shape", "Input and output shape"]
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"
viewcode_line_numbers = True

example_pages.stage()
sphinx_gallery_conf = example_pages.CONFIG

html_title = "vit_keras"
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("tables.js", {"defer": "defer"}), ("search.js", {"defer": "defer"})]
html_search_scorer = str(HERE / "_static" / "search_scores.js")
html_favicon = "_static/logo.svg"
html_show_sphinx = False
html_copy_source = True
html_show_sourcelink = True
html_sidebars = {"index": [], "changes": [], "gallery": []}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "vit_keras", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "show_toc_level": 2,
    "show_prev_next": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc", "sourcelink"],
}


NOTEBOOK = "examples/kaggle.ipynb"
REPOSITORY = os.environ.get("VIT_KERAS_REPOSITORY")  # OWNER/NAME on GitHub: the notebook then has buttons that open it


def add_buttons(app, page, source):
    """Write the buttons that open the notebook on Kaggle and Colab, where the address of the repository is known."""
    place = f"{REPOSITORY}/blob/main/{NOTEBOOK}"
    buttons = (
        f"[Open in Colab](https://colab.research.google.com/github/{place}) · "
        f"[Open on Kaggle](https://kaggle.com/kernels/welcome?src=https://github.com/{place})"
    )
    upload = "On Kaggle, *File → Import Notebook* takes the file or its address; in Colab, *File → Upload notebook*."
    source[0] = source[0].replace("<!-- buttons of the notebook -->", buttons if REPOSITORY else upload)


def setup(app):
    app.connect("source-read", add_buttons)
