"""Distillation: its losses against NumPy, who learns what, and a teacher that need not be there."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from support import tiny_model

from vit_keras.anatomy import blocks
from vit_keras.anatomy.inputs import preprocessing_of
from vit_keras.export import export
from vit_keras.opening import as_model
from vit_keras.preprocess import Preprocessing
from vit_keras.training import MaskedPatchPrediction, calibrate, embed
from vit_keras.training.distill import Distillation
from vit_keras.training.freeze import head_layers, train_only
from vit_keras.visualize import attention_map

CLASSES = 3
TWO_HEADS = {"distillation_token": True, "pooling": "token+dist"}


tiny = functools.partial(tiny_model, image_size=8, patch_size=4, classes=CLASSES)


def photos(n=4):
    return np.random.default_rng(0).uniform(-1, 1, (n, 8, 8, 3)).astype("float32")


LABELS = np.array([0, 2, 1, 1])


def a_teacher(activation="linear", seed=0):
    rng = np.random.default_rng(seed)
    dense = keras.layers.Dense(CLASSES, activation=activation)
    teacher = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), dense])
    dense.set_weights([rng.normal(size=w.shape) * 0.3 for w in dense.get_weights()])
    return teacher


def compiled(student, teacher, optimizer=None, **options):
    training = Distillation(student, teacher, **options)
    from_logits = student.layers[-1].get_config().get("activation", "linear") != "softmax"
    eager = keras.backend.backend() != "jax"  # where a trace would take longer than these few steps
    training.compile(
        optimizer or keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        metrics=["accuracy"],
        run_eagerly=eager,
        jit_compile=False if eager else "auto",
    )
    return training


def log_softmax(x):
    x = np.asarray(x, "float64")
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def deit_loss(student_label, student_teacher, teacher, labels, kind, alpha, temperature, sample_weight):
    """Equations 2 and 3 of arXiv 2012.12877, image by image."""
    total = 0.0
    for n, label in enumerate(labels):
        label_loss = -log_softmax(student_label[n])[label]
        if kind == "hard":
            teacher_loss = -log_softmax(student_teacher[n])[np.argmax(teacher[n])]
        else:
            p, q = log_softmax(teacher[n] / temperature), log_softmax(student_teacher[n] / temperature)
            teacher_loss = temperature**2 * np.sum(np.exp(p) * (p - q))
        total += sample_weight[n] * ((1 - alpha) * label_loss + alpha * teacher_loss)
    return total / len(labels)


@pytest.mark.core
@pytest.mark.parametrize("kind, alpha, temperature", [("soft", 0.1, 3.0), ("soft", 0.3, 2.0), ("hard", 0.5, 1.0)])
def test_the_loss_is_that_of_the_paper(kind, alpha, temperature):
    rng = np.random.default_rng(1)
    label, teacher_head = rng.normal(size=(2, 4, CLASSES)).astype("float32") * 2
    sample_weight = np.array([1.0, 0.5, 0.0, 2.0], "float32")
    teacher = a_teacher()
    training = compiled(tiny(), teacher, kind=kind, alpha=alpha, temperature=temperature)
    outputs = {"label": ops.convert_to_tensor(label), "teacher": ops.convert_to_tensor(teacher_head)}
    given = (ops.convert_to_tensor(each) for each in (photos(), LABELS))
    loss = training.compute_loss(*given, outputs, ops.convert_to_tensor(sample_weight))
    logits = ops.convert_to_numpy(teacher(photos()))
    expected = deit_loss(label, teacher_head, logits, LABELS, kind, alpha, temperature, sample_weight)
    np.testing.assert_allclose(float(loss), expected, rtol=1e-5)  # a handful of float32 logarithms


@pytest.mark.parametrize("alpha, learns", [(0.0, "head"), (1.0, "head_dist")])
def test_each_head_learns_from_its_own(alpha, learns):
    student = tiny(**TWO_HEADS)
    compiled(student, a_teacher(), kind="hard", alpha=alpha).train_on_batch(photos(), LABELS)
    changed = {n for n in ("head", "head_dist") if np.any(ops.convert_to_numpy(student.get_layer(n).kernel))}
    assert changed == {learns}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="one head", marks=pytest.mark.slow),
        pytest.param(TWO_HEADS, id="two heads", marks=[pytest.mark.core, pytest.mark.compiles_long]),
    ],
)
def test_fit_trains_the_student_alone(options):
    student, teacher = tiny(**options), a_teacher()
    before = teacher.get_weights()
    training = compiled(student, teacher, keras.optimizers.Adam(1e-2))
    x, labels = photos(), ops.convert_to_numpy(teacher(photos())).argmax(-1)
    history = training.fit(x, labels, epochs=12, batch_size=4, verbose=0).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    assert set(history) == {"loss", "accuracy"}
    for old, new in zip(before, teacher.get_weights()):
        np.testing.assert_array_equal(old, new)
    accuracy = np.mean(student.predict(x, verbose=0).argmax(-1) == labels)
    assert training.evaluate(x, labels, verbose=0, return_dict=True)["accuracy"] == pytest.approx(accuracy)


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.only_on("jax", reason="only there do steps take the variables out of the model")
def test_a_step_that_fails_leaves_the_weights():
    class Fails(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            raise ValueError("no rate")

    student = tiny()
    training, before = compiled(student, a_teacher(), keras.optimizers.SGD(Fails())), student.get_weights()
    with pytest.raises(ValueError, match="no rate"):
        training.fit(photos(), LABELS, verbose=0)
    for weight, kept in zip(student.get_weights(), before):
        np.testing.assert_array_equal(weight, kept)


def test_probabilities_are_as_good_as_logits():
    student = tiny()
    student.get_layer("head").set_weights([np.ones((16, CLASSES)) * [0.1, 0.2, -0.1], np.arange(3) / 3])
    losses = [compiled(student, a_teacher(a)).test_on_batch(photos(), LABELS)[0] for a in ("linear", "softmax")]
    np.testing.assert_allclose(*losses, rtol=1e-4)  # float32 after an exponential and its logarithm
    other = tiny(activation="softmax")
    other.set_weights(student.get_weights())
    np.testing.assert_allclose(compiled(other, a_teacher()).test_on_batch(photos(), LABELS)[0], losses[0], rtol=1e-4)


def test_a_saved_run_goes_on(tmp_path):
    training = compiled(tiny(**TWO_HEADS), a_teacher(), keras.optimizers.Adam(1e-2), kind="hard", alpha=0.3)
    training.train_on_batch(photos(), LABELS)
    training.save(tmp_path / "training.keras")
    loaded = keras.saving.load_model(tmp_path / "training.keras")
    assert (loaded.kind, loaded.alpha, loaded.student.config) == ("hard", 0.3, training.student.config)
    for _ in range(2):
        losses = []
        for run in (training, loaded):
            run.reset_metrics()  # some versions of Keras go on adding to them
            losses.append(run.train_on_batch(photos(), LABELS))
        np.testing.assert_allclose(*losses, rtol=1e-5)  # the same sums, maybe by other threads


@pytest.mark.parametrize(
    "student, teacher, options, message",
    [
        ({}, {}, {"kind": "warm"}, "kind .*'soft', 'hard'.*'warm'"),
        ({}, {}, {"alpha": 1.5}, "alpha must be from 0 to 1. Received: 1.5"),
        ({}, {}, {"temperature": 0}, "temperature must be above 0. Received: 0"),
        ({}, {"classes": 4}, {}, "Received: output_shape"),
        ({}, {"image_size": 16}, {}, "input_shape .* keras.layers.Resizing"),
        ({"activation": "sigmoid"}, {}, {}, "functional or sequential classifier"),
        ({"classes": 1}, {"classes": 1}, {}, "two classes or more"),
        ({}, {"activation": "sigmoid"}, {}, "logits or a softmax"),
        ({"include_top": False, "pooling": None}, {}, {}, "functional or sequential classifier"),
    ],
)
def test_what_does_not_fit_is_refused(student, teacher, options, message):
    with pytest.raises(ValueError, match=message):
        Distillation(tiny(**student), tiny(**teacher), **options)


def test_a_student_of_another_task_and_a_teacher_that_was_not_built_are_refused():
    student = tiny()
    student.task = "regression"
    with pytest.raises(ValueError, match="the task 'regression'"):
        Distillation(student, tiny())

    class Teacher(keras.Model):
        def call(self, images):
            return keras.ops.mean(images, (1, 2))

    with pytest.raises(ValueError, match="is not built"):
        Distillation(tiny(), Teacher())


def test_a_teacher_of_other_pixels_is_refused():
    teacher = tiny()
    teacher.preprocessing = Preprocessing(mean=0.1, std=0.2)
    with pytest.raises(ValueError, match="mean and std"):
        Distillation(tiny(), teacher)
    nested = keras.Sequential([teacher, keras.layers.Softmax()])
    with pytest.raises(ValueError, match="mean and std"):
        Distillation(tiny(), nested)
    scaled = keras.Sequential([keras.Input(teacher.input_shape[1:]), keras.layers.Rescaling(2.5, 2), teacher])
    Distillation(tiny(), scaled)  # whose first layer converts the pixels
    Distillation(tiny(), keras.Sequential([keras.layers.Resizing(16, 16), tiny(image_size=16)]))  # not built yet
    with pytest.raises(TypeError, match="Expected a Keras model"):
        Distillation(tiny(), "vit-b16")


@pytest.mark.parametrize("wrapped", [lambda s: Distillation(s, tiny()), lambda s: MaskedPatchPrediction(s)])
def test_what_is_asked_of_a_training_is_answered_by_the_model_that_learns(wrapped, tmp_path):
    keras.utils.set_random_seed(0)
    student, image = tiny(num_layers=2), photos(1)
    student.get_layer("head").set_weights([np.random.default_rng(0).normal(size=(16, CLASSES)), np.zeros(CLASSES)])
    model = wrapped(student)
    np.testing.assert_array_equal(attention_map(model, image), attention_map(student, image))
    np.testing.assert_array_equal(embed(model, image, progress=False), embed(student, image, progress=False))
    assert head_layers(model) == [student.get_layer("head")]
    assert preprocessing_of(model) == preprocessing_of(student) and as_model(model) is student
    labels = student.predict(photos(6), verbose=0).argmax(-1)
    data = photos(6), np.append(labels[:5], (labels[5:] + 1) % CLASSES)  # one in six is wrong
    calibrate(model, data)
    assert calibrate(student, data) == pytest.approx(1, abs=0.01)  # the head was divided by the temperature
    export(model, tmp_path / "student.onnx", check=False)
    train_only(model, 1)
    assert [block.trainable for block in blocks(student)] == [False, True]


@pytest.mark.parametrize("run", ["fit", "evaluate"])
def test_images_without_labels_are_refused(run):
    distillation = Distillation(tiny(), tiny())
    distillation.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    with pytest.raises(ValueError, match="pass images and labels"):
        getattr(distillation, run)(photos(), verbose=0)
