"""Charts of a report, as SVG: values over epochs, and predictions beside the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..html_page import escape
from .other_evaluations import number

__all__: list[str] = []

_MOST_POINTS = 2000
"""Pictures in a scatter chart; of more, every so-manieth is drawn."""

_MOST_CHARTS = 12


def chart(title: str, lines: Mapping[str, Sequence[float]], best: int | None) -> str:
    """Return a chart of values over epochs, as SVG."""
    left, right, top, bottom = 52, 12, 10, 34
    width, height = 460, 250
    epochs = max(map(len, lines.values()))
    ticks = ticks_of([value for line in lines.values() for value in line if math.isfinite(value)])

    def x(epoch: float) -> float:
        return round(left + (width - left - right) * (0.5 if epochs == 1 else epoch / (epochs - 1)), 1)

    def y(value: float) -> float:
        return round(height - bottom - (height - top - bottom) * (value - ticks[0]) / (ticks[-1] - ticks[0]), 1)

    parts = [
        f'<path class="grid" d="M{left} {y(tick)}H{width - right}"/>'
        f'<text class="end" x="{left - 8}" y="{y(tick) + 4}">{number(tick)}</text>'
        for tick in ticks
    ]
    stride = math.ceil(epochs / 8)
    parts += [f'<text class="mid" x="{x(n)}" y="{height - 16}">{n + 1}</text>' for n in range(0, epochs, stride)]
    parts.append(f'<text class="mid" x="{(left + width - right) / 2}" y="{height - 1}">epoch</text>')
    if best is not None:
        parts.append(f'<path class="best" d="M{x(best)} {top}V{height - bottom}"/>')
    for kind, values in lines.items():
        known = [(n, value) for n, value in enumerate(values) if math.isfinite(value)]
        points = " ".join(f"{x(n)},{y(value)}" for n, value in known)
        parts.append(f'<polyline class="line {kind}" points="{points}"/>')
        name = {"train": "training", "val": "held out"}[kind]
        parts += [
            f'<circle class="{kind}" cx="{x(n)}" cy="{y(value)}" r="{3 if epochs < 40 else 1.5}">'
            f"<title>epoch {n + 1}, {name}: {number(value)}</title></circle>"
            for n, value in known
        ]
    ends = ", ".join(
        f"{name} {number(lines[k][-1])}" for k, name in (("train", "training"), ("val", "held out")) if k in lines
    )
    return (
        f'<figure><h3>{title}</h3><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{title} over {epochs} epochs; at the end: {ends}">{"".join(parts)}</svg></figure>'
    )


def ticks_of(values: Sequence[float]) -> list[float]:
    """Return about five round numbers that enclose the values.

    Example:
        >>> ticks_of([0.13, 0.88])
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    power = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= (high - low) / 4.5)
    return [round(n * step, 12) for n in range(math.floor(low / step), math.ceil(high / step) + 1)]


def scatters(evaluation: Any) -> str:
    """Return a section with a chart of predictions over truth, for each number that is predicted."""
    names = ("level",) if evaluation.task == "ordinal" else evaluation.class_names
    charts = "".join(
        _scatter(name, evaluation.labels[:, column], evaluation.predictions[:, column])
        for column, name in enumerate(names[:_MOST_CHARTS])
    )
    text = "Each point is a picture: across its true number, up the predicted one. On the line both are the same."
    count = len(evaluation.labels)
    text += f" Of {count:,} pictures {_MOST_POINTS:,} are drawn." if count > _MOST_POINTS else ""
    text += f" Of {len(names):,} numbers {_MOST_CHARTS} are drawn." if len(names) > _MOST_CHARTS else ""
    return f'<section><h2>Predictions</h2><p>{text}</p><div class="curves">{charts}</div></section>'


def _scatter(name: str, true: np.ndarray, said: np.ndarray) -> str:
    chosen = np.linspace(0, len(true) - 1, min(len(true), _MOST_POINTS)).astype(int)
    ticks = ticks_of([*map(float, true), *map(float, said)])
    left, top, side, width, height = 60, 10, 300, 372, 356

    def place(value: float) -> float:
        return side * (value - ticks[0]) / (ticks[-1] - ticks[0])

    parts = []
    for tick in ticks:
        x, y = round(left + place(tick), 1), round(top + side - place(tick), 1)
        parts.append(f'<path class="grid" d="M{left} {y}H{left + side}M{x} {top}V{top + side}"/>')
        parts.append(f'<text class="end" x="{left - 8}" y="{y + 4}">{number(tick)}</text>')
        parts.append(f'<text class="mid" x="{x}" y="{top + side + 16}">{number(tick)}</text>')
    parts.append(f'<path class="best" d="M{left} {top + side}L{left + side} {top}"/>')
    parts += [
        f'<circle class="point" cx="{left + place(float(true[n])):.1f}" cy="{top + side - place(float(said[n])):.1f}" '
        f'r="{3 if len(chosen) < 300 else 2}"/>'
        for n in chosen
    ]
    parts.append(f'<text class="mid" x="{left + side / 2}" y="{height - 8}">true</text>')
    middle = top + side / 2
    parts.append(f'<text class="mid" x="14" y="{middle}" transform="rotate(-90 14 {middle})">predicted</text>')
    return (
        f'<figure><h3>{escape(name)}</h3><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Predicted over true {escape(name)}">{"".join(parts)}</svg></figure>'
    )
