"""Test the benchmark itself: statistics, the process of a contender, tables, the figure. No library is timed."""

import importlib
import json
import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support import ROOT

from benchmarks import __main__ as command
from benchmarks import environments, figure, report, runner, suites
from benchmarks.contenders import ours
from benchmarks.suites import Cell, Library

FAKE = """
import sys
import numpy as np
from benchmarks.contenders import Job

def inference(cell):
    print("chatter on stdout")
    bad = cell["model"] == "S/16"
    def call(): return np.zeros((cell["batch"], 1000))
    def broken(): raise RuntimeError("it broke")
    calls = {"call": call, "broken": broken, "nan": lambda: call() * np.nan, "shape": lambda: call()[:, 1:]}
    return Job(5 if bad else cell["parameters"], calls, (cell["batch"], 1000))

def startup(cell):
    return [("build", lambda: None), ("predict", lambda: None)]

def save(cell, path):
    open(path, "w").write("weights")
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Settings under which every environment is the tests' own Python, and `fake` is a contender."""
    (tmp_path / "fake_contender.py").write_text(FAKE)

    def fake(name, backend="none", **styles):
        return Library(name, backend, "fake_contender", "tensorflow", styles)

    everything = ("call", "broken", "nan", "shape")
    libraries = (
        fake("vit_keras", inference=("call",), startup=("weights.h5",)),
        fake("peer", inference=everything, startup=("weights.h5",)),
        Library("absent", "none", "no_such_module", "tensorflow", {"inference": ("call",)}),
        Library("offline", "none", "fake_contender", "cannot-be-made", {"inference": ("call",)}),
    )
    original = runner.Process

    def process(program, spec, env):
        spec = {**spec, "module": spec["module"].rpartition(".")[2]}
        return original(program, spec, {**env, "PYTHONPATH": str(tmp_path)})

    def make(name, folder):
        if name == "cannot-be-made":
            raise environments.EnvironmentFailed("no network")
        return sys.executable

    monkeypatch.setattr(runner, "LIBRARIES", libraries)
    monkeypatch.setattr(runner, "Process", process)
    monkeypatch.setattr(environments, "make", make)
    monkeypatch.setattr(runner, "BATCH_SECONDS", 0.001)
    monkeypatch.setattr(runner, "PAUSE", 0)
    return runner.Settings(tmp_path, runner.physical_processors(), log=lambda line: None)


def test_contenders_are_timed_in_rounds_and_failures_are_told(settings):
    found = runner.run_cell(Cell("inference", "Ti/16", batch=2, rounds=3), settings)["contenders"]
    for name in ("vit_keras/none/call", "peer/none/call"):
        assert len(found[name]["seconds"]) == 3
        assert all(0 < seconds < 0.1 for seconds in found[name]["seconds"])
        assert found[name]["first"] > 0 and found[name]["memory"] > 1
    errors = {name: result.get("error", "") for name, result in found.items()}
    assert errors["peer/none/call"] == ""
    assert "it broke" in errors["peer/none/broken"]
    assert "not finite" in errors["peer/none/nan"]
    assert "shape (2, 999), not (2, 1000)" in errors["peer/none/shape"]
    assert "No module named 'no_such_module'" in errors["absent/none/call"]
    assert errors["offline/none/call"] == "no network"


def test_another_model_does_not_count(settings):
    found = runner.run_cell(Cell("inference", "S/16"), settings, only=["peer/*"])["contenders"]
    assert found["peer/none/call"] == {"error": "has 5 parameters instead of 22050664"}


def test_a_process_that_dies_is_told(settings, tmp_path):
    (tmp_path / "fake_contender.py").write_text("import os, sys; print('bad luck', file=sys.stderr); os._exit(7)")
    found = runner.run_cell(Cell("inference", "Ti/16"), settings, only=["peer/*"])["contenders"]
    assert found["peer/none/call"] == {"error": "ended with status 7: bad luck"}


def test_groups_stand_beside_ours_where_memory_is_short(settings, monkeypatch):
    monkeypatch.setattr(runner, "_memory_is_left", lambda results: False)
    copy = runner.LIBRARIES[1]._replace(name="second", styles={"inference": ("call",)})
    monkeypatch.setattr(runner, "LIBRARIES", (*runner.LIBRARIES[:1], copy, copy._replace(name="third")))
    found = runner.run_cell(Cell("inference", "Ti/16", rounds=2), settings)["contenders"]
    took_part = {name: [seconds is not None for seconds in found[name]["seconds"]] for name in found}
    assert took_part == {
        "vit_keras/none/call": [True] * 4,
        "second/none/call": [True, True, False, False],
        "third/none/call": [False, False, True, True],
    }


