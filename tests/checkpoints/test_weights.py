"""Whole checkpoints from a clumsy or a hostile user: `Weights`, `load_weights` and `from_checkpoint`.

`test_readers.py` is about the bytes of a file, `test_families.py` about its numbers; this is about what lies between:
containers, wrong families, damaged arrays, what stands beside a file, and options that do not fit.
"""

import argparse
import functools
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import warnings

import keras
import make_google_npz
import ml_dtypes
import numpy as np
import pytest
from family_files import _DTYPES, cases, load, matrix, write, write_safetensors
from hub import served
from support import ASSUMED, ROOT

from vit_keras import anatomy, checkpoints, from_checkpoint, vit
from vit_keras._internal.bounds import LIMIT_TEXT
from vit_keras.checkpoints import describe, wording
from vit_keras.checkpoints.families import FAMILIES
from vit_keras.checkpoints.loading import open_source
from vit_keras.checkpoints.weights import Weights
from vit_keras.preprocess import PRESETS

pytestmark = [pytest.mark.few_cases(3), ASSUMED]

CASES = cases()
WRAPPERS = ("module.", "backbone.", "model.", "_orig_mod.", "module._orig_mod.")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch writes these files")


def of_every_family():
    """One golden case of each family that a file is taken for."""
    chosen = {}
    for name in CASES:
        chosen.setdefault(load(name).meta["family"], name)
    return sorted(chosen.values())


def reference(golden, folder):
    return Weights(write(golden, folder / "reference", config=False))


def assert_same_arrays(found, expected):
    """Exact: other containers hold the same values."""
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def assert_unchanged(model, before):
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value, err_msg=variable.path)


def snapshot(model):
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.weights]


def run(model, inputs):
    model.run_eagerly = True
    return keras.ops.convert_to_numpy(model(inputs))


@pytest.fixture
def folder(tmp_path):
    """Write a folder as Hugging Face makes it: `folder("hf_vit", config={…})`; the path of the weights."""

    def make(case="hf_vit", arrays=None, metadata=None, **beside):
        place = tmp_path / f"{case}-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        for name, content in beside.items():
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            (place / f"{name}.json").write_bytes(text)
        return write_safetensors(place / "model.safetensors", arrays or load(case).state_dict(), metadata)

    return make


def hf_config(**changes):
    return {**load("hf_vit").meta["config"], **changes}


# --- containers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", matrix(CASES, of_every_family()))
def test_what_stands_before_all_names_does_not_matter(name, tmp_path):
    golden = load(name)
    expected = reference(golden, tmp_path)
    for before in WRAPPERS:
        path = write_safetensors(tmp_path / "x.safetensors", {before + n: a for n, a in golden.state_dict().items()})
        found = Weights(path)
        assert found.family is expected.family, before
        assert found.shapes == expected.shapes, before
    assert_same_arrays(found, expected)


