"""`vit-keras predict`: files, folders, what it prints for people and for programs, and damaged images."""

import csv
import io
import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import uncompiled

from vit_keras import training, vit
from vit_keras._internal.atomic import check_output
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
        assert output.err == "vit-keras: warning: 1 damaged image is left out: 'f/bad.png'.\n"


def test_json_and_csv_have_the_name_that_was_given(model, capsys, monkeypatch):
    def names(file):
        (line,) = run(capsys, file, "--model", model[1], "--json").out.splitlines()
        rows = list(csv.DictReader(io.StringIO(run(capsys, file, "--model", model[1], "--csv", "--top", "1").out)))
        return [json.loads(line)["image"], *(row["image"] for row in rows)]

    assert names("./one.png") == ["./one.png", "./one.png"]
    Path("f:one.png").write_bytes(Path("one.png").read_bytes())
    monkeypatch.setattr(predicting, "os", types.SimpleNamespace(sep=":"))  # as the backslash on Windows
    assert names("f:one.png") == ["f/one.png", "f/one.png"]


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


def test_a_file_of_predictions_appears_only_when_it_is_whole(model, capsys):
    Path("found.csv").write_text("old")
    output = run(capsys, "f", "--model", model[1], "--errors", "raise", "-o", "found.csv", status=1)
    assert "f/bad.png" in output.err
    assert Path("found.csv").read_text() == "old"
    assert sorted(Path().iterdir()) == [Path("f"), Path("found.csv"), Path("one.png")]


def test_images_may_be_in_several_folders_and_maps_are_numbered(model, capsys):
    output = run(capsys, "f/b", "one.png", "f", "--model", model[1], "--top", "1", "-o", "maps/map.png")
    names = [line for line in output.out.splitlines() if not line.startswith((" ", "attention"))]
    assert names == ["f/b/c/q.webp", *ORDER]
    # the damaged one is the fifth
    assert sorted(path.name for path in Path("maps").iterdir()) == [f"map-{n}.png" for n in (1, 2, 3, 4, 6)]


def test_a_link_to_nothing_is_a_damaged_image_and_a_link_to_a_folder_is_followed(model, capsys):
    Path("linked").mkdir()
    Path("linked/nothing.png").symlink_to("none.png")
    Path("linked/f").symlink_to("../f")
    output = run(capsys, "linked", "--model", model[1], "--top", "1")
    assert output.out.splitlines()[::2] == [f"linked/{name}" for name in ORDER[1:]]
    assert "2 damaged images are left out: 'linked/f/bad.png', 'linked/nothing.png'" in output.err
    output = run(capsys, "linked/nothing.png", "linked", "--model", model[1], status=1)
    assert "Could not find image or folder: linked/nothing.png" in output.err


@pytest.mark.parametrize(("command", "file"), [("attention", "map.png"), ("explore", "page.html")])
def test_commands_that_draw_leave_damaged_images_out_unless_asked_otherwise(command, file, model, capsys):
    line = ["f/bad.png", "one.png", "--model", model[1], "-o", f"drawn/{file}"]
    assert main([command, *line]) == 0
    assert "1 damaged image is left out: 'f/bad.png'." in capsys.readouterr().err
    assert os.listdir("drawn") == ["map-2.png" if command == "attention" else file]  # by their places, as predict does
    assert main([command, *line, "--errors", "raise"]) == 1
    assert "--errors skip" in capsys.readouterr().err


def test_a_model_among_the_images_is_refused_before_another_is_opened(model, capsys, monkeypatch):
    monkeypatch.setattr(predicting, "opened", lambda **options: pytest.fail("a model is opened"))
    assert main(["predict", "one.png", model[1]]) == 1
    assert f"{model[1]} is a zip archive, not an image. A model has an option of its own" in capsys.readouterr().err


