"""The private names of Keras that this package needs, in one place: when Keras renames one, this file changes and no
other. Each function says what Keras' public interface lacks.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import keras
import numpy as np


def flat_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return a layer and all layers inside it, each once and in order."""
    # Keras' own list reverses those of nested models.
    found, waiting = {}, [layer]
    while waiting:
        each = waiting.pop()
        waiting += () if each in found else reversed(each._layers)
        found[each] = None
    return list(found)


OWN_VARIABLES = ("_trainable_variables", "_non_trainable_variables")
"""Attributes with the variables of a layer itself, without those of the layers inside it."""


def policy_of(model: keras.Model) -> keras.DTypePolicy:
    """Return the policy by which a model's loss is scaled: `mixed_float16` if one of its layers with weights has it."""
    found = [layer.dtype_policy for layer in flat_layers(model) if layer._trainable_variables]
    return next((each for each in found if each.name == "mixed_float16"), (*found, model.dtype_policy)[0])


def origin(tensor: Any) -> tuple[Any, list[Any]]:
    """Return the operation that a symbolic tensor comes from, and that operation's input tensors."""
    operation, node_index, _ = tensor._keras_history
    return operation, list(operation._inbound_nodes[node_index].input_tensors)


def output_number(tensor: Any) -> int:
    """Return which of the outputs of its operation a symbolic tensor is."""
    return tensor._keras_history.tensor_index


def input_structure(model: keras.Model) -> Any:
    """Return the symbolic inputs of a functional model, in the list or dictionary that it was built with."""
    return getattr(model, "_inputs_struct", model.inputs[0])  # a Sequential has no structure


def full_kernel(dense: keras.layers.Dense) -> keras.Variable:
    """Return the variable of a dense layer's kernel; with a low-rank adapter, `kernel` is a sum and no variable."""
    return dense._kernel


def kernel_of(dense: keras.layers.Dense) -> Any:
    """Return the kernel of a dense layer, as its `kernel` does, which takes Keras six microseconds."""
    own = None if dense.lora_enabled else vars(dense).get("_kernel")
    return dense.kernel if own is None else own


