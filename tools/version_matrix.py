"""Try the package with the versions that it states, and write what happens into docs/versions.md.

python tools/version_matrix.py [--only py=3.11,keras=3.10,backend=jax] [--again] [--dry-run]

A cell is a Python, a Keras and a backend, all from pyproject.toml: each Python of the classifiers, the oldest Keras (on
OpenVINO a later one) and the newest, each backend, and the oldest version of a backend where one is stated. For each
cell, a fresh virtual environment gets the wheel of the package, the backend, and the test extra without the other
backends. Then `pip check` and the first cases of the numeric core of the tests run there. The environment is deleted,
its log is kept.

The script can be stopped and started again: cells that have a row of this version of the package are left out. A Python
is looked for on PATH, among pyenv's and with uv. pip's own variables (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS …) hold here
too; only wheels are installed. The exit status is 1 if tests failed, or a Python was not found.
"""

import argparse
import datetime
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path
from typing import NamedTuple

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "versions.md"
BACKENDS = ("torch", "jax", "tensorflow", "openvino")
ALONE = BACKENDS[:3]  # none of which is installed beside another backend; OpenVINO also reads and writes files
NEWEST = "newest"
KEY = ("Python", "Keras", "Backend")
COUNTS = ("Passed", "Failed", "Skipped", "Seconds")
COLUMNS = (*KEY, "Installed", *COUNTS, "Date", "vit_keras", "Remark")
OLDEST_KERAS = {  # by backend: the oldest Keras that runs on it, where the stated one does not
    "openvino": "3.12",  # before, it imports `openvino.runtime`, which is gone, and cannot compute what the models need
}
TOO_NEW = {  # by backend: what pip would choose beside it that does not work with it
    "tensorflow==2.16": "onnx<1.19",  # a newer one needs a newer ml_dtypes than TensorFlow, and does not say so
}
NOT_THERE = ("No matching distribution found", "ResolutionImpossible", "conflicting dependencies")
FAULTS = ("Installation failed: ", "pip check: ")
TEXT = """\
# Versions

`tools/version_matrix.py` wrote this page. For each row, it made a new virtual environment with one backend, and
installed the wheel and the test extra. Then it ran the first cases of the numeric core of the tests (`-m first_case`).

- OpenVINO is installed in all environments, because the tests export to it. Keras on OpenVINO does not train, so only
  the tests of a few files run there. The oldest Keras that runs on OpenVINO is 3.12.
- *Newest* is the newest Keras that pip finds for this Python and backend. A backend without a version is also the
  newest.
- With TensorFlow 2.16, onnx is held below 1.19, because a newer onnx cannot be imported with it.
- *Seconds* is the duration of the tests.
- A row without numbers is a combination that pip cannot install, with pip's reason.

{table}

{missing}
"""


class Cell(NamedTuple):
    """What is asked for; `backend` is a name, or name==version."""

    python: str
    keras: str
    backend: str

    @property
    def framework(self):
        return self.backend.partition("==")[0]

    def __str__(self):
        return f"Python {self.python}, Keras {self.keras}, {self.backend}"


