"""Questions to a server, and pictures for them."""

import contextlib
import http.client
import io
import json
import socket
import urllib.parse

import numpy as np
from PIL import Image


def ask(address, path, body=None, headers=None, method=None):
    """Return the status, the headers and the content of an answer."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=20)
    with contextlib.closing(connection):
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
    is_json = response.headers["content-type"] == "application/json" and content
    return response.status, response.headers, json.loads(content) if is_json else content


def form(*files):
    """Return the body and the headers of a form with files."""
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\nContent-Type: image/png\r\n\r\n%b\r\n'
    body = b"".join(part % file for file in files) + b"--x--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=x"}


def raw(address, data):
    """Return all that the server sends back for bytes, until it closes the connection."""
    parts = urllib.parse.urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(1 << 16):
                received += data
    return received


def random_picture(height=48, width=64, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype="uint8")


def encoded(pixels, format="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()
