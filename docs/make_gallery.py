"""Make the figures of gallery.md from its own code: every block runs, in order, and its `figure` becomes the picture
below it, or the one that a comment below it names.

    python docs/make_gallery.py [--weights FILE] [--out FOLDER] [NAME …]

With names (`heads`, `figure7` …) only these pictures are made. The figure of the explorer needs Chromium, all others
scikit-image and Matplotlib.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from PIL import Image

PAGE = Path(__file__).with_name("gallery.md")
# What the explorer shows in its picture: an address that it writes itself while somebody clicks through it.
VIEW = "#mode=attention&layer=5&token=5,5&locked=1&theme=light&other=1"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Example(NamedTuple):
    """A block of code of the page, and the picture below it, if there is one."""

    code: str
    line: int
    file: str | None
    width: int | None


def examples(page: str) -> list[Example]:
    """Return the blocks of Python in a page, in order."""
    block = re.compile(
        r'^```python\n(.*?)^```\n(?:\n(?:<!-- )?<img src="gallery/([^"]+)" width="(\d+)")?', re.DOTALL | re.MULTILINE
    )
    return [
        Example(match[1], page.count("\n", 0, match.start(1)), match[2], int(match[3]) if match[2] else None)
        for match in block.finditer(page)
    ]


def run(example: Example, names: dict[str, Any], source: str = PAGE.name) -> Any:
    """Run a block with the names that earlier blocks defined; return its `figure`, if it makes one."""
    names.pop("figure", None)
    exec(compile("\n" * example.line + example.code, source, "exec"), names)
    return names.get("figure")


def save(figure: Any, path: Path, width: int) -> None:
    """Write a figure, a picture, an animation or the explorer, at twice the width that the page shows."""
    if isinstance(figure, bytes):
        path.write_bytes(figure)
        return
    if hasattr(figure, "savefig"):
        file = io.BytesIO()
        figure.savefig(file, dpi=2 * width / figure.get_figwidth(), facecolor="white")
        picture = Image.open(file).convert("RGB")
    elif isinstance(figure, np.ndarray):
        picture = Image.fromarray(figure)
    else:
        picture = screenshot(figure, width)
    if picture.width != 2 * width:
        height = round(2 * width * picture.height / picture.width)
        picture = picture.resize((2 * width, height), Image.Resampling.LANCZOS)
    picture.save(path, quality=82, method=6)


def browser() -> str | None:
    """Return the path of Chromium, or `None`."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def screenshot(explorer: Any, width: int) -> Image.Image:
    """Return a screenshot of the explorer in a browser, at twice the width that the page shows."""
    with tempfile.TemporaryDirectory() as folder:
        page, picture = explorer.save(Path(folder, "explorer.html")), Path(folder, "explorer.png")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
        options += ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
        options += ["--disable-sync", f"--user-data-dir={Path(folder, 'profile')}"]
        window = ["--window-size=1180,970", f"--force-device-scale-factor={2 * width / 1180:.4f}"]
        command = [browser(), *options, *window, f"--screenshot={picture}", page.as_uri() + VIEW]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return Image.open(picture).convert("RGB")


def make(page: str, out: Path, only: Sequence[str] = (), names: dict[str, Any] | None = None) -> list[Path]:
    """Run a page and write its figures, or those that `only` names; return the files. `names` gets what the page
    defines.
    """
    blocks, made, names = examples(page), [], {} if names is None else names
    stems = [Path(block.file).stem for block in blocks if block.file]
    if unknown := sorted(set(only) - set(stems)):
        raise SystemExit(f"The page has the figures {', '.join(stems)}. Received: {', '.join(unknown)}")
    out.mkdir(parents=True, exist_ok=True)
    last = max(
        (n for n, block in enumerate(blocks) if block.file and Path(block.file).stem in (only or stems)), default=-1
    )
    for block in blocks[: last + 1]:
        figure = run(block, names)
        if block.file is None or (only and Path(block.file).stem not in only):
            continue
        if figure is None:
            raise ValueError(f"The block at line {block.line + 1} of the page makes no `figure` for {block.file}.")
        if hasattr(figure, "html") and browser() is None:
            print(f"{block.file}: left out, because there is no {' or '.join(BROWSERS)}")
            continue
        made.append(out / block.file)
        save(figure, made[-1], block.width)
        print(f"{made[-1]}: {made[-1].stat().st_size / 1000:.0f} kB", flush=True)
    return made


def main(arguments: list[str] | None = None) -> None:
    """Make the figures from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="make only these figures")
    parser.add_argument(
        "--weights", help="the file of Google's AugReg ViT-Ti/16, instead of the cached or published one"
    )
    parser.add_argument("--out", type=Path, default=PAGE.with_suffix(""), help="folder of the figures (docs/gallery)")
    chosen = parser.parse_args(arguments)
    if chosen.weights:
        if not os.path.exists(chosen.weights):
            parser.error(f"there is no file {chosen.weights}")
        os.environ["VIT_KERAS_WEIGHTS"] = os.path.abspath(chosen.weights)
    make(PAGE.read_text(encoding="utf-8"), chosen.out, chosen.names)


if __name__ == "__main__":
    main()
