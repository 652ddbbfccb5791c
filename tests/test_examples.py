"""The examples, the quickstart and the README run as they are written."""

import importlib
import re
import sys
from pathlib import Path

import make_google_npz
import numpy as np
import pytest

pytest.importorskip("skimage", reason="the examples need scikit-image")
pytest.importorskip("sklearn", reason="the examples need scikit-learn")

from PIL import Image
from skimage import data

import vit_keras
from vit_keras import checkpoints, vit

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """A file with the name, size and format of the published ViT-Ti/16, with random weights."""
    folder = tmp_path_factory.mktemp("weights")
    published = checkpoints.find("Ti_16/augreg-imagenet21k+imagenet2012-224")
    make_google_npz.save(folder / Path(published.path).name, make_google_npz.make("ViT-Ti_16"))
    return folder


@pytest.fixture
def example(monkeypatch, tmp_path, stand_in):
    """Import an example; it runs in a folder of its own with weights at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(stand_in))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    yield importlib.import_module
    for name in EXAMPLES:
        sys.modules.pop(name, None)


def test_each_example_is_short():
    assert len(EXAMPLES) == 6
    for name in EXAMPLES:
        lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines()
        assert len(lines) < (90 if name == "quickstart" else 60), name


def test_classify(example):
    classes = example("classify").main()
    assert len(classes) == 3
    assert classes == sorted(classes, key=lambda pair: -pair[1])


def test_explain(example, tmp_path):
    assert example("explain").main().shape == (14, 14)
    assert Image.open(tmp_path / "attention.png").size == (2 * 451, 300)


def test_export(example):
    tiny = vit.build_model(32, 8, 2, 32, 2, "tiny", 64, classes=4)
    tiny.set_weights([np.random.RandomState(0).normal(size=w.shape) * 0.3 for w in tiny.get_weights()])
    assert example("export").main(tiny) <= 1e-5  # the same float32 graph, compiled twice


@pytest.mark.slow
def test_backbone(example):
    model, heat = example("backbone").main(steps=1)
    assert heat.shape == (6, 10)
    assert set(model.output) == {"kind", "age"}


@pytest.mark.slow
def test_quickstart_with_weights(example, capsys):
    accuracy, difference = example("quickstart").main(samples=64)  # runs classify, explain, finetune and export
    assert 0 <= accuracy <= 1
    assert difference <= 1e-4  # logits of a 12-layer float32 model, compiled twice
    assert (Path("quickstart") / "cat_attention.png").is_file()
    assert "WITHOUT" not in capsys.readouterr().out


@pytest.mark.slow
def test_quickstart_without_weights_says_so(example, monkeypatch, capsys):
    quickstart = example("quickstart")
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", "")
    monkeypatch.setattr(quickstart, "NEIGHBOUR", Path("nowhere"))
    quickstart.main(samples=32)
    out = capsys.readouterr().out
    assert "VIT_KERAS_OFFLINE is set" in out
    assert "WITHOUT THEM this cannot name what is in a photograph" in out
    assert (Path("quickstart") / "saved_model").is_dir()


def test_readme_runs_from_top_to_bottom(monkeypatch, tmp_path, stand_in, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(stand_in))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    Image.fromarray(data.chelsea()).save("cat.png")
    vit_keras.save_weights(vit.build_model((32, 32), 8, 2, 192, 3, "tiny", 128, classes=4), "weights.safetensors")
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 4
    random = np.random.RandomState(0)
    names = {
        "train_images": random.uniform(-1, 1, size=(8, 96, 160, 3)).astype("float32"),
        "train_labels": random.randint(0, 5, size=8),
    }
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    assert names["picture"].shape == (224, 224, 3)
    assert names["heat"].shape == (6, 10)
    assert len(vit_keras.checkpoints.Weights("wide.npz", strict=True)) == len(names["model"].weights)
    assert Path("tuned.keras").is_file()
    assert (Path("saved_model") / "saved_model.pb").is_file()


def test_readme_names_only_what_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"`((?:S|Ti|B|L|H)_\d+/[^`]+)`", text):
        assert checkpoints.find(name), name
    built = sum(family.refused is None for family in checkpoints.families.FAMILIES.values())
    assert f"[{built} families]" in text
    assert str(len(checkpoints.available())) in text.split("published checkpoints by name |")[1].split("|")[0]
