"""The table of versions, the script that writes it, and the workflow that calls the script and `make`."""

import re
import shlex

import pytest
from support import ROOT, script

SCRIPT = ROOT / "tools" / "version_matrix.py"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
PROJECT = """
[project]
name = "vit-keras"
classifiers = [
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3.10",
    "Programming Language :: Python :: 3.11",
]
dependencies = ["keras>=3.10", "numpy"]
[project.optional-dependencies]
tensorflow = ["tensorflow>=2.16"]
jax = ["jax"]
torch = ["torch"]
openvino = ["onnx", "openvino"]
examples = ['tensorflow-cpu; platform_system == "Linux"', 'tensorflow; platform_system != "Linux"']
test = ["vit-keras[examples]", "jax", "openvino", "pytest"]
"""


@pytest.fixture(scope="module")
def matrix():
    return script(SCRIPT)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    return tmp_path / "pyproject.toml"


def test_cells_are_what_the_project_states(matrix, project):
    cells, extra = matrix.stated(project)
    assert {cell.python for cell in cells} == {"3.10", "3.11"}
    assert {cell.keras for cell in cells if cell.backend != "openvino"} == {"3.10", "newest"}
    assert {cell.keras for cell in cells if cell.backend == "openvino"} == {"3.12", "newest"}
    assert [cell.backend for cell in cells[:5]] == ["torch", "jax", "tensorflow", "tensorflow==2.16", "openvino"]
    assert len(cells) == len(set(cells)) == 2 * 2 * 5
    tensorflow = ['tensorflow-cpu; platform_system == "Linux"', 'tensorflow; platform_system != "Linux"']
    assert extra == [*tensorflow, "jax", "openvino", "pytest"]


@pytest.mark.parametrize(
    ("keras", "backend", "needed", "constraints"),
    [
        ("newest", "torch", ["openvino", "pytest", "torch"], []),
        ("3.10", "jax", ["jax", "openvino", "pytest"], ["keras==3.10.*"]),
        ("newest", "jax", ["jax", "openvino", "pytest"], []),
        ("newest", "openvino", ["openvino", "pytest"], []),
        (
            "3.10",
            "tensorflow==2.16",
            [
                'tensorflow-cpu; platform_system == "Linux"',
                'tensorflow; platform_system != "Linux"',
                "openvino",
                "pytest",
            ],
            ["keras==3.10.*", "onnx<1.19", "tensorflow==2.16.*", "tensorflow-cpu==2.16.*"],
        ),
    ],
)
def test_pip_is_asked_for_one_backend(matrix, project, keras, backend, needed, constraints):
    cell = matrix.Cell("3.11", keras, backend)
    assert matrix.requirements(cell, matrix.stated(project)[1]) == (needed, constraints)


def test_openvino_runs_the_files_of_the_makefile(matrix):
    assert matrix.files(matrix.Cell("3.11", "newest", "torch")) == ()
    found = matrix.files(matrix.Cell("3.11", "newest", "openvino"))
    assert "tests/test_golden.py" in found and all((ROOT / name).is_file() for name in found)


def test_cells_are_selected(matrix, project):
    cells, _ = matrix.stated(project)
    assert matrix.selected(cells, "") == cells
    assert matrix.selected(cells, "py=3.11,keras=3.10,backend=jax") == [("3.11", "3.10", "jax")]
    assert len(matrix.selected(cells, "backend=jax,backend=torch")) == 2 * 2 * 2
    with pytest.raises(ValueError, match=r"Pass py=…, keras=… or backend=…"):
        matrix.selected(cells, "python=3.11")
    with pytest.raises(ValueError, match="'py=3.9'.*3.10, 3.11"):
        matrix.selected(cells, "py=3.9")


def test_pages_are_read_as_they_were_written(matrix, project, tmp_path):
    cells, _ = matrix.stated(project)
    page = tmp_path / "versions.md"
    assert matrix.read(page) == {}
    rows = {
        matrix.Cell("3.11", "newest", "jax"): {"Passed": "5", "Failed": "0", "vit_keras": "1.0"},
        matrix.Cell("3.11", "3.10", "jax"): {"Remark": "a | b\nc"},
        matrix.Cell("3.10", "newest", "tensorflow==2.16"): {"Passed": "3"},
    }
    matrix.write(page, rows, cells)
    found = matrix.read(page)
    assert list(found) == sorted(rows, key=matrix.order) == [list(rows)[n] for n in (2, 1, 0)]
    assert found["3.11", "newest", "jax"]["Passed"] == "5"
    assert found["3.11", "3.10", "jax"]["Remark"] == "a / b c"
    text = page.read_text(encoding="utf-8")
    assert "Not tried yet:\n\n- Python 3.10 with Keras 3.10: torch, jax, tensorflow, tensorflow==2.16\n" in text
    matrix.write(page, {cell: {} for cell in cells}, cells)
    assert "Every combination was tried." in page.read_text(encoding="utf-8")


