"""What users do to a model on PyTorch, in any order: for `test_direct`, and for the scripts that it prints.

Each change takes a `Case`. `Case.check` then compares outputs, gradients, losses and what hooks saw with those of the
same model whose layers are called through Keras.
"""

import contextlib
import copy
import functools
import pickle
import tempfile
import threading

import keras
import numpy as np
from support import far_from_uniform

from vit_keras import layers, training, vit
from vit_keras.backend import direct
from vit_keras.config import ViTConfig

SIZES = {"patch_size": 8, "num_layers": 1, "hidden_size": 16, "num_heads": 2, "mlp_dim": 24, "classes": 3}
KINDS = [
    {"image_size": (16, 16)},
    {"image_size": None, "position_grid": (2, 2)},
    {"image_size": (16, 16), "dropout": 0.2},
    {"image_size": (16, 16), "dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": np.float32(0.3)},
    {"image_size": (16, 16), "layer_scale": 0.5, "gated_mlp": True, "qkv_bias": False},
    {"image_size": (16, 16), "rope_theta": 100.0, "registers": 2, "mlp_activation": "gelu"},
    {"image_size": (16, 16), "pooling": "map", "mlp_norm": True},
    {"image_size": (16, 24), "pooling": "gap", "post_norm": True, "remat": True},
    {"image_size": (16, 16), "relative_positions": True, "position": None},
    {"image_size": (16, 16), "merge_tokens": 1},
]


class Case:
    """A model, what watches it, and the next random numbers."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        keras.utils.set_random_seed(seed)
        kind = KINDS[self.rng.integers(len(KINDS))]
        dtype = "mixed_bfloat16" if self.rng.random() < 0.1 else None
        self.model = far_from_uniform(vit.build(ViTConfig(**SIZES, **kind), dtype=dtype), 0.3, eagerly=False)
        self.undo, self.seen, self.state = contextlib.ExitStack(), [], {"scale": 1.0}
        self.model(self.images())  # what is known of its layers then may be out of date after a change

    def pick(self, *kinds):
        """One of the layers of some classes, however deep."""
        found = [layer for layer in self.model._flatten_layers() if isinstance(layer, kinds or keras.layers.Layer)]
        found = [layer for layer in found if layer.built and layer is not self.model]
        return found[self.rng.integers(len(found))] if found else None

    def images(self):
        """A batch of some size."""
        size = self.model.input_shape[1:3]
        if None in size:
            size = [(16, 16), (24, 16), (8, 32)][self.rng.integers(3)]
        return self.rng.uniform(-1, 1, (int(self.rng.integers(1, 4)), *size, 3)).astype("float32")

    def check(self, call):
        """Compare `call(model, images)` with itself, its layers being called through Keras; and a training step."""
        import torch

        if self.state.get("draws") and call is eight_threads:
            call = plainly  # threads draw in no fixed order
        images, found = self.images(), []
        states = [(v, v.numpy().copy()) for v in self.model.variables if "seed" in v.path]
        for through_keras in (False, True):
            for variable, value in states:  # of what drops out
                variable.assign(value)
            torch.manual_seed(0)
            self.seen.clear()
            with direct.asked_once(directly=False) if through_keras else contextlib.nullcontext():
                own = _result(call, self.model, torch.tensor(images))
                found.append([own, *self._step(torch.tensor(images)), sorted(self.seen)])  # of threads, in no order
        for number, (fast, slow) in enumerate(zip(*found, strict=True)):
            same = _equal(fast, slow) if torch.is_tensor(fast) and torch.is_tensor(slow) else fast == slow
            if not same:
                raise AssertionError(f"result {number} of {len(found[0])} differs: {fast} and {slow}")

    def _step(self, images):
        import torch

        with torch.no_grad():
            outputs = self.model(images)
        images.requires_grad_()
        self.model.zero_grad()
        predicted = self.model(images, training=True)
        losses = [x.detach() for x in self.model.losses]
        if predicted.requires_grad:
            predicted.square().sum().backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return [outputs, predicted.detach(), images.grad, *losses, *gradients]


def _result(call, model, images):
    """What a call returns, or what kind of error it raises."""
    try:
        return call(model, images)
    except Exception as error:
        return type(error).__name__


def _equal(fast, slow):
    """To the bit: both ways call the same kernels with the same values. NaN equals NaN."""
    import torch

    return fast.dtype == slow.dtype and torch.equal(torch.nan_to_num(fast), torch.nan_to_num(slow))


# --- changes --------------------------------------------------------------------------------------------------------


def assign(case):
    variable = case.model.weights[case.rng.integers(len(case.model.weights))]
    variable.assign(case.rng.normal(size=variable.shape) * 0.3)


def set_weights(case):
    case.model.set_weights([1.1 * value for value in case.model.get_weights()])


def load(case):
    """Of a model of the same parts, whose weights are changed in between."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ValueError):  # a part that Keras cannot save
        case.model.save_weights(f"{folder}/model.weights.h5")
        set_weights(case)
        case.model.load_weights(f"{folder}/model.weights.h5")


