"""Files as programs write them: several networks in one, settings in other places, and formats that are not read."""

import json
import re
import zipfile

import keras
import numpy as np
import pytest
from family_files import load, run, write, write_safetensors
from support import ASSUMED, DATA, tiny_model

import vit_keras
from vit_keras import from_checkpoint, vit
from vit_keras.checkpoints import grids, timm_models
from vit_keras.checkpoints.families import FAMILIES
from vit_keras.checkpoints.families.rules import ATTENTION, POSITIONS
from vit_keras.checkpoints.weights import Weights

pytestmark = ASSUMED


def write_two(path, first, second):
    """Write two networks, of which the second has twice the values of the first."""
    arrays = load("timm_vit").state_dict()
    both = {f"{first}{n}": a for n, a in arrays.items()} | {f"{second}{n}": 2 * a for n, a in arrays.items()}
    return write_safetensors(path / "two.safetensors", both), arrays["cls_token"]


@pytest.mark.parametrize(
    ("second", "first"),  # the second is what authors evaluate
    [
        ("teacher.backbone.", "student.backbone."),
        ("teacher_backbone.", "student_backbone."),
        ("module.encoder_q.", "module.encoder_k."),
        ("base_encoder.", "momentum_encoder."),
        ("model_ema.module.", "model."),
        ("ema.", ""),
    ],
)
def test_of_two_networks_the_one_that_authors_evaluate_is_read(second, first, tmp_path):
    path, token = write_two(tmp_path, first, second)
    keys = [prefix.removesuffix(".") for prefix in (second, first)]
    with pytest.warns(UserWarning, match=rf"{re.escape(repr(keys[0]))} is read.*key={re.escape(repr(keys[1]))}"):
        model = from_checkpoint(path, num_heads=2)
    assert model.load_report.key == keys[0] and len(model.load_report.ignored) == len(load("timm_vit").state_dict())
    for factor, key in ((2, keys[0]), (1, keys[1]), (2, second.split(".")[-2])):
        np.testing.assert_array_equal(Weights(path, key=key)["cls"], factor * token)


def test_two_networks_that_nothing_ranks_are_named(tmp_path):
    path, token = write_two(tmp_path, "a.", "b.")
    with pytest.raises(ValueError, match="key='a', key='b'"):
        Weights(path)
    np.testing.assert_array_equal(Weights(path, key="b")["cls"], 2 * token)
    with pytest.raises(ValueError, match="key='c'"):
        Weights(path, key="c")


@pytest.mark.only_on("torch")
def test_a_key_in_the_middle_of_names_in_a_pytorch_file(tmp_path):
    import torch

    arrays = {name: torch.tensor(np.array(array)) for name, array in load("timm_vit").state_dict().items()}
    both = {f"module.{encoder}.{n}": f * a for n, a in arrays.items() for f, encoder in ((1, "base"), (2, "momentum"))}
    torch.save({"state_dict": both}, tmp_path / "x.pth")
    for factor, key in ((1, "base"), (2, "momentum"), (2, "module.momentum")):
        np.testing.assert_array_equal(Weights(tmp_path / "x.pth", key=key)["cls"], factor * arrays["cls_token"])


def test_the_chunks_of_dinov2s_trainer(tmp_path):
    arrays = load("dinov2_hub").state_dict()
    chunked = {re.sub(r"blocks\.(\d)", r"blocks.\1.\1", name): array for name, array in arrays.items()}
    expected = Weights(write_safetensors(tmp_path / "whole.safetensors", arrays))
    found = Weights(write_safetensors(tmp_path / "chunked.safetensors", chunked))
    assert (found.family, found.shapes) == (expected.family, expected.shapes)
    two = {f"{network}.backbone.{n}": a for network in ("teacher", "student") for n, a in chunked.items()}
    two |= {f"{network}.dino_head.mlp.0.weight": np.ones((2, 2), "f4") for network in ("teacher", "student")}
    assert Weights(write_safetensors(tmp_path / "two.safetensors", two), key="student").shapes == expected.shapes


@pytest.mark.only_on("torch")
def test_the_state_dict_of_a_sequential(tmp_path):
    import torch

    model = tiny_model()
    torch.save(keras.Sequential([model, keras.layers.Dense(4)]).state_dict(), tmp_path / "x.pth")
    assert Weights(tmp_path / "x.pth", strict=False).shapes == Weights(_of_torch(model, tmp_path)).shapes


@pytest.mark.parametrize("case", ["openai_clip", "open_clip_tower"])
def test_an_unknown_array_anywhere_in_clips_tower_is_an_error(case, tmp_path):
    arrays = load(case).state_dict()
    prefix = "visual." if "visual.conv1.weight" in arrays else ""
    inside = {name[: m.end()] for name in arrays if name.startswith(prefix) for m in re.finditer(r"\.|^", name)}
    for place in sorted(place for place in inside if place.startswith(prefix)):
        path = write_safetensors(tmp_path / "x.safetensors", {**arrays, f"{place}extra.weight": np.ones(4, "f4")})
        with pytest.raises(ValueError, match=r"extra\.weight"):
            Weights(path)


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({}, True),
        ({"resnet": (1,), "patch_size": 1}, True),
        ({"registers": 2, "layer_scale": 0.1, "pre_norm": True, "gated_mlp": True, "mlp_activation": "silu"}, True),
        ({"pooling": "map", "relative_positions": True, "patch_norm": True}, True),
        ({"tokens_mlp_dim": 8, "pooling": "gap", "position": None}, True),
        ({"mlp_activation": "gelu"}, False),
    ],
    ids=str,
)
def test_the_state_dict_of_a_model_on_pytorch(options, right, tmp_path):
    model = tiny_model(**options, scale=0.3)
    path = _of_torch(model, tmp_path)
    images = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    with pytest.warns(UserWarning, match="mlp_activation="):
        again = from_checkpoint(path, num_heads=2)
    again.run_eagerly = True
    difference = np.abs(keras.ops.convert_to_numpy(model(images) - again(images))).max()
    assert bool(difference < 1e-5) == right


