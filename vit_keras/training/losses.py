"""A loss and an accuracy for labels that are class numbers, or distributions over classes."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

__all__ = ["CrossEntropy", "accuracy"]


@keras.saving.register_keras_serializable("vit_keras")
class CrossEntropy(keras.losses.Loss):
    """Cross-entropy over classes, of labels that are numbers `(batch,)` or distributions `(batch, classes)`.

    So a model can be trained on mixed images (Mixup, CutMix) and validated on plain ones, both with label smoothing.

    Args:
        from_logits: Whether the model returns logits, and not probabilities.
        label_smoothing: Probability that is spread from the true class over all classes.
        binary: Whether each class has a binary cross-entropy of its own, of which the mean is taken; for images of
            several classes.

    Example:
        >>> loss = CrossEntropy(from_logits=True)
        >>> logits = np.array([[0.0, 0.0]])
        >>> round(float(loss(np.array([1]), logits)), 4), round(float(loss(np.array([[0.0, 1.0]]), logits)), 4)
        (0.6931, 0.6931)
    """

    def __init__(
        self,
        from_logits=False,
        label_smoothing=0.0,
        binary=False,
        reduction="sum_over_batch_size",
        name="cross_entropy",
        **options,
    ):
        super().__init__(name=name, reduction=reduction, **options)
        self.binary = binary
        self.from_logits = from_logits
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        classes = y_pred.shape[-1]
        if not _are_distributions(y_true, y_pred):
            y_true = ops.one_hot(ops.cast(ops.reshape(y_true, ops.shape(y_pred)[:-1]), "int32"), classes)
        loss = keras.losses.binary_crossentropy if self.binary else keras.losses.categorical_crossentropy
        return loss(y_true, y_pred, self.from_logits, self.label_smoothing)

    def get_config(self):
        own = ("from_logits", "label_smoothing", "binary")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}


@keras.saving.register_keras_serializable("vit_keras")
def accuracy(y_true: Any, y_pred: Any) -> Any:
    """Return whether the predicted class is the true one, for both kinds of labels that `CrossEntropy` takes."""
    if _are_distributions(y_true, y_pred):
        return keras.metrics.categorical_accuracy(y_true, y_pred)
    return keras.metrics.sparse_categorical_accuracy(y_true, y_pred)


def _are_distributions(y_true, y_pred):
    return len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == y_pred.shape[-1]
