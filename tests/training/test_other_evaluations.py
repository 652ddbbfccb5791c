"""Measures of several labels, of numbers and of levels are scikit-learn's."""

import numpy as np
import pytest

from vit_keras.training import metrics
from vit_keras.training.evaluation import Evaluation
from vit_keras.training.evaluation.report import report

sklearn = pytest.importorskip("sklearn.metrics")

COUNT = 60
PATHS = tuple(f"{n}.jpg" for n in range(COUNT))


def labels():
    rng = np.random.default_rng(0)
    truth = (rng.random((COUNT, 4)) < [0.5, 0.2, 0.7, 0.0]).astype("float32")
    return Evaluation(("a", "b", "c", "d < 0"), PATHS, truth, 0.4 * truth + 0.6 * rng.random((COUNT, 4)), "multi")


def numbers(task="regression"):
    rng = np.random.default_rng(0)
    if task == "ordinal":
        truth = rng.integers(0, 4, (COUNT, 1)).astype("float32")
        return Evaluation(tuple("wxyz"), PATHS, truth, truth + rng.normal(0, 0.8, truth.shape), task)
    truth = rng.normal(0, 1, (COUNT, 2)).astype("float32")
    return Evaluation(("age", "size"), PATHS, truth, truth + rng.normal(0, [0.5, 2], truth.shape), task)


def test_measures_of_labels_are_those_of_scikit_learn():
    found = labels()
    truth, shares, said = found.labels, found.probabilities, found.probabilities >= 0.5
    for n, scores in enumerate(found.per_class[:3]):
        expected = {
            "average_precision": sklearn.average_precision_score(truth[:, n], shares[:, n]),
            "roc_auc": sklearn.roc_auc_score(truth[:, n], shares[:, n]),
            "precision": sklearn.precision_score(truth[:, n], said[:, n]),
            "recall": sklearn.recall_score(truth[:, n], said[:, n]),
            "f1": sklearn.f1_score(truth[:, n], said[:, n]),
        }
        assert {name: scores[name] for name in expected} == pytest.approx(expected)
    never = found.per_class[3]
    assert never["average_precision"] is None and never["roc_auc"] is None and never["recall"] is None
    assert found.measures["roc_auc"] == pytest.approx(sklearn.roc_auc_score(truth[:, :3], shares[:, :3]))
    assert found.measures["exact"] == pytest.approx(sklearn.accuracy_score(truth, said))
    assert found.losses[:, 0].mean() == pytest.approx(sklearn.log_loss(truth[:, 0], shares[:, 0]), rel=1e-5)
    worst = found.mistakes()
    assert (np.diff(found.losses[worst].sum(1)) <= 0).all() and (said != truth)[worst].any(1).all()


def test_measures_of_numbers_are_those_of_scikit_learn():
    found = numbers()
    for n, scores in enumerate(found.per_class):
        pair = found.labels[:, n], found.predictions[:, n]
        assert scores["rmse"] == pytest.approx(sklearn.root_mean_squared_error(*pair))
        assert scores["mae"] == pytest.approx(sklearn.mean_absolute_error(*pair))
        assert scores["r2"] == pytest.approx(sklearn.r2_score(*pair))
    error = np.abs(found.predictions - found.labels) / found.labels.std(0)
    assert found.mistakes()[0] == error.max(1).argmax()


def test_measures_of_levels_are_those_of_scikit_learn():
    found = numbers("ordinal")
    assert found.measures["kappa"] == pytest.approx(
        sklearn.cohen_kappa_score(found.targets, found.predictions, weights="quadratic")
    )
    np.testing.assert_array_equal(found.confusion, sklearn.confusion_matrix(found.targets, found.predictions))
    assert found.outputs.min() >= 0 and found.outputs.max() <= 3
    assert found.accuracy == pytest.approx(sklearn.accuracy_score(found.targets, found.predictions))
    level = found.per_class[0]  # of predictions that end at the first and the last level
    assert found.raw.min() < 0 and level["name"] == "level"
    assert level["rmse"] == pytest.approx(metrics.score("rmse", found.targets, found.outputs, "ordinal"))
    assert level["mae"] == pytest.approx(sklearn.mean_absolute_error(found.targets, found.outputs))
    assert found.headline.startswith(f"Cohen's kappa, with quadratic weights: {found.measures['kappa']:.4g}, accuracy")


@pytest.mark.parametrize(
    ("found", "texts", "none"),
    [
        (labels(), ("Average precision", "d &lt; 0", "Worst mistakes"), ("Confusion", "d < 0")),
        (numbers(), ("Numbers", "R²", "Largest errors"), ("Confusion", "AUC")),
        (numbers("ordinal"), ("Levels", "kappa", 'class="matrix"'), ("AUC",)),
    ],
    ids=["multi", "regression", "ordinal"],
)
def test_the_report_shows_what_fits(found, texts, none):
    picture = np.zeros((8, 8, 3), "uint8")
    folds = (("Fold", "rmse"), [("0", "1.5")], "rmse: 1.5")
    page = report(found, title="All", folds=folds, images={int(found.mistakes()[0]): (picture, None)})
    assert all(text in page for text in (*texts, "<h2>Folds</h2>")) and not any(text in page for text in none)
    assert all(value in repr(found) for value in found.figures.values())
    assert found.to_dict()["images"] == COUNT
