"""Attention by cuDNN on JAX, which has no gradients for an odd number of tokens; here with the kernel of XLA."""

import keras
import numpy as np
import pytest

from vit_keras.backend import attention as fused

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
    shapes = [(2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8)] + [(1, 3, queries, keys)] * with_bias
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
    monkeypatch.setattr(fused, "_is_odd_on_gpu", lambda query, key, bias: True)
    found = jax.tree.leaves(everything(*given))
    assert [options["implementation"] for options in calls] == ["cudnn"]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=2e-6)


def test_cudnn_is_asked_where_it_computes_and_the_number_is_odd(monkeypatch):
    def asked(queries, keys, dtype="bfloat16", bias=None):
        query, key, _ = (x.astype(dtype) for x in inputs(queries, keys, False))
        return fused._is_odd_on_gpu(query, key, None if bias is None else np.zeros(bias))

    assert not asked(5, 5)  # this process has no GPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert asked(5, 5) and asked(5, 4) and asked(4, 5) and asked(5, 5, "float16") and asked(5, 5, bias=(1, 3, 5, 5))
    assert not (asked(4, 4) or asked(5, 5, "float32"))
    assert not (asked(5, 5, bias=(2, 3, 5, 5)) or asked(5, 5, bias=(1, 1, 5, 5)))  # sizes of merged tokens, and a mask


def test_jax_still_refuses_the_gradients_of_an_odd_number(monkeypatch):
    """When this fails, that version of JAX needs no padding. Nothing is computed: this process has no cuDNN."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)

    def loss(count):
        query = jax.numpy.zeros((2, count, 3, 8), "bfloat16")
        return jax.eval_shape(jax.grad(lambda x: PLAIN(x, x, x, implementation="cudnn").sum()), query)

    assert loss(4).shape == (2, 4, 3, 8)
    with pytest.raises(NotImplementedError, match="sequence length"):
        loss(5)


def test_without_gradients_no_token_is_added(monkeypatch):
    shapes = []

    def kernel(query, key, value, bias=None, *, implementation):
        shapes.append(query.shape)
        return PLAIN(query, key, value, bias)

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    monkeypatch.setattr(fused, "_is_odd_on_gpu", lambda query, key, bias: True)
    jax.jit(fused.fused_attention)(*inputs(5, 5, False))
    assert shapes == [(2, 5, 3, 8)]


def test_without_cudnn_keras_computes_attention(monkeypatch):
    """This process has none."""
    given = inputs(5, 5, False)
    expected = fused.fused_attention(*given)
    monkeypatch.setattr(fused, "_is_odd_on_gpu", lambda query, key, bias: True)
    np.testing.assert_array_equal(fused.fused_attention(*given), expected)
    gradient = jax.grad(lambda *given: fused.fused_attention(*given).sum())
    np.testing.assert_array_equal(gradient(*given).shape, given[0].shape)
