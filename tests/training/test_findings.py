"""What is found in the images: wrong labels, near-duplicates, a learning curve; and the report of it."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from vit_keras import training, vit
from vit_keras.training.data.folder import Labeled
from vit_keras.training.evaluation import findings
from vit_keras.training.evaluation.frozen import FrozenFeatures
from vit_keras.training.recipes import recipe

pytest.importorskip("cleanlab")


def blobs(classes=10, each=100, features=24, distance=1.0, seed=0):
    """Features like those of sign digits: classes that overlap a little."""
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(0, distance, (classes, features))
    labels = np.repeat(np.arange(classes), each)
    return centers[labels] + random.normal(size=(len(labels), features)), labels


def flipped(labels, share=0.05, seed=0):
    """Give a share of the labels another class; return them, and which."""
    random, given = np.random.default_rng(seed), labels.copy()
    wrong = random.permutation(len(labels))[: round(share * len(labels))]
    given[wrong] = (labels[wrong] + random.integers(1, labels.max() + 1, len(wrong))) % (labels.max() + 1)
    return given, wrong


def learned(features, labels, parts, names="abcdefghij"):
    """What is found in images whose features and labels are known, by its key."""
    data = Labeled(
        task="single", names=tuple(names), paths=[], labels=labels, ids=[*map(str, range(len(labels)))], root=Path()
    )
    found = findings._learned(FrozenFeatures(np.arange(len(labels)), features.astype("float32")), data, [parts], 0)
    return {each.key: each for each in found}


def halves(count, share=0.8, seed=3):
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: int(share * count)]), np.sort(order[int(share * count) :])


def test_flipped_labels_are_found():
    """Most of the 5 % flipped labels are found, nine in ten findings are right, and so is the class."""
    features, labels = blobs()
    given, wrong = flipped(labels)
    found = learned(features, given, halves(len(given)))["likely_wrong_labels"]
    rows = np.array([int(each["image"]) for each in found.told])
    hits = np.isin(rows, wrong)
    assert hits.sum() >= 0.6 * len(wrong) and hits.mean() >= 0.9
    suggested = np.array(["abcdefghij".index(each["suggested"]) for each in found.told])
    assert np.mean(suggested[hits] == labels[rows[hits]]) >= 0.95
    shares = [each["probability"] for each in found.told]
    assert shares == sorted(shares) and shares[-1] < findings.IMPROBABLE
    assert found.line == f"{len(rows)} labels may be wrong; the report shows which"


def test_the_curve_rises_and_needs_sixteen_images_of_two_classes():
    features, labels = blobs(classes=5, each=100, features=32, distance=0.4)
    told = learned(features, labels, halves(len(labels)), "abcde")["learning_curve"].told
    assert told["images"] == [50, 100, 200, 400] and told["accuracy"] == sorted(told["accuracy"])
    assert told["accuracy"][-1] - told["accuracy"][0] > 0.05
    features, labels = np.arange(47.0)[:, None], np.repeat([0, 1, 2], (16, 15, 16))
    few = np.arange(31), np.arange(31, 47)
    assert not learned(features, labels, few, "abc")


def test_copies_are_near_duplicates_and_new_images_are_not():
    features, _ = blobs(each=200)
    random = np.random.default_rng(1)
    order = random.permutation(len(features))
    train, new = features[order[:1500]], features[order[1500:]]
    assert len(training.near_duplicates(train, new).train) == 0
    copies = train[:20] + random.normal(0, 0.05, (20, train.shape[1]))
    found = training.near_duplicates(train, np.concatenate([new, copies]))
    assert sorted(found.held_out) == [*range(500, 520)] and set(found.train) == {*range(20)}
    assert (found.distances < found.threshold).all()
    assert len(training.near_duplicates(train, copies, threshold=1e-9).train) == 0


# --- in finetune --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three kinds of noise; one image is in two classes, so that it is held out and learned, or in two folds."""
    folder, random = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for kind, color in (("blue", (0, 0, 180)), ("green", (0, 180, 0)), ("red", (180, 0, 0))):
        (folder / kind).mkdir(parents=True)
        for n in range(40):
            pixels = random.normal(0, 60, (4, 4, 3)).repeat(8, 0).repeat(8, 1) + color
            Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(folder / kind / f"{n}.png")
    for n in range(8):
        (folder / "red" / f"copy{n}.png").write_bytes((folder / "blue" / f"{n}.png").read_bytes())
    return folder


def run(photos, output, **options):
    keras.utils.set_random_seed(5)
    model = vit.build_model(32, 16, 1, 32, 2, "tiny", 64, classes=3)
    how = recipe("finetune", learning_rate=3e-3)
    same = {"recipe": how, "epochs": 2, "batch_size": 16, "image_size": 32, "mistakes": 0, "progress": False}
    return training.finetune(photos, model, output=output, **{**same, **options})


def test_a_report_shows_what_was_found(photos, tmp_path):
    result = run(photos, tmp_path / "run", calibrate=True, refit=False)
    page = (result.folder / "report.html").read_text("utf-8")
    for heading in ("Calibration", "More images", "Likely wrong labels", "Near-duplicates"):
        assert f"<h2>{heading}</h2>" in page
    assert "The model was calibrated" in page and "nearly the same as" in page
    told = json.loads((result.folder / "history.json").read_text())
    pairs = told["images"]["near_duplicates"]
    assert pairs and {
        tuple(sorted(name.split("/")[0] for name in pair.values() if isinstance(name, str))) for pair in pairs
    } == {("blue", "red")}
    wrong = [each["image"] for each in told["images"]["likely_wrong_labels"]]
    assert any("red/copy" in name for name in wrong)
    # The saved model is the calibrated one, and no epoch was chosen by other predictions.
    again = training.evaluate(result.folder / "model.keras", photos, only=result.folder / "split.json", progress=False)
    np.testing.assert_allclose(again.probabilities, result.evaluation.probabilities, atol=1e-5)
    assert again.accuracy == pytest.approx(result.history["val_accuracy"][-1], abs=1e-6)
    assert told["temperature"] != 1


def test_folds_are_looked_at_too(photos, tmp_path):
    result = run(photos, tmp_path / "folds", folds=2, epochs=1, calibrate=True)
    found = json.loads((result.folder / "report.json").read_text())["images"]
    assert found["near_duplicates"] and "likely_wrong_labels" in found
    page = (result.folder / "report.html").read_text("utf-8")
    both = {each[part] for each in found["near_duplicates"] for part in ("train", "held_out")}
    assert "the temperature of its fold" in page
    assert f"{len(both)} held-out images are nearly the same" in page  # each is held out in its own fold
    assert "the model of the fold that has not learned the image" in page and "<h2>More images</h2>" in page
