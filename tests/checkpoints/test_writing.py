"""A model becomes a file of another framework and comes back: the same names, bits and configuration."""

import json
import sys
import warnings

import keras
import make_google_npz
import numpy as np
import pytest
from family_files import OPTIONS, cases, load, matrix, write
from support import ASSUMED, DATA, OTHER_RESIZING

from vit_keras import from_checkpoint, load_model, vit
from vit_keras.checkpoints import orbax, save_weights, transformers_json, writing
from vit_keras.checkpoints.describe import describe
from vit_keras.checkpoints.families import rules
from vit_keras.checkpoints.model_weights import ModelWeights
from vit_keras.checkpoints.readers import open_weights
from vit_keras.checkpoints.weights import Weights
from vit_keras.preprocess import PRESETS, Preprocessing

pytestmark = [pytest.mark.few_cases(3), ASSUMED, OTHER_RESIZING]

OPEN = ("activation", *rules.NUMERICS, "pooling", "final_norm", "num_heads", "position", "position_resize")
OPEN += ("registers", "merge_tokens", "representation_size")
"""Fields that the arrays of a Google file leave open."""
READ = cases()
# Spellings, layouts or a prefix that the file's makers have given up, or that stand for more than the image tower.
OTHERWISE = {
    "dinov3_original": "facebookresearch's qkv.bias with a mask, where timm has q_bias and v_bias",
    "dinov3_original_plus": "likewise",
    "eva02_original": "baaivision's names, where timm has fc1_g, fc1_x and norm",
    "hf_beit_shared": "one table for all blocks",
    "timm_beit_shared": "one table for all blocks",
    "hf_clip_classifier": "a norm that the model does not use",
    "hf_siglip_classifier": "a pooling that the model does not use",
    "hf_clip_vision_4": "the prefix of transformers 4",
    "hf_siglip_vision_4": "the prefix of transformers 4",
    "hf_data2vec": "another prefix",
    "hf_ijepa": "another prefix",
    **dict.fromkeys(
        ("hf_blip_retrieval", "hf_llava_clip", "hf_llava_siglip", "hf_depth_anything"), "the prefix of the whole model"
    ),
    **dict.fromkeys(
        ("hf_vision_encoder_decoder", "hf_vit_masked", "hf_beit_masked", "hf_dpt"), "the prefix of the whole model"
    ),
    "hf_owlv2_detection": "the prefix of the whole model",
    "hf_siglip": "the prefix of the whole model",
    "hf_vit_mae_pretraining": "the prefix of the whole model",
    "hf_siglip2_naflex": "a linear patch embedding",
    "open_clip": "the prefix of the whole model",
    "open_clip_siglip": "the prefix of the whole model",
    "open_clip_visual": "the prefix of the whole model",
    "openai_clip": "the prefix of the whole model",
    "torchvision_vit_old": "old names",
    "vit_pytorch_0_40": "old names",
    "vit_pytorch_0_40_mean": "old names",
    "vit_pytorch_1_2": "old names",
    "vit_pytorch_1_2_mean": "old names",
    "vit_pytorch_1_6": "old shapes",
    "vit_pytorch_1_6_mean": "old shapes",
}
GOOGLE = sorted(path.stem for path in DATA.glob("*mu_16*.npz") if "to96" not in path.stem and "ragged" not in path.stem)


def golden_model(name, folder):
    golden = load(name)
    path = write(golden, folder)
    options = {**golden.options, **OPTIONS.get(name, {})}
    family = {key: options[key] for key in ("family",) if key in options}
    return from_checkpoint(path, **options), Weights(path, **family)


def google_file(golden, path):
    with np.load(DATA / f"{golden}.npz") as file:
        meta = json.loads(str(file["meta"]))
    arguments = {"seed": meta["seed"], "image_size": meta["ckpt_size"], "classes": meta["classes"]}
    arguments |= {"representation": meta["representation"], "overrides": meta["overrides"]}
    make_google_npz.save(path, make_google_npz.make(meta["variant"], **arguments))
    return path


def small(**options):
    options = {"classes": 5, "dropout": 0.0, **options}
    model = vit.build_model(
        options.pop("image_size", (32, 32)), 8, 2, 64, 2, "small", options.pop("mlp_dim", 128), **options
    )
    if model.config.image_size:
        model.preprocessing = model.preprocessing.replace(image_size=model.config.image_size)
    rng = np.random.default_rng(0)
    for variable in model.weights:
        if "seed" not in variable.path:
            variable.assign(rng.normal(0, 0.1, variable.shape).astype("float32"))
    return model


