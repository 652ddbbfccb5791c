"""The numbers of `visualize.analysis` against closed forms, plain formulas and scikit-learn, and its figures against
the numbers."""

import functools
import math

import keras
import numpy as np
import pytest

from vit_keras import layers, positions, vit
from vit_keras.config import ViTConfig
from vit_keras.visualize import analysis, attention_map, paper_figures
from vit_keras.visualize.maps import attention_rollout
from vit_keras.visualize.overlays import overlay, paper_style, vit_keras_style
from vit_keras.visualize.recorder import record
from vit_keras.visualize.recording import Recording

# What is float32 carries 7 digits; sums of some hundred numbers lose at most one of them.
FLOAT32 = 1e-6
# Principal components and CKA are quotients of such sums, after products of matrices in float32.
PRODUCTS = 1e-5


def rng(seed=0):
    return np.random.default_rng(seed)


def recording(grid, prefix=("cls",), patch_size=(16, 16), **arrays):
    """A recording of these arrays, and of nothing else."""
    some = next(iter(arrays.values()))
    first = next((arrays[name] for name in ("attention", "tokens") if name in arrays), None)
    count = 1 if first is None else first.shape[1]
    blocks = len(some) - ("attention" not in arrays)
    readout = np.zeros((count, len(prefix) + math.prod(grid)), "float32")
    readout[:, 0] = 1
    images = (np.zeros((*grid, 3), "uint8"),) * count
    arrays = {name: np.asarray(a, "float32") if isinstance(a, np.ndarray) else a for name, a in arrays.items()}
    return Recording(images, grid, prefix, tuple(range(blocks)), patch_size, readout, **arrays)


def softmax(logits):
    scores = np.exp(logits)
    return scores / scores.sum(axis=-1, keepdims=True)


def random_attention(tokens, blocks=2, images=3, heads=2, seed=0):
    return softmax(2 * rng(seed).standard_normal((blocks, images, heads, tokens, tokens)))


def of_tokens(*states, grid, prefix=(), features=None):
    """A recording of tokens: states are `(images, patches, width)`, to which random prefix tokens are added."""

    def put(state, seed):
        before = rng(seed).standard_normal((len(state), len(prefix), state.shape[-1]))
        return np.concatenate([before, state], axis=1)

    arrays = {"tokens": np.stack([put(state, n) for n, state in enumerate(states)])}
    if features is not None:
        arrays["features"] = put(features, 99).astype("float32")
    return recording(grid, prefix, **arrays)


@functools.cache
def build(image_size=(16, 24), patch_size=(8, 4), blocks=2, **options):
    """A tiny model with far from uniform attention, of rectangular patches in a rectangle, unless told otherwise; not
    to be changed."""
    options = {"classes": 3, **options}
    model = vit.build_model(image_size, patch_size, blocks, 16, 2, "tiny", 32, **options)
    generator = rng(1)
    for weight in model.weights:
        weight.assign(0.3 * generator.standard_normal(weight.shape))
    return model


def pictures(*shape, seed=0):
    return rng(seed).integers(0, 256, shape, dtype="uint8")


# ---------------------------------------------------------------------------------------- mean attention distance --


def uniform(grid, prefix=()):
    tokens = len(prefix) + math.prod(grid)
    return np.full((2, 1, 3, tokens, tokens), 1 / tokens)


