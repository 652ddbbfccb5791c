"""Arguments of another type than the function takes: an error in words that names the argument or what was received."""

import functools
import inspect
import pathlib
import re
import sys

import numpy as np
import pytest

import vit_keras
from vit_keras import (
    anatomy,
    checkpoints,
    export,
    labels,
    load_model,
    open_model,
    positions,
    resampling,
    text,
    utils,
    visualize,
    vit,
)
from vit_keras.checkpoints.locate import fetch, find, is_local
from vit_keras.preprocess import json_formats, pixels
from vit_keras.text import ImageText, TextConfig, Tokenizer, build_text
from vit_keras.text.model import contrastive_loss
from vit_keras.training import embed, finetune, knn, linear_probe

pytestmark = pytest.mark.any_backend
OPENED = "what the fixture opens"
WRONG = (None, "x!", -1, object())


@pytest.fixture(scope="module")
def model():
    """Both towers of a tiny model."""
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "mlp_dim": 32}
    tower = build_text(TextConfig(vocab_size=9, output_size=3, **sizes))
    both = ImageText(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3), tower)
    both.tokenizer = lambda texts: np.full((len(texts), 4), 8, "int32")
    return both


OF_MODELS = [name for name in anatomy.__all__ if name != "levels"]
OF_RECORDINGS = (
    *("cls_attention", "relevance_map", "gradient_rollout", "grad_cam", "legrad", "token_pca"),
    *("token_norms", "outlier_tokens", "layer_cka", "mean_attention_distance", "attention_entropy", "attention_sinks"),
)


def by_model(function):
    """Return a function of the model alone; it has to be looked at before what else is missing."""
    _, *others = inspect.signature(function).parameters.values()
    missing = [None for other in others if other.default is other.empty]
    return functools.wraps(function)(lambda model: function(model, *missing))


