"""What is overridden in Keras for speed: that each trick works, and that Keras still needs it.

A test named `test_keras_still_…` fails when Keras has become as fast by itself. Then the trick goes.
"""

import keras
import numpy as np
import pytest
from support import OTHER_PIXELS

from vit_keras import training, vit

only_tensorflow = pytest.mark.only_on("tensorflow", reason="only TensorFlow needs this")

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def tiny(**options):
    keras.utils.set_random_seed(1)
    options = {"dropout": 0.0, **options}
    model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10, **options)
    model.get_layer("head").set_weights([np.random.default_rng(1).normal(size=(64, 10)), np.zeros(10)])
    return model


def images(batch, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (batch, 32, 32, 3)).astype("float32")


def plain(model):
    """The same graph as a model of Keras' own class."""
    return keras.Model(model.input, model.output)


# --- the plain call -------------------------------------------------------------------------------------------------


def calls_of_a_block(model):
    """How often Python runs the first block in two calls of the model."""
    block, seen = model.get_layer("Transformer_encoderblock_0"), []
    call = block.call
    block.call = lambda *args, **kwargs: seen.append(1) or call(*args, **kwargs)
    model(images(1))
    model(images(1))
    return len(seen)


@pytest.mark.core
@pytest.mark.only_on("tensorflow", "jax", reason="PyTorch is as fast without compiling")
def test_a_plain_call_is_compiled_once():
    assert calls_of_a_block(tiny()) == 1


@pytest.mark.core
@pytest.mark.only_on("tensorflow", "jax", reason="PyTorch is as fast without compiling")
def test_keras_still_runs_a_plain_call_layer_by_layer():
    assert calls_of_a_block(plain(tiny())) == 2


# --- predict ---


@pytest.mark.parametrize(("batch_size", "dtype"), [(None, "float32"), (1, "float64"), (5, "uint8"), (100, "float32")])
@OTHER_PIXELS
def test_predict_is_that_of_keras(batch_size, dtype):
    model, x = tiny(), (127 * images(37)).astype(dtype)
    expected = keras.Model.predict(model, x.astype("float32"), batch_size=batch_size, verbose=0)
    predicted = model.predict(x, batch_size=batch_size, verbose=0)
    assert predicted.dtype == expected.dtype
    np.testing.assert_allclose(predicted, expected, **CLOSE)


@pytest.mark.parametrize("convert", [np.asarray, keras.ops.convert_to_tensor])
@pytest.mark.parametrize(
    ("count", "batch_size", "message"),
    [(0, None, r"\(0, 32, 32, 3\)"), (2, -1, "batch_size .*Received: -1"), (2, 0, "batch_size .*Received: 0")],
)
def test_predict_refuses_no_images_and_no_batches(convert, count, batch_size, message):
    with pytest.raises(ValueError, match=message):
        tiny().predict(convert(images(2)[:count]), batch_size=batch_size, verbose=0)


def test_predict_tells_its_callbacks_and_can_be_stopped(capsys):
    class Callback(keras.callbacks.Callback):
        seen = ()

        def on_predict_batch_end(self, batch, logs=None):
            self.seen += ((batch, logs["outputs"].shape),)
            self.model.stop_predicting = batch == 1

    callback = Callback()
    model = tiny()
    assert model.predict(images(20), batch_size=8, callbacks=[callback], verbose=1).shape == (16, 10)
    assert callback.seen == ((0, (8, 10)), (1, (8, 10)))
    assert "1/3" in capsys.readouterr().out
    assert model.predict(images(20), batch_size=8, verbose=0).shape == (20, 10)


# --- training -------------------------------------------------------------------------------------------------------


def short():
    """A model of one block, of which TensorFlow traces a step in half the time."""
    return vit.build_model(32, 16, 1, 16, 2, "short", 16, classes=10, dropout=0.0)


def traces_of_a_step(model, metrics):
    """How often TensorFlow traces the training step, and what the training measured."""
    traced = []

    class Loss(keras.losses.SparseCategoricalCrossentropy):
        def call(self, *args):
            traced.append(1)
            return super().call(*args)

    model.compile("adamw", Loss(from_logits=True), metrics=metrics, jit_compile=False)
    history = model.fit(images(4), np.arange(4), epochs=2, verbose=0).history
    return len(traced), set(history)


