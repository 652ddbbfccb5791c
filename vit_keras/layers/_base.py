"""The base of all layers: its fields, its quick path and what Keras needs; and the layers of Keras that are ours."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import keras
import numpy as np

from .._internal.fields import FieldsDoc
from ..backend import changes, ops
from ..backend.backward import in_one_pass, layer_norm
from ..backend.direct import Direct, is_ours, plain_inside
from ..backend.keras_internals import add_seed_generator, flat_layers, full_kernel, kernel_of
from ..config import ViTConfig

_Class = TypeVar("_Class", bound=type)

OF_0_X = ("AddPositionEmbs", "ClassToken", "MultiHeadSelfAttention", "TransformerBlock")
"""Layers that vit-keras 0.x registered, without a name of its own before theirs."""


def register(cls: _Class) -> _Class:
    """Make a layer loadable under its own name, and one of vit-keras 0.x under its name there if that is free."""
    keras.saving.register_keras_serializable("vit_keras")(cls)
    if cls.__name__ in OF_0_X:
        keras.saving.get_custom_objects().setdefault(f"Custom>{cls.__name__}", cls)
    return cls


if TYPE_CHECKING:

    @dataclass_transform(field_specifiers=(dataclasses.field,))
    class _Declared(keras.layers.Layer):
        """Tell type checkers that annotated attributes are arguments."""

else:
    _Declared = keras.layers.Layer


class Layer(Direct, _Declared):
    """A layer whose annotated class attributes, its fields, are its arguments, configuration and documentation.

    As in Flax and Equinox, `num_heads: int` declares a required argument, and `dropout: float = 0.0` one with a
    default. Each is set as an attribute; `setup` then makes the layers inside. A subclass inherits the fields, and a
    subclass with an `__init__` of its own adds none. Fields of a class with `kw_only=True` and Keras' own arguments are
    keywords.
    """

    if TYPE_CHECKING:
        name: Any = dataclasses.field(default=None, kw_only=True)
        dtype: Any = dataclasses.field(default=None, kw_only=True)
        trainable: bool = dataclasses.field(default=True, kw_only=True)

    fields: ClassVar[dict[str, inspect.Parameter]] = {}
    """The arguments by name, in the order in which they may be passed."""

    _arguments: ClassVar[inspect.Signature]  # the fields, and what Keras' own layers take

    _reads_training: ClassVar[bool] = False  # whether `training=None` means the value of the layer around

    def __init_subclass__(cls, kw_only: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._reads_training = vars(cls).get("reads_training", "training" in inspect.signature(cls.call).parameters)
        has_fields = "__init__" not in vars(cls)
        inherited = {k: v for base in reversed(cls.__bases__) for k, v in getattr(base, "fields", {}).items()}
        cls.fields = {**inherited, **(_declared_in(cls, kw_only) if has_fields else {})}
        in_order = sorted(cls.fields.values(), key=lambda field: (field.kind, field.default is not field.empty))
        others = [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD, annotation="Any")]
        if not cls.fields:
            others.insert(0, inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL, annotation="Any"))
        cls._arguments = inspect.Signature([*in_order, *others])
        cls.__signature__ = cls._arguments if has_fields and cls.fields else None  # without, inspect finds it
        if cls.fields and cls.__doc__:
            doc: Any = FieldsDoc(cls.__doc__, cls.fields, ViTConfig)
            cls.__doc__ = doc

    def __init__(self, *args: Any, **kwargs: Any):
        try:
            given = self._arguments.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        given.apply_defaults()
        fields = given.arguments
        super().__init__(*fields.pop("args", ()), **fields.pop("kwargs"))
        for name, value in fields.items():
            setattr(self, name, tuple(value) if isinstance(value, (list, np.ndarray)) else value)
        changes.note(self)
        self.setup()

    def setup(self) -> None:
        """Check the fields, and make the layers inside."""

    def part(self, kind: Any, name: str | None, shape: Any = None, **others: Any) -> Any:
        """Return a layer, built for an input shape if given, with this one's dtype policy and the fields of both."""
        shared = {field: getattr(self, field) for field in getattr(kind, "fields", ()) if field in self.fields}
        part = kind(**{**shared, **others}, name=name, dtype=self.dtype_policy)
        if shape is not None:
            part.build(shape)
        return part

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        changes.note(self)  # torch.compile does not look for new hooks
        return super().register_forward_hook(*args, **kwargs)

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        changes.note(self)
        return super().register_forward_pre_hook(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Keras follows `call` where `compute_output_shape` does not describe it: it is a user's own, or returns more.
        call, shape = (
            next(n for n, each in enumerate(type(self).__mro__) if name in vars(each))
            for name in ("call", "compute_output_shape")
        )
        returns_more = any(value is True for value in (*args[1:], *kwargs.values()))
        is_followed = returns_more or (call < shape and not is_ours(type(self)))
        return (keras.Operation if is_followed else keras.layers.Layer).compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in self.fields}}


def _declared_in(cls: type, kw_only: bool) -> dict[str, inspect.Parameter]:
    """Take the fields that a class itself declares, and return them as arguments."""
    kind = inspect.Parameter.KEYWORD_ONLY if kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    fields = {}
    for name, annotation in inspect.get_annotations(cls).items():
        if name[0] != "_" and "ClassVar" not in str(annotation):
            default = vars(cls).get(name, inspect.Parameter.empty)
            if default is not inspect.Parameter.empty:
                delattr(cls, name)  # it would hide a layer of the same name, which PyTorch keeps elsewhere
            fields[name] = inspect.Parameter(name, kind, default=default, annotation=annotation)
    return fields


