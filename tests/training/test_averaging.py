"""The average of models: PyTorch's own, the classes and the task of all, and refusals that name what differs."""

import numpy as np
import pytest
from support import tiny_model

import vit_keras
from vit_keras import anatomy, training
from vit_keras.anatomy.outputs import output_names
from vit_keras.preprocess import CLIP


def made(seed, **options):
    model = tiny_model(16, mlp_dim=16, seed=seed, scale=0.3, **options)
    model.labels = tuple(f"class {n}" for n in range(model.output_shape[-1]))
    return model


def test_weights_are_the_mean_and_the_models_stay_as_they_are():
    models = [made(seed) for seed in range(3)]
    before = [model.get_weights() for model in models]
    soup = vit_keras.average(models)
    for found, each in zip(soup.get_weights(), zip(*before), strict=True):
        np.testing.assert_allclose(found, np.mean(each, axis=0), atol=1e-6)  # float32
    for model, weights in zip(models, before):
        assert all(map(np.array_equal, model.get_weights(), weights))


def test_the_average_of_files_has_their_classes_task_and_preprocessing(tmp_path):
    models = [made(seed) for seed in range(2)]
    for number, model in enumerate(models):
        model.task, model.preprocessing = "multi", model.preprocessing.replace(crop=0.9)
        model.save(tmp_path / f"{number}.keras")
    files = [tmp_path / "0.keras", str(tmp_path / "1.keras")]
    soup = vit_keras.average(files)
    for ours, one, other in zip(soup.get_weights(), *(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(ours, (one + other) / 2, atol=1e-6)  # float32
    assert (anatomy.task(soup), output_names(soup)) == ("multi", ("class 0", "class 1", "class 2"))
    assert soup.preprocessing.crop == 0.9 and soup.config == models[0].config


def test_an_average_names_the_checkpoint_that_all_models_began_with():
    models = [made(seed) for seed in range(2)]
    for model in models:
        model.origin = "vit_cifar10"
    assert vit_keras.average(models).origin == "vit_cifar10"
    models[1].origin = None
    assert vit_keras.average(models).origin is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 2}, "the same names of the classes"),
        ({"activation": "softmax"}, "0, 'tiny': linear. model 1, 'tiny': softmax"),
        ({"pooling": "gap"}, "the same pooling"),
        ({"mlp_activation": "relu"}, "the same mlp_activation"),
    ],
)
def test_another_architecture_is_refused_by_its_name(options, message):
    with pytest.raises(ValueError, match=message):
        vit_keras.average([made(0), made(1, **options)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: setattr(model, "labels", ("class 1", "class 0", "class 2")), "names of the classes"),
        (lambda model: setattr(model, "task", "multi"), "same task.*model 0, 'tiny': single"),
        (lambda model: setattr(model, "preprocessing", CLIP), "the same preprocessing"),
        (lambda model: training.add_lora(model, rank=2), "low-rank adapters"),
        (lambda model: model.get_layer("head").bias.assign([0, np.nan, 0]), "model 1, 'tiny' .*head/bias"),
        (lambda model: model.quantize("int8"), "has int8 weights"),
    ],
)
def test_what_has_no_average_is_refused(change, message):
    changed = made(1)
    change(changed)
    with pytest.raises(ValueError, match=message):
        vit_keras.average([made(0), changed])


def test_mistakes(tmp_path):
    with pytest.raises(ValueError, match="models"):
        vit_keras.average([])
    with pytest.raises(TypeError, match="Received: 3"):
        vit_keras.average([3])
    with pytest.raises(FileNotFoundError):
        vit_keras.average([tmp_path / "none.keras"])