def test_a_new_head_is_warned_of(model, capsys):
    model[0].save_weights("four.weights.h5")
    known = ["--weights", "four.weights.h5", "--set", "num_heads=2"]
    assert "untrained" not in run(capsys, "one.png", *known).err
    error = run(capsys, "one.png", *known, "--set", "classes=3").err
    report = open_model("four.weights.h5", num_heads=2, classes=3).load_report
    assert report.lack.startswith("head/kernel, head/bias: not in four.weights.h5; they keep their values")
    assert f"warning: {report.lack}." in error and report.lack in str(report)


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


def test_a_distillation_predicts_as_its_student(model, capsys):
    made, path = model
    training.Distillation(made, vit.build_model(32, 16, 1, 16, 2, "teacher", 32, classes=4)).save("both.keras")
    assert main(["predict", "one.png", "--model", path, "--csv"]) == 0
    wanted = capsys.readouterr().out
    assert main(["predict", "one.png", "--model", "both.keras", "--csv"]) == 0
    assert capsys.readouterr().out == wanted


def test_a_level_is_the_nearest(capsys):
    made = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=1)
    made.task, made.labels = "ordinal", ("mild", "medium", "hot")
    (bias,) = (weight for weight in made.weights if weight.path.endswith("head/bias"))
    for value, name in ((1.3, "medium"), (9.0, "hot")):
        bias.assign([value])
        made.save("level.keras")
        output = run(capsys, "one.png", "--model", "level.keras").out
        assert output.splitlines()[1].split() == [f"{value:.4g}", name]


def test_what_is_not_a_number_is_null_in_json(capsys):
    made = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
    made.set_weights([np.full(weight.shape, np.nan) for weight in made.weights])
    made.save("nan.keras")
    printed = run(capsys, "one.png", "--model", "nan.keras", "--json", "-o", "found.json").out
    for text in (printed, Path("found.json").read_text()):
        json.loads(text, parse_constant=pytest.fail)
    assert json.loads(printed)["predictions"][0]["probability"] is None


def test_a_name_may_begin_with_a_tilde(model, expected, capsys):
    Path("one.png").rename("~one.png")
    output = run(capsys, "~one.png", "--model", model[1], "--json", "-o", "~table.json")
    assert json.loads(output.out)["image"] == "~one.png"
    assert json.loads(Path("~table.json").read_text())[0]["image"] == "~one.png"


def test_patterns_are_expanded_where_the_shell_does_not(model, capsys):
    output = run(capsys, "o*.png", "f/[a-c]*", "--model", model[1], "--csv", "--top", "1")
    assert [line.split(",")[0] for line in output.out.splitlines()[1:]] == ORDER[:3]
    assert "Could not find image or folder: x*.png" in run(capsys, "x*.png", "--model", model[1], status=1).err


def test_names_that_the_encoding_of_the_output_lacks_are_escaped(model, capsys, monkeypatch):
    names = ["\u65e5\u672c.png", os.fsdecode(b"\xff.png")]
    for name in names:
        Path(name).write_bytes(Path("one.png").read_bytes())
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252"))
    assert main(["predict", *names, "--model", model[1], "--csv", "--top", "1", "-o", "found.csv"]) == 0
    sys.stdout.flush()
    printed = [line.split(",")[0] for line in output.getvalue().decode("cp1252").splitlines()]
    assert printed == ["image", r"\u65e5\u672c.png", r"\udcff.png"]
    assert Path("found.csv").read_text(encoding="utf-8").count(r"\udcff.png") == 1


def test_outputs_are_compared_with_inputs_in_linear_time(tmp_path, monkeypatch):
    """5,000 images with 5,000 maps asked the system for 75 million files."""
    paths = [tmp_path / f"{n}.png" for n in range(200)]
    for path in paths:
        path.touch()
    asked, stat = [], Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **options: asked.append(path) or stat(path, **options))
    check_output(paths[:100], [str(path) for path in paths[100:]])
    assert len(asked) < 10 * len(paths)
    (tmp_path / "same.png").hardlink_to(paths[150])
    with pytest.raises(ValueError, match="same.png is an input too"):
        check_output([*paths[:100], tmp_path / "same.png"], [str(path) for path in paths[100:]])
