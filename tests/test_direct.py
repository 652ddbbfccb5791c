"""On PyTorch, layers are called directly where Keras would add nothing, and compute what they compute through Keras."""

import contextlib
import functools

import direct_fuzz
import keras
import numpy as np
import pytest
from support import far_from_uniform, some_of

from vit_keras import layers, vit
from vit_keras.backend import direct
from vit_keras.config import ViTConfig

pytestmark = pytest.mark.only_on("torch", reason="on PyTorch alone layers are called directly")

SIZES = {"image_size": 32, "patch_size": 8, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "mlp_dim": 48}


def model_of(dtype=None, **options):
    return far_from_uniform(vit.build(ViTConfig(**{**SIZES, "classes": 5, **options}), dtype=dtype), 0.3, eagerly=False)


def images(count=2, seed=0):
    import torch

    return torch.rand(count, 32, 32, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@contextlib.contextmanager
def calls_of_keras():
    """Count the calls of layers that go through Keras."""
    called, plain = [], keras.layers.Layer._assert_input_compatibility

    def counted(self, *args):
        called.append(self.name)
        return plain(self, *args)

    keras.layers.Layer._assert_input_compatibility = counted
    try:
        yield called
    finally:
        keras.layers.Layer._assert_input_compatibility = plain


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
def test_blocks_are_called_directly_and_compute_the_same(options):
    """Outputs to the bit: the same kernels are called with the same values."""
    import torch

    model, x = model_of(**options), images()
    with torch.no_grad(), calls_of_keras() as called:
        found = model(x)
    directly = {"out", "MultiHeadDotProductAttention_1", "Dense_0"} if "tokens_mlp_dim" not in options else {"Dense_0"}
    directly |= {"head", model.name} if "dtype" not in options else set()
    assert not directly & set(called)
    with torch.no_grad(), calls_of_keras() as called, direct.asked_once(directly=False):
        expected = model(x)
    assert directly <= set(called)
    assert torch.equal(found, expected)


def test_run_eagerly_and_the_switch_call_every_layer_through_keras(monkeypatch):
    model = model_of()
    inside = {"query", "LayerNorm_0", "MlpBlock_3", "Dense_0", "Transformer_encoderblock_1"}
    model.run_eagerly = True
    with calls_of_keras() as called:
        model(images())
    assert inside <= set(called)
    model.run_eagerly = False
    with calls_of_keras() as called:
        model(images())
    assert not inside & set(called)
    monkeypatch.setattr(direct, "enabled", False)
    with calls_of_keras() as called:
        model(images())
    assert inside <= set(called)


def test_tensors_are_let_go_of_after_their_last_use():
    """The output of the first block is gone when the last block runs: Keras keeps all of them until the end."""
    import weakref

    import torch

    model, alive = model_of(num_layers=4), []
    first, last = (model.get_layer(f"Transformer_encoderblock_{n}") for n in (0, 3))

    def keep(outputs):
        alive.append(weakref.ref(outputs))
        return outputs

    call, call_of_last = first.call, last.call
    first.call = lambda *args, **kwargs: keep(call(*args, **kwargs))
    last.call = lambda *args, **kwargs: alive.append(alive[0]() is None) or call_of_last(*args, **kwargs)
    with torch.no_grad():
        model(images())
    assert alive[1]


class Drops(keras.layers.Layer):
    """A layer of a user, whose `call` does not take `training`: Keras tells the layer inside."""

    def __init__(self):
        super().__init__()
        self.inside = keras.layers.Dropout(0.5)

    def call(self, inputs):
        return self.inside(inputs)


@pytest.mark.parametrize("training", [None, False, True])
def test_layers_of_a_user_in_a_model_are_told_of_training(training):
    base = model_of()
    model = type(base)(base.input, Drops()(base.output))
    with calls_of_keras() as called:
        drops = bool((model(images(8), training=training) == 0).any())
    assert drops is bool(training) and model.name not in called


def test_errors_are_described_as_by_keras():
    def fails(x):
        raise ValueError("not today")

    model, found = model_of(), []
    model.layers[-1].activation = fails
    for call in (model, functools.partial(keras.layers.Layer.__call__, model)):
        with pytest.raises(ValueError, match="not today") as error:
            call(images())
        found.append(str(error.value))
    assert found[0] == found[1] and "when calling" in found[0]


@pytest.mark.parametrize("switched", [False, True])
def test_what_is_not_a_tensor_is_converted_as_by_keras(switched, monkeypatch):
    """Layers that are not built, NumPy's arrays, integers, and masks that are lists."""
    import torch

    monkeypatch.setattr(direct, "enabled", not switched)
    keras.utils.set_random_seed(0)
    block = layers.TransformerBlock(num_heads=2, mlp_dim=8)
    x, mask = np.random.default_rng(0).normal(size=(1, 5, 4)).astype("float32"), np.eye(5, dtype=bool)[None]
    first = block(torch.tensor(x), attention_mask=torch.tensor(mask))  # which builds it
    given = (x, mask), (torch.tensor(x), mask), (torch.tensor(x), mask.tolist())
    whole = torch.ones((1, 5, 4), dtype=torch.int32)
    pairs = [(block(tokens, attention_mask=seen), first) for tokens, seen in given]
    for pair in (*pairs, (block(whole), block(whole.float()))):
        np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, pair), rtol=0, atol=1e-6)  # float32


