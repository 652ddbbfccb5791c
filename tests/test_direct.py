"""On PyTorch, layers are called directly where Keras would add nothing, and compute what they compute through Keras."""

import contextlib
import functools
import logging
import threading

import direct_fuzz
import keras
import numpy as np
import pytest
from support import far_from_uniform, some_of

from vit_keras import layers, vit
from vit_keras._internal.tap import tap
from vit_keras.backend import direct, keras_internals
from vit_keras.backend import ops as _ops
from vit_keras.config import ViTConfig

pytestmark = pytest.mark.only_on("torch", reason="on PyTorch alone layers are called directly")

SIZES = {"image_size": 32, "patch_size": 8, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "mlp_dim": 48}


def model_of(dtype=None, **options):
    model = vit.build(ViTConfig(**{**SIZES, "classes": 5, **options}), dtype=dtype)
    return far_from_uniform(model, 0.3, eagerly=False)


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
    directly |= {"head"} if "dtype" not in options else set()
    assert not directly & set(called) and model.name in called
    with torch.no_grad(), calls_of_keras() as called, direct.through_keras():
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


def test_a_class_whose_call_names_no_arguments_gets_what_keras_passes(monkeypatch):
    """Keras looks at the arguments of `call` when a layer is made, and passes no `training` to one without it."""
    import torch

    call = layers.MlpBlock.call
    monkeypatch.setattr(layers.MlpBlock, "call", lambda self, *args, **kwargs: call(self, *args, **kwargs))
    model, x, found = model_of(dropout=0.5), images(), []
    for scope in (contextlib.nullcontext, direct.through_keras):
        torch.manual_seed(0)
        with scope(), torch.no_grad():
            found.append(model(x, training=True))
    assert torch.equal(*found)


PRIVATE = {
    "HOOKS": ("_forward_hooks", "_renamed"),
    "ANY_GLOBAL_HOOK": "_renamed",
    "PROFILED": "_renamed",
    "CALL": "_renamed",
    "COMPILED": "_renamed",
    **dict.fromkeys(("OWN_POLICY", "OWN_SPEC", "OWN_REMAT"), "_renamed"),
    "POLICY_DTYPES": ("_renamed", "_variable_dtype"),
    "AUTOCAST": "_renamed",
    **dict.fromkeys(("thread_state", "distribution", "values_of")),
}
"""What is renamed: private names of PyTorch, and the functions that use Keras' own."""


@pytest.mark.parametrize("name", PRIVATE)
def test_without_a_private_name_the_layers_are_called_through_keras(name, monkeypatch, caplog):
    """As after a release of PyTorch or Keras that renames something: the same numbers, and one line in the log."""
    import torch

    model, x = model_of(dtype="mixed_bfloat16" if name == "AUTOCAST" else None), images()
    expected = model(x, training=False)

    def renamed(*_):
        raise AttributeError("it has another name")

    monkeypatch.setattr(direct, "enabled", True)
    monkeypatch.setattr(_ops if name == "values_of" else direct, name, PRIVATE[name] or renamed)
    with caplog.at_level(logging.INFO, "vit_keras"):
        found = [model(x, training=False) for _ in range(3)]
    assert all(torch.equal(each, expected) for each in found)
    assert not direct.enabled
    assert len([each for each in caplog.records if "through Keras" in each.message]) == 1


def test_without_keras_graph_the_model_runs_as_keras_runs_it(monkeypatch):
    from vit_keras.backend import keras_speed

    model, x = model_of(), images()
    expected = model(x)
    monkeypatch.setattr(keras_speed, "has_graph", lambda model: False)
    np.testing.assert_array_equal(model(x).detach().cpu(), expected.detach().cpu())


def test_a_wrapper_from_before_is_respected(monkeypatch):
    """Whoever wraps `Layer.__call__` or `Module.__call__` before this package is imported sees all calls too."""
    import torch

    assert direct._path_of_keras() == direct._path()
    for owner in (keras.layers.Layer, torch.nn.Module):
        plain = owner.__call__
        monkeypatch.setattr(owner, "__call__", lambda self, *args, plain=plain, **kwargs: plain(self, *args, **kwargs))
        assert direct._path_of_keras() is None
        monkeypatch.undo()


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


def test_two_outputs_and_a_layer_that_is_used_twice():
    import torch

    model = model_of()
    block = model.get_layer("Transformer_encoderblock_0")
    middle = block.output
    own = type(model)(model.input, [model.output, middle, block(block(middle))])
    with torch.no_grad():
        found = own(images())
        with direct.through_keras():
            expected = keras.Model.__call__(keras.Model(own.input, own.output), images())
    assert all(map(torch.equal, found, expected))


