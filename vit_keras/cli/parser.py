"""The commands: their functions, their options and their help. Imports nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from .. import __version__
from .._internal.validate import ALIASES, did_you_mean
from .options import form_of, help_of
from .signatures import Argument, Command, arguments_of, head_of

__all__ = ["COMMANDS", "build_parser"]

_MODEL = "cli.loading.opened"
_IMAGES = "cli.loading.images_of"
_PREDICT = "cli.predicting.classify"

COMMANDS = {
    "predict": Command("cli.predicting.predict", "cat.jpg holidays --top 3", (_IMAGES, _PREDICT, _MODEL)),
    "attention": Command(
        "cli.pictures.attention",
        "cat.jpg -o map.png",
        (_IMAGES, _MODEL),
        names={"target": "class"},
        choices={"method": "visualize.methods.METHODS"},
    ),
    "zero-shot": Command(
        "cli.predicting.zero_shot",
        "cat.jpg --model openai/clip-vit-base-patch32 --text 'a cat' 'a dog'",
        (_IMAGES, _PREDICT, _MODEL),
        "weights",
    ),
    "explore": Command("cli.pictures.explore", "cat.jpg -o cat.html", (_IMAGES, _MODEL), names={"target": "class"}),
    "finetune": Command(
        "cli.training.finetune",
        "flowers --model vit_ti16 -o flowers-ti16",
        (_MODEL, "training.finetuning.finetune"),
        "mistakes progress command",
        names={"validation_split": "held-out"},
        choices={"metric": "training.metrics.NAMES", "recipe": "training.recipe_table.RECIPE_TABLE"},
    ),
    "evaluate": Command(
        "cli.training.evaluate",
        "flowers-ti16/model.keras new-flowers",
        ("training.evaluation.evaluate",),
        "progress",
    ),
    "predict-table": Command(
        "cli.training.predict_table",
        "test.csv --models fold*/model.keras --images-dir test --like sample.csv -o submission.csv",
        ("training.evaluation.submission.predict_table",),
        "progress",
        names={"sample": "like"},
    ),
    "average": Command("cli.training.average", "folds/fold*/model.keras -o soup.keras"),
    "embed": Command(
        "cli.training.embed",
        "flowers --model vit_ti16 -o flowers.npz",
        (_MODEL, "training.embeddings.extraction.embed"),
        "image_size return_labels progress",
    ),
    "export": Command(
        "cli.exports.export",
        "vit_ti16 -o vit_ti16.onnx",
        ("export.export", _MODEL),
        "path preprocessing",
        choices={"format": "export.formats.FORMATS"},
    ),
    "benchmark": Command(
        "cli.exports.benchmark", "vit_ti16.onnx vit_ti16.tflite vit_ti16", ("export.timing.benchmark",), "image_size"
    ),
    "serve": Command("cli.exports.serve", "model.onnx", ("serve.serve", _MODEL)),
    "inspect": Command("cli.weights.inspect", "vit.safetensors", ("checkpoints.describe.describe",), "path"),
    "convert": Command(
        "cli.weights.convert", "vit.npz vit.safetensors", ("converting.convert", _MODEL), "model weights"
    ),
    "download": Command("cli.weights.download", "'Ti_16/*' --dry-run"),
    "models": Command(
        "cli.weights.models",
        "dinov2 --source facebook",
        ("checkpoints.locate.available",),
        "variant name labels",
        choices={"task": "checkpoints.checkpoint.TASKS", "sort": "checkpoints.locate.SORTS"},
    ),
    "cost": Command(
        "cli.weights.cost",
        "vit_l16 --batch-size 512 --training --devices 8 --strategy fsdp",
        ("cost.step.cost",),
        choices={"dtype": "cost.step.BYTES", "optimizer": "cost.step.OPTIMIZERS"},
    ),
    "doctor": Command("cli.doctor.doctor", ""),
}

_DEFAULTS = {"errors": "skip"}
"""Defaults of all commands, where those of the functions differ."""

_EXCLUSIVE = (("json", "csv"), ("check", "no_check"))


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are two lines: the usage of the command, and the mistake."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Refuse an unknown option here, where the command is known, before a missing option hides it."""
        for name in args or ():
            if name == "--" or (self._subparsers is not None and not name.startswith("-")):
                break  # what follows is not an option, or is an option of the command
            written = name.partition("=")[0]
            if name.startswith("--") and not any(each.startswith(written) for each in self._option_string_actions):
                self.error(f"There is no option {written}.{self._hint(written)}")
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"Unexpected argument: {' '.join(rest)}")
        return namespace, rest

    def _hint(self, written: str) -> str:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        name = written.strip("-").replace("-", "_")
        for other in ALIASES.get(name, ()):
            if (option := f"--{other.replace('_', '-')}") in options:
                return f" Did you mean {option}?"
            if "--recipe" in options:  # only training has settings of a recipe
                return f" Did you mean --set {other}=…?"
        near = difflib.get_close_matches(written.lower().replace("_", "-"), options, n=2, cutoff=0.75)
        return f" Did you mean {' or '.join(near)}?" if near else ""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Refuse an empty value, such as from an unset variable: as a path, it would mean the current folder."""
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
        self.exit(2, f"{formatter.format_help().strip()} [OPTIONS]\n{self.prog}: {message}\n")


def build_parser(*commands: str) -> argparse.ArgumentParser:
    """Return a parser of some commands with their options, or of all names of commands without their options."""
    parser = _Parser(
        prog="vit-keras",
        description="Vision Transformers for Keras: classify images, see what a model looks at, fine-tune, "
        "evaluate, and work with weight files.",
        epilog="`vit-keras COMMAND --help` describes the options of a command.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"vit-keras {__version__}")
    added = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name in commands or COMMANDS:
        command = COMMANDS[name]
        summary, *_ = (head_of(command.function).__doc__ or "").split("\n")
        one = added.add_parser(
            name,
            help=f"{summary[0].lower()}{summary[1:-1]}",
            description=summary,
            epilog=f"example:\n  vit-keras {name} {command.example}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=command.function)
        if commands:
            _add_options(one, arguments_of(command))
    return parser


def _add_options(parser: argparse.ArgumentParser, arguments: Mapping[str, Argument]) -> None:
    """Add the arguments of a command. One that is not given is not passed on, so that no default is said twice."""
    groups: dict[str, Any] = {}
    for pair in _EXCLUSIVE:
        if arguments.keys() >= set(pair):
            groups |= dict.fromkeys(pair, parser.add_mutually_exclusive_group())
    for each in arguments.values():
        each = dataclasses.replace(each, default=_DEFAULTS.get(each.name, each.default))
        form, text, place = form_of(each), help_of(each), groups.get(each.name, parser)
        if each.positional:
            once = {} if each.required else {"nargs": "?"}
            parser.add_argument(each.name, default=argparse.SUPPRESS, help=text, **once, **form)
            continue
        if text.startswith("for a table, "):
            text = text.removeprefix("for a table, ")
            place = groups["tables"] = groups.get("tables") or parser.add_argument_group("tables")
        off = form.get("action") == "store_false"
        name = f"--{'no-' * off}{each.option.replace('_', '-')}"
        place.add_argument(
            *["-o"] * (name == "--output"),
            name,
            dest=each.name,
            required=each.required,
            default=_DEFAULTS.get(each.name, argparse.SUPPRESS),
            help=f"do not {text}" if off else text,
            **form,
        )
