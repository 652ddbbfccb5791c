"""Google's files go into models: damage, other spellings, all or nothing, and what is adapted."""

import functools
import zipfile

import keras
import make_google_npz
import numpy as np
import pytest
from family_files import matrix

import vit_keras
from vit_keras import checkpoints, config, vit
from vit_keras.checkpoints.architecture import complete
from vit_keras.checkpoints.loading import open_source
from vit_keras.checkpoints.weights import Weights

pytestmark = pytest.mark.few_cases(3)

# The architecture of make_google_npz's "ViT-mu_16".
MU = config.ViTConfig(image_size=64, num_layers=2, hidden_size=64, num_heads=2, mlp_dim=128, classes=10)
POSITIONS = "Transformer/posembed_input/pos_embedding"
HEAD = ("head/kernel", "head/bias")


def fresh(**options):
    return vit.build(MU.replace(**options))


def mu(**options):
    """The arrays of a file for MU."""
    return make_google_npz.make("ViT-mu_16", **{"image_size": 64, "classes": 10, **options})


@pytest.fixture
def save(tmp_path):
    """Write arrays as a file in Google's format."""

    def write(arrays, name="file.npz"):
        make_google_npz.save(tmp_path / name, arrays)
        return tmp_path / name

    return write


def table(model):
    return model.get_layer("Transformer_posembed_input").get_weights()[0]


def kernel(model):
    return model.get_layer("embedding").get_weights()[0]


def images(size=64, channels=3):
    return make_google_npz.preprocess(make_google_npz.image(0, 2, size, channels))


def run(model, pixels):
    return keras.ops.convert_to_numpy(model(pixels, training=False))


def assert_same_weights(model, expected):
    for got, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)  # exact: loading only copies


def assert_refused(model, path, message, **options):
    """Loading fails with a message that names the file, and no weight of the model has changed."""
    before = model.get_weights()
    with pytest.raises(ValueError, match=message) as error:
        checkpoints.load_weights(model, path, **options)
    assert_same_weights(model, before)
    return str(error.value)


