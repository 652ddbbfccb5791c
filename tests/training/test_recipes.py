"""Recipes on models so small that a training takes a second; what they reach on real images is measured elsewhere."""

import functools
import json

import keras
import numpy as np
import pytest
from support import one_at_a_time, tiny_model, uncompiled

from vit_keras import anatomy, training
from vit_keras.training.checks import check
from vit_keras.training.data.augment import Augmentation
from vit_keras.training.freeze import train_only
from vit_keras.training.losses import CrossEntropy, accuracy
from vit_keras.training.recipes import RECIPES, Horizon, Recipe, recipe

RNG = np.random.default_rng(0)
EAGER = keras.backend.backend() != "jax"  # where compiling a step takes longer than the step


tiny = functools.partial(tiny_model, 16, num_layers=2)


def dense(classes=3, activation=None, seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(classes, activation=activation)])


def points(count=8, classes=3):
    return RNG.normal(size=(count, 4)).astype("float32"), np.arange(count) % classes


class Rates(keras.callbacks.Callback):
    """Remembers the learning rate before every batch."""

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        self.seen.append(round(float(keras.ops.convert_to_numpy(optimizer.learning_rate)), 6))


def names(variables):
    return [variable.path for variable in variables]


# What a recipe is


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_plain_json_and_comes_back(name):
    known = RECIPES[name]
    again = Recipe(**json.loads(json.dumps(known.to_dict())))
    assert again == known
    assert again.name == name and again.source


def test_a_recipe_is_found_by_name_and_changed():
    assert recipe("vit") is not None and recipe("vit").optimizer == "sgd"
    changed = recipe("finetune", epochs=3)
    assert changed.epochs == 3 and RECIPES["finetune"].epochs != 3
    assert recipe(changed, layer_decay=0.5).epochs == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recipe("adam"), "recipe must be one of 'finetune', 'vit'.*'adam'"),
        (lambda: recipe("fintune"), "mean 'finetune'.*'fintune'"),
        (lambda: recipe("vit", lr=1), "Unknown option lr.*'learning_rate'"),
        (lambda: recipe("finetune", mixup=0.2, cutmix=1), r"augmentation=dict\(cutmix=…, mixup=…\)"),
        (lambda: recipe("vit", learning_rat=1), "learning_rat.*'learning_rate'"),
        (lambda: recipe("vit", optimizer="adam"), "optimizer must be one of 'sgd'"),
        (lambda: recipe("vit", schedule="step"), "schedule must be one of"),
        (lambda: recipe("vit", loss="mse"), "loss must be one of"),
        (lambda: recipe("vit", scale_learning_rate="linear"), "must be one of False, True, 'sqrt'"),
        (lambda: recipe("vit", halve_batch_below=-1), "halve_batch_below .*at least 0"),
        (lambda: recipe("vit", train="some"), "a number of last blocks"),
        (lambda: recipe("vit", train=0), "a number of last blocks"),
        (lambda: recipe("probe", unfreeze_at=(0.5,)), "trains none. Leave one out"),
        (lambda: recipe("vit", warmup=5), "warmup must be at least 0 and below 1"),
        (lambda: recipe("vit", ema=1.0), "ema must be"),
        (lambda: recipe("vit", accumulate=0), "accumulate must be"),
        (lambda: recipe("vit", epochs=2.5), "epochs must be a positive integer"),
        (lambda: recipe("vit", lora=2.5), "lora must be a positive integer"),
        (lambda: recipe("vit", lora_projections=("nix",)), "lora_projections must be one of 'query'"),
        (lambda: recipe("vit", layer_decay=0), "layer_decay must be above 0"),
        (lambda: recipe("vit", unfreeze_at=("late",)), "increasing fractions"),
        (lambda: recipe("vit", augmentation={"flips": True}), "flips.*'flip'"),
        (lambda: recipe("vit", flip_test="no"), "flip_test must be True or False. Received: 'no'"),
        (lambda: recipe("vit", augmentation=False), "augmentation .*Received: False"),
    ],
)
def test_mistakes_in_a_recipe_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rate_follows_the_batch_as_the_recipe_says():
    finetune = recipe("finetune").for_model(tiny())
    assert [round(finetune.rate(size), 6) for size in (8, 16, 32, 64)] == [0.001, 0.001414, 0.002, 0.002]
    assert finetune.replace(accumulate=4).rate(8) == finetune.rate(32)
    assert recipe("finetune", learning_rate=0.003).rate(8) == 0.003  # a rate that is given is meant
    assert recipe("finetune", learning_rate=0.004, scale_learning_rate="sqrt").rate(8) == 0.002
    assert recipe("finetune", learning_rate=None).scale_learning_rate == "sqrt"
    assert recipe("vit").rate(128) == pytest.approx(0.03 / 4)


