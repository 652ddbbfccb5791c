"""Pre-training without labels: the paper's masked patch prediction, and the masked autoencoder."""

import functools
import json

import family_files
import keras
import numpy as np
import pytest
from keras import ops
from support import DATA, tiny_model

import vit_keras
from vit_keras.preprocess import Preprocessing
from vit_keras.training.masked import MaskedAutoencoder, MaskedPatchPrediction

KINDS = {
    MaskedPatchPrediction: {},
    MaskedAutoencoder: {"decoder_depth": 1, "decoder_width": 16, "decoder_heads": 2},
}


tiny = functools.partial(tiny_model, image_size=(8, 16), patch_size=4)


def photos(n=4, size=(8, 16), seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (n, *size, 3)).astype("float32")


def compiled(kind, model, **options):
    pretraining = kind(model, seed=1, **{**KINDS[kind], **options})
    eager = keras.backend.backend() != "jax"  # where a trace would take longer than these few steps
    pretraining.compile(
        keras.optimizers.AdamW(1e-2, weight_decay=0.1), run_eagerly=eager, jit_compile=False if eager else "auto"
    )
    return pretraining


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def weights(model):
    return {v.path: numpy(v) for v in model.weights}


def reference(directory):
    """transformers' ViTMAE with its weights: what it computed, and our model of the same weights."""
    with np.load(DATA / "mae_pretraining.npz") as file:
        golden = dict(file)
    meta = json.loads(str(golden["meta"]))
    state = family_files.state_dict(meta["seed"], meta["names"], {})
    (directory / "config.json").write_text(json.dumps(meta["config"]))
    encoder = vit_keras.from_checkpoint(family_files.write_safetensors(directory / "model.safetensors", state))
    ours = MaskedAutoencoder(encoder, decoder_depth=2, decoder_width=24, decoder_heads=2)

    def fill(layer, name):
        kernel = state[f"decoder.{name}.weight"]
        layer.set_weights([kernel.T, state[f"decoder.{name}.bias"]])

    fill(ours.decoder_embed, "decoder_embed")
    fill(ours.decoder_norm, "decoder_norm")
    fill(ours.decoder_pixels, "decoder_pred")
    for n, block in enumerate(ours.decoder_blocks):
        theirs = f"decoder_encoder.layer.{n}"
        for layer, name in (
            (block.att.query_dense, "attention.attention.query"),
            (block.att.key_dense, "attention.attention.key"),
            (block.att.value_dense, "attention.attention.value"),
            (block.att.combine_heads, "attention.output.dense"),
            (block.layernorm1, "layernorm_before"),
            (block.layernorm2, "layernorm_after"),
            (block.mlpblock.layers[0], "intermediate.dense"),
            (block.mlpblock.layers[2], "output.dense"),
        ):
            fill(layer, f"{theirs}.{name}")
    ours.mask_token.assign(state["decoder.mask_token"].reshape(-1))
    return golden, ours


@pytest.mark.core
@pytest.mark.compiles_long
def test_the_autoencoder_is_that_of_transformers(tmp_path, monkeypatch):
    golden, ours = reference(tmp_path)
    monkeypatch.setattr(ours, "draw_order", lambda batch: ops.convert_to_tensor(np.argsort(golden["noise"], axis=1)))
    images = family_files.preprocess(family_files.image(family_files.SEED, n=2, size=(32, 32)))
    outputs = ours(images)
    np.testing.assert_array_equal(numpy(outputs["masked"]), golden["masked"] == 1)
    # The original computed in float64: what is left is the rounding of float32 over four blocks.
    scale = np.abs(golden["pixels"]).max()
    np.testing.assert_allclose(numpy(outputs["pixels"]), golden["pixels"], atol=1e-5 * scale)
    for norm_pixels, loss in ((False, "loss"), (True, "loss_norm")):
        ours.norm_pixels = norm_pixels
        np.testing.assert_allclose(numpy(ours.compute_loss(images, y_pred=outputs)), golden[loss], rtol=1e-5)


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize("kind", [MaskedAutoencoder, MaskedPatchPrediction])
def test_fit_trains_the_encoder_and_leaves_its_head(kind):
    model = tiny()
    before = weights(model)
    pretraining = compiled(kind, model)
    history = pretraining.fit(photos(), np.zeros(4), epochs=6, batch_size=2, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] and set(history) == {"loss"}
    after = weights(model)
    unchanged = {path for path in before if np.array_equal(before[path], after[path])}
    assert unchanged == {path for path in before if path.startswith("head/")}


