"""Distillation: a student learns from labels and from what a teacher says of the same pictures.

>>> from vit_keras import vit
>>> teacher = vit.build_model(32, 8, 2, 64, 2, "teacher", 128, classes=10)
>>> student = vit.build_model(32, 8, 2, 32, 2, "student", 64, classes=10, distillation_token=True, pooling="token+dist")
>>> training = Distillation(student, teacher, kind="hard")
>>> training.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
>>> history = training.fit(np.zeros((4, 32, 32, 3), "float32"), np.arange(4), verbose=0)  # trains `student`
"""

from __future__ import annotations

import keras
from keras import ops

from .checks import last_activation

KINDS = {"soft": (0.9, 3.0), "hard": (0.5, 1.0)}
"""The paper's weight of the teacher and temperature of each kind."""


@keras.saving.register_keras_serializable("vit_keras")
class Distillation(keras.Model):
    """Distillation as in DeiT (arXiv 2012.12877, section 4 and equations 2 and 3).

    The loss is `(1 - alpha) * label_loss + alpha * teacher_loss`. The first is what was given to `compile`. The second is, in kind
    `"hard"`, the cross-entropy with the teacher's first choice; in kind `"soft"`, the Kullback-Leibler divergence
    `temperature ** 2 * KL(teacher / temperature, student / temperature)`. (The reference code, though not the paper, divides
    the latter by the number of classes too.)

    A Vision Transformer with a distillation token (`pooling="token+dist"`) learns the labels with the head of its class token
    and the teacher with the other; its predictions, which the metrics see, are the mean of both. Any other student has one
    output for both.

    The data set is one for training the student: `(images, labels)`, and sample weights, if any, which weigh both losses. Without
    a teacher the labels are dictionaries, `{"label": ..., "teacher": ...}`, of which the second are a teacher's logits of
    the same pictures.

    Args:
        student: The classifier to train, which takes what the data set yields and returns logits or a softmax.
        teacher: Any Keras model that takes the same images and returns as many logits, or a softmax; it is frozen and runs as in
            inference. `None`: its logits come with the labels. One that takes other pixels goes behind layers that make them:
            `keras.Sequential([keras.layers.Resizing(224, 224), teacher])`.
        kind: `"soft"` or `"hard"`.
        alpha: Weight of the teacher, from 0 to 1. `None`: the paper's: 0.9 of a soft one, 0.5 of a hard one.
        temperature: Of a soft one. `None`: the paper's, 3.

    Input shape:
        As the student's.

    Output shape:
        A dictionary: `"prediction"`, as the student's output; `"label"` and `"teacher"`, of which the losses are computed.

    Raises:
        TypeError: The student or the teacher is no Keras model.
        ValueError: Student and teacher do not fit together, or an argument is out of range.
    """

    def __init__(self, student, teacher=None, kind="soft", alpha=None, temperature=None, **kwargs):
        super().__init__(**kwargs)
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}. Received: {kind!r}")
        usual_alpha, usual_temperature = KINDS[kind]
        self.kind = kind
        self.alpha = usual_alpha if alpha is None else alpha
        self.temperature = usual_temperature if temperature is None else temperature
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1. Received: {alpha!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0. Received: {temperature!r}")
        _check_fit(student, teacher)
        self.student = student
        self.teacher = teacher
        if teacher is not None:
            teacher.trainable = False
        self._heads = keras.Model(student.inputs[0], _outputs(student))
        self.built = True

    def call(self, images, training=None):
        return self._heads(images, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        label, teacher_logits = self._teach(x, y)
        label_loss = super().compute_loss(x, label, y_pred["label"], sample_weight, training)
        losses = self.teacher_loss(teacher_logits, y_pred["teacher"])
        if sample_weight is not None:
            losses = losses * ops.reshape(ops.cast(sample_weight, losses.dtype), (-1,))
        return (1 - self.alpha) * label_loss + self.alpha * ops.mean(losses)

    def _teach(self, images, labels):
        """The true labels, and the teacher's logits."""
        if self.teacher is None:
            return self._label(labels), labels["teacher"]
        outputs = ops.stop_gradient(self.teacher(images, training=False))
        return labels, _logits(self.teacher, outputs)

    def _label(self, labels):
        if self.teacher is not None:
            return labels
        if not isinstance(labels, dict) or not {"label", "teacher"} <= set(labels):
            found = list(labels) if isinstance(labels, dict) else type(labels).__name__
            raise ValueError(
                'Without a teacher the data set must yield (images, {"label": ..., "teacher": logits}). '
                f"Received labels: {found}"
            )
        return labels["label"]

    def teacher_loss(self, teacher, student):
        """The loss of each picture, `(batch,)`, from the teacher's and the student's logits, `(batch, classes)` each."""
        teacher, student = (ops.cast(x, "float32") for x in (teacher, student))
        if self.kind == "hard":
            return keras.losses.sparse_categorical_crossentropy(ops.argmax(teacher, -1), student, from_logits=True)
        teacher, student = (ops.log_softmax(x / self.temperature, axis=-1) for x in (teacher, student))
        return self.temperature**2 * ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, self._label(y), y_pred["prediction"], sample_weight)

    def get_config(self):
        models = {
            name: model and keras.saving.serialize_keras_object(model)
            for name, model in (("student", self.student), ("teacher", self.teacher))
        }
        options = {name: getattr(self, name) for name in ("kind", "alpha", "temperature")}
        return {**super().get_config(), **models, **options}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        models = {
            name: config[name] and keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("student", "teacher")
        }
        return cls(**{**config, **models})


def _outputs(student):
    """What a student is judged by: its prediction, the output that learns the labels, and the logits that learn the teacher's."""
    config = getattr(student, "config", None)
    if config is None or config.pooling != "token+dist" or not config.include_top:
        logits = _logits(student, student.output)
        return {"prediction": student.output, "label": student.output, "teacher": logits}
    activation = keras.layers.Activation(config.activation, dtype="float32")
    return {
        "prediction": student.output,
        "label": activation(student.get_layer("head").output),
        "teacher": student.get_layer("head_dist").output,
    }


def _logits(model, outputs):
    """A classifier's outputs as logits: the logarithm undoes a softmax, up to a constant of each picture."""
    if last_activation(model) == "softmax":
        return ops.log(ops.maximum(ops.cast(outputs, "float32"), keras.config.epsilon()))
    return outputs


def _check_fit(student, teacher) -> None:
    for role, model in (("student", student), ("teacher", teacher)):
        if not isinstance(model, keras.Model) and (role == "student" or model is not None):
            raise TypeError(f"The {role} must be a Keras model. Received: {type(model).__name__}")
    shape = getattr(student, "output_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 2 or last_activation(student) == "sigmoid":
        raise ValueError(
            "The student must be a functional or sequential classifier, with one output (batch, classes) of logits or of a "
            f"softmax. Received: {student.name!r} with the output shape {shape}, {last_activation(student)}"
        )
    if teacher is None:
        return
    for side in ("input_shape", "output_shape"):
        own, other = (getattr(model, side, None) for model in (student, teacher))
        if own and other and any(None not in pair and pair[0] != pair[1] for pair in zip(own, other)):
            raise ValueError(
                f"Student and teacher see the same pictures and name the same classes. Received: {side} {own} of "
                f"{student.name!r} and {other} of {teacher.name!r}. Put keras.layers.Resizing before a teacher of another size."
            )
    pixels = [getattr(model, "preprocessing", None) for model in (student, teacher)]
    if None not in pixels and any(getattr(pixels[0], f) != getattr(pixels[1], f) for f in ("mean", "std")):
        raise ValueError(
            f"{student.name!r} takes pixels of other mean and std than {teacher.name!r}: {pixels[0]} and {pixels[1]}. Give the student "
            "the teacher's preprocessing, or put a layer before the teacher that makes its pixels of the student's."
        )
