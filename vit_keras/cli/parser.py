"""The commands, their options and their help. Imports nothing heavy: `--help` must be immediate."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any

from .. import __version__
from .._internal.validate import did_you_mean
from .parsers import exports, pictures, training, weights

__all__ = ["build_parser"]

_OPTIONS = {
    "doctor": weights,
    "exports": exports,
    "pictures": pictures,
    "predicting": pictures,
    "serving": exports,
    "training": training,
    "weights": weights,
}
"""Where the options of the commands of a module are."""

_COMMANDS = (
    ("predicting.predict", "classify images", "predict cat.jpg holidays --top 3"),
    ("pictures.attention", "draw where a model looks in images", "attention cat.jpg -o map.png"),
    (
        "pictures.zero_shot",
        "classify images by sentences, with a model for images and text (CLIP, SigLIP)",
        "zero-shot cat.jpg --model openai/clip-vit-base-patch32 --text 'a cat' 'a dog'",
    ),
    (
        "pictures.explore",
        "write an interactive page of a model's attention (one HTML file)",
        "explore cat.jpg -o cat.html",
    ),
    (
        "training.finetune",
        "fine-tune a model on a folder or table of images, and write a report",
        "finetune flowers --model vit_ti16 -o flowers-ti16",
    ),
    (
        "training.evaluate",
        "measure the accuracy of a model on a folder or table of images",
        "evaluate flowers-ti16/model.keras flowers --only flowers-ti16/split.json",
    ),
    (
        "training.predict_table",
        "predict every row of a table of images with one model or the average of several",
        "predict-table test.csv --models fold*/model.keras --images-dir test --like sample.csv -o submission.csv",
    ),
    (
        "training.average",
        "average the weights of several models, such as one for each fold, into one model",
        "average folds/fold*/model.keras -o soup.keras",
    ),
    ("training.embed", "compute one feature vector per image", "embed flowers --model vit_ti16 -o flowers.npz"),
    (
        "exports.export",
        "export a model to a file that runs without this package, and compare their outputs",
        "export vit_ti16 -o vit_ti16.onnx",
    ),
    ("exports.benchmark", "compare the speed of exported files", "benchmark vit_ti16.onnx vit_ti16.tflite vit_ti16"),
    ("serving.serve", "serve a model over HTTP, with a web page to try it", "serve model.onnx"),
    ("weights.inspect", "describe a weight file, and how it would be loaded", "inspect vit.safetensors"),
    ("weights.convert", "convert weights to another format", "convert vit.npz vit.safetensors"),
    ("weights.download", "download published weights", "download 'Ti_16/*' --dry-run"),
    ("weights.models", "list published weights", "models dinov2 --source facebook"),
    (
        "weights.cost",
        "estimate the cost of a model: parameters, operations, memory and communication",
        "cost vit_l16 --batch-size 512 --training --devices 8 --strategy fsdp",
    ),
    ("doctor.doctor", "describe this installation for a bug report, and find its faults", "doctor"),
)
"""The function that runs each command, its help, and an example."""


_ALIASES = {
    **dict.fromkeys(("arch", "architecture", "model-name"), "--model"),
    **dict.fromkeys(("checkpoint", "ckpt", "pretrained"), "--weights"),
    **dict.fromkeys(("bs", "batch", "batchsize"), "--batch-size"),
    **dict.fromkeys(("img-size", "imgsz", "input-size", "resolution", "size"), "--image-size"),
    **dict.fromkeys(("k", "topk", "top-k"), "--top"),
    **dict.fromkeys(("out", "output-dir", "save", "to"), "--output"),
    **dict.fromkeys(("lr", "learning-rate"), "--set learning_rate=…"),
    **dict.fromkeys(("wd", "weight-decay"), "--set weight_decay=…"),
    **dict.fromkeys(("val-split", "validation-split"), "--held-out"),
    **dict.fromkeys(("kfold", "k-fold"), "--folds"),
    **dict.fromkeys(("precision", "half"), "--dtype"),
    **dict.fromkeys(("gpus", "num-gpus", "num-devices"), "--devices"),
    **dict.fromkeys(("prompt", "prompts", "texts", "classes"), "--text"),
}
"""What people call an option who know other programs, without its dashes."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are two lines: how the command is used, and what is wrong."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Refuse an unknown option here, where the command is known, before a missing option hides it."""
        for name in args or ():
            if name == "--" or (self._subparsers is not None and not name.startswith("-")):
                break  # what follows is not an option, or is one of the command
            known = list(self._option_string_actions)
            written = name.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(written) for option in known):
                self.error(f"There is no option {written}.{self._hint(written)}")
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"Unexpected argument: {' '.join(rest)}")
        return namespace, rest

    def _hint(self, written: str) -> str:
        options = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        meant = _ALIASES.get(written.strip("-").replace("_", "-"), "")
        if (meant if " " not in meant else "--recipe") in options:  # what a recipe sets is an option of training alone
            return f" Did you mean {meant}?"
        shown = [
            action.option_strings[-1]
            for action in self._actions
            if action.option_strings and action.help != argparse.SUPPRESS
        ]
        near = difflib.get_close_matches(written.lower().replace("_", "-"), shown, n=2, cutoff=0.75)
        return f" Did you mean {' or '.join(near)}?" if near else ""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Refuse an empty value, as from an unset variable: as a path, it would mean the current folder."""
        if not arg_string and action.dest != "text" and action.nargs != argparse.PARSER:  # a sentence may be empty
            raise argparse.ArgumentError(action, "must not be empty. Received: ''")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(value, action.choices)
            listed = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"must be one of {listed}.{hint} Received: {value!r}")

    def error(self, message: str) -> Any:
        """Print the usage without optional options, and the error."""
        needed = [each for each in self._actions if each.required or not each.option_strings]
        formatter = argparse.HelpFormatter(self.prog, width=1000)
        formatter.add_usage(None, needed, [])
        usage = formatter.format_help().strip()
        self.exit(2, f"{usage} [OPTIONS]\n{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; `run` of what it returns is the function of the command, as `module.function`.

    Example:
        >>> build_parser().parse_args(["predict", "cat.jpg"]).run
        'predicting.predict'
    """
    parser = _Parser(
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
