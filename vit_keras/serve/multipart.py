"""Read the file in a multipart form, as browsers and curl send it."""

from __future__ import annotations

from python_multipart.multipart import FormParser, parse_options_header

__all__ = ["first_part"]

_MAX_PARTS = 100


def first_part(body: bytes, content_type: str) -> bytes:
    r"""Return the content of the one file of a form, or of its first field if none is a file.

    Args:
        body: The body of the request.
        content_type: Its header of this name.

    Raises:
        ValueError: It is not a form, or has no complete part or several files.

    Example:
        >>> body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\nPNG\r\n--x--\r\n'
        >>> first_part(body, "multipart/form-data; boundary=x")
        b'PNG'
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise ValueError("the header content-type has no boundary")
    files, fields = [], []

    def keep(parts, part):
        if len(files) + len(fields) == _MAX_PARTS:
            raise ValueError(f"it has more than {_MAX_PARTS} parts")
        parts.append(part)

    parser = FormParser(
        "multipart/form-data",
        on_field=lambda part: keep(fields, part.value or b""),
        on_file=lambda part: keep(files, part.file_object.getvalue()),  # pyright: ignore[reportAttributeAccessIssue]
        boundary=boundary,
        config={"MAX_MEMORY_FILE_SIZE": len(body) + 1},  # no file of it is written
    )
    parser.write(body)
    parser.finalize()
    whole = [file for file in files if file]  # a field of a web page that is left empty is a file without bytes
    if len(whole) > 1:
        raise ValueError(f"it has {len(whole)} files, and a request takes one. Send one request for each")
    for content in (*whole, *files, *fields):
        return content
    raise ValueError(f"{len(body):,} bytes have no whole part")
