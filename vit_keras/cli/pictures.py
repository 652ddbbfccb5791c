"""`attention`, `zero-shot` and `explore`: what a model looks at in images."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from .. import anatomy
from .._internal.atomic import check_writable, complete
from .._internal.validate import expanded
from ..checkpoints.checkpoint import megabytes
from ..checkpoints.readers.sniff import Kind, kind_of
from ..labels import class_named
from ..opening import as_model, is_saved_model
from ..preprocess.images import read
from ..training.data.decoding import report_damaged
from ..training.data.folder import EXTENSIONS
from ..training.embeddings.batches import files_in
from ..visualize.attention import all_maps, attention_map, check_arguments
from ..visualize.explore import explorer
from ..visualize.figures import new_figure, plot_maps
from ..visualize.methods import METHODS, OF_A_CLASS
from .console import complain, printable
from .options import loading, paths_of

__all__ = ["attention", "explore", "zero_shot"]

_KEPT = 256 << 20  # bytes of images in memory at one time: a folder of photographs takes gigabytes


def attention(options: argparse.Namespace) -> None:
    """Draw an attention map of each image, or all kinds of maps in one figure."""
    files = files_of(options.images)
    output = expanded(options.output)
    _check_attention(options, output)
    pictures = _Pictures(files, options.errors)
    paths = [output if options.all_methods else numbered(output, n, len(files)) for n in pictures.numbers]
    check_output(paths, files)
    model = open_with_options(options)
    method = options.method or ("rollout" if options.target is None else "relevance")
    target = _target(model, options.target)
    if options.all_methods or method in OF_A_CLASS:
        warn_of_embedding(model)
    if options.all_methods:
        _draw_all_methods(model, pictures, target, output)
        return
    style = options.style or "overlay"
    check_arguments(method, target, style, {})
    if method in OF_A_CLASS and (lack := anatomy.why_not_classifier(model)):
        others = ", ".join(name for name in METHODS if name not in OF_A_CLASS)
        raise ValueError(
            f"--method {method} needs a classifier, and the model {model.name!r} is not a classifier: {lack}. "
            f"The methods without classes are {others}."
        )
    for (name, picture), path in zip(pictures, paths):
        print(printable(name))
        of_image = target
        if method in OF_A_CLASS:
            of_image, _ = _print_target(model, picture, target)
        save_picture(attention_map(model, picture, method=method, target=of_image, style=style), path)
        print(f"{method}: {path}")


def zero_shot(options: argparse.Namespace) -> None:
    """Print the probability of each sentence for each image, and draw what the most probable one sees if asked to."""
    from ..text.matching import zero_shot_classifier
    from ..text.opening import open_image_text

    files = files_of(options.images)
    pictures = _Pictures(files, options.errors)
    output = options.output and expanded(options.output)
    paths = [numbered(output, n, len(files)) for n in pictures.numbers] if output else []
    if output:
        check_picture(output)
    check_output(paths, files)
    towers = open_image_text(options.model, tokenizer=options.tokenizer or "auto", **loading(options))
    model = zero_shot_classifier(towers, options.text, options.template or "{}")
    for number, (name, picture) in enumerate(pictures):
        scores = _classify(model, picture)
        print(printable(name))
        for index in (-scores).argsort(kind="stable"):
            print_class(model, scores, index)
        if paths:
            best = int(scores.argmax())
            save_picture(attention_map(model, picture, method="relevance", target=best), paths[number])
            print(f"relevance map: {paths[number]}")


def explore(options: argparse.Namespace) -> None:
    """Write an interactive page of the attention in all images."""
    files = files_of(options.images)
    output = expanded(options.output)
    check_html(output)
    check_output([output], files)
    names = _Pictures(files, options.errors).names
    model = open_with_options(options)
    warn_of_embedding(model)
    target = "auto" if options.target is None else _target(model, options.target)
    page = explorer(model, names, target=target, max_mb=options.max_mb)
    with complete_in_new_folder(output) as part:
        page.save(part)
    print(f"{output}, {megabytes(output.stat().st_size)}")
    for note in page.notes:
        print(f"  {printable(note)}")


# --- models and images, in and out --------------------------------------------------------------------------------


def open_with_options(options: argparse.Namespace) -> Any:
    """Open the model of `--model`, `--weights` and the options of loading.

    Raises:
        ValueError: A saved model is given together with weights or options of loading.
    """
    settings = loading(options)
    if not is_saved_model(options.model):
        model = as_model(options.model, weights=options.weights, **settings)
        if (report := getattr(model, "load_report", None)) and report.missing:
            complain(f"warning: {report.missing}.")
        return model
    if options.weights is not None:
        raise ValueError(f"{options.model} is a saved model, which has its weights. Remove --weights.")
    if any(value is not None for value in settings.values()):
        raise ValueError(f"{options.model} is a saved model, which has its settings. Remove --set, --family and --key.")
    return as_model(options.model)


def check_html(output: Path) -> None:
    """Raise `ValueError` if a page has the name of another kind of file."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"The output file must end in .html. Received: {output}")


