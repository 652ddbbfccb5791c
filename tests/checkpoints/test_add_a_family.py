"""What `docs/add_a_family.md` says is what happens: its example is taken out of the page, registered, and used."""

import importlib
import itertools
import pkgutil
import re
import sys

import keras
import make_google_npz
import numpy as np
import pytest
from family_files import write_safetensors
from support import ASSUMED, ROOT
from torch_pickles import state_dict, tensor, text, torch_zip

from vit_keras import checkpoints, from_checkpoint, vit
from vit_keras.checkpoints import families
from vit_keras.checkpoints.model_weights import ModelWeights
from vit_keras.checkpoints.readers import open_weights
from vit_keras.checkpoints.weights import Weights
from vit_keras.config import ViTConfig
from vit_keras.positions import resize_position_embeddings
from vit_keras.preprocess import PRESETS

DOCS = ROOT / "docs"
PAGE = (DOCS / "add_a_family.md").read_text(encoding="utf-8")
TABLE = (DOCS / "checkpoints.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture
def mmpretrain(tmp_path, monkeypatch):
    """The page's example as a module of the families' folder."""
    folder = tmp_path / "families"
    folder.mkdir()
    (folder / "mmpretrain.py").write_text(EXAMPLE, encoding="utf-8")
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(folder)])
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(f"{families.__name__}.mmpretrain")
        for family in module.FAMILIES:
            monkeypatch.setitem(families.FAMILIES, family.name, family)
        yield module
    finally:
        sys.modules.pop(f"{families.__name__}.mmpretrain", None)
        vars(families).pop("mmpretrain", None)


# --- the example ------------------------------------------------------------------------------------------------


def google():
    return make_google_npz.make("ViT-mu_16", image_size=64, classes=10)


def in_mmpretrain(arrays):
    """Google's arrays with MMPretrain's names and layout, by hand."""
    theirs = {
        "backbone.cls_token": arrays["cls"],
        "backbone.pos_embed": arrays["Transformer/posembed_input/pos_embedding"],
        "backbone.patch_embed.projection.weight": arrays["embedding/kernel"].transpose(3, 2, 0, 1),
        "backbone.patch_embed.projection.bias": arrays["embedding/bias"],
        "backbone.ln1.weight": arrays["Transformer/encoder_norm/scale"],
        "backbone.ln1.bias": arrays["Transformer/encoder_norm/bias"],
        "head.layers.head.weight": arrays["head/kernel"].T,
        "head.layers.head.bias": arrays["head/bias"],
    }
    for i in range(2):
        ours, block = f"Transformer/encoderblock_{i}", f"backbone.layers.{i}"
        attention = f"{ours}/MultiHeadDotProductAttention_1"
        for name, number in (("ln1", 0), ("ln2", 2)):
            theirs[f"{block}.{name}.weight"] = arrays[f"{ours}/LayerNorm_{number}/scale"]
            theirs[f"{block}.{name}.bias"] = arrays[f"{ours}/LayerNorm_{number}/bias"]
        for theirs_leaf, leaf in (("weight", "kernel"), ("bias", "bias")):
            parts = [arrays[f"{attention}/{name}/{leaf}"] for name in ("query", "key", "value")]
            fused = [part.reshape(64, 64).T if leaf == "kernel" else part.reshape(64) for part in parts]
            theirs[f"{block}.attn.qkv.{theirs_leaf}"] = np.concatenate(fused)
        theirs[f"{block}.attn.proj.weight"] = arrays[f"{attention}/out/kernel"].reshape(64, 64).T
        theirs[f"{block}.attn.proj.bias"] = arrays[f"{attention}/out/bias"]
        for name, number in (("layers.0.0", 0), ("layers.1", 1)):
            theirs[f"{block}.ffn.{name}.weight"] = arrays[f"{ours}/MlpBlock_3/Dense_{number}/kernel"].T
            theirs[f"{block}.ffn.{name}.bias"] = arrays[f"{ours}/MlpBlock_3/Dense_{number}/bias"]
    return {name: np.ascontiguousarray(array) for name, array in theirs.items()}