def rate_or_schedule(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the learning rate that an optimizer was given; its property `learning_rate` is that of this step."""
    return optimizer._learning_rate


def batches_seen(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the variable that counts all batches; `iterations` counts only updates where gradients are accumulated."""
    return optimizer._iterations


def index_of(optimizer: keras.optimizers.Optimizer, variable: Any) -> int:
    """Return the number of a variable among those that an optimizer was built with."""
    return optimizer._get_variable_index(variable)


def variables_of(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the variables that an optimizer was built with, which it updates."""
    return optimizer._trainable_variables


def moments(optimizer: keras.optimizers.Adam, index: int) -> tuple[Any, Any]:
    """Return the variables of the first and the second moment that Adam keeps for a variable of this number."""
    return optimizer._momentums[index], optimizer._velocities[index]


def update_method() -> str:
    """Return the name of an optimizer's method that updates weights: on PyTorch all at once, elsewhere one."""
    return "_parallel_update_step" if keras.backend.backend() == "torch" else "update_step"


def add_seed_generator(dropout: keras.layers.Layer) -> None:
    """Give a built, locked dropout layer the seed generator that Keras makes only for a rate above 0."""
    if not hasattr(dropout, "seed_generator"):
        dropout._tracker.unlock()
        dropout.seed_generator = keras.random.SeedGenerator()
        dropout._tracker.lock()


def no_gradients() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which PyTorch records nothing for gradients; other backends record nothing anyway."""
    # Keras has no such context: on PyTorch, even `model(images, training=False)` records.
    return sys.modules["torch"].no_grad() if keras.backend.backend() == "torch" else contextlib.nullcontext()


OPTIMIZERS_OF_TORCH = "keras.src.backend.torch.optimizers."
"""Start of the names of the modules with Keras' optimizers on PyTorch, which files name."""


def own_jit_compile(model: keras.Model) -> None:
    """Let this backend choose whether the steps of a model are compiled by XLA or torch.compile."""
    # A file has what was chosen on the backend that wrote it: on JAX `True`, for which PyTorch needs a C++ compiler.
    if not model.run_eagerly:
        model._jit_compile = None


def compile_metrics(model: keras.Model) -> Any:
    """Return the metrics that `compile` was given, which Keras keeps apart from the loss; `None` if there are none."""
    return getattr(model, "_compile_metrics", None)


def concrete(tensor: Any) -> bool:
    """Return whether an array or a tensor has values now, outside of any graph that is being traced."""
    if isinstance(tensor, np.ndarray):
        return True
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return isinstance(tensor, sys.modules["tensorflow"].Tensor) and hasattr(tensor, "numpy")
    if backend == "jax":
        jax = sys.modules["jax"]
        return isinstance(tensor, jax.Array) and not isinstance(tensor, jax.core.Tracer)
    if backend == "openvino":
        return keras.ops.is_tensor(tensor) and not _waits_for_inputs(tensor)
    if not keras.ops.is_tensor(tensor) or tensor.is_meta or sys.modules["torch"].compiler.is_compiling():
        return False
    try:
        return tensor.data_ptr() >= 0
    except RuntimeError:  # `torch.func` wraps tensors, which then have no memory of their own
        return False


def _waits_for_inputs(tensor: Any) -> bool:
    """Whether a tensor of OpenVINO, a node of a graph, depends on inputs of a graph that have no values yet."""
    nodes, seen = [tensor.output.get_node()], set()
    while nodes:
        node = nodes.pop()
        if node.get_type_name() == "Parameter":
            return True
        sources = [each.get_node() for each in node.input_values()]
        nodes += [each for each in sources if each.get_name() not in seen]
        seen.update(each.get_name() for each in sources)
    return False


_GLOBAL_STATE = sys.modules["keras.src.backend.common.global_state"]

OWN_POLICY, INPUT_DTYPE = "_dtype_policy", "_dtype"
"""Attributes with the dtype policy of a layer, and with the dtype of a model's input."""


def thread_state() -> dict[str, Any]:
    """Return Keras' scopes of this thread, by name: `"stateless_scope"` and `"autocast_scope"`."""
    # Keras' own functions take three calls for each name, which a model would make a thousand times an image.
    return _GLOBAL_STATE.GLOBAL_STATE_TRACKER.__dict__  # `clear_session` makes another one


def is_outermost(model: keras.Model, x: Any) -> bool:
    """Return whether no layer is being called around a functional model, and a tensor has the shape that it takes."""
    own = vars(model)
    if thread_state().get("current_call_ctx") is not None or "_manual_input_spec" in own or len(own["_inputs"]) != 1:
        return False
    shape, taken = x.shape, own["_inputs"][0].shape
    same = all(size in (None, n) for size, n in zip(taken[1:], shape[1:]))
    return same and len(shape) == len(taken) and not isinstance(own["_inputs_struct"], dict)


def call_outermost(model: keras.Model, x: Any, training: bool | None) -> Any:
    """Call a functional model, around which no layer is being called, as `Layer.__call__` does where that is plain."""
    context = model._get_call_context()  # which forgets losses
    context.set_value("training", training)
    model.__dict__["_called"] = True
    try:
        return keras.Operation.__call__(model, x, training=training)  # which describes errors
    finally:
        model._maybe_reset_call_context()


def outside_of_scopes() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which variables are read in their own dtype, whatever layer is being called."""
    return sys.modules["keras.src.backend.common.variables"].AutocastScope(None)


@contextlib.contextmanager
def draw_by_torch() -> Iterator[None]:
    """Let Keras draw random numbers by PyTorch's own generator, which compiled functions draw by at each call."""
    # Keras makes a generator of a number for each draw: a compiled function would draw the same each time.
    from keras.src.backend.torch import random

    plain = random.torch_seed_generator
    random.torch_seed_generator = lambda seed: None
    try:
        yield
    finally:
        random.torch_seed_generator = plain


def run_graph(model: keras.Model, inputs: Any, call_of: Callable[[Any], Callable[..., Any]]) -> Any:
    """Run a functional model by `call_of(operation)`, and free each tensor after its last use."""
    # Keras keeps all of them until the end.
    values = dict(zip(map(id, model.inputs), keras.tree.flatten(inputs)))
    for operation, arguments, only, outputs, over in kept(model, "steps", lambda: _steps_of(model)):
        if only is not None:
            results = call_of(operation)(values[only])
        else:
            args, kwargs = arguments.fill_in(values)
            results = call_of(operation)(*args, **kwargs)
            del args, kwargs
        if isinstance(results, (list, tuple, dict)):
            values.update(zip(outputs, keras.tree.flatten(results)))
        else:
            values[outputs[0]] = results
        del results
        for each in over:
            values.pop(each, None)
    return keras.tree.pack_sequence_as(model._outputs_struct, [values[id(x)] for x in model.outputs])


def _steps_of(model: keras.Model) -> list[tuple[Any, Any, int | None, list[int], list[int]]]:
    """Return a model's operations in order, each with its arguments, the id of the tensor that is its only one if so,
    and the ids of its outputs and of tensors that no later operation takes.
    """
    by_depth, steps, taken = model._nodes_by_depth, [], {id(x) for x in model.outputs}
    for node in (node for depth in sorted(by_depth) for node in reversed(by_depth[depth])):  # the last one first
        if node.operation and not node.is_input:
            over, only = {id(x) for x in node.input_tensors} - taken, node.arguments._single_positional_tensor
            ids = None if only is None else id(only), [id(x) for x in node.outputs], [*over]
            steps.append((node.operation, node.arguments, *ids))
            taken |= over
    return steps[::-1]


def run_rest(model: keras.Model, known: dict[int, Any], call_of: Callable[[Any], Callable[..., Any]]) -> Any:
    """Return the outputs of a functional model that follow from known tensors, which it has by the id of its own."""
    values, by_depth = dict(known), model._nodes_by_depth
    for node in (node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]):
        if not node.is_input and all(id(x) in values for x in node.input_tensors):
            args, kwargs = node.arguments.fill_in(values)
            results = keras.tree.flatten(call_of(node.operation)(*args, **kwargs))
            values.update((id(x), result) for x, result in zip(node.outputs, results) if id(x) not in known)
    if any(id(x) not in values for x in model.outputs):
        raise ValueError("they read tensors from inside of the ViT.")
    return keras.tree.pack_sequence_as(model._outputs_struct, [values[id(x)] for x in model.outputs])


def values_of(*variables: Any, cast: bool = True) -> list[Any]:
    """Return the values of variables, in the dtype of an autocast scope (PyTorch) if `cast`, and all else as it is."""
    state, kind = thread_state(), keras.Variable
    if state.get("stateless_scope") is not None:
        return [v.value if isinstance(v, kind) else v for v in variables]
    scope = state.get("autocast_scope")
    values = [v._value if type(v) is kind else v for v in variables]
    if not cast or scope is None or scope.dtype is None:
        return values
    dtype = getattr(sys.modules["torch"], scope.dtype)
    are_cast = (getattr(v, "_autocast", False) and value.is_floating_point() for v, value in zip(variables, values))
    return [value.to(dtype) if is_cast else value for value, is_cast in zip(values, are_cast)]


def distribution() -> Any:
    """Return the active `keras.distribution.Distribution` or `None`, in a third of the public function's time."""
    return sys.modules["keras.src.distribution.distribution_lib"].distribution()


def clear_losses(layer: keras.layers.Layer, by_keras: Callable[[], None]) -> None:
    """Forget what a layer and the layers inside it added to the loss, as Keras does at the start of each call."""
    # Keras calls four methods for each layer. Here, Keras is called only if one of them has losses.
    known = kept(layer, "losses", dict)
    if known.get("inside") != [layer, *itertools.chain.from_iterable(known.get("layers", ()))]:
        inside = [layer]
        for each in inside:  # which grows
            inside += each._layers
        usual = all(each is layer or type(each)._clear_losses is keras.Layer._clear_losses for each in inside)
        losses = [x for each in inside for x in (each._losses, each._loss_ids)] if usual else [True]
        known.update(inside=inside, layers=[each._layers for each in inside], losses=losses)
    if any(known["losses"]) or thread_state().get("stateless_scope") is not None:
        by_keras()


_without_any_batch: list[tuple[Any, ...]] = []


def take_any_batch(take: bool) -> None:
    """Let Keras on JAX compute with a batch that the devices do not divide, or stop it again."""
    # Only under a `keras.distribution.Distribution` that says so by an attribute `takes_any_batch`.
    # Keras fails on the last batch of most data, after it has taken the variables out of the model
    # (github.com/keras-team/keras/issues/21167). Such a batch is placed on every device whole, and XLA divides what
    # comes after. If groups of devices share a model, XLA's gradients are then NaN (jax 0.10.2), so nothing is divided
    # there. Keras also takes the outputs of a layer that returns several, such as a block that merges tokens, for one
    # array.
    from keras.src.backend.jax import distribution_lib

    plain, one_output = distribution_lib.distribute_data_input, distribution_lib.distribute_tensor
    if take == bool(_without_any_batch):
        return
    if not take:
        distribution_lib.distribute_data_input, distribution_lib.distribute_tensor = _without_any_batch.pop()
        return
    _without_any_batch.append((plain, one_output))
    unequal_parts = sys.modules["jax"].jit(one_output, static_argnums=1)  # `run_eagerly` refuses them

    def asked():
        return getattr(distribution(), "takes_any_batch", False)

    def divides(sharding, shape):
        with contextlib.suppress(ValueError):
            return bool(sharding.shard_shape(shape))
        return False

    def distribute_data_input(batch, layout, *names, **options):
        if layout is None or not asked():  # a layout of what is not there, as sample weights, is None
            return plain(batch, layout, *names, **options)
        sharding = getattr(layout, "backend_layout", layout)
        processes = len({device.process_index for device in sharding.device_set})
        if not divides(sharding, (batch.shape[0] * processes, *batch.shape[1:])):
            if processes > 1:
                raise ValueError(
                    f"A batch of {batch.shape[0]} cannot be divided among the devices of this process. With several "
                    "processes, give each the same number of images in every batch, which its devices divide (drop the "
                    "remainder)."
                )
            sharding = type(sharding)(sharding.mesh, type(sharding.spec)())
        return plain(batch, sharding, *names, **options)

    def distribute_tensor(tensor, layout):
        if not asked():
            return one_output(tensor, layout)
        if isinstance(tensor, (dict, list, tuple)):
            return keras.tree.map_structure(lambda each: distribute_tensor(each, layout), tensor)
        sharding = getattr(layout, "backend_layout", layout)
        if concrete(tensor) or divides(sharding, tensor.shape):
            return one_output(tensor, layout)
        return tensor if len(sharding.mesh.shape) > 1 else unequal_parts(tensor, sharding)

    distribution_lib.distribute_data_input = distribute_data_input
    distribution_lib.distribute_tensor = distribute_tensor


def compile_on_openvino(compile: Callable[[Any, str], Any], values: Callable[[keras.Model], tuple[Any, ...]]) -> None:
    """Let Keras' `predict` and `evaluate` on OpenVINO compile by a function, again for each new `values`."""
    # Keras passes no properties on, so that OpenVINO may compute in bfloat16. It keeps what it compiled first, whatever
    # weights and dtypes come later; after inputs that it refuses, it fails on all; and threads disturb each other.
    # `compile` takes an `openvino.Model` and a device; `values` lists objects of a model that are replaced when a
    # variable is assigned.
    from keras.src.backend.openvino import core, trainer

    plain, lock = trainer.OpenVINOTrainer._get_compiled_model, threading.RLock()

    def _get_compiled_model(self, data):
        with lock:
            now, last = values(self), kept(self, "compiled on OpenVINO", dict)
            state = [*map(id, now), *(str(getattr(x, "dtype", None)) for x in keras.tree.flatten(data))]
            if state != last.get("state") or not hasattr(self, "ov_compiled_model"):
                self.ov_compiled_model = None
            last.update(values=now, state=state)
            return plain(self, data)

    trainer.OpenVINOTrainer._get_compiled_model = _get_compiled_model
    trainer.ov = types.SimpleNamespace(**{**vars(trainer.ov), "compile_model": compile})
    core.compile_model = functools.partial(core.compile_model, config={"INFERENCE_PRECISION_HINT": "f32"})


def kept(model: keras.Model, key: Hashable, make: Callable[[], Any]) -> Any:
    """Return what `make` returned when it was first called for a model and a key; it is freed with the model."""
    # It may refer to the model: a dictionary with weak keys would then never free either. An attribute set in the
    # ordinary way would become a part of the model, and of the files that it is saved in.
    hidden = types.SimpleNamespace(values={})  # into which Keras does not look when it saves
    values = model.__dict__.setdefault("_vit_keras_kept", hidden).values
    if key not in values:
        values[key] = make()
    return values[key]


class SymbolicTensor(keras.KerasTensor):
    """A symbolic tensor that leaves no trace in the layers it goes through, and carries a `value` of the caller's."""

    # Arrays of NumPy and JAX leave the operators to it: for JAX, that attribute must seem not to be there.
    __array_ufunc__ = None
    __jax_array__: Any = property(lambda self: object.__getattribute__(self, "missing"))
    # Keras writes where a tensor comes from into the layer that it comes from; of these it learns nothing.
    _keras_history = property(lambda self: types.SimpleNamespace(operation=None, node_index=0), lambda self, _: None)

    def __init__(self, shape: Any, dtype: str, value: Any):
        super().__init__(shape, dtype)
        self.value = value


@contextlib.contextmanager
def answering(answer: Callable[[Any, tuple[Any, ...], dict[Any, Any]], Any]) -> Iterator[None]:
    """Let `answer(operation, args, kwargs)` compute what operations return for `SymbolicTensor`s inside the block."""
    # Keras has then already done its part, such as building a layer and passing `training` on.
    calls: dict[int, tuple[Any, int]] = {}  # the layers that were called, and how many nodes each had before
    classes = (keras.Operation, keras.Layer)
    plain = [each.symbolic_call for each in classes]

    def answered(each):
        def symbolic_call(self, *args, **kwargs):
            given = keras.tree.flatten((args, kwargs))
            if not any(isinstance(x, SymbolicTensor) for x in given):
                return each(self, *args, **kwargs)
            calls.setdefault(id(self), (self, len(self._inbound_nodes)))
            return answer(self, args, kwargs)

        return symbolic_call

    try:
        for each, method in zip(classes, plain):
            each.symbolic_call = answered(method)
        yield
    finally:
        for each, method in zip(classes, plain):
            each.symbolic_call = method
        for operation, nodes in calls.values():
            del operation._inbound_nodes[nodes:]
