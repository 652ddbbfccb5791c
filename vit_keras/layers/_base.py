"""Shared code of the layers: registration, shapes of tokens, dropout and layer normalization."""

from __future__ import annotations

from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from ..backend.backward import in_one_pass, layer_norm
from ..backend.direct import Direct, may_skip_keras
from ..backend.keras_internals import flat_layers, full_kernel, kernel_of
from ..preprocess import GOOGLE, Preprocessing
from ._ops import linear, normalize

_Class = TypeVar("_Class", bound=type)

OF_0_X = ("AddPositionEmbs", "ClassToken", "MultiHeadSelfAttention", "TransformerBlock")
"""Layers that vit-keras 0.x registered, without a name of its own before theirs."""


def register(cls: _Class) -> _Class:
    """Make a layer loadable under its own name, and one of vit-keras 0.x under its name there if that is free."""
    keras.saving.register_keras_serializable("vit_keras")(cls)
    if cls.__name__ in OF_0_X:
        keras.saving.get_custom_objects().setdefault(f"Custom>{cls.__name__}", cls)
    return cls


class Dense(Direct, keras.layers.Dense):
    """A dense layer that is saved with its low-rank adapter."""

    # Keras saves only the kernel, with the adapter merged into it. So does this layer, so that a layer without an
    # adapter can load the file. In addition, it saves the original kernel and the two factors under separate names.

    _reads_training = False

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x = linear(inputs, kernel_of(self), self.bias)
        if x is None:
            return super().call(inputs)
        return x if self.activation is None else self.activation(x)

    def call_with_gelu(self, inputs: Any, approximate: str) -> Any:
        """Return the GELU of the output in one PyTorch kernel, or `None` if the layer must be called."""
        is_ours = type(self) is Dense and Dense.call is _CALL and "call" not in vars(self)
        if not is_ours or self.activation is not keras.activations.linear:
            return None
        if not may_skip_keras(self, (inputs,), {}, False):  # a hook would see another output
            return None
        return linear(inputs, kernel_of(self), self.bias, approximate)

    def quantize(self, mode: Any = None, **options: Any) -> Any:
        return super().quantize(mode, **{**options, "type_check": False})  # Keras quantizes no class but its own

    def _with_adapter(self) -> Any:
        """Return the original variables and the variables of the adapter, by name."""
        beside = {name: getattr(self, name, None) for name in ("kernel_scale", "kernel_zero")}
        adapter = {name: getattr(self, name) for name in ("lora_kernel_a", "lora_kernel_b")}
        return {name: x for name, x in {"kernel": full_kernel(self), **beside, **adapter}.items() if x is not None}

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.built and self.lora_enabled:
            for name, variable in self._with_adapter().items():
                store[name] = variable

    def load_own_variables(self, store: Any) -> None:
        names = [*store.keys()]
        super().load_own_variables({name: store[name] for name in names if name.isdecimal()})
        own = self._with_adapter() if self.lora_enabled else {}
        if own and all(name in names and store[name].shape == tuple(own[name].shape) for name in own):
            for name, variable in own.items():
                variable.assign(store[name])


_CALL = Dense.call


