"""What is chosen where a file leaves a choice: averaged weights, pooling, values that are not finite; and how short
and how clear the messages about hostile files are.
"""

import json
import warnings

import numpy as np
import pytest
from family_files import load, run, write
from support import one_at_a_time
from torch_pickles import state_dict, tensor, torch_zip

import vit_keras
from vit_keras import checkpoints, from_checkpoint, load_model, open_model, training, vit
from vit_keras._internal.bounds import LIMIT_LAYERS
from vit_keras.checkpoints import describe, wording

TIMM = {"architecture": "vit_tiny_patch16_224", "model_args": {"embed_dim": 64, "num_heads": 2, "depth": 2}}


def two_state_dicts(folder, raw, averaged):
    """Write a file of PyTorch with the weights of a ViT, and with those of another one as their moving average."""
    arrays = load("timm_vit").state_dict()
    items = {name: tensor(a.shape, _strides(a), key=f"{i}") for i, (name, a) in enumerate(arrays.items())}
    others = {
        name: tensor(a.shape, _strides(a), key=f"{i + len(arrays)}") for i, (name, a) in enumerate(arrays.items())
    }
    program = b"\x80\x02}("
    for key, found in ((raw, items), (averaged, others)):
        program += b"X" + len(key).to_bytes(4, "little") + key.encode() + state_dict(**found)[2:-1]
    storages = [(a / n).astype("float32").tobytes() for n in (1, 2) for a in arrays.values()]
    return torch_zip(folder / "run.pth", program + b"u.", storages), arrays


def _strides(array):
    return tuple(step // array.itemsize for step in array.strides)


@pytest.mark.parametrize(
    ("raw", "averaged"),
    [("state_dict", "state_dict_ema"), ("model", "model_ema"), ("student", "teacher"), ("encoder", "target_encoder")],
)
def test_averaged_weights_are_read_as_authors_evaluate_them(raw, averaged, tmp_path):
    path, arrays = two_state_dicts(tmp_path, raw, averaged)
    options = {"num_heads": 2, "pooling": "token"}
    with pytest.warns(UserWarning, match=f"'{averaged}' is read, .*key='{raw}'"):
        model = from_checkpoint(path, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = from_checkpoint(path, key=raw, **options)
    bias = [np.asarray(m.get_layer("head").bias) for m in (model, other)]
    np.testing.assert_array_equal(bias[0], arrays["head.bias"] / 2)
    np.testing.assert_array_equal(bias[1], arrays["head.bias"])
    assert (model.load_report.key, other.load_report.key) == (averaged, raw)
    assert averaged in str(model.load_report)
    assert ("state dict", f"{averaged!r}, of {averaged!r}, {raw!r}") in wording.sentences(describe.describe(path))[0]


def test_a_head_on_every_token_is_refused(tmp_path):
    golden = load("timm_vit")
    path = write(golden, tmp_path)
    arguments = {**TIMM["model_args"], "global_pool": "", "pool_include_prefix": False}
    (tmp_path / "config.json").write_text(json.dumps({**TIMM, "model_args": arguments}))
    with pytest.raises(ValueError, match="every token.*include_top=False"):
        from_checkpoint(path)
    assert from_checkpoint(path, include_top=False).output_shape == (None, 17, 64)
    found = run(from_checkpoint(path, pooling="token"), golden.inputs)
    assert np.abs(found - golden.output).max() < 1e-5 * max(1, np.abs(golden.output).max())  # float32


def test_a_pooling_that_nothing_shows_is_a_warning(tmp_path):
    path = write(load("timm_vit"), tmp_path)
    with pytest.warns(UserWarning, match="read with pooling='token'"):
        assert from_checkpoint(path, num_heads=2).load_report.assumed["pooling"] == "token"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_checkpoint(path, num_heads=2, pooling="gap")


@pytest.mark.parametrize(
    ("suffix", "value"), one_at_a_time([".safetensors", ".weights.h5", ".keras"], [np.nan, np.inf, -np.inf])
)
def test_weights_that_are_not_finite_are_a_warning(suffix, value, tmp_path):
    model = vit.build_model(32, 16, 1, 64, 2, "small", 64, classes=2)
    kernel = np.zeros((64, 2), "float32")
    kernel[3, 1] = value
    model.get_layer("head").kernel.assign(kernel)
    path = tmp_path / f"a{suffix}"
    save = {".keras": model.save, ".weights.h5": model.save_weights}
    save.get(suffix, lambda path: checkpoints.save_weights(model, path))(path)
    read = model.load_weights if suffix == ".weights.h5" else open_model
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        opened = read(path)
    assert suffix != ".safetensors" or opened.load_report.not_finite == ("head/kernel",)
    said = [str(w.message) for w in caught if "undefined" in str(w.message)]
    assert len(said) == 1
    assert f"{path} has infinite or undefined values in 1 of " in said[0]
    assert "head/kernel" in said[0]


def test_a_weight_that_float16_cannot_hold_is_a_warning(tmp_path):
    path = tmp_path / "a.safetensors"
    model = vit.build_model(32, 16, 1, 64, 2, "small", 64, classes=2)
    kernel = next(weight for weight in model.weights if weight.path == "embedding/kernel")
    kernel.assign(np.full(kernel.shape, 1e6))
    checkpoints.save_weights(model, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_model(path)
    with pytest.warns(UserWarning, match="undefined values in 1 .*embedding/kernel"):
        open_model(path, dtype="float16")


WRAPPED = {
    "packed": lambda model: vit_keras.pack(model, tokens=8, images=1),
    "distilled": lambda model: training.Distillation(model, vit_keras.resize(model, 32), alpha=0.5),
    "masked": lambda model: training.MaskedAutoencoder(model, decoder_depth=1, decoder_width=16, decoder_heads=2),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_model_around_another_warns_of_its_weights(kind, tmp_path):
    def make():
        return WRAPPED[kind](vit.build_model(32, 16, 1, 64, 2, "small", 64, classes=2))

    model = make()
    kernel = next(weight for weight in model.weights if weight.path == "embedding/kernel")
    kernel.assign(np.full(kernel.shape, np.nan))
    model.save_weights(tmp_path / "a.weights.h5")
    with pytest.warns(UserWarning, match="undefined values in 1 .*embedding/kernel"):
        make().load_weights(tmp_path / "a.weights.h5")


def saved(folder, layers):
    """Write a `.keras` file with these layers in its configuration and no weights."""
    import io
    import zipfile

    import h5py

    store = io.BytesIO()
    h5py.File(store, "w").close()
    config = {"module": "keras", "class_name": "Sequential", "config": {"name": "m", "layers": layers}}
    with zipfile.ZipFile(folder / "a.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("metadata.json", '{"keras_version": "3.9.0"}')
        archive.writestr("model.weights.h5", store.getvalue())
    return folder / "a.keras"


def dense(**config):
    return {"module": "keras.layers", "class_name": "Dense", "config": {"units": 4, **config}}


@pytest.mark.parametrize("wrapped", [False, True])
def test_thousands_of_layers_are_refused_before_they_are_built(wrapped, tmp_path):
    one = (
        {"module": "keras.layers", "class_name": "TimeDistributed", "config": {"layer": dense()}}
        if wrapped
        else dense()
    )
    path = saved(tmp_path, [one] * (LIMIT_LAYERS + 1))
    with pytest.raises(ValueError, match=f"layers, .*at most {LIMIT_LAYERS:,}"):
        load_model(path)
