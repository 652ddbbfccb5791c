"""Labels keep the spelling that a table has, from training to submission; generated from one list of spellings."""

import itertools

import pytest
from PIL import Image

from vit_keras import vit
from vit_keras.training import predict_table
from vit_keras.training.data.table import Columns, read_columns, read_table

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


def test_a_column_without_any_label_is_refused(images, tmp_path):
    for separator in " |":
        with pytest.raises(ValueError, match="'label'"):
            read(table(tmp_path, [""] * 3), images_dir=images, separator=separator)


def test_an_empty_cell_is_no_label(images, tmp_path):
    path = table(tmp_path, ["01 1", "", "1", "01", "", "1"])
    path.write_text(path.read_text().replace('""', ""))
    found = read(path, images_dir=images, separator=" ")
    assert found.names == ("01", "1")
    assert found.labels.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0], [0, 0], [0, 1]]
    columns = {**read_columns(path), "label": ["a", None, "b", float("nan"), "", "a b"]}
    assert read(columns, images_dir=images, separator=" ").labels.sum(axis=1).tolist() == [1, 0, 1, 0, 0, 2]
    with pytest.raises(ValueError, match="value"):
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
