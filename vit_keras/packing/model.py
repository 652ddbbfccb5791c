"""The model for packed sequences, which applies the layers of a Vision Transformer to images of several sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import keras
import numpy as np
from keras import layers, ops

from .._internal.validate import instance, positive_integer
from ..anatomy.inputs import entering
from ..anatomy.parts import HEADS, find_vit, learner
from ..backend.guarded import CheckedModel
from ..config import ViTConfig
from ..labels import check_class_numbers
from ..preprocess.images import read
from .arranging import Packing, arrange, batches_of, fitting_size, grids_and_tokens

__all__ = ["PackedBatches", "PackedTransformer", "pack"]


def pack(model: keras.Model, tokens: int = 512, images: int = 8) -> PackedTransformer:
    """Return a model with the same layers and weights that takes images of several sizes in each sequence.

    Each image attends only to itself, and has the positions of its own grid of patches. So the outputs are the same as
    for one image at a time with `vit_keras.resize(model, size)`. An image with values that are not finite has outputs
    of NaN, and does not change the outputs of other images.

    Short sequences waste less on attention, and long sequences waste less on padding. In `docs/packing.md`, one to two
    times the tokens of the largest image was the fastest length.

    Args:
        model: A Vision Transformer of this package, without layers around it. The packed model shares its weights:
            training one trains the other. To save the weights, save this model.
        tokens: Length of a sequence: at least the number of tokens of the largest image.
        images: Maximum number of images in a sequence. With 1, each image is padded (NaFlex).

    Returns:
        A `PackedTransformer`.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: The model has layers before or after its ViT, or it needs all patches of one grid: a hybrid, a
            Mixer, or a model with relative positions, merged tokens or dropped patches.

    Example:
        >>> from vit_keras import vit
        >>> packed = pack(vit.build_model(64, 8, 2, 64, 2, "tiny", 128, classes=10), tokens=128)
        >>> packed.predict_images([np.zeros((64, 32, 3), "float32"), np.zeros((16, 80, 3), "float32")]).shape
        (2, 10)
    """
    vit = find_vit(model)
    for outer, inner, _ in entering(learner(model), vit):
        parts = [part for part in getattr(outer, "operations", outer.layers) if not isinstance(part, layers.InputLayer)]
        if parts != [inner] or not isinstance(inner, keras.Model):
            raise ValueError(
                f"The model {model.name!r} has layers around the Vision Transformer {vit.name!r}, which packing would "
                "leave out. Pass the Vision Transformer: anatomy.find_vit(model) returns it."
            )
    return PackedTransformer(vit, tokens, images, name=f"{model.name}_packed")


@keras.saving.register_keras_serializable("vit_keras")
class PackedTransformer(CheckedModel):
    """A Vision Transformer for packed sequences, returned by `pack`.

    Args:
        vit: The Vision Transformer with the layers.
        tokens: Length of a sequence.
        images: Maximum number of images in a sequence; see `pack`.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: `Packing.inputs`, from `arrange`.

    Output shape:
        `(rows, images, classes)`, or `(rows, images, hidden_size)` without a head; of a model with `pooling=None`,
        `(rows, tokens, hidden_size)`.

    Example:
        >>> from vit_keras import vit
        >>> packed = pack(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2), 16)
        >>> isinstance(packed, PackedTransformer), packed.tokens
        (True, 16)
    """

    takes = "packed sequences of patches"  # what `anatomy.image_shape` says where images are needed

    def __init__(self, vit: Any, tokens: int = 512, images: int = 8, **kwargs: Any):
        _check(instance(vit, keras.Model, "vit"))
        super().__init__(**{"dtype": vit.get_layer("embedding").dtype_policy, **kwargs})
        self.vit = vit
        self.tokens = positive_integer(tokens, "tokens")
        self.images = positive_integer(images, "images")
        self.built = True  # its layers are those of the Vision Transformer

    @property
    def config(self) -> ViTConfig:
        """The configuration of the Vision Transformer."""
        return self.vit.config

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        _check_packed(inputs)
        config, there = self.config, inputs["images"]
        # A NaN would spread: the attention multiplies the tokens that an image must not see by 0, and 0 * NaN is NaN.
        patches, lost = _bounded(ops.convert_to_tensor(inputs["patches"]))
        x = self._embed({**inputs, "patches": patches}, training)
        beside = self._rotations(inputs)
        same = ops.equal(there[:, :, None], there[:, None, :])  # padding attends to padding
        if config.pre_norm:
            x = self.vit.get_layer("Transformer_norm_pre")(x)
        for n in range(config.num_layers):
            block = self.vit.get_layer(f"Transformer_encoderblock_{n}")
            rope = {} if beside is None else {"rope": beside[n]}
            if n == 0 or self.compute_dtype == "float16":  # which overflows within a model, too
                x, lost = _bounded(x, lost)
            x = block(x, training=training, attention_mask=same, **rope)
        x, lost = _bounded(x, lost)
        if config.final_norm == "tokens":
            x = self.vit.get_layer("Transformer_encoder_norm")(x)
        of_image = same if config.pooling is None else self._members(inputs)
        x: Any = x if config.pooling is None else self._classify(self._pool(x, inputs, training))
        lost = ops.any(ops.logical_and(of_image, lost[:, None]), axis=-1, keepdims=True)
        return ops.where(lost, ops.cast(math.nan, x.dtype), x)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        _check_packed(x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        _check_packed(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        _check_packed(x)
        return super().predict(x, *args, **kwargs)

    def _members(self, inputs):
        """Return the mask of each image's tokens, booleans `(rows, images, tokens)`."""
        return ops.equal(inputs["images"][:, None], ops.arange(self.images, dtype="int32")[None, :, None])

    def _embed(self, inputs, training):
        """Embed each patch as an image of one patch (compare `build.embed_patches`, `add_positions`)."""
        config, layer, dtype = self.config, self.vit.get_layer, self.compute_dtype
        x = ops.reshape(inputs["patches"], (-1, *config.patch_size, config.channels))
        x = layer("patch_norm")(x) if config.patch_norm else x
        x = ops.reshape(ops.cast(x, dtype), (-1, math.prod(x.shape[1:])))
        x = ops.matmul(x, ops.reshape(ops.cast(layer("embedding").kernel, dtype), (x.shape[-1], -1)))
        x = x + ops.cast(layer("embedding").bias, dtype) if config.patch_bias else x
        x = layer("embedding_norm")(x) if config.patch_norm else x
        x, prefix = ops.reshape(x, (-1, self.tokens, config.hidden_size)), self._prefix()
        positions, placed = self.vit.get_layer("Transformer_posembed_input") if config.position else None, 0
        if positions is not None and config.position == "learned":
            table, placed = ops.cast(positions.pe[0], dtype), config.position_prefix_tokens
            x = x + self._resampled(table[placed:], ops.cast(inputs["table"], dtype))
            prefix = [tokens + table[n : n + 1] if n < placed else tokens for n, tokens in enumerate(prefix)]
        elif positions is not None and config.position == "sincos2d":
            x = positions(x, patches=inputs["places"], training=training)
        if prefix:
            roles = ops.cast(inputs["roles"], dtype)
            x = x * (1 - ops.sum(roles, axis=-1, keepdims=True)) + ops.matmul(roles, ops.concatenate(prefix))
        if positions is not None and config.position == "learned":
            x = positions.dropout_layer(x, training=training)
        return x

    def _prefix(self):
        """Return the tokens before the patches, `(1, hidden_size)` each."""
        config, layer = self.config, self.vit.get_layer
        tokens = [layer("class_token").cls] if config.has_class_token else []
        tokens += [layer("distillation_token").cls] if config.distillation_token else []
        registers = layer("register_tokens").registers[0] if config.registers else ()
        tokens = [token[0] for token in tokens] + [registers[n : n + 1] for n in range(config.registers)]
        return [ops.cast(token, self.compute_dtype) for token in tokens]

    def _resampled(self, table, shares):
        """Return the positions of patches, weighting each entry of the table by its row and its column."""
        down, across = cast("tuple[int, int]", self.config.grid or self.config.position_grid)  # as `arrange` has it
        rows = ops.matmul(shares[..., :down], ops.reshape(table, (down, -1)))
        rows = ops.reshape(rows, (-1, self.tokens, across, self.config.hidden_size))
        return ops.sum(rows * ops.expand_dims(shares[..., down:], -1), axis=2)

    def _rotations(self, inputs):
        """Return the rotary positions of each block; only patches are rotated."""
        if self.config.rope_theta is None:
            return None
        rope = self.vit.get_layer("rotary_positions")(inputs["places"])
        rope = rope if isinstance(rope, list) else [rope] * self.config.num_layers
        still = ops.sum(inputs["roles"], axis=-1)[:, None, :, None]
        return [ops.stack([each[0] * (1 - still), each[1] * (1 - still) + still]) for each in rope]

    def _pool(self, x, inputs, training):
        """Return the inputs of the head for each image, `(rows, images, ...)`, as a list (compare `build.pool`)."""
        config, members, starts = self.config, self._members(inputs), inputs["starts"]

        def token(index):
            return ops.take_along_axis(x, starts[..., None] + index, axis=1)

        def mean(tokens):
            return ops.matmul(tokens / ops.maximum(ops.sum(tokens, axis=-1, keepdims=True), 1), x)

        everywhere = ops.cast(members, x.dtype)
        patches = everywhere * (1 - ops.cast(ops.sum(inputs["roles"], axis=-1), x.dtype)[:, None])
        if config.pooling == "map":
            asked = members if config.map_prefix else ops.greater(patches, 0)
            seen = ops.logical_or(asked, ops.logical_not(ops.any(asked, axis=-1, keepdims=True)))
            pooled = [self.vit.get_layer("MAPHead_0")(x, training=training, attention_mask=seen)]
        else:
            pools: dict[str | None, Any] = {
                "token": lambda: [token(0)],
                "token+dist": lambda: [token(0), token(1)],
                "token+gap": lambda: [ops.concatenate([token(0), mean(patches)], axis=-1)],
                "gap": lambda: [mean(patches)],
                "all": lambda: [mean(everywhere)],
            }
            pooled = pools[config.pooling]()
        return [self.vit.get_layer("fc_norm")(x) for x in pooled] if config.final_norm == "pooled" else pooled

    def _classify(self, pooled):
        """Turn pooled features into logits or features (compare `build.classify`)."""
        config, layer = self.config, self.vit.get_layer
        if config.representation_size is not None:
            pooled = [layer("pre_logits")(pooled[0])]
        outputs = [layer(name)(x) for name, x in zip(HEADS, pooled)] if config.include_top else pooled
        output = sum(outputs[1:], outputs[0]) / len(outputs) if outputs[1:] else outputs[0]
        named = [each for each in self.vit.layers if each.name == "activation"]
        return named[0](output) if named else output

    def arrange(self, images: Sequence[np.ndarray], rows: int | None = None) -> Packing:
        """Pack images of any sizes into sequences; see `vit_keras.packing.arrange`.

        Args:
            images: Arrays `(height, width, channels)`, as the model takes them (`preprocess` makes them).
            rows: Round the number of sequences up to a multiple of this; the same number is compiled only once.

        Raises:
            ValueError: An image has a wrong shape, or more tokens than a sequence.
        """
        return arrange(images, self.config, self.tokens, self.images, rows)

    def predict_images(self, images: Sequence[np.ndarray], rows: int = 8) -> np.ndarray | list[np.ndarray]:
        """Return the output for each image, in their order.

        Args:
            images: Arrays `(height, width, channels)`, as the model takes them.
            rows: Sequences in a batch.

        Returns:
            `(images, classes)`; of a model with `pooling=None`, a list of `(tokens of the image, hidden_size)`.

        Raises:
            ValueError: An image has another shape, or more tokens than a sequence.
        """
        packing = self.arrange(images, positive_integer(rows, "rows"))
        return packing.unpack(self.predict(packing.inputs, batch_size=rows, verbose=0))

    def preprocess(self, pictures: Any, patches: int | None = None) -> list[np.ndarray]:
        """Read images and prepare each as input of the model, with its own aspect ratio and as many patches as allowed.

        Args:
            pictures: One image, or a list of images: anything that `vit_keras.utils.read` reads.
            patches: Maximum number of patches of an image. `None` allows as many as the model has positions for, or as
                many as fit into a sequence if this is smaller.

        Returns:
            A float32 array `(height, width, channels)` for each image; see `vit_keras.packing.fitting_size`.

        Raises:
            FileNotFoundError: An image does not exist.
            ValueError: An image cannot be read.
        """
        config, most = self.config, self.tokens - self.config.prefix_tokens
        table = config.grid or config.position_grid
        patches = min(most, math.prod(table) if table else most) if patches is None else patches
        whole = self.vit.preprocessing.replace(crop=None)
        pictures = pictures if isinstance(pictures, (list, tuple)) else [pictures]
        pixels = (read(picture, None) for picture in pictures)  # one at a time: photographs are large
        return [whole(x, fitting_size(x.shape[:2], config.stride, patches))[0] for x in pixels]

    def batches(
        self, images: Sequence[np.ndarray], targets: Sequence[Any], rows: int = 8, *, seed: int | None = None
    ) -> PackedBatches:
        """Return batches of one shape with images and targets, for `fit`.

        Args:
            images: Arrays `(height, width, channels)`, as the model takes them.
            targets: One for each image: class numbers, or arrays of one shape.
            rows: Sequences in a batch.
            seed: Shuffles the images once, and the batches before each epoch; `None` leaves their order.

        Raises:
            ValueError: An image has another shape, or more tokens than a sequence; there are not as many targets; or
                they are not numbers, or not class numbers of the model.
        """
        return PackedBatches(self, images, targets, positive_integer(rows, "rows"), seed)

    def get_config(self) -> dict[str, Any]:
        vit = keras.saving.serialize_keras_object(self.vit)
        return {**super().get_config(), "vit": vit, "tokens": self.tokens, "images": self.images}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        vit = keras.saving.deserialize_keras_object(config["vit"], custom_objects)
        return cls(**{**config, "vit": vit})


