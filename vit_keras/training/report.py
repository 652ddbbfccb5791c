"""The report of a training or an evaluation: one HTML file that works without a network.

The template is `report.html` beside this module. All numbers and pictures are in the page as HTML and SVG, so it can be
read without scripts, printed and mailed; its script only sorts tables and changes the theme.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..html_page import data_uri, escape, fill
from .evaluation import Evaluation

__all__ = ["report"]

_TEMPLATE = Path(__file__).with_name("report.html")
_MOST_CLASSES = 40
"""Classes in the largest matrix that can still be read."""

_PAIRS = 12
"""Rows in the table of the most frequent confusions."""

_SIDE = 256
"""Longest side of a picture, in pixels."""

History = Mapping[str, Sequence[float]]


def report(
    evaluation: Evaluation,
    *,
    title: str,
    subtitle: str = "",
    history: History | None = None,
    best_epoch: int | None = None,
    notes: Iterable[str] = (),
    pictures: Mapping[int, tuple[np.ndarray, np.ndarray | None]] | None = None,
    command: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Return the page of an evaluation, and of the training before it.

    Args:
        evaluation: The evaluation.
        title: Heading of the page.
        subtitle: A line below it.
        history: Values after each epoch by name, as Keras' `History.history` has them.
        best_epoch: Number, from 0, of the epoch whose weights were kept.
        notes: Sentences to read before the numbers.
        pictures: Mistakes, by their number in the evaluation: uint8 pixels, and the same with a map over them or
            `None`.
        command: The command that made it.
        recipe: All settings of the training, nested at most once.
        facts: Other facts, such as versions.

    Returns:
        The page, to be written as UTF-8.

    Example:
        >>> said = Evaluation(("cat", "dog"), ("1.jpg", "2.jpg"), np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]]))
        >>> "Confusions" in report(said, title="Cats and dogs")
        True
    """
    parts = [
        _figures(evaluation),
        _notes(notes),
        _curves(history or {}, best_epoch),
        _confusion(evaluation),
        _classes(evaluation),
        _mistakes(evaluation, pictures or {}),
        _making(command, recipe or {}, facts or {}),
    ]
    places = {"title": escape(title), "subtitle": escape(subtitle), "main": "\n".join(filter(None, parts))}
    return fill(_TEMPLATE.read_text(encoding="utf-8"), places)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def _section(heading: str, *parts: str) -> str:
    return f"<section><h2>{heading}</h2>{''.join(parts)}</section>"


# --- numbers ----------------------------------------------------------------------------------------------------


def _figures(evaluation: Evaluation) -> str:
    low, high = evaluation.interval
    interval = f"95\N{NO-BREAK SPACE}% interval: {100 * low:.1f} to {_percent(high)}"
    figures = {
        f"accuracy on {len(evaluation.labels):,} pictures ({interval})": _percent(evaluation.accuracy),
        "mean F1 over the classes": _percent(evaluation.macro_f1),
        "loss (cross-entropy)": f"{evaluation.loss:.3f}",
        f"mistakes of {len(evaluation.labels):,}": f"{len(evaluation.mistakes()):,}",
        "accuracy of always predicting the most frequent class": _percent(evaluation.commonest),
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    return f'<section aria-label="Result"><dl class="figures">{items}</dl></section>'


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return items and f'<ul class="notes">{items}</ul>'


def _confusion(evaluation: Evaluation) -> str:
    confused = evaluation.confused()
    rows = [(true, said, f"{count:,}") for true, said, count in confused[:_PAIRS]]
    pairs = rows and _table(("True class", "Predicted", "Pictures"), rows, "Most frequent confusions", texts=[1])
    if len(evaluation.class_names) > _MOST_CLASSES:
        matrix = f"<p>A matrix of {len(evaluation.class_names):,} classes is too large to be shown.</p>"
    else:
        matrix = _matrix(evaluation)
    return _section(
        "Confusions", f'<div class="beside">{matrix}{pairs or "<p>No picture was predicted wrongly.</p>"}</div>'
    )


def _matrix(evaluation: Evaluation) -> str:
    names, counts = [escape(name) for name in evaluation.class_names], evaluation.confusion
    heads = "".join(f'<th scope="col" title="{name}"><span>{name}</span></th>' for name in names)
    rows = []
    for i, name in enumerate(names):
        cells = []
        for j, count in enumerate(counts[i]):
            step = math.ceil(10 * count / max(1, counts[i].sum()))
            kind = f"{'right' if i == j else 'wrong'} s{step}" if count else "zero"
            title = f"{name}, predicted {names[j]}: {count}"
            cells.append(f'<td class="{kind}" title="{title}">{count}</td>')
        rows.append(f'<tr><th scope="row" title="{name}">{name}</th>{"".join(cells)}</tr>')
    caption = "Rows are true classes, columns predicted ones. The darker a cell, the larger its share of the row."
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Confusion matrix">'
        f'<table class="matrix"><caption>{caption}</caption><thead><tr><td></td>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _classes(evaluation: Evaluation) -> str:
    confused = {true: said for true, said, _ in reversed(evaluation.confused())}
    rows = [
        (
            scores["name"],
            f"{scores['pictures']:,}",
            *(_percent(scores[measure]) for measure in ("precision", "recall", "f1")),
            confused.get(scores["name"], "–"),
        )
        for scores in evaluation.per_class
    ]
    text = (
        "<p>Precision: share of the pictures predicted as a class that are of it. Recall: share of the pictures of a "
        "class that are predicted as it. F1: harmonic mean of the two.</p>"
    )
    header = ("Class", "Pictures", "Precision", "Recall", "F1", "Most often mistaken for")
    return _section("Classes", text, _table(header, rows, texts=[5], sortable=True))


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str = "",
    texts: Sequence[int] = (),
    sortable: bool = False,
) -> str:
    """Return a table of numbers, with texts in its first column and in those of `texts`."""
    kinds = [' class="text"' if column in texts else "" for column in range(len(header))]
    heads = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in zip(kinds, header))
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds[1:], cells))
        + "</tr>"
        for first, *cells in rows
    )
    caption = caption and f"<caption>{caption}</caption>"
    kind = ' class="sortable"' if sortable else ""
    return f'<div class="wide"><table{kind}>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


