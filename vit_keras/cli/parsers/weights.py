"""The options of `inspect`, `convert`, `download`, `models`, `cost` and `doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...checkpoints.checkpoint import TASKS
from ...cost import BYTES, OPTIMIZERS, STRATEGIES
from ..arguments import add_json, add_loading
from ..options import SORTS, image_size, image_size_or_any, integer, number, setting

__all__ = ["convert", "cost", "doctor", "download", "inspect", "models"]


def inspect(parser: argparse.ArgumentParser) -> None:
    """Add the options of `inspect`."""
    parser.add_argument(
        "file", metavar="FILE", help="weight file, Hugging Face folder, published name or downloaded URL"
    )
    parser.add_argument("--names", action="store_true", help="list all arrays, and the weight that each becomes")
    parser.add_argument(
        "--no-values", action="store_true", help="do not read the arrays to look for infinite or undefined values"
    )
    add_json(parser)
    add_loading(parser, settings=False)


def convert(parser: argparse.ArgumentParser) -> None:
    """Add the options of `convert`."""
    parser.add_argument("source", metavar="IN", help="weight file, Hugging Face folder, published name or URL")
    parser.add_argument(
        "target",
        type=Path,
        metavar="OUT",
        help="file to write: .keras (whole model), .weights.h5, .npz (Google's format) or .safetensors; with --format "
        "huggingface also a folder for transformers",
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="naming of the arrays in a .npz or .safetensors file or in a folder: google, timm, huggingface, or a "
        "family that `inspect` prints; default: google in .npz, timm in .safetensors",
    )
    parser.add_argument(
        "--image-size",
        type=image_size_or_any,
        default="native",
        metavar="N|HxW",
        help="input size of the new model in pixels, `native` (as in IN) or `any`; default: native",
    )
    add_loading(parser)


def download(parser: argparse.ArgumentParser) -> None:
    """Add the options of `download`."""
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="published name (see `models`), factory such as vit_b16, pattern such as 'Ti_16/*', or URL",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the files without downloading them")


def models(parser: argparse.ArgumentParser) -> None:
    """Add the options of `models`."""
    parser.add_argument("pattern", nargs="?", metavar="PATTERN", help="part of a name; * matches any text")
    parser.add_argument("--family", metavar="NAME", help="checkpoint family, such as timm")
    parser.add_argument("--source", metavar="NAME", help="publisher, such as facebook")
    parser.add_argument("--classes", type=integer(), metavar="N", help="number of classes of the head")
    parser.add_argument("--image-size", type=integer(), metavar="N", help="input size in pixels")
    parser.add_argument("--license", metavar="NAME", help="license, such as MIT")
    parser.add_argument("--task", choices=TASKS, help="purpose of the file; features: without a head")
    parser.add_argument("--max-mb", type=number(), metavar="N", help="maximum size of the file in MB")
    parser.add_argument(
        "--sort", choices=SORTS, help="column to sort by; top1: best first, others: smallest first; default: name"
    )
    parser.add_argument(
        "--all", action="store_true", help="list every file; default: only vit_cifar10 and Google's files"
    )
    add_json(parser)


def cost(parser: argparse.ArgumentParser) -> None:
    """Add the options of `cost`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="factory such as vit_b16 (or vit_g14), published name, weight file, or saved model (.keras, .h5)",
    )
    parser.add_argument(
        "--image-size",
        type=image_size,
        default="native",
        metavar="N|HxW",
        help="input size in pixels; default: native, the model's own",
    )
    parser.add_argument(
        "--batch-size",
        type=integer(),
        default=1,
        metavar="N",
        help="images per step, on all devices together; default: 1",
    )
    parser.add_argument("--training", action="store_true", help="estimate a training step; default: prediction")
    parser.add_argument("--devices", type=integer(), default=1, metavar="N", help="number of devices; default: 1")
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="data",
        help="data: each device holds the whole model; fsdp: a part of every large weight; tensor: some heads and "
        "neurons of each block; default: data",
    )
    parser.add_argument(
        "--model-devices",
        type=integer(),
        metavar="N",
        help="devices that share a model, with --strategy tensor; default: all",
    )
    parser.add_argument("--dtype", choices=BYTES, default="float32", help="precision; default: float32")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="optimizer; default: adamw")
    parser.add_argument(
        "--set",
        action="append",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        help="set a field of ViTConfig, such as remat=true or classes=10; may be repeated",
    )
    add_json(parser)


def doctor(parser: argparse.ArgumentParser) -> None:
    """Add the options of `doctor`: none."""