def test_starts_are_fresh_processes_with_files_made_once(settings):
    cell = runner.run_cell(Cell("startup", "Ti/16", rounds=2), settings)
    stages = cell["contenders"]["peer/none/weights.h5"]["stages"]
    assert [list(start) for start in stages] == [["import", "build", "predict", "total"]] * 2
    assert all(start["total"] > start["import"] > 0 for start in stages)
    assert (settings.environments / "files" / "peer-none-Ti16-224.weights.h5").read_text() == "weights"
    assert "peer/none/weights.h5" in report.table(cell)


@pytest.mark.parametrize("name, module, tolerance", [
    ("onnxruntime/float32", "onnx_runtime", 1e-5), ("openvino/float32", "open_vino", 1e-5),
    ("openvino/bfloat16", "open_vino", 0.05),
])  # fmt: skip
def test_a_runtime_computes_the_file_in_its_precision(name, module, tolerance, monkeypatch, tmp_path):
    onnx, _ = pytest.importorskip("onnx"), pytest.importorskip(name.split("/")[0])
    kernel = np.random.default_rng(0).normal(size=(3, 1000)).astype("float32")
    nodes = [
        onnx.helper.make_node("ReduceMean", ["images"], ["mean"], axes=[2, 3], keepdims=0),
        onnx.helper.make_node("MatMul", ["mean", "kernel"], ["logits"]),
    ]
    ends = [
        onnx.helper.make_tensor_value_info(*each) for each in (("images", 1, (2, 3, 8, 8)), ("logits", 1, (2, 1000)))
    ]
    graph = onnx.helper.make_graph(nodes, "mean", ends[:1], ends[1:], [onnx.numpy_helper.from_array(kernel, "kernel")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
    monkeypatch.setattr(environments, "make", lambda name, folder: sys.executable)
    monkeypatch.setattr(runner, "_onnx_file", lambda cell, settings: tmp_path / "model.onnx")
    monkeypatch.setattr(runner, "Process", lambda program, spec, env: spec)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (library,) = (each for each in suites.LIBRARIES if f"{each.name}/{each.backend}" == name)
    settings = runner.Settings(tmp_path, [0], log=None)
    cell = runner.start_process(Cell("inference", batch=2, image_size=8), library, settings)["cell"]
    contender = importlib.import_module(f"benchmarks.contenders.{module}")
    found = contender.inference(cell).calls["session"]()
    expected = contender.images(cell).mean((1, 2)) @ kernel  # by NumPy
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())  # 8 bits: 0.4 % a step


@pytest.mark.core
def test_ours_has_the_calls_of_its_suite():
    calls_agree(keras.backend.backend())


@pytest.mark.slow
def test_ours_has_the_calls_of_its_suite_on_openvino():
    pytest.importorskip("openvino")
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    env = {**runner.environment_variables("openvino", 1), "PYTHONPATH": path}
    program = "import test_benchmarks; test_benchmarks.calls_agree('openvino')"
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=600)


def calls_agree(backend):
    """Assert that each call of ours computes the same finite logits, in a process of that backend."""
    (library,) = (each for each in suites.LIBRARIES if (each.name, each.backend) == (suites.OURS, backend))
    job = ours.inference({"model": "Ti/16", "image_size": 32, "batch": 2})
    found = {name: job.calls[name]() for name in library.styles["inference"]}
    assert found.keys() == job.calls.keys()
    assert np.isfinite([*found.values()]).all()
    for logits in found.values():  # one model in float32, compiled or not
        np.testing.assert_allclose(logits, found["predict"], atol=1e-5)


def test_each_begins_a_round_in_turn():
    asked = []

    class Process:
        def ask(self, time, calls, warm):
            asked.append(time)
            return {"seconds": 3.0 * calls}

    results = {name: {"seconds": [], "calls": 2, "warm": True} for name in "abc"}
    field = [runner.Entrant(None, {"a": "a", "b": "b"}, Process()), runner.Entrant(None, {"c": "c"}, Process())]
    for number in range(3):
        runner._round(number, field, results)
    assert asked == list("abcbcacab")
    assert results["b"]["seconds"] == [3.0, 3.0, 3.0]


def test_ratios_are_of_the_same_round():
    ours, peer = [1.0, 4.0, None, 1.0], [2.0, 8.0, 5.0, 3.0]
    assert report.paired(peer, ours) == (2.0, 2.0, 3.0)
    assert report.paired(ours, peer)[0] == 0.5
    assert all(map(math.isnan, report.paired([None], [1.0])))
    assert report.minimum([None, 3.0, 2.0]) == 2.0


def test_contenders_are_compared_with_the_nearest_of_ours():
    ours = [f"vit_keras/{b}/{s}" for b, s in (("tensorflow", "compiled"), ("torch", "no_grad"), ("torch", "predict"))]
    assert report.reference("keras-hub/torch/predict", ours) == "vit_keras/torch/predict"
    assert report.reference("timm/torch/eager", ours) == "vit_keras/torch/no_grad"
    assert report.reference("onnxruntime/float32/session", ours) == "vit_keras/tensorflow/compiled"
    assert report.reference("timm/torch/eager", []) is None


