"""Metrics are scikit-learn's: the same numbers as its functions called by hand."""

import sys

import numpy as np
import pytest

from vit_keras.training import metrics

sk = pytest.importorskip("sklearn.metrics")
pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
CLASSES = RNG.integers(0, 4, 80)
SINGLE = RNG.dirichlet(np.ones(4), 80).astype("float32")
LABELS = RNG.integers(0, 2, (80, 3))
MULTI = RNG.random((80, 3)).astype("float32")
NUMBERS, GUESSED = RNG.random((80, 2)), RNG.random((80, 2))
LEVELS, NEAR = RNG.integers(0, 5, 80), RNG.random(80) * 4
ONE_HOT, SAID, SET, ROUNDED = np.eye(4)[CLASSES], SINGLE.argmax(-1), (MULTI >= 0.5).astype(int), np.rint(NEAR)

BY_HAND = {
    ("accuracy", "single"): lambda: sk.accuracy_score(CLASSES, SAID),
    ("accuracy", "multi"): lambda: sk.accuracy_score(LABELS, SET),
    ("accuracy", "ordinal"): lambda: sk.accuracy_score(LEVELS, ROUNDED),
    ("balanced_accuracy", "single"): lambda: sk.balanced_accuracy_score(CLASSES, SAID),
    ("balanced_accuracy", "ordinal"): lambda: sk.balanced_accuracy_score(LEVELS, ROUNDED),
    ("macro_f1", "single"): lambda: sk.f1_score(CLASSES, SAID, average="macro"),
    ("macro_f1", "multi"): lambda: sk.f1_score(LABELS, SET, average="macro"),
    ("macro_f1", "ordinal"): lambda: sk.f1_score(LEVELS, ROUNDED, average="macro"),
    ("micro_f1", "single"): lambda: sk.f1_score(CLASSES, SAID, average="micro"),
    ("micro_f1", "multi"): lambda: sk.f1_score(LABELS, SET, average="micro"),
    ("micro_f1", "ordinal"): lambda: sk.f1_score(LEVELS, ROUNDED, average="micro"),
    ("weighted_f1", "single"): lambda: sk.f1_score(CLASSES, SAID, average="weighted"),
    ("weighted_f1", "multi"): lambda: sk.f1_score(LABELS, SET, average="weighted"),
    ("weighted_f1", "ordinal"): lambda: sk.f1_score(LEVELS, ROUNDED, average="weighted"),
    ("roc_auc", "single"): lambda: sk.roc_auc_score(CLASSES, SINGLE, multi_class="ovr"),
    ("roc_auc", "multi"): lambda: sk.roc_auc_score(LABELS, MULTI),
    ("map", "single"): lambda: sk.average_precision_score(ONE_HOT, SINGLE),
    ("map", "multi"): lambda: sk.average_precision_score(LABELS, MULTI),
    ("log_loss", "single"): lambda: sk.log_loss(CLASSES, SINGLE),
    ("log_loss", "multi"): lambda: np.mean([sk.log_loss(LABELS[:, k], MULTI[:, k]) for k in range(3)]),
    ("mcc", "single"): lambda: sk.matthews_corrcoef(CLASSES, SAID),
    ("mcc", "ordinal"): lambda: sk.matthews_corrcoef(LEVELS, ROUNDED),
    ("quadratic_kappa", "single"): lambda: sk.cohen_kappa_score(CLASSES, SAID, weights="quadratic"),
    ("quadratic_kappa", "ordinal"): lambda: sk.cohen_kappa_score(LEVELS, ROUNDED, weights="quadratic"),
    ("rmse", "regression"): lambda: sk.root_mean_squared_error(NUMBERS, GUESSED),
    ("rmse", "ordinal"): lambda: sk.root_mean_squared_error(LEVELS, NEAR),
    ("rmsle", "regression"): lambda: sk.root_mean_squared_log_error(NUMBERS, GUESSED),
    ("rmsle", "ordinal"): lambda: sk.root_mean_squared_log_error(LEVELS, NEAR),
    ("mae", "regression"): lambda: sk.mean_absolute_error(NUMBERS, GUESSED),
    ("mae", "ordinal"): lambda: sk.mean_absolute_error(LEVELS, NEAR),
    ("r2", "regression"): lambda: sk.r2_score(NUMBERS, GUESSED),
    ("r2", "ordinal"): lambda: sk.r2_score(LEVELS, NEAR),
}

