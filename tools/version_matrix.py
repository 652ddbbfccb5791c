"""Run the tests with the Keras and the backends that pyproject.toml states, on the Python that runs this script.

python tools/version_matrix.py [--only jax] > table.md

The oldest and the newest Keras are tried on each backend, and TensorFlow in its oldest version, too. Each gets a fresh
virtual environment with the wheel of the package and the test extra without the other backends. There the first cases
of the numeric core of the tests run. The table is printed. The exit status is 1 if an installation or a test failed.
"""

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = ("torch", "jax", "tensorflow", "openvino")
ALONE = BACKENDS[:3]  # are not installed together; OpenVINO also reads and writes files
OLDEST = {"tensorflow": "2.19"}  # as docs/versions.md says
PYTHON = platform.python_version()
COLUMNS = ("Python", "Keras", "Backend", "Passed", "Failed")


def stated(path=ROOT / "pyproject.toml"):
    """Return pairs of a requirement of Keras and one of a backend, and the requirements of the test extra."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    oldest = re.search(r"^keras>=(\S+)", "\n".join(project["dependencies"]), re.MULTILINE)[1]
    backends = list(BACKENDS)
    for name in BACKENDS:
        if name in OLDEST:
            backends.append(f"{name}=={OLDEST[name]}.*")
    pairs = list(itertools.product((f"keras=={oldest}.*", "keras"), backends))
    everything = f"{project['name']}[all]"
    return pairs, [line for own in extras["test"] for line in (extras["all"] if own == everything else [own])]


def framework(requirement):
    """Return the name of a required package, of TensorFlow without `-cpu`."""
    return re.match(r"[\w-]+", requirement)[0].removesuffix("-cpu")


def needed(keras, backend, test_extra):
    """Return what pip is asked for in addition to the wheel."""
    others = {*ALONE} - {framework(backend)}
    return [keras, backend, *(line for line in test_extra if framework(line) not in others)]


def files(backend):
    """Return the files of tests to run; none for all. On OpenVINO, which does not train, they are the Makefile's."""
    if backend != "openvino":
        return []
    listed = re.search(r"^OPENVINO_TESTS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    return [f"tests/{name}" for name in listed.split()]


def run(*command, **options):
    """Run a command, with what it prints on stderr; return its exit status."""
    return subprocess.run([str(part) for part in command], stdout=sys.stderr, check=False, **options).returncode


def row_of(keras, backend, wheel, source, test_extra, folder):
    """Return one row of the table."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    venv.create(folder, clear=True, with_pip=True)
    install = (python, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:")
    if run(*install, wheel, *needed(keras, backend, test_extra)):
        return (PYTHON, keras, backend, "not installed", "")
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
    versions = {framework(each["name"]): each["version"] for each in json.loads(listed.stdout)}
    report, name = folder / "report.xml", framework(backend)
    settings = {"KERAS_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    tests = ("-W", "default", "-n", 2, "-m", "first_case", "--junitxml", report, *files(name))
    run(python, "-m", "pytest", *tests, cwd=source, env={**os.environ, **settings})
    return (PYTHON, versions["keras"], f"{name} {versions[name]}", *outcome(report))


def outcome(report):
    """Return how many tests passed and failed, from pytest's XML report."""
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    tests, failures, errors, skipped = (int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped"))
    return str(tests - failures - errors - skipped), str(failures + errors)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=BACKENDS, help="backend to try; default: all")
    only = parser.parse_args(arguments).only
    pairs, test_extra = stated()
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        left_out = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, source, ignore=left_out)
        if run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source):
            return 1
        shutil.rmtree(source / "vit_keras")  # the tests must find the one that is installed
        wheel = next(Path(folder).glob("vit_keras-*.whl"))
        for keras, backend in pairs:
            if only in (None, framework(backend)):
                rows.append(row_of(keras, backend, wheel, source, test_extra, Path(folder, "environment")))
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return int(any(row[-1] != "0" for row in rows[2:]))


if __name__ == "__main__":
    sys.exit(main())