def write_pth(path, arrays):
    """A file as MMEngine saves it: the weights under `state_dict`, other things beside it."""
    items = {
        name: tensor(array.shape, [s // 4 for s in array.strides], key=str(i))
        for i, (name, array) in enumerate(arrays.items())
    }
    meta = b"}" + text("mmpretrain_version") + text("1.2.0") + b"s"
    program = state_dict(meta=meta, state_dict=state_dict(**items)[2:-1])
    return torch_zip(path, program, [array.tobytes() for array in arrays.values()])


@pytest.fixture(params=["safetensors", "pth"])
def file(request, tmp_path):
    write = {"safetensors": write_safetensors, "pth": write_pth}[request.param]
    return write(tmp_path / f"vit.{request.param}", in_mmpretrain(google()))


def images(height=64, width=64):
    return np.random.RandomState(0).uniform(-1, 1, (2, height, width, 3)).astype("float32")


def run(model, inputs):
    model.run_eagerly = True
    return keras.ops.convert_to_numpy(model(inputs))


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def native(tmp_path, **options):
    make_google_npz.save(tmp_path / "google.npz", google())
    return from_checkpoint(tmp_path / "google.npz", mlp_activation="gelu", **options)


def test_a_module_in_the_folder_is_found(mmpretrain):
    assert "mmpretrain" in {module.name for module in pkgutil.iter_modules(families.__path__)}
    assert mmpretrain.MMPRETRAIN.preprocessing in PRESETS


@pytest.mark.core
@pytest.mark.compiles_long
def test_the_example_gives_the_model_that_its_weights_give_natively(mmpretrain, file, tmp_path):
    model = from_checkpoint(file, num_heads=2)
    expected = native(tmp_path)
    # The same weights in the same graph: bit for bit.
    np.testing.assert_array_equal(run(model, images()), run(expected, images()))
    assert np.ptp(run(model, images())) > 0.1
    assert model.load_report.fresh == ()
    resamplings = {"position_resize": "bicubic", "patch_resize": "bicubic_antialias"}
    assert model.config == expected.config.replace(**resamplings, name=model.config.name)
    assert model.preprocessing == PRESETS["timm-384"].replace(image_size=64)


def test_the_example_resamples_positions_as_it_says(mmpretrain, file):
    model = from_checkpoint(file, num_heads=2, image_size=(96, 32))
    table = google()["Transformer/posembed_input/pos_embedding"]
    expected = resize_position_embeddings(table, (6, 2), prefix_tokens=1, method="bicubic")
    found = ModelWeights(model)["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(found, np.asarray(expected, "float32"))


@pytest.mark.core
@pytest.mark.compiles_long
def test_the_example_is_written_back(mmpretrain, file, tmp_path):
    model = from_checkpoint(file, num_heads=2)
    again = tmp_path / "again.safetensors"
    assert checkpoints.save_weights(model, again, format="mmpretrain") == "mmpretrain"
    assert_same(open_weights(again), in_mmpretrain(google()))
    np.testing.assert_array_equal(run(from_checkpoint(again), images()), run(model, images()))


# What MMPretrain's other models have, beside or in place of the names above.
VARIANTS = {
    "deit": (
        {"distillation_token": True, "pooling": "token+dist"},
        {"backbone.dist_token", "head.layers.head_dist.weight", "head.layers.head_dist.bias"},
        set(),
    ),
    "deit3": (
        {"layer_scale": 0.1, "position_prefix": False},
        {f"backbone.layers.0.{name}.weight" for name in ("attn.gamma1", "ffn.gamma2")},
        set(),
    ),
    "dinov2-giant": (
        {"layer_scale": 0.1, "gated_mlp": True, "mlp_activation": "silu", "include_top": False},
        {f"backbone.layers.0.ffn.{name}.{leaf}" for name in ("w12", "w3") for leaf in ("weight", "bias")},
        {"head.layers.head.weight", "backbone.layers.0.ffn.layers.1.weight"},
    ),
    "mae, fine-tuned": (
        {"pooling": "gap", "class_token": True, "final_norm": "pooled"},
        {"backbone.ln2.weight", "backbone.ln2.bias"},
        {"backbone.ln1.weight"},
    ),
    "clip": (
        {"pre_norm": True, "patch_bias": False},
        {"backbone.pre_norm.weight"},
        {"backbone.patch_embed.projection.bias"},
    ),
    "21k": ({"representation_size": 32}, {"head.layers.pre_logits.weight", "head.layers.pre_logits.bias"}, set()),
}


@pytest.mark.parametrize("name", VARIANTS)
@ASSUMED
def test_the_example_holds_its_other_models(mmpretrain, name, tmp_path):
    options, there, not_there = VARIANTS[name]
    config = ViTConfig(**{**TINY, "mlp_activation": "gelu", "position_resize": "bicubic", **options})
    model = vit.build(config)
    randomise(model)
    path = tmp_path / "model.safetensors"
    assert checkpoints.save_weights(model, path, format="mmpretrain") == "mmpretrain"
    names = set(open_weights(path))
    assert there <= names
    assert not not_there & names

    bare = write_safetensors(tmp_path / "bare.safetensors", dict(open_weights(path)))  # without our metadata
    loaded = from_checkpoint(bare, num_heads=2)
    assert Weights(bare).family is mmpretrain.MMPRETRAIN
    np.testing.assert_array_equal(run(loaded, images(32, 32)), run(model, images(32, 32)))


# --- what else the page says ------------------------------------------------------------------------------------

TINY = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 2,
    "hidden_size": 16,
    "num_heads": 2,
    "mlp_dim": 24,
    "classes": 5,
}


def randomise(model):
    generator = np.random.RandomState(1)
    model.set_weights([generator.normal(scale=0.3, size=w.shape).astype("float32") for w in model.get_weights()])


def rows(text, first):
    """The rows of the tables in a page whose first column has this heading."""
    for table in re.findall(r"((?:^\|.*\|\n)+)", text, re.MULTILINE):
        lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
        if lines[0][0] == first:
            yield from lines[2:]


def expand(pattern):
    """`a/{b,c}` is `a/b` and `a/c`; `{i}` is any number."""
    parts = re.split(r"\{(\w+(?:,\w+)+)\}", pattern)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return [re.escape("".join(names)).replace(r"\{i\}", r"\d+") for names in itertools.product(*choices)]


MODELS = {
    "plain": ({}, {}),
    "everything": (
        {"gated_mlp": True, "layer_scale": 0.1, "registers": 3, "distillation_token": True, "pooling": "token+dist"},
        {"R": 3, "N": 18},
    ),
    "norms": (
        {"pre_norm": True, "patch_norm": True, "dim_head": 5, "attention_norm": True, "mlp_norm": True},
        {"A": 10},
    ),
    "rotary": ({"rope_theta": 10.0, "rope_kind": "mixed"}, {"L": TINY["num_layers"]}),
    "relative": ({"relative_positions": True, "pooling": "gap", "final_norm": "pooled", "class_token": True}, {}),
    "map": ({"pooling": "map", "representation_size": 7}, {"T": 7, "N": 16}),
    "token+gap": ({"pooling": "token+gap"}, {"T": 32}),
    "mixer": ({"tokens_mlp_dim": 6, "pooling": "gap", "position": None}, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_canonical_names_and_shapes_are_those_of_the_page(name):
    options, letters = MODELS[name]
    letters = dict(zip("PCDAHFNBKTSM", (8, 3, 16, 16, 2, 24, 17, 52, 5, 16, 16, 6))) | letters
    page = {
        pattern: shape.strip("`")
        for cell, shape, _ in rows(PAGE, "canonical name")
        for pattern in expand(cell.strip("`"))
    }
    assert len(page) > 60
    for weight, shape in ModelWeights(vit.build(ViTConfig(**{**TINY, **options}))).shapes.items():
        found = [text for pattern, text in page.items() if re.fullmatch(pattern, weight)]
        assert len(found) == 1, weight
        assert eval(found[0], {}, letters) == shape, weight


def test_every_canonical_name_of_the_page_exists():
    built = {n for options, _ in MODELS.values() for n in ModelWeights(vit.build(ViTConfig(**{**TINY, **options})))}
    for cell, _, _ in rows(PAGE, "canonical name"):
        for pattern in expand(cell.strip("`")):
            assert any(re.fullmatch(pattern, weight) for weight in built), cell


# --- docs/checkpoints.md ----------------------------------------------------------------------------------------


def families_of_the_page():
    found = list(rows(TABLE, "`family=`"))
    assert len({cells[0] for cells in found}) == len(found)
    return {cells[0].strip("`"): cells[1:] for cells in found}


def test_every_family_has_a_row():
    assert set(families_of_the_page()) == set(families.FAMILIES)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_row_of_a_family_is_right(name):
    family, (whose, formats, to_say, positions, publishers) = families.FAMILIES[name], families_of_the_page()[name]
    assert ("*by name only*" in whose) == family.by_name_only
    assert ("not built" in whose) == bool(family.refused)
    assert not family.refused or not formats
    assert set(re.findall(r"`(\w+)`", to_say)) == set(family.choices)
    published = {checkpoint.source for checkpoint in checkpoints.available() if checkpoint.family == name}
    assert set(filter(None, publishers.split(", "))) == published
    if not family.refused and positions != "—":
        default = ViTConfig(image_size=32).position_resize
        method = family.config.get("relative_resize") or family.config.get("position_resize", default)
        assert positions == f"`{method}`"
