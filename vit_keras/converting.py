"""Convert weights to another format, in one call.

>>> print(convert("timm.safetensors", "google.npz"))  # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, cast

from ._internal.atomic import check_not_read, check_writable, complete
from ._internal.validate import expanded, instance, one_of
from .checkpoints.checkpoint import megabytes
from .checkpoints.describe import unstored_fields
from .checkpoints.families import FAMILIES
from .checkpoints.loading import LoadReport
from .checkpoints.writing import FORMATS, save_weights
from .config import ViTConfig
from .opening import ImageSize, from_checkpoint

__all__ = ["Conversion", "convert"]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The report of a conversion, which `convert` returns. `str` is a short text."""

    path: Path
    bytes: int
    names: str
    load_report: LoadReport
    notes: tuple[str, ...] = ()

    def pairs(self) -> list[tuple[str, str]]:
        """Return headings and texts for print."""
        report = self.load_report
        found = [("read", f"{report.source}, {report.loaded:,} weights")]
        found += [("adapted", text) for text in report.adapted]
        found += [("new", report.missing)] if report.missing else []
        found.append(("wrote", f"{self.path}, {self.names}, {megabytes(self.bytes)}"))
        return found + [("but", note) for note in self.notes]

    def __str__(self) -> str:
        return "\n".join(f"{heading:8} {text}" for heading, text in self.pairs())


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str | None = None,
    *,
    image_size: ImageSize | str = "native",
    **options: Any,
) -> Conversion:
    """Read weights, and write them in another format.

    Args:
        source: Weight file, Hugging Face folder, published name or URL.
        target: File to write: .keras (whole model), .weights.h5, .npz (Google's format) or .safetensors; with the
            format huggingface also a folder for transformers. It appears only when it is complete.
        format: Naming of the arrays in a .npz or .safetensors file or in a folder: `"google"`, `"timm"`,
            `"huggingface"`, or a family that `vit-keras inspect` prints; `None`: google in .npz, timm in .safetensors.
        image_size: Input size of the new model in pixels; `"native"`: that of the source; `None` (any on the command
            line): images of any size. `(height, width)`, or one integer for a square.
        **options: Options of `from_checkpoint`, such as `family` and `key`, and fields of `ViTConfig`.

    Returns:
        A `Conversion`.

    Raises:
        FileNotFoundError: There is no such source.
        ValueError: The target has another ending, would replace the source, or cannot hold the model; or an option does
            not fit. Nothing is written.

    Example:
        >>> convert("Ti_16.npz", "ti16.safetensors").names  # doctest: +SKIP
        'names of the family timm'
    """
    path = expanded(instance(target, (str, os.PathLike), "target"))
    _check(path, format)
    folder = _is_folder(path)
    written = [path / name for name in ("model.safetensors", "config.json")] if folder else [path]

    def check(read: Path) -> None:
        check_not_read(written, [read.parent if folder and read.is_file() else read])

    check(expanded(source))
    check_writable(path if folder else path.parent)
    model = from_checkpoint(source, image_size=image_size, **options)
    report = cast("LoadReport", model.load_report)  # since weights were loaded
    check(Path(report.source))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith((".keras", ".weights.h5")):
        whole = path.suffix == ".keras"
        with complete(path) as part:
            (model.save if whole else model.save_weights)(part)
        names = "a whole Keras model" if whole else "Keras' weights"
    else:
        names = f"names of the family {save_weights(model, path, format)}"
    notes = () if folder or path.suffix in (".keras", ".npz") else _unstored(cast("ViTConfig", model.config), path)
    return Conversion(path, written[0].stat().st_size, names, report, notes)


def _is_folder(path: Path) -> bool:
    return path.is_dir() or not path.suffix


def _check(path: Path, format: str | None) -> None:
    """Raise `ValueError` if a path has an unknown extension, or the format does not fit it."""
    if path.is_file() and not path.suffix:
        raise ValueError(f"{path} is a file, not a folder. Choose another name for the output.")
    if _is_folder(path) and format is None:
        raise ValueError(
            "The output must end in .keras, .weights.h5, .npz or .safetensors. For a folder of Hugging Face, pass "
            f'format="huggingface" (--format huggingface). Received: {path}'
        )
    if _is_folder(path) or path.suffix in (".npz", ".safetensors"):
        if format is not None:
            one_of(format, "format", (*FORMATS, *FAMILIES))
    elif not path.name.endswith((".keras", ".weights.h5")):
        raise ValueError(
            "The output must end in .keras, .weights.h5, .npz or .safetensors, or be a folder (the name of a new one "
            f"has no dot). Received: {path}"
        )
    elif format is not None:
        raise ValueError(f"A format is for .npz and .safetensors files, and for folders. Received: {path}")


def _unstored(config: ViTConfig, path: Path) -> tuple[str, ...]:
    """Return the notes of a new file of weights; `save_weights` itself warns of a .npz file."""
    try:
        fields = ", ".join(f"{field}={value}" for field, value in unstored_fields(path, config).items())
    except ValueError as error:
        return (f"from_checkpoint cannot read this file, only load_weights of the same model can: {error}",)
    reader = "in programs other than vit_keras" if path.suffix == ".safetensors" else "when you read the file"
    return (f"the names and shapes do not store {fields}; set these {reader}",) if fields else ()