@pytest.mark.parametrize("name", RECIPES)
def test_the_optimizer_is_what_the_recipe_says(name):
    known = RECIPES[name].for_model(tiny())
    optimizer = known.make_optimizer(batch_size=known.batch_size * 2, steps=10)
    schedule = optimizer._learning_rate
    assert schedule.peak == pytest.approx(known.learning_rate * (2 if known.scale_learning_rate is True else 1))
    assert (schedule.warmup, schedule.decay, schedule.final) == (
        known.warmup,
        known.schedule,
        known.final_learning_rate,
    )
    config = optimizer.get_config()
    assert known.optimizer in type(optimizer).__name__.lower()
    assert config["global_clipnorm"] == known.clip_norm
    assert config["weight_decay"] == known.weight_decay
    assert config["layer_decay"] == known.layer_decay
    assert tuple(config["unfreeze_at"]) == known.unfreeze_at


def test_accumulation_counts_for_the_batch_and_for_the_average():
    optimizer = recipe("vit", accumulate=4, ema=0.9).make_optimizer(batch_size=128)
    assert optimizer.gradient_accumulation_steps == 4
    assert optimizer._learning_rate.peak == pytest.approx(0.03)  # 4 x 128 is the recipe's 512
    assert optimizer.ema_momentum**4 == pytest.approx(0.9)  # Keras averages after every batch


# Losses


@pytest.mark.core
@pytest.mark.parametrize("from_logits", [True, False])
def test_cross_entropy_takes_both_kinds_of_labels(from_logits):
    labels, outputs = np.array([0, 2, 1]), RNG.uniform(0.1, 1, (3, 4)).astype("float32")
    outputs = outputs if from_logits else outputs / outputs.sum(1, keepdims=True)
    one_hot = np.eye(4, dtype="float32")[labels]
    loss = CrossEntropy(from_logits=from_logits)
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)(labels, outputs)
    for given in (labels, labels[:, None], one_hot):
        assert float(loss(given, outputs)) == pytest.approx(float(expected), rel=1e-6)
        assert float(keras.ops.mean(accuracy(given, keras.ops.convert_to_tensor(outputs)))) == pytest.approx(
            np.mean(outputs.argmax(1) == labels)
        )
    smooth = keras.losses.CategoricalCrossentropy(from_logits=from_logits, label_smoothing=0.2)(one_hot, outputs)
    binary = keras.losses.BinaryCrossentropy(from_logits=from_logits)(one_hot, outputs)
    assert float(CrossEntropy(from_logits, 0.2)(labels, outputs)) == pytest.approx(float(smooth), rel=1e-6)
    assert float(CrossEntropy(from_logits, binary=True)(labels, outputs)) == pytest.approx(float(binary), rel=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(CrossEntropy(True, 0.2, True)))
    assert again.get_config() == CrossEntropy(True, 0.2, True).get_config()


def nested(activation):
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Activation(activation)])
    last = keras.layers.Activation("linear", dtype="float32")
    return keras.Sequential([keras.Input((4,)), inner, keras.layers.Dropout(0.1), last])


@pytest.mark.parametrize(
    ("model", "labels", "loss", "from_logits"),
    [
        (lambda: dense(), None, "cross_entropy", True),
        (lambda: dense(activation="softmax"), None, "cross_entropy", False),
        (lambda: dense(activation="softmax"), np.eye(3)[[0, 1, 2, 0]], "cross_entropy", False),
        (lambda: dense(activation="sigmoid"), None, "binary", False),
        (lambda: dense(), np.array([[1, 1, 0], [0, 0, 1]] * 2), "binary", True),
        (lambda: dense(1), None, "binary_crossentropy", True),
        (lambda: dense(1, "sigmoid"), np.array([0, 1, 1, 0]), "binary_crossentropy", False),
        (lambda: nested("softmax"), None, "cross_entropy", False),
        (lambda: nested("linear"), None, "cross_entropy", True),
    ],
)
def test_the_loss_fits_the_model_and_its_labels(model, labels, loss, from_logits):
    model = model()
    data = None if labels is None else (points(4)[0], labels)
    recipe("probe").compile(model, data)
    assert getattr(model.loss, "from_logits", None) is from_logits
    assert model.loss.name == ("cross_entropy" if loss == "binary" else loss)
    assert getattr(model.loss, "binary", False) is (loss == "binary")


