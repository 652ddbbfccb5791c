"""Charts of a report, as SVG: values over epochs, predictions against the truth, reliability, accuracy over images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._internal.html_page import escape
from ..metrics import wilson
from .other_evaluations import number

__all__: list[str] = []

_MOST_POINTS = 2000
"""Maximum number of images in a scatter chart; of more, an even selection is drawn."""

_MOST_CHARTS = 12


_KINDS = {"train": "training", "val": "held out", "rate": "of the last step"}


def chart(title: str, lines: Mapping[str, Sequence[float]], best: int | None, images: int | None = None) -> str:
    """Return a chart of values over epochs, as SVG.

    Args:
        title: What is shown.
        lines: The values by kind, one of `_KINDS`.
        best: The epoch to mark.
        images: If the held-out values are shares, the number of images, for their 95 % intervals.
    """
    left, right, top, bottom = 52, 12, 10, 34
    width, height = 460, 250
    epochs = max(map(len, lines.values()))
    held_out = lines.get("val", ())
    spans = [wilson(value, images) for value in held_out] if images and all(map(math.isfinite, held_out)) else []
    ticks = ticks_of([value for line in (*lines.values(), *spans) for value in line if math.isfinite(value)])

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
    if len(spans) == 1:
        parts.append(f'<path class="span" d="M{x(0)} {y(spans[0][0])}V{y(spans[0][1])}"/>')
    elif spans:
        edges = [*((n, low) for n, (low, _) in enumerate(spans)), *((n, spans[n][1]) for n in range(len(spans))[::-1])]
        parts.append(f'<polygon class="band" points="{" ".join(f"{x(n)},{y(value)}" for n, value in edges)}"/>')
    for kind, values in lines.items():
        known = [(n, value) for n, value in enumerate(values) if math.isfinite(value)]
        points = " ".join(f"{x(n)},{y(value)}" for n, value in known)
        parts.append(f'<polyline class="line {kind}" points="{points}"/>')
        parts += [
            f'<circle class="{kind}" cx="{x(n)}" cy="{y(value)}" r="{3 if epochs < 40 else 1.5}">'
            f"<title>epoch {n + 1}, {_KINDS[kind]}: {number(value)}</title></circle>"
            for n, value in known
        ]
    ends = ", ".join(f"{_KINDS[kind]} {number(values[-1])}" for kind, values in lines.items())
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
    text = "Each point is an image: across its true number, up the predicted one. On the line both are the same."
    count = len(evaluation.labels)
    text += f" Of {count:,} images {_MOST_POINTS:,} are drawn." if count > _MOST_POINTS else ""
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


def reliability_chart(before: Any, after: Any) -> str:
    """Return a reliability diagram: the accuracy of a model by its confidence.

    Args:
        before: The `Reliability` of its probabilities.
        after: The same after calibration.
    """
    left, top, side, bars, width, height = 60, 10, 280, 46, 372, 394

    def place(share: float) -> float:
        return round(side * share, 1)

    parts = []
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
        x, y = left + place(tick), top + side - place(tick)
        parts.append(f'<path class="grid" d="M{left} {y}H{left + side}M{x} {top}V{top + side}"/>')
        parts.append(f'<text class="end" x="{left - 8}" y="{y + 4}">{100 * tick:.0f} %</text>')
        parts.append(f'<text class="mid" x="{x}" y="{top + side + bars + 16}">{100 * tick:.0f} %</text>')
    parts.append(f'<path class="best" d="M{left} {top + side}L{left + side} {top}"/>')
    wide = side / len(before.counts)
    for n, count in enumerate(before.counts):
        tall = round((bars - 8) * count / before.counts.max(), 1)
        title = f"{count:,} predictions of {n / len(before.counts):.0%} to {(n + 1) / len(before.counts):.0%}"
        parts.append(
            f'<rect class="bar" x="{left + n * wide + 1:.1f}" y="{top + side + bars - tall}" width="{wide - 2:.1f}" '
            f'height="{tall}"><title>{title}</title></rect>'
        )
    for kind, shown in (("train", before), ("val", after)):
        known = np.flatnonzero(shown.counts)
        points = [(left + place(shown.sure[n]), top + side - place(shown.right[n]), n) for n in known]
        for x, _, n in points if kind == "val" else ():
            low, high = wilson(shown.right[n], shown.counts[n])
            parts.append(f'<path class="span" d="M{x} {top + side - place(low)}V{top + side - place(high)}"/>')
        parts.append(f'<polyline class="line {kind}" points="{" ".join(f"{x},{y}" for x, y, _ in points)}"/>')
        parts += [
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="3"><title>{shown.counts[n]:,} predictions: '
            f"{shown.sure[n]:.1%} sure, {shown.right[n]:.1%} right</title></circle>"
            for x, y, n in points
        ]
    parts.append(f'<text class="mid" x="{left + side / 2}" y="{height - 6}">how sure</text>')
    middle = top + side / 2
    parts.append(f'<text class="mid" x="14" y="{middle}" transform="rotate(-90 14 {middle})">how often right</text>')
    return (
        f'<figure class="square"><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="How often right by how sure: calibration error {before.error:.1%}">{"".join(parts)}</svg>'
        "</figure>"
    )


def image_curve_chart(curve: Any) -> str:
    """Return a chart of the accuracy over the number of images, and of the power law through it."""
    left, right, top, bottom, width, height = 52, 24, 10, 34, 460, 250
    counts = [*curve.counts, 2 * curve.counts[-1]]
    now, (low, high) = curve.fitted[-2], curve.interval
    ticks = ticks_of([*curve.accuracies, *curve.fitted, now + low, now + high])

    def x(count: float) -> float:
        return round(left + (width - left - right) * math.log(count / counts[0]) / math.log(counts[-1] / counts[0]), 1)

    def y(value: float) -> float:
        return round(height - bottom - (height - top - bottom) * (value - ticks[0]) / (ticks[-1] - ticks[0]), 1)

    parts = [
        f'<path class="grid" d="M{left} {y(tick)}H{width - right}"/>'
        f'<text class="end" x="{left - 8}" y="{y(tick) + 4}">{number(tick)}</text>'
        for tick in ticks
    ]
    parts += [f'<text class="mid" x="{x(count)}" y="{height - 16}">{count:,}</text>' for count in counts]
    parts.append(f'<text class="mid" x="{(left + width - right) / 2}" y="{height - 1}">images to learn from</text>')
    points = " ".join(f"{x(count)},{y(value)}" for count, value in zip(counts, curve.fitted))
    parts.append(f'<polyline class="line train" points="{points}"/>')
    parts.append(f'<path class="span" d="M{x(counts[-1])} {y(now + low)}V{y(now + high)}"/>')
    parts += [
        f'<circle class="val" cx="{x(count)}" cy="{y(value)}" r="3">'
        f"<title>{count:,} images: {value:.1%}</title></circle>"
        for count, value in zip(curve.counts, curve.accuracies)
    ]
    return (
        f'<figure><h3>Accuracy</h3><svg viewBox="0 0 {width} {height}" role="img" aria-label="Accuracy over the number '
        f'of images. {curve.headline}">{"".join(parts)}</svg></figure>'
    )