@only_tensorflow
@pytest.mark.parametrize("metrics", [["accuracy"], pytest.param([], marks=pytest.mark.slow)])
def test_a_training_step_is_traced_once(metrics):
    assert traces_of_a_step(short(), metrics) == (1, {"loss", *metrics})


@only_tensorflow
@pytest.mark.slow
def test_keras_still_traces_a_step_twice_whose_optimizer_is_not_built():
    assert traces_of_a_step(plain(short()), [])[0] == 2


@pytest.mark.core
@pytest.mark.parametrize("training", [False, True])
def test_a_plain_call_leaves_the_losses_of_regularizers(training):
    model = tiny()
    model.get_layer("head").activity_regularizer = keras.regularizers.L2(0.1)
    images, found = np.ones((2, *model.input_shape[1:]), "float32"), []
    for each in (plain(model), model):  # Keras divides by the batch from some version on
        each(images, training=training)
        found.append([float(loss) for loss in each.losses])
    assert len(found[0]) == 1 and found[0][0] > 0
    assert found[1] == pytest.approx(found[0], rel=1e-5)  # float32, compiled or not


# --- what Keras refuses in other words ------------------------------------------------------------------------------


def test_labels_are_asked_for_before_the_first_step():
    model = tiny()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for method in ("fit", "evaluate"):
        with pytest.raises(ValueError, match=rf"needs labels.*model\.{method}\(images, labels\)"):
            getattr(model, method)(images(2), verbose=0)
    with pytest.raises(ValueError, match=r"validation_data=\(images, labels\)"):
        model.fit(images(2), np.array([0, 1]), validation_data=(images(2),), verbose=0)


@pytest.mark.parametrize("named", [True, False])
def test_class_numbers_beyond_the_head_are_refused_before_the_first_step(named):
    model, fits = tiny(), np.array([0, 1])
    loss = "sparse_categorical_crossentropy"
    model.compile("sgd", loss if named else keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    last = model.output_shape[-1] - 1
    for wrong in (last + 1, -1):
        labels = np.array([0, wrong])
        for given in (labels, labels[:, None], keras.ops.convert_to_tensor(labels)):
            for method in ("fit", "evaluate"):
                with pytest.raises(ValueError, match=rf"from 0 to {last}\. Received: \[{wrong}\]"):
                    getattr(model, method)(images(2), given, verbose=0)
        with pytest.raises(ValueError, match=rf"Received: \[{wrong}\]"):
            model.fit(images(2), fits, validation_data=(images(2), labels), verbose=0)
    assert int(model.optimizer.iterations) == 0


def test_a_number_with_a_weight_may_be_of_no_class():
    model, labels, weights = tiny(), np.array([0, -1]), np.array([1.0, 0.0])
    model.compile("sgd", training.losses.CrossEntropy(from_logits=True))
    with pytest.raises(ValueError, match=r"Received: \[10\]"):  # the loss of the package's recipes
        model.fit(images(2), np.array([0, 10]), verbose=0)
    for validation in (None, (images(2), labels, weights)):
        model.fit(images(2), labels, sample_weight=weights, validation_data=validation, verbose=0)


def test_a_loss_that_ignores_a_class_takes_its_number():
    model = tiny()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255))
    assert np.isfinite(model.fit(images(2), np.array([0, 255]), verbose=0).history["loss"][0])


@pytest.mark.filterwarnings("ignore:.*structure of `inputs`", "ignore:Exception encountered")  # Keras' own
def test_a_dictionary_is_taken_where_keras_takes_it():
    inputs, model = keras.Input((32, 32, 3), name="image"), tiny()
    around = keras.Model(inputs, model(inputs))
    np.testing.assert_array_equal(*(around.predict(x, verbose=0) for x in ({"image": images(2)}, images(2))))
    with pytest.raises(TypeError, match="Pass the images alone"):
        model.predict({"pixels": images(2)}, verbose=0)


def test_arrays_of_the_other_byte_order_are_converted():
    model, batch = tiny(), images(2)
    model.run_eagerly = True
    swapped = batch.astype(">f4")
    assert not swapped.dtype.isnative
    for call in (model, lambda given: model.predict(given, verbose=0)):
        given, expected = (keras.ops.convert_to_numpy(call(each)) for each in (swapped, batch))
        np.testing.assert_array_equal(given, expected)
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    losses = [
        model.evaluate(given, np.array([0, 1], order + "i8"), verbose=0)
        for given, order in ((swapped, ">"), (batch, "<"))
    ]
    assert losses[0] == losses[1]
