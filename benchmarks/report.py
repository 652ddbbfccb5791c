"""Compute statistics and tables from the JSON of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from .suites import OURS

Seconds = Sequence[float | None]
BARE = "bare-keras"
SHOWN = ("keras", "tensorflow", "tensorflow_cpu", "jax", "torch", "vit-keras", "keras-hub", "tfvit", "timm")
SHOWN += ("transformers", "onnxruntime", "openvino", "numpy")


def minimum(seconds: Seconds) -> float:
    """Return the shortest of the times, NaN if there is none."""
    return min((s for s in seconds if s is not None), default=math.nan)


def paired(peer: Seconds, ours: Seconds) -> tuple[float, float, float]:
    """Return the ratio of two contenders' times, paired by round, so that a slow machine affects both.

    Args:
        peer: One time per round, `None` where it did not take part.
        ours: The times of the contender that it is compared with.

    Returns:
        The median and the quartiles of `peer / ours` over the rounds that have both; NaN if there are none.

    Example:
        >>> paired([2.0, 9.0, None], [1.0, 3.0, 1.0])
        (2.5, 2.0, 3.0)
    """
    ratios = sorted(p / o for p, o in zip(peer, ours) if p is not None and o is not None)
    if not ratios:
        return math.nan, math.nan, math.nan
    return statistics.median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


def reference(name: str, names: Sequence[str]) -> str | None:
    """Return our contender that another one is compared with: the same backend and style, or the nearest.

    PyTorch libraries are compared with ours on PyTorch without gradients, the others with ours compiled on TensorFlow.

    Example:
        >>> reference("timm/torch/eager", ["vit_keras/tensorflow/compiled", "vit_keras/torch/no_grad"])
        'vit_keras/torch/no_grad'
    """
    _, backend, style = name.split("/")
    ours = [n for n in names if n.startswith(OURS + "/")]
    same_backend = [n for n in ours if n.split("/")[1] == backend]
    wanted = [f"{OURS}/{backend}/{style}", *same_backend[:1], *ours[:1]]
    return next((n for n in wanted if n in ours), None)


def limit(cell: dict[str, Any]) -> float:
    """Return the best rate of a matrix product in a cell, in GFLOP/s; NaN if there is none."""
    rates = [
        result["gflop"] / minimum(result["seconds"])
        for name, result in cell["contenders"].items()
        if name.startswith("gemm/") and "error" not in result
    ]
    return max(rates, default=math.nan)


def rows(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a cell's table, the fastest contender first, failed ones last.

    Returns:
        For each contender `name` and `error`, or `name`, `seconds` (the minimum), `reference`, `ratio` (median and
        quartiles), `share` of the limit, `images` per second, `memory`, `first`.
    """
    found = {n: r for n, r in cell["contenders"].items() if not n.startswith("gemm/")}
    working = {n: r for n, r in found.items() if "error" not in r}
    images = cell["images"] if cell["suite"] == "features" else cell["batch"]
    table = []
    for name, result in working.items():
        seconds, against = minimum(result["seconds"]), reference(name, list(working))
        table.append(
            {
                "name": name,
                "seconds": seconds,
                "reference": against,
                "ratio": paired(result["seconds"], working[against]["seconds"]) if against else (math.nan,) * 3,
                "share": cell["gflop"] / seconds / limit(cell),
                "images": images / seconds,
                "memory": result["memory"],
                "first": result["first"],
            }
        )
    table.sort(key=lambda row: row["seconds"])
    return table + [{"name": n, "error": r["error"]} for n, r in found.items() if n not in working]