def test_eight_threads_at_once():
    """Each gets what it asked for, from the first call of the model on, while others change the size of the batch."""
    import torch

    model = model_of()
    expected = {count: model(images(count, seed=count), training=False).detach() for count in range(1, 9)}
    model = model_of()
    wrong, barrier = [], threading.Barrier(8)

    def work(count):
        barrier.wait()
        for _ in range(5):
            with torch.no_grad():
                if not torch.equal(model(images(count, seed=count)), expected[count]):
                    wrong.append(count)

    threads = [threading.Thread(target=work, args=(count,)) for count in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert torch.nn.Module.__call__ is direct._PATH[0]


REFUSED = {  # what a dense layer of 4 inputs gets: what Keras says of it
    "another width": (lambda torch: torch.zeros(2, 5), "expected axis -1 of input shape to have value 4"),
    "one axis": (lambda torch: torch.zeros(4), "expected min_ndim=2, found ndim=1"),
    "no axis": (lambda torch: torch.zeros(()), "expected min_ndim=2, found ndim=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_layer_cannot_take_is_refused_by_keras(name):
    import torch

    make, message = REFUSED[name]
    dense = layers.MlpBlock(3, name="mlp")
    dense(torch.zeros(1, 4))
    with pytest.raises(ValueError, match=message):
        dense.layers[0](make(torch))


@pytest.mark.parametrize("switched", [False, True])
def test_what_is_not_a_tensor_is_converted_as_by_keras(switched, monkeypatch):
    """Layers that are not built, NumPy's arrays, integers, and masks that are lists."""
    import torch

    monkeypatch.setattr(direct, "enabled", not switched)
    keras.utils.set_random_seed(0)
    block = layers.TransformerBlock(num_heads=2, mlp_dim=8)
    x, mask = np.random.default_rng(0).normal(size=(1, 5, 4)).astype("float32"), np.eye(5, dtype=bool)[None]
    first = block(torch.tensor(x), attention_mask=torch.tensor(mask))  # which builds it
    for images, seen in ((x, mask), (torch.tensor(x), mask), (torch.tensor(x), mask.tolist())):
        found = block(images, attention_mask=seen)
        np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (found, first)), rtol=0, atol=1e-6)  # float32
    whole = torch.ones((1, 5, 4), dtype=torch.int32)
    np.testing.assert_allclose(
        *map(keras.ops.convert_to_numpy, (block(whole), block(whole.float()))), rtol=0, atol=1e-6
    )


def test_layers_of_a_user_are_called_through_keras():
    class Own(layers.LayerScale):
        def call(self, inputs):
            self.add_loss(keras.ops.sum(inputs))
            return super().call(inputs)

    layer = Own(0.5)
    layer(np.ones((1, 4), "float32"))
    with calls_of_keras() as called:
        layer(keras.ops.ones((1, 4)))
    assert called == [layer.name] and len(layer.losses) == 1


@pytest.mark.slow
def test_what_torch_compile_makes_of_a_layer_computes_the_same():
    """To 1e-6: it fuses nothing here, but takes Keras' way through the operations."""
    import torch

    layer = layers.MlpBlock(16)
    tokens = torch.rand(2, 5, 8)
    with torch.no_grad():
        expected = layer(tokens, training=False)
        compiled = torch.compile(functools.partial(layer, training=False), backend="eager")
        np.testing.assert_allclose(compiled(tokens), expected, rtol=0, atol=1e-6)
        assert torch.equal(layer(tokens, training=False), expected)


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
    model, x = model_of(**KINDS[kind]), images()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        np.testing.assert_allclose(compiled(x), model(x), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_model_still_shows_what_it_computes():
    import torch

    torch.compiler.reset()
    model, seen = model_of(num_layers=1), []
    compiled = torch.compile(model, backend="eager")

    def look(layer, name, tensor):
        seen.append(name)
        return tensor

    with torch.no_grad():
        compiled(images())
        with tap(look):
            compiled(images())
        assert seen == ["tokens", "normed", "values", "attention", "output"]
        compiled(images())
    assert len(seen) == 5


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


def test_after_fit_evaluate_and_predict_layers_are_still_called_directly(monkeypatch):
    """Keras infers shapes with tensors that have no values, of which PyTorch does not tell all that is asked."""
    monkeypatch.setattr(direct, "enabled", True)
    for options in ({}, {"run_eagerly": True}, {"jit_compile": False}):
        model, x, y = model_of(), images(), np.zeros(len(images()))
        model.compile("sgd", "sparse_categorical_crossentropy", **options)
        model.fit(x, y, verbose=0)
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
        assert direct.enabled


def test_the_values_of_variables_are_those_of_a_scope():
    variable = keras.Variable([1.5])
    with keras.StatelessScope(state_mapping=[(variable, keras.ops.array([2.5]))]):
        assert keras_internals.values_of(variable)[0].item() == 2.5
    assert keras_internals.values_of(variable)[0].item() == 1.5
    assert keras_internals.values_of(None) == [None]


@pytest.mark.parametrize("variable_dtype", ["float32", "bfloat16", "float64", "int32"])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("scope_dtype", ["bfloat16", "float32", None])
def test_values_are_cast_as_keras_casts_them(variable_dtype, autocast, scope_dtype):
    from keras.src.backend.common.variables import AutocastScope

    variable = keras.Variable([1.5], dtype=variable_dtype, autocast=autocast, trainable=False)
    with AutocastScope(scope_dtype):
        expected = variable.value
        value, nothing = keras_internals.values_of(variable, None)
    assert value.dtype is expected.dtype and bool((value == expected).all())
    assert nothing is None


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


@pytest.mark.parametrize("mapped", [False, True])
def test_replaced_parameters_are_refused(mapped):
    import torch

    model, x = model_of(), keras.ops.convert_to_tensor(images(2))
    before = model(x)
    model.range_checked = False  # the first call would look at the pixels

    def call(image):
        zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
        return torch.func.functional_call(model, zeros, (image[None],))

    with pytest.raises(ValueError, match=r"was replaced.*stateless_call"):
        torch.func.vmap(call)(x) if mapped else call(x[0])
    assert torch.equal(model(x), before)