def assert_same_weights(model, again):
    ours, theirs = ModelWeights(model), ModelWeights(again)
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def assert_same_model(model, again):
    assert_same_weights(model, again)
    assert again.config == model.config
    assert again.preprocessing == model.preprocessing
    assert again.labels == model.labels


def arrays(path):
    reader = open_weights(path)
    return {name: reader[name] for name in reader}


def left_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", matrix(READ))
def test_what_is_read_is_written_back(name, tmp_path):
    model, source = golden_model(name, tmp_path)
    path = tmp_path / "out" / "again.safetensors"
    family = save_weights(model, path, source.family.name)
    assert family == source.family.name or source.family.name in writing.FORMATS
    assert_same_model(model, from_checkpoint(path))

    before, after = arrays(source.path), arrays(path)
    before = {name: array for name, array in before.items() if name not in source.ignored}
    same = {name for name in before if name in after and before[name].shape == after[name].shape}
    for name_ in same:
        assert before[name_].tobytes() == after[name_].tobytes()
    assert (same == set(before) == set(after)) == (name not in OTHERWISE)


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_other_formats_hold_it_too_or_say_why_not(name, tmp_path):
    model, _ = golden_model(name, tmp_path / "source")
    for format in writing.FORMATS:
        (tmp_path / format).mkdir()
        path = tmp_path / format / ("again.npz" if format == "google" else "again.safetensors")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                save_weights(model, path, format)
        except ValueError as error:
            assert "format" in str(error) and "Nothing was written" in str(error)
            assert left_in(tmp_path / format) == []
            continue
        assert left_in(tmp_path / format) == [path.name]
        if format == "google":
            told = {field: getattr(model.config, field) for field in OPEN}
            assert_same_weights(model, from_checkpoint(path, **told))
        else:
            assert_same_model(model, from_checkpoint(path))


@pytest.mark.parametrize(
    "golden", matrix(GOOGLE, ["BV-mu_16-map-scan", "Mixer-mu_16", "R8_ViT-mu_16", "ViT-mu_16_rep"])
)
def test_a_google_file_comes_out_as_it_was(golden, tmp_path):
    source = google_file(golden, tmp_path / "source.npz")
    model = from_checkpoint(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        family = save_weights(model, tmp_path / "again.npz", Weights(source).family.name)
    assert family == Weights(source).family.name
    again = from_checkpoint(tmp_path / "again.npz")
    assert_same_weights(model, again)
    assert again.config == model.config
    if "scan" in golden or "SigLIP" in golden:  # stacked blocks, and a tower among two
        assert {name.split("/")[0] for name in arrays(tmp_path / "again.npz")} == {"params"}
    else:
        assert (tmp_path / "again.npz").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("golden", matrix(GOOGLE, ["Mixer-mu_16", "R8_ViT-mu_16", "SigLIP-mu_16", "ViT-mu_16"]))
def test_google_models_go_to_safetensors_and_back(golden, tmp_path):
    model = from_checkpoint(google_file(golden, tmp_path / "source.npz"))
    for format in ("timm", "huggingface"):
        try:
            save_weights(model, tmp_path / f"{format}.safetensors", format)
        except ValueError as error:
            assert "These formats can hold it" in str(error)
            continue
        assert_same_model(model, from_checkpoint(tmp_path / f"{format}.safetensors"))


def test_the_file_has_the_published_size_to_the_byte(tmp_path):
    model = vit.vit_ti16(image_size=224, classes=1000, pretrained=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        save_weights(model, tmp_path / "Ti_16.npz")
    spec = make_google_npz.spec(make_google_npz.VARIANTS["ViT-Ti_16"])
    assert (tmp_path / "Ti_16.npz").stat().st_size == make_google_npz.file_size(spec)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"mlp_activation": "gelu"}, "mlp_activation='gelu'"),
        ({"epsilon": 1e-12}, "epsilon=1e-12"),
        ({"activation": "softmax"}, "activation='softmax'"),
        ({"position_resize": "bicubic"}, "position_resize='bicubic'"),
        ({"pooling": "gap", "class_token": True}, "pooling='gap'"),
        ({"image_size": (32, 48)}, r"source_grid=\(4, 6\)"),
    ],
)
def test_what_an_npz_cannot_tell_is_said(options, told, tmp_path):
    model = small(**options)
    with pytest.warns(UserWarning, match=told):
        save_weights(model, tmp_path / "x.npz")
    options = {key: value for key, value in options.items() if key != "image_size"}
    grid = {"source_grid": (4, 6)} if "grid" in told else {}
    assert_same_weights(model, from_checkpoint(tmp_path / "x.npz", **options, **grid))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        save_weights(model, tmp_path / "x.safetensors")
    assert_same_model(model, from_checkpoint(tmp_path / "x.safetensors"))