def _of_torch(model, folder):
    arrays = {f"_torch_params.{v.path}": keras.ops.convert_to_numpy(v) for v in model.weights}
    return write_safetensors(folder / "state.safetensors", arrays)


# --- settings in other places ------------------------------------------------------------------------------------


def test_an_architecture_with_another_gate_does_not_show_the_activation():
    for model in timm_models.models().values():
        for gated in (False, True) if model.arrays and not model.refused else ():
            fields = timm_models.named(model.name, {"pooling": "gap", "gated_mlp": gated})
            agrees = gated is ("gated_mlp=True" in model.arrays)
            assert fields.get("mlp_activation") == (model.fields.get("mlp_activation") if agrees else None), model.name


def test_a_gate_that_config_json_does_not_name(tmp_path):
    golden = load("timm_dinov2_giant")
    config = {"architecture": "vit_tiny_patch16_224", "model_args": {"embed_dim": 64, "num_heads": 2, "depth": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = write(golden, tmp_path, config=False)
    with pytest.warns(UserWarning, match="mlp_activation='silu'"):
        model = from_checkpoint(path)
    assert np.abs(run(model, golden.inputs) - golden.output).max() < 1e-5 * np.abs(golden.output).max()


@pytest.mark.parametrize("more", [{}, {"preprocessor_config.json": {"image_mean": [0.5] * 3, "do_normalize": True}}])
def test_processor_config_json_of_transformers_5(more, tmp_path):
    image = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4] * 3, "size": {"height": 32, "width": 32}}
    for name, content in {"processor_config.json": {"image_processor": image}, **more}.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Weights(write(load("hf_vit"), tmp_path)).preprocessing.mean == pytest.approx((0.1, 0.2, 0.3))


def test_label_names_of_timm(tmp_path):
    names = [f"animal {n}" for n in range(5)]
    config = {"architecture": "vit_tiny_patch16_224", "model_args": {"embed_dim": 64, "num_heads": 2, "depth": 2}}
    (tmp_path / "config.json").write_text(json.dumps({**config, "label_names": names}))
    assert Weights(write(load("timm_vit"), tmp_path)).labels == tuple(names)


def test_transformers_takes_beits_learned_positions_for_a_square():
    def table(learned, relative, stated):
        shapes = {POSITIONS: (1, learned, 8), f"{ATTENTION}/relative_position_bias".format(i=0): (relative, 2)}
        shapes = {name: shape for name, shape in {**shapes, "cls": (1, 1, 8)}.items() if None not in shape}
        return grids.read(shapes, FAMILIES["huggingface-beit"], stated=stated)

    assert table(17, None, (2, 8)).grid == (4, 4) and table(17, None, (2, 8)).native == (2, 8)
    assert table(17, 7 * 7 + 3, (4, 4)).grid == (4, 4)
    assert table(None, 3 * 15 + 3, (2, 8)).grid == (8, 2)
    both = table(17, 3 * 15 + 3, (2, 8))
    assert both.grid is None and "square" in both.error


# --- formats -----------------------------------------------------------------------------------------------------


def test_preprocess_inputs_in_a_lambda_opens_again(tmp_path):
    layers = [keras.Input((32, 32, 3)), keras.layers.Lambda(vit.preprocess_inputs), tiny_model()]
    model, pixels = keras.Sequential(layers), np.full((1, 32, 32, 3), 200, "uint8")
    model.save(tmp_path / "x.keras")
    for load_model in (keras.models.load_model, vit_keras.load_model):
        np.testing.assert_array_equal(load_model(tmp_path / "x.keras").predict(pixels), model.predict(pixels))


def test_a_keras_file_of_tf_keras(tmp_path):
    source = DATA / "vit_keras_0" / "v010.keras"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "x.keras", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(b'"keras.src', b'"tf_keras.src') if name == "config.json" else content)
    images = np.random.default_rng(0).uniform(-1, 1, (1, *vit_keras.load_model(source).input_shape[1:]))
    results = [vit_keras.load_model(path).predict(images) for path in (source, tmp_path / "x.keras")]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("name", ["cp.ckpt", "cp.ckpt.index", "cp.ckpt.data-00000-of-00001", "saved"])
def test_formats_of_keras_2_alone_are_named(name, tmp_path):
    for file in ("cp.ckpt.index", "cp.ckpt.data-00000-of-00001", "saved/saved_model.pb", "saved/keras_metadata.pb"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"\0")
    for open_file in (vit_keras.open_model, from_checkpoint, tiny_model().load_weights):
        with pytest.raises(ValueError, match="Keras 2"):
            open_file(tmp_path / name)
    with pytest.raises(ValueError, match="Keras 2"):
        vit_keras.load_model(tmp_path / name)


def test_folders_without_a_model_of_their_own(tmp_path):
    write_safetensors(tmp_path / "adapter_model.safetensors", {"a.lora_A.weight": np.ones(1, "f4")})
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="PEFT"):
        from_checkpoint(tmp_path)
    write(load("timm_vit"), tmp_path / "runs" / "checkpoint-500")
    with pytest.raises(FileNotFoundError, match="checkpoint-500"):
        from_checkpoint(tmp_path / "runs")
