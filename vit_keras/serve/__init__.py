"""Serve a model over HTTP from one machine: images in, classes and attention maps out, and a web page to try it.

This server is made for a laptop or a small container. For more, run the exported file in a serving engine:
preprocessing and the names of classes are in the file. Serving an ONNX file needs neither Keras nor a backend.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras

__all__ = ["running", "serve"]

Port: TypeAlias = int


def serve(
    model: str | os.PathLike[str] | keras.Model,
    host: str = "127.0.0.1",
    port: Port = 8000,
    *,
    workers: int = 2,
    threads: int | None = None,
    timeout: int = 30,
    max_mb: int = 10,
    max_megapixels: int = 50,
    max_images: int = 16,
    max_pending: int = 64,
) -> None:
    """Serve a model over HTTP, with a web page to try it.

    Runs until Ctrl-C or SIGTERM, and then answers the requests that it has accepted.

    Args:
        model: Exported file (.onnx, .xml, or the folder of a SavedModel), or what `vit_keras.open_model` opens, such as
            vit_b16 or a .keras file, which is exported first. Or an opened model.
        host: Address to listen on, `"0.0.0.0"` for all.
        port: Port, 0 for any free one.
        workers: Number of requests that are computed at once.
        threads: Number of threads that compute, shared by the workers; `None`: the number of cores.
        timeout: Seconds in which a request must be sent and computed. Later, it gets the status 503.
        max_mb: Maximum size of a request in MB.
        max_megapixels: Maximum megapixels of all images of a request together.
        max_images: Maximum number of images in a request.
        max_pending: Maximum number of requests that are sent, wait or are computed. Others get the status 503.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: A package is missing.
        OSError: The port is taken.
        ValueError: The model cannot be served, or a number is out of range.

    Example:
        >>> serve("no_such_file.onnx", port=0)
        Traceback (most recent call last):
        FileNotFoundError: There is no file no_such_file.onnx.
    """
    limits = {"max_mb": max_mb, "max_megapixels": max_megapixels, "max_images": max_images, "max_pending": max_pending}
    options = {"host": host, "port": port, "workers": workers, "threads": threads, "timeout": timeout, **limits}
    stop = threading.Event()
    with running(model, **options) as address, contextlib.ExitStack() as handlers:
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        print(f"{address} (Ctrl-C ends it)", flush=True)
        while not stop.wait(1):  # Windows delivers no signal to a thread that waits for ever
            pass


@contextlib.contextmanager
def running(model: str | os.PathLike[str] | keras.Model, **options: Any) -> Iterator[str]:
    """Serve a model in a thread while a `with` block runs, for notebooks and tests.

    Args:
        model: See `serve`.
        **options: Those of `serve`; the port is any free one by default.

    Yields:
        The address of the server, such as `http://127.0.0.1:40123`.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: A package is missing.
        OSError: The port is taken.
        TypeError: There is no such option.
        ValueError: The model cannot be served, or a number is out of range.

    Example:
        >>> with running("vit_ti16.onnx") as address:  # doctest: +SKIP
        ...     urllib.request.urlopen(f"{address}/health").read()
    """
    from .._internal.imports import extra
    from .model import ServedModel

    call = inspect.signature(serve).bind(model, **{"port": 0, **options})
    call.apply_defaults()
    model, host, port, threads = (call.arguments.pop(name) for name in ("model", "host", "port", "threads"))
    for name in ("starlette", "uvicorn", "python_multipart"):
        extra(name, f"Serving a model needs {name}")
    import uvicorn

    from .._internal.validate import positive_integer
    from .app import App, Limits, Server

    limits = Limits(**call.arguments)
    if threads is not None:
        threads = positive_integer(threads, "threads")
    if positive_integer(port, "port", least=0) > 65535:
        raise ValueError(f"port must be from 0 to 65535. Received: {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener, _exported(model) as path:
        app = App(ServedModel(path, threads), limits)
        server = Server(
            uvicorn.Config(
                app.asgi,
                log_level="warning",
                access_log=False,
                server_header=False,
                headers=[("X-Content-Type-Options", "nosniff")],
                ws="none",
                proxy_headers=False,
                timeout_graceful_shutdown=limits.timeout,
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            host, port = listener.getsockname()[:2]
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def _exported(model: Any) -> Iterator[Path]:
    """Yield the path of an exported file: the given one, or a temporary ONNX file."""
    from .._internal.validate import expanded

    if isinstance(model, (str, os.PathLike)):
        path = expanded(model)
        if path.suffix.lower() in (".onnx", ".xml") or (path / "saved_model.pb").exists():
            yield path
            return
    from .. import export
    from ..anatomy.dry_run import shows_attention
    from ..opening import as_model

    opened = as_model(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(opened, path, attention=shows_attention(opened), check=False)
        yield path
