"""The contenders, the budgets, and which runs a benchmark has, as data."""

from __future__ import annotations

from typing import Any, NamedTuple

from .data import FEW, TASKS

SIZE = 96
FEW_SIZE = 160
"""Pixels of the data sets of few images: what `training.finetune` chooses for images that are smaller."""
BUDGETS: dict[str, dict[str, float]] = {
    "1 step": {"steps": 1},
    "10 steps": {"steps": 10},
    "30 s": {"seconds": 30},
    "2 min": {"seconds": 120},
    "8 min": {"seconds": 480},
    "own": {},
}
"""The last is the processor time that `training.finetune` takes for the same images by its own plan."""
RATES = ("1e-5", "3e-5", "1e-4", "3e-4", "1e-3")


class Contender(NamedTuple):
    """A way to train, as the users of a library write it.

    Attributes:
        name: Its name in tables and figures.
        module: Its module in `benchmarks.learn`.
        environment: Its key in `benchmarks.environments.ENVIRONMENTS`.
        style: What its module is asked for.
        trains: Whether it has a budget; or else it runs once.
    """

    name: str
    module: str
    environment: str
    style: str
    trains: bool = True


OURS = "vit_keras finetune"
CALL = "vit_keras training.finetune"
CONTENDERS = (
    Contender(OURS, "ours", "torch", "finetune"),
    Contender(CALL, "ours", "torch", "call"),
    Contender("Keras, Adam", "ours", "torch", "adam"),
    *(Contender(f"Keras, Adam {rate}", "ours", "torch", f"adam {rate}") for rate in RATES if rate != "1e-3"),
    Contender("timm, AdamW", "torch_image_models", "torch", "adamw"),
    Contender("transformers Trainer", "hugging_face", "torch", "Trainer"),
    Contender("KerasHub ImageClassifier", "hub", "keras-hub", "fit"),
    Contender("vit_keras linear_probe", "ours", "torch", "linear_probe", trains=False),
    Contender("vit_keras knn", "ours", "torch", "knn", trains=False),
    Contender("scikit-learn on timm's features", "torch_image_models", "torch", "logistic", trains=False),
    Contender("scikit-learn, cross-validated", "torch_image_models", "torch", "logistic cross-validated", trains=False),
)
"""Keras' own default is a rate of 1e-3, one of the five."""


class Run(NamedTuple):
    """One training: a contender, a data set, a budget and a seed."""

    data: str
    budget: str
    seed: int
    contender: str


_OWN = (CALL, "Keras, Adam 1e-4", "timm, AdamW", "KerasHub ImageClassifier")
_SEEDS = {"1 step": 3, "10 steps": 3, "30 s": 3, "2 min": 3, "8 min": 1, "own": 3}
_LONG = {
    "2 min": ("flowers", "signs", "cifar-100", "numbers", "mosaic"),
    "8 min": ("flowers", "signs", "cifar-1000"),
}
_QUICK = {"10 steps": ("flowers", "signs"), "30 s": ("flowers", "signs")}


def runs(quick: bool = False) -> list[Run]:
    """Return all runs, the cheap ones first.

    Args:
        quick: Whether to take two data sets, two small budgets and one seed.
    """
    many = tuple(name for name in TASKS if name not in FEW)
    long = {**_LONG, "own": tuple(FEW)}
    tasks = _QUICK if quick else {name: long.get(name, many) for name in BUDGETS}
    frozen = [each.name for each in CONTENDERS if not each.trains]
    seen = tuple(dict.fromkeys(data for names in tasks.values() for data in names))
    seeds = 1 if quick else max(_SEEDS.values())
    found = [Run(data, "none", seed, name) for seed in range(seeds) for data in seen for name in frozen]
    for budget, names in tasks.items():
        for seed in range(1 if quick else _SEEDS[budget]):
            trained = (
                _OWN if budget == "own" else [each.name for each in CONTENDERS if each.trains and each.name != CALL]
            )
            found += [Run(data, budget, seed, name) for data in names for name in trained]
    return found


def size(data: str) -> int:
    """Return the pixels of the images of a data set."""
    return FEW_SIZE if data in FEW else SIZE


def contender(name: str) -> Contender:
    """Return a contender by its name."""
    return next(each for each in CONTENDERS if each.name == name)


def key(row: dict[str, Any]) -> Run:
    """Return the run that a line of the results is of."""
    return Run(*(row[field] for field in Run._fields))