class Composite(Direct, keras.layers.Layer):
    """A layer made of others, whose configuration records quantization, adapters and freezing of the layers inside."""

    # Keras saves the configuration of the outermost layer only, and would rebuild the layers inside without these
    # changes. `dense` has the changes to each dense layer, and `frozen` the numbers of the weights that are not
    # trainable.

    def __init__(self, dense: Any = (), frozen: Any = (), **kwargs: Any):
        super().__init__(**kwargs)
        self._built_as = tuple(dense), tuple(frozen)

    def __init_subclass__(cls, **kwargs: Any):
        """Let Keras find out what a subclass returns that has a `call` of its own."""
        super().__init_subclass__(**kwargs)
        call, shape, spec = (
            next(n for n, each in enumerate(cls.__mro__) if name in vars(each))
            for name in ("call", "compute_output_shape", "compute_output_spec")
        )
        is_described = cls.compute_output_spec is not keras.layers.Layer.compute_output_spec
        if is_described and call < spec:
            has_shape = shape <= call
            cls.compute_output_spec = (keras.layers.Layer if has_shape else keras.Operation).compute_output_spec

    def change_as_configured(self) -> None:
        """Apply the quantization, adapters and freezing in the configuration, at the end of `build`."""
        changes, frozen = self._built_as
        layers = dense_layers(self)
        for layer, change in zip(layers, changes or [{}] * len(layers), strict=True):
            if "quantization" in change:
                mode, config = change["quantization"]
                config = keras.saving.deserialize_keras_object(config)
                layer.quantize(mode, **({} if config is None else {"config": config}))
            if "adapter" in change:
                layer.enable_lora(**change["adapter"])
        weights = self.weights if frozen else []
        for number in frozen:
            weights[number].trainable = False

    def get_config(self) -> dict[str, Any]:
        changes, frozen = self._built_as
        if self.built:
            changes = [_changes(layer) for layer in dense_layers(self)]
            frozen = [n for n, weight in enumerate(self.weights) if not weight.trainable] if self.trainable else []
        changed = {"dense": [*changes] if any(changes) else [], "frozen": [*frozen]}
        return {**super().get_config(), **{name: value for name, value in changed.items() if value}}


def dense_layers(layer: keras.layers.Layer) -> list[keras.layers.Dense]:
    """Return the dense layers in a layer, at any depth, in the order of their creation."""
    return [each for each in flat_layers(layer) if isinstance(each, keras.layers.Dense)]


def _changes(dense: keras.layers.Dense) -> dict[Any, Any]:
    """Return the quantization and the adapter of a dense layer, if any, as plain JSON."""
    mode, changes = getattr(dense, "quantization_mode", None), {}
    if mode is not None:
        config = getattr(dense, "quantization_config", None)
        changes["quantization"] = mode, keras.saving.serialize_keras_object(config)
    if dense.lora_enabled:
        scale = getattr(dense, "lora_alpha", None)
        changes["adapter"] = {"rank": dense.lora_rank, **({} if scale is None else {"lora_alpha": scale})}
    return changes


class EncoderBlock(Composite):
    """A block with metadata of the models around it, kept in a layer because Keras drops it."""

    # A functional model made from a ViT's tensors, `keras.Model(vit.input, outputs)`, shares only its layers with the
    # ViT. `anatomy` reads them from the first block.

    def __init__(self, preprocessing: Any = None, around: Any = (), **kwargs: Any):
        super().__init__(**kwargs)
        self.preprocessing: Preprocessing | None = (
            None if preprocessing is None else Preprocessing.from_dict(preprocessing)
        )
        # `labels` and `task` of the Keras models around the block, by their names.
        self.outer_models: dict[str, dict[str, Any]] = {}
        self.unclaimed: set[str] = set()  # names from a file that no model has claimed yet
        self.open_outer_models(around)

    def open_outer_models(self, around: Any) -> None:
        """Take the names and tasks that a file stores: a list of dictionaries."""
        for each in around or ():
            if {"model", "labels", "task"} <= {*each}:
                self.outer_models[each["model"]] = {"labels": [*each["labels"]], "task": each["task"]}
                self.unclaimed.add(each["model"])

    def get_config(self) -> dict[str, Any]:
        config, own = super().get_config(), self.preprocessing
        if own is not None and own != GOOGLE.for_channels(own.channels):
            config["preprocessing"] = own.to_dict()
        if self.outer_models:  # in which Keras has put lists of its own, that no .h5 file is opened with
            config["around"] = [
                {"model": name, "labels": [*each["labels"]], "task": each["task"]}
                for name, each in self.outer_models.items()
            ]
        return config


def token_width(layer: keras.layers.Layer, shape: tuple[Any, ...], ndim: int | None = 3) -> int:
    """Return the hidden size of `(batch, tokens, hidden_size)`, or raise a ValueError if it is not fixed."""
    if (ndim is not None and len(shape) != ndim) or shape[-1] is None:
        raise ValueError(
            f"{type(layer).__name__} takes tokens of shape (batch, tokens, hidden_size) with a fixed hidden size. "
            f"Received: {tuple(shape)}"
        )
    return shape[-1]


