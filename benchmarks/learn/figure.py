"""Show the results of the benchmark of training: a table, and accuracy over processor time (with Matplotlib).

Rows are the lines of the results; see `benchmarks.learn.command`.
"""

from __future__ import annotations

import collections
import math
import os
from typing import Any, NamedTuple

from ..figure import ACCENT, LIGHT, STYLE
from .data import TASKS
from .suite import BUDGETS, CALL, OURS, key

ADAM = "Keras, Adam"
BEST = f"{ADAM}, best rate"
VERSIONS = ("keras", "torch", "timm", "transformers", "keras-hub", "scikit-learn")
LOOKS = {
    OURS: (ACCENT, "o"),
    BEST: ("#D55E00", "s"),
    "timm, AdamW": ("#009E73", "^"),
    "transformers Trainer": ("#56B4E9", "v"),
}
"""What the figure shows, by color and mark."""

NAMES = [OURS, CALL, ADAM, *[*LOOKS][1:], "KerasHub ImageClassifier", "vit_keras linear_probe", "vit_keras knn"]
NAMES += ["scikit-learn on timm's features", "scikit-learn, cross-validated"]
"""The columns of the table."""

TITLES = {
    "flowers": "Flowers, 5 × 100 images",
    "signs": "Sign-language digits, 10 × 100",
    "cifar-5": "CIFAR-10, 10 × 5",
    "cifar-25": "CIFAR-10, 10 × 25",
    "cifar-100": "CIFAR-10, 10 × 100",
    "cifar-1000": "CIFAR-10, 10 × 1,000",
    "digits": "Handwritten digits, 10 × 50",
    "tail": "Flowers, from 200 down to 8",
    "numbers": "Sign-language digits as numbers (R²)",
    "mosaic": "Mosaics, several labels (mean AP)",
}
"""What a reader calls a data set; without a remark, the score is the accuracy."""


class Cell(NamedTuple):
    """What a contender reached on a data set within a budget: the mean, lowest and highest score of all seeds."""

    mean: float
    low: float
    high: float
    seconds: float
    seeds: int


def cells(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Cell]]:
    """Return the cells, `{(data set, budget): {contender: cell}}`, with the best rate of Adam as one of them."""
    found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = collections.defaultdict(dict)
    for row in rows:
        if "score" in row:
            found[row["data"], row["budget"]].setdefault(row["contender"], []).append(row)
    made = {
        place: {name: _cell(list({row["seed"]: row for row in of}.values())) for name, of in contenders.items()}
        for place, contenders in found.items()
    }
    for contenders in made.values():
        rates = [cell for name, cell in contenders.items() if name.startswith(ADAM)]
        if len(rates) > 1:
            contenders[BEST] = max(rates, key=lambda cell: cell.mean)
    order = [*BUDGETS, "none"]
    tasks = list(TASKS)
    return dict(sorted(made.items(), key=lambda item: (tasks.index(item[0][0]), order.index(item[0][1]))))


def _cell(rows: list[dict[str, Any]]) -> Cell:
    scores = [row["score"] for row in rows]
    seconds = sum(row["processor"] for row in rows) / len(rows)
    return Cell(sum(scores) / len(scores), min(scores), max(scores), seconds, len(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of the mean scores: a row for each data set and budget, a column for each contender."""
    found = cells(rows)
    frozen = {data: contenders for (data, budget), contenders in found.items() if budget == "none"}
    trained = {place: contenders for place, contenders in found.items() if place[1] != "none"}
    lines = [["data set", "budget", *NAMES], ["---"] * (2 + len(NAMES))]
    for (data, budget), contenders in (trained or found).items():
        known = {**frozen.get(data, {}), **contenders}
        best = max((cell.mean for name, cell in known.items() if name in NAMES), default=math.nan)
        shown = [_shown(known.get(name), best) for name in NAMES]
        lines.append([data, budget, *shown])
    last = {key(row): row for row in rows}.values()
    errors = collections.Counter((row["contender"], row["error"]) for row in last if "error" in row)
    failed = [f"{name} failed {count} times: {error}" for (name, error), count in errors.items()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", describe(rows), *failed])


def _shown(cell: Cell | None, best: float) -> str:
    if cell is None:
        return ""
    text = f"{cell.mean:.1f}" if cell.seeds == 1 else f"{cell.mean:.1f} ± {(cell.high - cell.low) / 2:.1f}"
    return f"**{text}**" if cell.mean == best else text


def describe(rows: list[dict[str, Any]]) -> str:
    """Return the machine and the versions in a line."""
    if not rows:
        return "There are no results."
    machines = dict.fromkeys(
        f"{row['machine']['processor']}, {row['machine']['cores']} core{'s' * (row['machine']['cores'] > 1)}"
        for row in rows
    )
    versions = {name: version for row in rows for name, version in row.get("versions", {}).items()}
    return "; ".join(
        [*machines, ", ".join(f"{name} {version}" for name, version in versions.items()), rows[-1]["date"]]
    )


def draw(rows: list[dict[str, Any]], path: str | os.PathLike, budget: str = "30 s") -> None:
    """Draw the scores within a budget: a row for each data set, a point for each contender, a line over its seeds.

    Args:
        rows: The results.
        path: Where to put the figure; its name says the format.
        budget: The budget, if the results have it; otherwise their last one.

    Raises:
        ValueError: There is no result.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = cells(rows)
    if not found:
        raise ValueError("There are no results to draw.")
    budget = budget if any(place[1] == budget for place in found) else [*found][-1][1]
    sets = {data: each for (data, name), each in found.items() if name == budget}
    with pyplot.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=(7.2, 0.34 * len(sets) + 1.2), layout="constrained")
        for name, (color, mark) in LOOKS.items():
            points = [(each[name], y) for y, each in enumerate(sets.values()) if name in each]
            for cell, y in points:
                axis.plot([cell.low, cell.high], [y, y], color=color, linewidth=1.2, alpha=0.6)
            means, places = [cell.mean for cell, _ in points], [y for _, y in points]
            axis.plot(means, places, mark, color=color, label=name, zorder=3 + (name == OURS))
        axis.set_yticks(range(len(sets)), [TITLES.get(data, data) for data in sets])
        axis.set_ylim(len(sets) - 0.5, -0.5)
        axis.set_xlabel(f"score in percent after {budget} of processor time")
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(length=0)
        axis.grid(color=LIGHT, linewidth=0.8)
        figure.legend(loc="outside lower center", ncol=4)
        figure.savefig(path, dpi=200)
        pyplot.close(figure)
