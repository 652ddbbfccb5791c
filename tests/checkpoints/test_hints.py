"""Warnings of checkpoints point to the user's own line, from however deep inside the package they come."""

import warnings

import numpy as np
import pytest
from family_files import load, write, write_safetensors

from vit_keras import checkpoints, from_checkpoint, vit
from vit_keras.checkpoints.weights import Weights


def with_broken_config(folder):
    path = write(load("timm_vit"), folder)
    (folder / "config.json").write_text("[1]")
    return path


def weights(folder):
    Weights(with_broken_config(folder))


def from_a_file(folder):
    from_checkpoint(with_broken_config(folder), num_heads=2, pooling="token")


def broken_processor(folder):
    (folder / "preprocessor_config.json").write_text('{"image_mean": "x"}')
    Weights(write(load("timm_vit"), folder))


def not_finite(folder):
    arrays = load("timm_vit").state_dict()
    arrays["norm.bias"] = np.full_like(arrays["norm.bias"], np.nan)
    from_checkpoint(write_safetensors(folder / "model.safetensors", arrays), num_heads=2, pooling="token")


def other_numerics(folder):
    path = write(load("timm_vit"), folder)
    checkpoints.load_weights(from_checkpoint(path, num_heads=2, pooling="token", mlp_activation="gelu_tanh"), path)


def written(folder):
    model = vit.build_model(32, 8, 1, 64, 2, "small", 64, classes=2, mlp_activation="gelu")
    checkpoints.save_weights(model, folder / "x.npz")


@pytest.mark.parametrize("warn", [weights, from_a_file, broken_processor, not_finite, other_numerics, written])
def test_a_warning_points_to_the_caller(warn, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn(tmp_path)
    found = [warning for warning in caught if warning.category is UserWarning]
    assert [warning.filename for warning in found] == [__file__]