def test_what_cannot_be_compiled_is_named():
    inputs = keras.Input((4,))
    two = keras.Model(inputs, [keras.layers.Dense(2, name="a")(inputs), keras.layers.Dense(3, name="b")(inputs)])
    with pytest.raises(ValueError, match="2 outputs. Pass loss="):
        recipe("finetune").compile(two)
    recipe("finetune").compile(two, loss=["mse", "mse"], metrics=None)
    with pytest.raises(ValueError, match="neither logits nor probabilities. Pass loss="):
        recipe("finetune").compile(dense(activation="tanh"))
    with pytest.raises(TypeError, match="Received: 'model'"):
        recipe("finetune").compile("model")
    with pytest.raises(ValueError, match="is not built"):
        recipe("finetune").compile(keras.Sequential([keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="labels|outputs"):
        recipe("finetune").compile(dense(3), (points(4)[0], np.array([0, 1, 2, 3])))


def test_a_sequential_without_an_input_is_built_from_its_model_or_the_data():
    model = keras.Sequential([tiny(include_top=False), keras.layers.Dense(2, activation="softmax")])
    recipe("probe").compile(model)
    assert names(model.trainable_variables)[-1].endswith("bias") and len(model.trainable_variables) == 2
    model = keras.Sequential([keras.layers.Dense(3)])
    recipe("probe").compile(model, points())
    assert model.input_shape == (None, 4)


# What is trained


def test_the_head_or_the_last_blocks_alone_are_trained():
    model = tiny()
    everything = names(model.trainable_variables)
    train_only(model, "head")
    assert names(model.trainable_variables) == ["head/kernel", "head/bias"]
    train_only(model, np.int64(1))
    assert {path.split("/")[0] for path in names(model.trainable_variables)} == {
        "Transformer_encoderblock_1",
        "Transformer_encoder_norm",
        "head",
    }
    for count in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="positive"):
            train_only(model, count)
    train_only(model, "all")
    assert names(model.trainable_variables) == everything
    for weight in model.get_layer("Transformer_encoderblock_0").weights:
        weight.trainable = False  # as adapters leave them
    train_only(model, "all")
    assert names(model.trainable_variables) == everything
    model.layers[1].trainable = False
    recipe("finetune", train=None).compile(model)
    assert "embedding/kernel" not in names(model.trainable_variables)


def test_rates_are_set_on_the_blocks_that_there_are():
    model = tiny(dropout=0.1)
    recipe("scratch_small", dropout=0.3, stochastic_depth=0.2).compile(model)
    blocks = [layer for layer in model.layers if "encoderblock" in layer.name]
    assert [block.drop_path.rate for block in blocks] == [0.0, 0.2]
    assert all(block.dropout_layer.rate == block.mlpblock.layers[1].rate == 0.3 for block in blocks)
    assert (model.config.dropout, model.config.emb_dropout, model.config.stochastic_depth) == (0.3, 0.1, 0.2)
    recipe("augreg").compile(model)
    assert [block.mlpblock.layers[1].rate for block in blocks] == [0.0, 0.0] and model.config.dropout == 0
    with pytest.raises(ValueError, match="stochastic_depth=None"):
        recipe("scratch_small").compile(dense())


# Training


@pytest.mark.parametrize("counts", [[40, 40], [48, 2]])
def test_a_first_batch_of_one_class_warns_unless_it_is_likely_by_chance(counts, recwarn):
    """Of 48 images and 2, the first 32 are of one class in an eighth of all orders."""
    y = np.repeat([0, 1], counts)
    check(dense(2), (RNG.normal(size=(len(y), 4)), y))
    told = any("Is the dataset shuffled" in str(each.message) for each in recwarn)
    assert told is (counts[0] == 40)


def test_a_list_of_batches_is_refused_before_fit():
    """`fit` would take it for several inputs; of [x, y], the labels would not be checked."""
    x, y = points()
    for data in ([(x[:4], y[:4]), (x[4:], y[4:])], [x, y]):
        with pytest.raises(ValueError, match=r"list of 2.*tuple of arrays, \(x, y\)"):
            recipe("probe").compile(dense(), data)


def test_a_model_whose_kernels_are_quantized_warns():
    model = tiny()
    model.quantize("int8")
    with pytest.warns(UserWarning, match=r"\(int8\) and cannot be trained.* recipe\('lora'\)"):
        recipe("finetune").compile(model)


@pytest.mark.compiles_long
def test_other_weights_than_those_that_were_compiled_are_not_trained():
    """Keras' own error prints a kernel; on JAX, it came within the first step."""
    model, probe, y = tiny(), recipe("probe"), np.arange(4) % 3
    x = RNG.uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    probe.compile(model)
    model.fit(x, y, verbose=0, callbacks=probe.callbacks)
    before = model.get_weights()
    train_only(model, "all")
    with pytest.raises(ValueError, match="'tiny'"):
        model.fit(x, y, verbose=0, callbacks=probe.callbacks)
    train_only(model, "head")
    with pytest.raises(ValueError, match="recipe.callbacks"):  # the schedule has not begun
        model.fit(x, y, verbose=0)
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    probe.compile(model)
    model.fit(x, y, verbose=0, callbacks=probe.callbacks)


@pytest.mark.core
def test_the_schedule_ends_with_fit_and_starts_again_with_the_next():
    model, (x, y), rates = dense(), points(), Rates()
    linear = recipe("probe", schedule="linear", learning_rate=1.0, optimizer="sgd", clip_norm=None)
    linear.compile(model)
    model.fit(x, y, batch_size=2, epochs=1, verbose=0, callbacks=[*linear.callbacks, rates])
    assert rates.seen == [0.75, 0.5, 0.25, 0.0]
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[*linear.callbacks, rates])
    assert rates.seen == [0.75, 0.5, 0.25, 0.0]
    assert history.history["learning_rate"] == [0.75, 0.25]
    model.fit(x, y, batch_size=2, epochs=2, initial_epoch=1, verbose=0, callbacks=[*linear.callbacks, rates])
    assert rates.seen == [0.375, 0.25, 0.125, 0.0]


