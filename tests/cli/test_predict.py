"""`vit-keras predict`: files, folders, what it prints for people and for programs, and damaged images."""

import csv
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import uncompiled

from vit_keras import vit
from vit_keras.cli import main, predicting
from vit_keras.opening import open_model

pytestmark = pytest.mark.any_backend
ORDER = ["one.png", "f/a.jpg", "f/b/c/q.webp", "f/z.png"]


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Images in folders, and a damaged one, in the current folder; models run without compiling."""
    monkeypatch.chdir(tmp_path)
    for n, name in enumerate(ORDER):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 255, (20 + n, 30, 3), "uint8")
        Image.fromarray(pixels).save(name)
    Path("f/bad.png").write_text("not an image")
    Path("f/notes.txt").write_text("not an image either")
    with uncompiled():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved model of four classes, and its path."""
    made = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=4)
    random = np.random.default_rng(1)
    made.set_weights([w + 0.3 * random.standard_normal(w.shape) for w in made.get_weights()])
    made.labels = ("cat", "dog", "red, car", "yak")
    path = tmp_path_factory.mktemp("model") / "model.keras"
    made.save(path)
    return made, str(path)


@pytest.fixture
def expected(model):
    """`{image: probabilities}`, each image on its own."""
    logits = {name: model[0].predict(model[0].preprocess(name), verbose=0)[0].astype("float64") for name in ORDER}
    return {name: np.exp(each) / np.exp(each).sum() for name, each in logits.items()}


def run(capsys, *arguments, status=0):
    """What the command prints: standard output and standard error."""
    assert main(["predict", *arguments]) == status
    return capsys.readouterr()


def test_json_lines_have_the_classes_of_every_image_in_order(model, expected, capsys):
    for options in (), ("--batch-size", "1"), ("--batch-size", "3"):
        output = run(capsys, "one.png", "f", "--model", model[1], "--json", "--top", "3", *options)
        rows = [json.loads(line) for line in output.out.splitlines()]
        assert [row["image"] for row in rows] == ORDER
        for row in rows:
            best = np.argsort(-expected[row["image"]])[:3]
            assert [found["class"] for found in row["predictions"]] == best.tolist()
            assert [found["name"] for found in row["predictions"]] == [model[0].labels[n] for n in best]
            found = [each["probability"] for each in row["predictions"]]
            # float32, in batches and alone
            np.testing.assert_allclose(found, expected[row["image"]][best], rtol=1e-5)
        assert output.err == "vit-keras: warning: Images are left out: 1 damaged: 'f/bad.png'.\n"


def test_csv_has_a_line_for_each_class(model, expected, capsys):
    output = run(capsys, "f", "--model", model[1], "--csv", "--top", "2")
    rows = list(csv.DictReader(io.StringIO(output.out)))
    assert [(row["image"], row["rank"]) for row in rows] == [(name, rank) for name in ORDER[1:] for rank in "12"]
    for row in rows:
        assert row["name"] == model[0].labels[int(row["class"])]
        assert abs(float(row["probability"]) - expected[row["image"]][int(row["class"])]) < 1e-5


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl"])
def test_a_file_of_predictions_is_what_is_printed(model, suffix, capsys):
    output = run(capsys, "one.png", "--model", model[1], "-o", f"new/found{suffix}")
    assert (output.out, output.err) == ("", f"new/found{suffix}, 1 image\n")
    written = Path(f"new/found{suffix}").read_text(encoding="utf-8")
    printed = run(capsys, "one.png", "--model", model[1], "--csv" if suffix == ".csv" else "--json").out
    if suffix == ".json":
        assert json.loads(written) == [json.loads(printed)]
    else:
        assert written == printed


def test_images_may_be_in_several_folders_and_maps_are_numbered(model, capsys):
    output = run(capsys, "f/b", "one.png", "f", "--model", model[1], "--top", "1", "-o", "maps/map.png")
    names = [line for line in output.out.splitlines() if not line.startswith((" ", "attention"))]
    assert names == ["f/b/c/q.webp", *ORDER]
    # the damaged one is the fifth
    assert sorted(path.name for path in Path("maps").iterdir()) == [f"map-{n}.png" for n in (1, 2, 3, 4, 6)]


