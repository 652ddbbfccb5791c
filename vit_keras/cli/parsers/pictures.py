"""The options of `predict`, `attention`, `zero-shot` and `explore`."""

from __future__ import annotations

import argparse

from ...visualize.methods import METHODS, OF_A_CLASS
from ..arguments import IMAGE, add_errors, add_images, add_loading, add_output
from ..options import STYLES, integer, method, number

__all__ = ["attention", "explore", "predict", "zero_shot"]

_CLASS = "a name such as tabby, a number if no class has it as its name, or `predicted`"


def predict(parser: argparse.ArgumentParser) -> None:
    """Add the options of `predict`."""
    add_images(parser)
    parser.add_argument("--top", type=integer(), default=5, metavar="N", help="number of classes to print; default: 5")
    parser.add_argument("--batch-size", type=integer(), default=32, metavar="N", help="images per batch; default: 32")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per image and line")
    form.add_argument("--csv", action="store_true", help="print CSV, one line per image and class")
    add_output(
        parser,
        "FILE",
        "write the predictions (.csv, .json or .jsonl), or also draw attention maps (map.png; for several images "
        "map-1.png, map-2.png …)",
        required=False,
    )
    add_errors(parser)
    add_loading(parser)


def attention(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attention`."""
    add_images(parser)
    general = [name for name in METHODS if name not in OF_A_CLASS]
    parser.add_argument(
        "--method",
        type=method,
        metavar="NAME",
        help=f"{', '.join(general)}; or, to explain a class, {', '.join(OF_A_CLASS)}; "
        "default: rollout, or relevance with --class",
    )
    parser.add_argument(
        "--class",
        dest="target",
        metavar="CLASS",
        help=f"class to explain: {_CLASS}; default: the predicted class, if the method explains a class",
    )
    parser.add_argument(
        "--style",
        choices=STYLES,
        help="overlay: colors over the image; paper: the image, brighter where the map is higher; vit_keras: the style "
        "of vit-keras 0.x; default: overlay",
    )
    parser.add_argument(
        "--all-methods",
        action="store_true",
        help="draw all methods side by side in one figure, one row per image (needs Matplotlib)",
    )
    add_output(parser, "map.png", "image file to write; for several images map-1.png, map-2.png …")
    add_errors(parser)
    add_loading(parser)


def zero_shot(parser: argparse.ArgumentParser) -> None:
    """Add the options of `zero-shot`."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help=IMAGE)
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME|FOLDER|FILE|URL",
        help="published name, such as openai/clip-vit-base-patch32, or weights or a saved model (.keras) of both "
        "towers, next to the files of the tokenizer",
    )
    parser.add_argument("--text", nargs="+", required=True, metavar="TEXT", help="sentences or class names")
    parser.add_argument(
        "--template",
        nargs="+",
        metavar="TEMPLATE",
        help="sentences in which {} is replaced by each text, such as 'a photo of a {}.'; several are averaged; "
        "default: the text alone",
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", help="folder of the tokenizer; default: the folder of --model")
    add_output(
        parser,
        "map.png",
        "also draw the relevance map of the most probable text; for several images map-1.png, map-2.png …",
        required=False,
    )
    add_errors(parser)
    add_loading(parser)


def explore(parser: argparse.ArgumentParser) -> None:
    """Add the options of `explore`."""
    add_images(parser)
    parser.add_argument(
        "--class",
        dest="target",
        metavar="CLASS",
        help=f"class for the relevance map: {_CLASS}; default: the predicted class",
    )
    parser.add_argument(
        "--max-mb",
        type=number(),
        default=6.0,
        metavar="MB",
        help="maximum size of the page in megabytes; shows fewer layers and heads if needed; default: 6",
    )
    add_output(parser, "page.html", "page to write")
    add_errors(parser)
    add_loading(parser)
