"""Mistakes on the command line, generated for every command and option: each is an error in words, with its name."""

import argparse
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_keras.cli import main
from vit_keras.cli.parser import COMMANDS as NAMES
from vit_keras.cli.parser import build_parser

pytestmark = pytest.mark.any_backend
PARSER = build_parser(*NAMES)
COMMANDS = next(a for a in PARSER._actions if isinstance(a, argparse._SubParsersAction)).choices
OPTIONS = [
    (command, option, action)
    for command, parser in COMMANDS.items()
    for action in parser._actions
    for option in action.option_strings
    if option.startswith("--")
]


def refused(capsys, arguments):
    """The error of a command that cannot be parsed: its second line, after the usage of the command."""
    with pytest.raises(SystemExit) as stopped:
        COMMANDS[arguments[0]].parse_args(arguments[1:])
    output = capsys.readouterr()
    usage, error = output.err.splitlines()
    assert (stopped.value.code, output.out) == (2, "")
    assert usage.startswith(f"usage: vit-keras {arguments[0]} ")
    assert error.startswith(f"vit-keras {arguments[0]}: ")
    return error


def misspelled(option):
    """An option with one letter left out, doubled, changed, or exchanged with the next."""
    name = option[2:]
    for n in range(len(name)):
        yield f"--{name[:n]}{name[n + 1 :]}"
        yield f"--{name[:n]}{name[n] * 2}{name[n + 1 :]}"
        yield f"--{name[:n]}z{name[n + 1 :]}"
        yield f"--{name[:n]}{name[n + 1 : n + 2]}{name[n]}{name[n + 2 :]}"


def test_a_misspelled_option_is_named_with_the_right_one(capsys):
    tried = meant = 0
    for command, option, _ in OPTIONS:
        known = COMMANDS[command]._option_string_actions
        for wrong in misspelled(option):
            if any(each.startswith(wrong) for each in known):  # the beginning of an option stands for it
                continue
            error = refused(capsys, [command, wrong, "3"])
            assert f"There is no option {wrong}." in error
            tried += 1
            meant += f" {option}" in error
    assert tried > 1000
    assert meant > 0.85 * tried  # the others are three or four letters long, of which one is wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "f", "--lr", "1"], "Did you mean --set learning_rate=…?"),
        (["finetune", "f", "--bs", "1"], "Did you mean --batch-size?"),
        (["predict", "f", "--top-k", "1"], "Did you mean --top?"),
        (["predict", "f", "--lr", "1"], "There is no option --lr.$"),
        (["predict", "f", "--imagesize", "1"], "There is no option --imagesize.$"),
        (["zero-shot", "f", "--prompts", "a"], "Did you mean --text?"),
        (["embed", "f", "--batch_sise", "1"], "Did you mean --batch-size?"),
        (["predict", "f", "-z"], "Unexpected argument: -z"),
        (["inspect", "a", "b"], "Unexpected argument: b"),
        (["predict", ""], "IMAGE: must not be empty"),
        (["finetune", "", "-o", "a"], "FOLDER: must not be empty"),
        (["embed", "f", "-o", ""], "-o/--output: must not be empty"),
        (["evaluate", "m.keras", "f", "--image-size", "any"], "expected N for a square, HxW or native"),
        (["finetune", "f", "--balance", "prio"], "Did you mean 'prior'?"),
        (["predict", "f", "--json", "--csv"], "not allowed with argument --json"),
    ],
)
def test_options_of_other_programs_are_known_where_they_are_possible(arguments, message, capsys):
    error = refused(capsys, arguments)
    assert error.endswith(message.rstrip("$")) if message.endswith("$") else message in error


def test_a_value_of_another_type_is_an_error_that_names_the_option(capsys):
    tried = 0
    for command, option, action in OPTIONS:
        if action.nargs == 0:
            continue
        of_a_form = getattr(action.type, "__name__", "") == "<lambda>" and action.metavar != "N|NAME"
        values = [""] * (option != "--text") + ["x!", "nan"] * bool(action.choices or of_a_form) + ["-1"] * of_a_form
        for value in values:
            error = refused(capsys, [command, f"{option}={value}"])
            assert option in error
            assert repr(value) in error
            tried += 1
        error = refused(capsys, [command, option]) if action.nargs not in ("*", "?") else option
        assert option in error
    assert tried > 80


def test_a_misspelled_command_is_named_with_the_right_one(capsys):
    for command in COMMANDS:
        for wrong in (command[1:], command + "s", command.upper()):
            with pytest.raises(SystemExit) as stopped:
                PARSER.parse_args([wrong])
            usage, error = capsys.readouterr().err.splitlines()
            assert (stopped.value.code, usage) == (2, "usage: vit-keras COMMAND ... [OPTIONS]")
            assert repr(command) in error.split("Did you mean")[1]


# --- files ------------------------------------------------------------------------------------------------------

# Each has PATH where a file is missing, or a folder or an image is where another kind of file belongs.
PATHS = {
    "predict": ["PATH", "--model", "vit_cifar10"],
    "attention": ["PATH", "--model", "vit_cifar10", "-o", "map.png"],
    "zero-shot": ["PATH", "--model", "./model", "--text", "a"],
    "explore": ["PATH", "--model", "vit_cifar10", "-o", "page.html"],
    "finetune": ["PATH", "--model", "vit_cifar10"],
    "evaluate": ["vit_cifar10", "PATH"],
    "predict-table": ["PATH", "--models", "model.keras", "-o", "found.csv"],
    "average": ["PATH", "-o", "found.keras"],
    "embed": ["PATH", "--model", "vit_cifar10", "-o", "found.npy"],
    "export": ["PATH", "-o", "found.onnx"],
    "benchmark": ["PATH"],
    "serve": ["PATH", "--port", "0"],
    "inspect": ["PATH"],
    "convert": ["PATH", "found.npz"],
    "cost": ["PATH"],
}
WRONG = {"missing": "./missing.keras", "folder": "./empty", "image": "cat.png"}
FITS = {(name, "image") for name in ("predict", "attention", "zero-shot", "explore", "embed", "export --check")}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    for folder in ("empty", "folder/cat", "folder/dog"):
        Path(folder).mkdir(parents=True)
    for name in ("cat.png", "folder/cat/1.png", "folder/dog/1.png"):
        Image.fromarray(np.zeros((9, 9, 3), "uint8")).save(name)
    Path("table.csv").write_text("image\ncat.png\n")


def test_a_missing_path_is_an_error_in_one_line_that_names_it(here, capsys):
    check_paths(
        capsys, {name: PATHS[name] for name in ("predict", "zero-shot", "embed", "inspect", "cost")}, ["missing"]
    )


def check_paths(capsys, lines, kinds):
    wrong = []
    for name, line in lines.items():
        for kind in kinds:
            path = WRONG[kind]
            if (name, kind) in FITS:
                continue
            arguments = [name.split()[0], *(path if each == "PATH" else each for each in line)]
            try:
                status = main(arguments)
            except BaseException as error:
                wrong.append((arguments, repr(error)[:200]))
                continue
            output = capsys.readouterr()
            lines_of_error = [each for each in output.err.splitlines() if not each.startswith("vit-keras: warning")]
            named = os.path.basename(path) in output.err
            if (status, len(lines_of_error), named, output.out) != (1, 1, True, "") or len(output.err) > 600:
                wrong.append((arguments, status, output.err, output.out))
    assert not wrong, "\n".join(map(str, wrong))
