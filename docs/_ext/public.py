"""What is public: the modules that have a page in the reference, and the names on each."""

import ast
import functools
import importlib
import inspect
import sys

import vit_keras

MODULES = {
    "Start here": ["vit_keras", "vit_keras.vit", "vit_keras.config", "vit_keras.utils", "vit_keras.preprocess"],
    "See what a model looks at": ["vit_keras.visualize", "vit_keras.anatomy"],
    "Train": ["vit_keras.training", "vit_keras.training.losses", "vit_keras.training.metrics"],
    "Weights": ["vit_keras.checkpoints", "vit_keras.labels", "vit_keras.positions"],
    "Ship": ["vit_keras.export", "vit_keras.serve"],
    "Sentences, sizes, devices": [
        "vit_keras.text",
        "vit_keras.packing",
        "vit_keras.cost",
    ],
    "Parts of a model": ["vit_keras.layers"],
}
"""Modules by the heading under which the reference lists them."""


def modules():
    """Return the names of all public modules."""
    return [name for group in MODULES.values() for name in group]


def is_code(value):
    """Return whether a value is a class or a function, and no constant or type alias."""
    return inspect.isclass(value) or inspect.isroutine(value)


def identity(module, name, value):
    """Return where a value is defined, the same for each module that offers it."""
    if is_code(value):
        return value.__module__, value.__qualname__
    return constant_home(module, name, value), name


def public():
    """Return `{module: {name: (value, home)}}`: `home` is the first module that has the name, which documents it."""
    homes, found = {}, {}
    for module in modules():
        loaded = importlib.import_module(module)
        names = found[module] = {}
        for name in loaded.__all__:
            value = getattr(loaded, name)
            if inspect.ismodule(value):
                continue
            home = homes.setdefault(identity(module, name, value), f"{module}.{name}")
            names[name] = value, home
    return found


def constant_home(module, name, value):
    """Return the module whose source assigns a constant."""
    candidates = [module, *(n for n in sys.modules if n.startswith(f"{vit_keras.__name__}."))]
    for candidate in candidates:
        loaded = sys.modules[candidate]
        if vars(loaded).get(name) is value and name in constants(candidate):
            return candidate
    return module


@functools.cache
def constants(module):
    """Return `{name: text}` of a module's assignments, with the text that stands below each."""
    found = {}
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    for here, after in zip(body, [*body[1:], None]):
        if isinstance(here, (ast.Assign, ast.AnnAssign)):
            text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
            for target in here.targets if isinstance(here, ast.Assign) else [here.target]:
                for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(name, ast.Name):
                        found[name.id] = inspect.cleandoc(text) if isinstance(text, str) else ""
    return found
