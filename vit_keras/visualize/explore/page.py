"""The page itself: the template with pictures, maps and as much attention as fits."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .fit import _notes, _Plan, _plans, _rows
from .pack import _similarity, pack
from .source import _predictions, _Source

_TEMPLATE = Path(__file__).with_name("explorer.html")


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


def _picture(image: np.ndarray, side: int) -> str:
    """A picture as a data URI, made smaller if it is larger than `side`."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


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
