"""Products on PyTorch's CPU: both libraries compute the same, with gradients, and the one that is chosen stays."""

import logging

import keras
import numpy as np
import pytest

from vit_keras import vit
from vit_keras.backend import products
from vit_keras.config import ViTConfig
from vit_keras.layers import MlpBlock

pytestmark = pytest.mark.only_on("torch", reason="the libraries are PyTorch's")

CLOSE = {"rtol": 0, "atol": 1e-5}
"""Sums of some 50 products of numbers around 1, in another order, in float32."""


@pytest.fixture(params=["pytorch", "onednn"])
def library(request, monkeypatch):
    monkeypatch.setattr(products, "_library", dict.fromkeys(products.KINDS, request.param))
    monkeypatch.setattr(products, "LEAST", 0)
    if request.param == "onednn" and not _has_onednn():
        pytest.skip("this PyTorch has no oneDNN")
    return request.param


def _has_onednn():
    import torch

    return torch.backends.mkldnn.is_available()


def _multiplies_bfloat16():
    try:
        products._by_onednn(*[value.detach() for value in values(dtype="bfloat16")])
    except RuntimeError:
        return False
    return True


@pytest.fixture
def seen(monkeypatch):
    """The products that oneDNN computed."""
    calls, plain = [], products._by_onednn
    monkeypatch.setattr(products, "_by_onednn", lambda *args: calls.append(args[0].shape) or plain(*args))
    return calls


def values(rows=7, inner=48, units=20, dtype="float32"):
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, inner), (inner, units), (units,))
    return [torch.randn(s, generator=generator).to(getattr(torch, dtype)).requires_grad_() for s in shapes]


@pytest.mark.parametrize("bias", [True, False])
def test_products_and_their_gradients(library, seen, bias):
    import torch

    x, kernel, b = values()
    found = products.linear(x, kernel, b if bias else None)
    expected = x.double() @ kernel.double() + (b.double() if bias else 0)
    np.testing.assert_allclose(found.detach(), expected.detach(), **CLOSE)
    inputs = [x, kernel, b] if bias else [x, kernel]
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    for one, other in zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (found, expected))):
        np.testing.assert_allclose(one, other, **CLOSE)
    assert len(seen) == (3 if library == "onednn" else 0)
    with torch.no_grad():
        assert torch.equal(products.linear(x, kernel, b if bias else None), found)  # the same kernel in inference


@pytest.mark.parametrize("gelu", ["none", "tanh"])
def test_the_gelu_of_a_product(library, seen, gelu):
    import torch

    x, kernel, b = inputs = values()
    expected = torch.nn.functional.gelu(x.double() @ kernel.double() + b.double(), approximate=gelu)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            found = products.linear(x, kernel, b, gelu)
            np.testing.assert_allclose(found.detach(), expected.detach(), **CLOSE)
            of_more_axes = products.linear(x[None], kernel, b, gelu)[0]
            np.testing.assert_allclose(of_more_axes.detach(), expected.detach(), **CLOSE)
    assert len(seen) == (2 if library == "onednn" else 0)
    found = products.linear(x, kernel, b, gelu)
    for one, other in zip(*(torch.autograd.grad(y.sum(), inputs) for y in (found, expected))):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_gradients_of_gradients(library):
    """Those of the same product in float64, against differences: `torch.autograd.gradgradcheck` needs float64."""
    import torch

    x, kernel, b = values(3, 4, 5)

    def second(product, *inputs):
        inputs = [value.detach().requires_grad_() for value in inputs]
        slopes = torch.autograd.grad(product(*inputs).pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(s.square().sum() for s in slopes), inputs)

    found = second(products.linear, x, kernel, b)
    expected = second(lambda x, k, b: x @ k + b, *(value.double() for value in (x, kernel, b)))
    for a, e in zip(found, expected):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4 * float(e.abs().max()))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # torch.backends.mkldnn.flags asks for it
