"""The house: which part may import which, and where private names of Keras stand."""

import ast
import re

from support import ROOT

PACKAGE = ROOT / "vit_keras"
FILES = sorted(PACKAGE.rglob("*.py"))

FLOORS = [
    "_internal",
    "labels",
    "resampling",
    "positions",
    "preprocess",
    "config",
    "variants",
    "backend",
    "layers",
    "anatomy",
    "checkpoints",
    "model",
    "build",
    "backbone",
    "copying",
    "opening",
    "converting",
    "text",
    "packing",
    "cost",
    "compat",
    "utils",
    "vit",
    "visualize",
    "training",
    "export",
    "serve",
    "cli",
    "__main__",
]
"""Files and folders of the package, from the ground up: each may import those before it, and none after it."""


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """The rooms that a file imports, wherever in it, except for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    only_types = {id(inner) for node in types for inner in ast.walk(node)}
    folder = ("vit_keras", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in only_types:
            target = (*folder[: len(folder) - node.level + 1], *(node.module or "").split("."))
            target = [part for part in target if part]
            names = target[1:2] or [alias.name for alias in node.names]
            yield from (name for name in names if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file())


def test_every_room_has_its_floor():
    assert {room(path) for path in FILES} == {*FLOORS, "__init__"}


def test_arrows_point_down():
    found = {}
    for path in FILES:
        here = room(path)
        below = FLOORS if here == "__init__" else FLOORS[: FLOORS.index(here) + 1]
        found[str(path.relative_to(PACKAGE))] = sorted({*imported(path)} - {*below})
    assert not {path: above for path, above in found.items() if above}


def imported_files(path):
    """The files of the package that a file imports, except for types alone."""
    folder = path.parent
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            origin = folder.joinpath(*[".."] * (node.level - 1), *(node.module or "").split(".")).resolve()
            for target in (origin, *(origin / alias.name for alias in node.names)):
                yield from (file for file in (target.with_suffix(".py"), target / "__init__.py") if file.is_file())


def test_the_model_reads_in_one_sitting():
    """Count the lines of all files of the configuration, the layers and `build` that `build` imports."""
    found, waiting = set(), [PACKAGE / "build.py"]
    while waiting:
        path = waiting.pop()
        if path not in found and room(path) in ("config", "layers", "build"):
            found.add(path)
            waiting += imported_files(path)
    assert len(found) > 15
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found) <= 2_505


def test_private_names_of_keras_stand_in_one_place():
    private = re.compile(
        r"\._(flatten_layers|keras_history|inbound_nodes|tracker|compile_metrics|kernel|layers|functional)\b"
        r"|import keras\.src"
    )
    found = [path for path in FILES if private.search(re.sub(r"self\._layers", "", path.read_text(encoding="utf-8")))]
    assert [path.name for path in found] == ["keras_internals.py"]


def test_nothing_heavy_is_imported_at_the_top_of_a_module():
    heavy = {"tensorflow", "jax", "torch", "matplotlib", "sklearn", "pyarrow", "rich", "h5py"}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not heavy & {name.split(".")[0] for name in names}, path


def test_tests_import_no_tests():
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name == "conftest" or name.startswith("test_") for name in names), path


def test_warnings_point_to_the_users_line():
    """However many functions of this package are between: `warn_caller` counts them."""
    own = [path for path in FILES if "warnings.warn(" in path.read_text(encoding="utf-8")]
    assert [path.name for path in own] == ["warn.py"]