@pytest.mark.core
@pytest.mark.compiles_long
def test_masked_patches_are_not_seen(monkeypatch):
    pretraining = MaskedAutoencoder(tiny(), 0.5, **KINDS[MaskedAutoencoder])
    order = np.array([[5, 0, 3, 6, 1, 2, 4, 7]])
    monkeypatch.setattr(pretraining, "draw_order", lambda batch: ops.convert_to_tensor(order))
    image = photos(1)
    first = numpy(pretraining(image)["pixels"])
    for patch in range(8):
        row, column = 4 * (patch // 4), 4 * (patch % 4)
        other = image.copy()
        other[:, row : row + 4, column : column + 4] += 1
        same = np.array_equal(numpy(pretraining(other)["pixels"]), first)
        assert same == (patch in (1, 2, 4, 7))


@pytest.mark.core
def test_the_loss_is_the_mean_over_masked_patches_with_sample_weights():
    pretraining = MaskedAutoencoder(tiny(), norm_pixels=False, **KINDS[MaskedAutoencoder])
    images, rng = photos(3), np.random.default_rng(2)
    predicted, masked = rng.normal(size=(3, 8, 48)).astype("float32"), rng.random((3, 8)) < 0.6
    sample_weight = np.array([1.0, 0.0, 3.0])
    total = 0.0
    for n, patch in zip(*np.nonzero(masked)):
        row, column = 4 * (patch // 4), 4 * (patch % 4)
        target = images[n, row : row + 4, column : column + 4].reshape(-1)
        total += sample_weight[n] * np.mean((predicted[n, patch] - target) ** 2)
    outputs = {"pixels": ops.convert_to_tensor(predicted), "masked": ops.convert_to_tensor(masked)}
    loss = pretraining.compute_loss(images, y_pred=outputs, sample_weight=sample_weight)
    np.testing.assert_allclose(float(loss), total / masked.sum(), rtol=1e-5)  # float32 sums of 48 squares


@pytest.mark.core
def test_patches_are_replaced_as_the_paper_says():
    pretraining = MaskedPatchPrediction(tiny(image_size=(40, 40)), seed=0)
    patches = np.arange(4 * 100 * 16, dtype="float32").reshape(4, 10, 10, 16) + 1
    fate = np.random.default_rng(0).permutation(400).reshape(4, 10, 10, 1) / 400
    result = numpy(pretraining._corrupted(ops.convert_to_tensor(patches), ops.convert_to_tensor(fate)))
    token = numpy(pretraining.mask_token)
    masked = (result == token).all(-1)
    kept = (result == patches).all(-1)
    others = result[~masked & ~kept]
    np.testing.assert_array_equal(masked, fate[..., 0] < 0.4)
    assert kept[fate[..., 0] >= 0.45].all() and 15 <= len(others) <= 20  # of 20 one or another may meet itself
    rows = {tuple(row) for row in patches.reshape(-1, 16)}
    assert {tuple(row) for row in others} <= rows


@pytest.mark.core
def test_the_mean_colour_of_a_patch_is_one_of_512():
    model = tiny()
    model.preprocessing = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    raw = np.random.default_rng(3).integers(0, 256, (2, 8, 16, 3))
    raw[0, :4, :4], raw[0, :4, 4:8] = 255, 0
    classes = MaskedPatchPrediction(model).patch_classes(ops.convert_to_tensor(model.preprocess(raw.astype("uint8"))))
    for n, down, across in np.ndindex(2, 2, 4):
        patch = raw[n, 4 * down : 4 * down + 4, 4 * across : 4 * across + 4]
        red, green, blue = (min(int(patch[..., c].mean() / 255 * 8), 7) for c in range(3))
        assert numpy(classes)[n, 4 * down + across] == 64 * red + 8 * green + blue
    assert numpy(classes)[0, :2].tolist() == [511, 0]


@pytest.mark.parametrize("kind", [MaskedAutoencoder, pytest.param(MaskedPatchPrediction, marks=pytest.mark.slow)])
def test_a_saved_run_goes_on_as_if_nothing_had_happened(kind, tmp_path):
    runs = []
    for interrupted in (False, True):
        keras.utils.set_random_seed(0)
        pretraining = compiled(kind, tiny())
        pretraining.fit(photos(), epochs=1, batch_size=2, verbose=0, shuffle=False)
        if interrupted:
            pretraining.save(tmp_path / "pretraining.keras")
            pretraining = keras.saving.load_model(tmp_path / "pretraining.keras")
            assert pretraining.encoder.config == tiny().config
        pretraining.fit(photos(), epochs=2, initial_epoch=1, batch_size=2, verbose=0, shuffle=False)
        runs.append(weights(pretraining.encoder))
    for path, values in runs[0].items():
        np.testing.assert_allclose(
            runs[1][path], values, atol=1e-6, err_msg=path
        )  # the same sums, maybe by other threads


ANY = {
    "tokens": {"registers": 2, "distillation_token": True, "position_prefix": False, "stochastic_depth": 0.2},
    "sincos": {"position": "sincos2d", "pooling": "gap", "final_norm": "pooled"},
    "layers": {"pooling": "map", "position": None, "pre_norm": True, "layer_scale": 0.1, "gated_mlp": True},
    "ragged": {"image_size": (10, 19), "drop_remainder": True, "patch_norm": True, "dropout": 0.1},
    "half": {"dtype": "mixed_bfloat16"},
}
WHOLE_GRID = {
    "rope": {"rope_theta": 100.0},
    "relative": {"relative_positions": True, "position": None},
    "mixer": {"tokens_mlp_dim": 8, "pooling": "gap", "position": None},
}


@pytest.mark.parametrize(
    "kind, options",
    [
        pytest.param(kind, o, id=f"{known} {name}", marks=() if name in ("tokens", "relative") else pytest.mark.slow)
        for known, kind, encoders in (
            ("autoencoder", MaskedAutoencoder, ANY),
            ("colors", MaskedPatchPrediction, ANY | WHOLE_GRID),
        )
        for name, o in encoders.items()
    ],
)
def test_every_kind_of_encoder(kind, options):
    model = tiny(**options)
    pretraining = kind(model, seed=0, **KINDS[kind])
    images = photos(2, model.config.image_size)
    outputs = pretraining(images, training=True)
    assert all(outputs[name].shape[:2] == (2, 8) for name in outputs)
    assert np.isfinite(float(pretraining.compute_loss(ops.convert_to_tensor(images), y_pred=outputs)))


@pytest.mark.parametrize(
    "kind, model, options, message",
    [
        *((MaskedAutoencoder, o, {}, "leaves patches out, which 'tiny' does not allow") for o in WHOLE_GRID.values()),
        *(
            (kind, {"image_size": None, "position_grid": 2}, {}, r"images of any size \(vit_keras.resize")
            for kind in KINDS
        ),
        *((kind, {"resnet": (1,), "patch_size": 2, "image_size": 16}, {}, "is a hybrid") for kind in KINDS),
        *(
            (kind, {"patch_dropout": 0.5}, {}, r"drops patches itself \(build it with patch_dropout=0")
            for kind in KINDS
        ),
        (MaskedAutoencoder, {}, {"mask_ratio": 0.99}, "mask_ratio=0.99 leaves 0 of 8 patches"),
        (MaskedAutoencoder, {}, {"mask_ratio": 1.5}, "mask_ratio .*Received: 1.5"),
        (MaskedAutoencoder, {}, {"decoder_width": 18}, "decoder_width .*Received: 18"),
        (MaskedAutoencoder, {}, {"decoder_width": 4, "decoder_heads": 1}, "decoder_width must be at least 8"),
        (MaskedPatchPrediction, {}, {"corrupt": 0}, "corrupt .*Received: 0"),
        (MaskedPatchPrediction, {}, {"bits": 8}, "at most 16 .*Received: 8"),
    ],
)
def test_what_cannot_be_trained_is_refused(kind, model, options, message):
    with pytest.raises(ValueError, match=message):
        kind(tiny(**model), **{**KINDS[kind], **options})


def test_a_clone_without_a_configuration_is_refused():
    with pytest.raises(ValueError, match="has no configuration"):
        MaskedPatchPrediction(keras.models.clone_model(tiny()))
    with pytest.raises(TypeError, match="Expected a Keras model"):
        MaskedAutoencoder("vit-b16")