def one_or_all(*outputs: Any) -> Any:
    """Return a layer's output alone, or a tuple with the additional outputs that were requested."""
    return outputs if outputs[1:] else outputs[0]


def symbolic(layer: Any, *shapes: Any) -> Any:
    """Return symbolic outputs of a layer with these shapes."""
    return one_or_all(*(keras.KerasTensor(shape, dtype=layer.compute_dtype) for shape in shapes))


def spec_of(layer: Any, *shapes: Any) -> Any:
    """Return symbolic outputs like `symbolic`, for a layer that always returned a pair in vit-keras 0.x."""
    return symbolic(layer, *shapes) if shapes[1:] else OutputAlone(shapes[0], dtype=layer.compute_dtype)


class OutputAlone(keras.KerasTensor):
    """A symbolic output that refuses to be unpacked as the pair that the same layer returned in vit-keras 0.x."""

    # A model around the layer returns an ordinary one.

    def __iter__(self) -> Any:
        raise TypeError(_NO_PAIR)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)) and self.shape[0] is None:  # an image that the batch may not have
            raise TypeError(_NO_PAIR)
        return super().__getitem__(key)


_NO_PAIR = (
    "TransformerBlock and MultiHeadSelfAttention return only their output, where vit-keras 0.x returned (output, "
    "weights). To get both, call a new layer with return_attention_scores=True. To get the weights of a model, use "
    "vit_keras.visualize.record(model, images).attention."
)


def grid_of(patches: Any) -> Any:
    """Return the cells down and across of a feature map: integers, or scalar tensors known only in the graph."""
    return tuple(fixed or ops.shape(patches)[axis] for axis, fixed in enumerate(patches.shape))[1:3]


def places_in(where: Any) -> Any:
    """Return the arguments `grid`, `places` and `xp` of `positions.rope_sincos` for tokens made from `where`."""
    # `where` is the patches' layer input `(batch, down, across, ...)` or, for images of several sizes in a sequence,
    # `(batch, tokens, 4)`: row and column of each patch, and patches down and across of its image. Keras rounds floats
    # to the layer's dtype, integers it leaves: bfloat16 has none but the even ones above 256.
    if len(where.shape) == 3:
        row, column, down, across = (ops.cast(where[..., n], "float32") for n in range(4))
        return {"grid": (down, across), "places": (row, column), "xp": ops}
    grid = grid_of(where)
    return {"grid": grid, "places": None, "xp": array_module(grid)}


def array_module(grid: Any) -> Any:
    """Return NumPy for a known grid, `keras.ops` for a grid known only in the graph."""
    return np if all(isinstance(size, int) for size in grid) else ops


class Dropout(keras.layers.Dropout):
    """Dropout that costs nothing at rate 0: a layer call takes 0.1 ms on PyTorch, and most rates here are 0."""

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        return super().__call__(inputs, training=training) if self.rate else inputs


def drop_path(rate: float, **options: Any) -> Dropout:
    """Return a dropout layer for whole images in a batch of tokens; before a residual sum, this is stochastic depth."""
    return Dropout(rate, noise_shape=(None, 1, 1), name="drop_path", **options)


@register
class LayerNormalization(Direct, keras.layers.LayerNormalization):
    """Layer normalization of the last axis that keeps only its input for the backward pass."""

    _reads_training = False  # where it is called directly: PyTorch's kernel keeps little by itself

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not training or keras.backend.backend() == "torch":
            outputs = normalize(inputs, self.gamma, self.beta, self.epsilon, self.compute_dtype)
            return super().call(inputs) if outputs is None else outputs
        scale, shift = map(ops.convert_to_tensor, (self.gamma, self.beta))
        return ops.cast(in_one_pass(layer_norm, self.epsilon)(inputs, scale, shift), self.compute_dtype)
