"""The patch embedding is Keras' convolution, however it is computed."""

import keras
import numpy as np
import pytest

from vit_keras import vit
from vit_keras.backend import replicas
from vit_keras.layers import patches

SIZES = {"square": (32, 32, 8), "left over": (35, 50, 8), "not square": (24, 30, (6, 10)), "one patch": (16, 16, 16)}
OPTIONS = {
    "usual": {},
    "without bias": {"use_bias": False},
    "activation": {"activation": "relu"},
    "overlapping": {"strides": 4},
    "apart": {"strides": 12},
    "padded": {"padding": "same"},
    "dilated": {"dilation_rate": 2, "strides": 1},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "mixed_bfloat16"},
}
GROUPS = pytest.param({"groups": 2}, marks=pytest.mark.only_on("torch", "jax", reason="TensorFlow has none on CPUs"))


def pair(size, channels=4, **options):
    """A patch embedding and Keras' convolution with the same weights, and images."""
    height, width, patch = size
    random = np.random.default_rng(0)
    images = random.uniform(-1, 1, size=(2, height, width, channels)).astype("float32")
    convolution = keras.layers.Conv2D(6, patch, **{"strides": patch, **options})
    embedding = patches.Conv2D(6, patch, **options)
    for layer in (convolution, embedding):
        layer.build(images.shape)
    convolution.set_weights([random.normal(size=w.shape).astype(w.dtype) for w in convolution.get_weights()])
    embedding.set_weights(convolution.get_weights())
    return embedding, convolution, images


def assert_close(found, expected, bits=None):
    # A sum of at most 400 products in another order, of 24 bits. In half precision, of 11 or 8 bits, the sum is rounded
    # before the bias is added and after it, or once (in float16 on a CPU the layers do the same).
    np.testing.assert_allclose(found, expected, rtol=0, atol=(2**-bits if bits else 2e-6) * np.abs(expected).max())


@pytest.mark.core
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_every_size_is_convolved(size):
    embedding, convolution, images = pair(size)
    assert embedding.compute_output_shape(images.shape) == convolution.compute_output_shape(images.shape)
    assert_close(*(keras.ops.convert_to_numpy(layer(images)) for layer in (embedding, convolution)))


@pytest.mark.parametrize("options", [*OPTIONS.values(), GROUPS], ids=[*OPTIONS, "groups"])
def test_every_option_is_that_of_the_convolution(options):
    embedding, convolution, images = pair(SIZES["left over"], **options)
    found, expected = (layer(images) for layer in (embedding, convolution))
    assert keras.backend.standardize_dtype(found.dtype) == keras.backend.standardize_dtype(expected.dtype)
    bits = {"bfloat16": 7, "float16": 10}.get(keras.backend.standardize_dtype(found.dtype))
    found, expected = (keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in (found, expected))
    assert_close(found, expected, bits=bits)


@pytest.mark.only_on("torch", reason="only PyTorch computes a product")
@pytest.mark.parametrize("change", ["none", "adapter", "activity regularizer"])
def test_gradients_are_those_of_the_convolution(change):
    import torch

    embedding, convolution, images = pair(SIZES["left over"])
    for layer in (embedding, convolution):
        if change == "adapter":
            layer.enable_lora(2, lora_alpha=1)
            layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 0.3))
        if change == "activity regularizer":
            layer.activity_regularizer = keras.regularizers.L2(0.1)
    if change == "adapter":
        embedding.lora_kernel_a.assign(convolution.lora_kernel_a)
    found = []
    for layer in (embedding, convolution):
        x = torch.from_numpy(images).requires_grad_()
        loss = layer(x).square().sum() + sum(layer.losses)
        weights = [weight.value for weight in layer.trainable_weights]
        found.append(torch.autograd.grad(loss, [x, *weights]))
    for one, other in zip(*found, strict=True):
        assert_close(one.cpu().numpy(), other.cpu().numpy())


@pytest.mark.only_on("torch", reason="elsewhere it is Keras' own layer that convolves")
@pytest.mark.only_on("tensorflow", reason="tf.distribute is TensorFlow's")
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"activation": "relu"}, {"dtype": "mixed_bfloat16"}])
def test_a_replica_without_an_image_has_gradients(options, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(replicas, "count", lambda: 2)
    embedding, convolution, images = pair(SIZES["left over"], **options)
    expected = keras.ops.convert_to_numpy(convolution(images)).astype("float32")
    found = keras.ops.convert_to_numpy(embedding(images)).astype("float32")
    np.testing.assert_allclose(found, expected, atol=0.03 * expected.max() if "dtype" in options else 1e-4)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(embedding(images[:0]))
    assert not any(np.any(each) for each in tape.gradient(total, [each.value for each in embedding.weights]))


def test_an_image_smaller_than_a_patch_is_refused_as_by_keras():
    embedding, convolution, images = pair(SIZES["square"])
    said = []
    for layer in (embedding, convolution):
        with pytest.raises(RuntimeError) as error:
            layer(images[:, :5])
        said.append(str(error.value).partition("Arguments")[0])
    assert said[0] == said[1]
    assert tuple(embedding(images[:0]).shape) == tuple(convolution(images[:0]).shape)


@pytest.mark.only_on("torch", reason="only PyTorch computes a product")
def test_a_model_convolves_no_images(monkeypatch):
    import torch

    def fail(*args, **kwargs):
        raise AssertionError("the patch embedding was convolved")

    model = vit.vit_ti16(image_size=32, pretrained=False, classes=3)
    images = np.zeros((1, 32, 32, 3), "float32")
    monkeypatch.setattr(torch.nn.functional, "conv2d", fail)
    assert model(images).shape == (1, 3)


def test_an_embedding_is_saved_with_its_model(tmp_path):
    model = vit.vit_ti16(image_size=32, pretrained=False, classes=3)
    model.save(tmp_path / "model.keras")
    embedding = keras.models.load_model(tmp_path / "model.keras").get_layer("embedding")
    assert type(embedding) is patches.Conv2D
    assert isinstance(embedding, keras.layers.Conv2D)
    np.testing.assert_array_equal(embedding.kernel, model.get_layer("embedding").kernel)