def startup_rows(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the suite `startup`.

    A row has the least seconds of each stage and of the `total`. Compared with stock Keras layers on the same backend,
    it has the `ratio` of the totals and the additional seconds of the import, `import_more`.
    """
    table = []
    for name, result in cell["contenders"].items():
        if "error" in result:
            continue
        totals = [stages["total"] for stages in result["stages"]]
        bare = cell["contenders"].get(f"{BARE}/{name.split('/')[1]}/weights.h5", {}).get("stages", [])
        stages = {s: min(start[s] for start in result["stages"]) for s in result["stages"][0]}
        more = [start["import"] - least["import"] for start, least in zip(result["stages"], bare)]
        table.append(
            {
                "name": name,
                "ratio": paired(totals, [start["total"] for start in bare]),
                "import_more": statistics.median(more) if more else math.nan,
                "memory": result["memory"],
                **stages,
            }
        )
    table.sort(key=lambda row: row["total"])
    return table + [{"name": n, "error": r["error"]} for n, r in cell["contenders"].items() if "error" in r]


def table(cell: dict[str, Any]) -> str:
    """Return a cell as a Markdown table with a title."""
    make = _startup_table if cell["suite"] == "startup" else _table
    return f"### {cell['suite'].capitalize()}: {cell['title']}\n\n{make(cell)}"


def _table(cell: dict[str, Any]) -> str:
    header = [
        "contender",
        "min ms",
        "× ours",
        "quartiles",
        "ours: vit_keras/…",
        "images/s",
        "of limit",
        "peak MB",
        "first s",
    ]
    lines = []
    for row in rows(cell):
        if "error" in row:
            lines.append([row["name"], "failed: " + _cut(row["error"])])
            continue
        median, low, high = row["ratio"]
        ours = {row["name"]: "itself", None: "none"}.get(row["reference"])
        lines.append(
            [
                row["name"],
                digits(1000 * row["seconds"]),
                "" if ours else _number(median, ".2f"),
                "" if ours else f"{_number(low, '.2f')}–{_number(high, '.2f')}",
                ours or row["reference"].partition("/")[2],
                digits(row["images"]),
                _number(row["share"], ".2f"),
                _number(row["memory"], ".0f"),
                digits(row["first"]),
            ]
        )
    note = f"{cell['gflop']:.2f} GFLOP a call"
    if not math.isnan(limit(cell)):
        note += f"; the limit is the best float32 matrix product in these rounds, {limit(cell):.0f} GFLOP/s"
    return _markdown(header, lines) + f"\n\n{note}."


def _startup_table(cell: dict[str, Any]) -> str:
    header = [
        "contender",
        "total s",
        "× bare Keras",
        "import s",
        "more than keras",
        "build s",
        "load s",
        "predict s",
        "peak MB",
    ]
    lines = []
    for row in startup_rows(cell):
        if "error" in row:
            lines.append([row["name"], "failed: " + _cut(row["error"])])
            continue
        bare = row["name"].startswith(BARE)
        stages = [_number(row.get(stage, math.nan), ".2f") for stage in ("import", "build", "load", "predict")]
        stages.insert(1, "" if bare else _number(row["import_more"], "+.2f"))
        ratio = "" if bare else _number(row["ratio"][0], ".2f")
        lines.append([row["name"], _number(row["total"], ".2f"), ratio, *stages, _number(row["memory"], ".0f")])
    return _markdown(header, lines) + f"\n\nThe least of {cell['rounds']} fresh processes, stage by stage."


def _markdown(header: list[str], lines: list[list[str]]) -> str:
    short = [header, *(line for line in lines if len(line) == len(header))]
    widths = [max(len(line[i]) for line in short) for i in range(len(header))]
    widths[0] = max(len(line[0]) for line in [header, *lines])

    def row(line: list[str]) -> str:
        padded = [line[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(line[1:], widths[1:])]
        padded += [""] * (len(header) - len(padded))
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "-" * (widths[0] + 2) + "|" + "|".join("-" * (width + 1) + ":" for width in widths[1:]) + "|"
    return "\n".join([row(header), rule, *map(row, lines)])


def _number(value: float, spec: str) -> str:
    return "–" if value is None or math.isnan(value) else format(value, spec)


def digits(value: float) -> str:
    """Return a number with three significant digits; a dash for NaN.

    Example:
        >>> digits(1234.5), digits(12.345), digits(1.2345)
        ('1234', '12.3', '1.23')
    """
    return _number(value, ".0f" if value >= 100 else ".1f" if value >= 10 else ".2f")


def _cut(text: str, length: int = 120) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= length else text[: length - 1] + "…"


def describe(results: dict[str, Any]) -> str:
    """Return the machine and the versions in two lines."""
    machine = results["machine"]
    versions: dict[str, set[str]] = {}
    for packages in results["environments"].values():
        for name, version in packages.items():
            if name.lower() in SHOWN:
                versions.setdefault(name.lower().replace("tensorflow_cpu", "tensorflow"), set()).add(
                    version.split("+")[0]
                )
    said = ", ".join(f"{name} {'/'.join(sorted(v))}" for name, v in sorted(versions.items()))
    memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores{memory}, {machine['system']}, Python {machine['python']}, "
        f"{results['date']}\n{said}"
    )
