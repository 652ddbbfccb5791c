"""The explorer: one HTML file in which a person hovers over a patch and sees where it looks, in every layer and head.

The file carries everything with it (attention, pictures, script) and asks nothing of a network: it can be mailed, put on a
website or opened in ten years. The page itself is `explorer.html` beside this module; here its data are computed, packed and fitted
to a size.

Attention is stored as one byte for each weight, the square root of its share of the row's maximum, with that maximum in
float32: see `encode`.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import html
import io
import json
import math
import numbers
import os
import re
import tempfile
import warnings
import webbrowser
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

from ..atomic import complete
from .maps import alti_rollout, attention_rollout, relevance_map
from .record import Recording, last_layer, record

NOTEBOOK_MB = 1.0
SIMILARITY_ERROR = 0.01
_FEWEST_LAYERS = 6
_TEMPLATE = Path(__file__).with_name("explorer.html")
_IMAGE_SIDES = (768, 512)  # longest side of a picture in the page, in pixels, of a few pictures and of many


def explorer(
    model_or_recording: Any,
    images: Any = None,
    *,
    target: Any = "auto",
    max_mb: float = 6.0,
    compare: Any = None,
    path: str | os.PathLike | None = None,
    title: str | None = None,
    **options: Any,
) -> AttentionExplorer:
    """Make an interactive page of a model's attention, in one HTML file that works without a network.

    Hover over a patch to see where it looks; click to lock it; go through layers and heads. Attention rollout from any token,
    similarity of patches, ALTI and, with a target, class relevance are further views; two pictures or two models stand side by side.

    Args:
        model_or_recording: A model, which is run on `images`, or a `Recording` of all rows of attention.
        images: What `record` takes. Goes with a model.
        target: What class relevance explains: what `record` takes, as `"predicted"` or a class, by number or name, or a list with
            one for each image. A tuple gives one map for each of its targets. `None`: no relevance. `"auto"`: the predicted class, of
            a model with a trained head. Goes with a model.
        max_mb: The largest size of the file in millions of bytes. To get below, the heads of all but the last four layers are
            averaged, then layers are left out, then queries are pooled 2 × 2, then more heads are averaged. The page says so.
        compare: A second model, run on the same pictures in the same way, or a second `Recording`, for the side beside the first.
        path: Where to save the file; `None`: nowhere yet.
        title: Heading of the page.
        **options: More options of `record`, as `layers=`, `heads="mean"`, `preprocess=` or `grid=`.

    Returns:
        An `AttentionExplorer`: `.html`, `.save(path)`, `.open()`; a notebook shows it.

    Raises:
        ValueError: The recording has no attention of all rows, the pictures do not fit into `max_mb` (once the page is made, by `.html`
            or `.save`), or what `record` raises.
        TypeError: The first argument is neither a model nor a recording, or an argument does not go with it.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> page = explorer(model, np.zeros((48, 64, 3), "uint8"), title="A black picture")
        >>> page.html[:15]
        '<!doctype html>'
    """
    if isinstance(max_mb, bool) or not isinstance(max_mb, numbers.Real) or not max_mb > 0:
        raise ValueError(f"max_mb is a positive number of megabytes. Received: {max_mb!r}")
    given = [model_or_recording] if compare is None else [model_or_recording, compare]
    recordings = [one for one in given if isinstance(one, Recording)]
    if len(recordings) == len(given):
        extra = ["images"] * (images is not None) + ["target"] * (not isinstance(target, str) or target != "auto")
        if extra or options:
            raise TypeError(
                f"A recording has all it needs; leave out {', '.join([*extra, *options])}, or give a model."
            )
    elif images is None and recordings:
        images = list(recordings[0].images)
    sources = [
        _of_recording(one) if isinstance(one, Recording) else _of_model(one, images, target, options) for one in given
    ]
    _name(sources)
    page = AttentionExplorer(sources, "Attention explorer" if title is None else str(title), float(max_mb))
    if path is not None:
        page.save(path)
    return page


class AttentionExplorer:
    """A page of attention. Made by `explorer`.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> page = explorer(model, np.zeros((32, 32, 3), "uint8"))
        >>> page._repr_html_()[:31]
        '<iframe sandbox="allow-scripts"'
    """

    def __init__(self, sources: Sequence[_Source], title: str, max_mb: float):
        self._sources = tuple(sources)
        self._title = title
        self._max_mb = max_mb
        self._packed: dict[tuple, Any] = {}
        self._made: tuple[str, tuple[str, ...]] | None = None

    @property
    def html(self) -> str:
        """The page, made when it is first asked for."""
        return self._make()[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the page says of how it was reduced."""
        return self._make()[1]

    def _make(self) -> tuple[str, tuple[str, ...]]:
        if self._made is None:
            side = _IMAGE_SIDES[sum(len(s.recording.images) for s in self._sources) > 4]
            self._made = _page(self._sources, self._title, self._max_mb, side, self._packed)
        return self._made

    def save(self, path: str | os.PathLike) -> Path:
        """Write the page to a file, which appears only when it is whole.

        Returns:
            The path.

        Raises:
            FileNotFoundError: There is no such folder.
            ValueError: The path is a folder.
        """
        path = Path(path).expanduser()
        with complete(path) as part:
            part.write_text(self.html, encoding="utf-8")
        return path

    def open(self) -> Path:
        """Show the page in the web browser, from a file in the system's folder for temporary files.

        Returns:
            The file's path. It is left there, because the browser may read it later.
        """
        path = self.save(Path(tempfile.mkdtemp(prefix="vit_keras-"), "attention.html"))
        webbrowser.open(path.resolve().as_uri())
        return path

    def __repr__(self) -> str:
        count = sum(len(s.recording.images) for s in self._sources)
        return f"<AttentionExplorer {self._title!r}: {count} {'picture' if count == 1 else 'pictures'}; .save(path) writes it>"

    def _repr_html_(self) -> str:
        """A smaller version in a frame of its own: notebooks limit how much a cell may print."""
        shown = list(self._sources)
        note = "This is a smaller version for the notebook; <code>.save(path)</code> writes the whole one."
        limit = min(NOTEBOOK_MB, self._max_mb)
        while True:
            try:
                page, _ = _page(shown, self._title, limit, 384, self._packed)
                break
            except ValueError:
                fewer = max(len(s.recording.images) for s in shown) // 2
                if not fewer:
                    return f"<p>Too large for a notebook; <code>.save(path)</code> writes it.</p><!-- {limit} MB -->"
                shown = [s.first(fewer) for s in shown]
                note = f"Only the first {fewer} of the pictures, and those in a smaller version; <code>.save(path)</code> writes all."
        note = (
            ""
            if self._made is not None and page == self._made[0]
            else f'<p style="font: 12px system-ui, sans-serif; opacity: .7">{note}</p>'
        )
        return (
            '<iframe sandbox="allow-scripts" title="Attention explorer" loading="lazy" '
            f'style="width: 100%; height: 860px; border: 0" srcdoc="{html.escape(page)}"></iframe>{note}'
        )


