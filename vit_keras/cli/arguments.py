"""Options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import DEFAULT_MODEL, setting

__all__ = ["IMAGE", "add_alias", "add_errors", "add_images", "add_json", "add_loading", "add_model", "add_output"]

IMAGE = "image file, URL, or folder of images (searched with its subfolders)"


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add images, and the model that sees them."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help=IMAGE)
    add_model(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a model and of its weights."""
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="factory such as vit_b16, published name, or saved model (.keras, .h5); default: the model of --weights, "
        f"or {DEFAULT_MODEL}",
    )
    parser.add_argument(
        "--weights",
        metavar="NAME|FILE|URL",
        help="published name (see `vit-keras models`), weight file, or URL; default: the recommended ImageNet-1k "
        "weights of --model",
    )


def add_output(
    parser: argparse.ArgumentParser,
    metavar: str,
    help: str,
    *,
    default: Path | None = None,
    required: bool = True,
) -> None:
    """Add the file or folder to write."""
    required = required and default is None
    parser.add_argument("-o", "--output", type=Path, default=default, required=required, metavar=metavar, help=help)


def add_alias(parser: argparse._ActionsContainer, old: str, dest: str, type: type = str) -> None:
    """Accept the spelling of an earlier version, without showing it."""
    parser.add_argument(old, dest=dest, type=type, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_errors(parser: argparse.ArgumentParser) -> None:
    """Add what happens to damaged images."""
    parser.add_argument(
        "--errors",
        choices=("skip", "raise"),
        default="skip",
        help="skip damaged images with a warning, or raise an error; default: skip",
    )


def add_loading(parser: argparse.ArgumentParser, more: str = "", settings: bool = True) -> None:
    """Add how a file of weights is read."""
    parser.add_argument(
        "--family",
        metavar="NAME",
        help="checkpoint family, such as timm; default: detected from the names of the arrays",
    )
    parser.add_argument(
        "--key", metavar="NAME", help="state dict to read if a PyTorch file has several, such as model_ema"
    )
    if settings:
        parser.add_argument(
            "--set",
            action="append",
            type=setting,
            default=[],
            metavar="NAME=VALUE",
            help="set a field of ViTConfig, such as num_heads=6, that the file does not store or that you want to "
            f"change{more and f'; {more}'}; may be repeated",
        )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice of JSON."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
