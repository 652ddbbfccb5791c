"""Serve a model over HTTP: images in, classes and attention out.

The server implements the Open Inference Protocol of Triton, KServe and OpenVINO Model Server, takes plain images at
`/predict`, and has a web page at `/`. onnxruntime computes; Keras is not needed once there is an
ONNX file. `pip install "vit-keras[serve]"` installs what it needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import socket
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from .http import Server

__all__ = ["running", "serve"]

_PACKAGES = ("onnxruntime", "prometheus_client", "python_multipart", "starlette", "uvicorn")


def serve(
    model: str | os.PathLike[str] | keras.Model | Callable[[], Any],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    on_start: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serve a model until Ctrl-C or SIGTERM, then finish pending requests and return.

    Args:
        model: An `.onnx` file that `vit_keras.export` wrote, or a model, which is exported first. Or a function without
            arguments that opens one of these: it is called after options, packages and port were found to be right.
        host: Name or address of the network interface; `"0.0.0.0"` for all.
        port: Number of the port; 0 for any that is free.
        on_start: Called with the address once the server listens.
        **options: `name`, of the model; `threads` that compute, shared by the workers; `workers`, how many requests are
            computed at once (2); `batch`, how many are computed together (1); `timeout`, seconds for each step of a
            request (30); and all other limits of `vit_keras.serve.limits.Limits`, such as `body` and `pixels`.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: A package is missing.
        OSError: The port is taken.
        TypeError: There is no such option.
        ValueError: The file cannot be served, or an option is out of range.

    Example:
        >>> serve("no_such_file.onnx", port=0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    with _opened(model, host, port, options, on_start) as (server, _):
        server.run()


@contextlib.contextmanager
def running(model: str | os.PathLike[str] | keras.Model, **options: Any) -> Iterator[str]:
    """Serve a model in a thread while a `with` block runs, for tests and notebooks.

    Args:
        model: See `serve`.
        **options: Those of `serve`; `port` is any that is free.

    Yields:
        The address of the server, such as `http://127.0.0.1:40123`.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: A package is missing.
        TypeError: There is no such option.
        ValueError: The file cannot be served, or an option is out of range.

    Example:
        >>> with running("no_such_file.onnx") as address:  # doctest: +SKIP
        ...     urllib.request.urlopen(f"{address}/v2").read()
    """
    host, port = options.pop("host", "127.0.0.1"), options.pop("port", 0)
    with _opened(model, host, port, options) as (server, address):
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


def _check_packages() -> None:
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError:
            raise ImportError(f'Serving needs {name}, which is not installed: pip install "vit-keras[serve]"') from None


@contextlib.contextmanager
def _exported(model: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield an ONNX file of a model: the one given, or a temporary one."""
    if isinstance(model, (types.FunctionType, functools.partial)):
        model = model()
    if isinstance(model, (str, os.PathLike)):
        yield model
        return
    from .. import anatomy, export

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, path, attention=anatomy.shows_attention(model), check=None)
        yield path


@contextlib.contextmanager
def _opened(
    model: Any,
    host: str,
    port: int,
    options: Mapping[str, Any],
    on_start: Callable[[str], None] | None = None,
) -> Iterator[tuple[Server, str]]:
    """Yield a server, ready to run, and its address."""
    _check_packages()
    from .._internal.validate import positive_integer
    from ..visualize.options import check_options
    from .app import App
    from .engine import Engine
    from .http import Server
    from .limits import Limits

    limiting = [field.name for field in dataclasses.fields(Limits)]
    check_options(options, ("name", "threads", "workers", "batch", *limiting), "serve")
    options = dict(options)
    workers = positive_integer(options.pop("workers", 2), "workers")
    batch = positive_integer(options.pop("batch", 1), "batch")
    threads, name = options.pop("threads", None), options.pop("name", None)
    if threads is not None:
        threads = positive_integer(threads, "threads")
    if positive_integer(port, "port", least=0) > 65535:
        raise ValueError(f"port must be from 0 to 65535. Received: {port}")
    limits = Limits(**options)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listen = functools.partial(socket.create_server, (host, port), family=family)
    listen().close()  # a port that is taken is found before a model is downloaded
    with _exported(model) as path, contextlib.ExitStack() as stack:
        engine = Engine(path, threads=threads, name=name)
        listener = stack.enter_context(listen())
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        app = App(engine, limits, threads=workers, batch=batch)
        stack.callback(app.close)
        started = functools.partial(on_start, address) if on_start else lambda: None
        server = Server(app, listener, timeout=limits.timeout, on_start=started, limits=limits)
        app.unsent = server.unsent
        app.metrics.connections.set_function(lambda: len(server.server_state.connections))
        yield server, address