def torch_layouts(state):
    """What training scripts save around a state dict."""
    import torch

    optimiser = {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    rest = {"optimizer": optimiser, "epoch": 7, "args": argparse.Namespace(lr=0.1, model="vit")}
    yield "plain", state
    yield "legacy", state
    yield "model", {"model": state, **rest}
    yield "state_dict", {**rest, "state_dict": {f"module.{n}": a for n, a in state.items()}}
    yield "teacher", {"teacher": {f"backbone.{n}": a for n, a in state.items()}, **rest}


@needs_torch
@pytest.mark.parametrize("name", matrix(CASES, of_every_family()))
def test_files_of_pytorch(name, tmp_path):
    import torch

    golden = load(name)
    expected = reference(golden, tmp_path)
    state = {n: torch.from_numpy(np.array(a)) for n, a in golden.state_dict().items()}
    for kind, content in torch_layouts(state):
        path = tmp_path / f"{kind}.pth"
        torch.save(content, path, _use_new_zipfile_serialization=kind != "legacy")
        found = Weights(path)
        assert found.family is expected.family, kind
        assert found.shapes == expected.shapes, kind
    assert_same_arrays(found, expected)


@pytest.mark.parametrize("name", ["hf_vit", "timm_vit", "open_clip", "hf_dinov2_reg"])
def test_files_in_pieces(name, tmp_path):
    golden = load(name)
    expected, arrays = reference(golden, tmp_path), golden.state_dict()
    place = tmp_path / "sharded"
    place.mkdir()
    names = random.Random(0).sample(sorted(arrays), len(arrays))
    weight_map = {}
    for number in range(3):
        piece = f"model-0000{number + 1}-of-00003.safetensors"
        write_safetensors(place / piece, {n: arrays[n] for n in names[number::3]})
        weight_map |= dict.fromkeys(names[number::3], piece)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same_arrays(Weights(place), expected)

    (place / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="needs model-00002-of-00003.safetensors"):
        Weights(place)


def test_a_folder_of_hugging_face(folder):
    golden = load("hf_vit")
    labels = {str(n): f"animal {n}" for n in range(golden.output.shape[1])}
    processor = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
    path = folder(config=hf_config(id2label=labels), preprocessor_config=processor)
    model = from_checkpoint(path.parent)
    assert model.labels == tuple(labels.values())
    assert model.preprocessing.mean == pytest.approx((0.1, 0.2, 0.3))
    np.testing.assert_allclose(
        run(model, golden.inputs), golden.output, rtol=0, atol=1e-5 * np.abs(golden.output).max()
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("name", ["timm_vit", "hf_dinov2_reg", "open_clip", "timm_hybrid_r8"])
def test_other_precisions(name, dtype, tmp_path, monkeypatch):
    monkeypatch.setitem(_DTYPES, "bfloat16", "BF16")
    arrays = load(name).state_dict()
    rounded = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in arrays.items()}
    widened = {n: a.astype(np.float32) if arrays[n].dtype.kind == "f" else a for n, a in rounded.items()}
    found = Weights(write_safetensors(tmp_path / "narrow.safetensors", rounded))
    assert_same_arrays(found, Weights(write_safetensors(tmp_path / "wide.safetensors", widened)))


# --- a family that it is not -------------------------------------------------------------------------------------

# Their names are the same; these families differ in numerics and in what stands beside the weights.
ALIKE = (
    {
        *("timm", "deit", "deit-distilled", "deit3", "dino", "mae", "dinov2", "timm-clip", "timm-siglip"),
        *("eva", "eva02", "timm-pe", "timm-pe-spatial", "timm-unnormed", "rope-vit"),
    },
    {"timm-naflex", "timm-naflex-map"},
    {"beit", "timm-beit"},
    {"huggingface", "huggingface-dpt"},
)


@pytest.mark.parametrize("name", of_every_family())
def test_every_other_family_is_refused_or_has_the_same_names(name, tmp_path):
    own = reference(load(name), tmp_path)
    for family in FAMILIES.values():
        try:
            forced = Weights(own.path, family=family.name)
        except ValueError as error:
            assert str(error).startswith(f"{own.path}: "), family.name
            if family.detect and family.prefix(own.reader) is None:
                assert f"looks like {own.family.name!r}" in str(error), family.name
            continue
        alike = family is own.family or any({family.name, own.family.name} <= group for group in ALIKE)
        assert alike, f"{own.family.name} is read as {family.name}"
        assert forced.shapes == own.shapes, family.name


@pytest.mark.parametrize("family", [None, "timm", "sam-encoder"])
def test_a_family_that_cannot_be_built(family, tmp_path):
    arrays = load("timm_vit").state_dict()
    arrays |= {"blocks.0.attn.rel_pos_h": np.zeros((7, 32)), "neck.0.weight": np.zeros((8, 64, 1, 1))}
    with pytest.raises(ValueError, match="Segment Anything"):
        Weights(write_safetensors(tmp_path / "sam.safetensors", arrays), family=family)


@pytest.mark.parametrize("family", ["vit", "", 5])
def test_a_family_that_is_none(family, tmp_path):
    with pytest.raises(ValueError, match="family: .*timm"):
        Weights(write(load("timm_vit"), tmp_path), family=family)


# --- damaged and strange arrays ----------------------------------------------------------------------------------


def mutations(arrays, name):
    """Everything that can be wrong with one array: a word for it, and all arrays of the file."""
    array = np.array(arrays[name])

    def instead(value):
        return {**arrays, name: value}

    yield "deleted", {n: a for n, a in arrays.items() if n != name}
    yield "twice", {**arrays, f"extra.{name}": array}
    yield "unknown", {**arrays, "blocks.0.nobody.knows": array}
    for axis in range(array.ndim):
        yield f"shorter in axis {axis}", instead(np.ascontiguousarray(np.delete(array, 0, axis)))
        yield f"longer in axis {axis}", instead(np.concatenate([array, array], axis))
        yield f"empty in axis {axis}", instead(np.delete(array, slice(None), axis))
    yield "without axes", instead(np.float32(1).reshape(()))
    yield "flat", instead(array.reshape(-1))
    yield "one axis more", instead(array[None])
    yield "one axis more at the end", instead(array[..., None])
    yield "transposed", instead(np.ascontiguousarray(array.T))


DAMAGED = ("deit3_original", "dinov3_original_plus", "hf_clip_projection", "hf_dinov2_swiglu", "hf_siglip", "hf_vit")
DAMAGED += ("openai_clip", "timm_beit", "timm_mixer", "timm_hybrid_r8", "torchvision_vit", "vit_pytorch_1_6")


@pytest.mark.few_cases(1)
@pytest.mark.filterwarnings("ignore:.* was made for")  # a damaged array may look like a gate
@pytest.mark.parametrize("name", matrix(DAMAGED, ["dinov3_original_plus", "openai_clip", "timm_beit"]))
def test_damaged_arrays_leave_a_model_alone(name, tmp_path):
    golden = load(name)
    arrays = golden.state_dict()
    path = write(golden, tmp_path)
    model = from_checkpoint(path, **golden.options)
    before = snapshot(model)
    for target in random.Random(name).sample(sorted(arrays), 5):
        for kind, changed in mutations(arrays, target):
            case = f"{target} {kind}"
            write_safetensors(path, changed)
            try:
                report = checkpoints.load_weights(model, path)
            except ValueError as error:
                assert str(error).startswith(str(path)), case
                assert_unchanged(model, before)
                continue
            square = arrays[target].ndim == 2 and arrays[target].shape[0] == arrays[target].shape[1]
            if report.adapted or (kind == "transposed" and square):  # it says what it did; or nobody could know
                for variable, value in zip(model.weights, before):
                    variable.assign(value)
            else:
                assert_unchanged(model, before)  # harmless: the same values in another shape, or not the model's


@pytest.mark.parametrize("name", matrix(["timm_vit", "hf_vit"], ["timm_vit"]))
def test_a_model_is_not_built_from_a_part(name, folder):
    """Whatever is taken out of a file, its own model is not made with fresh weights in it instead."""
    golden = load(name)
    arrays, config = golden.state_dict(), golden.meta["config"] or {}
    optional = ("head.bias", "classifier.bias", "patch_embed.proj.bias", "patch_embeddings.projection.bias")
    for target in sorted(arrays):
        path = folder(name, {n: a for n, a in arrays.items() if n != target}, config=config)
        if target.endswith(optional):  # there are such models
            assert from_checkpoint(path, **golden.options).load_report.fresh == ()
        else:
            with pytest.raises(ValueError, match=path.parent.name):
                from_checkpoint(path, **golden.options)


def test_relative_positions_of_another_size_are_found_before_a_weight_is_set(folder):
    golden = load("timm_beit")
    model = from_checkpoint(folder("timm_beit"), **golden.options)
    before = snapshot(model)
    name = "blocks.1.attn.relative_position_bias_table"
    for changed in (golden.state_dict()[name][1:], golden.state_dict()[name].reshape(-1), np.float32(1).reshape(())):
        path = folder("timm_beit", {**golden.state_dict(), name: np.ascontiguousarray(changed) + np.float32(1)})
        with pytest.raises(ValueError, match="relative_position_bias has shape"):
            checkpoints.load_weights(model, path)
        assert_unchanged(model, before)


@pytest.mark.parametrize(("axis", "size"), [(1, 63), (1, 65), (0, 4)])
def test_a_head_that_does_not_fit_its_own_model(axis, size, folder):
    arrays = load("timm_vit").state_dict()
    arrays["head.weight"] = np.resize(arrays["head.weight"], (5, size) if axis else (size, 64))
    with pytest.raises(ValueError, match="arrays have other shapes"):
        from_checkpoint(folder("timm_vit", arrays), num_heads=2)


def test_two_arrays_for_one_weight(folder):
    arrays = load("timm_dinov2").state_dict()
    arrays["blocks.1.gamma_1"] = arrays["blocks.1.ls1.gamma"]
    path = folder("timm_dinov2", arrays)
    with pytest.raises(ValueError, match="Two .*encoderblock_1/LayerScale_0/scale"):
        Weights(path, strict=False)
    arrays = load("timm_vit").state_dict()
    arrays |= {f"fc_norm.{part}": arrays[f"norm.{part}"] for part in ("weight", "bias")}
    with pytest.raises(ValueError, match="of the tokens and one of the pooled tokens; a model has only one"):
        Weights(folder("timm_vit", arrays))


def test_a_distilled_model_of_timm_has_both_tokens(folder):
    arguments = {"embed_dim": 64, "num_heads": 2, "depth": 2, "global_pool": "token"}
    config = {"architecture": "deit_tiny_distilled_patch16_224", "model_args": arguments}
    assert Weights(folder("timm_deit_distilled", config=config)).architecture["pooling"] == "token+dist"
    arrays = {**load("timm_deit_distilled").state_dict(), "reg_token": np.zeros((1, 4, 64), "float32")}
    with pytest.raises(ValueError, match="deit_tiny_distilled_patch16_224 has a distillation token, .* registers"):
        Weights(folder("timm_deit_distilled", arrays, config=config))


def test_the_numbered_layers_of_keras_are_not_advised_away(tmp_path):
    vit.build_model(16, 8, 1, 8, 2, "tiny", 16, classes=3, pre_norm=True).save_weights(tmp_path / "x.weights.h5")
    with pytest.raises(ValueError, match="2 arrays .*model.load_weights"):
        Weights(tmp_path / "x.weights.h5")


def test_unknown_arrays_are_named_and_left_out_on_demand(folder):
    arrays = {**load("timm_vit").state_dict(), "blocks.0.adapter.weight": np.ones((4, 4), np.float32)}
    path = folder("timm_vit", arrays)
    with pytest.raises(ValueError, match="1 arrays .*adapter.weight'.*strict=False"):
        Weights(path)
    assert Weights(path, strict=False).ignored == ("blocks.0.adapter.weight",)


@pytest.mark.parametrize("strict", [True, False])
def test_quantized_weights_are_not_read_without_their_scales(strict, tmp_path):
    model = vit.build_model(32, 8, 1, 32, 2, "tiny", 64, classes=10)
    model.quantize("int8")
    model.save_weights(tmp_path / "x.weights.h5")
    with pytest.raises(ValueError, match="quantized, .*load_model"):
        Weights(tmp_path / "x.weights.h5", strict=strict)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_inv", "scale_weight"])
def test_8_bit_floats_are_not_read_without_their_scales(scale, strict, tmp_path):
    arrays = load("timm_vit").state_dict()
    name = "blocks.0.attn.qkv"
    arrays[f"{name}.weight"] = arrays[f"{name}.weight"].astype(ml_dtypes.float8_e4m3fn)
    plain = Weights(write_safetensors(tmp_path / "plain.safetensors", arrays))
    found = plain["Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"]
    np.testing.assert_array_equal(found, arrays[f"{name}.weight"].astype("float32")[: found.shape[1]].T)
    arrays[f"{name}.{scale}"] = np.ones((), "float32")
    path = write_safetensors(tmp_path / "scaled.safetensors", arrays)
    with pytest.raises(ValueError, match=f"qkv.weight' has values of float8_e4m3fn, which '{name}.{scale}' scales"):
        Weights(path, strict=strict)


def small_model(**options):
    options = {"image_size": 64, "classes": 10, "dropout": 0.0, **options}
    return vit.build_model(patch_size=16, num_layers=2, hidden_size=32, num_heads=2, name="mu", mlp_dim=64, **options)


# --- what a file does not tell -----------------------------------------------------------------------------------


def test_heads_that_nothing_tells(folder):
    path = folder("timm_vit")
    with pytest.raises(ValueError, match=r"Pass num_heads= \(one of 1, 2, 4, 8\)"):
        from_checkpoint(path)
    assert from_checkpoint(path, num_heads=4).config.num_heads == 4


@pytest.mark.parametrize("heads", [7, 0, -2, 128, "2", 2.0, True, None, [2]])
def test_heads_that_cannot_be(heads, folder):
    with pytest.raises(ValueError, match="num_heads .* 64: one of 1, 2, 4, 8"):
        from_checkpoint(folder("timm_vit"), num_heads=heads)


@pytest.mark.parametrize("name", ["timm_clip", "hf_clip_vision"])
def test_activation_that_nothing_tells(name, tmp_path):
    path = write(load(name), tmp_path, config=False)
    with pytest.raises(ValueError, match="mlp_activation= .*'quick_gelu', 'gelu'"):
        from_checkpoint(path, num_heads=2)
    assert from_checkpoint(path, num_heads=2, mlp_activation="gelu").config.mlp_activation == "gelu"


def rectangle(rows):
    arrays = load("timm_vit").state_dict()
    arrays["pos_embed"] = make_google_npz.uniform(0, "pos_embed", (1, rows, 64), 0.3)
    return arrays


def test_rectangles(folder):
    path = folder("timm_vit", rectangle(1 + 6 * 3))
    with pytest.raises(ValueError, match=r"18 patches.*\(4, 4\)"):
        from_checkpoint(path, num_heads=2, source_grid=(4, 4))
    report = describe.describe(path)
    assert report["needed"]["source_grid"].startswith("patches down and across")
    assert dict(wording.sentences(report)[1])["image"] == "unknown"
    assert from_checkpoint(path, num_heads=2, source_grid=(6, 3)).config.image_size == (48, 24)


def test_a_table_that_is_a_square_without_the_class_token(folder):
    """16 rows are 4 x 4 patches without a row for the class token, or 15 with one: of these the user can say which."""
    path = folder("timm_vit", rectangle(16))
    assert not from_checkpoint(path, num_heads=2).config.position_prefix
    model = from_checkpoint(path, num_heads=2, source_grid=(5, 3), position_prefix=True)
    assert model.config.position_prefix
    assert model.config.grid == (5, 3)


def test_of_two_towers_the_one_for_images_is_taken(tmp_path):
    for name in ("openai_clip", "hf_clip", "hf_siglip", "open_clip_siglip"):
        found = Weights(write(load(name), tmp_path / name))
        assert found.ignored, name
        assert not any("text" in part.source for part in found._parts.values()), name


# --- config.json and preprocessor_config.json --------------------------------------------------------------------


@pytest.mark.few_cases(8)
@pytest.mark.parametrize(
    "changes",
    [
        *({"hidden_act": activation} for activation in (["gelu"], "nobody", 3)),
        *({"layer_norm_eps": epsilon} for epsilon in ("1e-6", -1, float("nan"), [1])),
        *({"num_attention_heads": heads} for heads in (7, 0, -4, "x", 2.0, True, [2], 10**30)),
        *({"image_size": size} for size in ("x", 0, [1, 2, 3], {"height": 32})),
        *({"rope_theta": theta} for theta in ("x", [])),
        *({"architectures": names} for names in ({"a": 1}, 5, [["x"]])),
    ],
    ids=str,
)
def test_absurd_values_in_config_json(changes, folder):
    with pytest.raises(ValueError, match=r"config\.json: invalid values"):
        Weights(folder(config=hf_config(**changes)))


@pytest.mark.filterwarnings("ignore:.*config.json. invalid values.*preprocessing")
@pytest.mark.parametrize(
    "config",
    [
        {"architecture": "vit", "pretrained_cfg": 5},
        {"architecture": "vit", "pretrained_cfg": {"input_size": 5}},
        {"pretrained_cfg": "vit"},
    ],
)
def test_absurd_values_in_timms_config_json(config, folder):
    with pytest.raises(ValueError, match=r"config\.json: invalid values"):
        Weights(folder("timm_vit", config=config))


@pytest.mark.parametrize(
    "content",
    [b"", b" " * (LIMIT_TEXT + 1), b"[1]", b'{"a":', bytes(range(256)), b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"],
    ids=range(7),
)
@pytest.mark.parametrize("name", ["config", "preprocessor_config"])
def test_a_file_beside_that_is_no_json(name, content, folder):
    path = folder("timm_vit", **{name: content})
    with pytest.warns(UserWarning, match=rf"{name}\.json is not used"):
        found = Weights(path)
    assert found.preprocessing == PRESETS["timm"]


@pytest.mark.parametrize(
    "other", [{"vision_config": "x"}, {"hidden_size": 999}, {"num_hidden_layers": 99}, {"hidden_size": "64"}], ids=str
)
def test_config_json_of_another_model_is_not_used(other, folder):
    config = hf_config(num_attention_heads=7, layer_norm_eps=0.5, **other)
    with pytest.warns(UserWarning, match=r"config\.json is not used.* size"):
        model = from_checkpoint(folder(config=config), num_heads=2)
    assert model.config.epsilon == 1e-12


def test_a_config_json_of_timm_tells_nothing_about_a_file_of_transformers(folder):
    assert Weights(folder(config={"architecture": "vit_base_patch16_224"})).architecture["epsilon"] == 1e-12


@pytest.mark.few_cases(10)
@pytest.mark.parametrize(
    "changes",
    [
        {"image_mean": "x"},
        {"image_mean": [0.5, 0.5]},
        {"image_mean": None},
        {"image_mean": [float("nan")] * 3},
        {"image_std": [0, 0, 0]},
        {"resample": 99},
        {"size": "x"},
        {"size": {"longest_edge": 7}},
        {"do_center_crop": True, "crop_size": {"a": 1}},
        {"rescale_factor": "x"},
    ],
    ids=str,
)
def test_preprocessing_that_cannot_be_done_does_not_prevent_loading(changes, folder):
    processor = {"image_mean": [0.4] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}, **changes}
    path = folder(config=hf_config(), preprocessor_config=processor)
    with pytest.warns(UserWarning, match=r"preprocessor_config\.json.*'hugging-face'"):
        found = Weights(path)
    assert found.preprocessing == PRESETS["hugging-face"]


def test_your_own_file_under_a_published_name_is_not_the_published_one(tmp_path):
    path = tmp_path / "deit_tiny_patch16_224.fb_in1k.safetensors"
    published = {
        **load("timm_vit").state_dict(),
        "head.weight": np.zeros((1000, 64), "f4"),
        "head.bias": np.zeros(1000, "f4"),
    }
    assert Weights(write_safetensors(path, published)).labels == "imagenet-1k"
    assert Weights(write_safetensors(path, load("timm_vit").state_dict())).labels is None
    assert Weights(write_safetensors(path, published, metadata(task="single"))).labels is None


# --- of several that tell, the nearest counts --------------------------------------------------------------------


def metadata(**settings):
    return {"format": "pt", "vit_keras": json.dumps(settings)}


@pytest.mark.few_cases(10)
@pytest.mark.parametrize(
    "settings",
    [
        "{",
        *({"config": config} for config in ([1], "x", 3)),
        *({"config": {field: 1}} for field in ("hidden_size", "registers", "num_layers", "classes", "patch_size")),
        *({"config": config} for config in ({"dim_head": 99}, {"num_heads": 7}, {"nobody": 1})),
        {"preprocessing": 3},
        {"preprocessing": {"mean": "x"}},
        [1],
        None,
    ],
    ids=str,
)
def test_metadata_that_contradict_the_arrays(settings, folder):
    path = folder("timm_vit", metadata={"vit_keras": settings if settings == "{" else json.dumps(settings)})
    with pytest.raises(ValueError, match="invalid metadata"):
        Weights(path)


@pytest.mark.parametrize(
    ("settings", "labels"),
    [({"task": "ordinal", "labels": ["a", "b"]}, ("a", "b")), ({"labels": "imagenet"}, "imagenet")],
)
def test_metadata_name_the_levels_of_a_scale_or_a_list(settings, labels, folder):
    assert Weights(folder("timm_vit", metadata={"vit_keras": json.dumps(settings)})).labels == labels


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nobody": 1}, "Unknown option nobody"),
        ({"pooling": "token+dist"}, "needs distillation_token=True"),
        ({"image_size": 33}, "whole number of patches"),
        ({"pooling": "nobody"}, "pooling must be one of"),
        ({"num_layers": 1}, "transformer blocks 2 and 1"),
        ({"num_layers": 3}, "transformer blocks 2 and 3"),
        ({"hidden_size": 32}, "file"),
        ({"hidden_size": "x"}, "hidden_size must be a positive integer"),
        ({"mlp_dim": 64}, "MlpBlock_3/Dense_0/kernel has shape"),
        ({"dim_head": "x"}, "dim_head must be a positive integer"),
        ({"registers": 4}, "registers is missing in the file"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(options, message, folder):
    with pytest.raises(ValueError, match=message):
        from_checkpoint(folder("timm_vit"), **{"num_heads": 2, **options})


def test_options_that_change_the_model(folder):
    golden, path = load("timm_vit"), folder("timm_vit")
    build = functools.partial(from_checkpoint, path, num_heads=2)
    inputs = golden.inputs[:1]
    tolerance = {"rtol": 0, "atol": 1e-5 * np.abs(golden.output).max()}  # float32, in another order

    headless = build(include_top=False)
    tokens = build(include_top=False, pooling=None)
    assert tokens.output_shape == (None, 17, 64)
    np.testing.assert_allclose(run(tokens, inputs)[:, 0], run(headless, inputs), **tolerance)
    mean = build(include_top=False, pooling="gap", class_token=True)
    np.testing.assert_allclose(run(mean, inputs), run(tokens, inputs)[:, 1:].mean(axis=1), **tolerance)

    assert build(classes=7).load_report.fresh == ("head/kernel", "head/bias")
    assert build(classes=5).load_report.fresh == ()
    grey = build(channels=1)
    assert grey.preprocessing.channels == 1
    copies = np.repeat(inputs[..., :1], 3, axis=-1)
    np.testing.assert_allclose(run(grey, inputs[..., :1]), run(build(), copies), **tolerance)
    assert build(channels=4).input_shape == (None, 32, 32, 4)
    finer = build(patch_size=4)
    assert finer.config.image_size == (16, 16)
    assert "patches resampled from 8×8 to 4×4" in str(finer.load_report)
    oblong = build(image_size=(32, 64))
    assert "resampled from 4×4 to 4×8" in str(oblong.load_report)
    assert build(representation_size=16).load_report.fresh != ()


def test_half_precision(folder):
    golden = load("timm_vit")
    model = from_checkpoint(folder("timm_vit"), num_heads=2, dtype="mixed_float16")
    exact = from_checkpoint(folder("timm_vit"), num_heads=2)
    assert model.get_layer("embedding").compute_dtype == "float16"
    assert_unchanged(model, snapshot(exact))  # the weights stay float32
    # float16 has 11 bits: a relative error of 5e-4 a step, a few dozen steps deep.
    np.testing.assert_allclose(
        run(model, golden.inputs), golden.output, rtol=0, atol=2e-2 * np.abs(golden.output).max()
    )


# --- into a model that is there ----------------------------------------------------------------------------------


def test_other_numerics_are_a_warning(tmp_path):
    golden = load("timm_vit")
    path = write(golden, tmp_path)
    model = from_checkpoint(path, **golden.options, mlp_activation="gelu_tanh")
    with pytest.warns(UserWarning, match="mlp_activation='gelu' .*'gelu_tanh'"):
        checkpoints.load_weights(model, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoints.load_weights(from_checkpoint(path, **golden.options, pooling="token"), path)


def test_numerics_of_the_attention_pooling_are_a_warning(tmp_path):
    sizes, options = (32, 8, 1, 64, 2, "map", 64), {"classes": 3, "pooling": "map", "class_token": True}
    model = vit.build_model(*sizes, map_heads=4, map_prefix=False, **options)
    model.save(tmp_path / "map.keras")
    with pytest.warns(UserWarning, match=r"map_heads=4 \(the model's: 2\), map_prefix=False \(the model's: True\)"):
        checkpoints.load_weights(vit.build_model(*sizes, **options), tmp_path / "map.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        checkpoints.load_weights(model, tmp_path / "map.keras")
        same = vit.build_model(*sizes, map_heads=2, **options)
        vit.build_model(*sizes, **options).save(tmp_path / "map.keras")
        checkpoints.load_weights(same, tmp_path / "map.keras")


def test_a_model_gets_the_settings_that_belong_to_the_weights(tmp_path):
    """Names of classes come with the head, and preprocessing with the blocks, as far as the file states them."""
    theirs = small_model(image_size=32, classes=2)
    theirs.labels, theirs.task = ("frog", "newt"), "multi"
    theirs.preprocessing = theirs.preprocessing.replace(mean=0.4)
    checkpoints.save_weights(theirs, tmp_path / "x.safetensors")
    checkpoints.save_weights(theirs, tmp_path / "x.npz")

    def settings(file, **options):
        model = small_model(classes=options.pop("classes", 2))
        model.labels, model.preprocessing = ("cat", "dog"), model.preprocessing.replace(std=0.3)
        checkpoints.load_weights(model, tmp_path / file, **options)
        return model.labels, model.task, model.preprocessing.mean[0], model.preprocessing.std[0]

    assert settings("x.safetensors") == (("frog", "newt"), "multi", 0.4, 0.5)
    assert settings("x.safetensors", include_head=False) == (("cat", "dog"), "single", 0.4, 0.5)
    assert settings("x.safetensors", classes=3) == (("cat", "dog"), "single", 0.4, 0.5)
    assert settings("x.npz") == (("cat", "dog"), "single", 0.5, 0.3)  # arrays alone
    theirs.labels = None
    checkpoints.save_weights(theirs, tmp_path / "x.safetensors")
    assert settings("x.safetensors")[:2] == (None, "multi")  # what one name of several meant
    theirs.task = "single"
    checkpoints.save_weights(theirs, tmp_path / "x.safetensors")
    assert settings("x.safetensors")[:2] == (("cat", "dog"), "single")


def test_the_models_around_a_vit_get_its_classes(tmp_path):
    theirs, ours = small_model(image_size=32, classes=2), small_model(image_size=32, classes=2)
    theirs.labels = ("frog", "newt")
    checkpoints.save_weights(theirs, tmp_path / "x.safetensors")
    around = keras.Sequential([keras.Input((32, 32, 3)), ours])
    with_head = keras.Sequential([keras.Input((32, 32, 3)), ours, keras.layers.Dense(2)])
    for model in (around, with_head):
        anatomy.name_classes(model, ("cat", "dog"))
        checkpoints.load_weights(model, tmp_path / "x.safetensors")
    assert anatomy.class_names(around) == ("frog", "newt") and anatomy.class_names(with_head) == ("cat", "dog")
    around.save(tmp_path / "around.keras")
    assert anatomy.class_names(keras.saving.load_model(tmp_path / "around.keras")) == ("frog", "newt")


def test_other_patches_are_an_error_unless_wanted(folder):
    path = folder("timm_vit")
    model = from_checkpoint(path, num_heads=2, patch_size=4)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"\(8, 8\) and \(4, 4\).*resize_patches=True"):
        checkpoints.load_weights(model, path)
    assert_unchanged(model, before)
    assert "patches resampled from 8×8 to 4×4" in str(checkpoints.load_weights(model, path, resize_patches=True))


def test_into_a_model_around_it(folder):
    path = folder("timm_vit")
    backbone = from_checkpoint(path, num_heads=2, include_top=False)
    expected = snapshot(backbone)
    whole = keras.Sequential([keras.Input((32, 32, 3)), backbone, keras.layers.Dense(3)])
    top = snapshot(whole.layers[-1])
    for variable in backbone.weights:
        variable.assign(np.zeros(variable.shape))
    report = checkpoints.load_weights(whole, path)
    assert_unchanged(backbone, expected)
    assert_unchanged(whole.layers[-1], top)
    assert "head dropped" in report.adapted


# --- places ------------------------------------------------------------------------------------------------------


def test_paths_of_all_kinds(folder, tmp_path, monkeypatch):
    path = folder("timm_vit")
    strange = tmp_path / "模型 ü%20#?" / "größe ☃.safetensors"
    strange.parent.mkdir()
    shutil.copy(path, strange)
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    expected = Weights(path).shapes
    home = f"~/{strange.relative_to(tmp_path)}"
    for place in (path, str(path), path.parent, str(path.parent), strange, str(strange), strange.parent, home):
        assert Weights(place).shapes == expected, place
        assert open_source(place).shapes == expected, place


def test_a_url(folder, monkeypatch):
    path = folder("timm_vit")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served(path.parent) as address:
        found = open_source(f"{address}/model.safetensors")
    assert_same_arrays(found, Weights(path))


# --- memory ------------------------------------------------------------------------------------------------------

# Not ru_maxrss, which a process inherits from the one that started it.
_MEASURE = """
import sys
from vit_keras import from_checkpoint, vit

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

vit.build_model(16, 8, 1, 64, 1, "small", 64, 2)
before = peak()
model = from_checkpoint(sys.argv[1])
print(peak() - before, 4 * model.count_params())
"""


def large_arrays():
    """A ViT of 300 MB in timm's names: as wide and deep as L, with a narrower MLP."""
    width, mlp, layers = 1024, 256, 16

    def of(*shape):
        return np.full(shape, 0.01, np.float32)

    arrays = {
        "cls_token": of(1, 1, width),
        "pos_embed": of(1, 17, width),
        "norm.weight": of(width),
        "norm.bias": of(width),
    }
    arrays |= {"patch_embed.proj.weight": of(width, 3, 16, 16), "patch_embed.proj.bias": of(width)}
    shapes = {
        "attn.qkv": (3 * width, width),
        "attn.proj": (width, width),
        "mlp.fc1": (mlp, width),
        "mlp.fc2": (width, mlp),
    }
    for i in range(layers):
        for name, shape in {**shapes, "norm1": (width,), "norm2": (width,)}.items():
            arrays |= {f"blocks.{i}.{name}.weight": of(*shape), f"blocks.{i}.{name}.bias": of(shape[0])}
    return arrays


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc elsewhere")
@pytest.mark.parametrize("kind", ["npz", "safetensors", "pth"])
def test_memory_of_loading(kind, tmp_path):
    arrays, path = large_arrays(), tmp_path / f"large.{kind}"
    if kind == "safetensors":
        write_safetensors(path, arrays)
    elif kind == "npz":
        np.savez(path, **arrays)
    else:
        torch = pytest.importorskip("torch")
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    command = [sys.executable, "-c", _MEASURE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    used, model = map(int, done.stdout.split()[-2:])
    assert model > 250e6
    assert used > 0.9 * model  # or else it measures nothing
    print(f"{kind}: {used / 1e6:.0f} MB for a model of {model / 1e6:.0f} MB")
    assert used < 1.35 * model + 300e6, f"{used / 1e6:.0f} MB for a model of {model / 1e6:.0f} MB"
