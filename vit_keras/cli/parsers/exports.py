"""The options of `export`, `benchmark` and `serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...export.formats import FORMATS
from ..arguments import add_json, add_loading, add_output
from ..options import integer, number

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
    able = ", ".join(name for name, each in FORMATS.items() if "calibration" in each.options)
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
        help="ONNX file written by `export`; or a factory such as vit_b16, a published name or a saved model "
        "(.keras, .h5), which is exported first",
    )
    _add_weights(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, 0.0.0.0 for all; default: 127.0.0.1")
    parser.add_argument(
        "--port", type=integer(0, 65535), default=8000, metavar="N", help="port, 0 for any free one; default: 8000"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name of the model in URLs; default: the name stored in the file"
    )
    parser.add_argument(
        "--workers", type=integer(), default=2, metavar="N", help="requests computed at once; default: 2"
    )
    parser.add_argument(
        "--threads",
        type=integer(),
        metavar="N",
        help="threads that compute, shared by the workers; default: the number of cores",
    )
    parser.add_argument(
        "--batch",
        type=integer(),
        default=1,
        metavar="N",
        help="maximum number of requests in a batch; more than 1 pays off on a GPU only; default: 1",
    )
    parser.add_argument(
        "--timeout",
        type=number(),
        default=30.0,
        metavar="N",
        help="time limit in seconds for each step of a request; default: 30",
    )
    parser.add_argument(
        "--max-mb", type=number(), default=10.0, metavar="MB", help="maximum size of a request; default: 10"
    )
    parser.add_argument(
        "--max-megapixels",
        type=number(),
        default=50.0,
        metavar="N",
        help="maximum megapixels of all images of a request together; default: 50",
    )
    parser.add_argument(
        "--pending",
        type=integer(),
        default=64,
        metavar="N",
        help="maximum number of waiting requests; further ones get status 503; default: 64",
    )
    parser.add_argument(
        "--per-client",
        type=integer(),
        metavar="N",
        help="maximum number of waiting requests per address; further ones get status 429; default: 32, and no limit "
        "for this machine",
    )
    parser.add_argument(
        "--connections-per-client",
        type=integer(),
        metavar="N",
        help="maximum number of connections per address; default: 128, and no limit for this machine",
    )
    parser.add_argument(
        "--proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address or network (10.0.0.0/8) of a proxy, which is exempt from the limits per address; may be repeated",
    )
    parser.add_argument(
        "--max-memory",
        type=number(),
        default=1024.0,
        metavar="MB",
        help="maximum memory for one run of the model; default: 1024",
    )
    parser.add_argument(
        "--max-answer", type=number(), default=160.0, metavar="MB", help="maximum size of a response; default: 160"
    )
    add_loading(parser)