def damage(path, name):
    """Change the last byte of an array in a file."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
    data = bytearray(path.read_bytes())
    data[member.header_offset + 30 + len(member.filename) + member.file_size - 1] ^= 0xFF
    path.write_bytes(data)


# --- files that are not what one thinks ---------------------------------------------------------------------


class Bomb:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_in_a_file_is_executed(tmp_path):
    bomb = tmp_path / "exploded"
    np.savez(tmp_path / "file.npz", **{**mu(), "head/bias": np.array([Bomb(bomb)] * 10)})
    assert_refused(fresh(), tmp_path / "file.npz", "'head/bias' cannot be read")
    assert not bomb.exists()
    with np.load(tmp_path / "file.npz", allow_pickle=True) as arrays:
        arrays["head/bias"][0].close()
    assert bomb.exists()  # it was a live one


@pytest.mark.parametrize(
    "name", ["Transformer/encoderblock_0/MlpBlock_3/Dense_0/bias", "embedding/kernel", POSITIONS, "head/bias"]
)
def test_an_array_without_axes(tmp_path, name):
    np.savez(tmp_path / "file.npz", **{**mu(), name: np.float32(0)})
    assert_refused(fresh(), tmp_path / "file.npz", r"file\.npz")


@pytest.mark.parametrize("variant", ["ViT-mu_16", "ViT-mu_16-gap"])
def test_architecture_is_told_from_the_file(google_npz, variant):
    source = Weights(google_npz(variant, image_size=96, channels=4, representation=48))
    expected = {
        "patch_size": (16, 16),
        "channels": 4,
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 2,
        "mlp_dim": 128,
        "pooling": "gap" if variant.endswith("gap") else "token",
        "representation_size": 48,
        "include_top": True,
        "classes": 10,
        "mlp_activation": "gelu_tanh",
        "position_resize": "bilinear_align_corners",
    }
    found = config.ViTConfig().replace(**{**complete(source.architecture, source.family), "image_size": 96})
    assert {field: getattr(found, field) for field in expected} == expected
    assert source.positions == 36


# --- other spellings of the same file -----------------------------------------------------------------------


def linen(name):
    """Linen's number of a module for pre-Linen's."""
    for old, new in (
        ("/LayerNorm_2/", "/LayerNorm_1/"),
        ("/MultiHeadDotProductAttention_1/", "/MultiHeadDotProductAttention_0/"),
        ("/MlpBlock_3/", "/MlpBlock_0/"),
    ):
        name = name.replace(old, new)
    return name


SPELLINGS = {
    f"{prefix}{kind}": (prefix, kind) for prefix in ("", "params/", "opt/target/") for kind in ("old", "Linen")
}


@pytest.mark.parametrize("spelling", matrix(SPELLINGS, ["params/Linen", "opt/target/old"]))
def test_every_spelling_gives_the_same_model(google_npz, save, spelling):
    prefix, kind = SPELLINGS[spelling]
    renamed = linen if kind == "Linen" else str
    plain = vit_keras.from_checkpoint(google_npz())
    path = save({prefix + renamed(name): array for name, array in mu().items()}, "renamed.npz")
    model = vit_keras.from_checkpoint(path)
    assert model.config == plain.config
    assert model.load_report.loaded == len(model.weights)
    assert_same_weights(model, plain.get_weights())
    # Exact: the same weights in the same graph.
    np.testing.assert_array_equal(run(model, images()), run(plain, images()))


def test_state_of_an_optimiser_is_ignored(google_npz):
    plain, model = fresh(), fresh()
    checkpoints.load_weights(plain, google_npz())
    report = checkpoints.load_weights(model, google_npz(layout="opt-target"))
    assert_same_weights(model, plain.get_weights())
    assert "opt/state/step" in report.ignored
    assert len(report.ignored) == 2 * len(mu()) + 1
    assert not report.fresh


# --- all or nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "embedding/bias",
        "Transformer/encoderblock_0/LayerNorm_2/scale",
        "Transformer/encoderblock_1/MlpBlock_3/Dense_1/kernel",
    ],
)
def test_missing_array(save, name):
    arrays = mu()
    del arrays[name]
    assert_refused(fresh(), save(arrays), f"nothing was loaded.*{name} is missing in the file")


@pytest.mark.parametrize("name", ["Transformer/encoderblock_0/LayerNorm_9/scale", "register_tokens"])
def test_extra_array(save, name):
    path = save({**mu(), name: np.zeros(64, "f4")})
    assert_refused(fresh(), path, f"1 arrays .*'google': '{name}'")
    report = checkpoints.load_weights(fresh(), path, strict=False)
    assert report.ignored == (name,)
    for weights in ("no_such_file.npz", Weights(path, strict=False)):  # before any of them is opened
        with pytest.raises(TypeError, match=r"load_weights\(\) got an unexpected.*strikt"):
            checkpoints.load_weights(fresh(), weights, strikt=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 1}, "transformer blocks 2 and 1"),
        ({"num_layers": 3}, "transformer blocks 2 and 3"),
        ({"num_heads": 4}, "attention heads 2 and 4"),
        ({"num_heads": 1}, "attention heads 2 and 1"),
        ({"hidden_size": 32}, "hidden size 64 and 32"),
        ({"patch_size": 8, "image_size": 32}, r"patch size \(16, 16\) and \(8, 8\)"),
        ({"patch_size": (16, 8), "image_size": (64, 32)}, r"patch size \(16, 16\) and \(16, 8\)"),
        ({"pooling": "gap"}, "class token True and False"),
        ({"mlp_dim": 64}, r"Dense_0/kernel .*\(64, 128\).*\(64, 64\)"),
        ({"dim_head": 16}, r"query/kernel .*\(64, 64\).*\(64, 32\)"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_another_architecture(google_npz, options, message):
    model = fresh(**options)
    assert "nothing was loaded" in assert_refused(model, google_npz(), message)


def test_gap_file_goes_into_a_gap_model_and_no_other(google_npz):
    assert_refused(fresh(), google_npz("ViT-mu_16-gap"), "class token False and True")
    model = fresh(pooling="gap")
    report = checkpoints.load_weights(model, google_npz("ViT-mu_16-gap"))
    assert (report.loaded, report.adapted) == (len(model.weights), ())


def test_damage_in_any_array_leaves_the_model_alone(google_npz):
    path, model = google_npz(), fresh()
    intact = path.read_bytes()
    for name in sorted(mu()):
        path.write_bytes(intact)
        damage(path, name)
        assert_refused(model, path, f"damaged .*'{name}'")


# --- the report --------------------------------------------------------------------------------------------


def test_a_file_that_fits_is_only_copied(google_npz):
    model, arrays = fresh(), mu()
    path = google_npz()
    report = checkpoints.load_weights(model, path)
    assert report == checkpoints.LoadReport(str(path), len(arrays), (), (), ())
    assert str(report) == f"Loaded 40 weights from {path}."
    np.testing.assert_array_equal(kernel(model), arrays["embedding/kernel"])
    np.testing.assert_array_equal(table(model), arrays[POSITIONS])
    np.testing.assert_array_equal(model.get_layer("class_token").get_weights()[0], arrays["cls"])
    np.testing.assert_array_equal(model.get_layer("head").get_weights()[1], arrays["head/bias"])


def test_report_of_a_dropped_head(google_npz):
    model = fresh(classes=7)
    before = model.get_layer("head").get_weights()
    report = checkpoints.load_weights(model, google_npz())
    assert report.adapted == ("head dropped",)
    assert report.fresh == HEAD
    assert sorted(report.ignored) == sorted(HEAD)
    assert report.loaded == len(model.weights) - 2
    assert "head/kernel, head/bias: not in" in str(report) and report.missing in str(report)
    for old, new in zip(before, model.get_layer("head").get_weights()):
        np.testing.assert_array_equal(old, new)


# --- channels ----------------------------------------------------------------------------------------------


def tokens(path, **options):
    return vit_keras.from_checkpoint(path, include_top=False, pooling=None, **options)


def assert_close_tokens(got, wanted):
    # Sums of 768 products in another order: some 1e-6 of the largest value in float32.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_grey_image_gives_the_tokens_of_its_rgb_copy(google_npz):
    path, grey = google_npz(), images(channels=1)
    assert_close_tokens(run(tokens(path, channels=1), grey), run(tokens(path), np.repeat(grey, 3, axis=-1)))


# --- rectangles --------------------------------------------------------------------------------------------


def oblong(grid):
    """Arrays for a model whose patches are such a grid."""
    arrays = mu()
    arrays[POSITIONS] = make_google_npz.uniform(0, "oblong", (1, 1 + grid[0] * grid[1], 64), 0.3)
    return arrays


def test_square_file_in_a_rectangular_model(google_npz):
    model = fresh(image_size=(96, 32))
    report = checkpoints.load_weights(model, google_npz())
    assert report.adapted == ("position embeddings resampled from 4×4 to 6×2",)
    old = mu()[POSITIONS][0, 1:].reshape(4, 4, 64)
    new = table(model)[0, 1:].reshape(6, 2, 64)
    # With aligned corners two columns are the first and the last, and so are the first and last row. Exact but
    # for the rounding of the position 3.0 in float64.
    np.testing.assert_allclose(new[[0, -1]], old[[0, -1]][:, [0, -1]], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(table(model)[0, 0], mu()[POSITIONS][0, 0])


def test_rectangular_file_in_its_own_model(save):
    model, arrays = fresh(image_size=(48, 80)), oblong((3, 5))
    with pytest.warns(UserWarning, match="read as 3×5 patches"):
        report = checkpoints.load_weights(model, save(arrays))
    assert report.adapted == ()
    np.testing.assert_array_equal(table(model), arrays[POSITIONS])


@pytest.mark.parametrize(("grid", "message"), [(None, "15 patches.*source_grid="), ((4, 4), r"15 patches.*\(4, 4\)")])
def test_a_grid_that_is_not_the_files_is_refused(save, grid, message):
    assert_refused(fresh(), save(oblong((3, 5))), message, source_grid=grid)


# --- the head ----------------------------------------------------------------------------------------------


def _layer_weights(model, name):
    return next((layer.get_weights() for layer in model.layers if layer.name == name), [])


def is_loaded(model, arrays, name):
    return np.array_equal(_layer_weights(model, name)[0], arrays[f"{name}/kernel"])


@pytest.mark.parametrize(("include_head", "loaded"), [(None, True), (True, True), (False, False)])
def test_head_of_as_many_classes(google_npz, include_head, loaded):
    model = fresh()
    report = checkpoints.load_weights(model, google_npz(), include_head=include_head)
    assert is_loaded(model, mu(), "head") == loaded
    assert report.fresh == (() if loaded else HEAD)


@pytest.mark.parametrize(
    ("of_file", "of_model", "message"),
    [
        ({}, {"classes": 7}, r"\(head of 10\) .*\(head of 7\)"),
        ({}, {"include_top": False}, r"\(head of 10\) .*\(none\)"),
        ({"classes": 0}, {}, r"\(none\) .*\(head of 10\)"),
        ({"representation": 64}, {}, r"\(pre_logits of 64, head of 10\) .*\(head of 10\)"),
        ({}, {"representation_size": 64}, r"\(head of 10\) .*\(pre_logits of 64, head of 10\)"),
    ],
)
def test_head_that_is_demanded_but_does_not_fit(google_npz, of_file, of_model, message):
    assert_refused(fresh(**of_model), google_npz(**of_file), f"include_head=True.*{message}", include_head=True)


@pytest.mark.parametrize("options, width", [({}, 64), ({"classes": 3}, 3), ({"classes": 3, "include_top": False}, 64)])
def test_a_file_without_a_head_gets_one_for_classes(options, width, google_npz):
    path = google_npz(classes=0)
    assert vit_keras.from_checkpoint(path, **options).output_shape == (None, width)
    assert vit_keras.resize(vit_keras.from_checkpoint(path), 64, **options).output_shape == (None, width)


def test_a_model_of_all_tokens_is_resized_without_a_head(google_npz):
    tokens = vit_keras.from_checkpoint(google_npz(classes=0), pooling=None)
    assert vit_keras.resize(tokens, 32).output_shape == (None, 5, 64)
    with pytest.raises(ValueError, match="which no head takes"):
        vit_keras.resize(tokens, 32, classes=3)


@pytest.mark.parametrize("include_head", [None, True])
def test_pre_logits_come_with_the_head(google_npz, include_head):
    model, arrays = fresh(representation_size=32), mu(representation=32)
    checkpoints.load_weights(model, google_npz(representation=32), include_head=include_head)
    assert is_loaded(model, arrays, "pre_logits")
    assert is_loaded(model, arrays, "head")


# --- models with a ViT inside ------------------------------------------------------------------------------


def in_sequential(backbone):
    return keras.Sequential([keras.Input((64, 64, 3)), backbone, keras.layers.Dense(3, name="head")])


def in_functional(backbone):
    inputs = keras.Input((64, 64, 3))
    return keras.Model(inputs, keras.layers.Dense(3, name="head")(backbone(keras.layers.Rescaling(2.0)(inputs))))


def twice_nested(backbone):
    return keras.Sequential([keras.Input((64, 64, 3)), in_functional(backbone), keras.layers.ReLU()])


@pytest.mark.parametrize("nest", [in_sequential, in_functional, twice_nested])
def test_nested_model(google_npz, nest):
    path = google_npz()
    backbone = fresh(include_top=False)
    model = nest(backbone)
    dense = model.get_weights()[-2:]
    assert checkpoints.load_weights(model, path).loaded == len(backbone.weights) == len(model.weights) - 2
    assert_same_weights(backbone, vit_keras.from_checkpoint(path, include_top=False).get_weights())
    for old, new in zip(dense, model.get_weights()[-2:]):
        np.testing.assert_array_equal(old, new)


# --- whole models ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"key": "x", "family": "y"}, {"family": "timm"}])
def test_a_whole_model_has_no_choices(tmp_path, options):
    model = vit.build(MU.replace(image_size=16, num_layers=1))
    model.save(tmp_path / "x.keras")
    for load in (vit_keras.from_checkpoint, functools.partial(checkpoints.load_weights, model)):
        with pytest.raises(ValueError, match="whole model.*family='"):
            load(tmp_path / "x.keras", **options)


def test_open_weights_have_no_choices():
    model = vit.vit_cifar10()
    with pytest.raises(ValueError, match="that are open .*key='x'"):
        checkpoints.load_weights(model, open_source("vit_cifar10"), key="x")
