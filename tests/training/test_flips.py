"""Mirror images as augmentation: a test says whether they keep their labels, and `finetune` follows it."""

import functools
import json
import re

import numpy as np
import pytest
from PIL import Image
from support import tiny_model

from vit_keras import training
from vit_keras.training.evaluation import flips
from vit_keras.training.finetuning import finetune
from vit_keras.training.finetuning import training as tuning
from vit_keras.training.recipes import recipe

STEPS = 10  # that all images make in the one epoch of the tests
AUGMENTS = {"augment_from": STEPS}  # instead of 60


tiny = functools.partial(tiny_model, classes=2, dropout=0.1, seed=5)


def spots(count, seed=0):
    """Images with a bright spot at the left (even numbers) or at the right: two white ones, then two red ones."""
    rng = np.random.default_rng(seed)
    images = rng.normal(-0.5, 0.2, (count, 32, 32, 3))
    for n, image in enumerate(images):
        across, down = rng.integers(0, 8) + 16 * (n % 2), rng.integers(0, 24)
        image[down : down + 8, across : across + 8, : 1 if n % 4 > 1 else 3] += 1
    return np.clip(images, -1, 1).astype("float32")


LEFT_OR_RIGHT, RED_OR_WHITE = np.arange(300) % 2, np.arange(300) % 4 // 2
FORMS = {
    "class numbers": lambda labels: labels,
    "several labels": lambda labels: np.stack([labels, 1 - RED_OR_WHITE], axis=1).astype("float32"),
    "a list": lambda labels: labels.tolist(),
    "one-hot": lambda labels: np.eye(2)[labels],
    "numbers": lambda labels: 7.5 * labels[:, None] - 2,
}


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("form", FORMS)
def test_labels_that_depend_on_left_and_right_are_found(form):
    found = training.flip_test(tiny(), spots(300), FORMS[form](LEFT_OR_RIGHT))
    assert not found.safe
    assert found.images == 300 and found.worse > 270


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("form", FORMS)
def test_labels_that_do_not_depend_on_left_and_right_are_safe(form):
    if form == "several labels":
        given = np.stack([RED_OR_WHITE, 1 - RED_OR_WHITE], axis=1).astype("float32")
    else:
        given = FORMS[form](RED_OR_WHITE)
    for seed in range(3):
        assert training.flip_test(tiny(), spots(300, seed), given, seed=seed).safe


