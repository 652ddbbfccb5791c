"""The pages for people who come from another library: our columns run from top to bottom."""

import json
import re
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

# Our columns train on pixels that the model expects.
REAL_PIXELS = pytest.mark.filterwarnings("error:The pixels that reach the ViT:UserWarning")
pytestmark = [pytest.mark.slow, OTHER_RESIZING, REAL_PIXELS]
THEIRS = re.compile(r"^\*\*(?!vit_keras)[^*]+\*\*\n\n```python\n.*?^```", re.DOTALL | re.MULTILINE)


def run(page, *replace, before=None):
    """Run our column of a page, with texts replaced, and return its variables."""
    text = THEIRS.sub("", (ROOT / "docs" / "coming_from" / page).read_text(encoding="utf-8"))
    names = dict(before or {})
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for old, new in replace:
            code = code.replace(old, new)
        exec(compile(code, page, "exec"), names)
    return names


def seeded(model, scale=0.05):
    """Give a model weights that all count, and return it."""
    random = np.random.default_rng(0)
    model.set_weights([random.normal(0, scale, w.shape) + (w.name == "gamma") for w in model.weights])
    return model


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A folder with a picture, where published weights are searched for, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    small = np.random.default_rng(0).integers(0, 255, (6, 9, 3), "uint8")
    Image.fromarray(small).resize((451, 300), Image.Resampling.BICUBIC).save("cat.png")
    return tmp_path


@pytest.fixture(autouse=True)
def trained(monkeypatch):
    """Each training of a page changes weights; each page has one."""
    fit, found = keras.Model.fit, []

    def values(model):
        return [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]

    def checked(model, *args, **options):
        before = values(model)
        history = fit(model, *args, **options)
        assert any(np.any(one != other) for one, other in zip(before, values(model)))
        found.append(model.name)
        return history

    monkeypatch.setattr(keras.Model, "fit", checked)
    yield
    assert found, "The page has no training."


def test_timm(here):
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    (here / name).mkdir()
    file = here / name / "model.safetensors"
    made = seeded(vit.vit_ti16(pretrained=False, classes=1000, mlp_activation="gelu"))
    vit_keras.save_weights(made, file, format="timm")
    forget_settings(file)
    assert run("timm.md")["attention"].shape == (12, 1, 3, 61, 61)


def test_transformers(here):
    name, folder = "google/vit-base-patch16-224", here / "vit-base-patch16-224"
    made = seeded(vit.build_model(224, 32, 2, 64, 2, "small", 128, classes=3, mlp_activation="gelu", epsilon=1e-12))
    made.labels = ("cat", "dog", "bird")
    vit_keras.save_weights(made, folder, format="huggingface")
    forget_settings(folder / "model.safetensors")
    assert find(name)  # a file of 350 MB: the folder stands in for it
    images = np.random.default_rng(0).uniform(-1, 1, (2, 224, 224, 3)).astype("float32")
    found = run("transformers.md", (name, str(folder)), before={"images": images})
    assert found["name"] in made.labels
    assert found["attention"].shape == (2, 2, 2, 50, 50) and found["hidden"].shape[1:] == (2, 50, 64)
    assert json.loads(Path("ours", "config.json").read_text())["model_type"] == "vit"


def test_keras_hub(here):
    published = find("Ti_16/augreg-imagenet21k+imagenet2012-224")
    make_google_npz.save(here / Path(published.path).name, make_google_npz.make("ViT-Ti_16"))
    with zipfile.ZipFile(DATA / "keras_hub" / "presets.zip") as archive:
        archive.extractall(here)
    (here / "token").rename("trained")  # what their column would have saved
    run("keras_hub.md", ('"vit_b16"', '"vit_ti16", mlp_activation="gelu"'))  # a twentieth of the weights


def test_kecam(here):
    write_kecam("vit", here / "vit.h5")  # what their column would have saved
    assert run("kecam.md")["wide"].output_shape == (None, 3)


def test_vit_pytorch():
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    from vit_keras.config import ViTConfig

    sizes = {"image_size": 64, "patch_size": 16, "num_layers": 3, "hidden_size": 128, "num_heads": 4}
    choices = {"mlp_dim": 256, "patch_norm": True, "qkv_bias": False, "mlp_activation": "gelu", "epsilon": 1e-5}
    made = vit.build(ViTConfig(**sizes, **choices, classes=10))
    vit_keras.save_weights(made, "vit.safetensors", format="vit-pytorch")
    torch.save(load_file("vit.safetensors"), "vit.pt")  # what their column would have saved
    found = run("vit_pytorch.md")
    assert found["attention"].shape == (3, 1, 4, 17, 17) and found["tokens"].shape == (1, 17, 128)
