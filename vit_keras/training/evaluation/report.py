"""The report of a training or an evaluation: one HTML file that works without a network, and without scripts."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..._internal.html_page import data_uri, escape, fill
from ..._internal.plain_json import as_json
from ..data.folder import Labeled
from . import small
from .calibration import Reliability, half_by_half, tempered
from .calibration import temperature as best_temperature
from .charts import history_chart, reliability_chart
from .findings import Finding
from .tasks import Evaluation, number, percent

__all__ = ["report"]

_TEMPLATE = Path(__file__).with_name("report.html")
_MOST_CLASSES = 40  # in the largest matrix that can still be read
_PAIRS = 12  # rows in the table of the most frequent confusions
_SHOWN = 24
_SIDE = 256  # longest side of an image, in pixels

History = Mapping[str, Sequence[float]]
Folds = tuple[Sequence[str], Sequence[Sequence[str]], str]


def report(
    evaluation: Evaluation,
    *,
    title: str,
    subtitle: str = "",
    history: History | None = None,
    folds: Folds | None = None,
    histories: Sequence[History] = (),
    notes: Iterable[str] = (),
    images: Mapping[int, tuple[np.ndarray, np.ndarray | None]] | None = None,
    command: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    temperature: float | np.ndarray | None = None,
    findings: Sequence[Finding] = (),
    data: Labeled | None = None,
) -> str:
    """Return the page of an evaluation, and of the training before it."""
    parts = [
        _figures(evaluation),
        _notes(notes),
        _folds(folds),
        _curves(history or {}),
        *_measures(evaluation),
        _calibration(evaluation, temperature),
        *(_finding(each, data) for each in findings if data is not None),
        _mistakes(evaluation, images or {}),
        _curves_of_folds(histories),
        _making(command, recipe or {}, facts or {}),
    ]
    places = {"title": escape(title), "subtitle": escape(subtitle), "main": "\n".join(filter(None, parts))}
    return fill(_TEMPLATE.read_text(encoding="utf-8"), places)


# --- numbers ----------------------------------------------------------------------------------------------------


def _figures(evaluation: Any) -> str:
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in evaluation.figures.items()
    )
    return f'<section aria-label="Result"><dl class="figures">{items}</dl></section>'


def _folds(folds: Folds | None) -> str:
    if folds is None:
        return ""
    header, rows, text = folds
    return section("Folds", f"<p>{escape(text)}</p>", _table(header, rows))


def _measures(evaluation: Evaluation) -> list[str]:
    """Return the sections that fit the task: confusions, and a table of the parts."""
    row = evaluation.row
    found = [_confusion(evaluation)] if row.confused else []
    header, *rows = evaluation.table
    return [*found, section(row.heading, f"<p>{row.text}</p>", _table(header, rows))]


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return items and f'<ul class="notes">{items}</ul>'


def _confusion(evaluation: Evaluation) -> str:
    confused = evaluation.confused()
    rows = [(true, said, f"{count:,}") for true, said, count in confused[:_PAIRS]]
    pairs = rows and _table(("True class", "Predicted", "Images"), rows, "Most frequent confusions", texts=[1])
    if len(evaluation.class_names) > _MOST_CLASSES:
        matrix = f"<p>A matrix of {len(evaluation.class_names):,} classes is too large to be shown.</p>"
    else:
        matrix = _matrix(evaluation)
    return section(
        "Confusions", f'<div class="beside">{matrix}{pairs or "<p>No image was predicted wrongly.</p>"}</div>'
    )


def _matrix(evaluation: Any) -> str:
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


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str = "",
    texts: Sequence[int] = (),
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
    return f'<div class="wide"><table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


# --- curves -----------------------------------------------------------------------------------------------------


def _curves(history: History) -> str:
    epochs = max(map(len, history.values()), default=0)
    if not epochs:
        return ""
    charts = []
    for name in dict.fromkeys(["accuracy", "loss", *(k.removeprefix("val_") for k in history if k.startswith("val_"))]):
        lines = {kind: history[k] for kind, k in (("train", name), ("val", f"val_{name}")) if k in history}
        if lines:
            charts.append(history_chart(name.replace("_", " ").capitalize(), lines))
    if "learning_rate" in history:
        charts.append(history_chart("Learning rate of the last step of each epoch", {"rate": history["learning_rate"]}))
    rows = [(str(n + 1), *(number(values[n]) for values in history.values())) for n in range(epochs)]
    numbers = f"<details><summary>Numbers</summary>{_table(('Epoch', *history), rows)}</details>"
    return section("Training", f'<div class="curves">{"".join(charts)}</div>', numbers)


def _curves_of_folds(histories: Sequence[History]) -> str:
    parts = [
        f"<details><summary>Fold {fold}</summary>{_curves(history)}</details>" for fold, history in enumerate(histories)
    ]
    return section("Training of each fold", *parts) if parts else ""


# --- calibration ------------------------------------------------------------------------------------------------


def _calibration(evaluation: Any, by: float | np.ndarray | None) -> str:
    if evaluation.task not in ("single", "multi"):
        return ""
    shares, labels, task = evaluation.probabilities, evaluation.labels, evaluation.task
    if by is not None:
        shares = tempered(shares, 1 / by, task)
    before, after = Reliability.of(shares, labels), Reliability.of(half_by_half(shares, labels, task), labels)
    of = "a prediction" if task == "single" else "a label"
    text = (
        f"Across how sure the model was of {of}, up how often it was right; on the dotted line both are the same. The "
        f"mean gap (expected calibration error) is <b>{percent(before.error)}</b>. By chance alone it would exceed "
        f"{percent(before.chance)} on so few images in one of twenty perfectly calibrated models.</p><p>"
    )
    half = "(each half of the images with the temperature of the other half)"
    if by is None:
        text += (
            f"With logits divided by a temperature of {number(best_temperature(shares, labels))}, which changes no "
            f"prediction, it would be <b>{percent(after.error)}</b> {half}. <code>training.calibrate</code> does this, "
            "and <code>finetune --calibrate</code>."
        )
    else:
        low, high = number(np.min(by)), number(np.max(by))
        values = f"the temperature {low}" if np.ndim(by) == 0 else f"the temperature of its fold, {low} to {high}"
        text += (
            f"The model was calibrated: its logits are divided by {values}, which changes no prediction. That leaves "
            f"<b>{percent(after.error)}</b> {half}."
        )
    return section("Calibration", f"<p>{text}</p>", reliability_chart(before, after))


# --- findings in the images ---------------------------------------------------------------------------------------


def _finding(finding: Finding, data: Labeled) -> str:
    """Return the section of a finding, with its first images."""
    more = f" The first {_SHOWN} are shown; history.json or report.json has all." if len(finding.cards) > _SHOWN else ""
    cards = ""
    for rows, caption in finding.cards[:_SHOWN]:
        ids = [data.ids[row] for row in rows]
        cards += _figure([(small(data.paths[row]), data.ids[row]) for row in rows], caption, " and ".join(ids))
    cards = cards and f'<div class="cards">{cards}</div>'
    return section(finding.heading, f"<p>{finding.text}{more}</p>", finding.chart, cards)


# --- mistakes ---------------------------------------------------------------------------------------------------


def _mistakes(evaluation: Any, images: Mapping[int, tuple[np.ndarray, np.ndarray | None]]) -> str:
    if not images:
        return ""
    mapped = any(overlay is not None for _, overlay in images.values())
    heading, text = evaluation.row.worst
    text += " Next to each: what in the image supports the prediction." if mapped else ""
    cards = "".join(_card(evaluation, number, *images[number]) for number in images)
    return section(heading, f"<p>{text}</p>", f'<div class="cards">{cards}</div>')


def _card(evaluation: Any, number: int, image: np.ndarray, overlay: np.ndarray | None) -> str:
    true, said = evaluation.row.caption(evaluation, number)
    images = [(image, f"An image that is {true}")]
    if overlay is not None:
        images.append((overlay, f"The same image, with the map of what supports {said}"))
    return _figure(images, f"<b>{escape(true)}</b>, predicted as <b>{escape(said)}</b>", evaluation.paths[number])


def _figure(images: Sequence[tuple[np.ndarray, str]], caption: str, path: str) -> str:
    tags = "".join(f'<img src="{jpeg(pixels)}" alt="{escape(alt)}">' for pixels, alt in images)
    kind = "pair" if len(images) > 1 else "one"
    text = f"{caption}<small>{escape(path)}</small>"
    return f'<figure><div class="{kind}">{tags}</div><figcaption>{text}</figcaption></figure>'


def jpeg(pixels: np.ndarray) -> str:
    """Return an image as a data URL, for a page."""
    image, file = Image.fromarray(np.ascontiguousarray(pixels)), io.BytesIO()
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    image.save(file, "JPEG", quality=82, optimize=True)
    return data_uri(file.getvalue(), "image/jpeg")


def section(heading: str, *parts: str) -> str:
    """Return a section of a page."""
    return f"<section><h2>{heading}</h2>{''.join(parts)}</section>"


# --- how it was made --------------------------------------------------------------------------------------------


def _making(command: str | None, recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    text = f"<h3>Command</h3><pre>{escape(command)}</pre>" if command else ""
    tables = ""
    for heading, values in (("Recipe", recipe), ("Run", facts)):
        texts = {name: value if isinstance(value, str) else as_json(value) for name, value in values.items()}
        rows = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in texts.items())
        if rows:
            tables += f'<div><h3>{heading}</h3><table class="plain"><tbody>{rows}</tbody></table></div>'
    return section("How it was made", text, f'<div class="beside">{tables}</div>') if text or tables else ""
