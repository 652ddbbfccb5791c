"""Predictions of tables: the numbers of a loop by hand, in the rows and columns that were asked for."""

import keras
import numpy as np
import pytest
from PIL import Image
from support import one_at_a_time, tiny_model

from vit_keras import training, vit
from vit_keras.preprocess.images import read
from vit_keras.training.data.columns import Meaning, columns_of
from vit_keras.training.evaluation.views import VIEWS, SeveralViews, cut

pd = pytest.importorskip("pandas")
NAMES = ["b", "a", "d", "c", "e"]


def make(seed=0, classes=3, task="single", labels=None, **options):
    model = tiny_model(16, mlp_dim=16, classes=classes, seed=seed, scale=0.3)
    model.task, model.labels = task, labels or tuple(f"class {n}" for n in range(classes))
    model.preprocessing = model.preprocessing.replace(**options)
    return model


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for n, name in enumerate(NAMES):
        pixels = rng.integers(0, 256, (5 + n, 7, 3)).astype("uint8")
        Image.fromarray(pixels).resize((40, 30)).save(tmp_path / f"{name}.png")
    return tmp_path


def by_hand(models, folder, tta="", logits=False):
    """One view and one model after the other."""
    pictures = np.stack([read(folder / f"{name}.png", None) for name in NAMES])
    assert pictures.shape == (5, 30, 40, 3)
    views = [pictures]
    if "crops" in tta:
        top, left = slice(None, 26), slice(None, 35)
        bottom, right = slice(-26, None), slice(-35, None)
        views += [pictures[:, y, x] for y in (top, bottom) for x in (left, right)]
    scores = []
    for model in models:
        for view in views:
            inputs = model.preprocess(view)
            for each in (inputs, inputs[:, :, ::-1]) if "flip" in tta else (inputs,):
                out = keras.ops.convert_to_numpy(model(each)).astype("float64")
                scores.append(out if logits or model.task == "regression" else activated(out, model))
    mean = np.mean(scores, axis=0)
    return activated(mean, models[0]) if logits else mean


def activated(logits, model):
    return (
        1 / (1 + np.exp(-logits)) if model.task == "multi" else np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    )


def predict(models, folder, **options):
    return training.predict_table({"id": NAMES}, models, folder, batch_size=2, progress=False, **options)


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("tta", ["", "flip,crops", "flip", "crops"])
def test_the_numbers_are_those_of_a_loop_over_models_and_views(folder, tta):
    models = [make(0), make(1, mean=0.2, std=0.7), make(2, crop=0.8, image_size=16)]  # another preprocessing each
    found = predict(models, folder, tta=iter(tta.split(",")) if "," in tta else tta, values="probabilities")
    assert [*found.columns] == ["id", "class 0", "class 1", "class 2"]
    assert found["id"].tolist() == NAMES
    np.testing.assert_allclose(found.iloc[:, 1:], by_hand(models, folder, tta), atol=1e-6)


@pytest.mark.parametrize(
    ("task", "average"), one_at_a_time(["single", "multi", "regression"], ["probabilities", "logits"])
)
def test_the_average_is_of_logits_or_of_probabilities(folder, task, average):
    models = [make(0, task=task), make(5, task=task)]
    values = "numbers" if task == "regression" else "probabilities"
    found = predict(models, folder, values=values, average=average, tta=("flip",))
    logits = average == "logits" and task != "regression"
    np.testing.assert_allclose(found.iloc[:, 1:], by_hand(models, folder, "flip", logits), rtol=1e-4, atol=1e-6)
    if task != "regression":
        assert not np.allclose(found.iloc[:, 1:], by_hand(models, folder, "flip", not logits), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("task", "layer"), [("single", "softmax"), ("multi", "sigmoid")])
def test_logits_of_a_model_that_returns_probabilities(folder, task, layer):
    models = [make(0, task=task), make(5, task=task)]
    wrapped = [keras.Sequential([model, keras.layers.Activation(layer)]) for model in models]
    options = {"average": "logits", "values": "probabilities"}
    found, expected = predict(wrapped, folder, **options), predict(models, folder, **options)
    np.testing.assert_allclose(found.iloc[:, 1:], expected.iloc[:, 1:], atol=1e-5)


