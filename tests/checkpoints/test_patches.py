"""Linear patch embeddings: how many channels the patches of a file have."""

import json

import keras
import numpy as np
import pytest
from support import forget_settings

from vit_keras import from_checkpoint, open_model, save_weights, vit
from vit_keras.checkpoints import load_weights

SIZES = [(1, 3), (1, 4), (2, 4), (3, 4), (4, 3), (4, 4)]
OPEN = [(1, 4), (4, 3), (4, 4)]  # as many values as another number of channels has in larger or smaller patches


def written(channels, patch, folder):
    """Return a model, and a file in which timm's NaFlexViT has its weights."""
    options = {"position_prefix": False, "mlp_activation": "gelu", "position_resize": "bicubic_antialias"}
    model = vit.build_model(2 * patch, patch, 1, 64, 1, "tiny", 32, classes=3, channels=channels, **options)
    file = folder / "model.safetensors"
    save_weights(model, file, "timm-naflex")
    return model, file


def assert_same(opened, model):
    assert (opened.config.channels, opened.config.patch_size) == (model.config.channels, model.config.patch_size)
    images = np.random.default_rng(0).uniform(-1, 1, (1, *model.input_shape[1:])).astype("float32")
    found, expected = (keras.ops.convert_to_numpy(each(images)) for each in (opened, model))
    np.testing.assert_allclose(found, expected, atol=1e-6)  # the same sums in float32


@pytest.mark.parametrize(("channels", "patch"), SIZES)
def test_our_settings_decide_and_without_them_the_argument_where_the_arrays_do_not(channels, patch, tmp_path):
    model, file = written(channels, patch, tmp_path)
    assert_same(open_model(file), model)
    forget_settings(file)
    options = {"num_heads": 1, "image_size": 2 * patch}
    if (channels, patch) in OPEN:
        with pytest.raises(ValueError, match=r"channels=1 .*channels=4 .*config\.json"):
            from_checkpoint(file, **options)
        options["channels"] = channels
    assert_same(from_checkpoint(file, **options), model)


@pytest.mark.filterwarnings("ignore")  # of a mean for three channels
@pytest.mark.parametrize(
    ("config", "channels", "patch"), [("model_args", 1, 4), ("model_args", 4, 3), ("pretrained_cfg", 4, 4)]
)
def test_timms_config_decides(config, channels, patch, tmp_path):
    model, file = written(channels, patch, tmp_path)
    forget_settings(file)
    said = {
        "model_args": {"model_args": {"in_chans": channels}},
        "pretrained_cfg": {"pretrained_cfg": {"input_size": [channels, 2 * patch, 2 * patch]}},
    }
    (tmp_path / "config.json").write_text(json.dumps({"num_features": 64, **said[config]}))
    assert_same(from_checkpoint(file, num_heads=1, image_size=2 * patch), model)


@pytest.mark.parametrize(("channels", "patch"), OPEN)
def test_the_model_that_is_filled_decides(channels, patch, tmp_path):
    model, file = written(channels, patch, tmp_path)
    forget_settings(file)
    again = vit.build(model.config)
    load_weights(again, file)
    assert_same(again, model)
