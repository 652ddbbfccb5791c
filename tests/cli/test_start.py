"""What the command line imports, and what its help says: without Keras, at once, and about every option."""

import argparse
import json
import os
import shlex
import subprocess
import sys

import pytest
from support import ROOT

import vit_keras
from vit_keras import vit
from vit_keras.cli import console, main
from vit_keras.cli.parser import COMMANDS, build_parser

PROGRAM = """
import io, json, sys, contextlib
sys.argv[0] = "vit-keras"
sys.path.insert(0, {root!r})
from vit_keras.cli import main
heavy = {{"keras", "tensorflow", "jax", "torch", "matplotlib"}}
found = {{}}
for arguments in {commands!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(arguments)
    found[" ".join(arguments)] = len(out.getvalue()), sorted(heavy & set(sys.modules))
print(json.dumps(found))
"""


def run_in_a_new_process(*commands):
    """What commands print and import, in one process that starts from nothing."""
    program = PROGRAM.format(root=str(ROOT), commands=[list(command) for command in commands])
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_help_mistakes_models_and_the_cost_of_a_published_size_import_no_keras():
    helps = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    mistakes = [["pedict"], ["predict"], ["--hlp"], *([name, "--no-such-option"] for name in COMMANDS)]
    models = [["models"], ["models", "--all"], ["models", "dinov2", "--json"]]
    found = run_in_a_new_process(*helps, *mistakes, *models, ["cost", "vit_h14"], ["cost", "vit-g14", "--json"])
    assert len(found) == 2 * len(COMMANDS) + 10
    for command, (length, heavy) in found.items():
        assert length > (50 if command.startswith(("models", "cost")) else 10) and not heavy, command


def test_inspecting_a_file_with_stored_activations_imports_no_keras(tmp_path):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, mlp_activation="relu", activation="tanh")
    model.save(tmp_path / "tiny.keras")
    model.save_weights(tmp_path / "tiny.weights.h5")
    found = run_in_a_new_process(*(["inspect", str(tmp_path / name)] for name in ("tiny.keras", "tiny.weights.h5")))
    assert all(length > 100 and not heavy for length, heavy in found.values())


def test_a_program_that_ends_before_us_is_no_error_and_the_package_runs_as_a_program():
    command = f"{sys.executable} -m vit_keras models --all | head -1"
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.stdout.startswith("WEIGHTS") and result.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "predict nothing.jpg",
        "finetune nothing -o x",
        "evaluate nothing.keras .",
        "embed nothing.png -o x.npy",
        "export nothing.keras -o a.onnx",
        "predict-table nothing.csv --models a.keras -o b.csv",
    ],
)
def test_what_does_not_exist_is_an_error_in_one_line_before_keras_is_imported(arguments, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vit_keras.cli.training", None)  # an import of these fails
    monkeypatch.setitem(sys.modules, "vit_keras.cli.predicting", None)
    monkeypatch.setitem(sys.modules, "vit_keras.cli.exports", None)
    assert main(arguments.split()) == 1
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert output.err.startswith("vit-keras: ") and "nothing" in output.err


@pytest.mark.smoke
@pytest.mark.slow
def test_a_command_with_keras_prints_an_error_in_one_line_and_nothing_of_the_backend():
    """On JAX, which is imported in half the time."""
    command = [sys.executable, "-m", "vit_keras", "export", "nothing", "-o", "a.onnx"]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("vit-keras: ") and "nothing" in result.stderr


def test_an_error_of_the_system_names_the_file_and_has_no_number(capsys):
    console.complain(FileNotFoundError(2, "No such file or directory", "split.json"))
    console.complain(OSError(99, "Cannot assign requested address"))
    console.complain(OSError("There is no folder."))
    assert capsys.readouterr().err == (
        "vit-keras: split.json: No such file or directory\n"
        "vit-keras: Cannot assign requested address\n"
        "vit-keras: There is no folder.\n"
    )


def test_every_example_can_be_parsed():
    for name, command in COMMANDS.items():
        arguments = [name, *shlex.split(command.example)]
        assert build_parser(name).parse_args(arguments).run == command.function
        shown = choices_of(build_parser(name))[name].format_help()
        assert shown.rstrip().endswith(f"vit-keras {name} {command.example}".rstrip())


def choices_of(parser):
    return next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction)).choices


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name):
    for action in choices_of(build_parser(name))[name]._actions:
        assert action.help and "`" not in action.help, action.option_strings or action.dest


@pytest.mark.parametrize("arguments", [["--version"], ["-V"]])
def test_version(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"vit-keras {vit_keras.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["predict"], ["paint", "a.png"], ["predict", "a.png", "--top", "many"]])
def test_wrong_arguments_show_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("usage: vit-keras")


@pytest.mark.parametrize(
    "option", ["--set=num_heads", "--set==3", "--image-size=0", "--image-size=2x", "--image-size=x"]
)
def test_options_that_are_none(capsys, option):
    with pytest.raises(SystemExit) as stop:
        main(["convert", "a.npz", "b.keras", option])
    assert stop.value.code == 2 and "expected N" in capsys.readouterr().err
