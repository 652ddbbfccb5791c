"""Keras on OpenVINO: the reference's numbers, and one sentence where gradients are needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

pytest.importorskip("openvino")
pytestmark = pytest.mark.slow

# Two correct float32 implementations differ by about 1e-6 of the largest value; this leaves ten times that.
CLOSE = 1e-5
EXACT = ("call", "predict", "plain predict", "feature_maps", "record", "threads", "call after a change")
EXACT += ("predict after a change", "plain predict after a change", "predict after uint8", "plain predict after uint8")
EXACT += ("evaluate", "plain predict after an error", "predict_on_batch of a tensor", "predict in threads")


def on_openvino(*command):
    """Run Python with Keras on OpenVINO."""
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "goldens")]
    environment = {**os.environ, "KERAS_BACKEND": "openvino", "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("VIT_KERAS_OPENVINO_PRECISION", None)
    return subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    done = on_openvino("tests/openvino_child.py", str(tmp_path_factory.mktemp("openvino")))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.smoke
@pytest.mark.parametrize("what", EXACT)
def test_numbers_are_those_of_the_reference(found, what):
    assert found[what] <= CLOSE


def test_bfloat16_is_used_on_request(found):
    """With 8 bits of precision, a few percent are left; a processor without bfloat16 computes in float32."""
    assert found["bfloat16"] <= 0.05
    processor = Path("/proc/cpuinfo")
    if processor.exists() and "avx512_bf16" in processor.read_text():
        assert found["bfloat16"] > 10 * CLOSE


def test_a_map_without_gradients_is_drawn(found):
    assert found["scores"] <= CLOSE  # each row of the attention sums to 1
    rollout = np.array(found["rollout"])
    assert rollout.shape == (4, 4)
    assert rollout.std() > 0


REFUSED = ("fit", "finetune", "relevance", "distribute")


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_gradients_is_refused(found, what):
    assert "KERAS_BACKEND" in found["refused"][what]


def test_onnx_is_written_by_a_process_with_another_backend(tmp_path):
    path = tmp_path / "small.onnx"
    lines = "from vit_keras import export, vit", f"print(export.export(vit.vit_cifar10(), {str(path)!r}))"
    done = on_openvino("-c", "; ".join(lines))
    assert path.exists(), done.stderr  # `export` has compared its outputs with the model's


def test_the_numeric_core_passes():
    """Google's kinds of models, the real one among them where it is there."""
    done = on_openvino("-m", "pytest", "-q", "-m", "core and not slow", "tests/test_golden.py")
    assert done.returncode == 0, done.stdout[-4000:]
