"""The script that tries versions, and the workflows that call scripts and `make`."""

import re
import shlex

import pytest
from support import ROOT, script

SCRIPT = ROOT / "tools" / "version_matrix.py"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


@pytest.fixture(scope="module")
def matrix():
    return script(SCRIPT)


def test_each_backend_is_tried_with_the_oldest_and_the_newest_keras(matrix):
    pairs, extra = matrix.stated()
    keras, backends = ({each[n] for each in pairs} for n in (0, 1))
    assert len(keras) == 2 and "keras" in keras and {*matrix.BACKENDS} < backends
    assert len(pairs) == len(set(pairs)) == len(keras) * len(backends)
    assert "pytest" in extra


def test_the_other_backends_are_not_installed(matrix):
    extra = ["tensorflow-cpu; python_version > '3'", "jax", "openvino", "pytest"]
    assert matrix.needed("keras", "torch", extra) == ["keras", "torch", "openvino", "pytest"]
    assert matrix.needed("keras", "tensorflow==2.19.*", extra)[2:] == [extra[0], "openvino", "pytest"]


def test_the_outcome_is_that_of_the_report(matrix, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="1" errors="1" skipped="3"/></testsuites>')
    assert matrix.outcome(report) == ("4", "2")


def test_the_workflow_calls_what_exists():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"\brun: (.*)", WORKFLOW.read_text(encoding="utf-8"))
    assert {"make lint", "make test", "make docs", "make test-slow"} < set(commands)
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "make":
            assert set(arguments) <= set(targets), command
        else:
            assert (program, arguments[0]) == ("python", SCRIPT.relative_to(ROOT).as_posix())


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


def test_the_workflow_is_bounded_and_tries_the_pythons_of_the_project():
    text = WORKFLOW.read_text(encoding="utf-8")
    assert len(re.findall("timeout-minutes: ", text)) == len(re.findall("runs-on: ", text)) == 5
    assert re.findall("permissions:\n(.*)", text) == ["  contents: read"]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", used) for used in re.findall("uses: (.*)", text))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    tried = [re.findall(r"\d\.\d+", line) for line in re.findall(r"python: \[(.*)\]", text)]
    assert tried == [[pythons[0], pythons[-1]], pythons]