class Dense(Layer, keras.layers.Dense):
    """A dense layer that is saved with its low-rank adapter."""

    # Keras saves only the kernel, with the adapter merged into it. So does this layer, so that a layer without an
    # adapter can load the file. In addition, it saves the original kernel and the two factors under separate names.

    reads_training = False

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x = ops.linear(inputs, kernel_of(self), self.bias)
        if x is None:
            return super().call(inputs)
        return x if self.activation is None else self.activation(x)

    def call_with_gelu(self, inputs: Any, approximate: str) -> Any:
        """Return the GELU of the output in one PyTorch kernel, or `None` if the layer must be called."""
        is_known = type(self) is Dense and Dense.call is _CALL and "call" not in vars(self)
        if not is_known or self.activation is not keras.activations.linear:
            return None
        if not plain_inside(self, (inputs,), {}):  # a hook would see another output
            return None
        return ops.linear(inputs, kernel_of(self), self.bias, approximate)

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


class Composite(Layer):
    """A layer made of others, whose configuration records what was changed in the layers inside."""

    # Keras saves the configuration of the outermost layer only, and would rebuild the layers inside without these
    # changes. `dense` has the quantization and adapter of each dense layer, `frozen` the numbers of the weights that
    # are not trainable, and `inside` the settings that `build` did not choose: number of the layer, name, value.

    def __init__(self, *args: Any, dense: Any = (), frozen: Any = (), inside: Any = (), **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._configured = tuple(dense), tuple(frozen), tuple(inside)

    def change_as_configured(self) -> None:
        """Apply the changes in the configuration to the layers inside, at the end of `build`."""
        dense, frozen, inside = self._configured
        self._settings: Any = tuple(_settings(self).items())
        for number, name, value in inside:
            change_setting(flat_layers(self)[number], name, value)
        for layer, change in zip(dense_layers(self) if dense else (), dense, strict=True):
            if "quantization" in change:
                mode, config = change["quantization"]
                config = keras.saving.deserialize_keras_object(config)
                layer.quantize(mode, **({} if config is None else {"config": config}))
            if "adapter" in change:
                layer.enable_lora(**change["adapter"])
        weights = self.weights if frozen else []
        for number in frozen:
            weights[number].trainable = False

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        dense, frozen, inside = (list(changes) for changes in self._configured)
        if self.built:
            dense = [_changes(layer) for layer in dense_layers(self)]
            frozen = [n for n, weight in enumerate(self.weights) if not weight.trainable] if self.trainable else []
            before, now = dict(self._settings), _settings(self)
            if before.keys() - now.keys():
                raise TypeError(
                    f"A layer inside of {self.name!r} was replaced by another, which no configuration describes. Put "
                    "it back before you copy or save the layer."
                )
            inside = [[*at, as_json(value)] for at, value in now.items() if before.get(at, value) != value]
        changed = {"dense": dense if any(dense) else [], "frozen": frozen, "inside": inside}
        return {**super().get_config(), **{name: value for name, value in changed.items() if value}}


SETTINGS = ("activation", "epsilon", "rate")
"""Attributes of a layer that change what it computes, and that no weight depends on."""


def _settings(layer: keras.layers.Layer) -> dict[tuple[int, str], Any]:
    """Return the settings of the layers inside a layer, by their number and the name of the setting."""
    inside = [*enumerate(flat_layers(layer))][1:]
    return {(n, name): getattr(part, name) for n, part in inside for name in SETTINGS if hasattr(part, name)}


def as_json(value: Any) -> Any:
    """Return a setting as plain JSON. With a function, Keras imports TensorFlow, so that `build` does not ask."""
    return keras.activations.serialize(value) if callable(value) else value


def change_setting(layer: keras.layers.Layer, name: str, value: Any) -> None:
    """Change a setting of a layer that may be built."""
    if name == "activation" and not isinstance(getattr(layer, name), str):  # an MLP knows more names than Keras
        value = keras.activations.get(value)
    setattr(layer, name, value)
    if name == "rate" and value:
        add_seed_generator(layer)


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
    return {"grid": grid, "places": None, "xp": np if all(isinstance(size, int) for size in grid) else ops}


class Dropout(Layer, keras.layers.Dropout):
    """Dropout that costs nothing at rate 0: a layer call takes 0.1 ms on PyTorch, and most rates here are 0."""

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        return super().__call__(inputs, training=training) if self.rate else inputs


@register
class LayerNormalization(Layer, keras.layers.LayerNormalization):
    """Layer normalization of the last axis that keeps only its input for the backward pass."""

    reads_training = False  # where it is called directly: PyTorch's kernel keeps little by itself

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not training or keras.backend.backend() == "torch":
            outputs = ops.normalize(inputs, self.gamma, self.beta, self.epsilon, self.compute_dtype)
            return super().call(inputs) if outputs is None else outputs
        scale, shift = map(ops.convert_to_tensor, (self.gamma, self.beta))
        return ops.cast(in_one_pass(layer_norm, self.epsilon)(inputs, scale, shift), self.compute_dtype)
