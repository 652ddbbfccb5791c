"""Maps against their definitions written out in full, closed cases, and the right place on the picture.

What the authors' own code makes of the same weights is in test_map_parity.py.
"""

import dataclasses
import functools

import numpy as np
import pytest
from support import noise, tiny_model

from vit_keras import visualize
from vit_keras.visualize.maps import token_contributions
from vit_keras.visualize.methods import OF_A_CLASS

KEPT = ("attention", "values", "tokens", "normed")
CLOSE = {"rtol": 1e-5, "atol": 1e-7}  # float32 results of the same float64 sums
SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


build = functools.partial(tiny_model, (32, 48), num_layers=3, hidden_size=32, mlp_dim=64, classes=6, scale=0.15)


@functools.cache
def recorded(target=2, **options):
    return visualize.record(build(**options), noise(2, 32, 48, 3), target=target, keep=KEPT)


def product(matrices):
    """W_L ... W_1."""
    joint = np.eye(len(matrices[0]))
    for matrix in matrices:
        joint = matrix @ joint
    return joint


def normalised(matrix):
    return matrix / matrix.sum(axis=-1, keepdims=True)


def each_image(recording, matrices_of):
    """The map by the whole product: `matrices_of(image)` are those of the layers."""
    rows = [recording.readout[b] @ product(matrices_of(b)) for b in range(len(recording.images))]
    return np.stack(rows)[:, len(recording.prefix) :].reshape(-1, *recording.grid)


