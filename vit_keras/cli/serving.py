"""`serve`: a model behind HTTP."""

from __future__ import annotations

import argparse
import functools

from .._internal.validate import expanded
from ..serve import serve as serve_model
from .console import printable

__all__ = ["serve"]


def serve(options: argparse.Namespace) -> None:
    """Serve a model until Ctrl-C or SIGTERM."""
    serve_model(
        functools.partial(_model, options),
        options.host,
        options.port,
        on_start=lambda address: print(f"{printable(options.model)}: {address} (Ctrl-C ends it)", flush=True),
        name=options.name,
        threads=options.threads,
        workers=options.workers,
        batch=options.batch,
        timeout=options.timeout,
        body=int(options.max_mb * 2**20),
        pixels=int(options.max_megapixels * 1e6),
        pending=options.pending,
        per_client=options.per_client,
        connections_per_client=options.connections_per_client,
        memory=int(options.max_memory * 2**20),
        answer=int(options.max_answer * 2**20),
        proxies=tuple(options.proxy),
    )


def _model(options: argparse.Namespace):
    """Return an ONNX file, which needs no Keras, or an opened model.

    Raises:
        ValueError: Options of loading are given with an ONNX file.
    """
    path = expanded(options.model)  # without the slash that a shell may complete
    if path.suffix.lower() != ".onnx":
        from .pictures import open_with_options

        return open_with_options(options)
    if options.weights or options.family or options.key or options.set:
        raise ValueError(f"{options.model} has its weights. Remove --weights, --family, --key and --set.")
    return path
