"""Tables as datasets: what the columns mean, which files they name, and mistakes that are said with their rows."""

import numpy as np
import pytest
from PIL import Image

from vit_keras.training.data.augment import Augmentation
from vit_keras.training.data.dataset import image_folder
from vit_keras.training.data.table import Columns, find_images, image_table, read_table

pytestmark = pytest.mark.filterwarnings("ignore:batch_size=32, but")

SIZE = 16


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for n in range(9):
        pixels = np.random.default_rng(n).integers(0, 255, (SIZE, SIZE, 3), "uint8")
        Image.fromarray(pixels).save(folder / f"{n:03}.png")
    return folder


IDS = [f"{n:03}" for n in range(9)]
COLUMNS = {
    "image": IDS,
    "kind": list("bab" * 3),
    "level": [3, 1, 2] * 3,
    "cat": [0, 1, 1] * 3,
    "dog": [1, 0, 1] * 3,
    "tags": ["dog", "cat dog", ""] * 3,
    "age": [n + 0.5 for n in range(9)],
    "height": list(range(9)),
    "weight": [1.0, 2.0, 0.0] * 3,
    "patient": ["x", "y", "z"] * 3,
}


def table(photos, *arguments, columns=COLUMNS, **options):
    return image_table(
        columns, "image", *arguments, images_dir=photos, **{"image_size": SIZE, "progress": False, **options}
    )


# --- what labels are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "options", "task", "names", "first"),
    [
        ("kind", {}, "single", ("a", "b"), 1),
        ("kind", {"class_names": ("b", "c", "a")}, "single", ("b", "c", "a"), 0),
        ("level", {"task": "single"}, "single", ("1", "2", "3"), 2),
        ("cat", {}, "single", ("0", "1"), 0),
        (["cat", "dog"], {}, "multi", ("cat", "dog"), [0, 1]),
        ("cat", {"task": "multi"}, "multi", ("cat",), [0]),
        ("tags", {"separator": " "}, "multi", ("cat", "dog"), [0, 1]),
        ("age", {}, "regression", ("age",), [0.5]),
        (["age", "height"], {}, "regression", ("age", "height"), [0.5, 0]),
        ("level", {"task": "ordinal"}, "ordinal", ("1", "2", "3"), [2]),
        ("kind", {"task": "ordinal", "class_names": ("b", "a")}, "ordinal", ("b", "a"), [0]),
    ],
)
def test_labels_of_every_task(photos, label, options, task, names, first):
    data = table(photos, label, shuffle=False, **options)
    assert (data.task, data.class_names) == (task, names)
    np.testing.assert_array_equal(data.labels[0], first)
    images, labels = data[0]
    assert images.shape == (9, SIZE, SIZE, 3) and labels.dtype == ("int32" if task == "single" else "float32")
    np.testing.assert_array_equal(labels, data.labels)
    assert data.paths[4].name == "004.png"


def test_a_table_gives_what_the_same_folder_gives(photos, tmp_path):
    """The same batches, bit for bit, with augmentation and in a later epoch."""
    for kind in "ab":
        (tmp_path / "sorted" / kind).mkdir(parents=True)
    pairs = sorted(zip(COLUMNS["kind"], IDS))
    for kind, name in pairs:
        (photos / f"{name}.png").rename(tmp_path / "sorted" / kind / f"{name}.png")
    columns = {"image": [f"{kind}/{name}.png" for kind, name in pairs], "kind": [kind for kind, _ in pairs]}
    options = {"augmentation": Augmentation(mixup=0.5), "batch_size": 4, "progress": False}
    one = image_folder(tmp_path / "sorted", SIZE, **options)
    other = table(tmp_path / "sorted", "kind", columns=columns, **options)
    one.epoch = other.epoch = 3
    for ours, theirs in zip(one, other, strict=True):
        for first, second in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "parquet", "pandas", "polars", "arrow"])