def test_distance_as_it_is_defined():
    grid, prefix, (height, width) = (2, 3), ("cls", "reg0"), (8, 4)
    attention = random_attention(8)
    expected = np.zeros((2, 3, 2))
    for block, image, head in np.ndindex(2, 3, 2):
        scores = attention[block, image, head][2:, 2:]
        for i, j in np.ndindex(6, 6):
            step = math.hypot(height * (i // 3 - j // 3), width * (i % 3 - j % 3))
            expected[block, image, head] += scores[i, j] * step / 6
    distance = analysis.mean_attention_distance(recording(grid, prefix, (height, width), attention=attention))
    np.testing.assert_allclose(distance, expected.mean(axis=1), rtol=1e-5)


# -------------------------------------------------------------------------------------------- entropy and sinks --


def test_entropy_as_it_is_defined():
    attention = random_attention(7)
    expected = -(attention * np.log(attention)).sum(axis=-1).mean(axis=(1, 3))
    np.testing.assert_allclose(analysis.attention_entropy(recording((2, 3), attention=attention)), expected, rtol=1e-5)


def test_sinks_are_mean_columns():
    attention = random_attention(8)
    sinks = analysis.attention_sinks(recording((2, 3), ("cls", "reg0"), attention=attention))
    np.testing.assert_allclose(sinks, attention.mean(axis=(2, 3)), rtol=1e-5)
    np.testing.assert_allclose(sinks.sum(axis=-1), 1, rtol=1e-5)
    fused = recording((2, 3), ("cls", "reg0"), attention=attention.mean(axis=2), head_fusion="mean")
    np.testing.assert_allclose(analysis.attention_sinks(fused), sinks, rtol=1e-5)


# ----------------------------------------------------------------------------------------- weights of a model --


def test_filters_are_scikit_learns_components():
    decomposition = pytest.importorskip("sklearn.decomposition")
    model = build(channels=2, include_top=False)
    kernel = keras.ops.convert_to_numpy(model.get_layer("embedding").kernel)  # (8, 4, 2, 16)
    components = decomposition.PCA(9, svd_solver="full").fit(kernel.reshape(-1, 16).T.astype("float64")).components_
    components *= np.sign(components[np.arange(9), np.abs(components).argmax(axis=1)])[:, None]
    low, high = components.min(axis=1, keepdims=True), components.max(axis=1, keepdims=True)
    expected = ((components - low) / (high - low)).reshape(9, 8, 4, 2)
    np.testing.assert_allclose(analysis.embedding_filters(model, 9), expected, atol=PRODUCTS)


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize(
    "options, prefix",
    [
        ({}, 1),
        ({"pooling": "gap"}, 0),
        ({"pooling": "token+dist", "distillation_token": True}, 2),
        ({"registers": 3}, 1),
        ({"position_prefix": False}, 0),
        ({"image_size": None, "position_grid": (2, 6)}, 1),
    ],
    ids=str,
)
def test_similarity_of_learned_positions(options, prefix):
    model = build(**options)
    table = keras.ops.convert_to_numpy(model.get_layer("Transformer_posembed_input").pe)[0, prefix:]
    similarity = analysis.position_similarity(keras.Sequential([model]))
    assert similarity.shape == (2, 6, 2, 6)
    for i, j in ((0, 0), (0, 11), (7, 3)):
        assert similarity[i // 6, i % 6, j // 6, j % 6] == pytest.approx(cosine(table[i], table[j]), abs=FLOAT32)


def test_similarity_of_sines_and_cosines():
    model = build(position="sincos2d", image_size=None)
    table = positions.sincos2d((3, 5), 16)[0]
    similarity = analysis.position_similarity(model, (3, 5))
    assert similarity[1, 2, 2, 4] == pytest.approx(cosine(table[7], table[14]), abs=FLOAT32)
    np.testing.assert_array_equal(analysis.position_similarity(build(position="sincos2d")).shape, (2, 6, 2, 6))
    with pytest.raises(ValueError, match="grid="):
        analysis.position_similarity(model)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"position": None, "rope_theta": 100.0}, "rotations of queries and keys"),
        ({"position": None, "relative_positions": True}, "relative, biases in the attention"),
        ({"position": None}, "it has no positions"),
    ],
    ids=str,
)
def test_positions_that_are_no_embeddings_have_no_similarity(options, reason):
    with pytest.raises(ValueError, match=reason):
        analysis.position_similarity(build(**options))


# ------------------------------------------------------------------------------------------------------ token PCA --


def colours_by_hand(samples, clip=(2, 98)):
    """Scikit-learn's components with the signs that are promised, stretched between two percentiles."""
    pca = pytest.importorskip("sklearn.decomposition").PCA(3, svd_solver="full").fit(samples)
    signs = np.sign(pca.components_[np.arange(3), np.abs(pca.components_).argmax(axis=1)])
    projected = pca.transform(samples) * signs
    low, high = np.percentile(projected, clip, axis=0)
    return np.clip((projected - low) / (high - low), 0, 1)


def random_tokens(images, patches, width, seed=0):
    return rng(seed).standard_normal((images, patches, width)) * np.linspace(3, 0.5, width) + 5


