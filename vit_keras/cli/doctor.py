"""`doctor`: the facts about a machine that a bug report needs, and what is wrong with it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from .. import __version__
from .._internal.validate import see
from ..checkpoints.cache import home, offline
from ..checkpoints.checkpoint import megabytes
from ..export.timing import cpu
from .console import print_pairs, quietly

__all__ = ["doctor"]

_OURS = "vit-keras"
_FOR_DEVELOPERS = {"docs", "lint", "test"}
_PACKAGES = ("tensorflow", "tensorflow-cpu", "jax", "torch", "openvino", "numpy", "pillow", "h5py")
_VARIABLES = ("KERAS_", "VIT_KERAS_", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "OMP_", "TF_ENABLE_", "TF_NUM_", "XLA_")
"""Beginnings of the names of environment variables that change results or speed. None of them holds a secret."""


def doctor() -> int:
    """Describe this installation for a bug report, and find its faults."""
    print_pairs(_machine())
    print_pairs(_extras())
    problems = [*_conflicts(), *_try_keras(), *_unwritable()]
    print_pairs(("problem", problem) for problem in problems)
    if not problems:
        print("No problem was found.")
    return int(bool(problems))


def _machine() -> Iterator[tuple[str, str]]:
    yield "vit_keras", f"{__version__}, in {Path(__file__).parents[1]}"
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    yield "system", platform.platform()
    yield "processor", cpu()
    found = ((name, _version(name)) for name in ("keras", *_PACKAGES))
    yield "packages", ", ".join(f"{name} {version}" for name, version in found if version)
    sizes = list(_sizes(home()))
    size = megabytes(sum(sizes))
    yield "cache", f"{home()}: {len(sizes)} files, {size}{'; downloads are forbidden' if offline() else ''}"
    names = sorted(name for name in os.environ if name.startswith(_VARIABLES))
    yield "variables", ", ".join(f"{name}={os.environ[name]}" for name in names) or "none that matters is set"
    if _has("tensorflow") and _version("triton"):
        yield "note", f"PyTorch may crash in a process that has imported TensorFlow before Triton.{see('triton')}"


def _sizes(top: Path) -> Iterator[int]:
    """Yield the bytes of each file below a folder, without those that are gone by then or not ours to see."""
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.path.getsize(os.path.join(folder, name))


def _extras() -> Iterator[tuple[str, str]]:
    """Yield each extra of this package, with those of its packages that are missing."""
    try:
        about = importlib.metadata.metadata(_OURS)
    except importlib.metadata.PackageNotFoundError:
        yield "extras", "unknown: the package runs from a folder and is not installed"
        return
    needed = [Requirement(text) for text in about.get_all("Requires-Dist") or ()]
    lacks: dict[str, list[str]] = {}
    for extra in set(about.get_all("Provides-Extra") or ()) - _FOR_DEVELOPERS:
        of_it = [each for each in needed if each.marker and each.marker.evaluate({"extra": extra})]
        lacks[extra] = sorted({each.name for each in of_it if not _has(each.name)})
    yield "extras", f"complete: {', '.join(sorted(extra for extra, missing in lacks.items() if not missing)) or 'none'}"
    for extra, missing in sorted(lacks.items()):
        if missing:
            yield "extras", f'{extra} lacks {", ".join(missing)}: pip install "{_OURS}[{extra}]"'


def _conflicts() -> Iterator[str]:
    if _version("tensorflow-addons"):
        yield "tensorflow-addons cannot be imported with Keras 3. Remove it: pip uninstall tensorflow-addons"
    installed = _version(_OURS)
    if installed and installed.startswith("0."):
        yield (
            f"vit-keras {installed}, another package of the same name, is installed too: "
            f"pip uninstall {_OURS}, and install this one again.{see('wrong-package')}"
        )


def _try_keras() -> Iterator[str]:
    """Open the model of the package and compute an image, as any program would."""
    started = time.monotonic()
    try:
        with quietly():
            import keras
            import numpy as np

            from ..opening import open_model

            model = open_model("vit_cifar10")
            logits = model.predict(np.zeros((1, 32, 32, 3), "float32"), verbose=0)
            device = getattr(model.weights[0].value, "device", "CPU")  # OpenVINO's tensors have none
    except Exception as error:  # whatever is wrong is what is asked for
        yield f"vit_cifar10 cannot be opened and run: {type(error).__name__}: {error}"
        return
    if not np.isfinite(logits).all():
        yield "vit_cifar10 gives numbers that are not finite"
    seconds = time.monotonic() - started
    backend = f"Keras {keras.__version__} on {keras.backend.backend()}, {keras.config.dtype_policy().name}, {device}"
    seen = f"opened vit_cifar10 and computed an image in {seconds:.1f} s, with the start of Keras"
    print_pairs([("backend", backend), ("test", seen)])


def _unwritable() -> Iterator[str]:
    # A drive of Windows may not exist, and Path.exists raises an error in a folder of somebody else.
    place = next((each for each in (home(), *home().parents) if os.path.exists(each)), None)
    if place is None or not os.path.isdir(place) or not os.access(place, os.W_OK):
        yield f"{home()} cannot be written. Set VIT_KERAS_HOME to a folder for downloads."


def _has(name: str) -> bool:
    return any(_version(each) for each in (name, *({"tensorflow": ("tensorflow-cpu", "tf-nightly")}.get(name, ()))))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