def test_all_forms_of_a_table_are_the_same(photos, tmp_path, kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS)
    if kind == "polars":
        given = pytest.importorskip("polars").DataFrame(COLUMNS)
    elif kind == "pandas":
        given = frame
    elif kind == "arrow":
        given = pytest.importorskip("pyarrow").table(COLUMNS)
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        given = tmp_path / "table.parquet"
        frame.to_parquet(given)
    else:
        given = tmp_path / f"table.{kind}"
        frame.to_csv(given, index=False, sep="\t" if kind == "tsv" else ",")
    for label in ("kind", "cat", ["cat", "dog"], "age"):
        found, expected = (
            read_table(table, Columns(label_column=label, images_dir=photos)) for table in (given, COLUMNS)
        )
        assert found.ids == expected.ids == IDS  # not 0, 1, 2, as they would be as numbers
        assert (found.task, found.names, found.paths) == (expected.task, expected.names, expected.paths)
        np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.parametrize(
    ("label", "options", "message"),
    [
        ("level", {}, "Pass task='single'"),
        ("weight", {}, "Pass task='single'"),
        ("cat", {"columns": {**COLUMNS, "cat": [0.0, 1.0, 1.0] * 3}}, "Pass task='single'"),
        (["kind", "age"], {}, "Received texts in 'kind', 'age'"),
        ("kind", {"task": "regression"}, "'kind' .*Received: 'b', 'a', 'b'"),
        ("kind", {"task": "ordinal"}, "levels in the column 'kind' are texts"),
        ("kind", {"class_names": ("a", "c")}, "'kind' has 'b'.*'a', 'c'"),
        ("kind", {"class_names": ("a", "b", "a")}, "class_names has a name twice"),
        ("level", {"task": "multi"}, "0 and 1.* rows 1, 3, 4"),
        (["kind", "level"], {"task": "single"}, "has one column of labels"),
        ("kinds", {}, "no column 'kinds'. Did you mean 'kind'\\?"),
        ([], {}, "label_column must be a column or several"),
        ("age", {"task": "regression", "class_names": ("b",)}, "'age'.*class_names"),
        (["cat", "dog"], {"class_names": ("dog", "cat")}, "called as their columns, 'cat', 'dog'"),
        ("kind", {"task": "clustering"}, "task must be one of 'auto', 'single'"),
        ("kind", {"validation_split": 0.7}, "above 0 and at most 0.5"),
        ("kind", {"validation_split": 0}, "above 0 and at most 0.5"),
        ("kind", {"separator": ""}, "separator= is a text between"),
        ("age", {"separator": " ", "task": "regression"}, "Received: ' ', task 'regression'"),
    ],
)
def test_labels_in_doubt_are_refused(photos, label, options, message):
    with pytest.raises(ValueError, match=message):
        table(photos, label, **options)


@pytest.mark.parametrize("value", [None, float("nan"), "NA"])
@pytest.mark.parametrize("column", ["image", "kind", "age", "patient"])
def test_missing_values_are_named_by_their_rows(photos, column, value):
    value = pytest.importorskip("pandas").NA if value == "NA" else value
    values = [value if n in (1, 7) else each for n, each in enumerate(COLUMNS[column])]
    label = column if column != "image" and column != "patient" else "kind"
    with pytest.raises(ValueError, match=f"'{column}'"):
        table(photos, label, columns={**COLUMNS, column: values}, group_column="patient")


def test_numbers_that_float32_cannot_tell_apart(photos):
    for start, spread in ((1e9, 1e3), (2000, 1), (0.1, 0)):
        table(photos, "age", columns={**COLUMNS, "age": [start + spread * n for n in range(9)]}, task="regression")
    with pytest.raises(ValueError, match="1700000000 to 1700000008"):
        table(photos, "age", columns={**COLUMNS, "age": [1.7e9 + n for n in range(9)]}, task="regression")
    with pytest.raises(ValueError, match=r"above 3.4e38"):
        table(photos, "age", columns={**COLUMNS, "age": [3.5e38, *range(8)]}, task="regression")
    table(photos, "age", columns={**COLUMNS, "age": [0.1 + 0.2, *[0.3] * 8]}, task="regression")


