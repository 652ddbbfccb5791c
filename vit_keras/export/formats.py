"""The table of export formats. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from .._internal.validate import did_you_mean

__all__ = ["FORMATS", "Format", "find_format"]


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of exported files.

    Attributes:
        suffix: The ending of its files; `""` for a folder.
        module: The module of `vit_keras.export` whose `write(plan, path)` writes it, and returns notes for the report.
        extra: The extras of this package that install what it needs: `pip install "vit-keras[onnx]"`.
        writes: Modules to import for writing.
        runs: Modules to import for running.
        backend: The Keras backend that must be active to write it; `None` for any.
        resizes: Whether a file takes images of any size and resizes them as the model's preprocessing does.
        quantize: Possible values of `quantize=`.
        calibrates: Whether `quantize="int8"` can follow calibration images.
        weights: The ending of a separate weight file next to the file; `""` if there is none.
        shows_attention: Whether a file returns attention by default, if the model has any.

    Example:
        >>> FORMATS["onnx"].suffix, FORMATS["onnx"].quantize
        ('.onnx', ('int8',))
    """

    suffix: str
    module: str
    extra: str
    writes: tuple[str, ...]
    runs: tuple[str, ...]
    backend: str | None = None
    resizes: bool = True
    quantize: tuple[str, ...] = ()
    calibrates: bool = False
    weights: str = ""
    shows_attention: bool = False


FORMATS = {
    "saved_model": Format("", "saved_model", "tensorflow", ("tensorflow",), ("tensorflow",), "tensorflow"),
    "onnx": Format(
        ".onnx",
        "onnx",
        "onnx",
        ("onnx",),
        ("onnxruntime",),
        quantize=("int8",),
        calibrates=True,
        weights=".onnx.data",
    ),
    "openvino": Format(
        ".xml",
        "openvino",
        "openvino",
        ("onnx", "openvino"),
        ("openvino",),
        quantize=("int8",),
        calibrates=True,
        weights=".bin",
    ),
    "litert": Format(
        ".tflite",
        "litert",
        "tensorflow,litert",
        ("tensorflow",),
        ("ai_edge_litert",),
        "tensorflow",
        resizes=False,
        quantize=("float16", "int8"),
    ),
    "torch": Format(".pt2", "torch_program", "torch", ("torch",), ("torch",), "torch", resizes=False),
}
"""All formats, by name."""
FORMATS["html"] = dataclasses.replace(
    FORMATS["onnx"], suffix=".html", module="web", weights="", shows_attention=True
)  # an ONNX file in a page


def find_format(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Return the name of a format: the given one, or the one that the ending of a path implies.

    Args:
        path: Path of the exported model.
        format: A name in `FORMATS`, or `None`.

    Returns:
        A name in `FORMATS`.

    Raises:
        ValueError: The format is unknown, or the ending is unknown or belongs to a different format.

    Example:
        >>> find_format("model.onnx"), find_format("folder")
        ('onnx', 'saved_model')
    """
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
