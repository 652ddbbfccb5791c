"""The part of a report about the images: near-duplicates, likely wrong labels, and the gain of more images."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from ..._internal.html_page import data_uri, escape
from ..data.labeled import Labeled
from . import small
from .charts import image_curve_chart
from .findings import IMPROBABLE, Findings

__all__: list[str] = []

_SIDE = 256
"""Longest side of an image, in pixels."""

_SHOWN = 24


def section(heading: str, *parts: str) -> str:
    """Return a section of a page."""
    return f"<section><h2>{heading}</h2>{''.join(parts)}</section>"


def jpeg(pixels: np.ndarray) -> str:
    """Return an image as a data URL, for a page."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82, optimize=True)
    return data_uri(file.getvalue(), "image/jpeg")


def sections(findings: Findings, data: Labeled) -> list[str]:
    """Return the findings as HTML."""
    return [_curve(findings), _wrong(findings, data), _duplicates(findings, data)]


def _curve(findings: Findings) -> str:
    curve = findings.curve
    if curve is None:
        return ""
    text = (
        f"<b>{curve.headline}.</b> This is the accuracy of a logistic regression of the frozen features, before the "
        "training, on the held-out images. The dashed line is a power law through its error; the interval is from "
        "drawing the images again. Training the whole model is better at each number, and usually gains less."
    )
    return section("More images", f"<p>{text}</p>", f'<div class="curves">{image_curve_chart(curve)}</div>')


def _wrong(findings: Findings, data: Labeled) -> str:
    if findings.judge is None:
        return ""
    count, shown = len(findings.wrong), findings.wrong[:_SHOWN]
    text = (
        f"{f'{count:,} images look' if count != 1 else 'One image looks'} like another class, with a probability of "
        f"the label below {IMPROBABLE:.0%}, by confident learning (arXiv 1911.00068). The judge is "
        f"{escape(findings.judge)}: where it is often wrong itself, so are these. {_first(count)}"
    )
    cards = "".join(
        _card(
            data,
            [each.row],
            f"labeled <b>{escape(data.names[data.labels[each.row]])}</b>, looks like "
            f"<b>{escape(data.names[each.suggested])}</b>",
        )
        for each in shown
    )
    return section("Likely wrong labels", f"<p>{text}</p>", f'<div class="cards small">{cards}</div>')


def _duplicates(findings: Findings, data: Labeled) -> str:
    if findings.threshold is None:
        return ""
    count, shown = len(findings.pairs), findings.pairs[:_SHOWN]
    text = (
        f"{f'{count:,} pairs' if count != 1 else 'One pair'} of a held-out image and one to learn from "
        f"{'are' if count != 1 else 'is'} nearly the same, of {findings.images:,} images: the cosine distance of their "
        f"features is below {findings.threshold:.2g}, which is far below the distance of other nearest neighbors "
        f"(Tukey's outer fence). {_first(count)}"
    )
    cards = "".join(
        _card(
            data,
            [pair.train, pair.held_out],
            f"<b>{_label(data, pair.train)}</b> to learn from, <b>{_label(data, pair.held_out)}</b> held out, distance "
            f"{pair.distance:.2g}",
        )
        for pair in shown
    )
    return section("Near-duplicates", f"<p>{text}</p>", f'<div class="cards">{cards}</div>')


def _label(data: Labeled, row: int) -> str:
    return escape(data.names[data.labels[row]]) if data.task == "single" else "image"


def _first(count: int) -> str:
    return f"The first {_SHOWN} are shown; report.json or history.json has all." if count > _SHOWN else ""


def _card(data: Labeled, rows: list[int], caption: str) -> str:
    tags = "".join(f'<img src="{jpeg(small(data.paths[row]))}" alt="{escape(data.ids[row])}">' for row in rows)
    names = " and ".join(escape(data.ids[row]) for row in rows)
    kind = "pair" if len(rows) > 1 else "one"
    return f'<figure><div class="{kind}">{tags}</div><figcaption>{caption}<small>{names}</small></figcaption></figure>'
