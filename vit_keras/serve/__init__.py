"""A server of one model: pictures in, classes and attention out, over HTTP.

It speaks the Open Inference Protocol, which clients of Triton, KServe and OpenVINO Model Server know, takes plain
pictures at `/predict`, and has a page for people at `/`. onnxruntime computes; Keras is not needed once there is an
ONNX file. `pip install "vit-keras[serve]"` installs the two packages that it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

__all__ = ["running", "serve"]


def serve(
    model: str | os.PathLike[str] | keras.Model,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    on_start: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serve a model until Ctrl-C or SIGTERM, then answer what has come, and return.

    Args:
        model: An `.onnx` file that `vit_keras.export` wrote, or a model, which is exported first.
        host: Name or address of the network interface; `"0.0.0.0"` for all.
        port: Number of the port; 0 for any that is free.
        on_start: Called with the address once the server listens.
        **options: `name`, of the model; `threads`, of one computation; `workers`, how many requests are computed at
            once (2); `batch`, how many are computed together (1); `timeout`, seconds for each step of a request (30);
            and the limits `body`, `pixels`, `pending` and `per_client`, see `vit_keras.serve.app.Limits`.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: A package is missing.
        OSError: The port is taken.
        ValueError: The file cannot be served, or an option is out of range.
    """
    _check_packages()
    with _exported(model) as path:
        asyncio.run(_serve(path, host, port, options, on_start or (lambda address: None)))


@contextlib.contextmanager
def running(model: str | os.PathLike[str] | keras.Model, **options: Any) -> Iterator[str]:
    """Serve a model in a thread while a `with` block runs, for tests and notebooks.

    Args:
        model: See `serve`.
        **options: Those of `serve`; `port` is any that is free.

    Yields:
        The address of the server, such as `http://127.0.0.1:40123`.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: A package is missing.
        ValueError: The file cannot be served, or an option is out of range.

    Example:
        >>> with running("no_such_file.onnx") as address:  # doctest: +SKIP
        ...     urllib.request.urlopen(f"{address}/v2").read()
    """
    _check_packages()
    host, port = options.pop("host", "127.0.0.1"), options.pop("port", 0)
    addresses: list[str] = []
    failed: list[BaseException] = []
    started, stop = threading.Event(), threading.Event()

    def began(address):
        addresses.append(address)
        started.set()

    def work(path):
        try:
            asyncio.run(_serve(path, host, port, options, began, stop))
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    with _exported(model) as path:
        thread = threading.Thread(target=work, args=(path,), daemon=True)
        thread.start()
        started.wait()
        try:
            if not failed:
                yield addresses[0]
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]


def _check_packages() -> None:
    for name in ("h11", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise ImportError(f'Serving needs {name}, which is not installed: pip install "vit-keras[serve]"') from None


@contextlib.contextmanager
def _exported(model: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield an ONNX file of a model: the one given, or a temporary one."""
    if isinstance(model, (str, os.PathLike)):
        yield model
        return
    from .. import anatomy, export

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, path, attention=anatomy.has_attention(model), check=None)
        yield path


async def _serve(
    path: str | os.PathLike[str],
    host: str,
    port: int,
    options: dict[str, Any],
    on_start: Callable[[str], None],
    stop: threading.Event | None = None,
) -> None:
    from ..validate import positive_integer
    from .app import App, Limits
    from .connections import Server
    from .engine import Engine

    options = dict(options)
    workers = positive_integer(options.pop("workers", 2), "workers")
    batch = positive_integer(options.pop("batch", 1), "batch")
    threads = options.pop("threads", None)
    if threads is not None:
        threads = positive_integer(threads, "threads")
    if not 0 <= port <= 65535:
        raise ValueError(f"port is from 0 to 65535. Received: {port}")
    engine = Engine(path, threads=threads, name=options.pop("name", None))
    app = App(engine, Limits(**options), threads=workers, batch=batch)
    server = Server(app, timeout=app.limits.timeout)
    app.connections = lambda: len(server.connections)
    try:
        address, port = await server.start(host, port)
        with _until_stopped(stop) as stopped:
            on_start(f"http://{f'[{address}]' if ':' in address else address}:{port}")
            await stopped
        app.stopping = True
        await server.stop()
    finally:
        app.close()


@contextlib.contextmanager
def _until_stopped(stop: threading.Event | None) -> Iterator[asyncio.Future]:
    """Yield what is done when the process is told to end, or when an event is set. A second signal ends it at once."""
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()

    def end(*_):
        for number, before in handlers.items():
            signal.signal(number, before)
        loop.call_soon_threadsafe(lambda: stopped.done() or stopped.set_result(None))

    handlers = {}
    if stop is None:
        handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    else:
        threading.Thread(target=lambda: (stop.wait(), end()), daemon=True).start()
    try:
        yield stopped
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)