class PackedBatches(keras.utils.PyDataset):
    """Packed images, targets and sample weights for `fit`. Made by `PackedTransformer.batches`.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model((32, 32), 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> images = [np.zeros((32, 32, 3), "float32"), np.zeros((16, 48, 3), "float32")]
        >>> batches = pack(tiny, 16).batches(images, [0, 1], rows=1)
        >>> len(batches)
        1
    """

    images: Any
    model: Any
    rows: Any
    targets: np.ndarray

    def __init__(self, model: Any, images: Any, targets: Any, rows: Any, seed: int | None):
        super().__init__()
        if len(images) != len(targets):
            raise ValueError(f"There must be a target for each image. Received: {len(images)} and {len(targets)}")
        self.model, self.images, self.targets, self.rows = model, images, np.asarray(targets), rows
        if self.targets.dtype.kind not in "biuf":
            raise ValueError(f"Targets must be numbers, such as class numbers. Received: {self.targets[:3].tolist()}")
        classes = model.config.classes if model.config.include_top else None
        if self.targets.ndim == 1 and classes == 1:
            self.targets = self.targets[:, None]  # as Keras does for a batch of images
        elif self.targets.ndim == 1 and classes is not None:
            check_class_numbers(self.targets, classes)
        self.shuffle: np.random.Generator | None = None if seed is None else np.random.default_rng(seed)
        order = range(len(images)) if self.shuffle is None else self.shuffle.permutation(len(images)).tolist()
        _, counts = grids_and_tokens(images, model.config, model.tokens)
        self.groups: list[list[int]] = batches_of(counts, model.tokens, model.images, rows, order)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: Any) -> Any:
        group, model = self.groups[number], self.model
        images = [self.images[n] for n in group]
        # Placed as `batches_of` did. Another order, even with the largest first, may need more rows.
        packing = arrange(images, model.config, model.tokens, model.images, self.rows, largest_first=False)
        return packing.inputs, *packing.spread(self.targets[group])

    def on_epoch_end(self) -> None:
        if self.shuffle is not None:
            self.shuffle.shuffle(self.groups)