MODELS = {
    "class token": {},
    "registers, no class token": {"registers": 2, "pooling": "gap"},
    "distilled": {"pooling": "token+dist", "distillation_token": True},
    "map head": {"pooling": "map"},
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_rollout_from_what_the_output_reads(kind, fusion):
    recording = recorded(**MODELS[kind])
    fused = getattr(recording.attention, fusion)(axis=2).astype("float64")
    expected = each_image(recording, lambda b: [normalised(0.3 * np.eye(len(a)) + 0.7 * a) for a in fused[1:, b]])
    found = visualize.attention_rollout(recording, head_fusion=fusion, residual=0.3, start_layer=1)
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_array_equal(
        found, visualize.attention_rollout(recording, head_fusion=fusion, residual=0.3, start_layer=-2)
    )


def test_rollout_without_the_lowest():
    recording = recorded()

    def matrix(attention):
        lowest = np.sort(attention.ravel())[int(attention.size * 0.4) - 1]
        kept = np.where(attention > lowest, attention, 0)
        kept[0, 0] = attention[0, 0]
        return normalised(np.eye(len(kept)) + kept)

    expected = each_image(recording, lambda b: [matrix(a) for a in recording.attention.mean(axis=2)[:, b]])
    found = visualize.attention_rollout(recording, discard_ratio=0.4)
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert np.abs(found - visualize.attention_rollout(recording)).max() > 1e-3


@pytest.mark.parametrize(
    ("query", "row"), [("cls", [0]), ("mean", range(3, 27)), ((0, 0), [3]), ((1, 2), [3 + 8]), ((3, 5), [26])]
)
def test_whose_map_it_is(query, row):
    recording = recorded(registers=2)
    fused = recording.attention.mean(axis=2).astype("float64")
    joint = product([normalised(np.eye(27) + a) for a in fused[:, 1]])
    expected = joint[list(row)].mean(axis=0)[3:].reshape(4, 6)
    np.testing.assert_allclose(visualize.attention_rollout(recording, query=query)[1], expected, **CLOSE)


@pytest.mark.parametrize("kind", MODELS)
def test_relevance_by_the_whole_product(kind):
    recording = recorded(**MODELS[kind])
    changes = np.maximum(recording.attention * recording.gradients, 0).mean(axis=2).astype("float64")
    if recording.pooling_attention is not None:
        row = np.maximum(recording.pooling_attention * recording.pooling_gradients, 0).mean(axis=1)
        recording = dataclasses.replace(recording, readout=row)
    expected = each_image(recording, lambda b: [np.eye(len(c)) + c for c in changes[:, b]])
    np.testing.assert_allclose(visualize.relevance_map(recorded(**MODELS[kind])), expected, **CLOSE)


@pytest.mark.parametrize(
    "method", ["rollout", "attention", "relevance", "gradient_rollout", "legrad", "alti", "layercam"]
)
@pytest.mark.parametrize("kind", ["class token", *map(SLOW, list(MODELS)[1:])])
def test_attention_map_is_that_of_a_whole_recording(kind, method):
    model, images = build(**MODELS[kind]), noise(2, 32, 48, 3)
    target = [2, 2] if method in OF_A_CLASS else None
    found = visualize.attention_map(model, images, method=method, target=target, return_map=True)
    recording = recorded(**MODELS[kind])
    expected = {
        "rollout": visualize.attention_rollout,
        "attention": lambda r: visualize.cls_attention(r).mean(axis=1),
        "relevance": visualize.relevance_map,
        "gradient_rollout": visualize.gradient_rollout,
        "legrad": lambda r: visualize.legrad(visualize.record(model, images, target=2, exits=True)),
        "alti": visualize.alti_rollout,
        "layercam": lambda r: visualize.grad_cam(r, "layercam"),
    }[method](recording)
    # Fused on the way, in float32: sums of a few hundred terms.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_class_attention_of_a_layer_and_a_head():
    recording = recorded(registers=1)
    expected = recording.attention[1, :, :, 0, 2:].reshape(2, 2, 4, 6)
    np.testing.assert_allclose(visualize.cls_attention(recording, 1), expected, **CLOSE)
    np.testing.assert_allclose(visualize.cls_attention(recording, -2, head=1), expected[:, 1], **CLOSE)
    pooled = recorded(pooling="map")
    np.testing.assert_allclose(
        visualize.cls_attention(pooled), pooled.pooling_attention.reshape(2, 2, 4, 6), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("mass", [0.1, 0.6, 0.95])
def test_the_mask_holds_the_mass_with_the_fewest_patches(mass):
    maps = np.random.default_rng(0).random((2, 3, 5, 7))
    mask = visualize.mass_mask(maps, mass)
    for heat, kept in zip(maps.reshape(-1, 35), mask.reshape(-1, 35)):
        assert heat[kept].min() >= heat[~kept].max(initial=0)
        assert heat[kept].sum() >= mass * heat.sum() > heat[kept].sum() - heat[kept].min()


# ------------------------------------------------------------- contributions --


def test_alti_by_its_definition():
    recording = recorded(layer_scale=0.4)
    parts = np.einsum("bhij,bhjd,hdD->bijD", recording.attention[2], recording.values[2], recording.projections[2])
    diagonal = np.arange(25)
    parts[:, diagonal, diagonal] += recording.tokens[2]
    whole = parts.sum(axis=2)
    near = np.maximum(np.abs(whole).sum(axis=-1)[..., None] - np.abs(whole[:, :, None] - parts).sum(axis=-1), 0)
    found = token_contributions(recording)[2]
    np.testing.assert_allclose(found, normalised(near), rtol=0, atol=1e-5)  # float32 sums of 32 terms
    found = token_contributions(recording, "norm")[2]
    np.testing.assert_allclose(found, normalised(np.linalg.norm(parts, axis=-1)), rtol=0, atol=1e-5)


def test_a_token_that_says_nothing_counts_for_nothing():
    recording = recorded()
    values = recording.values.copy()
    values[:, :, :, 7] = 0  # whatever attention it draws
    tokens = np.where(np.arange(25)[:, None] == 7, 0, recording.tokens).astype("float32")
    silent = dataclasses.replace(recording, values=values, tokens=tokens)
    assert visualize.alti_rollout(silent).reshape(2, -1)[:, 6].max() < 1e-6
    assert visualize.attention_rollout(silent).reshape(2, -1)[:, 6].min() > 1e-3


# ---------------------------------------------------------- on the right place --


@pytest.mark.parametrize("corner", [(2, 1), SLOW((0, 5))])
@pytest.mark.parametrize("method", visualize.METHODS)
def test_the_patch_that_is_unlike_all_others_is_where_it_is(method, corner):
    # Without positions all other patches are one and the same to the model, and get one and the same value.
    model = positionless()
    picture = np.full((32, 48, 3), 40, "uint8")
    picture[corner[0] * 8 :, corner[1] * 8 :][:8, :8] = (250, 30, 200)
    heat = visualize.attention_map(model, picture, method=method, return_map=True)
    apart = np.abs(heat - np.median(heat))
    assert np.unravel_index(apart.argmax(), heat.shape) == corner
    assert np.sort(apart.ravel())[-2] <= 1e-4 * np.abs(heat).max()  # float32


@functools.cache
def positionless():
    return build(position=None)


def test_options_go_to_the_method():
    model, image = build(), noise(32, 48, 3)
    found = visualize.attention_map(model, image, head_fusion="max", discard_ratio=0.3, return_map=True)
    recording = visualize.record(model, image)
    expected = visualize.attention_rollout(recording, head_fusion="max", discard_ratio=0.3)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    found = visualize.attention_map(model, image, method="attention", layer=0, head=1, return_map=True)
    np.testing.assert_allclose(found, visualize.cls_attention(recording, 0, 1)[0], rtol=1e-4, atol=1e-6)
    found = visualize.attention_map(model, image, method="hirescam", target=3, layer=1, return_map=True)
    recording = visualize.record(model, image, target=3, keep="normed")
    np.testing.assert_allclose(found, visualize.grad_cam(recording, "hirescam", 1)[0], rtol=1e-3, atol=1e-6)


# ------------------------------------------------------------------ mistakes --

PLAIN = recorded.__wrapped__(target=None)
WITHOUT = dataclasses.replace(PLAIN, values=None)
FUSED = dataclasses.replace(PLAIN, head_fusion="mean", attention=PLAIN.attention[:, :, 0])
MISTAKES = {
    "no gradients": (lambda: visualize.relevance_map(WITHOUT), "no gradients: record with a target.*alti_rollout"),
    "no values": (lambda: visualize.alti_rollout(WITHOUT), "no values: keep 'values'"),
    "no projections": (
        lambda: visualize.alti_rollout(dataclasses.replace(recorded(), projections=None)),
        "no projections: keep 'values'",
    ),
    "no exits": (lambda: visualize.legrad(recorded()), "exits=True"),
    "no cam": (lambda: visualize.grad_cam(WITHOUT), "no normed gradients.*keep=.*normed"),
    "kind of cam": (lambda: visualize.grad_cam(recorded(), "eigencam"), "'gradcam', 'hirescam'.*'eigencam'"),
    "kind of alti": (lambda: visualize.alti_rollout(recorded(), kind="l1"), "'alti', 'norm'.*'l1'"),
    "fusion": (lambda: visualize.attention_rollout(recorded(), head_fusion="sum"), "'mean', 'max' or 'min'.*'sum'"),
    "ratio": (lambda: visualize.attention_rollout(recorded(), discard_ratio=1), r"\[0, 1\).*1"),
    "layer": (lambda: visualize.cls_attention(recorded(), 3), "blocks 0, 1, 2. Received: 3"),
    "start": (lambda: visualize.attention_rollout(recorded(), start_layer=-4), "Received: -4"),
    "head": (lambda: visualize.cls_attention(recorded(), head=2), "2 heads.*head=2"),
    "patch": (lambda: visualize.attention_rollout(recorded(), query=(4, 0)), r"4 x 6 patches.*\(4, 0\)"),
    "query": (lambda: visualize.attention_rollout(recorded(), query="patch"), "'auto', 'cls', 'mean'.*'patch'"),
    "no class token": (lambda: visualize.attention_rollout(recorded(pooling="gap"), query="cls"), "query='mean'"),
    "mass": (lambda: visualize.mass_mask(np.ones((2, 2)), 1), "between 0 and 1"),
    "fused": (lambda: visualize.relevance_map(FUSED), "head_fusion='relevance' or head_fusion=None"),
    "fused heads": (lambda: visualize.cls_attention(FUSED), "head_fusion=None"),
    "fused contributions": (lambda: visualize.alti_rollout(FUSED), "head_fusion=None and query='all'"),
    "exits": (lambda: visualize.relevance_map(dataclasses.replace(recorded(), exits=True)), "record with exits=False"),
    "rows": (
        lambda: visualize.attention_rollout(dataclasses.replace(WITHOUT, attention=WITHOUT.attention[:, :, :, 0])),
        "query='all'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_with_their_remedy(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        call()


# ---------------------------------------------------------------- real weights --
