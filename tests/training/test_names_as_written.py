"""Labels keep the spelling that a table has, from training to submission; generated from one list of spellings."""

import itertools
import warnings

import numpy as np
import pytest
from PIL import Image

from vit_keras import vit
from vit_keras.training import metrics, predict_table
from vit_keras.training.data.table import Columns, read_columns, read_table
from vit_keras.training.evaluation import Evaluation

pandas = pytest.importorskip("pandas")

SPELLINGS = (
    *("001", "01", "1", "1.0", "1e3", "1000", "+1", "-1", "NA", "None", "True", "true", "0x1", "1_000", "ä b", "1,5"),
)
IDS = [str(number) for number in range(6)]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name in IDS:
        Image.new("RGB", (16, 16), (int(name) * 40, 90, 200)).save(folder / f"{name}.png")
    return folder


def read(source, **options):
    return read_table(source, Columns(**options))


def table(folder, values, separator=",", name="table.csv", title="label"):
    quoted = (f'"{value}"' for value in values)
    lines = [f"{number}{separator}{value}" for number, value in zip(itertools.cycle(IDS), quoted)]
    (folder / name).write_text("\n".join([f"image{separator}{title}", *lines]) + "\n", encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("separator", ",;\t|")
def test_two_spellings_are_two_classes(images, tmp_path, separator):
    for pair in itertools.combinations(SPELLINGS, 2) if separator == "," else zip(SPELLINGS, SPELLINGS[::-1]):
        found = read(table(tmp_path, pair * 3, separator), images_dir=images, task="single")
        assert sorted(found.names) == sorted(pair)
        assert [found.names[label] for label in found.labels] == [*pair] * 3


@pytest.mark.parametrize("separator", ",;\t|")
@pytest.mark.parametrize("more", [1, 2])
def test_rows_longer_than_the_first_line_are_read_or_refused(images, tmp_path, separator, more):
    """An empty value at the end is none; others would move the columns by one."""
    for end in ("", "x"):
        path = tmp_path / "table.csv"
        rows = (separator.join([number, "ab"[int(number) % 2], *[end] * more]) for number in IDS)
        path.write_text("\n".join([f"image{separator}label", *rows]), encoding="utf-8")
        if end or more > 1:
            with pytest.raises(ValueError, match="more values"):
                read(path, images_dir=images)
        else:
            assert read(path, images_dir=images).names == ("a", "b")


def test_a_column_without_any_label_is_refused(images, tmp_path):
    for separator in " |":
        with pytest.raises(ValueError, match="'label' .*in any row"):
            read(table(tmp_path, [""] * 3), images_dir=images, separator=separator)


def test_a_column_by_a_number_is_named(images, tmp_path):
    with pytest.raises(ValueError, match="column '0'.*image, label"):
        read(table(tmp_path, "ab" * 3), image_column=0, images_dir=images)
    found = read(
        pandas.DataFrame([[name, "ab"[int(name) % 2]] for name in IDS]),
        image_column=0,
        label_column=1,
        images_dir=images,
    )
    assert found.names == ("a", "b")


def test_an_empty_cell_is_no_label(images, tmp_path):
    path = table(tmp_path, ["01 1", "", "1", "01", "", "1"])
    path.write_text(path.read_text().replace('""', ""))
    found = read(path, images_dir=images, separator=" ")
    assert found.names == ("01", "1")
    assert found.labels.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0], [0, 0], [0, 1]]
    columns = {**read_columns(path), "label": ["a", None, "b", float("nan"), "", "a b"]}
    assert read(columns, images_dir=images, separator=" ").labels.sum(axis=1).tolist() == [1, 0, 1, 0, 0, 2]
    with pytest.raises(ValueError, match="has no value in rows 2, 5"):
        read(path, images_dir=images)


def test_groups_are_as_written(images, tmp_path):
    path = table(tmp_path, ["1", "01", "001"] * 2, title="patient,label")
    path.write_text(path.read_text().replace('"\n', '",a\n').replace(",a\n", ",b\n", 3))
    assert len(set(read(path, images_dir=images, group_column="patient").groups.tolist())) == 3


