"""Token merging: the algorithm of arXiv 2210.09461 in plain NumPy, and the models that have it."""

import math

import keras
import numpy as np
import pytest
from keras import ops

import vit_keras
from vit_keras import layers
from vit_keras.build import build
from vit_keras.config import ViTConfig
from vit_keras.layers import attention as attention_module

SMALL = {"image_size": 24, "patch_size": 4, "num_layers": 3, "hidden_size": 16, "num_heads": 2, "mlp_dim": 24}
POOLINGS = {  # those after the third differ in where the patches begin, and are for the slow tests
    "token": {},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map"},
    "gap_after_class_token": {"pooling": "gap", "class_token": True, "final_norm": "pooled"},
    "all": {"pooling": "all", "registers": 3},
    "token+gap": {"pooling": "token+gap"},
    "token+dist": {"pooling": "token+dist", "distillation_token": True, "registers": 2},
}


def made(seed=0, **options):
    """A model whose weights are all random, those of the head and the norms too."""
    model = build(ViTConfig(**{**SMALL, "classes": 5, "mlp_activation": "gelu", **options}))
    random = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape, scale=0.4) + ("gamma" in weight.path))
    return model


def images(batch=3, seed=1, size=24):
    return np.random.default_rng(seed).uniform(-1, 1, (batch, size, size, 3)).astype("float32")


# --- the reference: one image, token by token, in float64 ---------------------------------------------------------


def array(variable):
    return np.asarray(ops.convert_to_numpy(variable), "float64")


def dense(layer, x):
    return x @ array(layer.kernel) + (0 if layer.bias is None else array(layer.bias))


def norm(layer, x):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + layer.epsilon) * array(layer.gamma) + array(
        layer.beta
    )


def mlp(layer, x):
    x = dense(layer.layers[0], x)
    return dense(layer.layers[2], x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2)


def attend(layer, asking, x, sizes):
    """Proportional attention: a token that stands for s patches weighs as much as s tokens."""
    keys, parts = dense(layer.key_dense, x), []
    for head in range(layer.num_heads):
        part = slice(head * layer.projection_dim, (head + 1) * layer.projection_dim)
        logits = dense(layer.query_dense, asking)[:, part] @ keys[:, part].T / np.sqrt(layer.projection_dim)
        weights = np.exp(logits) * sizes
        parts.append(weights / weights.sum(axis=1, keepdims=True) @ dense(layer.value_dense, x)[:, part])
    return dense(layer.combine_heads, np.concatenate(parts, axis=1)), keys.reshape(len(x), layer.num_heads, -1)


def run_block(block, x, sizes):
    attended, keys = attend(block.att, norm(block.layernorm1, x), norm(block.layernorm1, x), sizes)
    x, keys = x + attended, keys.mean(axis=1)
    tokens = range(block.prefix_tokens, len(x))
    first, second = ([i for i in tokens if i % 2 == parity] for parity in (0, 1))

    def likeness(i, j):
        return keys[i] @ keys[j] / np.linalg.norm(keys[i]) / np.linalg.norm(keys[j])

    partner = {i: max(second, key=lambda j: likeness(i, j)) for i in first}
    merged = sorted(first, key=lambda i: -likeness(i, partner[i]))[: block.merge_tokens]
    groups = [[i] for i in range(block.prefix_tokens)] + [[i] for i in first if i not in merged]
    groups += [[j, *(i for i in merged if partner[i] == j)] for j in second]
    x = np.stack([np.average(x[group], axis=0, weights=sizes[group]) for group in groups])
    return x + mlp(block.mlpblock, norm(block.layernorm2, x)), np.array([sizes[group].sum() for group in groups])