def test_pca_colours_each_image_by_its_own_components():
    tokens = random_tokens(2, 20, 7)
    same = 1 / 3 + 1e-8 * rng().standard_normal(tokens.shape)
    rec = of_tokens(same, tokens, grid=(4, 5), prefix=("cls", "reg0"), features=tokens + 1)
    expected = np.stack([colours_by_hand(t) for t in tokens]).reshape(2, 4, 5, 3)
    np.testing.assert_allclose(analysis.token_pca(rec), expected, atol=PRODUCTS)
    np.testing.assert_allclose(analysis.token_pca(rec, layer=1), expected, atol=PRODUCTS)
    assert analysis.token_pca(rec).dtype == "float32"
    np.testing.assert_array_equal(analysis.token_pca(rec, clip=90), analysis.token_pca(rec, clip=(0, 90)))
    # Tokens that are all the same, but for what is rounded off, have no colours, and no NaN.
    np.testing.assert_array_equal(analysis.token_pca(rec, layer=0), np.full((2, 4, 5, 3), 0.5))


def test_joint_pca_has_the_same_components_for_all():
    tokens = random_tokens(3, 20, 7)
    rec = of_tokens(tokens, tokens, grid=(4, 5), features=tokens)
    expected = colours_by_hand(tokens.reshape(60, 7), (10, 90)).reshape(3, 4, 5, 3)
    np.testing.assert_allclose(analysis.token_pca(rec, joint=True, clip=(10, 90)), expected, atol=PRODUCTS)


def test_layers_go_by_the_numbers_of_blocks():
    first, second, third, features = (random_tokens(1, 6, 4, seed) for seed in range(4))
    rec = of_tokens(first, second, third, grid=(2, 3), features=features)
    rec = Recording(**{**vars(rec), "layers": (4, 7)})
    places = (4, first), (7, second), (8, third), (-1, second), (-2, first), ("final_norm", features)
    for layer, tokens in places:
        similarity = analysis.patch_similarity(rec, (0, 0), layer=layer)
        assert similarity[1, 2] == pytest.approx(cosine(tokens[0, 0], tokens[0, 5]), abs=FLOAT32)
    with pytest.raises(ValueError, match="4, 7, 8, .*'final_norm'.* 5"):
        analysis.patch_similarity(rec, (0, 0), layer=5)
    with pytest.raises(ValueError, match="block"):
        analysis.token_pca(Recording(**{**vars(rec), "features": None}))


# ---------------------------------------------------------------------------------------------- patch similarity --


def test_similarity_to_a_patch():
    tokens = np.zeros((2, 6, 3))
    tokens[0] = [[2, 0, 0], [0, 5, 0], [-1, 0, 0], [1, 1, 0], [0, 0, 0], [7, 0, 0]]
    tokens[1, 4] = [0, 3, 0]
    rec = of_tokens(tokens, grid=(2, 3), prefix=("cls",), features=tokens)
    expected = [[1, 0, -1], [math.sqrt(0.5), 0, 1]]
    np.testing.assert_allclose(analysis.patch_similarity(rec, (0, 0)), expected, atol=FLOAT32)
    np.testing.assert_allclose(analysis.patch_similarity(rec, (-2, -3)), expected, atol=FLOAT32)
    back = analysis.patch_similarity(rec, (1, 1), image=1, other=0)
    np.testing.assert_allclose(back, [[0, 1, 0], [math.sqrt(0.5), 0, 0]], atol=FLOAT32)


# -------------------------------------------------------------------------------------------- norms and outliers --


def test_norms_and_outliers():
    tokens = np.zeros((3, 2, 6, 4))
    tokens[..., 1] = 2.0
    tokens[1, 0, 4] = [6, 0, 0, 8]  # 5 times longer
    tokens[2, 1, 2] = [0, 0, 40, 0]  # 20 times
    rec = recording((2, 3), tokens=np.pad(tokens, [(0, 0), (0, 0), (1, 0), (0, 0)]))
    rec = Recording(**{**vars(rec), "layers": (3, 4)})
    norms = analysis.token_norms(rec)
    assert norms.shape == (3, 2, 2, 3)
    np.testing.assert_allclose(norms[1, 0], [[2, 2, 2], [2, 10, 2]], rtol=FLOAT32)
    longest, next_one = analysis.outlier_tokens(rec)
    assert longest == analysis.OutlierToken(layer=5, image=1, patch=(0, 2), norm=20.0)
    assert next_one[:3] == (4, 0, (1, 1))
    assert next_one.norm == pytest.approx(5, rel=FLOAT32)
    assert analysis.outlier_tokens(rec, ratio=21) == []