@pytest.mark.parametrize(
    ("names", "sample", "fits"),
    [
        (("001", "002"), "001", True),
        (("001", "002"), "1", False),
        (("1", "2"), "01", False),
        (("1", "1000"), "1e3", False),
        (("cat", "dog"), "cat", True),
        (("1", "2"), "2", True),
    ],
)
def test_a_sample_with_another_spelling_is_refused(images, tmp_path, names, sample, fits):
    model = vit.build_model(16, 8, 1, 8, 2, "tiny", 8, classes=2)
    model.labels = names
    path = table(tmp_path, [sample] * 6)
    if not fits:
        with pytest.raises(ValueError, match=f"'{sample}'.*would write"):
            predict_table(path, model, images, sample=path, progress=False)
        return
    found = predict_table(path, model, images, sample=path, output=tmp_path / "out.csv", progress=False)
    assert set(found["label"]) <= set(names)
    written = [line.split(",")[1] for line in (tmp_path / "out.csv").read_text().split()[1:]]
    assert written == [*found["label"]]


def test_a_sample_with_other_names_is_warned_of(images, tmp_path):
    model = vit.build_model(16, 8, 1, 8, 2, "tiny", 8, classes=2)
    model.labels = ("cat", "dog")
    path = table(tmp_path, ["hund"] * 6)
    with pytest.warns(UserWarning, match="column 'label'.*'hund'"):
        predict_table(path, model, images, sample=path, progress=False)


# Metrics against scikit-learn


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", metrics.fitting("multi"))
def test_one_label_has_the_metrics_of_two_equal_labels(name, seed):
    """scikit-learn takes one column for two classes; of two columns it takes the mean over labels."""
    random = np.random.default_rng(seed)
    truth, shares = random.integers(0, 2, (9, 1)), random.uniform(size=(9, 1))
    truth[:2] = [[0], [1]]
    one = metrics.score(name, truth, shares, "multi")
    two = metrics.score(name, np.repeat(truth, 2, 1), np.repeat(shares, 2, 1), "multi")
    assert one == pytest.approx(two, abs=1e-12)  # float64


@pytest.mark.parametrize("seed", range(8))
def test_the_report_and_the_metric_have_one_macro_f1(seed):
    from sklearn.metrics import f1_score

    random = np.random.default_rng(seed)
    classes = 5
    truth, shares = random.integers(0, 2 + seed % 3, 12), random.uniform(size=(12, classes))
    found = Evaluation(tuple("abcde"), ("",) * 12, truth, shares)
    expected = f1_score(truth, shares.argmax(1), average="macro", zero_division=0)
    assert found.measures["macro_f1"] == pytest.approx(expected, abs=1e-12)
    assert metrics.score("macro_f1", truth, shares) == pytest.approx(expected, abs=1e-12)
    several = Evaluation(tuple("abcde"), ("",) * 12, (shares > 0.8) * 1.0, random.uniform(size=(12, classes)), "multi")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for ours, name in (("macro_f1", "macro_f1"), ("roc_auc", "roc_auc"), ("mean_average_precision", "map")):
            known = metrics.score(name, several.labels, several.probabilities, "multi")
            assert several.measures[ours] == pytest.approx(known, abs=1e-12)


@pytest.mark.parametrize("names", [("0", "1", "4"), ("1", "2", "3"), ("0.5", "1", "10"), ("-2", "0", "7")])
def test_errors_of_levels_are_on_their_scale(names):
    from sklearn.metrics import mean_absolute_error, root_mean_squared_error

    values, ranks, said = np.array(names, float), np.array([0, 1, 2, 2]), np.array([0, 2, 2, 0])
    found = Evaluation(names, ("",) * 4, ranks[:, None].astype(float), said[:, None].astype(float), "ordinal")
    for name, function in (("rmse", root_mean_squared_error), ("mae", mean_absolute_error)):
        expected = function(values[ranks], values[said])
        assert found.per_class[0][name] == pytest.approx(expected, abs=1e-12)
        known = metrics.score(name, found.targets, found.outputs, "ordinal", scale=found.scale)
        assert known == pytest.approx(expected, abs=1e-12)
    assert Evaluation(("low", "high"), ("",), ranks[:1, None], said[:1, None], "ordinal").scale is None