def run(model, x):
    """The logits of one image, from the tokens that go into the first block."""
    named, sizes = {layer.name: layer for layer in model.layers}, np.ones(len(x))
    for n in range(model.config.num_layers):
        block = named[f"Transformer_encoderblock_{n}"]
        if block.merge_tokens:
            x, sizes = run_block(block, x, sizes)
        else:
            x = x + attend(block.att, norm(block.layernorm1, x), norm(block.layernorm1, x), sizes)[0]
            x = x + mlp(block.mlpblock, norm(block.layernorm2, x))
    x = norm(named["Transformer_encoder_norm"], x) if "Transformer_encoder_norm" in named else x
    config, mean = model.config, lambda start: np.average(x[start:], axis=0, weights=sizes[start:])
    if config.pooling == "map":
        pool = named["MAPHead_0"]
        probed = attend(pool.att, array(pool.probe)[0], x, sizes)[0]
        pooled = (probed + mlp(pool.mlpblock, norm(pool.layernorm, probed)))[0]
    else:
        pooled = {
            "token": lambda: x[0],
            "gap": lambda: mean(config.prefix_tokens),
            "all": lambda: mean(0),
            "token+gap": lambda: np.concatenate([x[0], mean(config.prefix_tokens)]),
            "token+dist": lambda: x[:2],
        }[config.pooling]()
    pooled = norm(named["fc_norm"], pooled) if "fc_norm" in named else pooled
    if config.pooling == "token+dist":
        return (dense(named["head"], pooled[0]) + dense(named["head_dist"], pooled[1])) / 2
    return dense(named["head"], pooled)


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize(
    "pooling", [name if n < 3 else pytest.param(name, marks=pytest.mark.slow) for n, name in enumerate(POOLINGS)]
)
def test_models_are_those_of_the_paper(pooling):
    model = made(merge_tokens=(5, 0, 9), **POOLINGS[pooling])
    entering = []

    def look(layer, name, tensor):
        if name == "tokens" and layer.name.endswith("block_0"):
            entering.append(array(tensor))
        return tensor

    with layers.tap(look):
        tapped = array(model(images()))
    expected = np.stack([run(model, tokens) for tokens in entering[0]])
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(array(model(images())), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tapped, expected, rtol=1e-5, atol=1e-5)


# --- models -------------------------------------------------------------------------------------------------------


def test_a_merged_model_has_the_weights_of_the_other_and_fewer_tokens():
    model = made(registers=1)
    model.labels = tuple("abcde")
    merged = vit_keras.merge_tokens(model, 6)
    assert merged.config == model.config.replace(merge_tokens=6) and merged.labels == model.labels
    for one, other in zip(model.weights, merged.weights, strict=True):
        assert one.path.split("/")[1:] == other.path.split("/")[1:] or one.shape == other.shape
        np.testing.assert_array_equal(array(one), array(other))
    shapes = [layer.output[0].shape for layer in merged.layers if isinstance(layer, layers.TransformerBlock)]
    assert shapes == [(None, 38 - 6 * n, 16) for n in (1, 2, 3)]
    assert np.abs(array(merged(images())) - array(model(images()))).max() > 1e-3
    again = vit_keras.merge_tokens(keras.Sequential([merged]), 0)
    assert again.layers[0].config == model.config
    np.testing.assert_allclose(array(again(images())), array(model(images())), atol=1e-6)


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_merged_model_is_saved_and_learns(tmp_path):
    model = made(merge_tokens=(5, 0, 9), pooling="gap")
    expected = array(model(images()))
    model.save(tmp_path / "merged.keras")
    loaded = vit_keras.load_model(tmp_path / "merged.keras")
    assert loaded.config == model.config
    np.testing.assert_allclose(array(loaded(images())), expected, atol=1e-6)
    before = [array(weight) for weight in loaded.trainable_weights]
    loaded.compile(keras.optimizers.SGD(0.1), "mse")
    loaded.fit(images(), np.zeros((3, 5), "float32"), batch_size=2, verbose=0)
    still = [w.path for w, old in zip(loaded.trainable_weights, before) if np.array_equal(array(w), old)]
    assert not [path for path in still if not path.endswith("key/bias")]  # which moves all logits of a query alike


