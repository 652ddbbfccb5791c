"""Charts of a report, drawn by matplotlib as SVG; without matplotlib, which is an extra, a report has none."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._internal.html_page import escape
from ..._internal.imports import INSTALL

__all__: list[str] = []

_ACCENT = "#7a2382"
"""The light accent of the page; the page replaces it in its dark theme."""

_KINDS = {
    "train": ("training", "#7f7f7f"),
    "val": ("held out", _ACCENT),
    "rate": ("of the last step", "#7f7f7f"),
    "before": ("before calibration", "#7f7f7f"),
    "after": ("after", _ACCENT),
}
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "report", "font.size": 12, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "legend.frameon": False}


def svg(title: str, draw: Callable[[Any], None], *, square: bool = False) -> str:
    """Return what `draw` puts on the axes of matplotlib, as a figure of a page in light or dark."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return f"<p>{escape(f'{title}: the chart needs Matplotlib, {INSTALL}')}</p>"
    with matplotlib.rc_context(_STYLE):
        figure, file = Figure(figsize=(5, 5) if square else (6.4, 3.4), layout="constrained"), io.StringIO()
        draw(axes := figure.add_subplot())
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>| xmlns(:\w+)?=\"[^\"]*\"", "", file.getvalue(), flags=re.DOTALL
    )
    text = re.sub(r' style="([^"]*)"', _attributes, text)  # the policy of the page allows no styles of others
    text = text[text.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    for black in ("#000000", "#262626"):
        text = text.replace(black, "currentColor")
    text = text.replace(_ACCENT, "var(--accent)")
    return f"<figure><h3>{escape(title)}</h3>{text}</figure>"


def _attributes(style: re.Match[str]) -> str:
    pairs = [
        part.partition(":") for part in style[1].split(";") if part.strip() and not part.strip().startswith("font")
    ]
    return "".join(f' {name.strip()}="{value.strip()}"' for name, _, value in pairs)


def history_chart(title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Return a chart of values over epochs."""

    def draw(axes: Any) -> None:
        for kind, values in lines.items():
            name, color = _KINDS[kind]
            axes.plot(range(1, len(values) + 1), values, "o-", color=color, label=name, markersize=3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("epoch")

    return svg(title, draw)


def reliability_chart(before: Any, after: Any) -> str:
    """Return a reliability diagram: the accuracy of a model by its confidence, before and after calibration."""

    def draw(axes: Any) -> None:
        axes.axline((0, 0), slope=1, color="#000000", linestyle=":")
        shares = before.counts / before.counts.max() / 8
        axes.bar(
            np.arange(len(shares)) / len(shares), shares, 0.9 / len(shares), align="edge", alpha=0.25, color="#7f7f7f"
        )
        for kind, shown in (("before", before), ("after", after)):
            known = shown.counts > 0
            name, color = _KINDS[kind]
            axes.plot(shown.sure[known], shown.right[known], "o-", color=color, label=name, markersize=3)
        axes.set(xlabel="how sure", ylabel="how often right", xlim=(0, 1.02), ylim=(0, 1.02))

    return svg("Reliability", draw, square=True)


def learning_curve_chart(counts: np.ndarray, scores: np.ndarray) -> str:
    """Return a chart of the accuracy over the number of images, with the deviation between draws `(sizes, draws)`."""

    def draw(axes: Any) -> None:
        axes.errorbar(counts, scores.mean(axis=1), scores.std(axis=1), fmt="o-", color=_KINDS["val"][1], capsize=3)
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{count:,}" for count in counts], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("images to learn from")

    return svg("Accuracy", draw)