def encode(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Store rows of shares in one byte for each value: the square root of what part of its row's maximum it is, in 255 steps.

    Small values keep more of their precision than in linear steps. Of rows that sum to 1, half the sum of absolute errors (the total
    variation) is at most `sqrt(n * maximum) / 510 + n * maximum / 2 / 510**2` for n values; on attention of trained models it is
    0.003 on average and under 0.008 at most.

    Args:
        rows: `(..., n)`, none negative.

    Returns:
        uint8 of the same shape, and the maxima of the rows, float32 `(...)`.

    Example:
        >>> codes, maxima = encode(np.array([[0.5, 0.125, 0.0]]))
        >>> codes.tolist(), maxima.tolist()
        ([[255, 128, 0]], [0.5])
    """
    rows = np.asarray(rows, "float32")
    maxima = rows.max(axis=-1)
    divisor = np.where(maxima > 0, maxima, 1)[..., None]
    return np.rint(255 * np.sqrt(np.clip(rows / divisor, 0, 1))).astype("uint8"), maxima


def decode(codes: np.ndarray, maxima: np.ndarray) -> np.ndarray:
    """What the page reads from `encode`.

    Example:
        >>> decode(*encode(np.array([[0.5, 0.125, 0.0]]))).round(3)
        array([[0.5  , 0.126, 0.   ]], dtype=float32)
    """
    return np.square(codes.astype("float32") / 255) * maxima[..., None]


def pack(rows: np.ndarray) -> bytes:
    """`encode` and compress `(heads, queries, keys)`: gzip of the maxima, then the codes as differences to the query before.

    Neighbouring queries look at similar places, so that the differences take 4 % less.

    Example:
        >>> rows = np.random.default_rng(0).dirichlet(np.ones(5), (2, 5))
        >>> np.allclose(unpack(pack(rows), (2, 5, 5)), decode(*encode(rows)))
        True
    """
    codes, maxima = encode(rows)
    steps = np.diff(codes, axis=-2, prepend=np.zeros_like(codes[..., :1, :]))  # modulo 256
    return _gzip(maxima.astype("<f4").tobytes() + steps.tobytes())


def unpack(packed: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """The inverse of `pack`: float32 `(heads, queries, keys)`, with the error of `encode`.

    Example:
        >>> unpack(pack(np.ones((1, 2, 2))), (1, 2, 2)).tolist()
        [[[1.0, 1.0], [1.0, 1.0]]]
    """
    data = gzip.decompress(packed)
    size = 4 * shape[0] * shape[1]
    maxima = np.frombuffer(data[:size], "<f4").reshape(shape[:2])
    codes = np.add.accumulate(np.frombuffer(data[size:], "uint8").reshape(shape), axis=1, dtype="uint8")
    return decode(codes, maxima)


def _gzip(data: bytes) -> bytes:
    """Without a time stamp, so that the same data give the same file."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31, 9, zlib.Z_FILTERED)
    return packer.compress(data) + packer.flush()


# --- what is shown --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Source:
    """A recording with all maps that the page shows of it."""

    recording: Recording
    model: str
    names: list[str]
    maps: list[tuple[str, list[str], np.ndarray]]  # (key, name for each picture, (B, G))

    def first(self, count: int) -> _Source:
        """The same with only the first pictures."""
        rec = self.recording
        cut = {
            "images": rec.images[:count],
            "attention": rec.attention[:, :count],
            **{
                name: getattr(rec, name)[:count]
                for name in ("readout", "logits", "target", "features")
                if getattr(rec, name) is not None
            },
        }
        if rec.tokens is not None:
            cut["tokens"] = rec.tokens[:, :count]
        maps = [(key, names[:count], values[:count]) for key, names, values in self.maps]
        return _Source(dataclasses.replace(rec, **cut), self.model, self.names[:count], maps)


def _of_recording(rec: Recording) -> _Source:
    _check(rec)
    return _Source(rec, "", _picture_names(None, len(rec.images)), _maps([rec]))


def _of_model(model: Any, images: Any, target: Any, options: dict) -> _Source:
    if not callable(model):
        raise TypeError(f"Give a model and images, or a Recording. Received: {type(model).__name__}")
    if images is None:
        raise TypeError("A model needs images to look at: explorer(model, images).")
    if isinstance(target, str) and target == "auto":
        recordings = [_record_prediction(model, images, options)]
    else:
        targets = target if isinstance(target, tuple) and target else (target,)
        recordings = [record(model, images, target=t, **options) for t in targets]
    for rec in recordings:
        _check(rec)
    names = _picture_names(images, len(recordings[0].images))
    return _Source(recordings[0], str(getattr(model, "name", "")), names, _maps(recordings))


def _record_prediction(model: Any, images: Any, options: dict) -> Recording:
    """With the gradients of the predicted class, where there is a head and it has learned something."""
    shape = getattr(model, "output_shape", None)
    one = isinstance(shape, tuple) and len(shape) == 2
    if not one or not isinstance(last_layer(model), keras.layers.Dense) or options.get("heads") is not None:
        return record(model, images, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All gradients are zero", UserWarning)
        rec = record(model, images, target="predicted", **options)
    if rec.gradients is not None and rec.gradients.any():
        return rec
    return dataclasses.replace(rec, target=None, gradients=None, pooling_gradients=None)


def _check(rec: Recording) -> None:
    if rec.attention is None:
        raise ValueError("The recording has no attention: record with keep=('attention', 'values', 'tokens').")
    tokens = len(rec.prefix) + math.prod(rec.grid)
    if rec.attention.ndim not in (4, 5) or rec.attention.shape[-2:] != (tokens, tokens):
        raise ValueError(
            f"The explorer needs every row of attention, {tokens} × {tokens}; the recording has {rec.attention.shape}. "
            "Record with rows='all'."
        )
    if rec.heads not in (None, "mean", "max", "min"):
        raise ValueError(
            f"The recording has the heads fused by {rec.heads!r}, which is no attention: record with heads=None."
        )


def _picture_names(images: Any, count: int) -> list[str]:
    given = images if isinstance(images, (list, tuple)) else [images]
    given = given if len(given) == count else [None] * count
    return [
        Path(image).stem if isinstance(image, (str, os.PathLike)) else f"Picture {n}"
        for n, image in enumerate(given, 1)
    ]


def _name(sources: Sequence[_Source]) -> None:
    """Give models that stand side by side names that tell them apart."""
    if len(sources) == 2 and (sources[0].model == sources[1].model or not all(s.model for s in sources)):
        for source, place in zip(sources, ("first", "second")):
            source.model = f"{source.model} ({place})" if source.model else f"{place} model"


def _maps(recordings: Sequence[Recording]) -> list[tuple[str, list[str], np.ndarray]]:
    """The maps of what is in the output, with a key and a name for each picture."""
    rec = recordings[0]
    count = len(rec.images)
    found = [("output", ["Rollout"] * count, attention_rollout(rec, head_fusion=rec.heads or "mean"))]
    if rec.pooling_attention is not None:
        found.append(("pooling", ["Attention of the pooling head"] * count, rec.patches(rec.readout)))
    whole = (rec.values, rec.projections, rec.tokens)
    if rec.attention.ndim == 5 and all(array is not None for array in whole):
        found.append(("alti", ["ALTI"] * count, alti_rollout(rec)))
    for n, one in enumerate(recordings):
        if one.gradients is not None and one.heads is None and not one.exits:
            names = [f"Relevance: {_target(one, b)}" for b in range(count)]
            found.append((f"relevance{n or ''}", names, relevance_map(one)))
    return [(key, names, np.asarray(values, "float32").reshape(count, -1)) for key, names, values in found]


def _target(rec: Recording, image: int) -> str:
    return "target" if rec.target is None else _label(rec, int(rec.target[image]))


def _label(rec: Recording, number: int) -> str:
    return rec.labels[number] if rec.labels is not None and number < len(rec.labels) else f"class {number}"


def _predictions(rec: Recording, image: int, count: int = 3) -> list[tuple[str, float]]:
    """The likeliest class and others of at least 1 %, of a model that knows what its outputs are."""
    if rec.logits is None or rec.labels is None or len(rec.labels) != rec.logits.shape[-1]:
        return []
    scores = np.exp(rec.logits[image].astype("float64") - rec.logits[image].max())
    scores /= scores.sum()
    likely = [int(n) for n in np.argsort(-scores)[:count]]
    return [(_label(rec, n), round(float(scores[n]), 4)) for n in likely if n == likely[0] or scores[n] >= 0.01]


# --- fitting it to a size -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How many layers to keep, how many of those (from the last) with all heads, and whether to pool queries."""

    layers: int
    heads: int
    pooled: bool

    def kept(self, layers: int) -> list[int]:
        """Places of the layers that stay: the last one, and the rest at even steps."""
        count = min(self.layers, layers)
        return [layers - 1] if count == 1 else [round(i * (layers - 1) / (count - 1)) for i in range(count)]

    def blocks(self, layers: int) -> list[tuple[int, bool]]:
        """(place of the layer, whether with all heads)."""
        kept = self.kept(layers)
        return [(layer, n >= len(kept) - self.heads) for n, layer in enumerate(kept)]


def _plans(layers: int) -> Iterator[_Plan]:
    """From everything to as little as can be."""
    few = min(layers, _FEWEST_LAYERS)
    yield _Plan(layers, layers, False)
    yield from (_Plan(layers, heads, False) for heads in range(layers - 1, 4, -1))
    yield from (_Plan(count, 4, False) for count in range(layers, few - 1, -1))
    yield from (_Plan(few, heads, True) for heads in (4, 1, 0))
    yield from (_Plan(count, 0, True) for count in range(few - 1, 0, -1))


def _page(
    sources: Sequence[_Source], title: str, max_mb: float, side: int, packed: dict
) -> tuple[str, tuple[str, ...]]:
    """The page with as much as fits, and what it says of that."""
    template = _TEMPLATE.read_text(encoding="utf-8")
    fixed, blocks = _fixed(sources, title, side, packed)
    for plan in _plans(max(len(s.recording.layers) for s in sources)):
        notes = _notes(sources, plan, max_mb)
        meta = _meta(fixed, sources, plan, notes, title)
        budget = max_mb * 1e6 - len(_fill(template, meta, blocks, title).encode())
        attention = _pack_attention(sources, plan, budget, packed)
        if attention is not None:
            return _fill(template, meta, blocks | attention, title), tuple(notes)
    pictures = sum(len(s.recording.images) for s in sources)
    raise ValueError(
        f"{pictures} pictures do not fit into max_mb={max_mb:g}, however reduced: give more, or fewer pictures."
    )


def _fixed(sources: Sequence[_Source], title: str, side: int, packed: dict) -> tuple[dict, dict[str, bytes]]:
    """All but the attention: pictures, maps, similarities."""
    pictures, views, blocks = [], [], {}
    for s, source in enumerate(sources):
        rec = source.recording
        features = rec.features if rec.features is not None else None if rec.tokens is None else rec.tokens[-1]
        for b, image in enumerate(rec.images):
            key = ("picture", s, b, side)
            if key not in packed:
                packed[key] = _picture(image, side)
            picture = packed[key]
            if picture not in pictures:
                pictures.append(picture)
            view = {
                "source": s,
                "name": source.names[b],
                "picture": pictures.index(picture),
                "size": [int(n) for n in image.shape[:2]],
                "predictions": _predictions(rec, b),
                "maps": [{"key": key, "name": names[b]} for key, names, _ in source.maps],
                "similarity": None,
            }
            blocks[f"maps-{len(views)}"] = pack(
                np.stack([np.maximum(values[b], 0) for *_, values in source.maps])[:, None]
            )
            if features is not None:
                key = ("similarity", s, b)
                if key not in packed:
                    packed[key] = _similarity(features[b])
                view["similarity"], blocks[f"similarity-{len(views)}"] = packed[key]
            views.append(view)
    return {"pictures": pictures, "views": views}, blocks


def _meta(fixed: dict, sources: Sequence[_Source], plan: _Plan, notes: list[str], title: str) -> dict:
    described = []
    for source in sources:
        rec = source.recording
        heads = rec.attention.shape[2] if rec.attention.ndim == 5 else 1
        described.append(
            {
                "name": source.model,
                "grid": [int(n) for n in rec.grid],
                "prefix": list(rec.prefix),
                "heads": heads,
                "fused": rec.heads,
                "layers": [
                    {"n": int(rec.layers[k]), "heads": heads if full else 1} for k, full in plan.blocks(len(rec.layers))
                ],
                "pooled": plan.pooled,
            }
        )
    return {"title": title, **fixed, "sources": described, "notes": notes}


def _pack_attention(sources: Sequence[_Source], plan: _Plan, budget: float, packed: dict) -> dict[str, bytes] | None:
    """Blocks of attention, or None as soon as they are over the budget."""
    blocks, number = {}, 0
    for s, source in enumerate(sources):
        rec = source.recording
        for b in range(len(rec.images)):
            for place, (k, full) in reversed(list(enumerate(plan.blocks(len(rec.layers))))):
                key = ("attention", s, b, k, full, plan.pooled)
                if key not in packed:
                    packed[key] = pack(_rows(rec, k, b, full, plan.pooled))
                name = f"attention-{number}-{place}"
                blocks[name] = packed[key]
                budget -= len(_block(name, packed[key])) + 1  # and a new line
                if budget < 0:
                    return None
            number += 1
    return blocks


def _rows(rec: Recording, layer: int, image: int, full: bool, pooled: bool) -> np.ndarray:
    rows = rec.attention[layer, image]
    rows = rows if rows.ndim == 3 else rows[None]
    rows = rows if full else rows.mean(axis=0, keepdims=True)
    return _pool(rows, len(rec.prefix), rec.grid) if pooled else rows


def _pool(rows: np.ndarray, prefix: int, grid: tuple[int, int]) -> np.ndarray:
    """Average the queries of patches 2 × 2, at the far edges of an odd grid over fewer."""
    patches = rows[:, prefix:].reshape(len(rows), *grid, -1)
    for axis in (1, 2):
        starts = np.arange(0, patches.shape[axis], 2)
        counts = np.diff(np.append(starts, patches.shape[axis]))
        patches = np.add.reduceat(patches, starts, axis=axis) / np.expand_dims(
            counts, [a for a in range(4) if a != axis]
        )
    return np.concatenate([rows[:, :prefix], patches.reshape(len(rows), -1, rows.shape[-1])], axis=1)


def _notes(sources: Sequence[_Source], plan: _Plan, max_mb: float) -> list[str]:
    """What was left out, in sentences."""
    notes = []
    for source in sources:
        rec = source.recording
        whose = f"{source.model}: " if len(sources) > 1 else ""
        blocks = plan.blocks(len(rec.layers))
        averaged = [rec.layers[k] for k, full in blocks if not full]
        dropped = sorted(set(rec.layers) - {rec.layers[k] for k, _ in blocks})
        if averaged and rec.attention.ndim == 5 and rec.attention.shape[2] > 1:
            notes.append(f"{whose}heads are averaged in {_listed(averaged)}.")
        if dropped:
            notes.append(f"{whose}{_listed(dropped)} left out; rollout from a token goes through the others only.")
        if plan.pooled:
            notes.append(f"{whose}patches look in groups of 2 × 2: the attention of neighbours is averaged.")
    if notes:
        notes.append(f"That is to keep the page under {max_mb:g} MB; explorer(…, max_mb=…) keeps more.")
    return [
        note[0].upper() + note[1:] if not note.startswith(tuple(s.model for s in sources if s.model)) else note
        for note in notes
    ]


def _listed(layers: Sequence[int]) -> str:
    """Numbers of layers with runs joined: "layers 0–3, 5"."""
    runs: list[list[int]] = []
    for n in layers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    joined = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {joined}"


def _similarity(tokens: np.ndarray) -> tuple[dict, bytes]:
    """Cosines of all pairs of tokens, as principal components of the tokens or as a matrix, whichever is smaller."""
    tokens = tokens.astype("float64")
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=-1, keepdims=True), 1e-12)
    cosines = unit @ unit.T
    powers, axes = np.linalg.eigh(cosines)
    components = (axes * np.sqrt(np.maximum(powers, 0)))[:, ::-1]
    low, high = 1, len(tokens)
    while low < high:  # the fewest components that are enough
        width = (low + high) // 2
        low, high = (
            (low, width) if _reduced(components[:, :width], cosines)[2] <= SIMILARITY_ERROR else (width + 1, high)
        )
    codes, scale, error = _reduced(components[:, :low], cosines)
    if error <= SIMILARITY_ERROR and low < len(tokens):
        return {"kind": "features", "width": low, "error": round(error, 4)}, _gzip(scale.tobytes() + codes.tobytes())
    matrix = np.rint((np.clip(cosines, -1, 1) + 1) * 127.5).astype("uint8")
    return {"kind": "matrix", "width": len(tokens), "error": 0.004}, _gzip(matrix.tobytes())


def _reduced(components: np.ndarray, cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Components in 8 bits with the scale of each, and the largest error of a cosine."""
    scale = np.maximum(np.abs(components).max(axis=0), 1e-12).astype("<f4") / np.float32(127)
    codes = np.rint(components / scale).astype("int8")
    return codes, scale, float(np.abs((codes * scale) @ (codes * scale).T - cosines).max())


def _picture(image: np.ndarray, side: int) -> str:
    """A picture as a data URI, made smaller if it is larger than `side`."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


# --- the file -------------------------------------------------------------------------------------------------------


def _fill(template: str, meta: dict, blocks: dict[str, bytes], title: str) -> str:
    """Put the data into the template, all places at once, so that no data are taken for a place."""
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[1] for tag in ("style", "script"))
    places = {
        "title": html.escape(title),
        "policy": (
            f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
            "base-uri 'none'; form-action 'none'"
        ),
        "meta": _json(meta),
        "blocks": "\n".join(_block(name, data) for name, data in blocks.items()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], template)


def _block(name: str, data: bytes) -> str:
    return f'<script type="application/octet-stream" id="{name}">{base64.b64encode(data).decode()}</script>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the names in it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda c: f"\\u{ord(c[0]):04x}", text)