def test_a_submission_has_the_rows_of_the_table_and_the_columns_of_the_sample(folder):
    rows = pd.DataFrame({"patient": range(5), "image_id": NAMES})
    rows.to_csv(folder / "test.csv", index=False)
    sample = pd.DataFrame({"image_id": sorted(NAMES), "class 2": 0.5, "class 0": 0.25, "class 1": 0.25})
    sample.to_csv(folder / "sample.csv", index=False)
    target, model = folder / "out" / "submission.csv", make()
    found = training.predict_table(folder / "test.csv", model, sample=folder / "sample.csv", output=target)
    assert [*found.columns] == [*sample.columns]
    written = pd.read_csv(target)
    assert written["image_id"].tolist() == NAMES
    expected = by_hand([model], folder)
    np.testing.assert_allclose(written[["class 0", "class 1", "class 2"]], expected, atol=1e-6)
    assert [path.name for path in target.parent.iterdir()] == ["submission.csv"]
    again = training.predict_table(folder / "sample.csv", model, sample=folder / "sample.csv")  # a table too
    assert again["image_id"].tolist() == sorted(NAMES)
    np.testing.assert_allclose(again.sort_values("image_id").iloc[:, 1:], found.sort_values("image_id").iloc[:, 1:])


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", "b", "c", "d"], "'id'.*the table has 1 more: 'e'"),
        (["a", "b", "c", "d", "e", "f"], "the table lacks 1 of them: 'f'"),
        (["a", "b", "c", "d", "x"], "1 of them: 'x'.* 1 more: 'e'"),
        (["a", "b", "c", "d", "e", "e"], "lacks 1 of them: 'e'"),
    ],
)
def test_the_ids_must_be_those_of_the_sample(folder, ids, said):
    with pytest.raises(ValueError, match=said):
        predict(make(), folder, sample={"id": ids, "label": ["class 0"] * len(ids)})


def test_damaged_and_missing_pictures_are_all_named(folder):
    (folder / "a.png").write_bytes(b"nothing")
    (folder / "c.png").unlink()
    said = r"1 missing: '.*c'; 1 damaged: '.*a\.png'"
    with pytest.raises(ValueError, match=r"1 missing: '.*c'"):
        predict(make(), folder)
    (folder / "d.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"2 damaged: '.*a\.png', '.*d\.png'"):
        training.predict_table({"id": ["a", "b", "d"]}, make(), folder)
    (folder / "d.png").write_bytes((folder / "b.png").read_bytes())
    models = [make(0), make(1, crop=0.8, image_size=16)]
    with pytest.warns(UserWarning, match=said) as caught:
        found = predict(models, folder, values="probabilities", errors="skip")
    assert len([each for each in caught if "the mean prediction" in str(each.message)]) == 1
    filled, read_rows = found.iloc[[1, 3], 1:], found.iloc[[0, 2, 4], 1:]
    np.testing.assert_allclose(filled, np.repeat([read_rows.mean()], 2, axis=0), atol=1e-6)
    with pytest.raises(ValueError, match="images_dir="):
        training.predict_table({"id": ["x", "y"]}, make(), folder, errors="skip")


def test_nothing_is_computed_or_written_where_the_columns_do_not_fit(folder, monkeypatch):
    monkeypatch.setattr("vit_keras.training.evaluation.submission.decode_images", lambda *_: pytest.fail("decoded"))
    sample = {"id": NAMES, "class 0": [0.5] * 5, "other": [0.5] * 5}
    with pytest.raises(ValueError, match="'other'; .*'class 1', 'class 2'"):
        predict(make(), folder, sample=sample, output=folder / "submission.csv")
    assert not (folder / "submission.csv").exists()


def test_predictions_do_not_replace_the_ids(folder):
    with pytest.raises(ValueError, match="ids .*'label'"):
        training.predict_table({"label": NAMES}, make(), folder, progress=False)


def test_models_must_predict_the_same(folder):
    with pytest.raises(ValueError, match="'single', 3 outputs.* tiny: task 'multi'"):
        predict([make(), make(task="multi")], folder)
    with pytest.raises(ValueError, match="no head"):
        predict(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, include_top=False), folder)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"tta": "flop"}, ValueError, "Did you mean 'flip'"),
        ({"average": "log"}, ValueError, "average must be one of"),
        ({"values": "name"}, ValueError, "Did you mean 'names'"),
        ({"image_column": "file"}, ValueError, "no column 'file'. Its columns: id"),
        ({"output": "submission.xls"}, ValueError, "must end in .csv, .tsv, .parquet"),
        ({"output": "a.png/submission.csv"}, NotADirectoryError, "a.png is a file, not a folder"),
    ],
)
def test_mistakes_are_named_before_anything_is_computed(folder, options, error, said, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=said):
        predict(make(), folder, **options)
    with pytest.raises(ValueError, match="models"):
        predict([], folder)


