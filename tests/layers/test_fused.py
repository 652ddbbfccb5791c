"""Attention by cuDNN on JAX, which has no gradients for an odd number of tokens; here with the kernel of XLA."""

import keras
import numpy as np
import pytest

from vit_keras.layers import fused

pytestmark = [pytest.mark.core, pytest.mark.only_on("jax", reason="PyTorch's kernel takes any number of tokens")]

if keras.backend.backend() == "jax":
    import jax


def kernel_of_even(query, key, value, bias=None, *, implementation=None, **lengths):
    """Attention that refuses odd numbers as cuDNN does, but without gradients, too."""
    if query.shape[1] % 2 or key.shape[1] % 2:
        raise NotImplementedError("Unsupported sequence length")
    return PLAIN(query, key, value, bias, **lengths)


PLAIN = jax.nn.dot_product_attention if keras.backend.backend() == "jax" else None


def inputs(queries, keys, with_bias):
    random = np.random.default_rng(0)
    shapes = [(2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8)] + [(1, 3, 1, keys)] * with_bias
    return [jax.numpy.asarray(random.normal(size=shape), "float32") for shape in shapes]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("counts", [(5, 5), (5, 4), (1, 7)], ids=str)
def test_gradients_of_an_odd_number_of_tokens_are_those_of_the_formula(counts, with_bias, monkeypatch):
    """To 2e-6, and 1e-6 of the loss: sums in float32 in another order."""
    given = inputs(*counts, with_bias)

    def loss(*given):
        return (fused.fused_attention(*given) ** 2).sum()

    everything = jax.value_and_grad(loss, argnums=range(len(given)))
    expected = jax.tree.leaves(everything(*given))
    calls = []
    kernel = lambda *args, **options: calls.append(options) or kernel_of_even(*args, **options)  # noqa: E731
    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    monkeypatch.setattr(fused, "_is_odd_on_cuda", lambda query, key: True)
    found = jax.tree.leaves(everything(*given))
    assert [options["implementation"] for options in calls] == ["cudnn"]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=2e-6)


def test_without_gradients_no_token_is_added(monkeypatch):
    shapes = []

    def kernel(query, key, value, bias=None, *, implementation):
        shapes.append(query.shape)
        return PLAIN(query, key, value, bias)

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    monkeypatch.setattr(fused, "_is_odd_on_cuda", lambda query, key: True)
    jax.jit(fused.fused_attention)(*inputs(5, 5, False))
    assert shapes == [(2, 5, 3, 8)]


def test_without_cudnn_keras_computes_attention(monkeypatch):
    """This process has none."""
    given = inputs(5, 5, False)
    expected = fused.fused_attention(*given)
    monkeypatch.setattr(fused, "_is_odd_on_cuda", lambda query, key: True)
    np.testing.assert_array_equal(fused.fused_attention(*given), expected)
    gradient = jax.grad(lambda *given: fused.fused_attention(*given).sum())
    np.testing.assert_array_equal(gradient(*given).shape, given[0].shape)
