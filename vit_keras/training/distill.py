"""Distillation: a student learns from labels and from a teacher's outputs for the same images."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from .._internal.validate import is_number, one_of
from ..anatomy import task
from ..anatomy.dry_run import ending
from ..anatomy.inputs import front, preprocessing_of
from ..anatomy.parts import checked, has_vit
from ..backend import replicas
from ..backend.guarded import CheckedModel
from ..backend.keras_internals import policy_of

__all__ = ["Distillation"]

KINDS = {"soft": (0.1, 3.0), "hard": (0.5, 1.0)}
"""The paper's `alpha` and `temperature` for each kind."""


@keras.saving.register_keras_serializable("vit_keras")
class Distillation(CheckedModel):
    """Distillation as in DeiT (arXiv 2012.12877, section 4 and equations 2 and 3).

    The loss is `(1 - alpha) * label_loss + alpha * teacher_loss`. The label loss is the one passed to `compile`. The
    teacher loss of kind `"hard"` is the cross-entropy with the class that the teacher predicts; that of kind `"soft"`
    is the Kullback-Leibler divergence `temperature ** 2 * KL(teacher / temperature, student / temperature)`. (The
    reference code, unlike the paper, also divides the latter by the number of classes.)

    A Vision Transformer with a distillation token (`pooling="token+dist"`) learns the labels with the head of its
    class token and the teacher with the other head. Its predictions, which the metrics see, are the mean of both. Any
    other student has one output for both.

    The dataset is one for training the student, `(images, labels)`. Sample weights, if any, apply to both losses.

    Args:
        student: The classifier to train. It takes the images of the dataset, and returns logits or a softmax.
        teacher: Any functional or sequential Keras model that takes the same images and returns logits or a softmax of
            the same classes. It is frozen, and runs in inference mode. Put layers before a teacher that takes other
            images: `keras.Sequential([keras.layers.Resizing(224, 224), teacher])`.
        kind: `"soft"` or `"hard"`.
        alpha: Weight of the teacher loss, from 0 to 1. `None`: the paper's, 0.1 for `"soft"` and 0.5 for `"hard"`.
        temperature: Temperature of kind `"soft"`. `None`: the paper's, 3.

    Input shape:
        As the student's.

    Output shape:
        A dictionary: `"prediction"`, the student's output; `"label"` and `"teacher"`, the outputs that have the two
        losses.

    Raises:
        TypeError: The student or the teacher is not a Keras model.
        ValueError: Student and teacher do not fit each other, or an argument is out of range.

    Example:
        >>> from vit_keras import vit
        >>> small, large = (vit.build_model(32, 16, n, 16, 2, "tiny", 32, classes=2) for n in (1, 2))
        >>> distillation = Distillation(small, large, kind="hard")
        >>> distillation.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> images, labels = np.zeros((4, 32, 32, 3), "float32"), np.array([0, 1, 0, 1])
        >>> sorted(distillation.fit(images, labels, verbose=0).history)  # `small` is what is trained
        ['loss']
    """

    def __init__(
        self,
        student: Any,
        teacher: Any,
        kind: str = "soft",
        alpha: Any = None,
        temperature: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        usual_alpha, usual_temperature = KINDS[one_of(kind, "kind", KINDS)]
        self.kind = kind
        self.alpha = usual_alpha if alpha is None else alpha
        self.temperature = usual_temperature if temperature is None else temperature
        if not (is_number(self.alpha) and 0 <= self.alpha <= 1):
            raise ValueError(f"alpha must be from 0 to 1. Received: {alpha!r}")
        if not (is_number(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature must be above 0. Received: {temperature!r}")
        _check_fit(student, teacher)
        self.student = student
        self.autocast, self.dtype_policy = False, policy_of(student)  # by which losses are scaled
        self.teacher = teacher
        teacher.trainable = False
        self._heads = keras.Model(student.inputs[0], _outputs(student))
        self.built = True

    def learner(self) -> keras.Model:
        """Return the student."""
        return self.student

    def call(self, images: Any, training: bool | None = None) -> Any:
        return self._heads(images, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool | None = True
    ) -> Any:
        _check_labels(y)
        label_loss = super().compute_loss(x, y, y_pred["label"], sample_weight, training)
        logits = _logits(self.teacher, ops.stop_gradient(self.teacher(x, training=False)))
        losses = self.teacher_loss(logits, y_pred["teacher"])
        if sample_weight is not None:
            losses = losses * ops.reshape(ops.cast(sample_weight, losses.dtype), (-1,))
        return (1 - self.alpha) * label_loss + self.alpha * replicas.share(ops.mean(losses))

    def teacher_loss(self, teacher: Any, student: Any) -> Any:
        """Return the loss of each image, `(batch,)`, from the logits `(batch, classes)` of teacher and student."""
        teacher, student = (ops.cast(x, "float32") for x in (teacher, student))
        if self.kind == "hard":
            return keras.losses.sparse_categorical_crossentropy(ops.argmax(teacher, -1), student, from_logits=True)
        teacher, student = (ops.log_softmax(x / self.temperature, axis=-1) for x in (teacher, student))
        return self.temperature**2 * ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        _check_labels(y)
        return super().compute_metrics(x, y, y_pred["prediction"], sample_weight)

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("student", "teacher", "kind", "alpha", "temperature")}
        return {**super().get_config(), **keras.saving.serialize_keras_object(own)}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        read = keras.saving.deserialize_keras_object
        return cls(**{**config, **{name: read(config[name], custom_objects) for name in ("student", "teacher")}})


def _outputs(student):
    """Return a student's prediction, the output that learns the labels, and the logits that learn the teacher's."""
    config = getattr(student, "config", None)
    if config is None or config.pooling != "token+dist" or not config.include_top:
        (output,) = student.outputs
        return {"prediction": output, "label": output, "teacher": _logits(student, output)}
    activation = keras.layers.Activation(config.activation, dtype="float32")
    return {
        "prediction": student.output,
        "label": activation(student.get_layer("head").output),
        "teacher": student.get_layer("head_dist").output,
    }


def _logits(model, outputs):
    """Return a classifier's outputs as logits. The logarithm inverts a softmax up to a constant for each image."""
    if ending(model).kind == "probabilities":
        return ops.log(ops.maximum(ops.cast(outputs, "float32"), keras.config.epsilon()))
    return outputs


def _check_labels(labels) -> None:
    if labels is None:
        raise ValueError("Distillation also learns from labels: pass images and labels. Received: images alone")


def _check_fit(student, teacher) -> None:
    checked(teacher)
    shape = getattr(checked(student), "output_shape", None)
    classes = isinstance(shape, tuple) and len(shape) == 2 and shape[1] != 1 and task(student) == "single"
    if not classes or not _softmax_or_logits(student):
        raise ValueError(
            "The student must be a functional or sequential classifier, with one output (batch, classes) of logits or "
            f"a softmax, and two classes or more. Received: {student.name!r} with the output shape {shape}, for the "
            f"task {task(student)!r}"
        )
    if isinstance(teacher, keras.Sequential) and not teacher.built:
        teacher.build((None, *student.input_shape[1:]))
    if not _softmax_or_logits(teacher):
        raise ValueError(f"The teacher must return logits or a softmax, which {teacher.name!r} does not.")
    for side in ("input_shape", "output_shape"):
        own, other = (getattr(model, side, None) for model in (student, teacher))
        if own and other and any(None not in pair and pair[0] != pair[1] for pair in zip(own, other)):
            raise ValueError(
                f"Student and teacher must take the same images and have the same classes. Received: {side} {own} of "
                f"{student.name!r} and {other} of {teacher.name!r}. Put keras.layers.Resizing before a teacher "
                "of another size."
            )
    own, other = map(_normalization, (student, teacher))
    if None not in (own, other) and own != other:
        raise ValueError(
            f"{student.name!r} takes pixels normalized with mean and std {own}, {teacher.name!r} with {other}. Give "
            "the student the teacher's preprocessing, or put a layer before the teacher that converts its pixels."
        )


def _softmax_or_logits(model):
    end = ending(model)
    return end.kind == "logits" or (end.kind == "probabilities" and not end.alone)


def _normalization(model):
    """Return mean and std of a ViT's pixels; `None` for other models, and for layers before the ViT."""
    if not getattr(model, "outputs", None) or not has_vit(model) or front(model):
        return None
    preprocessing = preprocessing_of(model)
    return preprocessing.mean, preprocessing.std
