"""Write the stubs that show lazy packages to editors and type checkers: an `__init__.pyi` beside each `__init__.py`.

python tools/make_stubs.py

Run it after a change of the names that a package passes to `attach`; `tests/test_stubs.py` fails until then. A
package that defines something itself has no stub: it imports its lazy names under `TYPE_CHECKING`.
"""

import importlib
import inspect
import types
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "vit_keras"
WITHOUT_STUB = ("vit_keras.export", "vit_keras.preprocess")


def lazy_packages():
    """Return the packages whose names appear on first use."""
    inits = sorted(path for path in PACKAGE.rglob("__init__.py") if " = attach(" in path.read_text(encoding="utf-8"))
    return [".".join(path.relative_to(PACKAGE.parent).parts[:-1]) for path in inits]


def table(package):
    """Return the submodules of a lazy package, and `{name: submodule that defines it}`."""
    variables = inspect.getclosurevars(importlib.import_module(package).__getattr__).nonlocals
    return variables["submodules"], variables["names"]


def stub(package):
    """Return the text of a package's stub."""
    submodules, names = table(package)
    imports = [f"from .{module} import {name} as {name}" for module, name in sorted((m, n) for n, m in names.items())]
    variables = ["__version__: str"] if hasattr(importlib.import_module(package), "__version__") else []
    for name in sorted(submodules, reverse=True):
        kind = type(importlib.import_module(f"{package}.{name}"))
        if kind is types.ModuleType:
            imports.insert(0, f"from . import {name} as {name}")
        else:  # a module that can be called
            imports.append(f"from .{name} import {kind.__name__}")
            variables.append(f"{name}: {kind.__name__}")
    return "\n".join(["# Written by tools/make_stubs.py.", *imports, *([""] if variables else []), *variables, ""])


def main():
    for package in lazy_packages():
        if package not in WITHOUT_STUB:
            path = PACKAGE.parent.joinpath(*package.split("."), "__init__.pyi")
            path.write_text(stub(package), encoding="utf-8")


if __name__ == "__main__":
    main()
