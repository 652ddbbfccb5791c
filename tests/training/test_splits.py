"""Folds: every picture in one, like the whole, no group divided, the same every time."""

import dataclasses
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from vit_keras.training.data.folder import Labeled
from vit_keras.training.data.splits import check_fold_column, fold_numbers, hold_out

pytest.importorskip("sklearn")

COUNT = 200


def pictures(task, groups=None, labels=None):
    rng = np.random.default_rng(0)
    found = {
        "single": rng.choice(3, COUNT, p=[0.7, 0.2, 0.1]).astype("int32"),
        "ordinal": rng.choice(3, (COUNT, 1), p=[0.7, 0.2, 0.1]).astype("float32"),
        "regression": rng.normal(0, 1, (COUNT, 1)).astype("float32"),
        "multi": (rng.random((COUNT, 4)) < [0.6, 0.3, 0.1, 0.05]).astype("float32"),
    }[task]
    paths = [Path(f"{n}.png") for n in range(COUNT)]
    names = tuple("abcd"[: found.shape[1] if task in ("multi", "regression") else 3])
    return Labeled(task, names, paths, found if labels is None else labels, [p.name for p in paths], Path(), groups)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("task", ["single", "ordinal", "regression", "multi"])
def test_folds_are_like_the_whole(task, grouped):
    groups = np.random.default_rng(1).integers(0, 60, COUNT) if grouped else None
    data = pictures(task, groups)
    folds = fold_numbers(data, 5, seed=3)
    assert np.unique(folds).tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(folds, fold_numbers(data, 5, seed=3))
    assert (folds != fold_numbers(data, 5, seed=4)).any()
    if grouped:
        assert all(len(np.unique(folds[groups == group])) == 1 for group in np.unique(groups))
    slack = 12 if grouped else 3
    assert np.ptp(np.bincount(folds)) <= 2 * slack
    if task != "regression":
        flags = data.labels if task == "multi" else np.eye(3)[data.labels.reshape(-1).astype(int)]
        counts = np.stack([flags[folds == fold].sum(0) for fold in range(5)])
        assert (np.abs(counts - flags.sum(0) / 5) <= slack).all()


def test_rare_labels_are_divided_evenly():
    """Of a label of five pictures each of five folds has one: a plain shuffle leaves two folds or more without it."""
    rng = np.random.default_rng(0)
    labels = (rng.random((COUNT, 6)) < 0.4).astype("float32")
    labels[:, 5] = 0
    labels[rng.choice(COUNT, 5, replace=False), 5] = 1
    for seed in range(5):
        folds = fold_numbers(pictures("multi", labels=labels), 5, seed)
        assert sorted(folds[labels[:, 5] == 1].tolist()) == [0, 1, 2, 3, 4]
        assert np.ptp(np.bincount(folds)) <= 8


def test_a_part_is_held_out():
    training, validation = hold_out(pictures("single"), 0.25, seed=0)
    assert len(validation) == COUNT // 4 and sorted([*training, *validation]) == [*range(COUNT)]


def test_what_cannot_be_divided():
    with pytest.raises(ValueError, match="201 parts.*folds=200"):
        fold_numbers(pictures("single"), 201, 0)
    with pytest.raises(ValueError, match="There are 2 groups"):
        fold_numbers(pictures("regression", np.arange(COUNT) % 2), 3, 0)
    labels = np.zeros(COUNT, "int32")
    labels[:2] = 1
    with pytest.warns(UserWarning, match="'b'"):
        fold_numbers(pictures("single", labels=labels), 5, 0)
    with pytest.raises(ValueError, match="folds"):
        fold_numbers(pictures("single"), 1, 0)


def test_a_column_of_folds_must_not_divide_what_belongs_together():
    data, folds = pictures("regression", np.arange(COUNT) // 2 * 3), np.arange(COUNT) // 10
    check_fold_column(data, folds, "fold")
    with pytest.raises(ValueError, match="'fold' .*group_column="):
        check_fold_column(data, np.arange(COUNT), "fold")
    twice = dataclasses.replace(data, groups=None, paths=[data.paths[0], *data.paths[:-1]])
    check_fold_column(twice, folds, "fold")
    with pytest.raises(ValueError, match="several rows.*'fold'"):
        check_fold_column(twice, np.arange(COUNT), "fold")
    check_fold_column(dataclasses.replace(twice, missing=frozenset((0, 1))), np.arange(COUNT), "fold")


@pytest.mark.parametrize("divide", [lambda data: fold_numbers(data, 5, 0), lambda data: hold_out(data, 0.2, 0)])
@pytest.mark.parametrize("counts", [(4, 4, 4), (2, 4, 3), (1, 4, 4), (1, 1, 4), (0, 3, 3)])
def test_the_parts_that_an_error_suggests_are_possible(divide, counts):
    """With fewer than two images of a class no number of folds is suggested."""
    labels = np.repeat(np.arange(3), counts).astype("int32")
    paths = [Path(f"{n}.png") for n in range(len(labels))]
    data = Labeled("single", tuple("abc"), paths, labels, [p.name for p in paths], Path())
    with pytest.raises(ValueError, match="the smallest, '.', has") as raised:
        divide(data)
    said, least = str(raised.value), min(count for count in counts if count)
    assert f"has {least}" in said and "leave out" in said and "merge" in said
    suggested = re.findall(r"folds=(\d+)|hold out (0\.\d+)", said)
    assert bool(suggested) == (least > 1)
    for folds, share in suggested:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if folds:
                assert len(np.unique(fold_numbers(data, int(folds), 0))) == int(folds) == least
            else:
                hold_out(data, float(share), 0)
