"""`serve`: a model behind HTTP."""

from __future__ import annotations

import argparse

from ..serve import serve as serve_model
from .options import loading

__all__ = ["serve"]

_OPTIONS = ("host", "port", "workers", "threads", "timeout", "max_mb", "max_megapixels", "max_images", "max_pending")


def serve(options: argparse.Namespace) -> None:
    """Serve a model until Ctrl-C or SIGTERM."""
    model = options.model
    if options.weights is not None or any(value is not None for value in loading(options).values()):
        from .pictures import open_with_options

        model = open_with_options(options)
    serve_model(model, **{name: getattr(options, name) for name in _OPTIONS})