def stated(path=ROOT / "pyproject.toml"):
    """Return what pyproject.toml states: all cells, and the requirements of the test extra."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    oldest_keras = re.search(r"^keras>=(\S+)", "\n".join(project["dependencies"]), re.MULTILINE)[1]
    extras = project["optional-dependencies"]
    backends = []
    for name in BACKENDS:
        bound = re.search(r">=(\S+)", extras[name][0])
        backends += [name, f"{name}=={bound[1]}"] if bound else [name]
    cells = [
        Cell(python, OLDEST_KERAS.get(backend, oldest_keras) if keras != NEWEST else NEWEST, backend)
        for python, keras, backend in itertools.product(pythons, (oldest_keras, NEWEST), backends)
    ]
    examples = f"{project['name']}[examples]"
    test = [line for own in extras["test"] for line in (extras["examples"] if own == examples else [own])]
    return cells, test


def selected(cells, only):
    """Return the cells that `only` names, such as `py=3.11,keras=3.10,backend=jax`; a key may come several times.

    Raises:
        ValueError: For a key or value that names no cell.
    """
    fields = {"py": "python", "keras": "keras", "backend": "backend"}
    chosen = {}
    for part in only.split(",") if only else ():
        key, _, value = part.partition("=")
        if key not in fields:
            raise ValueError(f"--only got {part!r}. Pass py=…, keras=… or backend=…, with commas between them.")
        known = {getattr(cell, fields[key]) for cell in cells}
        if value not in known:
            raise ValueError(f"--only got {part!r}. Known for {key}: {', '.join(sorted(known))}.")
        chosen.setdefault(fields[key], set()).add(value)
    return [cell for cell in cells if all(getattr(cell, field) in values for field, values in chosen.items())]


def requirements(cell, test_extra):
    """Return what pip is asked for beside the wheel, and the constraints on it."""

    def framework(requirement):
        return re.match(r"[\w-]+", requirement)[0].removesuffix("-cpu")

    needed = [line for line in test_extra if framework(line) not in {*ALONE} - {cell.framework}]
    if cell.framework not in map(framework, needed):
        needed.append(cell.framework)
    constraints = [] if cell.keras == NEWEST else [f"keras=={cell.keras}.*"]
    constraints += [TOO_NEW[cell.backend]] if cell.backend in TOO_NEW else []
    version = cell.backend.partition("==")[2]
    if version:
        constraints += [f"{name}=={version}.*" for name in (cell.framework, f"{cell.framework}-cpu")]
    return needed, constraints


def files(cell):
    """Return the files of tests that run in a cell; none for all. On OpenVINO, which trains nothing, the Makefile's."""
    if cell.framework != "openvino":
        return ()
    listed = re.search(r"^OPENVINO_TESTS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    return tuple(f"tests/{name}" for name in listed.split())


def run(*command, timeout=3600, **options):
    """Run a command without the caller's Python settings; return its exit status and all that it printed."""
    unwanted = ("PYTHON", "KERAS", "VIT_KERAS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    environment.update(options.pop("environment", {}))
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env=environment,
            timeout=timeout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **options,
        )
    except subprocess.TimeoutExpired:
        return 124, f"stopped after {timeout} seconds"
    return done.returncode, done.stdout


@functools.cache
def interpreter(version):
    """Return the path of a Python of this version, such as "3.11", or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    if shutil.which("uv"):
        candidates.append(run("uv", "python", "find", version)[1].strip())
    for candidate in filter(None, candidates):
        if run(candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == (0, f"{version}\n"):
            return str(candidate)
    return None


def build(folder):
    """Build the wheel once; return its path, and that of a copy of the tests with no package beside them."""
    source = folder / "source"
    left_out = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, source, ignore=left_out)
    status, said = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, source)
    if status:
        raise SystemExit(f"The wheel cannot be built.\n{said}")
    shutil.rmtree(source / "vit_keras")  # the tests must find the one that is installed
    return next(folder.glob("vit_keras-*.whl")), source


def reason(said):
    """Return what pip gives as the reason that it installs nothing, in one line."""
    lines = [line.strip() for line in said.splitlines()]
    if "The conflict is caused by:" in lines:
        start = lines.index("The conflict is caused by:") + 1
        return "; ".join(filter(None, itertools.takewhile(lambda line: not line.startswith("To fix"), lines[start:])))
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return errors[0] if errors else lines[-1]


def outcome(report):
    """Return columns from pytest's XML report: how many tests passed, failed, were skipped; seconds; which failed."""
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    tests, failures, errors, skipped = (int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped"))
    failed = failures + errors
    numbers = (tests - failed - skipped, failed, skipped, round(float(suite.get("time"))))
    broken = [
        case for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    names = "; ".join(f"{case.get('classname')}.{case.get('name')}" for case in broken)
    return {**dict(zip(COUNTS, map(str, numbers))), "Remark": f"Failed: {names}" if names else ""}


def installed(python, cell):
    """Return the versions in an environment: Python, Keras, the backend and NumPy."""
    entries = json.loads(run(python, "-m", "pip", "list", "--format=json")[1])
    packages = {entry["name"].replace("_", "-"): entry["version"] for entry in entries}
    names = ("keras", cell.framework, f"{cell.framework}-cpu", "numpy")
    versions = [f"{name} {packages[name]}" for name in names if name in packages]
    return ", ".join([run(python, "--version")[1].strip(), *versions])


def measure(cell, base, wheel, source, test_extra, folder, workers):
    """Return the columns of one cell from "Installed" on, with what was printed."""
    environment = folder / "environment"
    shutil.rmtree(environment, ignore_errors=True)
    log, row = [], {}

    def step(*command, **options):
        status, said = run(*command, **options)
        log.append(f"$ {' '.join(map(str, command))}\n{said}")
        return status, said

    try:
        step(base, "-m", "venv", "--upgrade-deps", environment)
        python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
        needed, constraints = requirements(cell, test_extra)
        limits = folder / "constraints.txt"
        limits.write_text("\n".join(constraints), encoding="utf-8")
        pip = (python, "-m", "pip")
        install = (*pip, "install", "--no-compile", "--only-binary", ":all:", "--constraint", limits)
        status, said = step(*install, wheel, *needed)
        if status:
            row["Remark"] = ("" if any(words in said for words in NOT_THERE) else FAULTS[0]) + reason(said)
            return row, log
        row["Installed"] = installed(python, cell)
        status, said = step(*pip, "check")
        unmet = FAULTS[1] + "; ".join(said.strip().splitlines()) if status else ""
        report = folder / "report.xml"
        report.unlink(missing_ok=True)
        tests = (python, "-m", "pytest", "-W", "default", "-n", workers, "--dist", "worksteal")
        tests += ("-m", "first_case", "--junitxml", report)
        tests += files(cell)
        settings = {
            "KERAS_BACKEND": cell.framework,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes longer than what is tested
        }
        status, said = step(*tests, cwd=source, environment=settings)
        if report.is_file():
            row.update(outcome(report))
        if status and row.get("Failed", "0") == "0":
            row.update({"Failed": "all", "Remark": f"No test ran: {said.strip().splitlines()[-1]}"})
        row["Remark"] = ". ".join(filter(None, (unmet, row.get("Remark"))))
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    return row, log


def order(cell):
    """Return the key by which cells are sorted: the numbers of versions as numbers, the newest last."""

    def numbers(version):
        return [float("inf") if version == NEWEST else int(part) for part in version.split(".")]

    return numbers(cell.python), numbers(cell.keras), BACKENDS.index(cell.framework), cell.backend


def read(table):
    """Return the rows of a table as `{cell: {column: value}}`."""
    rows = {}
    for line in table.read_text(encoding="utf-8").splitlines() if table.is_file() else ():
        values = [value.strip() for value in line.strip("|").split("|")]
        if line.startswith("| 3.") and len(values) == len(COLUMNS):
            row = dict(zip(COLUMNS, values))
            rows[Cell(*(row[name] for name in KEY))] = row
    return rows


def write(table, rows, cells):
    """Write the page: the rows in order, then which cells have none."""
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    for cell in sorted(rows, key=order):
        row = {**rows[cell], **dict(zip(KEY, cell))}
        lines.append([" ".join(row.get(name, "").replace("|", "/").split()) for name in COLUMNS])
    untried = sorted(set(cells) - set(rows), key=order)
    groups = itertools.groupby(untried, lambda cell: f"Python {cell.python} with Keras {cell.keras}")
    missing = [f"- {group}: {', '.join(cell.backend for cell in of_group)}" for group, of_group in groups]
    told = "\n".join(["Not tried yet:", "", *missing]) if missing else "Every combination was tried."
    text = TEXT.format(table="\n".join("| " + " | ".join(line) + " |" for line in lines), missing=told)
    table.write_text(text, encoding="utf-8")


def package_version():
    return re.search(r'__version__ = "(.+)"', (ROOT / "vit_keras" / "__init__.py").read_text(encoding="utf-8"))[1]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="py=…,keras=…,backend=…", help="cells to try; default: all")
    parser.add_argument("--again", action="store_true", help="also try cells that have a row of this version")
    parser.add_argument("--dry-run", action="store_true", help="list the cells and what pip would be asked for")
    parser.add_argument("--folder", type=Path, help="folder of environments and logs; default: a temporary one")
    parser.add_argument("--table", type=Path, default=TABLE, help="page to read and write; default: docs/versions.md")
    parser.add_argument("--workers", type=int, default=2, help="processes of the tests; default: 2")
    options = parser.parse_args(arguments)
    all_cells, test_extra = stated()
    try:
        cells = selected(all_cells, options.only)
    except ValueError as error:
        parser.error(str(error))
    rows, version = read(options.table), package_version()
    if not options.again:
        cells = [cell for cell in cells if rows.get(cell, {}).get("vit_keras") != version]
    if options.dry_run:
        for cell in cells:
            needed, constraints = requirements(cell, test_extra)
            print(f"{cell} ({interpreter(cell.python) or 'not found'})")
            print(f"    pip install vit_keras-{version}.whl {' '.join(map(repr, needed))}")
            print(f"    constraints: {' '.join(constraints) or 'none'}")
        return 0

    pythons = {name: interpreter(name) for name in {cell.python for cell in cells}}
    absent = sorted(name for name, path in pythons.items() if path is None)
    for name in absent:
        print(f"There is no Python {name} here. Install it, for example with: uv python install {name}")
    cells = [cell for cell in cells if pythons[cell.python]]
    if not cells:
        write(options.table, rows, all_cells)
        return int(bool(absent))

    folder = (options.folder or Path(tempfile.mkdtemp(prefix="vit_keras_versions_"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    failed = bool(absent)
    with tempfile.TemporaryDirectory(dir=folder) as built:
        wheel, source = build(Path(built))
        for cell in cells:
            print(f"{cell} …", flush=True)
            row, log = measure(cell, pythons[cell.python], wheel, source, test_extra, folder, options.workers)
            (folder / f"{'-'.join(cell)}.log").write_text("\n".join(log), encoding="utf-8")
            row |= {"Date": datetime.date.today().isoformat(), "vit_keras": version}
            rows = {**read(options.table), cell: row}
            write(options.table, rows, all_cells)
            print("    " + ", ".join(f"{name}: {value}" for name, value in row.items()), flush=True)
            failed |= row.get("Failed", "0") != "0" or row.get("Remark", "").startswith(FAULTS)
    print(f"Logs are in {folder}.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
