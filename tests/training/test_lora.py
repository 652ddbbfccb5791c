"""Low-rank adapters: what is trained, that merging changes nothing, and that the result is a plain model."""

import functools

import keras
import numpy as np
import pytest
from support import tiny_model, uncompiled

from vit_keras import checkpoints, layers
from vit_keras.training.lora import add_lora, merge_lora
from vit_keras.training.recipes import recipe

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, size=(4, 16, 16, 3)).astype("float32")
EAGER = keras.backend.backend() != "jax"


tiny = functools.partial(tiny_model, 16)


def outputs(model):
    return keras.ops.convert_to_numpy(model(IMAGES))


def adapters(model):
    return [weight for weight in model.weights if "lora" in weight.path]


def perturb(model):
    """What training does: the second factors, and the head's kernel, are no longer zero."""
    for weight in [*adapters(model), *model.get_layer("head").weights]:
        weight.assign(RNG.normal(scale=0.3, size=tuple(weight.shape)).astype("float32"))


def test_a_model_without_a_head_trains_its_adapters():
    model = tiny(include_top=False)
    add_lora(model, rank=2)
    assert len(model.trainable_variables) == 4
    assert all("lora" in variable.path for variable in model.trainable_variables)


@pytest.mark.core
def test_only_the_adapters_and_the_head_are_trained():
    model = tiny()
    model.get_layer("head").kernel.assign(RNG.normal(size=(16, 3)))
    before = outputs(model)
    add_lora(model, rank=2)
    trained = [weight.path.split("/")[-2:] for weight in model.trainable_weights]
    factors = [[name, f"lora_kernel_{factor}"] for name in ("query", "value") for factor in "ab"]
    assert sorted(trained) == sorted([*factors, ["head", "kernel"], ["head", "bias"]])
    np.testing.assert_array_equal(outputs(model), before)  # the second factors are zero
    perturb(model)
    assert np.abs(outputs(model) - before).max() > 1e-2  # and not what was compiled before


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1), (6, 3)])
def test_adapters_are_scaled_as_in_the_paper(alpha, scale):
    """arXiv 2106.09685, section 4.1: the kernel is W + alpha / rank · A B."""
    array, model = keras.ops.convert_to_numpy, tiny()
    query = model.get_layer("Transformer_encoderblock_0").att.query_dense
    kernel = array(query.kernel)
    add_lora(model, rank=2, alpha=alpha)
    perturb(model)
    product = array(query.lora_kernel_a) @ array(query.lora_kernel_b)
    np.testing.assert_allclose(array(query.kernel), kernel + scale * product, atol=1e-6)  # float32
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_allclose(outputs(copy), outputs(model), atol=1e-6)


@pytest.mark.slow
def test_merging_changes_nothing_and_leaves_a_plain_model(tmp_path):
    model, plain = tiny(), tiny()
    names = [weight.path for weight in model.weights]
    model(IMAGES)
    add_lora(model, rank=2, projections=("query", "out", "Dense_0"))
    perturb(model)
    before = outputs(model)
    assert len(adapters(model)) == 2 * 3
    merge_lora(model)
    # float32: kernels of about 0.3 and one rounding each
    np.testing.assert_allclose(outputs(model), before, atol=1e-5)
    assert [weight.path for weight in model.weights] == names
    assert len(model.trainable_weights) == len(names)
    checkpoints.save_weights(model, tmp_path / "merged.npz")
    checkpoints.load_weights(plain, tmp_path / "merged.npz")
    np.testing.assert_allclose(outputs(plain), before, atol=1e-5)
    add_lora(model)  # and again


@pytest.fixture
def once():
    with uncompiled():
        yield


@pytest.mark.usefixtures("once")
def test_saved_weights_load_with_adapters_and_merged_without(tmp_path):
    model, plain, other = tiny(), tiny(), tiny()
    for each, rank in ((model, 2), (other, 3)):
        add_lora(each, rank=rank)
    perturb(model)
    model.save_weights(tmp_path / "model.weights.h5")
    for each in (plain, other):
        each.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_allclose(outputs(each), outputs(model), atol=1e-5)  # float32
    assert not adapters(plain)


def test_the_recipe_leaves_the_backbone_as_it_was():
    model = tiny()
    frozen = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
    known = recipe("lora", learning_rate=0.1, warmup=0.0)
    known.compile(model, run_eagerly=EAGER)
    model.fit(IMAGES, np.array([0, 1, 2, 0]), epochs=2, verbose=0, callbacks=known.callbacks)
    for weight in model.weights:
        if "lora" not in weight.path and not weight.path.startswith("head"):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), frozen[weight.path])
    assert all(np.any(keras.ops.convert_to_numpy(weight)) for weight in adapters(model))


def test_mistakes_are_named():
    model = tiny()
    for projections in (("keys",), ()):
        with pytest.raises(ValueError, match="'query'"):
            add_lora(model, projections=projections)
    with pytest.raises(ValueError, match="rank must be"):
        add_lora(model, rank=0)
    with pytest.raises(ValueError, match="blocks"):
        add_lora(model, projections=("Gate",))
    with pytest.raises(ValueError, match="adapters"):
        merge_lora(model)
    add_lora(model)
    with pytest.raises(ValueError, match="adapters"):
        add_lora(model)
    with pytest.raises(ValueError, match="found 0"):
        add_lora(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    assert isinstance(model.layers[5], layers.TransformerBlock)
