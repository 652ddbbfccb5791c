"""What a release would hold: the archives, what is installed from them, and what an import of that does."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
import zlib
from pathlib import Path

import keras
import pytest
from support import ROOT

DATA_FILES = {
    "imagenet2012.txt",
    "_internal/picture_page.html",
    "py.typed",
    "checkpoints/registry.csv",
    "checkpoints/registry_timm.csv",
    "checkpoints/sizes.csv",
    "checkpoints/timm_models.csv",
    "checkpoints/vit_cifar10.npz",
    "export/web.js",
    "text/open_clip.txt",
    "training/evaluation/report.html",
    "visualize/explore/explorer.html",
}
WHEEL_BYTES = 2_600_000
"""Most bytes of the wheel: 1.5 MB are the model in it, 0.8 MB all else, and the rest is room for a few modules."""

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"
PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"
NEEDED = "needed.pth"
NO_NETWORK = """
import socket
def refuse(*arguments, **options):
    raise AssertionError(f"the network is asked for {arguments}")
socket.socket.connect = socket.getaddrinfo = socket.gethostbyname = refuse
"""
OPEN = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import vit_keras, keras
    vit_keras.vit
print([str(warning) for warning in caught if "vit_keras" in warning.filename])
import numpy as np
picture = np.full((40, 50, 3), 200, "uint8")
model = vit_keras.open_model("vit_cifar10")
print(model.predict(model.preprocess(picture), verbose=0).shape)
print(vit_keras.__file__)
"""


def run(*command, folder):
    """Return what a program prints that finds only what is installed."""
    unwanted = ("PYTHON", "PIP", "VIT_KERAS", "COLUMNS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    environment |= {"KERAS_BACKEND": keras.backend.backend(), "VIT_KERAS_HOME": str(folder / "home")}
    command = [str(part) for part in command]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, and the wheel that is built from it alone."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("archives")
    left_out = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, folder / "clone", ignore=left_out)
    source = folder / run(sys.executable, "-c", BUILD, "sdist", folder, folder=folder / "clone").split()[-1]
    with tarfile.open(source) as archive:
        how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # as Python 3.11.4 has it
        archive.extractall(folder / "unpacked", **how)
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel = folder / run(sys.executable, "-c", BUILD, "wheel", folder, folder=unpacked).split()[-1]
    return {"sdist": source, "wheel": wheel}


@pytest.fixture(scope="module", params=["sdist", "wheel"])
def installed(request, archives, tmp_path_factory):
    """A new virtual environment with the package, and its programs; what the package needs is this Python's own."""
    folder = tmp_path_factory.mktemp(request.param)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "environment", folder=folder)
    programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    packages = Path(run(programs / "python", "-c", PACKAGES, folder=folder))
    (packages / NEEDED).write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--no-compile")
    run(programs / "python", "-m", "pip", "install", *offline, archives[request.param], folder=folder)
    return programs, packages


def names(archive):
    """Return the names of files in an archive, without the folder of the source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return set(opened.namelist())
    with tarfile.open(archive) as opened:
        return {member.name.partition("/")[2] for member in opened if member.isfile()}


@pytest.mark.any_backend
def test_the_wheel_stays_small():
    files = (path for path in (ROOT / "vit_keras").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    sizes = {path: len(zlib.compress(path.read_bytes())) for path in files}  # as a wheel holds them
    assert sum(sizes.values()) < WHEEL_BYTES, sorted(sizes.items(), key=lambda item: -item[1])[:5]


@pytest.mark.slow
def test_the_wheel_that_is_built_is_small(archives):
    assert archives["wheel"].stat().st_size < WHEEL_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_archives_hold_the_whole_package(archives, kind):
    package = ROOT / "vit_keras"
    files = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert {name for name in files if not name.endswith((".py", ".pyi"))} == DATA_FILES
    assert {f"vit_keras/{name}" for name in files} == {n for n in names(archives[kind]) if n.startswith("vit_keras/")}


@pytest.mark.slow
def test_nothing_else_is_installed(installed):
    _, packages = installed
    (description,) = (path.name for path in packages.glob("*.dist-info"))
    assert {path.name for path in packages.iterdir()} == {"vit_keras", description, NEEDED}
    record = (packages / description / "RECORD").read_text(encoding="utf-8").splitlines()
    outside = [line.split(",")[0] for line in record if not line.startswith(("vit_keras/", description))]
    assert [Path(name).stem for name in outside] == ["vit-keras"]  # the command


@pytest.mark.smoke
@pytest.mark.slow
def test_an_import_warns_of_nothing_and_needs_no_network(installed, tmp_path):
    programs, packages = installed
    run(programs / "python", "-W", "error", "-c", NO_NETWORK + "import vit_keras", folder=tmp_path)
    assert not [*tmp_path.iterdir()]
    *_, warned, shape, path = run(programs / "python", "-c", NO_NETWORK + OPEN, folder=tmp_path).splitlines()
    assert (warned, shape, Path(path)) == ("[]", "(1, 10)", packages / "vit_keras" / "__init__.py")


@pytest.mark.smoke
@pytest.mark.slow
def test_the_command_is_installed(installed, tmp_path):
    programs, _ = installed
    assert run(programs / "vit-keras", "--version", folder=tmp_path).startswith("vit-keras ")
