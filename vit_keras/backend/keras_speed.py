"""What is overridden in Keras, for speed and for several devices: on one, a model without this file computes the same.

Each trick has a test in `tests/test_keras_speed.py`, which fails when the trick stops working, and one that fails when
Keras no longer needs it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import sys
from typing import Any

import keras
import numpy as np

from .._internal.tap import is_watched
from .._internal.validate import positive_integer
from ..labels import check_class_numbers
from . import compiled, distribution, openvino
from .changes import is_same
from .direct import asked_once, call_model, stock_call
from .guarded import Guarded
from .keras_internals import (
    clear_losses,
    compile_metrics,
    concrete,
    policy_of,
    run_graph,
    thread_state,
)
from .traced import CompiledBlock, inline, is_inside, name_for_tracing


class FastModel(Guarded, keras.Model):
    """A functional model whose plain call, `predict` and first training step cost what the model costs."""

    def __init__(self, *args: Any, **kwargs: Any):
        """Take the dtype policy of the layers: Keras takes the global one, and scales losses and quantizes by it."""
        super().__init__(*args, **kwargs)
        policy = policy_of(self)
        if policy.quantization_mode is None:
            for each in (self, *(layer for layer in self.layers if isinstance(layer, keras.layers.InputLayer))):
                each.dtype_policy = policy
        if keras.backend.backend() == "torch":
            name_for_tracing(self)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if is_inside() and not args and not kwargs.keys() - {"training"}:
            return inline(self, inputs, kwargs.get("training"))
        return call_model(self, (inputs, *args), kwargs, super().__call__)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Run the model: compiled if images come in outside of any graph, unless `run_eagerly` is set."""
        # Operation by operation, TensorFlow and JAX take several times as long. `add_loss` needs `run_eagerly`.
        if keras.backend.backend() == "torch":
            training = bool(training) if concrete(inputs) else training  # layers that are told need not ask Keras
            if sys.modules["torch"].compiler.is_compiling():  # which stops at the context variables below
                return super().call(inputs, training=training, mask=mask, **kwargs)
            with self._replaced_parameters(), asked_once(directly=not self.run_eagerly):
                return super().call(inputs, training=training, mask=mask, **kwargs)
        plain = mask is None and not kwargs and not self.run_eagerly and not is_watched()
        if plain and _outside_of_any_graph(inputs, training):
            images = keras.ops.convert_to_tensor(inputs, dtype=self.inputs[0].dtype)
            training = bool(training)
            return compiled.run(self, _FORWARD[training], images, key=training, training=training)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def call_by_keras(self, inputs: Any, training: bool | None = None) -> Any:
        """Run the model as Keras runs it, which is what is compiled."""
        return super().call(inputs, training)

    def _track_variables(self):
        """Keep the parameters that PyTorch has now, to see which of them it replaces."""
        super()._track_variables()
        self.__dict__[_TRACKED] = dict(self._torch_params._parameters)

    def _replaced_parameters(self):
        """Compute with parameters that PyTorch has replaced in the block, as `torch.func.functional_call` does."""
        # Keras' variables keep the tensors that they were made with.
        now, before = self.torch_params._parameters, vars(self)[_TRACKED]
        if is_same(now.values(), before.values()):
            return contextlib.nullcontext()
        others = {name: x for name, x in now.items() if x is not before.setdefault(name, x)}
        pairs = [(v, others[v.path]) for v in self.variables if v.path in others] if others else []
        pairs = [(v, x) for v, x in pairs if (v._value.shape, v._value.dtype) == (x.shape, x.dtype)]  # not quantized
        for variable, tensor in pairs:
            if isinstance(tensor, sys.modules["torch"].nn.Parameter):  # for good: load_state_dict(assign=True)
                variable._value = before[variable.path] = tensor
        return keras.StatelessScope(state_mapping=pairs) if pairs else contextlib.nullcontext()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state as `torch.nn.Module.load_state_dict` does, also with `assign=True`."""
        result = super().load_state_dict(*args, **kwargs)
        self._replaced_parameters()
        return result

    def _run_through_graph(self, inputs, operation_fn=lambda operation: operation, **kwargs):
        """Need half of the memory for large images, on PyTorch: Keras keeps what each block returned until the end."""
        if keras.backend.backend() == "torch" and not kwargs:
            compiles = self.compiles_blocks

            def call_of(operation):
                if compiles and getattr(operation, "is_repeated", False):
                    return operation_fn(CompiledBlock(operation))
                return stock_call(operation, operation_fn(operation))

            return run_graph(self, inputs, call_of)
        return super()._run_through_graph(inputs, operation_fn, **kwargs)

    def _clear_losses(self):
        """Take a twentieth of the time that Keras takes for it at each call."""
        clear_losses(self, super()._clear_losses)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        _check_labels(self, "fit", *args, **kwargs)
        return super().fit(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("_use_cached_eval_dataset"):  # within fit, which has checked
            _check_labels(self, "evaluate", *args, **kwargs)
        return super().evaluate(*args, **kwargs)

    def make_train_function(self, force: bool = False) -> Any:
        """Build the optimizer before the step: variables that are made while it is traced cost a second trace."""
        if self._on_one_tensorflow_device() and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Build metrics that are named by a string outside of the trace: their variables would cost a second one."""
        metrics = compile_metrics(self)
        if metrics is not None and not metrics.built and y is not None and self._on_one_tensorflow_device():

            def spec(tensor):
                return keras.KerasTensor(tensor.shape, tensor.dtype.name)

            specs = [keras.tree.map_structure(spec, tensors) for tensors in (y, y_pred)]
            with concurrent.futures.ThreadPoolExecutor(1) as thread:  # what is traced is a matter of the thread
                thread.submit(metrics.build, *specs).result()
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        if openvino.is_active():
            openvino.compute_now(variable for metric in self.metrics for variable in metric.variables)
        return results

    def make_predict_function(self, force: bool = False) -> Any:
        """Let each of several processes predict its own images: Keras fails on rows that are on another machine."""
        before = self.predict_function
        super().make_predict_function(force)
        if self.predict_function is not before:
            self.predict_function: Any = distribution.of_this_process(self.predict_function, self.steps_per_execution)
        return self.predict_function

    def predict(
        self, x: Any, batch_size: Any = None, verbose: Any = "auto", steps: Any = None, callbacks: Any = None
    ) -> Any:
        """Predict as `keras.Model.predict` does."""
        # Batches of an array or a tensor are cut here: the input pipeline that Keras builds for them at every call
        # costs TensorFlow 40 ms, more than the model itself for an image or two.
        if isinstance(x, np.ndarray) or keras.ops.is_tensor(x):
            if 0 in x.shape[:1]:
                raise ValueError(f"predict needs one image or more. Received: an array of shape {tuple(x.shape)}")
            batch_size = None if batch_size is None else positive_integer(batch_size, "batch_size")
        one_device = self._on_one_tensorflow_device()
        if one_device and keras.ops.is_tensor(x):
            x = keras.ops.convert_to_numpy(x)
        if not (one_device and isinstance(x, np.ndarray) and steps is None and self.steps_per_execution == 1):
            return super().predict(x, batch_size, verbose, steps, callbacks)
        x = x.astype(keras.config.floatx()) if x.dtype.kind == "f" else x
        batch_size = batch_size or 32
        batches = [x[i : i + batch_size] for i in range(0, len(x), batch_size)]
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=len(batches), model=self
            )
        self.stop_predicting = False
        outputs = []
        callbacks.on_predict_begin()
        for step, batch in enumerate(batches):
            callbacks.on_predict_batch_begin(step)
            outputs.append(self.predict_on_batch(batch))
            callbacks.on_predict_batch_end(step, {"outputs": outputs[-1]})
            if self.stop_predicting:
                break
        callbacks.on_predict_end()
        return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *outputs)

    def predict_on_batch(self, x: Any) -> Any:
        """Predict one batch. Keras lets each replica of TensorFlow predict all of it, and OpenVINO no tensor at all."""
        if openvino.is_active():
            x = keras.tree.map_structure(np.asarray, x)
        if keras.backend.backend() != "tensorflow" or self._on_one_tensorflow_device():
            return super().predict_on_batch(x)
        return self.predict(x, batch_size=len(x), verbose=0)

    def _on_one_tensorflow_device(self) -> bool:
        return keras.backend.backend() == "tensorflow" and self.distribute_strategy.num_replicas_in_sync == 1


