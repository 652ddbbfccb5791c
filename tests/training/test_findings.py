"""What is found in the images: wrong labels, near-duplicates, what more would give; and the report of it."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from vit_keras import anatomy, training, vit
from vit_keras.training.data.labeled import Labeled
from vit_keras.training.evaluation import calibration, curve_over_images, findings
from vit_keras.training.evaluation.curve_over_images import _power_law, image_curve
from vit_keras.training.evaluation.findings import _learned
from vit_keras.training.evaluation.frozen import Frozen
from vit_keras.training.recipes import recipe

StratifiedKFold = pytest.importorskip("sklearn.model_selection").StratifiedKFold


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


def test_flipped_labels_are_found():
    """Of 5 % flipped labels three in four are found, nine in ten of what is found are such, and the class is right."""
    features, labels = blobs()
    given, wrong = flipped(labels)
    found = training.label_issues(training.out_of_fold(features, given), given)
    hits = np.isin(found.images, wrong)
    assert hits.sum() >= 0.75 * len(wrong) and hits.mean() >= 0.9
    assert np.mean(found.suggested[hits] == labels[found.images[hits]]) >= 0.95
    assert (np.diff(found.probabilities) >= 0).all()


def test_only_improbable_labels_are_said_to_be_wrong():
    features, labels = blobs()
    given, _ = flipped(labels)
    shares = training.out_of_fold(features, given)
    told = findings.Findings(**findings.wrong_labels(np.arange(len(given)), shares, given))
    assert told.wrong and all(each.probability < findings.IMPROBABLE for each in told.wrong)
    issues = training.label_issues(calibration.tempered(shares, training.temperature(shares, given)), given)
    assert [each.row for each in told.wrong] == issues.images[issues.probabilities < findings.IMPROBABLE].tolist()
    assert len(told.wrong) < len(issues.images)
    assert told.lines[0] == f"{len(told.wrong)} labels may be wrong; the report shows which"


def test_classes_of_one_image_do_not_hide_the_wrong_labels():
    features, labels = blobs(classes=4, each=60)
    given, wrong = flipped(labels)
    random = np.random.default_rng(3)
    features = np.concatenate([features, random.normal(0, 3, (6, features.shape[1]))])
    given = np.concatenate([given, 4 + np.arange(6)])  # six classes of one image each
    names = tuple("abcdefghij")
    data = Labeled(task="single", names=names, paths=[], labels=given, ids=[], root=Path())
    order = random.permutation(len(given))
    found = _learned(data, np.arange(len(given)), features, [(order[:180], order[180:])], 0)["wrong"]
    assert len({each.row for each in found} & {*wrong}) >= 0.5 * len(wrong)
    assert all(each.row < 240 for each in found)


def test_many_features_and_classes_are_learned_from_fewer_images(monkeypatch):
    features, labels = blobs(classes=4, each=60)
    data = Labeled(task="single", names=tuple("abcd"), paths=[], labels=labels, ids=[], root=Path())
    order, learned = np.random.default_rng(3).permutation(240), []
    probe = findings.linear_probe
    monkeypatch.setattr(
        findings, "linear_probe", lambda x, *args, **how: learned.append(len(x)) or probe(x, *args, **how)
    )
    monkeypatch.setattr(findings, "MOST_WORK", 120 * 24 * 4)
    assert "curve" in _learned(data, np.arange(240), features, [(order[:180], order[180:])], 0) and learned == [120]


def test_a_part_of_the_images_has_all_classes(photos, monkeypatch):
    """The images of a folder are in the order of their classes; their features are in a random order."""
    seen = []
    monkeypatch.setattr(
        findings, "_learned", lambda data, rows, features, parts, seed: seen.extend((rows, parts)) or {}
    )
    model = vit.build_model(32, 16, 1, 32, 2, "tiny", 64, classes=3)
    train, held_out = training.image_folder(photos, model=model, validation_split=0.5, progress=False)
    rows = np.random.default_rng(0).permutation(128)
    frozen = Frozen(rows, np.random.default_rng(1).normal(size=(128, 8)).astype("float32"))
    labels = np.repeat([0, 1, 2], [40, 40, 48])
    data = Labeled(task="single", names=("blue", "green", "red"), paths=[], labels=labels, ids=[], root=Path())
    findings.look_at(frozen, data, [(train, held_out)], seed=0)
    (rows, ((learned, asked),)) = seen
    for part in (learned, asked):
        assert {*labels[rows[part[:20]]]} == {0, 1, 2} and len(part) == 64


def test_a_class_of_one_image_is_never_predicted():
    points = np.array([[0.0, 1.0], [0.1, 0.9], [0.2, 0.8], [1.0, 0.1]])
    found = training.out_of_fold(points, [0, 0, 0, 1])
    assert found[3].tolist() == [1, 0] and found.argmax(axis=1).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_judges_have_the_weight_decay_of_a_linear_probe(classes):
    features, labels = blobs(classes, each=30, distance=0.4)
    shares, folds = training.out_of_fold(features, labels, l2=0.3), StratifiedKFold(5, shuffle=True, random_state=0)
    for learned, asked in folds.split(features, labels):
        probe = training.linear_probe(features[learned], labels[learned], l2=0.3 * len(labels) / len(learned))
        np.testing.assert_allclose(shares[asked], anatomy.softmax(probe.logits(features[asked])), atol=1e-6)
    for other in (labels.astype(float), np.eye(classes)[labels]):
        np.testing.assert_array_equal(training.out_of_fold(features, other, l2=0.3), shares)


def test_they_are_those_of_cleanlab():
    cleanlab = pytest.importorskip("cleanlab.filter")
    features, labels = blobs(distance=0.6)
    given, _ = flipped(labels)
    shares = training.out_of_fold(features, given)
    theirs = cleanlab.find_label_issues(given, shares, filter_by="confident_learning", n_jobs=1)
    ours = np.zeros(len(given), bool)
    ours[training.label_issues(shares, given).images] = True
    assert theirs.sum() > 20 and (ours ^ theirs).sum() <= 0.02 * theirs.sum()


def test_wrong_probabilities_are_named():
    with pytest.raises(ValueError, match="labels must be 3 integers"):
        training.label_issues(np.ones((3, 2)), [0, 1])
    with pytest.raises(ValueError, match="2 classes must be 0 … 1"):
        training.label_issues(np.ones((3, 2)) / 2, [0, 1, 2])
    with pytest.raises(ValueError, match="not finite"):
        training.label_issues([[0.9, 0.1], [np.nan, np.nan]], [1, 0])
    with pytest.raises(ValueError, match="one-hot labels have 5 classes, and the probabilities 3"):
        training.label_issues(np.eye(3), np.eye(5)[[0, 1, 2]])
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        training.label_issues([0.9, 0.1], [1, 0])


def test_the_labels_are_those_that_out_of_fold_takes():
    shares, labels = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.95, 0.05]]), [0, 0, 1, 1, 1]
    for same in (labels, np.array(labels, "float32"), np.eye(2)[labels]):
        assert training.label_issues(shares, same).images.tolist() == [4]
    assert len(training.label_issues(np.zeros((0, 2)), []).images) == 0


def test_copies_are_near_duplicates_and_new_images_are_not():
    features, _ = blobs(each=200)
    random = np.random.default_rng(1)
    order = random.permutation(len(features))
    train, new = features[order[:1500]], features[order[1500:]]
    assert len(training.near_duplicates(train, new)) == 0
    copies = train[:20] + random.normal(0, 0.05, (20, train.shape[1]))
    found = training.near_duplicates(train, np.concatenate([new, copies]))
    assert sorted(found.held_out) == [*range(500, 520)] and set(found.train) == {*range(20)}
    assert (found.distances < found.threshold).all()


def test_half_of_the_images_tell_what_all_give():
    features, labels = blobs(each=400, features=64, distance=0.25)
    order = np.random.default_rng(0).permutation(len(labels))
    train, half, held_out = order[:2000], order[:1000], order[2000:]
    data = features[held_out], labels[held_out]
    of_half = image_curve(features[half], labels[half], *data)
    of_all = image_curve(features[train], labels[train], *data)
    gained = of_all.accuracies[-1] - of_half.accuracies[-1]
    assert gained > 0.01 and abs(of_half.gain - gained) < 0.02
    assert of_half.interval[0] <= of_half.gain <= of_half.interval[1] and "Twice as many" in of_half.headline


@pytest.mark.parametrize("accuracies", [[0.2, 0.25, 0.22, 0.12], [0.5, 0.6, 0.7, 0.8]])
def test_the_curve_of_errors_that_do_not_fall_is_their_mean(accuracies):
    counts, errors = np.array([25, 50, 100, 200]), 1 - np.array(accuracies)
    fitted = _power_law(counts, np.array(accuracies), 100)
    falls = np.polyfit(np.log(counts), np.log(errors), 1)
    wanted = np.polyval(falls, np.log([*counts, 400])) if falls[0] < 0 else np.full(5, np.log(errors).mean())
    np.testing.assert_allclose(fitted, 1 - np.exp(wanted), rtol=1e-9)  # of sums in another order


class Told:
    """A probe that is right for the images that it is told."""

    def __init__(self, right):
        self.right = right

    def predict(self, features):
        return np.where(self.right, features[:, 0], 1 - features[:, 0]).astype(int)


def curve_of(monkeypatch, right, seed=0):
    """The curve where `right(draw, size)` says which of 40 held-out images are, and what each probe learned."""
    asked, labels = [], np.repeat([0, 1, 2], (16, 16, 3))
    truth = np.arange(40) % 2

    def probe(features, given, **options):
        np.testing.assert_array_equal(labels[features[:, 0].astype(int)], given)
        asked.append(features[:, 0].astype(int).tolist())
        return Told(right(len(asked) - 1, len(given)))

    monkeypatch.setattr(curve_over_images, "linear_probe", probe)
    return image_curve(np.arange(35)[:, None], labels, truth[:, None], truth, l2=1.0, seed=seed), asked


def test_the_parts_are_different_images_with_the_share_of_each_class(monkeypatch):
    curve, asked = curve_of(monkeypatch, lambda draw, size: np.arange(40) < size)
    counts = [[sum(low <= n < high for n in part) for low, high in ((0, 16), (16, 32), (32, 35))] for part in asked]
    assert counts == [[2, 2, 1]] * 5 + [[4, 4, 1]] * 5 + [[8, 8, 1]] * 5 + [[16, 16, 3]]
    assert curve.counts.tolist() == [5, 9, 17, 35]
    assert all(len({*map(tuple, asked[n : n + 5])}) == 5 for n in (0, 5, 10))
    np.testing.assert_allclose(curve.accuracies, np.array([5, 9, 17, 35]) / 40)


def test_the_interval_has_the_chance_of_the_images_and_of_the_parts(monkeypatch):
    sizes, random = np.array([5, 9, 17, 35]), np.random.default_rng(7)

    def gain(right):
        return np.diff(_power_law(sizes, np.array([each.mean() for each in right]), 40)[-2:])[0]

    # The parts are all the same: 400 draws of our own give the same interval, within a fifth of its width.
    few = [np.arange(40) < 12 + 6 * n for n in range(4)]
    curve, _ = curve_of(monkeypatch, lambda draw, size: few[np.searchsorted(sizes, size)])
    drawn = [gain([each[images] for each in few]) for images in random.integers(0, 40, (400, 40))]
    low, high = np.quantile(drawn, (0.025, 0.975))
    np.testing.assert_allclose(curve.interval, (low, high), atol=0.2 * (high - low))

    # Two of five parts of a size teach all, and three nothing, whatever the images.
    curve, _ = curve_of(monkeypatch, lambda draw, size: np.full(40, draw % 5 < 2))
    assert curve.interval[0] < curve.gain < curve.interval[1]


def test_a_curve_needs_sixteen_images_of_two_classes():
    features, labels = np.arange(47.0)[:, None], np.repeat([0, 1, 2], (16, 15, 16))
    with pytest.raises(ValueError, match="16 images of each of two classes"):
        image_curve(features[:31], labels[:31], features, labels)
    with pytest.raises(ValueError, match="held-out images"):
        image_curve(features, labels, features[:0], labels[:0])


def test_a_weight_decay_is_a_number_or_auto():
    features, labels = blobs(classes=2, each=40)
    for call in (training.out_of_fold, lambda *data, l2: image_curve(*data, *data, l2=l2)):
        for wrong in ("automatic", 0.0):
            with pytest.raises(ValueError, match="l2 .*'auto'"):
                call(features, labels, l2=wrong)


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
    return training.finetune(model, photos, output=output, **{**same, **options})


def test_a_report_shows_what_was_found(photos, tmp_path):
    result = run(photos, tmp_path / "run", calibrate=True)
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
    assert again.accuracy == pytest.approx(result.history["val_accuracy"][result.best_epoch], abs=1e-6)
    assert told["temperature"] != 1


def test_folds_are_looked_at_too(photos, tmp_path):
    result = run(photos, tmp_path / "folds", folds=2, epochs=1, calibrate=True)
    found = json.loads((result.folder / "report.json").read_text())["images"]
    assert found["near_duplicates"] and found["images"] == 128
    page = (result.folder / "report.html").read_text("utf-8")
    both = {each[part] for each in found["near_duplicates"] for part in ("train", "held_out")}
    assert "Each fold&#x27;s model was calibrated" in page or "Each fold's model was calibrated" in page
    assert f"{len(both)} held-out images are nearly the same" in page  # each is held out in its own fold
    assert "the model of the fold that has not learned the image" in page and "<h2>More images</h2>" in page


def test_nobody_has_to_look(photos, tmp_path):
    result = run(photos, tmp_path / "run", probe=False, epochs=1)
    page = (result.folder / "report.html").read_text("utf-8")
    assert "<h2>More images</h2>" not in page and "<h2>Near-duplicates</h2>" not in page
    assert json.loads((result.folder / "history.json").read_text())["images"]["images"] == 0
