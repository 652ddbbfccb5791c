"""Export a model to a file that runs without this package and Keras, and check that it computes the same.

This module can be called: `vit_keras.export(model, "model.onnx")` is `vit_keras.export.export(model, "model.onnx")`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Literal

from .._internal.imports import attach
from .formats import FORMATS, Format, check_place, exported_files, find_format, names

if TYPE_CHECKING:
    import keras

    from .report import Report
    from .timing import benchmark as benchmark

_NAMES = {"Report": "report", "benchmark": "timing"}

__all__ = ["FORMATS", "Format", "export", *_NAMES]
if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, (), _NAMES)


def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    preprocessing: bool = True,
    labels: Any = None,
    top: int = 5,
    quantize: Literal["int8", "float16"] | None = None,
    calibration: Any = None,
    batch_size: int | None = None,
    opset: int | None = None,
    attention: bool | None = None,
    check: Any = True,
) -> Report:
    """Export a model to a file that runs without this package, and compare it with the model in its own runtime.

    The file computes in float32. It appears at its path only if it computes what the model computes, or if that could
    not be checked because the process that ran it crashed.

    Args:
        model: A ViT of this package, or a model with one inside, of one input and one output.
        path: The file, or the folder of a SavedModel. Files of an earlier export are replaced.
        format: Format of the file; `None`: by its ending. A name in `FORMATS`: `"saved_model"`, `"onnx"`, `"openvino"`,
            `"litert"`, `"torch"` or `"html"`, a page that computes. A path without an ending is a SavedModel.
        preprocessing: Whether the file takes uint8 images instead of the model's own input.
        labels: Names of the classes, or the name of a list of them. `None`: the model's own.
        top: Number of classes to return. The most probable ones, if the format returns classes.
        quantize: Form of smaller weights: `"int8"` (ONNX, OpenVINO, LiteRT, pages) or `"float16"` (LiteRT); `None`:
            float32. See `FORMATS[format].quantize`.
        calibration: About thirty typical images for `quantize="int8"` in ONNX and OpenVINO files, as paths, arrays or a
            folder. They show which channels are large, which makes the file more accurate at the same size and speed.
        batch_size: Number of images in every batch, for runtimes that need fixed shapes; `None`: batches of any size.
            Images then have one size too: the model's own. Not for SavedModels and pages.
        opset: Version of ONNX' operators, from 13 to 20, for runtimes that read no later one; `None`: 20. Only for ONNX
            files.
        attention: Whether to return the attention of every block too; `None`: only in a web page. The page draws it, if
            the model has attention and runs its ViT once.
        check: Images for the comparison: `True` for generated ones; paths, arrays or a folder; `False` or `None` for no
            comparison. For other than 1 or 3 channels: uint8 arrays `(height, width, channels)`.

    Returns:
        A `Report`, which is also written next to the file, as `NAME.report.json`.

    Raises:
        FileNotFoundError: The folder does not exist.
        ImportError: A package that the format needs is not installed.
        TypeError: `model` is not a Keras model, or an argument is not of its kind.
        ValueError: The model cannot be exported to this format, an argument does not fit, or the file does not compute
            the same as the model. No file is written.
        RuntimeCrashed: The process that ran the file crashed (a `ValueError`). The file is kept, and its report says
            that it was not checked.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> report = export(model, "tiny.pt2")  # doctest: +SKIP
    """
    import numpy as np

    from .._internal.atomic import naming, put_together, workspace
    from .._internal.validate import expanded, path_text
    from ..anatomy.dry_run import shows_attention
    from ..anatomy.parts import learner
    from .images import check_images
    from .onnx.calibration import calibrated
    from .other_backend import write_in_its_backend
    from .plan import Plan
    from .report import Report, compare, sha256
    from .running import RuntimeCrashed
    from .timing import cpu

    if isinstance(model, (str, os.PathLike)) and hasattr(path, "predict"):
        raise TypeError(f"The model comes first, then the file: export(model, {os.fspath(model)!r}).")
    path = expanded(path_text(path, "path", "the path of the file to write"))
    name = find_format(path, format)
    check_place(path, name)
    kind = FORMATS[name]
    if quantize is not None and quantize not in kind.quantize:
        offered = f"It offers {', '.join(map(repr, kind.quantize))}." if kind.quantize else "It offers none."
        raise ValueError(f"The format {name!r} has no quantize={quantize!r}. {offered}")
    for option, value in (("batch_size", batch_size), ("calibration", calibration), ("opset", opset)):
        if value is not None and option not in kind.options:
            able = ", ".join(each for each, other in FORMATS.items() if option in other.options)
            raise ValueError(f"{option}= is for the formats {able}. Received: the format {name!r}. Leave it out.")
    if isinstance(check, (int, np.bool_)) and check in (0, 1):
        check = bool(check)
    checked = check is not None and check is not False
    needed = dict.fromkeys((*kind.writes, *(kind.runs if checked else ())))
    missing = [module for module in needed if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f"The format {name!r} needs {', '.join(missing)}, not installed: pip install {' '.join(missing)}"
        )
    model = learner(model)
    if attention is None:
        attention = kind.shows_attention and shows_attention(model)
    plan = Plan.of(
        model,
        preprocessing=preprocessing,
        labels=labels,
        top=top,
        attention=attention,
        quantize=quantize,
        batch_size=batch_size,
        opset=opset,
    )
    images = check_images(plan, check) if checked else []
    if calibration is not None:
        plan = calibrated(plan, calibration)
    with naming(path), workspace(path.parent) as folder:
        part = folder / path.name
        notes = write_in_its_backend(plan, name, part)
        fields: dict[str, Any] = {}
        crash = None
        if checked:
            try:
                fields = compare(plan, name, part, images)
            except RuntimeCrashed as error:
                crash, fields = error, {"notes": (f"It was not checked. {error}",)}
        fields["notes"] = (*notes, *fields.get("notes", ()))
        report = Report(
            path=str(path),
            format=name,
            bytes=sum(each.stat().st_size for each in exported_files(part)),
            sha256=sha256(part),
            cpu=cpu(),
            metadata=plan.metadata_json(),
            **fields,
        )
        told = dataclasses.replace(report, path=path.name)  # without the folders of this machine
        (folder / f"{path.name}.report.json").write_text(told.to_json(), encoding="utf-8")
        put_together(folder, path.parent, names(path, name))
    if crash is not None:
        raise RuntimeCrashed(
            f"{path} was written, but not checked. {crash} This says nothing of the file: try it where it will run, or "
            "pass check=False."
        ) from crash
    return report


class _Callable(types.ModuleType):
    """A module that is called like its function of the same name."""

    __signature__: inspect.Signature = inspect.signature(export)
    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _Callable