SCORES = np.array([[0.2, 0.7, 0.1], [0.6, 0.4, 0.9]])
SINGLE = Meaning("single", ("cat", "dog", "eel"), 3)
MULTI = Meaning("multi", ("cat", "dog", "eel"), 3)
PAIR = Meaning("single", ("no", "yes"), 2)
LEVELS = Meaning("ordinal", ("mild", "medium", "hot"), 1)
HALVES = Meaning("ordinal", ("0.5", "1.0", "1.5"), 1)
DIGITS = Meaning("single", ("2", "4", "8"), 3)


@pytest.mark.parametrize("activation", ["linear", "sigmoid"])
def test_one_output_is_the_probability_of_its_own_label(folder, activation):
    logits = make(classes=1)
    model = logits if activation == "linear" else keras.Sequential([logits, keras.layers.Activation(activation)])
    found = predict([model], folder)
    assert [*found.columns] == ["id", "class 0"]
    outputs = keras.ops.convert_to_numpy(logits(logits.preprocess([folder / f"{name}.png" for name in NAMES])))
    np.testing.assert_allclose(found["class 0"], 1 / (1 + np.exp(-outputs[:, 0])), atol=1e-6)


def test_names_that_are_booleans_are_written_as_such():
    sample = {"id": np.array(["a"]), "ill": np.array([False])}
    for names, written in ((("False", "True"), ["True", "False"]), (("no", "yes"), [1, 0])):
        assert columns_of(SCORES[:, :2], Meaning("single", names, 2), sample) == {"ill": written}


def test_columns_without_a_sample():
    assert columns_of(SCORES, SINGLE) == {"label": ["dog", "eel"]}
    assert columns_of(SCORES, SINGLE, values="numbers") == {"label": [1, 2]}
    assert [*columns_of(SCORES, MULTI)] == ["cat", "dog", "eel"]
    assert columns_of(SCORES, MULTI, values="names", separator="|") == {"label": ["dog", "cat|eel"]}
    assert columns_of(SCORES, MULTI, values="numbers")["cat"].tolist() == [0, 1]
    assert columns_of(np.array([[-3.0], [1.4], [7.0]]), LEVELS) == {"label": ["mild", "medium", "hot"]}
    assert columns_of(np.array([[1.6]]), LEVELS, values="numbers") == {"label": [2]}
    birds = Meaning("single", ("crane", "dog", "crane"), 3)  # as in ImageNet: the bird and the machine
    assert [*columns_of(SCORES, birds, values="probabilities")] == ["crane (0)", "dog", "crane (2)"]
    prices = Meaning("regression", ("low", "high"), 2)
    assert {name: column.tolist() for name, column in columns_of(SCORES[:, :2], prices).items()} == {
        "low": pytest.approx([0.2, 0.6]),
        "high": pytest.approx([0.7, 0.4]),
    }


@pytest.mark.parametrize(("meaning", "values"), [(MULTI, "numbers"), (MULTI, "auto"), (SINGLE, "names")])
def test_a_separator_is_refused_where_no_names_of_labels_are_written(meaning, values):
    with pytest.raises(ValueError, match=r"--separator\) is for models of several labels and values="):
        columns_of(SCORES, meaning, values=values, separator="|")


