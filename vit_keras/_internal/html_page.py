"""HTML pages in one file, without network: a template, its places, and a content security policy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["data_uri", "escape", "fill", "picture_page", "to_json"]


def picture_page(
    title: str, footer: str, *, connect: str = "'none'", blocks: str = "", modules: Sequence[str] = ()
) -> str:
    """Return a page that takes an image and shows what a model sees in it."""
    # The server answers the image (`predict`), unless a module sets `window.ask`, a function that takes the file and
    # resolves to the same answer. Modules run in order when the page is complete, and may use WebAssembly.
    for text in modules:
        if re.search("<!--|</?script", text, re.IGNORECASE):
            raise ValueError("A script that has '<!--', '<script' or '</script' in it cannot be put into a page.")
    template = Path(__file__).with_name("picture_page.html").read_text(encoding="utf-8")
    elements = "\n".join([blocks, *(f'<script type="module">{text}</script>' for text in modules)])
    places = {"title": escape(title), "footer": footer, "scripts": elements}
    allowed = [*map(_hash, modules), *(["'wasm-unsafe-eval'"] if modules else [])]
    return fill(template, places, connect, allowed)


def fill(template: str, places: Mapping[str, str], connect: str = "'none'", scripts: Sequence[str] = ()) -> str:
    """Fill the places `{{name}}` of a template with HTML, all at once, so that no text is taken for a place."""
    # The place `{{policy}}` gets a content security policy that allows only the template's own style and script, the
    # sources in `scripts`, and requests to `connect` (`"'self'"` is the page's server).
    styles, own = (re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL) for tag in ("style", "script"))
    allowed = " ".join([*map(_hash, own), *scripts]) or "'none'"
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(*styles)}; script-src {allowed}; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    places = {**places, "policy": policy}
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], template)


def escape(value: Any) -> str:
    """Return a value as HTML text. Bytes in names of files that are not text become question marks."""
    return html.escape(str(value).encode("utf-8", "replace").decode())


def to_json(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever text is in it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda c: f"\\u{ord(c[0]):04x}", text)


def data_uri(data: bytes, media_type: str) -> str:
    """Return bytes as a `data:` URI."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
