"""The examples as pages, by sphinx-gallery: those that need no files and no network are run."""

import re
import shutil
from pathlib import Path

from generated import DOCS

RUN = ("classify", "explain", "finetune", "lit")
"""Examples that end in seconds without files, weights or a network."""

HEADER = """Examples
========

Scripts of the repository's folder ``examples``, as they are. The build of this site runs {run}, and shows what they
print; the others need files, weights, other machines or minutes, and the tests run them.
"""


def pictures(block, block_vars, gallery_conf):
    """Move the pictures that an example has written to where the page looks for them, and return their directives."""
    texts = []
    for path in sorted(Path.cwd().glob("*.png")):
        target = next(block_vars["image_path_iterator"])
        shutil.move(path, target)
        texts.append(f".. image:: /{Path(target).relative_to(DOCS).as_posix()}\n   :alt: {path.name}\n")
    return "\n".join(texts)


CONFIG = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "filename_pattern": rf"[\\/]({'|'.join(RUN)})\.py$",
    "image_scrapers": (pictures,),
    "reset_modules": (),
    "plot_gallery": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "default_thumb_file": str(DOCS / "_static" / "logo.png"),
    "backreferences_dir": None,
    "remove_config_comments": True,
}


def title(app, docname, source):
    """Make the first sentence of an example's docstring the title of its page."""
    if docname.startswith("examples/") and docname != "examples/index":
        source[0] = re.sub(
            r"(\.\. _sphx_glr_examples_[\w.]+:\n\n)(.+?)\n(\n|$)",
            lambda found: found[1] + found[2] + "\n" + "=" * len(found[2]) + "\n\n",
            source[0],
            count=1,
        )


def setup(app):
    app.connect("source-read", title)
    return {"parallel_read_safe": True}