@contextlib.contextmanager
def complete_in_new_folder(target: Path) -> Iterator[Path]:
    """Make the folder of a file, and yield the path to write; see `atomic.complete`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with complete(target) as part:
        yield part


def check_not_read(targets: Iterable[Path], sources: Iterable[Path]) -> None:
    """Raise `ValueError` if an output would replace a file that is read. Each file is looked up once."""
    targets = [target for target in targets if target.exists()]
    sources = [source for source in sources if source.exists()] if targets else []
    read, in_pieces = {_identity(source) for source in sources}, set()
    for source in sources:
        if source.is_dir() or source.name.endswith(".json"):
            in_pieces.add(_identity(source if source.is_dir() else source.parent))
    for target in targets:
        if _identity(target) in read or (in_pieces and _identity(target.parent) in in_pieces):
            raise ValueError(f"{target} is an input too. Choose another name for the output.")


def _identity(path: Path) -> tuple[int, int]:
    """Return what two names of one file have in common; see `os.path.samestat`."""
    status = path.stat()
    return status.st_dev, status.st_ino


def files_of(images: Sequence[str]) -> list[str]:
    """Return the images that are named: files and URLs, and all in a folder and in those in it, sorted by name.

    Patterns such as `*.jpg` are expanded (`paths_of`).

    Raises:
        FileNotFoundError: There is nothing at a path.
        ValueError: A folder has no images, or a file is a model or weights.
    """
    found: list[str] = []
    for name in paths_of(images):
        path = expanded(name)
        if path.is_dir():
            found += files_in(name)[0]
        elif "://" in name:
            found.append(name)
        elif path.is_file():
            if not path.name.lower().endswith(EXTENSIONS) and (kind := kind_of(path)) in _MODELS:
                raise ValueError(f"{name} is {kind.words}, not an image. A model has an option of its own (--help).")
            found.append(name)
        else:
            raise FileNotFoundError(f"Could not find image or folder: {name}")
    return found


_MODELS = (Kind.SAFETENSORS, Kind.ZIP, Kind.HDF5, Kind.PICKLE)


class _Pictures:
    """Images, all read before the model is opened, so that damaged ones are reported at once. Many are read again.

    Attributes:
        names: The files that could be read.
        numbers: Their places among all that were given, from 1.
    """

    def __init__(self, files: Sequence[str], errors: str):
        self.names: list[str] = []
        self.numbers: list[int] = []
        self._kept, left = {}, _KEPT
        damaged: list[tuple[str, str]] = []
        for number, name in enumerate(files, start=1):
            try:
                picture = read(name, None)
            except (OSError, ValueError) as error:
                damaged.append((name, str(error)))
                if errors == "raise":
                    break
                continue
            self.names.append(name)
            self.numbers.append(number)
            left -= picture.nbytes
            if left >= 0:
                self._kept[name] = picture
        report_damaged(damaged, len(files), errors)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name in self.names:
            yield name, self._kept[name] if name in self._kept else read(name, None)


def numbered(path: Path, number: int, count: int) -> Path:
    """Return the path of one of several outputs: `map-2.png`."""
    return path.with_name(f"{path.stem}-{number}{path.suffix}") if count > 1 else path


def save_picture(pixels: Any, path: Path) -> None:
    """Write an array of pixels as an image file."""
    with complete_in_new_folder(path) as part:
        # A photograph as PNG: a quarter of the time of Pillow's own level, and a fifth more bytes.
        options: dict[str, Any] = {"compress_level": 1} if path.suffix.lower() == ".png" else {}
        Image.fromarray(pixels).save(part, **options)


def _check_attention(options: argparse.Namespace, output: Path) -> None:
    """Raise `ValueError` for options that do not go together, before a model is read."""
    if options.all_methods:
        for name in ("method", "style"):
            if getattr(options, name) is not None:
                raise ValueError(f"--all-methods draws all methods as overlays. Remove --{name}.")
        if output.suffix.lower()[1:] not in new_figure(1, 1).canvas.get_supported_filetypes():
            raise ValueError(_not_a_picture(output))
    else:
        check_picture(output)


def check_picture(output: Path, also: str = "") -> None:
    """Raise `ValueError` if no image can be written with this suffix; `also` names others that would work.

    Pillow registers some that it cannot write, such as .h5.
    """
    try:
        Image.new("RGB", (1, 1)).save(io.BytesIO(), Image.registered_extensions().get(output.suffix.lower(), ""))
    except (KeyError, OSError, ValueError):
        raise ValueError(_not_a_picture(output, also)) from None


def _not_a_picture(output: Path, also: str = "") -> str:
    return f"The output file must end in {also}.png or another image format. Received: {output}"


def check_output(paths: Sequence[Path], sources: Sequence[str]) -> None:
    """Raise an error if an output is a folder, would replace a file that is read, or cannot be written."""
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{path} is a folder. Pass the name of a file in it.")
    check_not_read(paths, map(expanded, sources))
    for folder in {path.parent for path in paths}:
        check_writable(folder)


# --- classes ------------------------------------------------------------------------------------------------------


def _classify(model, picture):
    """Return the probabilities of the classes of one image, or the numbers that the model predicts."""
    inputs = anatomy.preprocessing_of(model)(picture)
    return anatomy.predictions(model, model.predict(inputs, verbose=0))[0]


def warn_of_embedding(model: Any) -> None:
    """Warn if the outputs of a model may be an embedding, as those of the image tower of CLIP are.

    Its projection is read as a head without a bias, and its file names no classes.
    """
    report, config = getattr(model, "load_report", None), getattr(model, "config", None)
    if report is None or config is None or not config.include_top or config.head_bias:
        return
    if anatomy.class_names(model) is None and not any(name.startswith("head/") for name in report.fresh):
        complain(
            f"warning: {model.name!r} has no names of classes, and its head has no bias. If its {config.classes} "
            "outputs are an embedding (CLIP), they are not classes: `vit-keras zero-shot` classifies by sentences."
        )


def label(model: Any, scores: Any, index: int) -> str:
    """Return the name of an output of a model, or of the level nearest to it, or its number in words."""
    names, task = anatomy.output_names(model), anatomy.task(model)
    if names is None:
        return f"number {index}" if task in anatomy.NUMBERS else f"class {index}"
    return names[anatomy.levels(scores[index], len(names)) if task == "ordinal" else index]


def print_class(model: Any, scores: Any, index: int) -> None:
    """Print the probability and the name of a class."""
    shown = f"{scores[index]:8.4g}" if anatomy.task(model) in anatomy.NUMBERS else f"{scores[index]:6.1%}"
    print(f"  {shown}  {printable(label(model, scores, index))}")


def _target(model, name: str | None) -> int | str | None:
    """Return the number of the class that `--class` names; "predicted" and `None` stay. A name wins over a number."""
    if name is None or name == "predicted":
        return name
    try:
        return class_named(name, anatomy.class_names(model))
    except ValueError:
        if not name.isdecimal():
            raise
    if lack := anatomy.why_not_classifier(model):
        raise ValueError(f"The model {model.name!r} has no classes to choose from: {lack}.")
    if int(name) >= model.output_shape[-1]:
        raise ValueError(f"The model has the classes 0 to {model.output_shape[-1] - 1}. Received: --class {name}")
    return int(name)


def _print_target(model, picture, target: int | str | None) -> tuple[int, str]:
    """Print the class that is explained, by default the predicted one, and return its number and its name."""
    scores = _classify(model, picture)
    number = target if isinstance(target, int) else int(scores.argmax())
    print_class(model, scores, number)
    return number, label(model, scores, number)


# --- a figure of all methods --------------------------------------------------------------------------------------


def _draw_all_methods(model: Any, pictures: _Pictures, target: int | str | None, path: Path) -> None:
    rows = []
    for name, picture in pictures:
        print(printable(name))
        title, of_image = Path(name).name, target
        if target is not None or not anatomy.why_not_classifier(model):
            of_image, of_target = _print_target(model, picture, target)
            title = f"{title}: {of_target}"
        title = title.replace("$", r"\$")  # or Matplotlib reads it as a formula
        rows.append((title, picture, all_maps(model, picture, of_image)))
    figure = _figure_of_one(*rows[0]) if len(rows) == 1 else _figure_of_several(rows)
    with complete_in_new_folder(path) as part:
        figure.savefig(part, dpi=200)
    print(f"{len(rows[0][2])} methods: {path}")


def _figure_of_one(title: str, picture, maps: dict[Any, Any]):
    figure = plot_maps(picture, maps)
    figure.suptitle(title, size=11)
    return figure


def _figure_of_several(rows: Sequence[tuple[str, Any, dict[Any, Any]]]):
    width = 1.6  # inches of a map
    heights = [width * len(picture) / picture.shape[1] + 0.8 for _, picture, _ in rows]
    figure = new_figure(width * (len(rows[0][2]) + 1), sum(heights))
    axes = figure.subplots(len(rows), 1, height_ratios=heights)
    for ax, (title, picture, maps) in zip(axes, rows):
        plot_maps(picture, maps, ax, columns=len(maps) + 1)
        ax.set_title(title, loc="left", size=9)
    return figure
