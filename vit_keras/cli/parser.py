"""The commands, their options and their help. Imports nothing heavy: `--help` must be immediate."""

from __future__ import annotations

import argparse

from .. import __version__
from .parsers import exports, pictures, training, weights

__all__ = ["build_parser"]

_OPTIONS = {"exports": exports, "pictures": pictures, "serving": exports, "training": training, "weights": weights}
"""Where the options of the commands of a module are."""

_COMMANDS = (
    ("pictures.predict", "classify images", "predict cat.jpg --top 3"),
    ("pictures.attention", "draw what a model looks at in images", "attention cat.jpg -o map.png"),
    (
        "pictures.zero_shot",
        "classify images by sentences, with a model for images and text (CLIP, SigLIP)",
        "zero-shot cat.jpg --model clip-vit-base-patch32 --text 'a cat' 'a dog'",
    ),
    (
        "pictures.explore",
        "write an interactive page of a model's attention (one HTML file)",
        "explore cat.jpg -o cat.html",
    ),
    (
        "training.finetune",
        "fine-tune a model on a folder of images and write a report",
        "finetune flowers --model vit_ti16 -o flowers-ti16",
    ),
    (
        "training.evaluate",
        "measure the accuracy of a model on a folder of images",
        "evaluate flowers-ti16/model.keras flowers --only flowers-ti16/split.json",
    ),
    (
        "training.predict_table",
        "predict every row of a table of images, by the average of several models",
        "predict-table test.csv --models fold*/model.keras --images test --like sample.csv -o submission.csv",
    ),
    ("training.embed", "compute one feature vector per image", "embed flowers --model vit_ti16 -o flowers.npz"),
    (
        "exports.export",
        "export a model to a file that runs without this package, and compare the two",
        "export vit_ti16 -o vit_ti16.onnx",
    ),
    ("exports.benchmark", "time exported files in turns", "benchmark vit_ti16.onnx vit_ti16.tflite vit_ti16"),
    ("serving.serve", "answer requests for a model over HTTP, with a page for people", "serve model.onnx"),
    ("weights.inspect", "describe a weight file without reading its values", "inspect vit.safetensors"),
    ("weights.convert", "convert a weight file to another format", "convert vit.npz vit.safetensors"),
    ("weights.download", "download published weights", "download 'Ti_16/*' --dry-run"),
    ("weights.models", "list published weights", "models dinov2 --source facebook"),
    (
        "weights.cost",
        "compute what a model costs: parameters, operations, memory, communication",
        "cost vit_l16 --batch-size 512 --training --devices 8 --strategy fsdp",
    ),
)
"""The function that runs each command, its help, and an example."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; `run` of what it returns is the function of the command, as `module.function`.

    Example:
        >>> build_parser().parse_args(["predict", "cat.jpg"]).run
        'pictures.predict'
    """
    parser = argparse.ArgumentParser(
        prog="vit-keras",
        description="Vision Transformers for Keras: classify images, see what a model looks at, fine-tune, "
        "evaluate, and work with weight files.",
        epilog="`vit-keras COMMAND --help` describes the options of a command.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"vit-keras {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for run, help, example in _COMMANDS:
        module, name = run.split(".")
        command = commands.add_parser(
            name.replace("_", "-"),
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=f"example:\n  vit-keras {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        getattr(_OPTIONS[module], name)(command)
    return parser
