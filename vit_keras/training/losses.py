"""The usual loss and accuracy of a model, for labels that are class numbers, or distributions over classes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from .. import anatomy
from ..anatomy.dry_run import ending
from ..anatomy.outputs import NUMBERS

__all__ = ["CrossEntropy"]


@keras.saving.register_keras_serializable("vit_keras")
class CrossEntropy(keras.losses.Loss):
    """Cross-entropy over classes, of labels that are numbers `(batch,)` or distributions `(batch, classes)`.

    So a model can be trained on mixed images (Mixup, CutMix) and validated on plain ones, both with label smoothing.

    Args:
        from_logits: Whether the model returns logits, and not probabilities.
        label_smoothing: Probability that is spread from the true class over all classes. With `binary`, half of it goes
            to each of the two answers for a class: 0.1 makes labels of 0.05 and 0.95.
        binary: Whether each class has a binary cross-entropy of its own, of which the mean is taken; for images of
            several classes.
        prior: How frequent each class is, such as `data.counts`. The logarithm of its share is added to the logits
            while the model learns (logit adjustment, arXiv 2007.07314), so the model does not learn how frequent each
            class is. `None`: nothing is added.

    Raises:
        ValueError: There is a prior, and the cross-entropy is binary or a class has no share.

    Example:
        >>> loss = CrossEntropy(from_logits=True)
        >>> logits = np.array([[0.0, 0.0]])
        >>> round(float(loss(np.array([1]), logits)), 4), round(float(loss(np.array([[0.0, 1.0]]), logits)), 4)
        (0.6931, 0.6931)
    """

    takes_class_numbers = True

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        binary: bool = False,
        reduction: str = "sum_over_batch_size",
        name: str = "cross_entropy",
        prior: Any = None,
        **options: Any,
    ):
        super().__init__(name=name, reduction=reduction, **options)
        self.binary = binary
        self.from_logits = from_logits
        self.label_smoothing = label_smoothing
        self.prior = None if prior is None else [float(share) for share in prior]
        if self.prior is not None and (binary or min(self.prior) <= 0):
            what = "a binary cross-entropy" if binary else f"the prior {self.prior}"
            raise ValueError(f"A prior is a share above 0 of each class of several. Received: {what}")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        classes = y_pred.shape[-1]
        if not _are_distributions(y_true, y_pred):
            y_true = ops.one_hot(ops.cast(ops.reshape(y_true, ops.shape(y_pred)[:-1]), "int32"), classes)
        from_logits = self.from_logits
        if self.prior is not None:
            shares = np.array(self.prior) / sum(self.prior)
            logits = y_pred if from_logits else ops.log(ops.maximum(y_pred, keras.config.epsilon()))
            y_pred, from_logits = logits + ops.cast(np.log(shares), logits.dtype), True
        loss = keras.losses.binary_crossentropy if self.binary else keras.losses.categorical_crossentropy
        return loss(y_true, y_pred, from_logits, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        own = ("from_logits", "label_smoothing", "binary", "prior")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}


@keras.saving.register_keras_serializable("vit_keras")
def accuracy(y_true: Any, y_pred: Any) -> Any:
    """Return whether the predicted class is the true one, for both kinds of labels that `CrossEntropy` takes."""
    if _are_distributions(y_true, y_pred):
        return keras.metrics.categorical_accuracy(y_true, y_pred)
    return keras.metrics.sparse_categorical_accuracy(y_true, y_pred)


def _are_distributions(y_true, y_pred):
    return len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == y_pred.shape[-1]


def loss_and_accuracy(
    model: keras.Model, labels: Any, binary: bool = False, label_smoothing: float = 0.0
) -> tuple[Any, Any]:
    """Return the loss that fits a model's task, outputs and labels, and the accuracy; numbers have none."""
    try:
        end, task = ending(model), anatomy.task(model)
    except ValueError as error:
        raise ValueError(f"{error} Pass loss=.") from None
    if end.outputs != 1:
        raise ValueError(f"The model {model.name!r} has {end.outputs} outputs. Pass loss=, with one for each.")
    if isinstance(labels, (dict, list, tuple)):
        kind = type(labels).__name__
        raise ValueError(f"Labels must be an array for a model with one output. Received: a {kind}. Or pass loss=.")
    if task in NUMBERS:
        return keras.losses.MeanSquaredError(), None
    if end.kind not in ("logits", "probabilities"):
        returns = "features, and no head" if end.kind == "features" else "neither logits nor probabilities"
        raise ValueError(f"There is no usual loss for the model {model.name!r}, which returns {returns}. Pass loss=.")
    classes, logits = end.width, end.kind == "logits"
    options = {"from_logits": logits, "label_smoothing": label_smoothing}
    per_output = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0 if logits else 0.5)
    if classes == 1:
        return keras.losses.BinaryCrossentropy(**options), per_output
    several = labels is not None and labels.shape[1:] == (classes,) and np.abs(labels.sum(1) - 1).max() > 1e-3
    several = bool(several) or task == "multi"
    loss = CrossEntropy(binary=binary or several or (not logits and end.alone), **options)
    return loss, per_output if several else accuracy
