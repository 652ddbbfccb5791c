"""Show the results of the benchmark of training: a table, and accuracy over processor time (with Matplotlib).

Rows are the lines of the results; see `benchmarks.learn.command`.
"""

from __future__ import annotations

import collections
import math
import os
import textwrap
from typing import Any, NamedTuple

from ..figure import GREY, INK, LIGHT, STYLE
from .data import TASKS
from .suite import BUDGETS, CALL, OURS, RATES, key

ADAM = "Keras, Adam"
BEST = f"{ADAM}, best of {len(RATES)} rates"
VERSIONS = ("keras", "torch", "timm", "transformers", "keras-hub", "scikit-learn")
SCORES = {"single": "accuracy", "regression": "R²", "multi": "mean average precision"}
COLOURS = {
    OURS: "#0072B2",
    CALL: "#000000",
    ADAM: "#E69F00",
    BEST: "#D55E00",
    "timm, AdamW": "#009E73",
    "transformers Trainer": "#CC79A7",
    "KerasHub ImageClassifier": "#56B4E9",
}
_TICKS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Seconds that are written at the axis."""

MARKS = {"vit_keras linear_probe": "P", "vit_keras knn": "v", "scikit-learn on timm's features": "X"}
MARKS["scikit-learn, cross-validated"] = "D"


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
        if len(rates) == len(RATES):
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
    names = [*COLOURS, *MARKS]
    lines = [["data set", "budget", *names], ["---"] * (2 + len(names))]
    for (data, budget), contenders in (trained or found).items():
        known = {**frozen.get(data, {}), **contenders}
        best = max((cell.mean for name, cell in known.items() if name in names), default=math.nan)
        shown = [_shown(known.get(name), best) for name in names]
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


def draw(rows: list[dict[str, Any]], path: str | os.PathLike) -> None:
    """Draw a panel for each data set: the score over the processor time, from the lowest to the highest seed.

    Args:
        rows: The results.
        path: Where to put the figure; its name says the format.

    Raises:
        ValueError: There is no result.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = cells(rows)
    names = list(dict.fromkeys(data for data, _ in found))
    if not names:
        raise ValueError("There are no results to draw.")
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    with pyplot.rc_context(STYLE):
        size = (4.2 * columns + 0.4, 3.0 * lines + 1.5)
        figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False)
        for axis, data in zip(axes.flat, names):
            _panel(axis, data, {budget: each for (name, budget), each in found.items() if name == data})
        for axis in list(axes.flat)[len(names) :]:
            axis.set_axis_off()
        handles = dict(pair for axis in axes.flat for pair in zip(*reversed(axis.get_legend_handles_labels())))
        order = [name for name in (*COLOURS, *MARKS) if name in handles]
        caption = textwrap.fill(describe(rows), 62 * columns)
        under = (0.14 * (1 + caption.count("\n")) + 0.08) / size[1]
        low = under + 0.25 * -(-len(order) // 3) / size[1]
        figure.legend([handles[name] for name in order], order, loc="lower center", ncol=3, bbox_to_anchor=(0.5, under))
        figure.text(0.01, 0.005, caption, fontsize=7, color="#666666", va="bottom")
        figure.tight_layout(rect=(0, low, 1, 1), w_pad=1.5)
        figure.savefig(path, dpi=160)
        pyplot.close(figure)


def _panel(axis: Any, data: str, budgets: dict[str, dict[str, Cell]]) -> None:
    for name, colour in COLOURS.items():
        line = sorted((each[name] for budget, each in budgets.items() if budget != "none" and name in each), key=_time)
        if not line:
            continue
        x, mean = [cell.seconds for cell in line], [cell.mean for cell in line]
        front = name == OURS
        axis.fill_between(x, [c.low for c in line], [c.high for c in line], color=colour, alpha=0.18, linewidth=0)
        style = {"linewidth": 2.2 if front else 1.4, "markersize": 4.5 if front else 3.5, "zorder": 3 if front else 2}
        axis.plot(x, mean, "o-", color=colour, label=name, **style)
    for name, mark in MARKS.items():
        if cell := budgets.get("none", {}).get(name):
            axis.errorbar(
                cell.seconds, cell.mean, [[cell.mean - cell.low], [cell.high - cell.mean]], fmt=mark, color=INK,
                markerfacecolor=LIGHT, markersize=6, elinewidth=0.8, label=name, linestyle="none",
            )  # fmt: skip
    task = TASKS[data]
    axis.set_xscale("log")
    left, right = axis.get_xlim()
    axis.set_xticks([], minor=True)
    axis.set_xticks(shown := [second for second in _TICKS if left <= second <= right], [f"{n:g}" for n in shown])
    axis.set_title(data, loc="left")
    axis.set_ylabel(f"{SCORES[task.kind]}, %")
    axis.set_xlabel("processor time, s")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#E6E6E6", linewidth=0.8)
    axis.tick_params(length=0, colors=GREY)
    axis.set_ylim(bottom=max(axis.get_ylim()[0], -5))


def _time(cell: Cell) -> float:
    return cell.seconds
