"""Copies of a model with another Vision Transformer in it, and everything around it as it was."""

from __future__ import annotations

from typing import Any

import keras

from .anatomy.around import alone, last_layer_of
from .anatomy.dry_run import RESIZING, called, images
from .anatomy.parts import keeper
from .backend.keras_internals import flat_layers, input_structure, run_rest
from .layers._base import as_json, change_setting
from .preprocess.layer import Preprocess

_OPTIONS = {
    "activation": {"mlp_activation"},  # of the head: "activation"
    "epsilon": {"epsilon"},
    "rate": {"dropout", "emb_dropout", "attention_dropout", "stochastic_depth", "patch_dropout", "remat"},
    "index": {"pooling"},
    "post_norm": {"post_norm"},
}
"""The options of `resize` by the setting of layers that they choose, which then is not the given model's."""


def keep_settings(vit: keras.Model, new: keras.Model, options: Any) -> None:
    """Set what was changed in the layers of a ViT, and what no option chooses, in a new one too."""
    by_name = {layer.name: layer for layer in vit.layers}
    for layer in new.layers:
        chosen = {**_OPTIONS, **({"activation": {"activation"}} if layer.name in ("head", "activation") else {})}
        names = [name for name, others in chosen.items() if not others & set(options)]
        ours, theirs = flat_layers(layer), flat_layers(by_name[layer.name]) if layer.name in by_name else []
        for our, their in zip(ours, theirs) if len(ours) == len(theirs) else ():
            for name in names:
                now = getattr(our, name, None)
                then = getattr(their, name, now)
                if now != then and as_json(now) != as_json(then):
                    change_setting(our, name, then)


def with_vit(model: keras.Model, vit: keras.Model, new: keras.Model) -> keras.Model:
    """Return a copy of a model with a new ViT in the place of its own, and copies of the layers around it."""
    try:
        copy = _around(model, vit, new)
        if copy is not new and alone(vit).input_shape != new.input_shape and _rows(copy) != _rows(model):
            raise ValueError("they reshape the tokens of one grid, and make other rows of those of another.")
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"The layers around the ViT of the model {model.name!r} cannot be copied: "
            f"{' '.join(str(error).split()):.300} Pass the ViT alone, and build them around the result again."
        ) from error
    if copy is not new:
        own = {layer.name for layer in new.layers}
        keeper(new).classes.update({k: dict(known) for k, known in keeper(vit).classes.items() if k not in own})
    return copy


def _rows(model: keras.Model) -> list[int] | str:
    """Return how many rows each output of a model has for two images; or the error that a backend raises."""
    try:
        return [len(x) for x in keras.tree.flatten(called(model, images(model, [0.0, 0.0]), ())[1])]
    except Exception as error:  # each backend's own
        return str(error)


def _around(model: keras.Model, vit: keras.Model, new: keras.Model) -> keras.Model:
    if model is vit:
        return _behind(vit, new)
    if isinstance(model, keras.Sequential) and not model.built:
        model.build(vit.input_shape)
    if not getattr(model, "inputs", None):
        raise ValueError(f"{model.name!r} is a subclass of keras.Model, or not built yet.")
    inner = next(layer for layer in model.layers if vit in flat_layers(layer))
    inside = getattr(inner, "layer", None)
    if isinstance(inner, keras.Model):
        replaced = _around(inner, vit, new)
    elif isinstance(inner, keras.layers.Wrapper) and isinstance(inside, keras.Model):
        options = {name: value for name, value in inner.get_config().items() if name != "layer"}
        replaced = type(inner)(_around(inside, vit, new), **options)
    else:
        raise ValueError(f"The layer {inner.name!r} holds the ViT.")
    old_size, size = (tuple(each.input_shape[1:3]) for each in (alone(vit), new))
    fixed = any(isinstance(layer, RESIZING) for layer in flat_layers(model))

    def config_of(layer):
        config = layer.get_config()
        if isinstance(layer, RESIZING) and None not in size:
            if isinstance(layer, Preprocess) and layer.preprocessing.image_size == old_size:
                config["preprocessing"] = layer.preprocessing.replace(image_size=size).to_dict()
            elif (config.get("height"), config.get("width")) == old_size:
                config["height"], config["width"] = size
        return config

    def resized(x):
        shape = [*x.shape]
        places = [n for n in range(1, len(shape) - 1) if tuple(shape[n : n + 2]) == old_size]
        if places and not fixed:  # the last: the first may be frames
            shape[places[-1] : places[-1] + 2] = size
        return keras.Input(batch_shape=shape, dtype=x.dtype, name=x.name)

    inputs = keras.tree.map_structure(resized, input_structure(model))
    cloned = {inner: replaced}
    copy = keras.models.clone_model(model, input_tensors=inputs, clone_function=_cloning(cloned, config_of))
    del cloned[inner]
    return _with_weights(copy, cloned)


def _behind(vit: keras.Model, new: keras.Model) -> keras.Model:
    """Return the new ViT with copies of the layers that are behind the given one in the same graph."""
    own, cloned = alone(vit), {}
    if own is vit:
        return new
    others = [x for x in vit.inputs if all(x is not each for each in own.inputs)]
    more = {id(x): keras.Input(batch_shape=x.shape, dtype=x.dtype, name=x.name) for x in others}
    inputs = keras.tree.map_structure(lambda x: more.get(id(x), new.input), input_structure(vit))
    outputs = run_rest(vit, {id(last_layer_of(vit).output): new.output, **more}, _cloning(cloned))
    return _with_weights(keras.Model(inputs, outputs, name=vit.name), cloned)


def _cloning(cloned: dict[Any, Any], config_of: Any = lambda layer: layer.get_config()) -> Any:
    """Return a function that makes one clone of each layer, and notes it; operations of `keras.ops` stay."""

    def clone(layer: Any) -> Any:
        if layer not in cloned and isinstance(layer, keras.layers.Layer):
            cloned[layer] = type(layer).from_config(config_of(layer))
        return cloned.get(layer, layer)

    return clone


def _with_weights(copy: keras.Model, cloned: dict[Any, Any]) -> keras.Model:
    for layer, clone in cloned.items():
        clone.set_weights(layer.get_weights())
    return copy