def test_the_schedule_must_know_its_end():
    model, (x, y) = dense(), points()
    probe = recipe("probe")
    probe.compile(model, run_eagerly=True)
    with pytest.raises(ValueError, match=r"callbacks=recipe\.callbacks"):
        model.fit(x, y, verbose=0)

    def batches():
        while True:
            yield x, y

    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(batches(), verbose=0, shuffle=False, callbacks=probe.callbacks)
    model.fit(batches(), steps_per_epoch=2, epochs=1, verbose=0, shuffle=False, callbacks=probe.callbacks)
    assert float(model.optimizer.learning_rate) == 0
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(batches(), verbose=0, shuffle=False, callbacks=probe.callbacks)
    probe.compile(model, steps=4, run_eagerly=True)
    model.fit(x, y, batch_size=4, verbose=0)
    assert float(model.optimizer.learning_rate) == pytest.approx(probe.learning_rate / 2)
    model.compile("adam", "mse")
    Horizon().set_model(model)
    model.fit(x, np.eye(3)[y], verbose=0, callbacks=[Horizon()])  # which leaves another optimizer alone


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_model_survives_a_training_without_the_callbacks():
    model, (x, y), probe = dense(), points(), recipe("probe")
    probe.compile(model)
    before = model.get_weights()
    for train in (lambda: model.fit(x, y, verbose=0), lambda: model.train_on_batch(x, y)):
        with pytest.raises(ValueError, match="callbacks="):
            train()
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    assert model.predict(x, verbose=0).shape == (8, 3)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=probe.callbacks)
    assert float(model.optimizer.learning_rate) == 0
    model.compile("sgd", "sparse_categorical_crossentropy")  # which knows no horizon, and needs none
    model.fit(x, y, verbose=0)


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize("opened", [False, True])
def test_a_second_training_without_the_callbacks_is_refused(tmp_path, opened):
    model, (x, y), probe = dense(), points(), recipe("probe")
    probe.compile(model)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=probe.callbacks)
    if opened:
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        model.fit(x, y, batch_size=4, verbose=0, callbacks=probe.callbacks)
    for train in (lambda: model.fit(x, y, verbose=0), lambda: model.train_on_batch(x, y)):
        with pytest.raises(ValueError, match="callbacks="):
            train()
    model.optimizer.begin(2)
    model.fit(x, y, batch_size=4, verbose=0)  # as many steps as were announced
    assert float(model.optimizer.learning_rate) == 0