def _check_labels(
    model: keras.Model,
    method: str,
    x: Any = None,
    y: Any = None,
    *_: Any,
    validation_data: Any = None,
    sample_weight: Any = None,
    **__: Any,
) -> None:
    """Raise a ValueError if labels are missing, or are numbers of classes that the loss cannot take."""
    # A number with a weight of 0 is masked, so it need not be a class.
    loss = getattr(model, "loss", None)
    if loss is None or openvino.is_active() or not _are_of_keras(model, loss):
        return
    given: list[tuple[Any, ...]] = [(x, y, sample_weight)]
    if isinstance(validation_data, (tuple, list)) and validation_data:
        given.append((*validation_data, None, None)[:3])
    classes = _classes_of(model, loss)
    for images, labels, weights in given:
        if labels is None and concrete(images):
            raise ValueError(
                f"The loss of {model.name!r} needs labels. Received: an array alone. Pass "
                f"model.{method}(images, labels), and validation_data=(images, labels). training.MaskedAutoencoder "
                "trains without labels."
            )
        if classes is None or labels is None or weights is not None or not concrete(labels):
            continue
        if tuple(labels.shape[1:]) in ((), (1,)) and getattr(labels, "is_fully_addressable", True):
            found = keras.ops.convert_to_numpy(labels)
            check_class_numbers(found[found != getattr(loss, "ignore_class", None)], classes)