@pytest.mark.parametrize(("command", "file"), [("attention", "map.png"), ("explore", "page.html")])
def test_commands_that_draw_leave_damaged_images_out_unless_asked_otherwise(command, file, model, capsys):
    line = ["f/bad.png", "one.png", "--model", model[1], "-o", f"drawn/{file}"]
    assert main([command, *line]) == 0
    assert "1 damaged: 'f/bad.png'." in capsys.readouterr().err
    assert os.listdir("drawn") == ["map-2.png" if command == "attention" else file]  # by their places, as predict does
    assert main([command, *line, "--errors", "raise"]) == 1
    assert "--errors skip" in capsys.readouterr().err


def test_a_model_among_the_images_is_refused_before_another_is_opened(model, capsys, monkeypatch):
    monkeypatch.setattr(predicting, "opened", lambda **options: pytest.fail("a model is opened"))
    assert main(["predict", "one.png", model[1]]) == 1
    assert f"{model[1]} is a Keras model, not an image. A model has an option of its own" in capsys.readouterr().err


def test_a_new_head_is_warned_of(model, capsys):
    model[0].save_weights("four.weights.h5")
    known = ["--weights", "four.weights.h5", "--set", "num_heads=2"]
    assert "untrained" not in run(capsys, "one.png", *known).err
    error = run(capsys, "one.png", *known, "--set", "classes=3").err
    report = open_model("four.weights.h5", num_heads=2, classes=3).load_report
    assert report.missing.startswith("head/kernel, head/bias: not in four.weights.h5")
    assert f"warning: {report.missing}." in error and report.missing in str(report)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.png"], "folder: none.png"),
        (["one.png", "f/none"], "folder: f/none"),
        (["empty"], "There are no images in empty"),
        (["f/bad.png"], "f/bad.png: cannot identify"),
        (["f", "--errors", "raise"], "f/bad.png: cannot identify"),
        (["f/a.jpg", "-o", "f/a.jpg"], "f/a.jpg is an input too"),
        (["one.png", "-o", "out.txt"], ".csv, .json, .jsonl, .png or"),
        (["one.png", "--set", "weights=x"], "--set cannot set 'weights'"),
    ],
)
def test_what_cannot_be_predicted_is_an_error_in_one_line(model, arguments, message, capsys):
    Path("empty").mkdir()
    output = run(capsys, *arguments, "--model", model[1], status=1)
    assert output.err.count("\n") == 1
    assert message in output.err


def test_numbers_are_values(capsys, tmp_path):
    made = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
    made.task, made.labels = "regression", ("age", "height")
    made.save("numbers.keras")
    (row,) = run(capsys, "one.png", "--model", "numbers.keras", "--json").out.splitlines()
    assert {tuple(found) for found in json.loads(row)["predictions"]} == {("class", "name", "value")}
    found = [each["name"] for each in json.loads(row)["predictions"]]
    assert found == ["age", "height"]  # in their order, whichever is larger


def test_a_level_is_the_nearest(capsys):
    made = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=1)
    made.task, made.labels = "ordinal", ("mild", "medium", "hot")
    (bias,) = (weight for weight in made.weights if weight.path.endswith("head/bias"))
    for value, name in ((1.3, "medium"), (9.0, "hot")):
        bias.assign([value])
        made.save("level.keras")
        output = run(capsys, "one.png", "--model", "level.keras").out
        assert output.splitlines()[1].split() == [f"{value:.4g}", name]


def test_patterns_are_expanded_where_the_shell_does_not(model, capsys):
    output = run(capsys, "o*.png", "f/[a-c]*", "--model", model[1], "--csv", "--top", "1")
    assert [line.split(",")[0] for line in output.out.splitlines()[1:]] == ORDER[:3]
    assert "Could not find image or folder: x*.png" in run(capsys, "x*.png", "--model", model[1], status=1).err