DATA = {
    "single": (CLASSES, SINGLE),
    "multi": (LABELS, MULTI),
    "regression": (NUMBERS, GUESSED),
    "ordinal": (LEVELS, NEAR),
}


@pytest.mark.parametrize(("name", "task"), list(BY_HAND))
def test_a_metric_is_scikit_learns(name, task):
    found = metrics.score(name, *DATA[task], task)
    assert isinstance(found, float)
    assert found == pytest.approx(BY_HAND[name, task](), rel=1e-12)


@pytest.mark.parametrize("task", DATA)
def test_better_predictions_are_better(task):
    targets = DATA[task][0]
    perfect = np.eye(4)[targets] if task == "single" else targets
    for name in metrics.fitting(task):
        best, worse = metrics.score(name, targets, perfect, task), metrics.score(name, *DATA[task], task)
        assert (best < worse) == (name in ("log_loss", "rmse", "rmsle", "mae")), name


@pytest.mark.parametrize("name", ["roc_auc", "map"])
def test_a_class_without_targets_is_left_out_of_the_mean_and_named(name):
    labels = LABELS.copy()
    labels[:, 1] = 0
    with pytest.warns(UserWarning, match=rf"{name} .*2 of 3 classes.* 1\."):
        found = metrics.score(name, labels, MULTI, "multi")
    assert found == pytest.approx(metrics.score(name, LABELS[:, ::2], MULTI[:, ::2], "multi"))
    with pytest.raises(ValueError, match="some targets"):
        metrics.score(name, np.zeros((3, 2)), np.ones((3, 2)), "multi")


def test_errors_are_on_the_scale_of_the_levels():
    scale = [0.0, 1.0, 4.0, 9.0, 16.0]
    expected = np.abs(np.interp(LEVELS, range(5), scale) - np.interp(NEAR, range(5), scale)).mean()
    assert metrics.score("mae", LEVELS, NEAR, "ordinal", scale=scale) == pytest.approx(expected)
    plain = metrics.score("accuracy", LEVELS, NEAR, "ordinal")
    assert metrics.score("accuracy", LEVELS, NEAR, "ordinal", scale=scale) == plain  # of levels, not of their values


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rmse", CLASSES, SINGLE, "single"), "'single', which .*accuracy, bal"),
        (("accuracy", CLASSES, SINGLE, "sinlge"), "task .*mean 'single'"),
        (("macrof1", CLASSES, SINGLE), "Did you mean 'macro_f1'"),
        (("accuracy", CLASSES, SINGLE[:5]), r"targets \(80,\), outputs \(5, 4\)"),
        (("accuracy", CLASSES, SAID), r"\(n,\) and \(n, classes\)"),
        (("accuracy", CLASSES[:0], SINGLE[:0]), "of one length"),
        (("accuracy", CLASSES + 1, SINGLE), "from 0 to 3. Received: .*4"),
        (("map", LABELS + 0.5, MULTI, "multi"), "from 0 to 1.*(0.5|1.5)"),
        (("map", LABELS, MULTI[:, :2], "multi"), "one shape"),
        (("map", LABELS[:, 0], MULTI[:, 0], "multi"), r"\(n, labels\), both"),
        (("mae", np.eye(3), np.eye(3), "ordinal"), r"\(n,\), both"),
        (("mae", NUMBERS, GUESSED[:, 0], "regression"), "must be the same"),
        (("mae", LEVELS + 0.5, NEAR, "ordinal"), "Levels must be whole numbers"),
        (("mae", NUMBERS, GUESSED * np.nan, "regression"), "finite"),
    ],
)
def test_mistakes_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        metrics.score(*arguments)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ImportError, match=r"vit-keras\[all\]"):
        metrics.score("accuracy", CLASSES, SINGLE)


def test_rmsle_of_numbers_that_it_cannot_take():
    assert metrics.score("rmsle", [1.0, 2.0], [-1.5, 2.0], "regression") > 10
    with pytest.raises(ValueError, match="targets above -1. Received: -3"):
        metrics.score("rmsle", [-3.0, 2.0], [1.0, 2.0], "regression")
