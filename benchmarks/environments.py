"""Define and make the virtual environments of the contenders."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

_X86_LINUX = (platform.system(), platform.machine()) == ("Linux", "x86_64")
TENSORFLOW = "tensorflow-cpu==2.21.0" if _X86_LINUX else "tensorflow==2.21.0"
TORCH = "torch==2.13.0"
JAX = "jax==0.10.2"
OPENVINO = "openvino==2026.4.1"
KERAS = ("keras==3.15.1", "numpy==2.4.6")
OURS = ("filelock", "h5py", "pillow", "rich")  # vit_keras needs these too; its checkout is put on the path
HUB = (
    "absl-py",
    "kagglehub",
    "kagglesdk==0.1.28",
    "packaging",
    "regex",
    "rich",
    "safetensors",
    "sentencepiece",
    "tokenizers",
)
HUGGING_FACE = ("huggingface-hub", "packaging", "pyyaml", "regex", "safetensors", "tokenizers", "tqdm", "typer")

# {name: arguments of successive calls of `pip install`}. `--no-deps` is for packages that require another build of
# TensorFlow than the one measured here (tensorflow-text), an older NumPy than they need (tfvit), or torchvision, which
# no measurement uses (timm).
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "tensorflow": ((*KERAS, TENSORFLOW, *OURS), ("--no-deps", "tfvit==2.1.0")),
    "jax": ((*KERAS, JAX, *OURS),),
    "torch": (
        (TORCH,),
        (*KERAS, *OURS, *HUGGING_FACE, "onnx==1.23.2", "onnxscript", "psutil", "scikit-learn"),
        ("--no-deps", "timm==1.0.31", "transformers==5.23.0", "accelerate"),
    ),
    "vit-keras-0.2": ((*KERAS, TENSORFLOW, "vit-keras==0.2.0", "opencv-python-headless", "typing_extensions"),),
    "keras-hub": (
        (TORCH,),
        (*KERAS, TENSORFLOW, JAX, "pillow", *HUB),
        ("--no-deps", "tensorflow-text==2.21.0", "keras-hub==0.32.0"),
    ),
    "runtimes": (("numpy==2.4.6", "pillow", "onnxruntime==1.31.1", OPENVINO),),
    "openvino": ((*KERAS, OPENVINO, "scipy", *OURS),),
}


_failed: dict[Path, str] = {}


class EnvironmentFailed(Exception):
    """An environment could not be made; the message is the end of the output of pip."""


def make(name: str, folder: Path) -> Path:
    """Make an environment, unless it exists with exactly these packages.

    Args:
        name: A key of `ENVIRONMENTS`.
        folder: Where the environments are.

    Returns:
        Its Python interpreter.

    Raises:
        EnvironmentFailed: A package could not be installed.
    """
    home = folder / name
    python = home / ("Scripts/python.exe" if platform.system() == "Windows" else "bin/python")
    stamp = home / "benchmark.json"
    wanted = json.dumps([sys.version_info[:2], ENVIRONMENTS[name]])
    if stamp.is_file() and json.dumps(json.loads(stamp.read_text())["made_of"]) == wanted:
        return python
    if home in _failed:  # do not try again for each cell
        raise EnvironmentFailed(_failed[home])
    print(f"Making the environment {name} in {home} ...", file=sys.stderr, flush=True)
    try:
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        for packages in ENVIRONMENTS[name]:
            _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    except EnvironmentFailed as error:
        _failed[home] = str(error)
        raise
    frozen = _run([str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"])
    versions = {package["name"]: package["version"] for package in json.loads(frozen)}
    stamp.write_text(json.dumps({"made_of": json.loads(wanted), "versions": versions}, indent=1))
    return python


def versions(name: str, folder: Path) -> dict[str, str]:
    """Return `{package: version}` of an environment that `make` has made, empty if it failed."""
    stamp = folder / name / "benchmark.json"
    return json.loads(stamp.read_text())["versions"] if stamp.is_file() else {}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise EnvironmentFailed(" ".join(lines[-2:])[-300:])
    return done.stdout