_HUGE = 1e18
"""Larger values overflow when a layer normalization squares them; in float16 this is infinity."""


def _bounded(x: Any, lost: Any = None) -> tuple[Any, Any]:
    """Return tokens `(rows, tokens, ...)` with zeros for NaN and huge values, and the mask of replaced tokens."""
    kept = ops.all(ops.abs(x) < ops.cast(_HUGE, x.dtype), axis=tuple(range(2, len(x.shape))), keepdims=True)
    gone = ops.logical_not(ops.reshape(kept, ops.shape(x)[:2]))
    return ops.where(kept, x, ops.zeros((), x.dtype)), gone if lost is None else ops.logical_or(lost, gone)


def _check_packed(inputs: Any) -> None:
    """Refuse images where a packed model takes sequences."""
    if isinstance(inputs, (list, tuple)) or hasattr(inputs, "shape"):
        raise ValueError(
            "A packed model takes sequences, not images. Call predict_images(images), or pass batches(images, targets) "
            "to fit and evaluate. arrange(images).inputs are the sequences alone."
        )


def _check(vit: keras.Model) -> None:
    config = getattr(vit, "config", None)
    if config is None:
        raise ValueError(
            f"The model {vit.name!r} has lost its configuration, which packing needs. Build the model again."
        )
    usual = {"resnet": (None,), "tokens_mlp_dim": (None,), "relative_positions": (False,), "patch_dropout": (0,)}
    usual["merge_tokens"] = (0, (0,) * config.num_layers)
    found = [field for field, values in usual.items() if getattr(config, field) not in values]
    if found:
        raise ValueError(
            f"Images cannot be packed for the model {vit.name!r}: {', '.join(found)} needs the whole grid of one image."
        )
