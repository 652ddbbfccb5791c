"""What the command line imports, and what its help says: without Keras, at once, and about every option."""

import argparse
import importlib
import io
import json
import os
import shlex
import subprocess
import sys

import keras
import pytest
from support import ROOT

import vit_keras
from vit_keras import vit
from vit_keras._internal.validate import KNOWN_ACTIVATIONS
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


@pytest.mark.parametrize("name", KNOWN_ACTIVATIONS)
def test_activations_that_are_known_without_keras_are_those_of_keras(name):
    assert keras.activations.get(name).__name__ == name


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["serve", "nothing.keras", "--port", "0"], ["export", "nothing.keras", "-o", "a.onnx"], ["cost", "nothing.keras"]],
)
def test_a_command_that_imports_keras_late_prints_nothing_of_tensorflow(arguments, tmp_path):
    command, environment = [sys.executable, "-m", "vit_keras", *arguments], {"KERAS_BACKEND": "tensorflow"}
    environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (result.stdout, result.stderr) == ("", "vit-keras: There is no model file at nothing.keras.\n")


def test_an_import_in_the_middle_of_a_command_is_quiet_unless_it_fails(tmp_path, monkeypatch, capfd):
    source = "import os\nos.write(2, b'oneDNN')\n"
    (tmp_path / "tensorflow.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as without, console.quiet_imports():
        without.delitem(sys.modules, "tensorflow", raising=False)
        importlib.import_module("tensorflow")
        assert capfd.readouterr().err == ""
        del sys.modules["tensorflow"]
        (tmp_path / "tensorflow.py").write_text(f"{source}raise ImportError('broken')\n")
        importlib.invalidate_caches()
        with pytest.raises(ImportError, match="broken"):
            importlib.import_module("tensorflow")
        assert capfd.readouterr().err == "oneDNN"


def test_an_error_of_the_system_names_the_file_and_has_no_number(capsys):
    console.complain(FileNotFoundError(2, "No such file or directory", "split.json"))
    console.complain(OSError(99, "Cannot assign requested address"))
    console.complain(OSError("There is no folder."))
    assert capsys.readouterr().err == (
        "vit-keras: split.json: No such file or directory\n"
        "vit-keras: Cannot assign requested address\n"
        "vit-keras: There is no folder.\n"
    )


@pytest.mark.parametrize("missing", ["stdin", "stdout", "stderr"])
def test_a_standard_stream_may_be_missing(missing, monkeypatch, capsys):
    with monkeypatch.context() as without:
        without.setattr(sys, missing, None)
        assert main(["models", "vit_cifar10"]) == 0
        assert main(["models", "no-such-model"]) == 1
        getattr(sys, missing).close()
    printed = capsys.readouterr()
    assert ("WEIGHTS" in printed.out, "No published" in printed.err) == (missing != "stdout", missing != "stderr")
    assert "No published" not in printed.out


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


def test_help_is_printed_where_the_encoding_has_no_ellipsis(monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "ascii", "surrogateescape"))  # as in the C locale
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--help"])
    sys.stdout.flush()
    assert ended.value.code == 0 and rb"\u2026" in output.getvalue()


@pytest.mark.parametrize("arguments", [[], ["predict"], ["paint", "a.png"], ["predict", "a.png", "--top", "many"]])
def test_wrong_arguments_show_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("usage: vit-keras")


def test_a_misspelled_method_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["attention", "a.png", "-o", "b.png", "--method", "grad-cam"])
    assert "Did you mean 'gradcam'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--set=num_heads", "--set==3", "--image-size=0", "--image-size=2x", "--image-size=x"]
)
def test_options_that_are_none(capsys, option):
    with pytest.raises(SystemExit) as stop:
        main(["convert", "a.npz", "b.keras", option])
    assert stop.value.code == 2 and "expected N" in capsys.readouterr().err