def test_rows_of_this_version_are_left_out_unless_asked_for(matrix, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(matrix, "interpreter", lambda version: f"python{version}")
    cells, _ = matrix.stated()
    page = tmp_path / "versions.md"
    row = {"vit_keras": matrix.package_version()}
    matrix.write(page, {cell: row if cell.keras == "newest" else {**row, "vit_keras": "0.1"} for cell in cells}, cells)
    before = page.read_text(encoding="utf-8")
    for again, count in (([], len(cells) // 2), (["--again"], len(cells))):
        assert matrix.main(["--dry-run", "--table", str(page), *again]) == 0
        assert len(re.findall("^Python 3", capsys.readouterr().out, re.MULTILINE)) == count
    assert page.read_text(encoding="utf-8") == before


def test_a_missing_python_is_told(matrix, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(matrix, "interpreter", lambda version: None)
    assert matrix.main(["--only", "py=3.12", "--table", str(tmp_path / "versions.md")]) == 1
    assert "There is no Python 3.12 here. Install it" in capsys.readouterr().out


def test_the_reason_is_pips(matrix):
    said = """Collecting a
ERROR: Cannot install a and b because these package versions have conflicting dependencies.

The conflict is caused by:
    a 1.0 depends on keras>=3.10
    The user requested (constraint) keras==3.6.*

Some have no matching distributions:
    a

To fix this you could try to:
1. loosen something
ERROR: ResolutionImpossible: for help visit somewhere
"""
    conflict = "a 1.0 depends on keras>=3.10; The user requested (constraint) keras==3.6.*"
    assert matrix.reason(said) == f"{conflict}; Some have no matching distributions:; a"
    said = "ERROR: Could not find a version that satisfies b==1 (from versions: 2, 3)\nERROR: No matching\n"
    assert matrix.reason(said) == "Could not find a version that satisfies b==1 (from versions: 2, 3)"


def test_the_outcome_is_that_of_the_report(matrix, tmp_path):
    report = tmp_path / "report.xml"
    numbers = 'tests="9" failures="1" errors="1" skipped="3" time="4.6"'
    cases = """<testcase classname="a.b" name="good"/>
        <testcase classname="a.b" name="bad"><failure/></testcase><testcase classname="c" name="worse"><error/>
        </testcase>"""
    report.write_text(f"<testsuites><testsuite {numbers}>{cases}</testsuite></testsuites>", encoding="utf-8")
    expected = {"Passed": "4", "Failed": "2", "Skipped": "3", "Seconds": "5", "Remark": "Failed: a.b.bad; c.worse"}
    assert matrix.outcome(report) == expected
    report.write_text(f"<testsuites><testsuite {numbers}/></testsuites>", encoding="utf-8")
    assert matrix.outcome(report)["Remark"] == ""


def test_the_page_tells_of_every_cell_that_the_project_states(matrix, tmp_path):
    cells, _ = matrix.stated()
    rows = matrix.read(matrix.TABLE)
    assert rows and set(rows) <= set(cells)
    assert all(row["Passed"] or row["Remark"] for row in rows.values())
    matrix.write(tmp_path / "versions.md", rows, cells)
    assert (tmp_path / "versions.md").read_text(encoding="utf-8") == matrix.TABLE.read_text(encoding="utf-8")


def test_the_workflow_calls_what_exists(matrix, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(matrix, "interpreter", lambda version: f"python{version}")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"\brun: (.*)", WORKFLOW.read_text(encoding="utf-8"))
    assert {"make lint", "make test", "make docs", "make test-slow"} < set(commands)
    for command in commands:
        program, *arguments = shlex.split(command.replace("${{ matrix.python }}", "3.12"))
        if program == "make":
            assert set(arguments) <= set(targets), command
        else:
            assert (program, arguments[0]) == ("python", SCRIPT.relative_to(ROOT).as_posix())
            assert matrix.main([*arguments[1:], "--dry-run"]) == 0
            assert "Python 3.12, Keras newest, jax" in capsys.readouterr().out


def test_the_release_is_started_by_hand_and_calls_what_exists():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    triggers = re.search(r"^on:\n(.*?)^\w", text, re.DOTALL | re.MULTILINE)[1]
    assert re.findall(r"^  ([\w-]+):", triggers, re.MULTILINE) == ["workflow_dispatch"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(f"^{target}:", makefile, re.MULTILINE) for target in re.findall(r"make ([\w-]+)", text))
    assert len(re.findall("timeout-minutes: ", text)) == len(re.findall("runs-on: ", text)) == 4
    publishers = "pypa/gh-action-pypi-publish@release/v1"
    assert all(re.fullmatch(rf"actions/[\w-]+@v\d+|{publishers}", used) for used in re.findall("uses: (.*)", text))
    assert "secrets." not in text and text.count("id-token: write") == 2  # to attest, and to publish


def test_the_workflow_is_bounded(matrix):
    text = WORKFLOW.read_text(encoding="utf-8")
    assert len(re.findall("timeout-minutes: ", text)) == len(re.findall("runs-on: ", text)) == 5
    assert re.findall("permissions:\n(.*)", text) == ["  contents: read"]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", used) for used in re.findall("uses: (.*)", text))
    pythons = {cell.python for cell in matrix.stated()[0]}
    tried = [set(re.findall(r"\d\.\d+", line)) for line in re.findall(r"python: \[(.*)\]", text)]
    assert tried == [{"3.10", "3.13"}, pythons]
