"""How this package is imported: its parts on first use, and its classes known to Keras as soon as Keras is there.

`import vit_keras` and `vit-keras --help` must be fast, and importing Keras takes seconds. But a saved model must open
once `vit_keras` is imported, in whatever order the two are. So nothing here imports Keras; when somebody does, the
modules that define what a file can hold are imported right after it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .validate import see

ROOT = __name__.partition(".")[0]

SAVED = (
    "layers",
    "layers.mixer",
    "layers.patches",
    "preprocess.layer",
    "model",
    "packing.model",
    "text.model",
    "text.tower",
    "training.distill",
    "training.losses",
    "training.masked",
    "training.optimizers",
)
"""Modules with a class that Keras can write into a file."""

INSTALL = 'pip install "vit-keras[all]"'
"""Installs every optional package but the backends."""

_ON_OPENVINO = ("openvino", "openvino scipy")
BACKENDS = {
    "tensorflow": ("tensorflow", "tensorflow"),
    "jax": ("jax", "jax"),
    "jaxlib": ("jax", "jax"),
    "torch": ("torch", "torch"),
    "openvino": _ON_OPENVINO,
    "scipy": _ON_OPENVINO,  # which Keras imports there without requiring it
}
"""Maps a missing module to its backend, and to what pip installs."""


def _is_on_openvino() -> bool:
    """Whether Keras chose OpenVINO: JAX needs SciPy, too."""
    config = sys.modules.get("keras.src.backend.config")
    return (os.environ.get("KERAS_BACKEND") if config is None else config.backend()) == "openvino"


def spec_around(finder: Any, watched: Callable[..., Any], name: str, path: Any, target: Any) -> Any:
    """Return the spec that the finders after this one find, with `watched` around the execution of the module."""
    later = itertools.dropwhile(lambda each: each is not finder, [*sys.meta_path])
    able = (each for each in later if each is not finder and hasattr(each, "find_spec"))
    spec = next((found for each in able if (found := each.find_spec(name, path, target))), None)
    loader: Any = None if spec is None else spec.loader
    if hasattr(loader, "exec_module"):
        execute = loader.exec_module

        def exec_module(module):
            vars(loader).pop("exec_module", None)  # which leaves the loader as it was
            watched(execute)(module)

        loader.exec_module = exec_module
    return spec


class _AfterKeras:
    """A finder that registers this package's classes, once, after the outermost import of Keras or of this package."""

    def __init__(self):
        self.depth = 0

    def find_spec(self, name, path=None, target=None):
        if name != "keras" and not name.startswith(f"{ROOT}."):
            return None
        return spec_around(self, self._watched, name, path, target)

    def _watched(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def exec_module(module):
            self.depth += 1
            try:
                execute(module)
            except ModuleNotFoundError as error:
                backend, needed = BACKENDS.get(error.name or "", ("", ""))
                if not backend or (error.name == "scipy" and not _is_on_openvino()):
                    raise
                raise ImportError(
                    f"Keras runs on {backend}, and the module {error.name} is missing. Install what Keras needs there "
                    f"(pip install {needed}), or choose another backend by the environment variable KERAS_BACKEND "
                    f"(tensorflow, jax, torch, or openvino, which does not train).{see('backend')}"
                ) from None
            finally:
                self.depth -= 1
            if not self.depth and self in sys.meta_path and "keras" in sys.modules:
                sys.meta_path.remove(self)
                register()

        return exec_module


def extra(module: str, need: str, install: str = INSTALL) -> Any:
    """Return an optional module, or raise an `ImportError` that says who needs it and how it is installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{need}: {install}") from None


def register() -> None:
    """Import every module with a class that Keras can write into a file."""
    for name in SAVED:
        importlib.import_module(f"{ROOT}.{name}")


def register_with_keras() -> None:
    """Call `register` now if Keras is imported already, or else as soon as it is."""
    if "keras" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterKeras())


def attach(
    package: str,
    submodules: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` that make a package's parts appear on first use (PEP 562)."""
    names = dict(names or {})

    def __getattr__(name):
        if name in names:
            value = getattr(importlib.import_module(f"{package}.{names[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*names, *submodules, "__doc__", "__name__", "__file__", "__path__"})

    return __getattr__, __dir__