@pytest.mark.parametrize(
    ("meaning", "column", "expected"),
    [
        (SINGLE, ["cat"], ["dog", "eel"]),
        (SINGLE, [0], [1, 2]),
        (SINGLE, [np.nan], ["dog", "eel"]),
        (DIGITS, [0], ["4", "8"]),
        (PAIR, [0.5], pytest.approx([0.7, 0.4])),
        (PAIR, ["no"], ["yes", "no"]),
        (MULTI, ["cat dog"], ["dog", "cat eel"]),
        (LEVELS, [0], [0, 1]),
        (LEVELS, ["hot"], ["mild", "medium"]),
        (HALVES, [0.5], ["0.5", "1.0"]),
        (HALVES, [1], ["0.5", "1.0"]),
        (Meaning("single", HALVES.names, 3), [0.5], ["1.0", "1.5"]),
        (LEVELS, [0.5], [0, 1]),
        (Meaning("regression", ("price",), 1), [0], pytest.approx([0.2, 0.6])),
        (Meaning("multi", ("ill",), 1), [0], pytest.approx([0.2, 0.6])),
    ],
)
def test_a_sample_with_one_column_says_by_its_type_what_it_wants(meaning, column, expected):
    found = columns_of(
        SCORES[:, : meaning.outputs],
        meaning,
        {"id": np.array([1]), "target": np.array(column, None if isinstance(column[0], (int, float)) else object)},
    )
    assert [*found] == ["target"]
    assert [*found["target"]] == expected


def test_a_separator_is_in_no_name():
    meaning = Meaning("multi", ("black cat", "dog"), 2)
    assert columns_of(SCORES[:, :2], meaning, values="names", separator="|") == {"label": ["dog", "black cat"]}
    with pytest.raises(ValueError, match="separator ' ' .*'black cat'"):
        columns_of(SCORES[:, :2], meaning, values="names")
    letters = Meaning("multi", ("A", "B"), 2)
    assert columns_of(SCORES[:, :2], letters, values="names", separator="") == {"label": ["B", "A"]}


def test_one_column_of_decimal_numbers_for_three_classes_is_open():
    sample = {"id": np.array([1]), "target": np.array([0.5])}
    with pytest.raises(ValueError, match='values="names" or "numbers"'):
        columns_of(SCORES, SINGLE, sample)
    assert columns_of(SCORES, SINGLE, sample, "numbers") == {"target": [1, 2]}
    with pytest.raises(ValueError, match="no probabilities.*'ordinal'"):
        columns_of(SCORES[:, :1], LEVELS, sample, "probabilities")
    with pytest.raises(ValueError, match="the sample has 2"):
        columns_of(SCORES, SINGLE, {"id": np.array([1]), "cat": np.array([0.5]), "dog": np.array([0.5])}, "names")


def test_views_are_the_whole_picture_its_corners_and_their_mirror_images(folder):
    views = SeveralViews(make().preprocessing.replace(image_size=8), "flip, crops")
    pictures = np.stack([views(folder / "a.png"), views(folder / "b.png")])
    assert pictures.shape == (2, 5, 8, 8, 3)
    views.normalize = lambda pixels: pixels
    inputs = [*views.inputs(pictures)]
    assert len(inputs) == views.count == 10
    np.testing.assert_array_equal(inputs[1], inputs[0][:, :, ::-1])
    whole = read(folder / "a.png", None)
    corners = [cut(whole, box) for box in VIEWS["crops"]]
    np.testing.assert_array_equal(corners[0], whole[:26, :35])
    np.testing.assert_array_equal(corners[3], whole[-26:, -35:])
    assert cut(whole[:1, :1], VIEWS["crops"][3]).shape == (1, 1, 3)
    plain = SeveralViews(views.preprocessing)
    assert pictures[0].nbytes == views.bytes() == 5 * plain.bytes() and views.key() != plain.key()
