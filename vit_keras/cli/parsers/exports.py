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
    endings = ", ".join(f"{each.suffix or 'no ending'} ({name})" for name, each in FORMATS.items())
    add_output(parser, "FILE", f"file to write, or folder of a SavedModel; its ending is {endings}")
    parser.add_argument("--format", choices=FORMATS, help="format of the file; default: by its ending")
    parser.add_argument(
        "--raw",
        action="store_true",
        help="write a file that takes the model's own float input, not uint8 images",
    )
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="text file with the name of a class in each line; default: known"
    )
    parser.add_argument(
        "--top", type=integer(), default=5, metavar="N", help="number of classes that are named; default: 5"
    )
    quantized = "; ".join(f"{name}: {', '.join(each.quantize)}" for name, each in FORMATS.items() if each.quantize)
    parser.add_argument("--quantize", metavar="NAME", help=f"smaller weights ({quantized}); default: float32")
    able = ", ".join(name for name, each in FORMATS.items() if each.calibrates)
    parser.add_argument(
        "--calibration",
        nargs="+",
        metavar="DIR|IMAGE",
        help=f"some thirty images like those that the file will see, for more exact int8 files ({able}); default: none",
    )
    parser.add_argument(
        "--attention",
        action=argparse.BooleanOptionalAction,
        help="let the file return the attention of every block too; default: only for a page",
    )
    parser.add_argument(
        "--check", nargs="+", metavar="DIR|IMAGE", help="images to compare model and file with; default: drawn ones"
    )
    parser.add_argument("--no-check", action="store_true", help="do not run the file")
    add_json(parser)
    add_loading(parser)


def benchmark(parser: argparse.ArgumentParser) -> None:
    """Add the options of `benchmark`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="exported file or folder")
    parser.add_argument("--batch-size", type=integer(), default=1, metavar="N", help="images per batch; default: 1")
    parser.add_argument("--rounds", type=integer(), default=10, metavar="N", help="runs of each file; default: 10")
    add_json(parser)


def serve(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serve`."""
    parser.add_argument(
        "model",
        metavar="FILE|NAME",
        help="ONNX file that `vit_keras.export` wrote; or a factory such as vit_b16, a published name or a saved model "
        "(.keras, .h5), which is exported first",
    )
    parser.add_argument("--weights", metavar="NAME|FILE|URL", help="weights of a factory; default: ImageNet-1k")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all; default: 127.0.0.1")
    parser.add_argument(
        "--port", type=integer(0, 65535), default=8000, metavar="N", help="port; 0 for any; default: 8000"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the model in addresses; default: that in the file")
    parser.add_argument(
        "--workers", type=integer(), default=2, metavar="N", help="requests computed at once; default: 2"
    )
    parser.add_argument("--threads", type=integer(), metavar="N", help="threads of each; default: as many as cores")
    parser.add_argument(
        "--batch",
        type=integer(),
        default=1,
        metavar="N",
        help="requests computed together, which pays on a GPU, not on a CPU; default: 1",
    )
    parser.add_argument(
        "--timeout", type=number(), default=30.0, metavar="N", help="seconds for each step of a request; default: 30"
    )
    parser.add_argument("--max-mb", type=number(), default=10.0, metavar="MB", help="largest request; default: 10")
    parser.add_argument(
        "--max-megapixels",
        type=number(),
        default=50.0,
        metavar="N",
        help="largest image, or all images of a request; default: 50",
    )
    parser.add_argument(
        "--pending",
        type=integer(0),
        default=64,
        metavar="N",
        help="requests that may wait; more get the status 503; default: 64",
    )
    parser.add_argument(
        "--per-client",
        type=integer(0),
        metavar="N",
        help="requests of one address that may wait; more get the status 429; default: 32; no limit for this machine",
    )
    parser.add_argument(
        "--connections-per-client",
        type=integer(0),
        metavar="N",
        help="connections of one address; default: 128; no limit for this machine",
    )
    parser.add_argument(
        "--proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address or network (10.0.0.0/8) of a proxy, for which there is no limit either; may be repeated",
    )
    parser.add_argument(
        "--max-memory",
        type=number(),
        default=1024.0,
        metavar="MB",
        help="memory for one run of the model; default: 1024",
    )
    parser.add_argument("--max-answer", type=number(), default=160.0, metavar="MB", help="largest answer; default: 160")
    add_loading(parser)
