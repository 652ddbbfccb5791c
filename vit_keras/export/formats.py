"""The table of export formats, and the paths of their files. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from .._internal.validate import did_you_mean

__all__ = ["FORMATS", "OPSETS", "Format", "check_place", "exported_files", "find_format", "names"]

OPSETS = range(13, 21)
"""Versions of ONNX' operators that are written. Before 13 the axes of `Squeeze` and `Unsqueeze` are attributes."""


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of exported files.

    Attributes:
        suffix: The ending of its files; `""` for a folder.
        writes: Modules to import for writing.
        runs: Modules to import for running.
        backend: The Keras backend that must be active to write it; `None` for any.
        resizes: Whether a file takes images of any size and resizes them as the model's preprocessing does.
        quantize: Possible values of `quantize=`.
        options: Arguments of `export` that not every format has: `"batch_size"`, `"calibration"`, `"opset"`.
        weights: The ending of a separate weight file next to the file; `""` if there is none.
        shows_attention: Whether a file returns attention by default, if the model has any.

    Example:
        >>> FORMATS["onnx"].suffix, FORMATS["onnx"].quantize
        ('.onnx', ('int8',))
    """

    suffix: str
    writes: tuple[str, ...]
    runs: tuple[str, ...]
    backend: str | None = None
    resizes: bool = True
    quantize: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    weights: str = ""
    shows_attention: bool = False


FORMATS = {
    "saved_model": Format("", ("tensorflow",), ("tensorflow",), "tensorflow"),
    "onnx": Format(
        ".onnx",
        ("onnx",),
        ("onnxruntime",),
        quantize=("int8",),
        options=("batch_size", "calibration", "opset"),
        weights=".onnx.data",
    ),
    "openvino": Format(
        ".xml",
        ("onnx", "openvino"),
        ("openvino",),
        quantize=("int8",),
        options=("batch_size", "calibration"),
        weights=".bin",
    ),
    "litert": Format(
        ".tflite",
        ("tensorflow",),
        ("ai_edge_litert",),
        "tensorflow",
        resizes=False,
        quantize=("float16", "int8"),
        options=("batch_size",),
    ),
    "torch": Format(".pt2", ("torch",), ("torch",), "torch", resizes=False, options=("batch_size",)),
}
"""All formats, by name."""
FORMATS["html"] = dataclasses.replace(
    FORMATS["onnx"], suffix=".html", options=("calibration",), weights="", shows_attention=True
)  # an ONNX file in a page


def find_format(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Return the name of a format: the given one, or the one that the ending of a path implies."""
    suffix = Path(path).suffix.lower()
    by_suffix = {each.suffix: name for name, each in FORMATS.items()}
    endings = ", ".join(f"{ending or 'a folder'} ({name})" for ending, name in by_suffix.items())
    if format is None:
        if suffix not in by_suffix:
            raise ValueError(
                f"No format has the ending {suffix!r}. Received: {path}. There are: {endings}; or pass format=."
            )
        return by_suffix[suffix]
    if format not in FORMATS:
        raise ValueError(f"Unknown format {format!r}.{did_you_mean(format, FORMATS)} There are: {', '.join(FORMATS)}.")
    if FORMATS[format].suffix not in ("", suffix):
        raise ValueError(f"A file of the format {format!r} ends in {FORMATS[format].suffix}. Received: {path}")
    return format


def check_place(path: Path, name: str) -> None:
    """Raise an error if a file of a format cannot be put at a path; nothing has been computed yet."""
    if path.name in ("", ".."):
        raise ValueError(f"{path} is a folder: name the file or the new folder in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} to write {path.name} to.")
    if FORMATS[name].suffix and path.is_dir():
        raise ValueError(f"{path} is a folder: name the file in it.")
    if not FORMATS[name].suffix and path.exists():
        earlier = path.is_dir() and ((path / "saved_model.pb").is_file() or not any(path.iterdir()))
        if not earlier:
            raise ValueError(f"{path} exists and is not a SavedModel: name another folder, which will be made.")


def names(path: Path, name: str) -> list[str]:
    """Return the names that an export to a path may have, each after those that it describes."""
    kind = FORMATS[name]
    own = kind.weights.replace(kind.suffix, path.suffix) if kind.weights else ""  # A.ONNX has A.ONNX.data
    return [*([path.with_suffix(own).name] if own else []), path.name, f"{path.name}.report.json"]


def exported_files(path: Path) -> list[Path]:
    """Return the files that an export consists of: those in a folder, or one and its weights next to it."""
    if path.is_dir():
        return sorted(each for each in path.rglob("*") if each.is_file())
    *weights, file, _ = (path.with_name(each) for each in names(path, find_format(path)))
    return [file, *(each for each in weights if each.is_file())]