def test_transforms_modes_and_tracing_take_ordinary_products(library, seen):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    x, kernel, b = (value.detach() for value in values())
    expected = torch.addmm(b, x, kernel)
    seen.clear()
    batch = torch.func.vmap(products.linear, in_dims=(0, None, None))(torch.stack([x, x]), kernel, b)
    tangent = torch.func.jvp(lambda x: products.linear(x, kernel, b), (x,), (x,))[1]
    jacobian = torch.func.jacrev(lambda x: products.linear(x, kernel, b))(x)
    traced = torch.jit.trace(products.linear, (x, kernel, b), check_trace=False)
    with FlopCounterMode(display=False) as flops:
        products.linear(x, kernel, b)
    with torch.backends.mkldnn.flags(enabled=False):
        products.linear(x, kernel, b)
    compiled = torch.compile(products.linear, backend="eager")(x, kernel, b)
    for found in (batch[1], tangent + b, traced(x, kernel, b), compiled):
        np.testing.assert_allclose(found, expected, **CLOSE)
    assert jacobian.shape == (*expected.shape, *x.shape) and flops.get_total_flops() == 2 * 7 * 48 * 20
    assert not seen


@pytest.mark.parametrize("gelu", [None, "none", "tanh"])
def test_a_product_in_bfloat16_is_rounded_as_pytorch_rounds_it(library, seen, gelu):
    """bfloat16 has 8 bits: 2 ** -8 of a number is one rounding. A GELU of PyTorch's rounds once more."""
    import torch

    x, kernel, b = inputs = values(dtype="bfloat16")
    expected = products._with_gelu(torch, x.double() @ kernel.double() + b.double(), gelu)
    with torch.no_grad():
        found = products.linear(x, kernel, b, gelu)
    assert found.dtype is torch.bfloat16 and len(seen) == (library == "onednn")
    close = {"rtol": 2**-7, "atol": 2**-5 if gelu else 2**-9}
    np.testing.assert_allclose(found.double(), expected.detach(), **close)
    found = products.linear(x, kernel, b, gelu)
    np.testing.assert_allclose(found.detach().double(), expected.detach(), **close)
    for one, other in zip(*(torch.autograd.grad(y.sum(), inputs) for y in (found, expected))):
        np.testing.assert_allclose(one.double(), other.double(), rtol=0.02, atol=0.02 * float(other.abs().max()))


