"""`export`, `benchmark` and `serve`: files that run without this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._internal.atomic import check_not_read, check_writable
from .._internal.plain_json import as_json
from .._internal.progress import still_working
from .._internal.validate import expanded
from ..export import export as export_model
from ..export.formats import find_format
from ..export.timing import benchmark as time_files
from .console import print_pairs, print_table
from .loading import files_of, opened, paths_of, taken

__all__ = ["benchmark", "export", "serve"]


def export(
    model: str,
    *,
    output: str,
    format: str | None = None,
    raw: bool = False,
    labels: str | None = None,
    calibration: Sequence[str] = (),
    check: Sequence[str] = (),
    no_check: bool = False,
    json: bool = False,
    **options: Any,
) -> None:
    """Export a model to a file that runs without this package, and compare their outputs.

    Args:
        model: Saved model (.keras, .h5), factory such as vit_b16, published name, or weight file.
        output: File to write: .onnx, .xml (OpenVINO), .tflite, .pt2 or .html, a page that computes; or the folder of a
            SavedModel.
        raw: Export without preprocessing: the file takes preprocessed floats instead of uint8 images.
        labels: Text file with one class name per line; `None`: the model's own.
        calibration: About thirty typical images, which make int8 files more accurate (ONNX, OpenVINO, pages); default:
            none.
        check: Images on which to compare the file with the model; default: generated images.
        no_check: Do not compare the file with the model.
        json: Print the report as JSON.
    """
    path = expanded(output)
    find_format(path, format)
    check_not_read([path], [model])
    check_writable(path.parent)
    images = files_of(check)
    if calibration:
        options["calibration"] = files_of(calibration)
    if labels is not None:
        options["labels"] = _labels(expanded(labels))
    opening = taken(options)
    with still_working(f"Exporting {path.name}"):
        found = opened(model, **opening)
        path.parent.mkdir(parents=True, exist_ok=True)
        report = export_model(
            found, path, format, preprocessing=not raw, check=False if no_check else images or True, **options
        )
    print(report.to_json()) if json else print_pairs(report.pairs())


def _labels(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"--labels {path} is not a text file in UTF-8: {error}.") from None


def benchmark(files: Sequence[str], *, json: bool = False, **options: Any) -> None:
    """Compare the speed of exported files.

    Args:
        files: Exported file or folder.
        json: Print the result as JSON.
    """
    rows = time_files(paths_of(files), **options)
    if json:
        print(as_json([dataclasses.asdict(row) for row in rows], indent=2))
        return
    header = ("FILE", "MS/IMAGE", "LEAST", "MOST", "MB", "DIFFERENCE", "SAME CLASS", "RUNTIME")
    cells = [
        (
            row.path,
            *(f"{each:.2f}" for each in (row.milliseconds, *row.spread)),
            f"{row.bytes / 1e6:.1f}",
            "-" if row.difference is None else f"{row.difference:.1e}",
            "-" if row.same_class is None else f"{row.same_class:.1%}",
            row.runtime,
        )
        for row in rows
    ]
    print_table(header, cells, "<>>>>>><")
    print("\nDIFFERENCE and SAME CLASS: from the model in Keras, according to the report next to the file.")


def serve(model: str, **options: Any) -> None:
    """Serve a model over HTTP, with a web page to try it."""
    from ..serve import serve as serve_model

    opening = taken(options)
    serve_model(opened(model, **opening) if opening else model, **options)
