"""Draw the figure of the benchmarks from the JSON of a run. Needs Matplotlib."""

from __future__ import annotations

import os
import statistics
from typing import Any

from . import report
from .suites import LIBRARIES, OURS

ACCENT, GREY, LIGHT, INK = "#7A2382", "#8C8C8C", "#DDDDDD", "#333333"
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.edgecolor": LIGHT,
    "axes.axisbelow": True,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK),
}
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
NAMES = {"vit-keras-0.2": "vit-keras 0.2", "keras-hub": "KerasHub"}
COMPARED = (OURS, "vit-keras-0.2", "keras-hub", "tfvit", "timm", "transformers")
FASTEST = ("compiled", "no_grad", "eager", "train_on_batch")
WAYS = {"model(image)": ("call", "eager"), "model.predict(image)": ("predict",), "compiled by hand": FASTEST[:2]}
LOOKS = {"model(image)": ("o", -0.25), "model.predict(image)": ("s", 0.0), "compiled by hand": ("^", 0.25)}
"""The mark of a way to call, and how far it is below the middle of a row."""

Key = tuple[str, str]  # library, backend


def draw(results: dict[str, Any], path: str | os.PathLike) -> None:
    """Draw a panel each for inference, training and start-up, with a row for each library and backend.

    The first cell of a suite is drawn: the median over its rounds.

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
    keys = [(each.name, each.backend) for name in COMPARED for each in LIBRARIES if each.name == name]
    keys = [key for key in keys if key[1] != "openvino" and any(_of(cell, key) for cell in cells.values())]
    with pyplot.rc_context(STYLE):
        size = (2.6 * len(cells) + 1.6, 0.25 * len(keys) + 1.5)
        figure, axes = pyplot.subplots(1, len(cells), figsize=size, sharey=True, squeeze=False, layout="constrained")
        for axis, (suite, cell) in zip(axes[0], cells.items()):
            PANELS[suite](axis, cell, keys)
            axis.set_xlim(left=0)
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.tick_params(length=0)
            axis.grid(axis="x", color=LIGHT, linewidth=0.8)
        axes[0, 0].set_yticks(range(len(keys)), [label(key) for key in keys])
        axes[0, 0].set_ylim(len(keys) - 0.5, -0.5)
        for text, (library, _) in zip(axes[0, 0].get_yticklabels(), keys):
            text.set_fontweight("bold" if library == OURS else "normal")
        if any(handles := axes[0, 0].get_legend_handles_labels()):
            figure.legend(*handles, loc="outside lower center", ncol=len(WAYS))
        figure.savefig(path, dpi=200)
        pyplot.close(figure)


def first(results: dict[str, Any], suite: str) -> dict[str, Any] | None:
    """Return the first cell of a suite, or `None`."""
    return next((cell for cell in results["cells"] if cell["suite"] == suite), None)


def label(key: Key) -> str:
    """Return a label such as `KerasHub, JAX`."""
    library, backend = key
    return f"{NAMES.get(library, library)}, {BACKENDS.get(backend, backend)}"


def _of(cell: dict[str, Any], key: Key) -> dict[str, dict[str, Any]]:
    """Return the contenders of a row that worked, `{way to call: result}`."""
    found = {name.split("/")[2]: r for name, r in cell["contenders"].items() if tuple(name.split("/")[:2]) == key}
    return {way: result for way, result in found.items() if "error" not in result}


def _rate(cell: dict[str, Any], result: dict[str, Any]) -> float:
    return cell["batch"] / statistics.median(each for each in result["seconds"] if each)


def _inference(axis: Any, cell: dict[str, Any], keys: list[Key]) -> None:
    for way, styles in WAYS.items():
        mark, below = LOOKS[way]
        for y, key in enumerate(keys):
            results = _of(cell, key)
            if found := next((results[style] for style in styles if style in results), None):
                color = ACCENT if key[0] == OURS else GREY
                axis.plot(_rate(cell, found), y + below, mark, color=color, markersize=5)
        axis.plot([], [], mark, color=INK, markersize=5, label=way)
    axis.set(title=f"Inference: {cell['title']}", xlabel="images per second")


def _bars(axis: Any, values: list[float | None], keys: list[Key]) -> None:
    for y, (value, key) in enumerate(zip(values, keys)):
        axis.barh(y, value or 0, 0.6, color=ACCENT if key[0] == OURS else GREY)
        axis.annotate(
            report.digits(value) if value else "–", (value or 0, y), (3, 0), textcoords="offset points", va="center"
        )
    axis.set_xlim(right=1.18 * max(filter(None, values)))


def _training(axis: Any, cell: dict[str, Any], keys: list[Key]) -> None:
    rows = [_of(cell, key) for key in keys]
    found = [next((results[way] for way in FASTEST if way in results), None) for results in rows]
    _bars(axis, [result and _rate(cell, result) for result in found], keys)
    axis.set(title=f"Training: {cell['title']}", xlabel="images per second")


def _startup(axis: Any, cell: dict[str, Any], keys: list[Key]) -> None:
    found = [next(iter(_of(cell, key).values()), None) for key in keys]
    _bars(axis, [result and min(start["total"] for start in result["stages"]) for result in found], keys)
    axis.set(title=f"From start to first prediction: {cell['model']}", xlabel="seconds")


PANELS = {"inference": _inference, "training": _training, "startup": _startup}