def _are_of_keras(model: keras.Model, loss: Any) -> bool:
    """Whether the loss and the steps of a model are Keras' own."""
    kinds = [(model, keras.Model, name) for name in ("compute_loss", "train_step", "test_step")]
    kinds += [(loss, keras.losses.Loss, "__call__")] if isinstance(loss, keras.losses.Loss) else []
    return all(getattr(type(one), name) is getattr(stock, name) and name not in vars(one) for one, stock, name in kinds)


def _classes_of(model: keras.Model, loss: Any) -> int | None:
    """Return the number of classes if the loss takes their numbers, or `None`."""
    shape = getattr(model, "output_shape", None)
    if isinstance(loss, str):
        sparse = loss in ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy")
    else:
        sparse = type(loss) is keras.losses.SparseCategoricalCrossentropy
        sparse = sparse or loss is keras.losses.sparse_categorical_crossentropy
        sparse = sparse or getattr(loss, "takes_class_numbers", False)  # of this package
    return shape[-1] if sparse and isinstance(shape, tuple) and len(shape) == 2 and shape[-1] > 1 else None


def _outside_of_any_graph(inputs, training) -> bool:
    """Whether these images come from a plain `model(images)` that is worth compiling for."""
    if thread_state().get("stateless_scope") is not None or not concrete(inputs):  # of other values than the variables'
        return False
    return sys.modules["tensorflow"].executing_eagerly() if keras.backend.backend() == "tensorflow" else not training


_TRACKED = "_tracked_by_vit_keras"
"""The attribute with the parameters that PyTorch had when Keras last told it of a model's variables."""

_FORWARD = {training: functools.partial(FastModel.call_by_keras, training=training) for training in (False, True)}
"""What is compiled; the same function each time."""