# ------------------------------------------------------------------------------------------------------------ CKA --


def cka_by_hand(x, y):
    """From matrices of similarities between the samples, the way round that the package does not go."""
    centre = np.eye(len(x)) - 1 / len(x)
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return np.sum(k * m) / math.sqrt(np.sum(k * k) * np.sum(m * m))


@pytest.mark.parametrize("unit_length", [False, True])
def test_cka_as_it_is_defined(unit_length):
    states = [random_tokens(3, 12, 6, seed) for seed in range(3)]
    states[2] = states[0] + 0.5 * states[1]
    rec = of_tokens(*states, grid=(3, 4), prefix=("cls",))

    def flat(x):
        x = x.reshape(36, -1)
        return x / np.linalg.norm(x, axis=1, keepdims=True) if unit_length else x

    expected = [[cka_by_hand(flat(x), flat(y)) for y in states] for x in states]
    np.testing.assert_allclose(analysis.layer_cka(rec, unit_length=unit_length), expected, atol=PRODUCTS)


def test_cka_does_not_see_rotations_and_scales():
    tokens = random_tokens(2, 12, 6)
    rotation, _ = np.linalg.qr(rng(3).standard_normal((6, 6)))
    cka = analysis.layer_cka(of_tokens(tokens, 3 * tokens @ rotation + 100, np.ones_like(tokens), grid=(3, 4)))
    np.testing.assert_allclose(cka[:2, :2], 1, atol=PRODUCTS)
    assert np.isnan(cka[2]).all()
    assert np.isnan(cka[:, 2]).all()


# ------------------------------------------------------------------------------------------- what models really do --


@pytest.mark.parametrize(
    "options, prefix",
    [({"registers": 2}, 3), ({"pooling": "gap", "position": "sincos2d"}, 0)],
    ids=["registers", "no class token"],
)
def test_on_recordings_of_models(options, prefix):
    model = build(**options)
    if keras.backend.backend() == "jax":
        model.run_eagerly = True
    rec = record(keras.Sequential([model]), list(pictures(2, 30, 50, 3)))
    assert len(rec.prefix) == prefix
    distance = analysis.mean_attention_distance(rec)
    assert distance.shape == (2, 2)
    assert (distance > 0).all()
    assert (distance < math.hypot(8, 20)).all()  # from corner to corner
    entropy = analysis.attention_entropy(rec)
    assert (entropy > 0).all()
    assert (entropy < math.log(12 + prefix)).all()
    assert analysis.attention_sinks(rec).shape == (2, 2, 12 + prefix)
    assert analysis.token_norms(rec).shape == (3, 2, 2, 6)
    assert analysis.token_pca(rec).shape == (2, 2, 6, 3)
    assert analysis.patch_similarity(rec, (1, 5), image=1)[1, 5] == pytest.approx(1, abs=FLOAT32)
    np.testing.assert_allclose(np.diag(analysis.layer_cka(rec)), 1, atol=PRODUCTS)
    assert analysis.position_similarity(model).shape == (2, 6, 2, 6)
    assert analysis.embedding_filters(model).shape == (15, 8, 4, 3)


# -------------------------------------------------------------------------------------------------------- figures --


@pytest.fixture(scope="module")
def tiny():
    pytest.importorskip("matplotlib")
    return build()


def texts(ax):
    return " ".join(text.get_text() for text in ax.texts).replace("\n", " ")