# --- curves -----------------------------------------------------------------------------------------------------


def _curves(history: History, best: int | None) -> str:
    epochs = max(map(len, history.values()), default=0)
    if not epochs:
        return ""
    charts = []
    for title, name in (("Accuracy", "accuracy"), ("Loss", "loss")):
        lines = {kind: history[k] for kind, k in (("train", name), ("val", f"val_{name}")) if k in history}
        if lines:
            charts.append(_chart(title, lines, best))
    key = "".join(
        f'<span><svg viewBox="0 0 28 8" aria-hidden="true"><path class="line {kind}" d="M0 4H28"/></svg>{name}</span>'
        for kind, name in (("train", "training, augmented"), ("val", "held out"))
    )
    kept = "" if best is None else f"<p>The weights after epoch {best + 1} (dotted line) were kept.</p>"
    rows = [(n + 1, *(_number(values[n]) for values in history.values())) for n in range(epochs)]
    numbers = f"<details><summary>Numbers</summary>{_table(('Epoch', *history), rows)}</details>"
    return _section(
        "Training", kept, f'<div class="key">{key}</div><div class="curves">{"".join(charts)}</div>', numbers
    )


def _number(value: float) -> str:
    return f"{value:.4g}"


def _chart(title: str, lines: Mapping[str, Sequence[float]], best: int | None) -> str:
    """Return a chart of values over epochs, as SVG."""
    left, right, top, bottom = 52, 12, 10, 34
    width, height = 460, 250
    epochs = max(map(len, lines.values()))
    ticks = _ticks([value for line in lines.values() for value in line if math.isfinite(value)])

    def x(epoch: float) -> float:
        return round(left + (width - left - right) * (0.5 if epochs == 1 else epoch / (epochs - 1)), 1)

    def y(value: float) -> float:
        return round(height - bottom - (height - top - bottom) * (value - ticks[0]) / (ticks[-1] - ticks[0]), 1)

    parts = [
        f'<path class="grid" d="M{left} {y(tick)}H{width - right}"/>'
        f'<text class="end" x="{left - 8}" y="{y(tick) + 4}">{_number(tick)}</text>'
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
            f"<title>epoch {n + 1}, {name}: {_number(value)}</title></circle>"
            for n, value in known
        ]
    ends = ", ".join(
        f"{name} {_number(lines[k][-1])}" for k, name in (("train", "training"), ("val", "held out")) if k in lines
    )
    return (
        f'<figure><h3>{title}</h3><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{title} over {epochs} epochs; at the end: {ends}">{"".join(parts)}</svg></figure>'
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """Return about five round numbers that enclose the values.

    Example:
        >>> _ticks([0.13, 0.88])
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    power = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= (high - low) / 4.5)
    return [round(n * step, 12) for n in range(math.floor(low / step), math.ceil(high / step) + 1)]


# --- mistakes ---------------------------------------------------------------------------------------------------


def _mistakes(evaluation: Evaluation, pictures: Mapping[int, tuple[np.ndarray, np.ndarray | None]]) -> str:
    if not pictures:
        return ""
    mapped = any(overlay is not None for _, overlay in pictures.values())
    text = "The mistakes with the lowest probability of the true class."
    text += " Beside each, what in the picture supports the predicted class." if mapped else ""
    cards = "".join(_card(evaluation, number, *pictures[number]) for number in pictures)
    return _section("Worst mistakes", f"<p>{text}</p>", f'<div class="cards">{cards}</div>')


def _card(evaluation: Evaluation, number: int, picture: np.ndarray, overlay: np.ndarray | None) -> str:
    names, shares = evaluation.class_names, evaluation.probabilities[number]
    true, said = evaluation.labels[number], evaluation.predictions[number]
    images = [(picture, f"A picture of the class {names[true]}")]
    if overlay is not None:
        images.append((overlay, f"The same picture, with the map of what supports {names[said]}"))
    tags = "".join(f'<img src="{_jpeg(pixels)}" alt="{escape(alt)}">' for pixels, alt in images)
    return (
        f'<figure><div class="pair">{tags}</div><figcaption>'
        f"<b>{escape(names[true])}</b> ({_percent(shares[true])}), predicted as "
        f"<b>{escape(names[said])}</b> ({_percent(shares[said])})"
        f"<small>{escape(evaluation.paths[number])}</small></figcaption></figure>"
    )


def _jpeg(pixels: np.ndarray) -> str:
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82, optimize=True)
    return data_uri(file.getvalue(), "image/jpeg")


# --- how it was made --------------------------------------------------------------------------------------------


def _making(command: str | None, recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    parts = []
    if command:
        parts.append(f"<h3>Command</h3><pre>{escape(command)}</pre>")
    for heading, values in (("Recipe", recipe), ("Run", facts)):
        if values:
            rows = "".join(
                f'<tr><th scope="row">{escape(k)}</th><td>{escape(_value(v))}</td></tr>' for k, v in values.items()
            )
            parts.append(f'<div><h3>{heading}</h3><table class="plain"><tbody>{rows}</tbody></table></div>')
    tables = "".join(parts[1:] if command else parts)
    return (
        _section("How it was made", parts[0] if command else "", f'<div class="beside">{tables}</div>') if parts else ""
    )


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value))
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)
