"""`vit-keras predict-table` and `evaluate` on tables: their options are those of the functions."""

import json

import keras
import numpy as np
import pytest
from PIL import Image

from vit_keras import training, vit
from vit_keras.anatomy import name_classes
from vit_keras.build import build
from vit_keras.cli import main

pd = pytest.importorskip("pandas")


@pytest.fixture
def contest(tmp_path, monkeypatch):
    """Two folds of a model, three pictures, their table and a sample submission."""
    for fold in range(2):
        model = vit.build_model(16, 8, 1, 16, 2, "tiny", 16, classes=2)
        random = np.random.default_rng(fold)
        model.set_weights([random.normal(size=weight.shape) for weight in model.get_weights()])
        model.labels = ("cat", "dog")
        (tmp_path / f"fold{fold}").mkdir()
        model.save(tmp_path / f"fold{fold}" / "model.keras")
    (tmp_path / "test").mkdir()
    for n in range(3):
        Image.fromarray(np.random.default_rng(n).integers(0, 256, (20, 20, 3), "uint8")).save(
            tmp_path / f"test/{n}.png"
        )
    pd.DataFrame({"id": [2, 0, 1]}).to_csv(tmp_path / "test.csv", index=False)
    pd.DataFrame({"id": [0, 1, 2], "dog": 0.5, "cat": 0.5}).to_csv(tmp_path / "sample.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ARGUMENTS = [
    "predict-table",
    "test.csv",
    "--models",
    "fold*/model.keras",
    "--images-dir",
    "test",
    "--like",
    "sample.csv",
]


def test_a_submission_of_all_folds(contest, capsys):
    arguments = [*ARGUMENTS, "--tta", "flip,crops", "--average", "logits", "-o", "out/submission.csv"]
    assert main(arguments) == 0
    assert "submission.csv, 3 rows: id, dog, cat" in capsys.readouterr().out
    models = [keras.saving.load_model(f"fold{fold}/model.keras") for fold in range(2)]
    options = {"tta": ("flip", "crops"), "average": "logits", "values": "probabilities"}
    expected = training.predict_table({"id": ["2", "0", "1"]}, models, "test", **options)
    found = pd.read_csv("out/submission.csv")
    assert found["id"].tolist() == [2, 0, 1] and [*found.columns] == ["id", "dog", "cat"]
    np.testing.assert_allclose(found[["cat", "dog"]], expected[["cat", "dog"]], atol=1e-6)


def test_a_model_that_takes_any_size(contest, capsys):
    config = vit.build_model(16, 8, 1, 16, 2, "tiny", 16, classes=2).config
    model = build(config.replace(image_size=None, position_grid=(2, 2)))
    model.labels = ("cat", "dog")
    model.save("any.keras")
    arguments = [*ARGUMENTS[:2], "--models", "any.keras", *ARGUMENTS[4:], "-o", "out.csv"]
    assert main(arguments) == 1
    assert "Pass image_size=, such as 224" in capsys.readouterr().err
    assert main([*arguments, "--image-size", "24x16"]) == 0
    expected = training.predict_table("test.csv", [model], "test", sample="sample.csv", image_size=(24, 16))
    columns = ["dog", "cat"]
    np.testing.assert_allclose(pd.read_csv("out.csv")[columns], expected[columns], atol=1e-6)


def test_the_average_of_all_folds(contest, capsys):
    assert main(["average", "fold*/model.keras", "-o", "new/soup.keras"]) == 0
    assert capsys.readouterr().out == "new/soup.keras, the average of 2 models\n"
    models = [keras.saving.load_model(f"{place}/model.keras") for place in ("fold0", "fold1")]
    soup = keras.saving.load_model("new/soup.keras")
    for ours, *both in zip(*(model.get_weights() for model in (soup, *models))):
        np.testing.assert_allclose(ours, np.mean(both, axis=0), atol=1e-6)  # float32


def test_damaged_pictures_are_skipped_unless_asked_otherwise(contest, capsys):
    (contest / "test/1.png").write_bytes(b"no picture")
    assert main([*ARGUMENTS, "-o", "submission.csv"]) == 0
    assert "1 damaged" in capsys.readouterr().err
    found = pd.read_csv("submission.csv")["cat"]
    assert found[2] == pytest.approx(found[:2].mean(), abs=1e-6)
    (contest / "submission.csv").unlink()
    assert main([*ARGUMENTS, "--errors", "raise", "-o", "submission.csv"]) == 1
    assert "1 damaged" in capsys.readouterr().err
    assert not (contest / "submission.csv").exists()


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("task", ["single", "multi", "regression"])
def test_the_measures_of_a_table_of_images(contest, capsys, task):
    pytest.importorskip("sklearn")
    model = keras.saving.load_model("fold0/model.keras")
    columns = {"label": ["cat", "dog", "cat"]} if task == "single" else {"cat": [1, 0, 1], "dog": [0, 1, 1]}
    name_classes(model, ("cat", "dog"), task)
    model.save("model.keras")
    pd.DataFrame({"id": [2, 0, 1], **columns}).to_csv("valid.csv", index=False)
    arguments = ["evaluate", "model.keras", "valid.csv", "--images-dir", "test", "--image-column", "id"]
    assert main([*arguments, "-o", "report.html"]) == 0
    printed = capsys.readouterr().out
    expected = training.evaluate(model, {"image": ["2", "0", "1"], **columns}, images_dir="test")
    assert expected.headline in printed
    for each in expected.per_class:
        value = each["f1" if task != "regression" else "rmse"]
        shown = "–" if value is None else f"{100 * value:.1f}" if task != "regression" else f"{value:.4g}"
        assert each["name"] in printed and shown in printed
    assert "valid.csv" in (contest / "report.html").read_text("utf-8")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected.to_dict()))
