"""The pages for people who come from another library: our column runs, and theirs where that library is installed.

Where both compute the same thing of the same weights, they are compared.
"""

import importlib.util
import json
import os
import re
import warnings
import zipfile
from pathlib import Path

import keras
import make_google_npz
import numpy as np
import pytest
from family_files import write_kecam
from PIL import Image
from support import DATA, OTHER_RESIZING, ROOT, forget_settings

import vit_keras
from vit_keras import vit
from vit_keras.checkpoints.locate import find

REAL_PIXELS = pytest.mark.filterwarnings(
    "error:The pixels that reach the ViT:UserWarning"
)  # our columns train on pixels that the model expects
pytestmark = [pytest.mark.slow, OTHER_RESIZING, REAL_PIXELS]
PAGES = ROOT / "docs" / "coming_from"
SNIPPET = re.compile(r"^\*\*(.+?)\*\*\n\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def columns(page):
    """Return the pairs of a page, `(theirs, ours)`, and code that stands in no column, by the pair before it."""
    text = (PAGES / page).read_text(encoding="utf-8")
    found = [(match.start(), match[1], match[2]) for match in SNIPPET.finditer(text)]
    pairs = [(there[2], here[2]) for there, here in zip(found[::2], found[1::2])]
    assert all(here[1] == "vit_keras" != there[1] for there, here in zip(found[::2], found[1::2]))
    inside = {code for pair in pairs for code in pair}
    alone = [(m.start(), m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    between = {}
    for start, code in alone:
        if code not in inside:
            between[sum(position < start for position, *_ in found[1::2]) - 1] = code
    return pairs, between


class Columns:
    """Two scripts that run side by side, pair by pair."""

    def __init__(self, page, ours=None, theirs=None):
        self.page, self.ours, self.theirs = page, dict(ours or {}), None if theirs is None else dict(theirs)
        self.pairs, self.between = columns(page)

    def run(self, number, replace=()):
        """Run a pair, each column with the given texts replaced; without the other library, our column alone."""
        there, here = self.pairs[number]
        for old, new in replace:
            assert old in there + here, old
            there, here = there.replace(old, new), here.replace(old, new)
        if self.theirs is not None:
            exec(compile(there, f"{self.page}, theirs, {number}", "exec"), self.theirs)
        exec(compile(here + self.between.get(number, ""), f"{self.page}, ours, {number}", "exec"), self.ours)

    def same(self, name, convert=np.asarray):
        """Compare a variable that both have, relative to its largest value."""
        if self.theirs is not None:
            ours, theirs = keras.ops.convert_to_numpy(self.ours[name]), convert(self.theirs[name])
            assert ours.shape == theirs.shape, name
            np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max(), err_msg=name)


def seeded(model, scale=0.05):
    """Give a model weights that all count, and return it."""
    random = np.random.default_rng(0)
    model.set_weights([random.normal(0, scale, w.shape) + (w.name == "gamma") for w in model.weights])
    return model


def other(name, attribute=None):
    """Return the namespace of their column, empty; `None` without the library, or without that name in it."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if importlib.util.find_spec(name) is not None:  # a library that needs another one
            warnings.warn(f"Only our column runs. {name}: {error}", stacklevel=2)
        return None
    return {} if attribute is None or attribute in dir(module) else None


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A folder with a picture, where published weights are searched for, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    random = np.random.default_rng(0)
    small = random.integers(0, 255, (6, 9, 3), "uint8")
    Image.fromarray(small).resize((451, 300), Image.Resampling.BICUBIC).save("cat.png")
    return tmp_path


@pytest.fixture(autouse=True)
def trained(monkeypatch):
    """Each training of a page, in either column, changes weights; each page has one."""
    fit, found = keras.Model.fit, []

    def values(model):
        return [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]

    def checked(model, *args, **options):
        before = values(model)
        history = fit(model, *args, **options)
        changed = [np.any(one != other) for one, other in zip(before, values(model))]
        assert any(changed), f"No weight of {model.name!r} was changed."
        found.append(model.name)
        return history

    monkeypatch.setattr(keras.Model, "fit", checked)
    yield found
    assert found, "The page has no training."


def torch_array(tensor):
    return tensor.detach().cpu().numpy()


def test_timm(here, monkeypatch):
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    made = seeded(vit.vit_ti16(pretrained=False, classes=1000, mlp_activation="gelu"))
    (here / name).mkdir()
    file = here / name / "model.safetensors"
    vit_keras.save_weights(made, file, format="timm")
    forget_settings(file)
    theirs = other("timm")
    page = Columns("timm.md", theirs=theirs)
    if theirs is not None:
        import timm

        create = timm.create_model
        local = {"pretrained_cfg_overlay": {"file": str(file)}}
        monkeypatch.setattr(timm, "create_model", lambda name, **options: create(name, **options, **local))
    page.run(0)
    page.same("logits", torch_array)
    page.run(1)
    page.run(2)
    page.same("tokens", torch_array)
    page.same("vectors", torch_array)
    page.same("maps", lambda maps: np.stack([torch_array(each).transpose(0, 2, 3, 1) for each in maps]))
    page.run(3)
    page.run(4)
    assert page.ours["attention"].shape == (12, 1, 3, 61, 61)
    if theirs is not None:
        assert len(page.theirs["attention"]) == 12
    page.run(5)
    if theirs is not None:
        from safetensors import safe_open

        keys = [set(safe_open(f"{whose}.safetensors", "np").keys()) for whose in ("ours", "theirs")]
        assert keys[0] == keys[1]


def test_transformers(here):
    name, folder = "google/vit-base-patch16-224", here / "vit-base-patch16-224"
    made = seeded(vit.build_model(224, 32, 2, 64, 2, "small", 128, classes=3, mlp_activation="gelu", epsilon=1e-12))
    made.labels = ("cat", "dog", "bird")
    vit_keras.save_weights(made, folder, format="huggingface")
    forget_settings(folder / "model.safetensors")
    theirs = other("transformers")
    page = Columns("transformers.md", theirs=theirs)
    assert find(name)  # a file of 350 MB: the folder stands in for it
    page.pairs = [tuple(code.replace(name, str(folder)) for code in pair) for pair in page.pairs]
    page.run(0)
    page.same("logits", torch_array)
    assert page.ours["name"] in made.labels
    page.run(1)
    page.run(2)
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 224, 224, 3)).astype("float32")
    page.ours["images"] = pixels
    if theirs is not None:
        page.theirs["images"] = pixels.transpose(0, 3, 1, 2)
    page.run(3)
    assert page.ours["attention"].shape == (2, 2, 2, 50, 50) and page.ours["hidden"].shape[1:] == (2, 50, 64)
    page.same("tokens", torch_array)
    page.same("attention", lambda maps: np.stack([torch_array(each) for each in maps]))
    page.same("hidden", lambda hidden: np.stack([torch_array(each) for each in hidden]))
    page.run(4)
    assert json.loads(Path("ours", "config.json").read_text())["model_type"] == "vit"


def hub_preset(folder, model):
    """Write a model as a preset of KerasHub, with its preparation of pictures."""
    import keras_hub

    vit_keras.save_weights(model, "huggingface", format="huggingface")
    converter = keras_hub.layers.ViTImageConverter(image_size=(224, 224), scale=1 / 127.5, offset=-1.0)
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(image_converter=converter)
    classifier = keras_hub.models.ViTImageClassifier.from_preset("huggingface", preprocessor=preprocessor)
    classifier.save_to_preset(folder)


def test_keras_hub(here):
    published = find("Ti_16/augreg-imagenet21k+imagenet2012-224")
    make_google_npz.save(here / Path(published.path).name, make_google_npz.make("ViT-Ti_16"))
    theirs = other("keras_hub")
    page = Columns("keras_hub.md", theirs=theirs)
    if theirs is not None:
        hub_preset("preset", vit.vit_ti16(mlp_activation="gelu"))
    Image.open("cat.png").resize((224, 224)).save("cat.png")  # the two resize in different ways
    smaller = [('"vit_b16"', '"vit_ti16", mlp_activation="gelu"')]  # a twentieth of the weights
    page.run(0, [*smaller, ("vit_base_patch16_224_imagenet", "preset")])  # theirs needs a network
    page.same("logits")
    page.run(1, [*smaller, ("vit_base_patch16_224_imagenet", "preset")])
    page.run(2)
    page.run(3)
    if theirs is not None:
        ours, count = page.ours["backbone"], page.theirs["backbone"].count_params()
        assert ours.count_params() == count
    page.run(4)
    if theirs is None:
        with zipfile.ZipFile(DATA / "keras_hub" / "presets.zip") as archive:
            archive.extractall(here)
        (here / "token").rename("trained")  # what their column would have saved
    page.run(5)
    page.same("logits")


def test_kecam(here):
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") == "1"  # kecam runs with tf-keras
    page = Columns("kecam.md", theirs=other("keras_cv_attention_models") if legacy else None)
    if page.theirs is None:
        write_kecam("vit", here / "vit.h5")  # what their column would have saved
    page.run(0)
    if page.theirs is not None:
        theirs = page.theirs["model"]
        theirs.set_weights([np.random.default_rng(n).normal(0, 0.1, w.shape) for n, w in enumerate(theirs.weights)])
    page.run(1)
    page.same("logits")
    page.run(2)
    assert page.ours["wide"].output_shape == (None, 3)
    page.run(3)
    page.run(4)
    if page.theirs is not None:
        images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
        for ours, tokens in zip(page.ours["maps"](images), page.theirs["maps"](images), strict=True):
            flat = keras.ops.convert_to_numpy(ours).reshape(2, 16, 64)
            np.testing.assert_allclose(flat, np.asarray(tokens)[:, 1:], atol=1e-4)
    page.run(5)
    page.run(6)


def test_vit_pytorch():
    torch = pytest.importorskip("torch")
    theirs = other("vit_pytorch")
    page = Columns("vit_pytorch.md", theirs=theirs)
    if theirs is None:  # what their column would have saved
        from vit_keras.config import ViTConfig

        sizes = {"image_size": 64, "patch_size": 16, "num_layers": 3, "hidden_size": 128, "num_heads": 4}
        choices = {"mlp_dim": 256, "patch_norm": True, "qkv_bias": False, "mlp_activation": "gelu", "epsilon": 1e-5}
        made = vit.build(ViTConfig(**sizes, **choices, classes=10))
        vit_keras.save_weights(made, "vit.safetensors", format="vit-pytorch")
        from safetensors.torch import load_file

        torch.save(load_file("vit.safetensors"), "vit.pt")
    page.run(0)
    page.run(1)
    if theirs is not None:
        page.theirs["model"].eval()
        pixels = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype("float32")
        page.ours["out"] = page.ours["model"].predict(pixels, verbose=0)
        page.theirs["out"] = page.theirs["model"](torch.from_numpy(pixels.transpose(0, 3, 1, 2)))
        page.same("out", torch_array)
    page.run(2)
    assert page.ours["attention"].shape == (3, 1, 4, 17, 17)
    page.run(3)
    assert page.ours["tokens"].shape == (1, 17, 128) and page.ours["vectors"].shape == (1, 128)
    page.run(4)
