"""A compiled call computes with what a model is now, whatever has changed since it was compiled, on every backend.

On PyTorch, where `model(images)` compiles nothing, `torch.compile(model)` and `compile(jit_compile=True)` do.
"""

import keras
import numpy as np
import pytest

from vit_keras import vit

BACKEND = keras.backend.backend()
numpy = keras.ops.convert_to_numpy


def make(num_layers=2, **options):
    keras.utils.set_random_seed(0)
    options = {"dropout": 0.0, **options}
    model = vit.build_model(16, 8, num_layers, 16, 2, "changed", 24, classes=3, **options)
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(0.3 * random.normal(size=variable.shape))
    return model


def images(count=2):
    return np.random.default_rng(1).uniform(-1, 1, (count, 16, 16, 3)).astype("float32")


def block(model):
    return model.get_layer("Transformer_encoderblock_0")


def set_to(find, **attributes):
    def change(model):
        for name, value in attributes.items():
            setattr(find(model), name, value)

    return change


def replace_call(model):
    mlp = block(model).mlpblock
    call = mlp.call
    mlp.call = lambda *args, **kwargs: 2 * call(*args, **kwargs)


def add_adapter(model):
    dense = block(model).att.query_dense
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.ones(dense.lora_kernel_b.shape))


def replace_a_part(model):
    mlp = type(block(model).mlpblock)(12, activation="relu")
    mlp.build((None, None, 16))
    block(model)._tracker.unlock()
    block(model).mlpblock = mlp


CHANGES = {
    "weights": lambda model: model.set_weights([2 * x for x in model.get_weights()]),
    "epsilon of Keras' layer": set_to(lambda model: model.get_layer("Transformer_encoder_norm"), epsilon=0.5),
    "activation": set_to(lambda model: block(model).mlpblock, activation="relu"),
    "call": replace_call,
    "epsilon": set_to(lambda model: block(model).layernorm1, epsilon=0.5),
    "activation of Keras' layer": set_to(lambda model: model.get_layer("head"), activation=keras.activations.tanh),
    "post-norm": set_to(block, post_norm=True),
    "token": set_to(lambda model: model.get_layer("ExtractToken"), index=1),
    "adapter": add_adapter,
    "bias": set_to(lambda model: model.get_layer("head"), bias=None),
    "part": replace_a_part,
    "frozen": lambda model: setattr(block(model), "trainable", False),
}
if BACKEND != "jax":  # where Keras quantizes no built model on a CPU in an acceptable time
    CHANGES["quantization"] = lambda model: block(model).att.key_dense.quantize("int8")


def plainly(model, x):
    model.run_eagerly = True
    try:
        return numpy(model(x))
    finally:
        model.run_eagerly = False


def compiled_call(model):
    """Return a function from images to logits that is compiled on this backend."""
    if BACKEND != "torch":
        return lambda x: numpy(model(x))
    import torch

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    def call(x):
        with torch.no_grad():
            return numpy(compiled(torch.tensor(x)))

    return call


@pytest.mark.few_cases(4)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name):
    """To 1e-5 of logits about 1, in float32."""
    model, x = make(num_layers=1), images()
    call = compiled_call(model)
    before = call(x)
    CHANGES[name](model)
    expected = plainly(model, x)
    np.testing.assert_allclose(call(x), expected, rtol=0, atol=1e-5)
    assert (np.abs(expected - before).max() > 3e-5) == (name != "frozen")


def test_the_same_settings_may_change_again():
    model, x = make(num_layers=1), images()
    call = compiled_call(model)
    norm = model.get_layer("Transformer_encoder_norm")
    for epsilon in (0.5, 0.7, 0.1):
        norm.epsilon = block(model).layernorm2.epsilon = epsilon
        np.testing.assert_allclose(call(x), plainly(model, x), rtol=0, atol=1e-5)


def test_a_layer_of_keras_around_a_model_is_watched_too():
    inner, image = make(), keras.Input((16, 16, 3))
    normalize = keras.layers.Normalization(mean=0.0, variance=1.0)
    model = type(inner)(image, keras.layers.Softmax()(inner(keras.layers.Rescaling(1.0)(normalize(image)))))
    x = images()
    for layer, name, value in (
        (model.layers[-1], "axis", 0),
        (next(each for each in model.layers if isinstance(each, keras.layers.Rescaling)), "scale", 0.5),
    ):
        before = numpy(model(x))
        setattr(layer, name, value)
        np.testing.assert_allclose(numpy(model(x)), plainly(model, x), rtol=0, atol=1e-5)
        assert np.abs(numpy(model(x)) - before).max() > 1e-3