@pytest.mark.parametrize(("model", "parameters", "gmac"), [("Ti/16", 5717416, 1.254), ("B/16", 86567656, 17.564)])
def test_sizes_are_those_of_the_paper(model, parameters, gmac):
    assert Cell("inference", model).parameters == parameters
    assert Cell("inference", model, batch=2).gflop == pytest.approx(4 * gmac, rel=1e-3)
    assert Cell("training", model).gflop == pytest.approx(6 * gmac, rel=1e-3)


def test_parameters_are_those_of_our_models():
    from vit_keras import vit

    model = vit.vit_ti16(image_size=64, classes=1000, weights=None)
    assert model.count_params() == Cell("inference", "Ti/16", image_size=64).parameters
    model = vit.vit_ti16(image_size=64, weights=None, include_top=False)
    assert model.count_params() == Cell("features", "Ti/16", image_size=64).parameters


def test_every_cell_has_contenders_and_every_contender_a_module_and_an_environment():
    for cell in [cell for table in (suites.SUITES, suites.QUICK) for cells in table.values() for cell in cells]:
        names = [name for entrant in runner.entrants(cell) for name in entrant.styles]
        assert any(name.startswith("vit_keras/") for name in names), cell
        assert any(not name.startswith(("vit_keras/", "gemm/")) for name in names), cell
        for pattern in cell.contenders:
            assert any(lib.contenders(suite, (pattern,)) for lib in suites.LIBRARIES for suite in suites.SUITES), (
                pattern
            )
    for library in suites.LIBRARIES:
        module = runner.ROOT / "benchmarks" / "contenders" / f"{library.module}.py"
        for suite in library.styles:
            assert f"def {suite}(" in module.read_text() or f"\n{suite} = " in module.read_text(), (library, suite)
        assert library.environment in environments.ENVIRONMENTS


def contender(*seconds, **more):
    return {"seconds": list(seconds), "first": 1.5, "memory": 800.0, "calls": 1, "import": 1.0, "build": 1.0, **more}


@pytest.fixture
def results():
    """What a run would have written."""
    stages = {"import": 2.0, "build": 0.5, "load": 0.25, "predict": 1.0, "total": 4.0}
    inference = {
        "vit_keras/tensorflow/compiled": contender(0.2, 0.4),
        "vit_keras/tensorflow/predict": contender(0.3, 0.5),
        "keras-hub/tensorflow/compiled": contender(0.25, 0.5),
        "tfvit/tensorflow/compiled": {"error": "ModuleNotFoundError: No module named 'tfvit'"},
        "gemm/torch/matmul": contender(0.1, 0.2, gflop=20.0),
    }
    starts = {
        "vit_keras/tensorflow/weights.h5": {"stages": [{**stages, "total": 5.0}, stages], "memory": 700.0},
        "bare-keras/tensorflow/weights.h5": {"stages": [{**stages, "import": 1.9}] * 2, "memory": 600.0},
    }
    cells = []
    for cell, contenders in ((Cell("inference"), inference), (Cell("startup", "Ti/16"), starts)):
        fields = {"suite": cell.suite, "model": cell.model, "batch": 1, "rounds": 2, "images": 128}
        cells.append({**fields, "title": cell.title, "gflop": cell.gflop, "contenders": contenders})
    machine = {"processor": "An Example 9000", "cores": 2, "memory_gib": 24, "system": "Linux 6", "python": "3.11.7"}
    versions = {"tensorflow": {"keras": "3.15.1", "tensorflow_cpu": "2.21.0", "pip": "24"}}
    return {"date": "2026-11-21", "machine": machine, "environments": versions, "cells": cells}