@pytest.mark.parametrize(
    "options, format, message",
    [
        ({"registers": 4}, "google", "1 weights of this model: registers"),
        ({"layer_scale": 1.0}, "google", "LayerScale_0/scale"),
        ({"qkv_bias": False}, "google", "qkv_bias=False"),
        ({"registers": 4}, "timm", "registers=4 and position_prefix=True"),
        ({"position": "sincos2d"}, "timm", "sincos2d|'pos_embed'"),
        ({"position": "sincos2d"}, "huggingface", "position='sincos2d'"),
        ({"position": None, "rope_theta": 100.0}, "google", "rope_theta=100.0"),
        ({"representation_size": 32}, "timm", "pre_logits/kernel, pre_logits/bias"),
        ({"position_prefix": False}, "huggingface", "position_prefix=False"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(options, format, message, tmp_path):
    path = tmp_path / "new" / ("x.npz" if format == "google" else "x.safetensors")
    with pytest.raises(ValueError, match=message) as caught:
        save_weights(small(**options), path, format)
    assert "Nothing was written" in str(caught.value)
    assert left_in(tmp_path) == []


def test_the_formats_that_could_are_named(tmp_path):
    with pytest.raises(ValueError, match="formats .*'huggingface-dinov2'") as caught:
        save_weights(small(registers=4, layer_scale=1.0), tmp_path / "x.npz")
    named = str(caught.value).split("can hold it: ")[1].rstrip(".").replace("'", "").split(", ")
    for format in named:
        assert save_weights(small(registers=4, layer_scale=1.0), tmp_path / "x.safetensors", format) == format


@pytest.mark.parametrize(
    "name, format, message",
    [
        ("x.npz", "timm", "end in .safetensors"),
        ("x", "timm", "needs a file"),
        ("x.npz", "tim", "'google', 'timm', 'huggingface'"),
        ("x.pth", None, "Pass format="),
        ("x", None, "Pass format="),
        ("x.safetensors", "google", "end in .npz"),
        ("x.h5", "keras", "model.save_weights"),
        ("x.safetensors", "sam-encoder", "Pass format="),
    ],
)
def test_a_format_that_is_not_for_such_a_path(name, format, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_weights(small(), tmp_path / name, format)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("format", ["google", "timm", "huggingface"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_nothing(format, existing, tmp_path, monkeypatch):
    target = tmp_path / "new" / {"google": "x.npz", "timm": "x.safetensors", "huggingface": "folder"}[format]
    model = small()
    if existing:
        save_weights(model, target, format)
    before = {name: (tmp_path / name).read_bytes() for name in left_in(tmp_path) if (tmp_path / name).is_file()}
    read = ModelWeights.__getitem__

    def run_out(self, name):
        if name.startswith("Transformer/encoderblock_1/"):
            raise OSError(28, "No space left on device")
        return read(self, name)

    monkeypatch.setattr(ModelWeights, "__getitem__", run_out)
    with pytest.raises(OSError, match="No space left"):
        save_weights(model, target, format)
    after = {name: (tmp_path / name).read_bytes() for name in left_in(tmp_path) if (tmp_path / name).is_file()}
    assert after == before
    if not existing:
        assert left_in(tmp_path) == []


def test_a_model_inside_a_model(tmp_path):
    inner = small(include_top=False)
    inputs = keras.Input((32, 32, 3))
    outer = keras.Model(inputs, keras.layers.Dense(3)(inner(inputs)))
    with pytest.warns(UserWarning, match="without what is around it"):
        save_weights(outer, tmp_path / "x.safetensors")
    assert_same_model(inner, from_checkpoint(tmp_path / "x.safetensors"))


@pytest.mark.parametrize("write", [save_weights, keras.Model.save], ids=["weights", "model"])
def test_an_image_size_that_is_not_a_whole_number_of_patches(write, tmp_path):
    model = small(image_size=(37, 35), drop_remainder=True)
    path = tmp_path / ("x.safetensors" if write is save_weights else "x.keras")
    write(model, path)
    assert_same_model(model, from_checkpoint(path))
    assert from_checkpoint(path, patch_size=16).config.image_size == (64, 64)  # the grid stays
    if write is save_weights:
        save_weights(from_checkpoint(path, image_size=None), path)
        assert from_checkpoint(path).config.image_size == (37, 35)
        found = describe(path)
        assert found["architecture"]["image_size"] == (37, 35) and found["architecture"]["drop_remainder"]


@pytest.mark.parametrize(("name", "format"), [("vit", "huggingface"), ("more/vit.npz", None)])
def test_a_path_in_a_file_is_named(name, format, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"notes.txt is a file, not a folder. Choose another name"):
        save_weights(small(), tmp_path / "notes.txt" / name, format)
    assert left_in(tmp_path) == ["notes.txt"]


COPIES = {"clone": keras.models.clone_model, "functional": lambda model: keras.Model(model.input, model.output)}


@pytest.mark.parametrize("copy", COPIES)
def test_a_model_without_a_configuration(copy, tmp_path):
    model = small(position_resize="bicubic_antialias", head_bias=False, layer_scale=0.1)
    model.preprocessing = PRESETS["timm"].replace(mean=(0.1, 0.2, 0.3), image_size=(32, 32))
    plain = COPIES[copy](model)
    plain.set_weights(model.get_weights())
    save_weights(plain, tmp_path / "x.safetensors")
    again = from_checkpoint(tmp_path / "x.safetensors")
    again.config = again.config.replace(name="small", drop_remainder=False)
    assert_same_model(model, again)


@pytest.mark.parametrize("policy", matrix(["float16", "bfloat16", "mixed_float16", "mixed_bfloat16"], ["bfloat16"]))
def test_half_precision_is_written_in_full(policy, tmp_path):
    model = small(dtype=policy)
    for path in (tmp_path / "x.npz", tmp_path / "x.safetensors"):
        save_weights(model, path)
        assert {array.dtype.name for array in arrays(path).values()} == {"float32"}
        assert_same_weights(model, from_checkpoint(path, dtype=policy))
        assert_same_weights(model, from_checkpoint(path, dtype="float32"))


@pytest.mark.parametrize("grid", [(4, 4), (4, 6)])
def test_a_model_for_images_of_any_size(grid, tmp_path):
    model = small(image_size=None, position_grid=grid)
    save_weights(model, tmp_path / "x.safetensors")
    native = from_checkpoint(tmp_path / "x.safetensors")
    assert native.config.image_size == (8 * grid[0], 8 * grid[1])
    assert_same_weights(model, native)
    assert from_checkpoint(tmp_path / "x.safetensors", image_size=None).config == model.config


# The classes of transformers that are written, and those of which the image model is written as another class.
WHOLE_MODELS = {"CLIPModel", "SiglipModel", "ViTMAEModel", "ViTMAEForPreTraining", "ViTMSNForImageClassification"}
CLASSES = WHOLE_MODELS | {model.name for model in transformers_json.MODELS}
UNWRITTEN = {"hf_beit_no_pooler"}  # a folder cannot tell that its model has no pooling layer
FOLDERS = [
    name
    for name in READ
    if name not in UNWRITTEN and ((load(name).meta["config"] or {}).get("architectures") or [""])[0] in CLASSES
]
FEW_FOLDERS = ("hf_beit", "hf_siglip_vision", "hf_clip_classifier", "hf_clip_projection", "hf_dinov3")


@pytest.mark.few_cases(5)
@pytest.mark.parametrize("name", matrix(FOLDERS, FEW_FOLDERS))
def test_a_folder_of_hugging_face(name, tmp_path):
    model, source = golden_model(name, tmp_path / "source")
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("mine")
    save_weights(model, out, "huggingface")
    assert left_in(out) == ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"]
    assert (out / "README.md").read_text() == "mine"
    theirs, ours = (
        json.loads((source.path.parent / "config.json").read_text()),
        json.loads((out / "config.json").read_text()),
    )
    unused = ("vision_config", "vision_use_head", *(("hidden_act",) if theirs.get("use_swiglu_ffn") else ()))
    if theirs["architectures"][0] not in WHOLE_MODELS and "shared" not in name:
        vision = theirs.get("vision_config", {})
        for config, written in ((theirs, ours), (vision, ours.get("vision_config", {}))):
            for key, value in written.items():
                assert config[key] == value or key in unused, key
    assert_same_model(model, from_checkpoint(out))

    # Nothing but the two descriptions and the arrays: what another program wrote that way is the same model.
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in ("config.json", "preprocessor_config.json"):
        (bare / file).write_bytes((out / file).read_bytes())
    import safetensors.numpy

    safetensors.numpy.save_file(safetensors.numpy.load_file(out / "model.safetensors"), bare / "model.safetensors")
    again = from_checkpoint(bare)
    assert_same_weights(model, again)
    computing = ("num_heads", "pooling", "mlp_activation", "epsilon", "rope_theta", "final_norm", "class_token")
    assert [getattr(again.config, f) for f in computing] == [getattr(model.config, f) for f in computing]


def test_a_folder_has_the_labels_and_the_preprocessing(tmp_path):
    model = small(mlp_activation="gelu")
    model.labels = (*"abcd", "\u65e5\udcdf")  # the name of a folder may not be UTF-8
    model.preprocessing = Preprocessing(image_size=32, mean=(0.1, 0.2, 0.3), interpolation="bicubic", crop=0.8)
    save_weights(model, tmp_path / "new" / "folder", "huggingface")
    config = json.loads((tmp_path / "new" / "folder" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c", "3": "d", "4": "\u65e5\udcdf"}
    assert (config["model_type"], config["hidden_act"], config["layer_norm_eps"]) == ("vit", "gelu", 1e-6)
    processor = json.loads((tmp_path / "new" / "folder" / "preprocessor_config.json").read_text())
    assert Preprocessing.from_hugging_face(processor) == model.preprocessing


@pytest.mark.filterwarnings("ignore:transformers does not do the same")  # Google's images are not antialiased
@pytest.mark.parametrize("task", ["single", "multi", "regression"])
def test_a_folder_has_the_task(task, tmp_path):
    model = small(mlp_activation="gelu")
    model.task = task
    save_weights(model, tmp_path / "own", "huggingface")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    problems = {"multi": "multi_label_classification", "regression": "regression"}
    assert config.get("problem_type") == problems.get(task)
    theirs = tmp_path / "theirs"  # without what this package adds to the arrays
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps(config))
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = safetensors.load_file(tmp_path / "own" / "model.safetensors")
    safetensors.save_file(arrays, theirs / "model.safetensors")
    assert from_checkpoint(tmp_path / "own").task == from_checkpoint(theirs).task == task


GATED_DINOV2 = {"layer_scale": 1.0, "pooling": "token+gap", "mlp_dim": 176, "gated_mlp": True}


@pytest.mark.filterwarnings("ignore:transformers does not do the same")  # Google's images are not antialiased
@pytest.mark.parametrize("options", [{}, GATED_DINOV2])
def test_a_folder_of_a_model_with_the_alias_of_an_activation(options, tmp_path):
    model = small(**options, mlp_activation="swish")
    save_weights(model, tmp_path, "huggingface")
    assert json.loads((tmp_path / "config.json").read_text())["hidden_act"] == "silu"
    assert_same_model(model, from_checkpoint(tmp_path))


@pytest.mark.few_cases(7)
@pytest.mark.parametrize(
    "options, message",
    [
        ({"pooling": "gap", "class_token": True}, "pooling='gap'"),
        ({"mlp_activation": "elu"}, "no activation 'elu'"),
        ({"layer_scale": 1.0, "pooling": "token+gap", "image_size": (32, 48)}, "are squares"),
        ({**GATED_DINOV2, "mlp_activation": "gelu"}, "gated .*mlp_activation='silu'"),
        ({"layer_scale": 1.0, "pooling": "token+gap", "mlp_dim": 100}, "no mlp_ratio for mlp_dim=100"),
        ({"dim_head": 16}, "hidden_size / num_heads wide"),
        ({"key_bias": False}, "bias on keys exactly if it has one on queries"),
    ],
)
def test_a_folder_that_transformers_could_not_open_rightly_is_not_written(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_weights(small(**options), tmp_path / "folder", "huggingface")
    assert left_in(tmp_path) == []
    save_weights(small(**options), tmp_path / "x.safetensors", "huggingface")
    assert_same_model(small(**options), from_checkpoint(tmp_path / "x.safetensors"))


def test_a_folder_cannot_describe_a_crop_that_is_no_square(tmp_path):
    model = small(image_size=(32, 64))
    model.preprocessing = PRESETS["timm"].replace(image_size=(32, 64))
    with pytest.raises(ValueError, match=r"squares only.*replace\(crop=None\)"):
        save_weights(model, tmp_path / "folder", "huggingface")
    assert left_in(tmp_path) == []
    model.preprocessing = model.preprocessing.replace(crop=None)
    save_weights(model, tmp_path / "folder", "huggingface")
    assert_same_model(model, from_checkpoint(tmp_path / "folder"))


def test_safetensors_library_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    model = small()
    save_weights(model, tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"
        assert json.loads(file.metadata()["vit_keras"])["config"]["mlp_dim"] == 128
        np.testing.assert_array_equal(
            file.get_tensor("head.weight").T, keras.ops.convert_to_numpy(model.get_layer("head").kernel)
        )


def test_what_transformers_does_not_compute_is_a_warning(tmp_path):
    model = small(activation="softmax")
    with pytest.warns(
        UserWarning, match=r"the logits, without activation='softmax'; it resizes images with antialiasing"
    ):
        save_weights(model, tmp_path / "out", "huggingface")
    model.preprocessing = model.preprocessing.replace(interpolation="bilinear_antialias")
    with pytest.warns(UserWarning, match="without activation='softmax'.$"):
        save_weights(model, tmp_path / "out", "huggingface")
    assert_same_model(model, from_checkpoint(tmp_path / "out"))


@pytest.mark.parametrize("rotary", [{}, {"rope_theta": 10.0, "rope_kind": "mixed"}])
@pytest.mark.parametrize("other", [{}, {"pooling": "gap"}, {"pooling": "map"}, {"registers": 2}, {"qkv_bias": False}])
def test_a_model_without_a_table_of_positions(rotary, other, tmp_path):
    """Its own configuration in the file says that none is missing."""
    model = small(position=None, **rotary, **other)
    try:
        save_weights(model, tmp_path / "model.safetensors")
    except ValueError as error:
        assert rotary, error
        return
    assert_same_model(model, from_checkpoint(tmp_path / "model.safetensors"))


def test_a_table_of_positions_that_is_missing(tmp_path):
    file = tmp_path / "model.safetensors"
    save_weights(small(position=None), file)
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].replace(rb"\"position\": null", rb"\"position\": \"learned\"")
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    assert len(header) > end - 8
    with pytest.raises(ValueError, match="pos_embedding' is missing"):
        from_checkpoint(file)


def test_a_processor_file_needs_a_size():
    with pytest.raises(ValueError, match="image_size=None"):
        transformers_json.write_processor(Preprocessing(image_size=None))
    squashed = Preprocessing(image_size=32, crop=0.8, crop_mode="squash", interpolation="bicubic")
    assert Preprocessing.from_hugging_face(transformers_json.write_processor(squashed)) == squashed


def test_values_of_orbax_are_assigned_if_none_is_missing():
    source, target = small(), small()
    source.compile("sgd", "mse")
    state = source.get_state_tree("numpy_array")
    orbax.assign(state, target)
    assert_same_weights(source, target)
    del state["trainable_variables"]["embedding"]
    with pytest.raises(ValueError, match="lacks 2 of .* the first 'embedding/kernel'"):
        orbax.assign(state, target)


def test_a_folder_of_orbax_without_a_whole_checkpoint_is_named(tmp_path, monkeypatch):
    (tmp_path / "0" / "model_config").mkdir(parents=True)  # and no file that says that it is whole
    with pytest.raises(FileNotFoundError, match=tmp_path.name):
        orbax.read(tmp_path)
    (tmp_path / "0" / "_CHECKPOINT_METADATA").touch()
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match="pip install orbax-checkpoint"):
        load_model(tmp_path)


@pytest.mark.parametrize("config", [{"hidden_act": "gelu"}, {"hidden_act": "unknown"}, {"hidden_size": 32}])
def test_what_an_npz_does_not_store_is_told_whatever_is_next_to_it(config, tmp_path):
    model = vit.build_model(32, 16, 2, 64, 2, "tiny", 128, classes=3, mlp_activation="gelu")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="does not store") as told:
        save_weights(model, tmp_path / "x.npz")
    said = [str(each.message) for each in told if each.category is UserWarning]
    assert len(said) == 1 and "mlp_activation='gelu'" in said[0]