def test_values_of_a_stateless_call_are_of_that_call_alone():
    model, other, x = make(), make(), keras.ops.convert_to_tensor(images())
    other.set_weights([0.5 * value for value in other.get_weights()])
    before = numpy(model(x))
    values = [v.value for v in other.trainable_variables], [v.value for v in other.non_trainable_variables]
    np.testing.assert_allclose(numpy(model.stateless_call(*values, x)[0]), numpy(other(x)), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(numpy(model(x)), before)


def test_the_head_is_not_rounded_in_half_precision():
    """A product in bfloat16 rounds its factors to 8 bits: 1e-2 of logits about 1."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = make()
    finally:
        keras.config.set_dtype_policy(policy)
    np.testing.assert_allclose(numpy(model(images())), model.predict(images(), verbose=0), rtol=0, atol=1e-4)


# --- PyTorch --------------------------------------------------------------------------------------------------------

only_torch = pytest.mark.only_on("torch", reason="it is PyTorch's")


@only_torch
@pytest.mark.parametrize("kind", ["tensors", "parameters"])
def test_functional_call_computes_with_the_given_parameters(kind):
    import torch

    model, other, x = make(), make(), torch.tensor(images())
    other.set_weights([0.5 * value for value in other.get_weights()])
    before = model(x)
    given = {name: 0.5 * parameter.detach() for name, parameter in model.named_parameters()}
    if kind == "parameters":
        given = {name: torch.nn.Parameter(tensor) for name, tensor in given.items()}
    assert torch.equal(torch.func.functional_call(model, given, (x,)), other(x))
    assert torch.equal(model(x), before)


@only_torch
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")  # Keras', of most layers
def test_functional_call_of_a_quantized_model_computes_the_same_each_time():
    import torch

    model, x = make(), torch.tensor(images())
    model.quantize("int8")
    given = {name: 0.5 * parameter.detach() for name, parameter in model.named_parameters()}
    first, second = (torch.func.functional_call(model, given, (x,)) for _ in range(2))
    assert torch.equal(first, second) and not torch.equal(first, model(x))


@only_torch
def test_a_state_may_be_assigned():
    import torch

    model, other, x = make(), make(), torch.tensor(images())
    other.set_weights([0.5 * value for value in other.get_weights()])
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        compiled(x)
        model.load_state_dict(other.state_dict(), assign=True)
        np.testing.assert_allclose(numpy(compiled(x)), numpy(other(x)), rtol=0, atol=1e-5)
    assert torch.equal(model(x), other(x))


@only_torch
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own, of Inductor
def test_few_attributes_are_guarded():
    """18 for each layer at most: of a ViT-Ti, 45,000 were, and each call checks all of them."""
    import torch

    model, guards = make(), []
    options = {"guard_filter_fn": lambda entries: guards.append(len(entries)) or [True] * len(entries)}
    x = torch.tensor(images())
    with torch.no_grad():
        found = torch.compile(model, backend="aot_eager", options=options)(x)
        np.testing.assert_allclose(numpy(found), numpy(model(x)), rtol=0, atol=1e-5)
    assert len(guards) == 1 and guards[0] < 18 * len(model._flatten_layers())


@only_torch
def test_a_compiled_step_has_the_gradients_and_draws_anew():
    import torch

    x, gradients = torch.tensor(images()), []
    model = make(num_layers=1)

    def loss(x):
        return model(x, training=True).square().sum()

    for step in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        step(x).backward()
        gradients.append([v.value.grad.clone() for v in model.trainable_variables])
    scale = max(float(gradient.abs().max()) for gradient in gradients[0])  # the biases of the keys have a gradient of 0
    for one, other in zip(*gradients):
        np.testing.assert_allclose(numpy(one), numpy(other), rtol=0, atol=1e-5 * scale)
    dropping = make(num_layers=1, dropout=0.3, stochastic_depth=0.3)
    compiled = torch.compile(dropping, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(x, training=True), compiled(x, training=True))


@only_torch
def test_hooks_run_in_a_compiled_model():
    import torch

    model, x = make(num_layers=1), torch.tensor(images())
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        before = compiled(x)
        handle = block(model).mlpblock.register_forward_hook(lambda layer, args, outputs: 1.5 * outputs)
        np.testing.assert_allclose(numpy(compiled(x)), numpy(model(x)), rtol=0, atol=1e-5)
        assert not torch.allclose(compiled(x), before)
        handle.remove()
        np.testing.assert_allclose(numpy(compiled(x)), numpy(before), rtol=0, atol=1e-5)


@only_torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_blocks_that_are_alike_are_compiled_once_and_train_as_before(caplog):
    """To 1e-5 of losses and weights about 1: the compiled kernels add in another order."""
    from vit_keras.backend import traced

    found, x, y = [], images(8), np.arange(8) % 3
    traced._compiled.cache_clear()
    for jit_compile in (False, True):
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=jit_compile)
        with caplog.at_level("INFO", "vit_keras"):
            history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append([np.array(history), *model.get_weights(), model.predict(x, verbose=0)])
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert traced._compiled.cache_info().currsize == 1
    assert caplog.text.count("torch.compile") >= 1 and "failed" not in caplog.text
    block(model).mlpblock.activation = "relu"
    np.testing.assert_allclose(model.predict(x, verbose=0), plainly(model, x), rtol=0, atol=1e-5)
    assert traced._compiled.cache_info().currsize == 2