def test_the_table_says_what_was_measured(results):
    lines = report.table(results["cells"][0]).splitlines()
    assert lines[0] == "### Inference: B/16, 224 px, batch 1"
    body = [[entry.strip() for entry in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    assert len({len(line) for line in lines if line.startswith("| ") and "failed" not in line}) == 1
    assert [line[0] for line in body[1:]] == [
        "vit_keras/tensorflow/compiled",
        "keras-hub/tensorflow/compiled",
        "vit_keras/tensorflow/predict",
        "tfvit/tensorflow/compiled",
    ]
    assert body[1][1:] == ["200", "", "", "itself", "5.00", "0.88", "800", "1.50"]
    assert body[2][1:6] == ["250", "1.25", "1.25–1.25", "tensorflow/compiled", "4.00"]
    assert body[4][1].startswith("failed: ModuleNotFoundError")
    assert "200 GFLOP/s" in lines[-1]


def test_the_table_of_starts_stands_beside_bare_keras(results):
    ours = next(row for row in report.startup_rows(results["cells"][1]) if row["name"].startswith("vit_keras"))
    assert ours["total"] == 4.0
    assert ours["ratio"] == (1.125, 1.0, 1.25)
    assert ours["import_more"] == pytest.approx(0.1)


def test_the_figure_shows_each_suite(results, tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    figure.draw(results, tmp_path / "figure.png")
    image = Image.open(tmp_path / "figure.png").convert("RGB")
    assert image.width == 1600
    assert (0, 0x72, 0xB2) in {colour for _, colour in image.getcolors(1 << 24)}
    with pytest.raises(ValueError, match="no cell of the suites"):
        figure.draw({**results, "cells": []}, tmp_path / "none.png")


def test_the_description_names_machine_and_versions(results):
    assert report.describe(results) == (
        "An Example 9000, 2 cores, 24 GiB, Linux 6, Python 3.11.7, 2026-11-21\nkeras 3.15.1, tensorflow 2.21.0"
    )


def test_the_command_line_asks_for_other_sizes():
    def cells(*line):
        return command.cells(command.parser().parse_args(line))

    assert cells("inference", "--models", "S/16", "L/16", "--batch", "2", "--rounds", "4") == [
        Cell("inference", "S/16", batch=2, rounds=4),
        Cell("inference", "L/16", batch=2, image_size=384, rounds=4),
    ]
    assert {cell.suite for cell in cells()} == set(suites.SUITES)
    assert len(cells("--quick", "inference")) < len(cells("inference"))
    with pytest.raises(SystemExit, match="Unknown: inferenec"):
        command.main(["inferenec"])


def test_a_run_is_kept_and_shown_again(settings, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(command.FOLDER, str(tmp_path))
    path = tmp_path / "results.json"
    command.main(
        ["inference", "--models", "Ti/16", "--rounds", "2", "--only", "*/call", "--output", str(path)],
    )
    printed = capsys.readouterr().out
    kept = json.loads(path.read_text())
    assert [cell["title"] for cell in kept["cells"]] == ["Ti/16, 224 px, batch 1"]
    assert kept["machine"]["cores"] == len(settings.processors)
    command.main(["table", str(path)])
    shown = capsys.readouterr().out
    assert "peer/none/call" in shown and shown.splitlines()[0] in printed


def test_a_pattern_that_fits_nobody_is_an_error(settings, tmp_path):
    with pytest.raises(SystemExit, match="No contender fits nobody/"):
        command.main(["inference", "--only", "nobody/*", "--output", str(tmp_path / "results.json")])


def test_an_environment_is_made_once_and_failure_is_remembered(tmp_path, monkeypatch):
    commands = []

    def run(command):
        commands.append(command)
        if "no-such-package" in command:
            raise environments.EnvironmentFailed("no such package")
        return '[{"name": "keras", "version": "3.15.1"}]' if "list" in command else ""

    monkeypatch.setattr(environments, "_run", run)
    monkeypatch.setattr(
        environments, "ENVIRONMENTS", {"good": (("torch",), ("keras",)), "bad": (("no-such-package",),)}
    )
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    assert environments.make("good", tmp_path) == environments.make("good", tmp_path)
    assert [command[-1] for command in commands[1:3]] == ["torch", "keras"]
    assert len(commands) == 4
    assert environments.versions("good", tmp_path) == {"keras": "3.15.1"}
    for _ in range(2):
        with pytest.raises(environments.EnvironmentFailed, match="no such package"):
            environments.make("bad", tmp_path)
    assert len(commands) == 6
    assert environments.versions("bad", tmp_path) == {}


def test_results_of_two_machines_are_not_mixed(results, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps({**results, "machine": {**results["machine"], "cores": ord(name)}}))
    with pytest.raises(ValueError, match="two machines"):
        command.read([str(tmp_path / "a"), str(tmp_path / "b")])


@pytest.mark.slow
@pytest.mark.any_backend
def test_what_is_for_a_gpu_runs_on_a_cpu(tmp_path):
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    ours = ["ours, JAX", "ours, PyTorch", "ours, PyTorch, own loop"]
    small = ["--models", "ti16", "--batches", "2", "--image-size", "32", "--steps", "1", "--rounds", "1", "--peak", "1"]
    script, output = ROOT / "benchmarks" / "lab" / "gpu.py", tmp_path / "gpu.json"
    command = [sys.executable, str(script), *small, "--contenders", *ours, "--output", str(output)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(command, env={**os.environ, **quick, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())
    assert [row["contender"] for row in rows] == ours
    assert all(0 < row["predict, of peak"] < 1 and row["train, images a second"] > 0 for row in rows)
    assert "Measured on: cpu" in done.stdout and "| ti16 | 2 | ours, JAX |" in done.stdout