def test_other_tables_are_refused(photos, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        image_table(tmp_path / "none.csv", images_dir=photos)
    with pytest.raises(FileNotFoundError, match="no folder"):
        image_table(COLUMNS, images_dir=tmp_path / "none")
    with pytest.raises(TypeError, match="table"):
        image_table([1, 2], images_dir=photos)
    with pytest.raises(ValueError, match="differ in length"):
        image_table({"image": ["1"], "label": [1, 2]}, images_dir=photos)
    with pytest.raises(ValueError, match="'cat'.*'dog'"):
        image_table({"image": ["000", "001"], "label": [["cat", "dog"], ["cat"]]}, images_dir=photos)
    with pytest.raises(ValueError, match="only one class, 'a'"):
        image_table({"image": ["000"], "label": ["a"]}, images_dir=photos)


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["part_{0}", "images_{0:03}/images", "."])
def test_images_may_be_in_several_folders(tmp_path, place):
    paths = [tmp_path / place.format(n % 2) / f"image_{n}.png" for n in range(4)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for names in ([path.name for path in paths], [path.stem for path in paths]):
        assert find_images(names, tmp_path) == (paths, frozenset())
        assert find_images(["image_5", *names], tmp_path) == ([tmp_path / "image_5", *paths], {0})
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "image_2.png").touch()
    if place != ".":
        with pytest.raises(ValueError, match=r"image_2.* or .*image_2"):
            find_images(["image_1", "image_2"], tmp_path)


def test_missing_pictures_are_named_all_at_once(photos):
    (photos / "002.png").unlink()
    (photos / "007.png").unlink()
    (empty := photos.parent / "empty").mkdir()
    with pytest.raises(ValueError, match="2 missing: '002', '007'.*errors=\"skip\""):
        table(photos, "kind")
    for errors in ("raise", "skip"):
        with pytest.raises(ValueError, match="images_dir=.*--images-dir"):
            table(empty, "kind", errors=errors)
    (photos / "004.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning) as warned:
        data = table(photos, "kind", errors="skip", shuffle=False)
    said = " ".join(str(each.message) for each in warned)
    assert {each.filename for each in warned if each.category is UserWarning} == {__file__}
    assert "'002', '007'" in said and "left out: 1 damaged" in said and "004.png" in said
    assert data.rows.tolist() == [0, 1, 3, 5, 6, 8] and len(data[0][0]) == 6
    assert [path.stem for path in data.paths] == [IDS[row] for row in data.rows]


def test_an_id_of_two_files_is_refused(photos):
    Image.new("RGB", (4, 4)).save(photos / "003.jpg")
    with pytest.raises(ValueError, match=r"'003' may be 003.jpg or 003.png"):
        table(photos, "kind")


# --- splits -------------------------------------------------------------------------------------------------------


def test_groups_and_duplicates_are_not_divided(photos):
    pytest.importorskip("sklearn")
    train, held_out = table(photos, "age", group_column="patient", validation_split=0.34, shuffle=False)
    groups = [{COLUMNS["patient"][row] for row in part.rows} for part in (train, held_out)]
    assert not groups[0] & groups[1] and sorted([*train.rows, *held_out.rows]) == [*range(9)]
    twice = {**COLUMNS, "image": ["000", "000", *IDS[2:]]}
    with pytest.raises(ValueError, match=r"in several rows.*\(1\): '000'"):
        table(photos, "age", columns=twice, validation_split=0.34)
    assert len(table(photos, "age", columns=twice)) == 1  # nothing is held out
    train, held_out = table(photos, "age", columns=twice, validation_split=0.34, group_column="image")
    assert {0, 1} <= set(train.rows) or {0, 1} <= set(held_out.rows)
