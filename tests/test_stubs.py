"""What editors and type checkers see of the packages whose names appear on first use."""

import ast
import importlib

import pytest
from support import ROOT, script

make_stubs = script(ROOT / "tools" / "make_stubs.py")
pytestmark = pytest.mark.any_backend


def test_stubs_are_those_of_the_tables():
    written = {path.parent for path in (ROOT / "vit_keras").rglob("*.pyi")}
    expected = {name: ROOT.joinpath(*name.split(".")) for name in make_stubs.lazy_packages()}
    for name in make_stubs.WITHOUT_STUB:
        del expected[name]
    assert written == set(expected.values())
    for name, folder in expected.items():
        text = (folder / "__init__.pyi").read_text(encoding="utf-8")
        assert text == make_stubs.stub(name), "run python tools/make_stubs.py"
        assert {*importlib.import_module(name).__all__} <= {each for part in make_stubs.table(name) for each in part}


@pytest.mark.parametrize("package", make_stubs.WITHOUT_STUB)
def test_a_package_without_a_stub_imports_its_lazy_names_for_type_checkers(package):
    tree = ast.parse(ROOT.joinpath(*package.split("."), "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.level == 1]
    assert {alias.name: node.module for node in imports for alias in node.names} == make_stubs.table(package)[1]
