"""What is recorded on PyTorch computes what the layers compute, and is forgotten when they change."""

import gc
import weakref

import keras
import numpy as np
import pytest
from support import far_from_uniform

from vit_keras import compiled, replay, training, vit
from vit_keras.config import ViTConfig

pytestmark = pytest.mark.only_on("torch", reason="only PyTorch plays records")

SIZES = {"image_size": 32, "patch_size": 8, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "mlp_dim": 48}


def model_of(dtype=None, **options):
    model = vit.build(ViTConfig(**{**SIZES, "classes": 5, **options}), dtype=dtype)
    return far_from_uniform(model, 0.3, eagerly=False)


def images(count=2, seed=0):
    import torch

    return torch.rand(count, 32, 32, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def records(model):
    functions = compiled._caches[model].functions.values() if model in compiled._caches else ()
    return sum(len(function.records) for function in functions)


def plain(model, x, training=False):
    """Compute with the layers, whatever is recorded."""
    model.run_eagerly = True
    try:
        return model(x, training=training)
    finally:
        model.run_eagerly = False


def often(model, x, **how):
    for _ in range(replay.AFTER):
        outputs = model(x, **how)
    return outputs


KINDS = [
    {},
    {"mlp_activation": "gelu", "layer_scale": 0.3},
    {"gated_mlp": True, "mlp_activation": "quick_gelu", "qkv_bias": False},
    {"rope_theta": 100.0, "registers": 2},
    {"relative_positions": True, "position": None},
    {"pooling": "map"},
    {"merge_tokens": 2},
    {"resnet": (1,), "patch_size": 1},
    {"tokens_mlp_dim": 8, "position": None, "pooling": "gap"},
    {"dtype": "mixed_bfloat16"},
    {"dtype": "float16"},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(options) or "plain")
def test_outputs_and_gradients_are_those_of_the_layers(options):
    """To 1e-5 of the largest: the same kernels (half precision: 1 %)."""
    import torch

    model = model_of(**options)
    within = 1e-2 if "dtype" in options else 1e-5
    with torch.no_grad():
        expected, found = plain(model, images()), often(model, images())
    assert records(model) == 1
    assert (found - expected).abs().max() <= within * expected.abs().max()
    gradients = []
    for step in range(replay.AFTER + 1):
        model.zero_grad()
        outputs = model(images(), training=True) if step else plain(model, images(), training=True)
        outputs.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert records(model) == 2
    for first, last in zip(gradients[0], gradients[-1], strict=True):
        assert (first - last).abs().max() <= within * max(1e-3, first.abs().max())


def test_a_sum_takes_the_place_of_nothing_that_is_needed():
    """Images and weights stay, and the numbers are those of the layers to the bit, also where biases alone train."""
    import torch

    model, x = model_of(layer_scale=0.3), images()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim == 1)
    before = [x.clone(), *(parameter.clone() for parameter in model.parameters())]
    found = []
    for _ in range(replay.AFTER + 1):
        model.zero_grad()
        outputs = model(x, training=True)
        outputs.square().sum().backward()
        found.append([outputs, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
    assert records(model) == 1
    assert all(map(torch.equal, found[0], found[-1]))
    assert all(map(torch.equal, before, [x, *model.parameters()]))


def change_weights(model):
    model.get_layer("head").bias.assign(np.ones(5))


def change_activation(model):
    for layer in model.layers:
        if hasattr(layer, "mlpblock"):
            layer.mlpblock.activation = "relu"


def load_weights(model):
    model.set_weights([2 * array for array in model.get_weights()])


@pytest.mark.parametrize(
    "change", [change_weights, change_activation, load_weights, training.add_lora, lambda model: model.quantize("int8")]
)
def test_changes_of_the_model_are_noticed(change):
    model, x = model_of(), images()
    before = often(model, x, training=False)
    change(model)
    if change is training.add_lora:
        for layer in model._flatten_layers():
            if getattr(layer, "lora_enabled", False):
                layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 0.3))
    after = often(model, x, training=False)
    assert abs(keras.ops.convert_to_numpy(after - before)).max() > 1e-3
    np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (after, plain(model, x))), rtol=0, atol=1e-5)


def test_other_batches_have_their_own_records():
    model = model_of()
    for count in (2, 3):
        assert often(model, images(count), training=False).shape == (count, 5)
    assert records(model) == 2
    np.testing.assert_array_equal(model.predict(images(3).numpy(), verbose=0).shape, (3, 5))


@pytest.mark.parametrize(
    "options", [{"dropout": 0.5}, {"stochastic_depth": 0.5}, {"patch_dropout": 0.5}, {"remat": True}]
)
def test_what_drops_out_is_not_recorded_in_training(options):
    model = model_of(**options)
    first, second = (often(model, images(32), training=True) for _ in range(2))
    assert records(model) == 0
    assert ("remat" in options) == bool((first == second).all())
    often(model, images(), training=False)
    assert records(model) == (0 if "remat" in options else 1)


def test_who_watches_the_layers_sees_them_work():
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, seen = model_of(), []
    often(model, images(), training=False)
    hook = model.get_layer("Transformer_encoderblock_0").register_forward_hook(lambda *_: seen.append(1))
    model(images(), training=False)
    hook.remove()
    assert seen == [1]
    with FlopCounterMode(display=False) as flops:
        model(images(), training=False)
    assert flops.get_total_flops() > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert model(images(), training=False).shape == (2, 5)
    state = [variable.value * 0 for variable in model.trainable_variables]
    outputs, _ = model.stateless_call(state, [v.value for v in model.non_trainable_variables], images())
    assert not outputs.detach().numpy().any()


def test_gradients_of_images():
    x = images().requires_grad_()
    model = model_of()
    found = [_slopes(model(x, training=False), x) for _ in range(replay.AFTER + 1)]
    assert (found[0] - found[-1]).abs().max() <= 1e-5 * found[0].abs().max()


def _slopes(outputs, x):
    import torch

    return torch.autograd.grad(outputs.sum(), x)[0]


def test_layers_of_a_user_are_never_recorded():
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x))

    model = model_of()
    own = type(model)(model.input, Noise()(model.output))
    assert not (often(own, images(), training=False) == own(images(), training=False)).all()
    assert records(own) == 0


def test_a_model_that_is_gone_takes_its_records_along():
    model = model_of()
    often(model, images(), training=False)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