def test_the_statistic_is_wilcoxons(monkeypatch):
    """Against SciPy's signed-rank test without a correction; images whose mirror image is as close do not count."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for count in (30, 512):
        errors = np.add(rng.normal(0, 1, (2, count)), [[0], [0.2]])
        errors[1, :5] = errors[0, :5]
        monkeypatch.setattr(flips, "_errors", lambda *_, errors=errors: errors)
        found = training.flip_test(tiny(), spots(4), [0, 1, 0, 1])
        expected = stats.wilcoxon(errors[1, 5:], errors[0, 5:], method="approx", correction=False)
        assert abs(found.z - abs(expected.zstatistic)) <= 0.005  # rounded to two places
        assert found.images == count - 5 and found.worse == (errors[1] > errors[0]).sum()


def test_few_images_are_not_enough_to_forbid_flips():
    assert training.flip_test(tiny(), spots(12), LEFT_OR_RIGHT[:12]).safe


def test_without_different_labels_there_is_no_test():
    assert training.flip_test(tiny(), spots(20), np.ones(20, int)) is None
    assert training.flip_test(tiny(), spots(20), np.eye(20)[0].astype(int)) is None, "a class with one image"
    assert training.flip_test(tiny(), spots(20), np.zeros(20, int), classes=2) is None
    assert training.flip_test(tiny(), spots(1), [0], classes=2) is None
    assert training.flip_test(tiny(), spots(0), []) is None


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((4, 32, 32), "float32"), [0, 1, 0, 1], r"images.*\(4, 32, 32\)"),
        (np.zeros((4, 32, 32, 3), "float32"), [0, 1], r"labels must be 4.*\(2,\)"),
        (np.zeros((4, 32, 32, 3), "float32"), [[0.0], [1.0]], r"labels must be 4.*\(2, 1\)"),
        (np.zeros((4, 32, 32, 3), "float32"), [0.5, 1, 0, 1], "labels must be 4 integers"),
    ],
)
def test_labels_that_do_not_fit_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        training.flip_test(tiny(), images, labels)
    with pytest.raises(TypeError, match="images"):
        training.flip_test(tiny(), "images", labels)


# --- in finetune ------------------------------------------------------------------------------------------------


def folder_of(folder, names):
    """Return a folder of images of these classes."""
    for n, (name, image) in enumerate(zip(names, spots(len(names)))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray((127.5 * (image + 1)).astype("uint8")).save(folder / name / f"{n}.png")
    return folder


@pytest.fixture(scope="module")
def hands(tmp_path_factory):
    """A folder of images of two classes: a spot at the left, or at the right."""
    return folder_of(tmp_path_factory.mktemp("data") / "hands", [("left", "right")[n % 2] for n in range(80)])


@pytest.fixture(scope="module")
def colors(tmp_path_factory):
    """The same images in classes by color."""
    return folder_of(tmp_path_factory.mktemp("data") / "colors", [("white", "red")[n % 4 // 2] for n in range(80)])


def tune(folder, output, **options):
    given = {"recipe": recipe("finetune", **AUGMENTS), "epochs": 1, "batch_size": 8, "mistakes": 0, "progress": False}
    given |= {"model": tiny(classes=7)} | options
    return finetune(folder=folder, output=output, **given)


def told(folder, name="history.json"):
    return json.loads((folder / name).read_text("utf-8"))


@pytest.mark.core
@pytest.mark.compiles_long
def test_finetune_does_not_mirror_hands(hands, tmp_path, capsys):
    result = tune(hands, tmp_path / "run", progress=True)
    said = capsys.readouterr().out
    assert "augmented, but not mirrored" in said
    assert re.search(r"\d+ of 64 mirror images fit their label less well", said)
    assert (result.recipe.augmentation.flip, result.recipe.augmentation.crop) == (False, 0.5)
    assert told(tmp_path / "run", "recipe.json")["augmentation"]["flip"] is False
    assert told(tmp_path / "run")["flip_test"]["images"] == 64
    assert "should not be mirrored" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_finetune_mirrors_what_may_be_mirrored(colors, tmp_path, capsys):
    result = tune(colors, tmp_path / "run", progress=True)
    assert "images are augmented\n" in capsys.readouterr().out
    assert result.recipe.augmentation.flip
    assert told(tmp_path / "run")["flip_test"]["images"] == 64
    assert "mirror" not in (tmp_path / "run" / "report.html").read_text("utf-8").partition("<script")[0]


NOT_TESTED = {
    "without a probe": {"probe": False},
    "too few steps for augmentation": {"recipe": recipe("finetune", augment_from=STEPS + 1)},
    "a recipe of a paper": {"recipe": recipe("augreg", learning_rate=1e-4)},
    "an augmentation that was chosen": {"recipe": recipe("finetune", augmentation={"flip": True, "crop": None})},
    "no test": {"recipe": recipe("finetune", flip_test=False, **AUGMENTS)},
    "no flips": {"recipe": recipe("finetune", **AUGMENTS).without_flips()},
}


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("case", NOT_TESTED)
def test_flips_are_not_tested_where_that_is_not_wanted(case, hands, tmp_path, monkeypatch):
    class Stopped(Exception):
        pass

    def stop(self):
        raise Stopped

    monkeypatch.setattr(tuning, "flip_test", None)
    monkeypatch.setattr(tuning.Training, "say_plan", stop)
    with pytest.raises(Stopped):
        tune(hands, tmp_path / "run", **NOT_TESTED[case])
    assert told(tmp_path / "run" / ".state", "state.json").get("flip_test") is None


def test_a_model_that_leaves_out_patches_is_tested_with_all(hands, tmp_path):
    tune(hands, tmp_path / "run", model=tiny(classes=7, patch_dropout=0.5))
    assert told(tmp_path / "run")["flip_test"]["worse"] > 50


@pytest.mark.compiles_long
def test_folds_share_the_test_of_the_first(hands, tmp_path, monkeypatch):
    tests = []

    def count(*args, **kwargs):
        tests.append(flips.flip_test(*args, **kwargs))
        return tests[-1]

    monkeypatch.setattr(tuning, "flip_test", count)
    tune(hands, tmp_path / "run", folds=2, batch_size=4)
    assert len(tests) == 1
    for fold in ("fold0", "fold1"):
        assert told(tmp_path / "run" / fold, "recipe.json")["augmentation"]["flip"] is False
        assert told(tmp_path / "run" / fold)["flip_test"]["images"] == 40
    assert "should not be mirrored" in (tmp_path / "run" / "report.html").read_text("utf-8")
