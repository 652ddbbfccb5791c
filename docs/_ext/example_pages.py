"""The examples as pages, by sphinx-gallery: those that need no files and no network are run."""

import shutil
from pathlib import Path

from generated import DOCS, ROOT

STAGE = ROOT / "build" / "examples"

RUN = ("classify", "explain")
"""Examples that end in seconds without files, weights or a network; finetune and lit train for a minute or two."""

HEADER = f"""Examples
========

These are the scripts of the repository's folder ``examples``. The build of this site runs {" and ".join(RUN)}, and
shows what they print. The other scripts need files, weights, several machines or minutes, and the tests run them.
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
    "examples_dirs": "../build/examples",
    "gallery_dirs": "examples",
    "filename_pattern": rf"[\\/]({'|'.join(RUN)})\.py$",
    "image_scrapers": ("example_pages.pictures",),
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


def stage():
    """Copy the examples to where they are run, with the first sentence of each as the title of its page."""
    STAGE.mkdir(parents=True, exist_ok=True)
    (STAGE / "GALLERY_HEADER.rst").write_text(HEADER, encoding="utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        first, rest = path.read_text(encoding="utf-8").split("\n", 1)
        title, closed, _ = first.removeprefix('"""').partition('"""')
        title = title.rstrip(".")
        (STAGE / path.name).write_text(f'"""{title}\n{"=" * len(title)}\n{closed}\n{rest}', encoding="utf-8")
