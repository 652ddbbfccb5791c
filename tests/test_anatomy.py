"""What a model says about itself, in its own terms; the tables over all commands are in the folders of those."""

import gc
import subprocess
import sys
import weakref

import keras
import numpy as np
import PIL.Image
import pytest
from support import OTHER_PIXELS, ROOT

from vit_keras import anatomy, checkpoints, labels, preprocess, training, visualize, vit


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
    "Normalization in a model": (
        lambda: before(keras.Sequential([keras.layers.Normalization(mean=0.5, variance=0.25)])),
        "unit",
    ),
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


def test_pixels_of_a_model_that_takes_any_number_of_channels():
    image = keras.Input((32, 32, None))
    model = keras.Model(image, tiny()(image / 127.5 - 1))
    assert anatomy.input_range(model) == "pixels"
    assert anatomy.preprocessing_of(model).channels == 3


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
@OTHER_PIXELS
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


def transfer(vit_model):
    """A user's functional model of a ViT's tensors, which is flat: the ViT itself is not in it."""
    return keras.Model(vit_model.input, keras.layers.Dense(5)(vit_model.output))


@pytest.mark.core
def test_a_flat_model_remembers_the_preprocessing_of_its_vit(tmp_path):
    source = tiny()
    model = transfer(source)
    assert anatomy.preprocessing_of(model).mean == preprocess.GOOGLE.mean
    source.preprocessing = preprocess.CLIP  # also of a model that was made before
    assert anatomy.preprocessing_of(model) == preprocess.CLIP.replace(image_size=32)
    picture = np.random.RandomState(1).randint(0, 255, (40, 48, 3), "uint8")
    expected = keras.ops.convert_to_numpy(model(preprocess.CLIP(picture, 32)))
    for name in ("flat.keras", "flat.h5"):
        model.save(tmp_path / name)
        again = keras.models.load_model(tmp_path / name, compile=False)
        found = again.predict(anatomy.preprocessing_of(again)(picture), verbose=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert keras.models.clone_model(source).preprocessing == preprocess.CLIP


def test_evaluation_and_maps_of_a_flat_model_take_the_pixels_of_its_vit(tmp_path):
    source = tiny()
    model = transfer(source)
    source.preprocessing = preprocess.CLIP
    model.save(tmp_path / "flat.keras")
    again = keras.models.load_model(tmp_path / "flat.keras", compile=False)
    picture = np.random.RandomState(1).randint(0, 255, (32, 32, 3), "uint8")
    PIL.Image.fromarray(picture).save(tmp_path / "one.png")
    seen = training.embed(again, [tmp_path / "one.png"])
    np.testing.assert_allclose(seen, training.embed(source, [tmp_path / "one.png"]), rtol=0, atol=1e-5)
    theirs, ours = (visualize.attention_map(m, picture) for m in (source, again))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    source.preprocessing = preprocess.GOOGLE
    assert np.abs(visualize.attention_map(source, picture) - ours).max() > 1e-3


def test_googles_preprocessing_is_not_written_down():
    assert "preprocessing" not in anatomy.blocks(tiny())[0].get_config()
    mixer = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3, tokens_mlp_dim=8, pooling="gap", position=None)
    mixer.preprocessing = preprocess.CLIP
    assert anatomy.preprocessing_of(transfer(mixer)).mean == preprocess.CLIP.mean


# --- what the outputs mean ----------------------------------------------------------------------------------------

NAMES = {"single": "abc", "multi": "abc", "regression": "xyz", "ordinal": ("mild", "medium", "hot", "very hot")}


def with_task(task):
    keras.utils.set_random_seed(2)
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=1 if task == "ordinal" else 3)
    for weight in model.get_layer("head").weights:
        weight.assign(np.random.default_rng(0).normal(0, 1, weight.shape))
    assert anatomy.name_classes(model, tuple(NAMES[task]), task)
    return model


@pytest.mark.parametrize("task", labels.TASKS)
def test_a_task_goes_wherever_the_labels_go(task, tmp_path):
    model, names = with_task(task), tuple(NAMES[task])
    image = keras.Input((32, 32, 3))
    nested = keras.Sequential(
        [image, keras.Model(image, keras.layers.Dropout(0.1)(model(image))), keras.layers.Identity()]
    )
    found = {"itself": model, "nested": nested, "resized": vit.resize(model, 48)}
    for name in ("model.keras", "model.h5", "nested.keras"):
        (nested if "nested" in name else model).save(tmp_path / name)
        found[name] = keras.saving.load_model(tmp_path / name, compile=False)
    checkpoints.save_weights(model, tmp_path / "model.safetensors")
    found["safetensors"] = vit.from_checkpoint(tmp_path / "model.safetensors")
    for how, each in found.items():
        assert (anatomy.task(each), anatomy.output_names(each)) == (task, names), how
    assert anatomy.task(vit.resize(model, 32, classes=5)) == "single"  # a new head means something else
    assert anatomy.task(keras.Sequential([model, keras.layers.Dense(3)])) == "single"


@pytest.mark.slow
def test_a_task_is_known_in_a_new_process(tmp_path):
    with_task("ordinal").save(tmp_path / "model.keras")
    code = (
        "import sys, keras, vit_keras.anatomy as a; from vit_keras import vit\n"
        "m = keras.saving.load_model(sys.argv[1]); print(a.task(m), *a.output_names(m), a.class_names(m))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.keras")], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.stdout.split("\n")[-2] == "ordinal mild medium hot very hot None", ran.stderr


def test_what_outputs_stand_for_follows_the_task():
    logits = np.array([[0.3, -20.0, 900.0]], "float32")
    single, multi, numbers, ordinal = map(with_task, labels.TASKS)
    np.testing.assert_allclose(anatomy.predictions(single, logits), [[0, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(anatomy.predictions(multi, logits), [[0.574443, 2.061e-9, 1]], rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(anatomy.predictions(numbers, logits), logits)
    np.testing.assert_array_equal(anatomy.predictions(ordinal, logits[:, :1]), logits[:, :1])
    assert anatomy.levels([0.3, 0.5001, -4, 17], 4).tolist() == [0, 1, 0, 3]
    behind = keras.Sequential([multi, keras.layers.Activation("sigmoid")])  # probabilities already
    np.testing.assert_array_equal(anatomy.predictions(behind, [[0.25, 0.5, 1.0]]), [[0.25, 0.5, 1.0]])
    with pytest.raises(ValueError, match="not a classifier: its task is 'regression'"):
        anatomy.probabilities(numbers, logits)
    with pytest.raises(ValueError, match="task must be"):
        anatomy.name_classes(single, "abc", "clustering")
    assert not anatomy.name_classes(numbers, ("x",), "regression") and anatomy.task(numbers) == "regression"
    assert anatomy.class_names(multi) == ("a", "b", "c") and anatomy.class_names(ordinal) is None


def test_the_stride_of_a_part_of_a_model_of_any_size_is_asked_for():
    model = vit.build_model(None, 16, 1, 16, 2, "tiny", 32, classes=2, position_grid=(2, 2))
    part = keras.Model(model.input, model.layers[-2].output)
    assert anatomy.patch_stride(model, None) == (16, 16)
    with pytest.raises(ValueError, match="Pass image_size="):
        anatomy.patch_stride(part, None)