def dropping():
    layers = keras.layers
    rows, plain = layers.Dropout(0.3, noise_shape=(None, 1)), layers.Dropout(0.3)  # on PyTorch, two generators
    return keras.Sequential([keras.Input((4,)), layers.Dense(8), rows, plain, layers.Dense(3)])


def trained(folder, killed_after=None, epochs=4, model=dropping, data=points, **changes):
    """Train, and if asked be killed once on the way and start again in a new model; the weights."""
    known = recipe("finetune", schedule="linear", batch_size=4, label_smoothing=0.0, **changes)

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == killed_after:
                raise KeyboardInterrupt

    for attempt in ("killed", "resumed") if killed_after else ("whole",):
        keras.utils.set_random_seed(1)
        network = model()
        known.compile(network, run_eagerly=EAGER)
        backup = keras.callbacks.BackupAndRestore(str(folder / "backup"))
        try:
            callbacks = [*known.callbacks, backup] + ([Kill()] if attempt == "killed" else [])
            network.fit(*data, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        except KeyboardInterrupt:
            pass
    return [keras.ops.convert_to_numpy(weight) for weight in network.weights], int(network.optimizer.iterations)


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_killed_training_resumes_to_the_same_weights(tmp_path):
    data, changes = points(), {"ema": 0.5, "accumulate": 2, "weight_decay": 0.1}
    whole, steps = trained(tmp_path / "a", data=data, **changes)
    resumed, same_steps = trained(tmp_path / "b", killed_after=2, data=data, **changes)
    assert steps == same_steps
    for one, other in zip(whole, resumed):
        np.testing.assert_array_equal(one, other)


def test_the_average_of_the_weights_is_left_in_the_model():
    model, (x, y) = dense(), points()
    average, steps = None, []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append([keras.ops.convert_to_numpy(weight) for weight in self.model.weights])

    known = recipe("probe", ema=0.7, learning_rate=0.1)
    known.compile(model, run_eagerly=True)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[*known.callbacks, Watch()])
    for weights in steps:
        average = weights if average is None else [0.7 * a + 0.3 * w for a, w in zip(average, weights)]
    for ours, theirs in zip(model.get_weights(), average):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)  # float32
    assert np.abs(steps[-1][0] - average[0]).max() > 1e-3


def test_a_model_with_averaged_weights_is_used_and_trained_again():
    model, (x, y) = dense(), points()
    known = recipe("probe", ema=0.7)
    known.compile(model)
    model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=known.callbacks)
    expected = model.predict(x, verbose=0)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)  # float32
    model.evaluate(x, y, verbose=0)
    model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=known.callbacks)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert all(np.isfinite(keras.ops.convert_to_numpy(each)).all() for each in model.optimizer.variables)