KINDS = {
    "plain": {"num_layers": 1},
    "rotary": {"rope_theta": 100.0},
    "mixed rotary": {"rope_theta": 10.0, "rope_kind": "mixed"},
    "relative": {"relative_positions": True, "position": None},
    "gated": {"gated_mlp": True, "mlp_activation": "silu", "layer_scale": 0.1},
    "registers": {"registers": 2, "pooling": "map"},
    "merging": {"merge_tokens": 2},
    "any size": {"image_size": None, "position_grid": (4, 4)},
    "hybrid": {"resnet": (1, 1, 1), "patch_size": 1},
}
"""Kinds of models; the parts of each cost `torch.compile` some seconds."""


@pytest.mark.parametrize(
    "kind", [kind if kind == "plain" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_torch_compile_makes_one_graph_of_a_model(kind):
    """`fullgraph` refuses a second graph. Parts of a model in graphs of their own were four times as slow on a GPU.

    To 1e-5 of logits of about 1: it fuses nothing here, but takes Keras' way through the operations.
    """
    import torch

    torch.compiler.reset()
    model = model_of(**KINDS[kind])
    block = model.get_layer("Transformer_encoderblock_0"), torch.randn(1, 17, 32)
    for part, x in [(model, images()), block][: 2 if kind == "plain" else 1]:
        with torch.no_grad():
            compiled = torch.compile(part, fullgraph=True, backend="eager")
            np.testing.assert_allclose(compiled(x, training=False), part(x, training=False), rtol=0, atol=1e-5)


@pytest.mark.few_cases(32)
@pytest.mark.parametrize("seed", range(50))
@pytest.mark.filterwarnings("ignore:`torch.jit.(trace|script)` is deprecated")  # users still call them
def test_what_users_do_to_a_model(seed):
    """Each quick change and each call at least once; the slow test has all in random order, four to a model."""
    changes, calls = direct_fuzz.QUICK, direct_fuzz.CALLS
    direct_fuzz.run(seed, 1, changes[seed % len(changes)], calls[seed % len(calls)])


@pytest.mark.slow
@pytest.mark.parametrize("first", some_of(range(50, 2050, 100), 6))
def test_what_users_do_to_a_model_at_length(first):
    for seed in range(first, first + 100):
        direct_fuzz.run(seed, steps=4)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # PyTorch's, of its fused attention
def test_gradients_of_each_image_by_stateless_call():
    import torch

    model, x, y = model_of(dropout=0.0), keras.ops.convert_to_tensor(images(3)), torch.tensor([0, 1, 2])
    variables = model.trainable_variables

    def loss(values, image, label):
        logits, _ = model.stateless_call(values, [], image[None], training=True)
        return torch.nn.functional.cross_entropy(logits, label[None])

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))([v.value.detach() for v in variables], x, y)
    torch.nn.functional.cross_entropy(model(x, training=True), y).backward()
    for variable, gradients in zip(variables, each):  # sums in another order: rounding of float32
        np.testing.assert_allclose(gradients.mean(0), variable.value.grad, atol=1e-5, rtol=1e-4)
