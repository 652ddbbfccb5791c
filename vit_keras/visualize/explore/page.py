"""The page itself: the template with images, maps and as much attention as fits."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..._internal import html_page
from .fit import Plan, notes_on, plans, rows_of
from .pack import pack, pack_similarity
from .source import Source, attention_of, predictions

_TEMPLATE = Path(__file__).with_name("explorer.html")


def make_page(
    sources: Sequence[Source], title: str, max_mb: float, side: int, packed: dict[Any, Any]
) -> tuple[str, tuple[str, ...]]:
    """Return the page with as much as fits, and what it says of the rest."""
    template = _TEMPLATE.read_text(encoding="utf-8")
    fixed, blocks = _fixed(sources, side, packed)
    for plan in plans(max(len(s.recording.layers) for s in sources)):
        notes = notes_on(sources, plan, max_mb)
        meta = _meta(fixed, sources, plan, notes, title)
        budget = max_mb * 1e6 - len(_fill(template, meta, blocks, title).encode())
        attention = _pack_attention(sources, plan, budget, packed)
        if attention is not None:
            return _fill(template, meta, blocks | attention, title), tuple(notes)
    pictures = sum(len(s.recording.images) for s in sources)
    raise ValueError(
        f"{pictures} images do not fit into max_mb={max_mb:g}, even at their smallest. "
        "Pass a larger max_mb=, or fewer images."
    )


def _fixed(sources: Sequence[Source], side: int, packed: dict[Any, Any]) -> tuple[dict[Any, Any], dict[str, bytes]]:
    """Return all but the attention: images, maps, similarities."""
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
                "predictions": predictions(source, b),
                "maps": [{"key": key, "name": names[b]} for key, names, _ in source.maps],
                "similarity": False,
            }
            blocks[f"maps-{len(views)}"] = pack(
                np.stack([np.maximum(values[b], 0) for *_, values in source.maps])[:, None]
            )
            if features is not None:
                key = ("similarity", s, b)
                if key not in packed:
                    packed[key] = pack_similarity(features[b])
                view["similarity"], blocks[f"similarity-{len(views)}"] = True, packed[key]
            views.append(view)
    return {"pictures": pictures, "views": views}, blocks


def _meta(fixed: dict[Any, Any], sources: Sequence[Source], plan: Plan, notes: list[str], title: str) -> dict[Any, Any]:
    described = []
    for source in sources:
        rec, attention = source.recording, attention_of(source.recording)
        heads = attention.shape[2] if attention.ndim == 5 else 1
        described.append(
            {
                "name": source.model,
                "grid": [int(n) for n in rec.grid],
                "prefix": list(rec.prefix),
                "heads": heads,
                "fused": rec.head_fusion,
                "layers": [
                    {"n": int(rec.layers[k]), "heads": heads if full else 1} for k, full in plan.blocks(len(rec.layers))
                ],
            }
        )
    return {"title": title, **fixed, "sources": described, "notes": notes}


def _pack_attention(
    sources: Sequence[Source], plan: Plan, budget: float, packed: dict[Any, Any]
) -> dict[str, bytes] | None:
    """Return the blocks of attention, or None as soon as they exceed the budget of bytes."""
    blocks, number = {}, 0
    for s, source in enumerate(sources):
        rec = source.recording
        for b in range(len(rec.images)):
            for place, (k, full) in reversed(list(enumerate(plan.blocks(len(rec.layers))))):
                key = ("attention", s, b, k, full)
                if key not in packed:
                    packed[key] = pack(rows_of(rec, k, b, full))
                name = f"attention-{number}-{place}"
                blocks[name] = packed[key]
                budget -= len(_block(name, packed[key])) + 1  # and a new line
                if budget < 0:
                    return None
            number += 1
    return blocks


def _picture(image: np.ndarray, side: int) -> str:
    """Return an image as a data URI, reduced if it is larger than `side`."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85, optimize=True)
    return html_page.data_uri(file.getvalue(), "image/jpeg")


def _fill(template: str, meta: dict[Any, Any], blocks: dict[str, bytes], title: str) -> str:
    written = "\n".join(_block(name, data) for name, data in blocks.items())
    return html_page.fill(
        template, {"title": html_page.escape(title), "meta": html_page.to_json(meta), "blocks": written}
    )


def _block(name: str, data: bytes) -> str:
    return f'<script type="application/octet-stream" id="{name}">{base64.b64encode(data).decode()}</script>'