NUMBERS = np.full((2, 2, 3), 0.5)
IMAGES = [np.zeros((9, 9, 3), "uint8")]
# The function, its valid arguments, and those of WRONG that are valid too.
CASES = [
    (text.encode_images, {"model": OPENED, "images": IMAGES}, {}),
    (text.encode_texts, {"model": OPENED, "texts": ["a"], "templates": "{}", "batch_size": 2}, {"texts": ["x!"]}),
    (text.similarity, {"model": OPENED, "images": IMAGES, "texts": ["a"]}, {"texts": ["x!"]}),
    (text.zero_shot, {"model": OPENED, "images": IMAGES, "texts": ["a", "b"]}, {"texts": ["x!"]}),
    (text.zero_shot_classifier, {"model": OPENED, "classes": ["a", "b"]}, {"classes": ["x!"]}),
    (text.top_k, {"scores": np.zeros((2, 3)), "k": 1}, {}),
    (text.build_text, {"config": TextConfig()}, {}),
    (text.open_text, {"weights": "./none.npz"}, {}),
    (text.open_image_text, {"weights": "./none.npz"}, {}),
    (Tokenizer, {"folder": ".", "context_length": 8}, {"folder": ["x!"]}),
    (find, {"weights": "x"}, {"weights": ["x!"]}),
    (fetch, {"weights": "./none.npz"}, {}),
    (open_model, {"model": "vit_cifar10"}, {"model": [None]}),
    (vit_keras.from_checkpoint, {"weights": "./none.npz"}, {}),
    (utils.resize_image, {"image": IMAGES[0], "size": 3, "interpolation": "bilinear"}, {}),
    (utils.read, {"filepath_or_buffer": IMAGES[0], "size": 3}, {"size": [None]}),
    (pixels.gray, {"image": NUMBERS}, {}),
    (pixels.pixel_range, {"images": NUMBERS}, {"images": [-1]}),
    (pixels.to_pixels, {"image": NUMBERS}, {"image": [-1]}),
    (pixels.to_uint8, {"image": NUMBERS}, {"image": [-1]}),
    (vit.preprocess_inputs, {"X": NUMBERS}, {"X": [-1]}),
    (json_formats.crop_fraction, {"size": 224, "edge": 256}, {}),
    (labels.names, {"labels": ["a"]}, {"labels": [None, "x!"]}),
    (checkpoints.available, {"name": "x"}, {"name": [None, "x!"]}),
    (is_local, {"checkpoint": find("vit_cifar10")}, {}),
    (lambda vit, weights: checkpoints.load_weights(vit, weights), {"vit": OPENED, "weights": "./none.npz"}, {}),
    (lambda vit, path: checkpoints.save_weights(vit, path), {"vit": OPENED, "path": "x.npz"}, {}),
    (vit.build, {"config": vit.ViTConfig()}, {}),
    (contrastive_loss, {"logits": np.zeros((2, 2)), "kind": "softmax"}, {}),
    (text.ImageText, {"image": OPENED, "text": OPENED}, {}),
    (
        positions.resize_position_embeddings,
        {"table": np.zeros((1, 5, 4)), "grid": (3, 3), "source_grid": (2, 2)},
        {"source_grid": [None]},
    ),
    (positions.square_grid, {"patches": 4}, {"patches": [-1]}),
    (positions.sincos2d, {"grid": (2, 2), "width": 8, "temperature": 10.0}, {"grid": ["x!"]}),
    (positions.rope_sincos, {"grid": (2, 2), "dim_head": 8, "theta": 10.0, "kind": "axial"}, {"grid": ["x!"]}),
    (positions.relative_position_index, {"grid": (2, 2), "prefix_tokens": 1}, {}),
    (positions.relative_position_rows, {"grid": (2, 2), "prefix_tokens": 1}, {}),
    (positions.places_of, {"grid": (2, 2)}, {"grid": ["x!"]}),  # sides may be anything that counts, in a graph too
    (resampling.resize_grid, {"array": np.zeros((2, 2, 3)), "size": (3, 3), "method": "bilinear"}, {}),
    (resampling.resize_patch_kernel, {"kernel": np.zeros((2, 2, 3, 4)), "size": (3, 3), "method": "bilinear"}, {}),
    (visualize.mass_mask, {"maps": np.ones((1, 2, 2)), "mass": 0.5}, {}),
    *((getattr(visualize, name), {"recording": None}, {}) for name in OF_RECORDINGS),
    *((by_model(getattr(anatomy, name)), {"model": None}, {}) for name in OF_MODELS),
    *((getattr(visualize, name), {"recording": None}, {}) for name in ("plot_heads", "plot_layers")),
    (lambda packed: visualize.record_packed(packed, []), {"packed": None}, {}),
    (visualize.upsample, {"maps": NUMBERS, "size": (3, 3)}, {}),
    (vit_keras.average, {"models": ["x!"]}, {}),
    (export.benchmark, {"files": ["x!"]}, {}),
    (anatomy.levels, {"numbers": NUMBERS, "count": 3}, {"numbers": [-1]}),
    (lambda vit, names: anatomy.name_classes(vit, names), {"vit": OPENED, "names": "abc"}, {"names": ["x!"]}),
    (lambda vit, outputs: anatomy.predictions(vit, outputs), {"vit": OPENED, "outputs": NUMBERS[0]}, {}),
    (lambda vit, predictions: anatomy.top_predictions(vit, predictions), {"vit": OPENED, "predictions": [0.5]}, {}),
    (lambda name: labels.class_named(name, ("cat", "dog")), {"name": "cat"}, {}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("function", "arguments", "valid"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_value_of_another_type_is_an_error_that_names_it(model, function, arguments, valid, monkeypatch):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    given = {"model": model, "vit": model.image, "image": model.image, "text": model.text}
    arguments = {name: given[name] if value is OPENED else value for name, value in arguments.items()}
    wrong = []
    for name in arguments:
        for value in WRONG:
            if value in valid.get(name, []):
                continue
            try:
                function(**{**arguments, name: value})
                wrong.append((name, value, "no error"))
            except (ValueError, TypeError, FileNotFoundError) as error:
                said = str(error)
                if not (
                    name in said or name.rstrip("s") in said or str(value)[:20] in said or type(value).__name__ in said
                ):
                    wrong.append((name, value, said))
            except Exception as error:
                wrong.append((name, value, repr(error)))
    assert not wrong


class Table:
    """What a data frame looks like."""

    columns = ("image", "label")

    def __getitem__(self, name):
        return ["1.png"]

    def __iter__(self):
        return iter(self.columns)


TABLE = "a table with the columns 'image', 'label'"
OPEN = "<VisionTransformer"
# What is called with an open model, what the error says was received, and what it says would work.
MISTAKEN = [
    (load_model, OPEN, ".keras, .h5"),
    (open_model, OPEN, "A model that is open is used as it is"),
    (fetch, OPEN, "a published name, a path or a URL"),
    (lambda model: export.export("a.onnx", model), "'a.onnx'", "export(model, 'a.onnx')"),
    (lambda model: export.export(pathlib.Path("a.onnx"), model), "'a.onnx'", "export(model, 'a.onnx')"),
    (lambda model: export.export("a.keras", "a.onnx"), "'a.keras'", "open_model"),
    (lambda model: export.export(model, None), "None", "path must be the path of the file"),
    (finetune, OPEN, "images must be a folder of images or a table"),
    (lambda model: finetune("images", model, output=None), "None", "output must be the path of a folder"),
    (lambda model: linear_probe(model, "images"), OPEN, "training.embed(model, images)"),
    (lambda model: linear_probe("images", [0]), "'images'", "training.embed(model, images)"),
    (lambda model: knn(model, [0], [[0.0]]), OPEN, "training.embed(model, images)"),
    (lambda model: embed(model, IMAGES, output=3), "3", "output must be the path of a file"),
    (lambda model: model.half(), "'tiny'", "dtype="),
    (lambda model: model.to(dtype=sys.modules["torch"].float64), "'tiny'", "dtype="),
    (lambda model: model.predict(Table()), TABLE, "model.preprocess(paths of images)"),
    (lambda model: model(Table()), TABLE, "model.preprocess(paths of images)"),
]


@pytest.mark.parametrize(("call", "received", "works"), MISTAKEN)
def test_an_argument_in_the_place_of_another_is_an_error_that_says_what_would_work(model, call, received, works):
    if not hasattr(model, "half") and "dtype=" in works:
        pytest.skip("PyTorch has these methods")
    with pytest.raises(TypeError) as raised:
        call(model.image)
    assert received in str(raised.value)
    assert works in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dinov2", ["facebook/dinov2-base", "facebook/dinov2-small"]),
        ("clip", ["openai/clip-vit-base-patch32"]),
        ("google/vit-base-patch16", ["google/vit-base-patch16-224"]),
        ("vit-base-patch16-224-in21k", ["google/vit-base-patch16-224-in21k"]),
        ("siglip-base-patch16-224", ["google/siglip-base-patch16-224"]),
        ("deit_tiny_patch16_224.fb_in1k", ["timm/deit_tiny_patch16_224.fb_in1k"]),
        ("vitb16", ["vit_b16"]),
    ],
)
def test_a_part_of_a_published_name_is_answered_with_names_that_open(name, meant):
    with pytest.raises(ValueError, match="Did you mean") as raised:
        open_model(name)
    suggested = re.findall(r"'([^']+)'", str(raised.value).split("Did you mean")[1].split("?")[0])
    assert set(meant) <= set(suggested)
    assert 1 <= len(suggested) <= 3
    assert all(find(each) or hasattr(vit, each) for each in suggested)


@pytest.mark.parametrize("field", ["activation", "mlp_activation"])
@pytest.mark.parametrize(("value", "meant"), [("sofmax", "softmax"), ("Sigmoid", "sigmoid"), ("x!", "There are: ")])
def test_an_activation_that_does_not_exist_is_refused_before_a_download(field, value, meant, monkeypatch):
    monkeypatch.setattr(checkpoints.locate, "find_local", lambda found: pytest.fail("a file was looked for"))
    for call in (vit.vit_b16, functools.partial(open_model, "google/vit-base-patch16-224"), vit.ViTConfig):
        with pytest.raises(ValueError, match=f"{field} .*activation") as raised:
            call(**{field: value})
        assert meant in str(raised.value)
        assert repr(value) in str(raised.value)