def test_figure_7_is_drawn_from_the_numbers(tiny):
    photos = pictures(3, 30, 50, 3)
    figure = paper_figures.figure7(tiny, (photo for photo in photos))
    filters, similarity, distances = figure.axes[:3]
    assert filters.get_title() == "RGB embedding filters\n(first 15 principal components)"
    mosaic = filters.images[0].get_array()
    assert mosaic.shape == (3 * 8 + 2, 7 * 4 + 6, 3)  # gaps of one pixel
    expected = analysis.embedding_filters(tiny)
    np.testing.assert_array_equal(mosaic[:8, 5:9], expected[1])
    np.testing.assert_array_equal(mosaic[18:, :4], expected[14])
    np.testing.assert_array_equal(mosaic[18:, 5:], 1)  # there is no sixteenth

    tiles = similarity.images[0].get_array()
    np.testing.assert_array_equal(tiles[3:5, 14:20], analysis.position_similarity(tiny)[1, 2])
    assert similarity.images[0].get_clim() == (-1, 1)
    assert (similarity.get_ylabel(), similarity.get_xlabel()) == (
        "Input patch row, from 0",
        "Input patch column, from 0",
    )
    assert [label.get_text() for label in similarity.get_xticklabels()] == ["0", "1", "2", "3", "4", "5"]

    dots = np.array([dots.get_offsets() for dots in distances.collections])  # (heads, layers, 2)
    expected = analysis.mean_attention_distance(record(tiny, photos))
    np.testing.assert_allclose(dots[..., 1].T, expected, rtol=1e-5)
    np.testing.assert_array_equal(dots[..., 0], [[0, 1], [0, 1]])
    assert [label.get_text() for label in distances.get_legend().get_texts()] == ["Head 0", "Head 1"]
    assert distances.get_title() == "tiny"
    assert not any(dots.get_clip_on() for dots in distances.collections)  # whole where they are at a limit


def test_figure_7_leaves_out_what_a_model_has_not():
    pytest.importorskip("matplotlib")
    hybrid = vit.build(
        ViTConfig(
            image_size=16, patch_size=1, resnet=(), num_layers=1, hidden_size=8, num_heads=2, mlp_dim=8, position=None
        )
    )
    filters, similarity, distances = paper_figures.figure7(hybrid, [pictures(16, 16, 3)]).axes[:3]
    assert "1x1 patches of 64 channels, which cannot be drawn as colors" in texts(filters)
    assert "it has no positions" in texts(similarity)
    assert len(distances.collections) == 2

    mixer = vit.build(
        ViTConfig(image_size=16, num_layers=1, hidden_size=8, mlp_dim=8, tokens_mlp_dim=4, pooling="gap", position=None)
    )
    filters, _, distances = paper_figures.figure7(mixer, [pictures(16, 16, 3)]).axes[:3]
    assert len(filters.images) == 1
    assert "has no attention" in texts(distances)


def test_figure_6_lays_the_rollout_over_black(tiny):
    photos = [pictures(20, 40, 3), pictures(30, 30, 3), pictures(40, 20, 3)]
    figure = paper_figures.figure6(tiny, iter(photos), columns=2)
    assert [ax.get_title() for ax in figure.axes] == ["Input", "Attention"] * 2 + [""] * 4
    figure._repr_png_()
    for photo, left, right in zip(photos, figure.axes[::2], figure.axes[1::2]):
        np.testing.assert_array_equal(left.images[0].get_array(), photo)
        heat = attention_rollout(record(tiny, photo))[0]
        difference = right.images[0].get_array().astype(int) - paper_style(photo, heat, clip=90)
        assert np.abs(difference).max() <= 1  # heads fused in the model or in NumPy
        box = left.images[0].get_window_extent()
        assert box.height / box.width == pytest.approx(photo.shape[0] / photo.shape[1])


def test_figure_6_of_other_maps_and_styles(tiny):
    photo = pictures(20, 40, 3)

    def drawn(**options):
        return paper_figures.figure6(tiny, photo, **options).axes[1].images[0].get_array()

    def heat(**options):
        return attention_map(tiny, photo, return_map=True, **options)

    np.testing.assert_array_equal(drawn(style="overlay", clip=99), overlay(photo, heat()))
    np.testing.assert_array_equal(drawn(style="vit_keras", method="alti"), vit_keras_style(photo, heat(method="alti")))
    expected = paper_style(photo, heat(method="relevance", target=1, start_layer=1))
    np.testing.assert_array_equal(drawn(target=1, start_layer=1, clip=100), expected)
    assert not (drawn(start_layer=1) == drawn()).all()
    with pytest.raises(ValueError, match="'paper'"):
        drawn(style="raw")


