"""`attention` and `explore`: what a model looks at in images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from .. import anatomy
from .._internal.atomic import check_output, complete
from .._internal.validate import expanded
from ..anatomy.inputs import preprocessing_of
from ..anatomy.outputs import why_not_classifier
from ..checkpoints.checkpoint import megabytes
from ..labels import class_numbers
from ..visualize.attention import all_maps, attention_map, check_arguments
from ..visualize.explore import explorer
from ..visualize.figures import new_figure, plot_methods
from ..visualize.methods import OF_A_CLASS
from .console import printable
from .loading import files_of, images_of, opened, warn_of_embedding

__all__ = ["attention", "check_html", "check_picture", "explore", "line_of", "numbered", "save_picture"]


def attention(
    images: Sequence[str],
    *,
    output: str,
    method: str | None = None,
    target: str | None = None,
    style: Literal["overlay", "paper", "vit_keras"] | None = None,
    all_methods: bool = False,
    errors: Literal["skip", "raise"] = "skip",
    **options: Any,
) -> None:
    """Draw where a model looks in images.

    Args:
        output: Image file to write; for several images map-1.png, map-2.png …
        method: Kind of map; those from relevance on explain a class; `None`: rollout, or relevance with --class.
        target: Class to explain: a name such as tabby, a number if no class has it as its name, or `predicted`; `None`:
            the predicted class, if the method explains a class.
        style: Colors over the image (overlay), the image, brighter where the map is higher (paper), or the style of
            vit-keras 0.x (vit_keras); `None`: overlay.
        all_methods: Draw all methods side by side in one figure, one row per image (needs Matplotlib).
    """
    files, path = files_of(images), expanded(output)
    if all_methods:
        for name, value in (("method", method), ("style", style)):
            if value is not None:
                raise ValueError(f"--all-methods draws all methods as overlays. Remove --{name}.")
        if path.suffix.lower()[1:] not in new_figure(1, 1).canvas.get_supported_filetypes():
            raise ValueError(_not_a_picture(path))
    else:
        check_picture(path)
    paths = [path] if all_methods else [numbered(path, n, len(files)) for n in range(len(files))]
    check_output(paths, files)
    model = opened(**options)
    if all_methods:
        of_class = target is not None or not why_not_classifier(model)
    else:
        method = check_arguments(method, target, style or "overlay", {}).name
        of_class = method in OF_A_CLASS
    if of_class:
        warn_of_embedding(model)
    chosen = int(class_numbers(target or "predicted", 1, anatomy.class_names(model))[0])
    if chosen >= 0 and (lack := why_not_classifier(model)):
        raise ValueError(f"The model {model.name!r} has no classes to choose from: {lack}.")
    if chosen >= 0 and chosen >= model.output_shape[-1]:
        raise ValueError(f"The model has the classes 0 to {model.output_shape[-1] - 1}. Received: {target}")
    drawn: list[tuple[Any, dict[str, Any], str]] = []
    for number, name, pixels in images_of(files, errors):
        lines, title = [printable(name)], Path(name).name
        of_image: Any = target
        if of_class:
            predictions = anatomy.predictions(model, model.predict(preprocessing_of(model)(pixels), verbose=0))
            of_image = int(predictions[0].argmax()) if chosen < 0 else chosen
            found = anatomy.top_predictions(model, predictions[0], None)
            shown = next(each for each in found if each["class"] == of_image)
            lines, title = [*lines, line_of(shown)], f"{title}: {_name_of(shown)}"
        print("\n".join(lines))
        if all_methods:
            drawn.append((pixels, all_maps(model, pixels, of_image), title))
            continue
        map = attention_map(model, pixels, method=method, target=of_image, style=style or "overlay")
        save_picture(map, paths[number])
        print(f"{method}: {paths[number]}")
    if all_methods:
        figure = plot_methods(*zip(*drawn))
        with complete(path, make_folder=True) as part:
            figure.savefig(part, dpi=200)
        print(f"{len(drawn[0][1])} methods: {path}")


def explore(
    images: Sequence[str],
    *,
    output: str,
    target: str | None = None,
    max_mb: float = 6.0,
    errors: Literal["skip", "raise"] = "skip",
    **options: Any,
) -> None:
    """Write an interactive page of a model's attention (one HTML file).

    Args:
        output: Page to write: .html.
        target: Class for the relevance map: a name such as tabby, a number if no class has it as its name, or
            `predicted`; `None`: the predicted class.
        max_mb: Maximum size of the page in megabytes; shows fewer layers and heads if needed.
    """
    files, path = files_of(images), expanded(output)
    check_html(path)
    check_output([path], files)
    names = [name for _, name, _ in images_of(files, errors)]
    model = opened(**options)
    warn_of_embedding(model)
    page = explorer(model, names, target=target or "auto", max_mb=max_mb)
    with complete(path, make_folder=True) as part:
        page.save(part)
    print(f"{path}, {megabytes(path.stat().st_size)}")
    for note in page.notes:
        print(f"  {printable(note)}")


def line_of(found: dict[str, Any]) -> str:
    """Return the line of a class: its probability or value, and its name."""
    shown = f"{found['value']:8.4g}" if "value" in found else f"{found['probability']:6.1%}"
    return f"  {shown}  {printable(_name_of(found))}"


def _name_of(found: dict[str, Any]) -> str:
    return found["name"] or f"{'number' if 'value' in found else 'class'} {found['class']}"


def numbered(path: Path, number: int, count: int) -> Path:
    """Return the path of one of several outputs, such as `map-2.png` for the number 1."""
    return path.with_name(f"{path.stem}-{number + 1}{path.suffix}") if count > 1 else path


def save_picture(pixels: Any, path: Path) -> None:
    """Write an array of pixels as an image file."""
    with complete(path, make_folder=True) as part:
        # A photograph as PNG: a quarter of the time of Pillow's own level, and a fifth more bytes.
        options: dict[str, Any] = {"compress_level": 1} if path.suffix.lower() == ".png" else {}
        Image.fromarray(pixels).save(part, **options)


def check_html(path: Path) -> None:
    """Raise `ValueError` if a page has the name of another kind of file."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"The output file must end in .html. Received: {path}")


def check_picture(path: Path, also: str = "") -> None:
    """Raise a ValueError if no image can be written with this suffix; `also` names others that would work."""
    # Pillow registers some that it cannot write, such as .h5.
    try:
        Image.new("RGB", (1, 1)).save(io.BytesIO(), Image.registered_extensions().get(path.suffix.lower(), ""))
    except (KeyError, OSError, ValueError):
        raise ValueError(_not_a_picture(path, also)) from None


def _not_a_picture(path: Path, also: str = "") -> str:
    return f"The output file must end in {also}.png or another image format. Received: {path}"
