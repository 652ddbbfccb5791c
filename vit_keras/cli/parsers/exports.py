"""The options of `export`, `benchmark` and `serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...export.formats import FORMATS
from ..arguments import add_json, add_loading, add_output
from ..options import integer

__all__ = ["benchmark", "export", "serve"]


def export(parser: argparse.ArgumentParser) -> None:
    """Add the options of `export`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="saved model (.keras, .h5), factory such as vit_b16, published name, or weight file",
    )
    _add_weights(parser)
    endings = ", ".join(f"{each.suffix or 'no ending'} ({name})" for name, each in FORMATS.items())
    add_output(parser, "FILE", f"file to write, or folder for a SavedModel; endings: {endings}")
    parser.add_argument("--format", choices=FORMATS, help="format of the file; default: chosen by its ending")
    parser.add_argument(
        "--raw",
        action="store_true",
        help="export without preprocessing: the file takes preprocessed floats instead of uint8 images",
    )
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="text file with one class name per line; default: the model's own"
    )
    parser.add_argument("--top", type=integer(), default=5, metavar="N", help="number of classes to return; default: 5")
    quantized = "; ".join(f"{name}: {', '.join(each.quantize)}" for name, each in FORMATS.items() if each.quantize)
    parser.add_argument("--quantize", metavar="NAME", help=f"store smaller weights ({quantized}); default: float32")
    able = ", ".join(name for name, each in FORMATS.items() if each.calibrates)
    parser.add_argument(
        "--calibration",
        nargs="+",
        metavar="DIR|IMAGE",
        help=f"about thirty typical images, which make int8 files more accurate ({able}); default: none",
    )
    parser.add_argument(
        "--attention",
        action=argparse.BooleanOptionalAction,
        help="also return the attention of every block; default: only in a web page",
    )
    parser.add_argument(
        "--check",
        nargs="+",
        metavar="DIR|IMAGE",
        help="images on which to compare the file with the model; default: generated images",
    )
    parser.add_argument("--no-check", action="store_true", help="do not compare the file with the model")
    add_json(parser)
    add_loading(parser)


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", metavar="NAME|FILE|URL", help="weights of a factory; default: ImageNet-1k")


def benchmark(parser: argparse.ArgumentParser) -> None:
    """Add the options of `benchmark`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="exported file or folder")
    parser.add_argument("--batch-size", type=integer(), default=1, metavar="N", help="images per batch; default: 1")
    parser.add_argument(
        "--rounds",
        type=integer(),
        default=10,
        metavar="N",
        help="rounds, in each of which every file runs once; default: 10",
    )
    add_json(parser)


def serve(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serve`."""
    parser.add_argument(
        "model",
        metavar="FILE|NAME",
        help="exported file (.onnx, .xml, or the folder of a SavedModel); or a factory such as vit_b16, a published "
        "name or a saved model (.keras, .h5), which is exported first",
    )
    _add_weights(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, 0.0.0.0 for all; default: 127.0.0.1")
    parser.add_argument(
        "--port", type=integer(0, 65535), default=8000, metavar="N", help="port, 0 for any free one; default: 8000"
    )
    parser.add_argument(
        "--threads",
        type=integer(),
        metavar="N",
        help="number of threads that compute, shared by the workers; default: the number of cores",
    )
    for name, default, text in _LIMITS:
        parser.add_argument(name, type=integer(), default=default, metavar="N", help=f"{text}; default: {default}")
    add_loading(parser)


_LIMITS = (
    ("--workers", 2, "number of requests that are computed at once"),
    ("--timeout", 30, "seconds in which a request must be sent and computed"),
    ("--max-mb", 10, "maximum size of a request in MB"),
    ("--max-megapixels", 50, "maximum megapixels of all images of a request together"),
    ("--max-images", 16, "maximum number of images in a request"),
    ("--max-pending", 64, "maximum number of requests that are sent, wait or are computed"),
)
