"""Empty stand-ins for torchvision's modules where it is not installed.

timm imports torchvision for data sets, transforms and a layer that no ViT has. No measurement calls any of it, and
torchvision requires its own build of PyTorch. A start-up measured without it is shorter than a user's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types


class _Anything(type):
    """The type of classes that have any attribute."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Module(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def stand_in() -> None:
    """Make `import torchvision` work, unless it does."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_Finder())