def freeze(case):
    layer = case.pick()
    layer.trainable = not layer.trainable


def swap(case):
    block = case.pick(layers.TransformerBlock)
    mlp = layers.MlpBlock(12, activation="relu")
    mlp.build((None, None, 16))
    block._tracker.unlock()
    block.mlpblock = mlp


def swap_for_a_layer_of_the_user(case):
    class Twice(layers.MlpBlock):
        def call(self, inputs, training=None):
            self.add_loss(keras.ops.sum(inputs))
            return 2 * super().call(inputs, training=training)

    block = case.pick(layers.TransformerBlock)
    mlp = Twice(12)
    mlp.build((None, None, 16))
    block._tracker.unlock()
    block.mlpblock = mlp


def wrap(case):
    class Half(keras.layers.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.built = inner, True

        def call(self, inputs, training=None):
            return 0.5 * self.inner(inputs, training=training)

    block = case.pick(layers.TransformerBlock)
    block._tracker.unlock()
    block.mlpblock = Half(block.mlpblock)


def patch_a_call(case):
    layer, scale = case.pick(direct.Direct), case.rng.uniform(0.5, 1.5)
    call = layer.call

    def patched(*args, **kwargs):
        outputs = call(*args, **kwargs)
        case.seen.append(layer.name)
        return outputs if isinstance(outputs, tuple) else scale * outputs

    layer.call = patched


def patch_the_call_of_a_class(case):
    cls = type(case.pick(direct.Direct))
    call = cls.call

    def patched(self, *args, **kwargs):
        case.seen.append(cls.__name__)
        return call(self, *args, **kwargs)

    cls.call = patched
    case.undo.callback(setattr, cls, "call", call)


def patch_keras(case):
    owner, name = [(keras.layers.Layer, "__call__"), (keras.layers.Layer, "forward")][case.rng.integers(2)]
    plain = getattr(owner, name)

    def patched(self, *args, **kwargs):
        case.seen.append(self.name)
        return plain(self, *args, **kwargs)

    setattr(owner, name, patched)
    case.undo.callback(setattr, owner, name, plain)


def patch_forward(case):
    layer = case.pick(direct.Direct)
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: case.seen.append(layer.name) or forward(*args, **kwargs)


def lora(case):
    dense = case.pick(keras.layers.Dense)
    if not dense.lora_enabled and dense.quantization_mode is None:
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(case.rng.normal(size=dense.lora_kernel_b.shape))


def lora_of_the_model(case):
    if not any(getattr(layer, "lora_enabled", False) for layer in case.model._flatten_layers()):
        with contextlib.suppress(ValueError, TypeError):  # of what is quantized
            training.add_lora(case.model)


def quantize(case):
    dense = case.pick(keras.layers.Dense)
    if dense.quantization_mode is None and dense.dtype_policy.name == "float32":
        dense.quantize("int8")


def quantize_all(case):
    inside = [layer for layer in case.model._flatten_layers() if isinstance(layer, keras.layers.Dense)]
    plain = all(not each.lora_enabled and each.quantization_mode is None for each in inside)
    if plain and all(each.dtype_policy.name == "float32" for each in case.model._flatten_layers()):
        case.model.quantize("int8")


def dtype_policy(case):
    layer = case.pick()
    if getattr(layer, "quantization_mode", None) is None:
        layer.dtype_policy = ["float32", "mixed_bfloat16", "mixed_float16"][case.rng.integers(3)]


def epsilon(case):
    norm = case.pick(keras.layers.LayerNormalization)
    norm.epsilon = case.rng.uniform(0, 1)


def rate(case):
    dropout = case.pick(keras.layers.Dropout)
    if dropout is not None and dropout.rate:
        dropout.rate = [0.0, 0.3, np.float32(0.4)][case.rng.integers(3)]


def regularize(case):
    case.pick(direct.Direct, keras.layers.Dense).activity_regularizer = keras.regularizers.L2(0.1)


def regularize_a_weight(case):
    variable = case.model.trainable_variables[case.rng.integers(len(case.model.trainable_variables))]
    variable.regularizer = keras.regularizers.L2(0.1)


def hook(case):
    layer = case.pick(direct.Direct, keras.layers.Dense)

    def change(_, inputs, outputs=None):
        case.seen.append(layer.name)
        return None if outputs is None or isinstance(outputs, tuple) else 1.1 * outputs

    register = [layer.register_forward_hook, layer.register_forward_pre_hook][case.rng.integers(2)]
    handle = register(change)
    if case.rng.random() < 0.3:
        handle.remove()


def hook_of_gradients(case):
    layer = case.pick(layers.LayerScale, layers.MlpBlock)
    layer.register_full_backward_hook(lambda *_: case.seen.append(layer.name))


def hook_of_all(case):
    import torch

    registers = torch.nn.modules.module
    register = [registers.register_module_forward_hook, registers.register_module_forward_pre_hook]
    register += [registers.register_module_full_backward_hook]
    handle = register[case.rng.integers(3)](lambda module, *_: case.seen.append(type(module).__name__))
    case.undo.callback(handle.remove)


def activation(case):
    case.pick(layers.MlpBlock).activation = ["relu", "gelu", "gelu_tanh", "quick_gelu"][case.rng.integers(4)]


def activation_of_the_user(case):
    import torch

    def reads_values(x):
        return x * float(x.detach().float().mean() > 0) + 0.1 * x

    def draws(x):
        return x + torch.randn(x.shape).to(x.dtype)

    def by_numpy(x):
        return x * torch.tensor(np.tanh(x.detach().float().numpy())).to(x.dtype)

    def keeps_state(x):
        case.seen.append("activation")
        return case.state["scale"] * x

    chosen = [reads_values, draws, by_numpy, keeps_state][case.rng.integers(4)]
    case.pick(layers.MlpBlock).activation = chosen
    case.state["draws"] = case.state.get("draws") or chosen is draws


def state_of_the_activation(case):
    case.state["scale"] = case.rng.uniform(0.5, 1.5)


def activation_of_a_dense_layer(case):
    case.pick(keras.layers.Dense).activation = [keras.activations.relu, None][case.rng.integers(2)]


def remove_a_bias(case):
    case.pick(keras.layers.Dense).bias = None


NOT_COPIED = (ValueError, TypeError)
"""What a block raises whose MLP is another layer, which has no activation, or whose quantized parts are."""


def copy_deeply(case):
    if not _is_patched(case):
        with contextlib.suppress(*NOT_COPIED):  # Keras cannot load what it saved of a layer with other parts
            case.model = copy.deepcopy(case.model)


def through_pickle(case):
    if not _is_patched(case):
        with contextlib.suppress(*NOT_COPIED):
            case.model = pickle.loads(pickle.dumps(case.model))


def _is_patched(case):
    return any({"call", "forward"} & vars(x).keys() or x._forward_hooks for x in case.model._flatten_layers()) or any(
        callable(getattr(layer, "activation", None)) and isinstance(layer, layers.MlpBlock)
        for layer in case.model._flatten_layers()
    )


def nothing(case):
    """Only other images."""


CHANGES = [
    *(assign, set_weights, load, freeze, swap, swap_for_a_layer_of_the_user, wrap, patch_a_call),
    *(patch_the_call_of_a_class, patch_keras, patch_forward, lora, lora_of_the_model, quantize, quantize_all),
    *(dtype_policy, epsilon, rate, regularize, regularize_a_weight, hook, hook_of_gradients, hook_of_all, activation),
    *(activation_of_the_user, state_of_the_activation, activation_of_a_dense_layer, remove_a_bias, copy_deeply),
    *(through_pickle, nothing),
]

QUICK = [change for change in CHANGES if change not in (copy_deeply, through_pickle, load)]
"""Those without files: where TensorFlow is installed, Keras imports it to write one."""


# --- calls ----------------------------------------------------------------------------------------------------------


def plainly(model, images):
    return model(images)


def autocast(model, images):
    import torch

    with torch.autocast("cpu", torch.bfloat16):
        return model(images)


def inference_mode(model, images):
    import torch

    with torch.inference_mode():
        return model(images).clone()


def functional_call(model, images):
    import torch

    parameters = {name: 0.5 * value for name, value in model.named_parameters()}
    return torch.func.functional_call(model, parameters, (images,))


def stateless_call(model, images):
    state = [0.5 * v.value for v in model.trainable_variables]
    return model.stateless_call(state, [v.value for v in model.non_trainable_variables], images)[0]


def _block_and_tokens(model, images):
    """The first block, as a function by kernels that have all derivatives, and tokens for it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    block = next(layer for layer in model.layers if isinstance(layer, layers.TransformerBlock))

    def called(tokens, **options):
        with sdpa_kernel(SDPBackend.MATH):
            outputs = block(tokens, **options)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    return called, torch.randn(len(images), 5, 16, requires_grad=True)


def vmap(model, images):
    import torch

    block, tokens = _block_and_tokens(model, images)
    return torch.func.vmap(lambda x: block(x[None], training=False)[0], randomness="different")(tokens)


def double_backward(model, images):
    import torch

    block, tokens = _block_and_tokens(model, images)
    slopes = torch.autograd.grad(block(tokens, training=False).square().sum(), tokens, create_graph=True)[0]
    return torch.autograd.grad(slopes.square().sum(), tokens)[0]


def forward_mode(model, images):
    import torch

    block, tokens = _block_and_tokens(model, images)
    return torch.func.jvp(functools.partial(block, training=False), (tokens,), (torch.ones_like(tokens),))[1]


def checkpointed(model, images):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(model, images.requires_grad_(), use_reentrant=False)


def profiled(model, images):
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return model(images)


def counted(model, images):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as flops:
        outputs = model(images)
    return torch.cat([outputs.detach().flatten().double(), torch.tensor([flops.get_total_flops()]).double()])


def eight_threads(model, images):
    import contextvars

    import torch

    found = {}

    def work(number):
        with torch.no_grad():
            found[number] = model(images)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.stack([found[number] for number in range(8)])


CALLS = [
    *(plainly, autocast, inference_mode, functional_call, stateless_call, vmap, double_backward, forward_mode),
    *(checkpointed, profiled, counted, eight_threads),
]
"""`torch.compile` has a test of its own, which is slow."""


def run(seed, steps=3, change=None, call=None):
    """Make some changes to a model, and check each.

    Args:
        seed: Of all that is random.
        steps: Number of changes.
        change: The change, rather than a random one each time.
        call: The call, rather than a random one each time.

    Raises:
        AssertionError: A check failed; the message has what was done until then, as a script.
    """
    case = Case(seed)
    lines = ["from direct_fuzz import *", f"case = Case({seed})"]
    skip = f"_ = case.rng.integers({len(CHANGES)}), case.rng.integers({len(CALLS)})"
    with case.undo:
        for _ in range(steps):
            random = CHANGES[case.rng.integers(len(CHANGES))], CALLS[case.rng.integers(len(CALLS))]
            done, asked = change or random[0], call or random[1]
            lines += [skip, f"{done.__name__}(case)", f"case.check({asked.__name__})"]
            try:
                done(case)
                case.check(asked)
            except Exception as error:
                script = "\n".join(lines)
                how = "KERAS_BACKEND=torch PYTHONPATH=tests:. python"
                raise AssertionError(f"Seed {seed}: {error}\nTo see it again ({how}):\n{script}") from error
