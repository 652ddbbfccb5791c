"""What a model says about itself, in its own terms; the tables over all commands are in the folders of those."""

import gc
import weakref

import keras
import numpy as np
import pytest

from vit_keras import anatomy, labels, preprocess, training, vit


def tiny(**options):
    return vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3, **options)


def before(*layers):
    return keras.Sequential([keras.Input((32, 32, 3)), *layers, tiny()])


def operations():
    image = keras.Input((32, 32, 3))
    return keras.Model(image, tiny()(image / 127.5 - 1))


INPUTS = {
    "plain": (tiny, "normalized"),
    "Rescaling": (lambda: before(keras.layers.Rescaling(1 / 127.5, -1)), "pixels"),
    "Rescaling to [0, 1]": (lambda: before(keras.layers.Rescaling(1 / 255)), "pixels"),
    "Normalization of [0, 1]": (lambda: before(keras.layers.Normalization(mean=0.5, variance=0.25)), "unit"),
    "augmentation": (lambda: before(keras.layers.RandomFlip()), "normalized"),
    "operations": (operations, "pixels"),
    "Preprocess": (lambda: before(preprocess.Preprocess(preprocess.CLIP, 32)), "pixels"),
    "nested": (lambda: keras.Sequential([before(keras.layers.Rescaling(1 / 255)), keras.layers.Softmax()]), "pixels"),
    "Rescaling behind": (lambda: keras.Sequential([tiny(), keras.layers.Rescaling(0.5)]), "normalized"),
}


@pytest.mark.core
@pytest.mark.parametrize("name", INPUTS)
def test_which_pixels_a_model_takes(name):
    make, expected = INPUTS[name]
    assert anatomy.input_range(make()) == expected


OUTPUTS = {
    "plain": (tiny, "logits"),
    "softmax": (lambda: tiny(activation="softmax"), "probabilities"),
    "no head": (lambda: tiny(include_top=False), "features"),
    "a head behind": (lambda: keras.Sequential([tiny(include_top=False), keras.layers.Dense(3)]), "logits"),
    "Dropout": (lambda: keras.Sequential([tiny(), keras.layers.Dropout(0.1)]), "logits"),
    "Rescaling": (lambda: keras.Sequential([tiny(), keras.layers.Rescaling(0.5)]), "logits"),
    "Softmax": (lambda: keras.Sequential([tiny(), keras.layers.Softmax()]), "probabilities"),
    "Activation": (lambda: keras.Sequential([tiny(), keras.layers.Activation("sigmoid")]), "probabilities"),
    "two heads": (lambda: tiny(distillation_token=True, pooling="token+dist"), "logits"),
}


@pytest.mark.core
@pytest.mark.parametrize("name", OUTPUTS)
def test_what_comes_out_of_a_model(name):
    make, expected = OUTPUTS[name]
    model = make()
    model.build((None, 32, 32, 3)) if not model.built else None
    assert anatomy.output_kind(model) == expected


@pytest.mark.core
def test_what_was_asked_does_not_keep_a_model_alive(tmp_path):
    model = before(keras.layers.Rescaling(1 / 255))
    anatomy.preprocessing_of(model)
    training.embed(model, np.zeros((1, 32, 32, 3), "float32"), progress=False)
    paths = [weight.path for weight in model.weights]
    model.save(tmp_path / "model.keras")
    saved = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in saved.weights] == paths
    references = [weakref.ref(model), weakref.ref(anatomy.find_vit(model))]
    del model, saved
    keras.backend.clear_session()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize(
    "behind", [[], [keras.layers.Softmax()], [keras.layers.Dropout(0.1), keras.layers.Activation("softmax")]], ids=len
)
def test_class_names_come_through_what_stands_behind_the_vit(behind):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=10)
    image = keras.Input((32, 32, 3))
    output = model(image)
    for layer in behind:
        output = layer(output)
    around = keras.Model(image, output)
    nested = keras.Sequential([keras.Input((32, 32, 3)), around, keras.layers.Identity()])
    assert [anatomy.class_names(each) for each in (model, around, nested)] == [None] * 3
    assert anatomy.name_classes(nested, labels.CIFAR10)
    assert [anatomy.class_names(each) for each in (model, around, nested)] == [labels.CIFAR10] * 3
    assert not anatomy.name_classes(nested, ("cat", "dog"))


def test_a_new_head_has_not_the_names_of_the_old_one():
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=10)
    anatomy.name_classes(model, labels.CIFAR10)
    assert anatomy.class_names(keras.Sequential([model, keras.layers.Dense(10)])) is None
