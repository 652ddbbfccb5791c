"""The first file of a form, as browsers and curl send it (RFC 7578)."""

from __future__ import annotations

import re

__all__ = ["first_part"]

_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE)
_IS_FILE = re.compile(rb";\s*filename\*?=", re.IGNORECASE)


def first_part(body: bytes, content_type: str) -> bytes:
    r"""Return the content of the first file of a form, or of its first field if none is a file.

    Args:
        body: The body of the request.
        content_type: Its header of this name.

    Raises:
        ValueError: It is no complete form.

    Example:
        >>> body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\nPNG\r\n--x--\r\n'
        >>> first_part(body, "multipart/form-data; boundary=x")
        b'PNG'
    """
    found = _BOUNDARY.search(content_type)
    if not found:
        raise ValueError("the header content-type has no boundary")
    mark = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    _, *parts = (b"\r\n" + body).split(mark)
    if not parts or not parts[-1].startswith(b"--"):
        raise ValueError(f"{len(body):,} bytes do not end with the boundary")
    contents = []
    for part in parts[:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank:
            raise ValueError("a part has no empty line after its headers")
        contents.append((_IS_FILE.search(head) is None, content))
    if not contents:
        raise ValueError("it has no part")
    return min(contents, key=lambda each: each[0])[1]