def test_plots_draw_where_they_are_told(tiny):
    from matplotlib.figure import Figure

    def draw(plot, *arguments, **options):
        ax = Figure().add_subplot()
        assert plot(*arguments, ax=ax, **options) is ax.figure
        return ax

    cka = rng().random((3, 3))
    ax = draw(paper_figures.plot_cka, cka)
    np.testing.assert_array_equal(ax.images[0].get_array(), cka)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("Layer", "Layer")
    values = rng().random((3, 12))
    ax = draw(paper_figures.plot_by_layer, values, "Entropy (nats)", layers=(2, 5, 8))
    np.testing.assert_allclose([dots.get_offsets()[:, 1] for dots in ax.collections], values.T)
    np.testing.assert_array_equal(ax.collections[0].get_offsets()[:, 0], (2, 5, 8))
    assert [label.get_text() for label in ax.get_legend().get_texts()] == ["Head 0", "Head 1", "Head 2", "…"]
    ax = draw(paper_figures.plot_position_similarity, tiny, grid=(2, 40))
    names = [label.get_text() for label in ax.get_xticklabels() if label.get_text()]
    assert names == ["0", "6", "12", "18", "24", "30", "36"]
    assert ax.images[0].get_array().shape == (2 * 2 + 2, 14 * 40 + 13 * 2)  # of 40 columns every third has tiles
    grey = build(channels=1, include_top=False)
    ax = draw(paper_figures.plot_embedding_filters, grey, 2)
    assert ax.get_title() == "Embedding filters\n(first 2 principal components)"
    np.testing.assert_array_equal(ax.images[0].get_array()[:, 5:], analysis.embedding_filters(grey, 2)[1, ..., 0])


# --------------------------------------------------------------------------------------------------------- mistakes --

WITHOUT = recording((2, 3), patch_size=(8, 4), values=np.zeros((2, 1)))
ATTENTION = recording((2, 3), attention=random_attention(7))
FUSED = recording((2, 3), attention=random_attention(7)[:, :, 0], head_fusion="max")
READOUT = recording((2, 3), attention=random_attention(7)[:, :, :, 0])
TOKENS = of_tokens(random_tokens(2, 6, 4), grid=(2, 3), features=random_tokens(2, 6, 4))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: analysis.mean_attention_distance(WITHOUT), "no attention .*keep="),
        (lambda: analysis.mean_attention_distance(FUSED), "head_fusion='max'.*head_fusion=None"),
        (lambda: analysis.mean_attention_distance(READOUT), "Record with query='all'"),
        (lambda: analysis.attention_sinks(FUSED), "head_fusion=None or head_fusion='mean'"),
        (lambda: analysis.token_norms(ATTENTION), "no tokens in the recording"),
        (lambda: analysis.token_pca(TOKENS, clip=(2, 50, 98)), "two percentiles"),
        (lambda: analysis.patch_similarity(TOKENS, (2, 0)), "2 rows of patches.* 2"),
        (lambda: analysis.patch_similarity(TOKENS, (0, 0), image=2), "has 2 images"),
        (lambda: analysis.patch_similarity(TOKENS, (0, 0), other=-3), "has 2 images"),
        (lambda: analysis.patch_similarity(TOKENS, 3), "row and the column of a patch"),
        (lambda: analysis.outlier_tokens(TOKENS, ratio=1), "above 1. Received: 1"),
        (lambda: analysis.embedding_filters(build(), 0), "n must be a positive integer"),
        (lambda: analysis.embedding_filters(keras.Sequential([keras.layers.Dense(2)])), "found 0"),
        (lambda: analysis.embedding_filters(cut_out()), "no layer 'embedding'"),
        (lambda: paper_figures.plot_by_layer(np.zeros(3), "x"), "Received: shape"),
        (lambda: paper_figures.figure6(build(), []), "no images"),
        (lambda: paper_figures.figure6(build(), pictures(16, 24, 3), columns=0), "columns must be a positive integer"),
        (lambda: paper_figures.figure7(build(), iter([])), "no images"),
        (lambda: paper_figures.plot_embedding_filters(build(channels=5, include_top=False)), "5 channels"),
    ],
)
def test_mistakes_say_what_would_be_right(call, message):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=message):
        call()


def cut_out():
    """A block alone, in a model."""
    inputs = keras.Input((6, 8))
    return keras.Model(inputs, layers.TransformerBlock(num_heads=2, mlp_dim=8)(inputs))
