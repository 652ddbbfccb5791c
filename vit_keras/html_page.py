"""HTML pages in one file, without network: a template, its places, and a content security policy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["data_uri", "escape", "fill", "to_json"]


def fill(template: str, places: Mapping[str, str], connect: str = "'none'") -> str:
    """Fill the places `{{name}}` of a template, all at once, so that no text is taken for a place.

    The place `{{policy}}` gets a content security policy that allows only the template's own style and script.

    Args:
        template: A page with one `<style>` and one `<script>` element.
        places: HTML by the name of its place; see `escape`.
        connect: Where the script may send requests: `"'self'"` is the server of the page.

    Example:
        >>> page = fill("<style></style><script></script><p>{{title}}</p>", {"title": escape("1 < 2")})
        >>> page.rpartition("</script>")[2]
        '<p>1 &lt; 2</p>'
    """
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[1] for tag in ("style", "script"))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    places = {**places, "policy": policy}
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], template)


def escape(value: Any) -> str:
    """Return a value as HTML text. Bytes in names of files that are no text become question marks."""
    return html.escape(str(value).encode("utf-8", "replace").decode())


def to_json(value: Any) -> str:
    r"""Return JSON that is safe inside a script element, whatever text is in it.

    Example:
        >>> to_json({"name": "</script>"})
        '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda c: f"\\u{ord(c[0]):04x}", text)


def data_uri(data: bytes, media_type: str) -> str:
    """Return bytes as a `data:` URI.

    Example:
        >>> data_uri(b"hi", "text/plain")
        'data:text/plain;base64,aGk='
    """
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