@pytest.mark.slow
def test_recomputing_a_block_changes_nothing():
    plain, remat = (made(merge_tokens=4, remat=on) for on in (False, True))
    for model in (plain, remat):
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(images(), np.ones((3, 5), "float32"), verbose=0)
    for one, other in zip(plain.weights, remat.weights, strict=True):
        np.testing.assert_allclose(array(one), array(other), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(dtype):
    config = ViTConfig(**SMALL, pooling="gap", merge_tokens=4, include_top=False)
    half, full = build(config, dtype=dtype), build(config)
    half.set_weights(full.get_weights())
    merged, expected = array(half(images())), array(full(images()))
    assert np.corrcoef(merged.ravel(), expected.ravel())[0, 1] > 0.98


def test_chunks_of_queries_weigh_merged_tokens_too(monkeypatch):
    model = made(merge_tokens=6)
    model.run_eagerly = True
    expected = array(model(images()))
    monkeypatch.setattr(attention_module, "has_fused_attention", lambda: False)
    monkeypatch.setattr(attention_module, "MAX_SCORE_BYTES", 4 * 2 * 37 * 10)
    np.testing.assert_allclose(array(model(images())), expected, atol=1e-5)


def test_a_block_alone():
    block = layers.MergingBlock(num_heads=2, mlp_dim=8, merge_tokens=3, prefix_tokens=1)
    tokens, sizes, scores = block(images()[:, :9, :8, 0], return_attention_scores=True)
    assert (tokens.shape, sizes.shape, scores.shape) == ((3, 6, 8), (3, 6, 1), (3, 2, 9, 9))
    np.testing.assert_array_equal(array(sizes).sum(axis=(1, 2)), 9)
    assert block.compute_output_shape((None, 9, 8)) == ((None, 6, 8), (None, 6, 1))
    symbolic = block(keras.Input((9, 8)), sizes=keras.Input((9, 1)), return_attention_scores=True)
    assert [tensor.shape for tensor in symbolic] == [(None, 6, 8), (None, 6, 1), (None, 2, 9, 9)]
    attention = layers.MultiHeadSelfAttention(num_heads=2)
    assert [x.shape for x in attention(keras.Input((9, 8)), with_keys=True)] == [(None, 9, 8), (None, 9, 4)]


@pytest.mark.parametrize("prefix", [0, 1])
def test_nothing_that_is_empty_is_joined_to_the_merged_tokens(prefix, monkeypatch):
    """XNNPACK, which runs LiteRT files, stops at a concatenation that begins with an empty tensor."""
    owner, name = keras.ops, "concatenate"
    if keras.backend.backend() == "torch":
        owner, name = pytest.importorskip("torch"), "cat"
    first, concatenate = [], getattr(owner, name)

    def noting(parts, *args, **kwargs):
        first.append(min(parts[0].shape))
        return concatenate(parts, *args, **kwargs)

    monkeypatch.setattr(owner, name, noting)
    block = layers.MergingBlock(num_heads=2, mlp_dim=8, merge_tokens=3, prefix_tokens=prefix)
    tokens, _ = block(images()[:, :9, :8, 0])
    assert tokens.shape == (3, 6, 8) and first and 0 not in first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge_tokens": 13}, "23 of 36 patches before block 1.* is 9"),
        ({"merge_tokens": (0, 0, 19)}, "leaves 36 of 36 patches before block 2"),
        ({"merge_tokens": (1, 2)}, "one for each of 3 blocks"),
        ({"merge_tokens": -1}, "merge_tokens .*at least 0"),
        ({"merge_tokens": 1.5}, "merge_tokens .*at least 0"),
        ({"merge_tokens": True}, "merge_tokens .*at least 0"),
        ({"merge_tokens": 4, "rope_theta": 100.0, "position": None}, "rope_theta.*need all patches"),
        ({"merge_tokens": 4, "relative_positions": True}, "relative_positions.*need all patches"),
        ({"merge_tokens": 4, "tokens_mlp_dim": 8, "position": None, "pooling": "gap"}, "Mixer.*need all patches"),
        ({"merge_tokens": 4, "pooling": None, "include_top": False}, "pooling=None.*need all patches"),
        ({"merge_tokens": 4, "patch_dropout": 0.5}, "patch_dropout need all patches"),
        ({"merge_tokens": 4, "image_size": None, "position_grid": 6}, "number of patches.*merge_tokens=0"),
    ],
)
def test_what_cannot_be_merged_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**{**SMALL, **options})


@pytest.mark.parametrize("counts", [range(3), np.array([0, 1, 2])])
def test_any_sequence_of_counts_will_do(counts):
    assert ViTConfig(**SMALL, merge_tokens=counts).merge_tokens == (0, 1, 2)


def test_zeros_are_no_merging():
    assert ViTConfig(**SMALL, merge_tokens=[0, 0, 0], rope_theta=100.0, position=None).merge_tokens == 0


def test_refusals_name_the_way_out(tmp_path):
    merged = made(merge_tokens=4)
    with pytest.raises(ValueError, match="merges tokens"):
        vit_keras.training.MaskedAutoencoder(merged)
    with pytest.raises(ValueError, match=r"merge_tokens\(model, 0\)"):
        vit_keras.visualize.faithfulness.evaluate_maps(merged, images(1), ["rollout"])
    with pytest.raises(ValueError, match="merge_tokens=4"):
        vit_keras.save_weights(merged, tmp_path / "folder", format="huggingface")
    with pytest.warns(UserWarning, match="merge_tokens=4"):
        vit_keras.save_weights(merged, tmp_path / "weights.npz")


@pytest.mark.slow
def test_a_clone_merges_too():
    merged = vit_keras.resize(keras.models.clone_model(made(merge_tokens=(5, 0, 9))), 24)
    assert merged.config.merge_tokens == (5, 0, 9)
