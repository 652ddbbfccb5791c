"""A model for images and text: two towers with features in the same space."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from .._internal.validate import instance, numbers, one_of
from ..backend import replicas
from ..backend.guarded import CheckedModel
from ..backend.keras_internals import policy_of

__all__ = ["ImageText", "contrastive_loss"]

LOSSES = {"softmax": (np.log(1 / 0.07), None), "sigmoid": (np.log(10.0), -10.0)}
"""The initial logarithm of the temperature, and the initial bias, in CLIP's and SigLIP's papers."""


@keras.saving.register_keras_serializable("vit_keras")
class ImageText(CheckedModel):
    """An image tower and a text tower whose features are compared: CLIP (arXiv 2103.00020) or SigLIP (2303.15343).

    The logits are `exp(logit_scale) * cosine + logit_bias`. `fit` trains the towers to match the texts and images of a
    batch. Freeze one of them (`model.image.trainable = False`) for LiT (arXiv 2111.07991): a frozen tower
    runs in inference mode. The dataset yields `{"image": ..., "text": ...}`; a batch needs no labels.

    Args:
        image: A Keras model from images to features, `(batch, width)`.
        text: A Keras model from tokens to features, `(batch, width)`.
        loss: `"softmax"` (CLIP): the cross-entropy over the batch, from image to text and from text to image.
            `"sigmoid"` (SigLIP): the cross-entropy of each pair independently.
        tokenizer: A `Tokenizer`, for the functions that take texts. It is not saved with the model.
        logit_scale: Initial logarithm of the temperature; `None` for the value in the paper of the loss.
        logit_bias: Initial bias. `None` means no bias with `"softmax"`.

    Attributes:
        image: The image tower.
        text: The text tower.
        tokenizer: The tokenizer, or `None`.

    Input shape:
        `{"image": (n, height, width, channels), "text": (m, tokens)}`

    Output shape:
        `(n, m)`, the logits.

    Raises:
        ValueError: The towers have features of different widths.

    Example:
        >>> from vit_keras import vit
        >>> from vit_keras.text import TextConfig, build_text
        >>> sizes = dict(num_layers=1, hidden_size=16, num_heads=2, mlp_dim=32)
        >>> text = build_text(TextConfig(vocab_size=9, context_length=4, output_size=8, **sizes))
        >>> model = ImageText(vit.build_model(16, 8, 1, 16, 2, "image", 32, classes=8), text, loss="sigmoid")
        >>> model.compile("adam")
        >>> data = {"image": np.zeros((2, 16, 16, 3), "float32"), "text": np.array([[1, 8], [2, 8]], "int32")}
        >>> sorted(model.fit(data, batch_size=2, verbose=0).history)
        ['loss']
    """

    def __init__(
        self,
        image: Any,
        text: Any,
        loss: Any = "softmax",
        *,
        tokenizer: Any = None,
        logit_scale: Any = None,
        logit_bias: Any = None,
        name: str = "image_text",
    ):
        super().__init__(name=name, autocast=False)  # the temperature and the logits are float32; a tower casts itself
        towers = (instance(image, keras.Model, "image"), instance(text, keras.Model, "text"))
        widths = [tuple(tower.output_shape) for tower in towers]
        if len({len(width) for width in widths} | {2}) > 1 or widths[0][1] != widths[1][1]:
            raise ValueError(
                f"Both towers must return features of the same width. Received: {widths[0]} and {widths[1]}"
            )
        usual_scale, usual_bias = LOSSES[one_of(loss, "loss", LOSSES)]
        self.loss_kind = loss
        self.image, self.text, self.tokenizer = image, text, tokenizer
        self.dtype_policy = policy_of(image)  # by which Keras scales the loss
        scale = usual_scale if logit_scale is None else logit_scale
        bias = usual_bias if logit_bias is None else logit_bias
        self.logit_scale = self._number("logit_scale", scale)
        self.logit_bias = None if bias is None else self._number("logit_bias", bias)
        self.built = True

    def _number(self, name, value):
        constant = keras.initializers.Constant(float(value))
        return self.add_weight(shape=(), initializer=constant, name=name, dtype="float32")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        image, text = (
            _unit(tower(inputs[name], training=bool(training) and bool(tower.trainable)))
            for name, tower in (("image", self.image), ("text", self.text))
        )
        return self.logits(image, text)

    def logits(self, image: Any, text: Any) -> Any:
        """Return the logits, `(n, m)`, of features of length 1, `(n, width)` and `(m, width)`."""
        logits = ops.exp(ops.convert_to_tensor(self.logit_scale)) * ops.matmul(image, ops.transpose(text))
        return logits if self.logit_bias is None else logits + self.logit_bias

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool | None = True
    ) -> Any:
        return replicas.share(contrastive_loss(y_pred, self.loss_kind))

    def get_config(self) -> dict[str, Any]:
        towers = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in ("image", "text")}
        bias = None if self.logit_bias is None else 0.0  # the values are weights
        return {"name": self.name, **towers, "loss": self.loss_kind, "logit_bias": bias}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        towers = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects) for name in ("image", "text")
        }
        return cls(**{**config, **towers})


def contrastive_loss(logits: Any, kind: str = "softmax") -> Any:
    """Return the loss of a batch in which image n matches text n."""
    one_of(kind, "kind", LOSSES)
    if len(getattr(logits, "shape", ())) != 2:
        numbers(logits, "logits", axes=2)
    logits = ops.cast(logits, "float32")
    same = ops.eye(ops.shape(logits)[0], dtype="float32")
    if kind == "sigmoid":
        return -ops.mean(ops.sum(ops.log_sigmoid((2 * same - 1) * logits), axis=-1))
    by_image, by_text = (ops.sum(same * ops.log_softmax(logits, axis=axis)) for axis in (1, 0))
    return -(by_image + by_text) / (2 * ops.cast(ops.shape(logits)[0], "float32"))


def _unit(features):
    """Return features of length 1, in float32."""
    return ops.normalize(ops.cast(features, "float32"), axis=-1)
