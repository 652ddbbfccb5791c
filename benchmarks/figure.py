"""Draw the figure of the README from the JSON of a run. Needs Matplotlib."""

from __future__ import annotations

import math
import os
import textwrap
from typing import Any

from . import report
from .suites import LIBRARIES, OURS

BLUE, GREY, LIGHT, INK = "#0072B2", "#8C8C8C", "#C4C4C4", "#333333"  # the blue of Okabe and Ito
SHADES = {True: ("#004B76", "#0072B2", "#56A5D8", "#A8D3EE"), False: ("#5C5C5C", "#8C8C8C", "#B4B4B4", "#DADADA")}
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch", "openvino": "OpenVINO"}
NAMES = {
    "vit-keras-0.2": "vit-keras 0.2",
    "keras-hub": "KerasHub",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
GROUPS = ((OURS,), ("vit-keras-0.2", "keras-hub", "tfvit"), ("timm", "transformers"), ("onnxruntime", "openvino"))
FASTEST = ("compiled", "no_grad", "eager", "session", "train_on_batch", "predict")  # the first there is, drawn as a bar
MARKS = {"predict": ("o", "predict()"), "call": ("X", "model(x)")}  # drawn over them
STAGES = {"import": "import", "build": "build", "load": "load weights", "predict": "predict"}
STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.edgecolor": LIGHT,
    "axes.axisbelow": True,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK),
}
SMALL = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
SMALL["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}

Key = tuple[str, str]  # library, backend


def draw(results: dict[str, Any], path: str | os.PathLike) -> None:
    """Draw one panel for each of inference, training and start-up that the results have.

    The first cell of a suite is drawn. A row is a library on a backend, and bars start at zero. Speeds are paired
    medians, as in the tables, because the speed of the machine may change between rounds.

    Args:
        results: What a run has written.
        path: Where to put the figure; its name says the format.

    Raises:
        ValueError: The results have none of the three suites.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = {suite: cell for suite in PANELS if (cell := first(results, suite))}
    if not cells:
        raise ValueError(f"There is no cell of the suites {', '.join(PANELS)} in the results.")
    places = rows(list(cells.values()))
    height = 0.29 * (max(places.values()) + 1) + 1.65
    caption = textwrap.fill(report.describe(results).replace("\n", ". "), 160)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, len(cells), figsize=(10, height), sharey=True, squeeze=False)
        for axis, (suite, cell) in zip(axes[0], cells.items()):
            _frame(axis, places)
            PANELS[suite](axis, cell, places)
            if axis.get_legend_handles_labels()[0]:
                below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.65 / height)}
                axis.legend(**below, ncol=2, handlelength=1.2, columnspacing=1)
        figure.text(0.01, 0.1 / height, caption, fontsize=7.5, color="#666666", va="bottom", linespacing=1.35)
        figure.tight_layout(rect=(0, 0.17 * (caption.count("\n") + 2) / height, 1, 1), w_pad=1.5)
        figure.savefig(path, dpi=160)
        pyplot.close(figure)


def first(results: dict[str, Any], suite: str) -> dict[str, Any] | None:
    """Return the first cell of a suite, or `None`."""
    return next((cell for cell in results["cells"] if cell["suite"] == suite), None)


def rows(cells: list[dict[str, Any]]) -> dict[Key, float]:
    """Return the vertical position of each library and backend in the cells, down from 0, group by group."""
    seen = {tuple(name.split("/")[:2]) for cell in cells for name in cell["contenders"]}
    places: dict[Key, float] = {}
    y = 0.0
    for group in GROUPS:
        members = [
            (lib.name, lib.backend) for lib in LIBRARIES if lib.name in group and (lib.name, lib.backend) in seen
        ]
        for key in members:
            places[key] = y
            y += 1
        y += 0.5 if members else 0
    return places


def label(key: Key) -> str:
    """Return a label such as `KerasHub · JAX`, without the backend or precision of libraries that have only one."""
    library, backend = key
    several = library in (OURS, "vit-keras-0.2", "keras-hub", "tfvit", "openvino")
    return NAMES.get(library, library) + (f" · {BACKENDS.get(backend, backend)}" if several else "")


def _frame(axis, places: dict[Key, float]) -> None:
    axis.set_yticks(list(places.values()), [label(key) for key in places])
    axis.set_ylim(max(places.values()) + 0.6, -0.6)
    for text, (library, _) in zip(axis.get_yticklabels(), places):
        text.set_color(BLUE if library == OURS else INK)
        text.set_fontweight("bold" if library == OURS else "normal")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(length=0)
    axis.grid(axis="x", color="#E6E6E6", linewidth=0.8)


def _of(cell: dict[str, Any], key: Key) -> dict[str, dict[str, Any]]:
    """Return the contenders of a row, `{style: result}`."""
    return {name.split("/")[2]: r for name, r in cell["contenders"].items() if tuple(name.split("/")[:2]) == key}


def _say_why_not(axis, cell: dict[str, Any], key: Key, y: float, failed: bool) -> None:
    """Write in place of a bar why there is none."""
    library = next(each for each in LIBRARIES if (each.name, each.backend) == key)
    cannot = f"no {cell['suite']}" if cell["suite"] not in library.styles else "not measured"
    axis.annotate("failed" if failed else cannot, (0, y), (4, 0), color=GREY, **SMALL)


def _speeds(axis, cell: dict[str, Any], places: dict[Key, float]) -> None:
    """Draw speeds relative to the first contender: bars, their quartiles, and marks for other ways to call."""
    working = {name: r for name, r in cell["contenders"].items() if "error" not in r and not name.startswith("gemm/")}
    base = next(name for name in working if name.split("/")[2] in FASTEST)
    times = working[base]["seconds"]
    ends = [1.0]
    for key, y in places.items():
        styles = _of(cell, key)
        fast = next((styles[s] for s in FASTEST if s in styles), None)
        if fast is None or "error" in fast:
            _say_why_not(axis, cell, key, y, failed=bool(fast))
            continue
        speed, *quartiles = report.paired(times, fast["seconds"])
        axis.barh(y, speed, 0.74, color=_colour(key))
        axis.plot(quartiles, [y, y], color=INK, linewidth=1.2, solid_capstyle="butt")
        others = [s for s in MARKS if "error" not in styles.get(s, {"error": ""})]
        marks = {s: report.paired(times, styles[s]["seconds"])[0] for s in others}
        for style, other in marks.items():
            axis.plot(other, y, MARKS[style][0], color=INK, markersize=5, markerfacecolor="white", markeredgewidth=1)
        ends.append(max(speed, *quartiles, *marks.values()))
        axis.annotate(f"{speed:.2f}", (ends[-1], y), (5, 0), **SMALL)
    limit = _limit(cell, times)
    if limit == limit:
        axis.axvline(limit, color=INK, linewidth=1, linestyle=(0, (4, 2)), label="matrix products alone")
        ends.append(limit)
    axis.set_xlim(0, 1.13 * max(ends))
    axis.set_xlabel(f"speed (1 = {report.digits(cell['batch'] / report.minimum(times))} images/s)")


def _limit(cell: dict[str, Any], times: report.Seconds) -> float:
    """Return the speed of the matrix products alone, relative to the contender with these times."""
    speeds = []
    for name, result in cell["contenders"].items():
        if name.startswith("gemm/") and "error" not in result:
            scale = cell["gflop"] / result["gflop"]
            speeds.append(report.paired(times, [s and s * scale for s in result["seconds"]])[0])
    return max(speeds, default=math.nan)


def _inference(axis, cell: dict[str, Any], places: dict[Key, float]) -> None:
    _speeds(axis, cell, places)
    axis.set_title(f"Inference: {cell['title']}", loc="left")
    for style, (mark, said) in MARKS.items():
        if any(name.endswith("/" + style) for name in cell["contenders"]):
            axis.plot([], [], mark, color=INK, markersize=5, markerfacecolor="white", linestyle="none", label=said)


def _training(axis, cell: dict[str, Any], places: dict[Key, float]) -> None:
    _speeds(axis, cell, places)
    axis.set_title(f"Training: {cell['title']}", loc="left")


def _startup(axis, cell: dict[str, Any], places: dict[Key, float]) -> None:
    """Draw stacked bars of the stages of a start, and the time of stock Keras layers on the same backend."""
    for key, y in places.items():
        result = next(iter(_of(cell, key).values()), None)
        if result is None or "error" in result:
            _say_why_not(axis, cell, key, y, failed=bool(result))
            continue
        stages, left = _shortest(result), 0.0
        for stage, shade in zip(STAGES, SHADES[key[0] == OURS]):
            axis.barh(y, stages.get(stage, 0), 0.74, left=left, color=shade)
            left += stages.get(stage, 0)
        bare = _of(cell, (report.BARE, key[1])).get("weights.h5", {})
        least = sum(_shortest(bare).values()) if bare.get("stages") and key[0] in GROUPS[0] + GROUPS[1] else 0
        if least:
            axis.plot([least, least], [y - 0.45, y + 0.45], color="#D55E00", linewidth=2, solid_capstyle="butt")
        axis.annotate(report.digits(left), (max(left, least), y), (5, 0), **SMALL)
    for stage, shade in zip(STAGES.values(), SHADES[False]):
        axis.barh(0, 0, color=shade, label=stage)
    axis.plot([], [], color="#D55E00", linewidth=2, label="stock Keras layers")
    axis.set_xlim(0, 1.13 * axis.dataLim.xmax)
    axis.set_xlabel("seconds")
    axis.set_title(f"Import to first result: {cell['model']}", loc="left")


def _shortest(result: dict[str, Any]) -> dict[str, float]:
    stages = min(result["stages"], key=lambda start: start["total"])
    return {stage: stages[stage] for stage in STAGES if stage in stages}


def _colour(key: Key) -> str:
    return BLUE if key[0] == OURS else LIGHT if key[0] in GROUPS[3] else GREY


PANELS = {"inference": _inference, "training": _training, "startup": _startup}