def heads(batch=3, tokens=5, keys=None, width=8, dtype="bfloat16"):
    """Queries, keys and values of two heads, laid out in memory as in a layer."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, n, 2, width) for n in (tokens, keys or tokens, keys or tokens))
    return [torch.randn(s, generator=generator).to(getattr(torch, dtype)).transpose(1, 2) for s in shapes]


@pytest.fixture
def multiplied(monkeypatch):
    """The batch sizes of attentions that were computed as two products."""
    sizes, plain = [], products._by_two_products
    monkeypatch.setattr(products, "_by_two_products", lambda *args: sizes.append(len(args[0])) or plain(*args))
    return sizes


@pytest.mark.parametrize("keys", [5, 9])
@pytest.mark.parametrize(("most", "batches"), [(10**6, [5]), (250, [2, 2, 1]), (90, [])])
def test_attention_in_bfloat16(library, multiplied, monkeypatch, most, batches, keys):
    """As PyTorch's in float64 to some roundings of bfloat16 (8 bits), with its gradients, whatever is at once."""
    import torch

    monkeypatch.setattr(products, "MOST_SCORE_BYTES", most * keys // 5)
    inputs = [x.requires_grad_() for x in heads(batch=5, keys=keys)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found = products.attend(*inputs)
    expected = torch.nn.functional.scaled_dot_product_attention(*exact)
    assert found.shape == expected.shape and found.dtype is torch.bfloat16
    np.testing.assert_allclose(found.detach().double(), expected.detach(), rtol=0, atol=0.02)
    for one, other in zip(torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(expected.sum(), exact)):
        np.testing.assert_allclose(one.double(), other, rtol=0, atol=0.03)
    assert multiplied == (batches if library == "onednn" else [])


def test_a_model_in_bfloat16_computes_and_trains_by_either_library(library, seen, multiplied):
    """It learns what the same model learns in float32, to the roundings of 8 bits."""
    if library == "onednn" and not _multiplies_bfloat16():
        pytest.skip("oneDNN does not multiply bfloat16 on this processor")
    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "mlp_dim": 24}
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    logits, weights = [], None
    for dtype in ("float32", "mixed_bfloat16"):
        model = vit.build(ViTConfig(**sizes, classes=3), dtype=dtype)
        weights = weights or model.get_weights()
        model.set_weights(weights)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        seen.clear()
        model.fit(images, np.arange(4) % 3, verbose=0)
        logits.append(model.predict(images, verbose=0))
    np.testing.assert_allclose(*logits, rtol=0, atol=0.03)
    assert multiplied == ([4] * 4 if library == "onednn" else [])
    assert len(seen) == (1 + 2 * 6 if library == "onednn" else 0)  # of `predict`: the patches, two blocks


CHANGES = {
    "none": lambda dense, seen: None,
    "hook": lambda dense, seen: dense.register_forward_hook(lambda layer, args, output: seen.append(output)),
    "call": lambda dense, seen: setattr(dense, "call", _recorded(dense.call, seen)),
    "class": lambda dense, seen: setattr(type(dense), "call", _recorded(type(dense).call, seen)),
    "activation": lambda dense, seen: setattr(dense, "activation", _recorded(dense.activation, seen)),
    "adapter": lambda dense, seen: dense.enable_lora(2),
}
"""What a user does to the first dense layer of an MLP, which may record its outputs."""


def _recorded(function, seen):
    def call(*args, **kwargs):
        seen.append(function(*args, **kwargs))
        return seen[-1]

    return call


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_whoever_watches_a_dense_layer_sees_its_output_and_not_its_gelu(library, monkeypatch, change, activation):
    import torch

    from vit_keras.backend import direct

    block, seen = MlpBlock(24, activation=activation), []
    x = torch.randn((5, 16), generator=torch.Generator().manual_seed(0))
    block(x)
    dense = block.layers[0]
    monkeypatch.setattr(type(dense), "call", type(dense).call)  # which is undone
    CHANGES[change](dense, seen)
    with torch.no_grad(), direct.asked_once(directly=False):
        expected = block(x)
        hidden = dense(x)
    seen.clear()
    with torch.no_grad():
        np.testing.assert_allclose(block(x).cpu(), expected.cpu(), **CLOSE)
    if change in ("none", "adapter"):
        assert not seen
    else:
        np.testing.assert_allclose(seen[0], hidden, **CLOSE)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("numbers", [1, 300, 301, 100_003])
def test_the_tanh_gelu_in_passes_is_pytorchs_and_takes_no_new_memory(numbers, threads, monkeypatch):
    """To 1e-6 of numbers up to 30: both round a few times, in float32."""
    import torch

    monkeypatch.setattr(products, "AT_ONCE", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x = torch.linspace(-30, 30, numbers)
    expected = torch.nn.functional.gelu(x.double(), approximate="tanh")
    found = products._gelu_in_passes(torch, x)
    assert found is x  # no new memory
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_a_failure_of_onednn_is_computed_again_and_logged_once(monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(products, "_library", {"float32": "onednn", "bfloat16": "onednn"})
    monkeypatch.setattr(products, "LEAST", 0)
    monkeypatch.setattr(products, "_by_onednn", fails)
    x, kernel, b = values()
    with caplog.at_level(logging.INFO, "vit_keras"):
        for _ in range(3):
            np.testing.assert_allclose(products.linear(x, kernel, b).detach(), (x @ kernel + b).detach(), **CLOSE)
    assert len(caplog.records) == 1 and products.library() == "pytorch" and products.library("bfloat16") == "onednn"