def test_a_vit_learns_and_is_loaded_as_it_was(tmp_path):
    model = tiny()
    x, y = RNG.uniform(-1, 1, size=(12, 16, 16, 3)).astype("float32"), np.arange(12) % 3
    known = recipe("finetune", learning_rate=0.03, stochastic_depth=0.1, label_smoothing=0.0)
    known.compile(model, run_eagerly=EAGER)
    history = model.fit(x, np.eye(3)[y], batch_size=12, epochs=6, verbose=0, callbacks=known.callbacks).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(model.optimizer)
    assert loaded.optimizer.has_horizon and float(loaded.optimizer.learning_rate) == 0
    assert loaded.config == model.config
    with uncompiled():
        expected, found = (m.evaluate(x, y, batch_size=12, verbose=0, return_dict=True) for m in (model, loaded))
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # it was never built
def test_what_was_frozen_is_frozen_when_it_is_loaded(tmp_path):
    model = tiny()
    recipe("probe").compile(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert names(loaded.trainable_variables) == ["head/kernel", "head/bias"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains(name):
    model = tiny()
    x, y = RNG.uniform(-1, 1, size=(12, 16, 16, 3)).astype("float32"), np.arange(12) % 3
    known = recipe(name, learning_rate=0.01 if RECIPES[name].optimizer != "sgd" else 0.5, scale_learning_rate=False)
    known.compile(model, (x, y))
    history = model.fit(
        x, y, batch_size=4, epochs=10, verbose=0, callbacks=known.callbacks, validation_data=(x, np.eye(3)[y])
    ).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["val_accuracy"][-1] > 0.5


def test_half_precision_scales_the_loss_of_a_model_around():
    inner = tiny(dtype="mixed_float16")
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.RandomFlip(), inner])
    behind = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Conv2D(3, 1), inner])  # in float32
    for each in (model, behind, training.Distillation(model, tiny()), training.Distillation(behind, tiny())):
        recipe("finetune").compile(each)
        assert isinstance(each.optimizer, keras.optimizers.LossScaleOptimizer)
    recipe("finetune").compile(model, auto_scale_loss=False)
    assert not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.parametrize(
    ("kind", "name"),
    one_at_a_time([training.Distillation, training.MaskedAutoencoder], ["finetune", "deit", "lora", "probe"]),
)
def test_recipes_train_the_student_or_the_encoder(kind, name):
    """A student learns the labels with its own cross-entropy, and a masked autoencoder needs none."""
    model, teacher = tiny(), tiny()
    student = keras.Sequential([keras.Input(model.input_shape[1:]), model])
    wrapped = kind(student, teacher) if kind is training.Distillation else kind(model)
    labels = np.arange(8) % 3 if kind is training.Distillation else None
    before, untouched = model.get_weights(), teacher.get_weights()
    how = training.recipe(name, epochs=1)
    how.compile(wrapped, batch_size=4)
    rates = {"deit": [0.0, 0.1]}.get(name, [0.0, 0.0])
    assert [getattr(block.drop_path, "rate", 0.0) for block in anatomy.blocks(model)] == rates
    images = np.random.default_rng(0).uniform(-1, 1, (8, *model.input_shape[1:])).astype("float32")
    history = wrapped.fit(images, labels, batch_size=4, verbose=0, callbacks=how.callbacks).history
    assert np.isfinite(history["loss"]).all() and ("accuracy" in history) == (kind is training.Distillation)
    if name == "lora":
        training.merge_lora(wrapped)
    changed = {
        weight.path.split("/")[0]
        for weight, value in zip(model.weights, before, strict=True)
        if not np.array_equal(keras.ops.convert_to_numpy(weight), value)
    }
    learns = {"head"} if kind is training.Distillation else set()
    if name != "probe":
        learns |= {"Transformer_encoderblock_0", "Transformer_encoderblock_1"}
    assert changed >= learns and (name in ("finetune", "deit") or changed == learns)
    assert all(np.array_equal(one, other) for one, other in zip(teacher.get_weights(), untouched))


def test_rates_are_lower_and_more_equal_for_few_images_unless_they_are_set():
    how, model = recipe("finetune", gentle_below=4), tiny()
    found = [(each.learning_rate, each.layer_decay) for each in (how.for_model(model, steps=n) for n in (3, 4, None))]
    assert found == [(0.0005, 0.9), (0.002, 0.75), (0.002, 0.75)]
    assert how.replace(layer_decay=0.65).for_model(model, steps=1).layer_decay == 0.65
    assert how.replace(learning_rate=1e-4).for_model(model, steps=1).layer_decay == 0.75
    assert recipe("deit", learning_rate=None).for_model(model, steps=1).layer_decay == 1


def test_a_short_training_does_not_augment_unless_it_is_asked_to():
    how = recipe("finetune", augment_from=4)
    assert [how.for_steps(n).augmentation == how.augmentation for n in (3, 4, 5)] == [False, True, True]
    assert how.for_steps(3).augmentation == Augmentation(crop=None, flip=False)
    assert how.for_steps(3).for_steps(3) == how.for_steps(3)
    assert how.replace(augmentation={"crop": 0.3}).for_steps(1).augmentation.crop == 0.3
    assert recipe("deit").for_steps(1) == recipe("deit")
    assert recipe("finetune", augmentation=None).for_steps(1).augmentation is None
