"""The command line: what it prints, what it writes, and that whatever goes wrong is said in one line."""

import json
import math
import os
import re
import sys
from pathlib import Path

import family_files
import keras
import numpy as np
import pytest
from hub import served
from PIL import Image
from support import uncompiled

import vit_keras
from vit_keras import checkpoints, cli, opening, preprocess, utils, visualize, vit
from vit_keras.checkpoints import readers, registry
from vit_keras.checkpoints.checkpoint import megabytes
from vit_keras.checkpoints.describe import describe
from vit_keras.checkpoints.locate import find
from vit_keras.checkpoints.weights import Weights
from vit_keras.cli import exports, main, training

pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config")  # of what `quick` does


@pytest.fixture(autouse=True)
def quick():
    """Each model here is run once or twice: compiling takes longer."""
    with uncompiled():
        yield


def all_but(cases, *quick):
    """Cases, of which those that stand for a mechanism run by default, the others with `-m slow`."""
    assert set(quick) <= set(cases)
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def write_picture(path, height=40, width=56, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype="uint8")
    Image.fromarray(pixels).save(path)
    return str(path)


@pytest.fixture
def picture(tmp_path):
    return write_picture(tmp_path / "picture.png")


@pytest.fixture
def weights(google_npz):
    """A checkpoint of a tiny ViT for images of 64 pixels and 10 classes."""
    return str(google_npz("ViT-mu_16", image_size=64, classes=10))


@pytest.fixture
def saved(tmp_path):
    """Save a tiny model: `saved(activation="softmax")`."""

    def save(**options):
        model = vit.build_model(32, 8, 1, 64, 2, "tiny", 128, **{"classes": 4, **options})
        rng = np.random.default_rng(1)
        model.set_weights([w + 0.2 * rng.standard_normal(w.shape) for w in model.get_weights()])
        model.save(tmp_path / "model.keras")
        return model, str(tmp_path / "model.keras")

    return save


def classes(output):
    """The lines of the table: [(percent, class), ...]."""
    found = re.findall(r"^\s*([\d.]+)%\s+(\S.*?)\s*$", output, flags=re.MULTILINE)
    return [(float(percent), name) for percent, name in found]


def write_labelled(tmp_path, image_size=(24, 32), layers=1):
    """A tiny model with names of classes: its path and the model."""
    model = vit.build_model(image_size, 8, layers, 32, 2, "tiny", 64, classes=4)
    model.labels = ("cat, tabby", "dog", "cow", "yak, Bos grunniens")
    rng = np.random.default_rng(1)
    model.set_weights([w + 0.2 * rng.standard_normal(w.shape) for w in model.get_weights()])
    model.save(tmp_path / "labelled.keras")
    return str(tmp_path / "labelled.keras"), model


def softmax(logits):
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def assert_refused(capsys, arguments, message):
    assert main(arguments) == 1
    output = capsys.readouterr()
    assert output.err.startswith("vit-keras: ")
    assert output.err.count("\n") == 1 and output.err.endswith("\n")
    assert "Traceback" not in output.err + output.out
    assert re.search(message, output.err)
    return output.out


def test_a_command_is_recorded_as_the_shell_reads_it(monkeypatch):
    words = ["vit-keras", "finetune", r"C:\my photos", "--epochs", "1"]
    assert cli._as_typed(words) == r"vit-keras finetune 'C:\my photos' --epochs 1"
    with monkeypatch.context() as windows:
        windows.setattr(cli.os, "name", "nt")
        typed = cli._as_typed(words)
    assert typed == r'vit-keras finetune "C:\my photos" --epochs 1'


# --------------------------------------------------------------------- predict --


@pytest.mark.parametrize(("options", "top"), [(["--top", "3"], 3), ([], 5), (["--top", "99"], 10)])
def test_predict_names_the_file_and_the_most_probable_classes(capsys, picture, weights, options, top):
    assert main(["predict", picture, "--weights", weights, *options]) == 0
    output = capsys.readouterr().out
    assert picture in output.splitlines()
    model = vit_keras.from_checkpoint(weights)
    logits = model.predict(vit.preprocess_inputs(utils.read(picture, 64))[None], verbose=0)[0]
    probabilities = 100 * softmax(logits.astype("float64"))
    order = np.argsort(-probabilities)[:top]
    assert [name for _, name in classes(output)] == [f"class {i}" for i in order]
    # Percent are printed with one digit.
    np.testing.assert_allclose([p for p, _ in classes(output)], probabilities[order], rtol=0, atol=0.0501)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_probabilities_of_the_model_are_printed_as_they_are(capsys, picture, saved, activation):
    model, path = saved(activation=activation)
    main(["predict", picture, "--model", path])
    scores = model.predict(vit.preprocess_inputs(utils.read(picture, 32))[None], verbose=0)[0]
    printed = [percent for percent, _ in classes(capsys.readouterr().out)]
    np.testing.assert_allclose(printed, 100 * np.sort(scores)[::-1], rtol=0, atol=0.0501)  # one digit is printed


# ------------------------------------------------------------------- attention --


def test_attention_writes_a_picture_of_the_pictures_size(capsys, picture, weights, tmp_path):
    path = tmp_path / "new" / "folder" / "map.png"
    assert main(["predict", picture, "--weights", weights, "-o", str(path)]) == 0
    image = Image.open(path)
    assert image.format == "PNG" and image.mode == "RGB" and image.size == (56, 40)
    expected = visualize.attention_map(vit_keras.from_checkpoint(weights), picture)
    assert np.abs(np.asarray(image).astype(int) - expected).max() <= 1  # where rounding tips over
    assert str(path) in capsys.readouterr().out


def pixels_of(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def test_attention_draws_what_attention_map_does(capsys, picture, tmp_path):
    path, model = write_labelled(tmp_path)
    out = tmp_path / "new" / "folder" / "out.png"
    assert main(["attention", picture, "--model", path, "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{picture}\nrollout: {out}\n"
    drawn = pixels_of(out)
    assert drawn.shape == (40, 56, 3) and drawn.std() > 5  # not blank
    # Models that are saved and loaded compute the same; here and below 1 of 255 levels is where rounding tips over.
    assert np.abs(drawn - visualize.attention_map(model, picture)).max() <= 1


def test_attention_of_a_class(capsys, picture, tmp_path):
    path, model = write_labelled(tmp_path)
    out = tmp_path / "out.png"
    assert main(["attention", picture, "--model", path, "--class", "tabby", "--style", "paper", "-o", str(out)]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == f"relevance: {out}"
    probabilities = softmax(model.predict(model.preprocess(picture), verbose=0)[0].astype("float64"))
    ((percent, name),) = classes(output)
    assert name == "cat, tabby" and percent == pytest.approx(100 * probabilities[0], abs=0.0501)  # one digit is printed
    expected = visualize.attention_map(model, picture, target=0, style="paper")
    assert expected.max() > 0 and np.abs(pixels_of(out) - expected).max() <= 1


def test_attention_by_all_methods_in_a_figure(capsys, picture, tmp_path):
    pytest.importorskip("matplotlib")
    path, model = write_labelled(tmp_path)
    other = write_picture(tmp_path / "no $formula^$.png", 30, 30, seed=1)
    sizes = {}
    for name, images in [("one.png", [picture]), ("two.png", [picture, other])]:
        assert main(["attention", *images, "--model", path, "--all-methods", "-o", str(tmp_path / name)]) == 0
        output = capsys.readouterr().out
        assert len(classes(output)) == len(images) and f"10 methods: {tmp_path / name}" in output
        drawn = pixels_of(tmp_path / name)
        assert drawn.std() > 20 and (drawn[0] == 255).all()
        sizes[name] = drawn.shape[1] / drawn.shape[0]
    assert sizes["one.png"] < 3 < sizes["two.png"]  # a table; rows of eleven
    # What is drawn is what attention_map says, though it comes out of two passes for all methods.
    maps = visualize.all_maps(model, utils.read(picture, None), 2)
    assert list(maps) == list(visualize.METHODS)
    for method in ("relevance", "gradcam", "legrad"):
        expected = visualize.attention_map(model, picture, method=method, target=2, return_map=True)
        # float32 sums in another order; maps of gradients are small, so relative to the largest value
        np.testing.assert_allclose(maps[method], expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=method)


def test_attention_that_cannot_be(capsys, picture, tmp_path):
    path, _ = write_labelled(tmp_path)
    out = str(tmp_path / "out.png")

    def refused(message, *arguments, images=(picture,), out=out):
        return assert_refused(capsys, ["attention", *images, "--model", path, "-o", out, *arguments], message)

    assert refused("No class has the name 'zebra'", "--class", "zebra") == ""
    refused("No class has the name 'ta'.*cat, tabby", "--class", "ta")
    refused("classes 0 to 3.*4", "--class", "4")
    assert refused("rollout is (of|for) no class.*relevance", "--class", "1", "--method", "rollout") == ""
    refused("nothing.jpg", images=[picture, "nothing.jpg"])
    refused("Remove --style", "--all-methods", "--style", "paper")
    path = str(tmp_path / "none.keras")  # refused before a model is read
    Path(path).touch()
    refused(r"\.png.*out\.txt", out=str(tmp_path / "out.txt"))
    refused(r"\.png.*out\.txt", "--all-methods", out=str(tmp_path / "out.txt"))
    refused(r"\.png.*out\.h5", out=str(tmp_path / "out.h5"))  # Pillow knows it, and cannot write it
    refused(r"\.png", out=str(tmp_path / "out"))
    refused("is an input too", out=picture)
    (tmp_path / "folder.png").mkdir()
    refused("is a folder", out=str(tmp_path / "folder.png"))
    assert not list(tmp_path.glob("out*"))


class NoMatplotlib:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_figure_without_matplotlib(capsys, picture, tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoMatplotlib, *sys.meta_path])
    (tmp_path / "none.keras").touch()
    arguments = [
        "attention",
        picture,
        "--model",
        f"{tmp_path}/none.keras",
        "--all-methods",
        "-o",
        f"{tmp_path}/out.png",
    ]
    assert_refused(capsys, arguments, "Matplotlib")


# --------------------------------------------------------------------- explore --


def page_data(path):
    return json.loads(re.search(r'id="meta">(.*?)</script>', Path(path).read_text(encoding="utf-8"), re.DOTALL)[1])


def test_explore_writes_a_page(capsys, picture, tmp_path):
    path, _ = write_labelled(tmp_path)
    other = write_picture(tmp_path / "other.png", 30, 70, seed=1)
    out = tmp_path / "new" / "out.html"
    assert main(["explore", picture, other, "--model", path, "--class", "yak", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}, {megabytes(out.stat().st_size)}\n"
    views = page_data(out)["views"]
    assert [(view["name"], view["size"]) for view in views] == [("picture", [40, 56]), ("other", [30, 70])]
    assert "Relevance: yak, Bos grunniens" in [m["name"] for m in views[0]["maps"]]


def test_explore_says_what_was_reduced(capsys, picture, tmp_path):
    path, _ = write_labelled(tmp_path, image_size=64, layers=5)
    out = tmp_path / "out.html"
    main(["explore", picture, "--model", path, "-o", str(out)])
    whole = out.stat().st_size
    capsys.readouterr()
    assert main(["explore", picture, "--model", path, "-o", str(out), "--max-mb", str((whole - 1000) / 1e6)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert out.stat().st_size <= whole - 1000 and lines[0] == f"{out}, {megabytes(out.stat().st_size)}"
    assert "eads are averaged" in lines[1] and [line.strip() for line in lines[1:]] == page_data(out)["notes"]


def test_a_page_that_cannot_be(capsys, picture, tmp_path):
    path, _ = write_labelled(tmp_path)
    out = str(tmp_path / "out.html")
    assert_refused(capsys, ["explore", picture, "--model", path, "--class", "gnu", "-o", out], "name 'gnu'")
    assert_refused(capsys, ["explore", picture, "--model", path, "--max-mb", "0.001", "-o", out], "do not fit")
    assert_refused(capsys, ["explore", "nothing.jpg", "--model", path, "-o", out], "nothing.jpg")
    assert_refused(capsys, ["explore", picture, "--model", path, "-o", out[:-5]], r"\.html")
    assert not list(tmp_path.glob("out*"))


# ---------------------------------------------------------------------- models --


@pytest.mark.parametrize("columns", ["80", "60"])  # a name that is cut off is of no use
def test_models_lists_every_checkpoint(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["models", "--all"]) == 0
    words = capsys.readouterr().out.split()
    names = [checkpoint.name for checkpoint in checkpoints.available()]
    assert names and set(names) <= set(words)


def test_models_says_which_are_here(capsys, tmp_path, monkeypatch):
    def here():
        main(["models"])
        return [line.split()[0] for line in capsys.readouterr().out.splitlines() if "yes" in line.split()]

    assert here() == ["vit_cifar10"]  # which comes with the package
    checkpoint = checkpoints.available(variant="Ti_16", image_size=384)[0]
    with open(tmp_path / Path(checkpoint.path).name, "wb") as file:
        file.truncate(checkpoint.bytes)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    assert here() == ["vit_cifar10", checkpoint.name]


def listed(output):
    """The names in the first column of the list of models."""
    return [line.split()[0] for line in output.partition("\n\n")[0].splitlines()[1:]]


@pytest.mark.parametrize(
    "arguments, filters",
    [
        (["--family", "deit3"], {"family": "deit3"}),
        (["--source", "openai"], {"source": "openai"}),
        (["--classes", "21843", "--image-size", "224"], {"classes": 21843, "image_size": 224}),
        (["--license", "mit"], {"license": "MIT"}),
        (["timm/vit_base*"], {"name": "timm/vit_base*"}),
        (["dinov2", "--source", "facebook"], {"name": "*dinov2*", "source": "facebook"}),
        (["timm/vit_base*", "--sort", "mb"], {"name": "timm/vit_base*"}),
    ],
)
def test_models_of_a_kind(capsys, arguments, filters):
    assert main(["models", *arguments]) == 0
    expected = [c.name for c in checkpoints.available(**filters)]
    assert expected and sorted(listed(capsys.readouterr().out)) == sorted(expected)


def test_models_sorts_by_top1_and_keeps_to_a_size_and_a_task(capsys):
    assert main(["models", "--max-mb", "30", "--sort", "top1", "--license", "apache-2.0", "--task", "classify"]) == 0
    names = listed(capsys.readouterr().out)
    found = [find(name) for name in names]
    assert found[0].name == "timm/vit_tiny_patch16_384.augreg_in21k_ft_in1k"
    scores = [c.top1 or 0 for c in found]
    assert scores == sorted(scores, reverse=True)
    assert {c.license for c in found} == {"Apache-2.0"} and {c.task for c in found} == {"classify"}
    every = checkpoints.available(license="apache-2.0")
    assert set(names) == {c.name for c in every if c.megabytes <= 30 and c.task == "classify"}


def test_models_for_programs(capsys):
    assert main(["models", "--json", "--family", "dinov2"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [e["name"] for e in entries] == sorted(c.name for c in checkpoints.available(family="dinov2"))
    assert all(e["here"] is False and e["url"].startswith("https://") for e in entries)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no-such-name"], "No published weights"),
        (["--family", "resnet"], "Unknown family 'resnet'.*timm"),
        (["--classes", "7"], "No published"),
        (["B_16-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.0-sd_0.0", "--classes", "10"], "No published"),
        (["--max-mb", "1"], "No published"),
    ],
)
def test_models_that_are_not(capsys, arguments, message):
    assert_refused(capsys, ["models", *arguments], message)


# --------------------------------------------------------------------- inspect --


def pairs(output):
    """The headings and texts that `inspect` and `convert` print."""
    found = {}
    for heading, text in re.findall(r"^([a-zA-Z-]+(?: [a-z]+)?) {2,}(\S.*)$", output, flags=re.MULTILINE):
        found.setdefault(heading, text)
    return found


def test_inspect_a_file_of_googles(capsys, google_npz):
    path = google_npz("ViT-mu_16", image_size=64, classes=10)
    assert main(["inspect", str(path)]) == 0
    found = pairs(capsys.readouterr().out)
    config = vit_keras.from_checkpoint(path).config
    assert found["layers"] == str(config.num_layers) and found["hidden size"] == str(config.hidden_size)
    assert found["heads"].startswith(f"{config.num_heads}, each {config.hidden_size // config.num_heads} wide")
    assert found["MLP"] == f"{config.mlp_dim}, gelu_tanh" and found["patch"] == "16×16 pixels"
    assert found["image"] == "64×64 pixels, 4×4 patches" and found["tokens"] == "17 = 1 class + 16 patches"
    assert found["head"] == "10 classes" and found["pooling"] == "class token"
    assert found["family"].startswith("google: ") and not {"say", "pass"} & set(found)


# Rotary and relative positions, registers, two heads, other poolings, a ResNet, what has to be told, what is refused.
_FAMILIES = (
    "dinov3_original",
    "hf_beit",
    "hf_clip_classifier",
    "hf_vit_mae",
    "timm_deit_distilled",
    "timm_dinov2_reg4",
    "timm_hybrid_r8",
    "timm_siglip",
    "timm_vit",
    "vit_pytorch_1_2",
)


@pytest.mark.parametrize("case", all_but(family_files.cases(), *_FAMILIES))
def test_inspect_agrees_with_the_model(tmp_path, case):
    golden = family_files.load(case)
    report = describe(family_files.write(golden, tmp_path))
    if report["problem"]:
        with pytest.raises(ValueError):
            vit_keras.from_checkpoint(tmp_path / "model.safetensors", **golden.options)
        return
    json.dumps(report)
    needed = set(report["needed"])
    assert needed <= set(golden.options)
    model = vit_keras.from_checkpoint(tmp_path / "model.safetensors", **golden.options)
    told, built = report["architecture"], model.settings()["config"]
    differing = {field for field in built if told[field] != built[field]}
    assert differing <= {"name", "dropout", "image_size", "position_grid", *golden.options, *needed}
    if told["image_size"] is not None:
        assert tuple(told["image_size"]) == model.input_shape[1:3] or "image_size" in golden.options
        assert tuple(report["tokens"]["grid"]) == model.config.grid
    shapes = Weights(tmp_path / "model.safetensors").shapes
    unused = sum(math.prod(shapes[name]) for name in model.load_report.ignored if name in shapes)
    assert report["parameters"] - unused == model.count_params()
    assert not report["unknown"]


def test_inspect_reads_no_array(monkeypatch, google_npz, tmp_path):
    def refuse(self, name):
        raise AssertionError(f"{name} is read")

    monkeypatch.setattr(readers.Reader, "__getitem__", refuse)
    assert describe(google_npz())["architecture"]["num_layers"] > 0
    assert describe(family_files.write(family_files.load("timm_vit"), tmp_path))["parameters"] > 0


def test_inspect_tells_the_ignored_from_the_unknown(capsys, tmp_path):
    golden = family_files.load("hf_vit_mae_pretraining")
    tensors = {**golden.state_dict(), "extra.bias": np.zeros(3, "float32")}
    path = family_files.write_safetensors(tmp_path / "model.safetensors", tensors)
    report = describe(path)
    assert report["unknown"] == ["extra.bias"]
    assert report["ignored"] and all("decoder" in name or "mask_token" in name for name in report["ignored"])
    main(["inspect", str(path)])
    assert re.search("1 array, (not known|unknown) in this family: extra.bias", capsys.readouterr().out)


def test_inspect_lists_names_and_what_they_become(capsys, tmp_path):
    golden = family_files.load("timm_vit")
    path = family_files.write(golden, tmp_path)
    assert main(["inspect", str(path), "--names", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)["names"]
    assert {entry["name"]: entry["shape"] for entry in names} == golden.meta["names"]
    attention = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1"
    becomes = {entry["name"]: entry["becomes"] for entry in names}
    assert becomes["blocks.0.attn.qkv.bias"] == [f"{attention}/{n}/bias" for n in ("query", "key", "value")]
    assert sorted(name for several in becomes.values() for name in several) == sorted(Weights(path))
    main(["inspect", str(path), "--names"])
    assert f"{attention}/{{query,key,value}}/bias" in capsys.readouterr().out


def test_inspect_a_file_of_no_family(capsys, tmp_path):
    tensors = {f"bert.layer.{n}.\x1b[31mquery": np.zeros((4, 5), "float32") for n in range(20)}
    path = family_files.write_safetensors(tmp_path / "bert.safetensors", tensors)
    assert main(["inspect", str(path)]) == 0
    output = capsys.readouterr().out
    assert "no Vision Transformer" in output and "bert.layer.0.\\x1b[31mquery  4×5" in output
    assert "12 more" in output and "\x1b" not in output  # a name from a file steers no terminal


def test_inspect_a_published_file_here_and_not(capsys, tmp_path, monkeypatch, google_npz):
    name = "Ti_16/augreg-imagenet21k+imagenet2012-384"
    assert_refused(capsys, ["inspect", name], f"not here yet. Run: vit-keras download {re.escape(name)}")
    google_npz("ViT-Ti_16", image_size=384, classes=1000).rename(tmp_path / Path(find(name).path).name)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    assert main(["inspect", name]) == 0
    found = pairs(capsys.readouterr().out)
    assert found["published as"] == f"{name} (Apache-2.0, top-1 78.2%)"
    assert found["image"].startswith("384×384") and found["labels"].startswith("imagenet-1k: tench, goldfish")


@pytest.mark.parametrize("name", ["http://", "hf://a/b"])
def test_inspect_what_is_no_address(capsys, name):
    assert_refused(capsys, ["inspect", name], f"{name} is not an address of weights")


def test_inspect_what_is_no_file_of_weights(capsys, tmp_path, weights):
    (tmp_path / "notes.npz").write_text("Feed the cat.")
    assert_refused(capsys, ["inspect", str(tmp_path / "notes.npz")], r"notes\.npz is not")
    assert_refused(capsys, ["inspect", str(tmp_path / "none.npz")], r"none\.npz")
    assert_refused(capsys, ["inspect", weights, "--family", "resnet"], "Unknown family: 'resnet'.*timm")
    assert_refused(capsys, ["inspect", weights, "--key", "model"], "has no network under key='model'")
    os.truncate(weights, os.path.getsize(weights) // 2)
    assert_refused(capsys, ["inspect", weights], "damaged or incomplete")


# --------------------------------------------------------------------- convert --


def outputs(path, **options):
    images = np.linspace(-1, 1, 2 * 32 * 32 * 3, dtype="float32").reshape(2, 32, 32, 3)
    model = vit_keras.load_model(path) if str(path).endswith(".keras") else vit_keras.from_checkpoint(path, **options)
    return model.predict(images, verbose=0)


@pytest.mark.parametrize("case", all_but(["timm_vit", "timm_siglip", "timm_dinov2_reg4"], "timm_siglip"))
@pytest.mark.parametrize("target", ["new/model.keras", "model.safetensors"])
def test_what_is_converted_computes_the_same(capsys, tmp_path, case, target):
    golden = family_files.load(case)
    source = family_files.write(golden, tmp_path / "source")
    settings = [f"--set={name}={value}" for name, value in golden.options.items()]
    assert main(["convert", str(source), str(tmp_path / target), *settings]) == 0
    assert str(tmp_path / target) in capsys.readouterr().out
    np.testing.assert_array_equal(outputs(tmp_path / target), outputs(source, **golden.options))  # the same weights


@pytest.mark.parametrize("target", ["hub", "new ü/hub"])
def test_convert_into_a_folder_for_transformers(capsys, tmp_path, target):
    golden = family_files.load("hf_vit")
    source = family_files.write(golden, tmp_path / "source")
    assert main(["convert", str(source.parent), str(tmp_path / target), "--format", "huggingface"]) == 0
    printed = pairs(capsys.readouterr().out)
    assert printed["wrote"].startswith(f"{tmp_path / target}, names of the family huggingface, ")
    assert "but" not in printed  # config.json has the rest
    names = {"config.json", "model.safetensors", "preprocessor_config.json"}
    assert {path.name for path in (tmp_path / target).iterdir()} == names
    np.testing.assert_array_equal(outputs(tmp_path / target), outputs(source.parent))
    before = {path: path.read_bytes() for path in source.parent.iterdir()}
    for given in (source, source.parent):
        command = ["convert", str(given), str(source.parent), "--format", "huggingface"]
        assert_refused(capsys, command, "Choose another name")
    assert {path: path.read_bytes() for path in source.parent.iterdir()} == before
    (tmp_path / "plain").write_text("")
    command = ["convert", str(source), str(tmp_path / "plain"), "--format", "huggingface"]
    assert_refused(capsys, command, "plain is a file, not a folder")


def test_convert_into_googles_format_and_back(capsys, tmp_path, google_npz):
    source = google_npz("ViT-mu_16", image_size=32, classes=10)
    assert main(["convert", str(source), str(tmp_path / "timm.safetensors")]) == 0
    assert "names of the family timm" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "timm.safetensors"), str(tmp_path / "again.npz")]) == 0
    with np.load(source) as first, np.load(tmp_path / "again.npz") as second:
        assert set(first.files) == set(second.files)
        assert all(np.array_equal(first[name], second[name]) for name in first.files)


def test_convert_to_another_size_says_what_was_adapted(capsys, tmp_path, weights):
    target = tmp_path / "out.weights.h5"
    assert main(["convert", weights, str(target), "--image-size", "96x64"]) == 0
    found = pairs(capsys.readouterr().out)
    assert found["adapted"] == "position embeddings resampled from 4×4 to 6×4"
    model = vit_keras.from_checkpoint(weights, image_size=(96, 64))
    before = model.get_weights()
    model.set_weights([0 * w for w in before])
    model.load_weights(target)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))


@pytest.mark.parametrize("name", ["out.keras", "out.weights.h5", "out.npz", "out.safetensors"])
def test_a_conversion_that_fails_leaves_everything_as_it_was(capsys, tmp_path, weights, monkeypatch, name):
    target = tmp_path / "folder" / name
    target.parent.mkdir()
    target.write_text("old")

    def fail(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert_refused(capsys, ["convert", weights, str(target)], "No space left")
    assert target.read_text() == "old" and list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("out.onnx", [], r"must end in \.keras"),
        ("out.h5", [], r"must end in \.keras"),
        ("vit-1.0", ["--format", "huggingface"], "a new one has no dot"),
        ("out.keras", ["--format", "timm"], "format is for"),
        ("out.npz", ["--format", "caffe"], "format must be one of .*timm.*caffe"),
        ("out.npz", ["--set", "colour=red"], "Unknown option colour"),
        ("out.npz", ["--image-size", "32", "--set", "image_size=32"], "--image-size and --set image_size=… exclude"),
        ("out.npz", ["--family", "timm"], "not of the family 'timm'"),
        (".", [], "For a folder .*--format huggingface"),
        ("new", ["--format", "timm"], "'timm' needs a file"),
    ],
)
def test_convert_refuses(capsys, tmp_path, weights, name, options, message):
    assert_refused(capsys, ["convert", weights, str(tmp_path / name), *options], message)
    assert [path.name for path in tmp_path.iterdir()] == [Path(weights).name]


# -------------------------------------------------------------------- download --


@pytest.fixture
def server(tmp_path, monkeypatch, google_npz):
    """Two published files, `here/one` and `here/two`, of which a server has the first."""
    path = google_npz()
    path.rename(tmp_path / "one.npz")
    size = (tmp_path / "one.npz").stat().st_size

    with served(tmp_path) as url:
        published = tuple(
            registry.Checkpoint(weights=f"here/{name}", url=f"{url}/{name}.npz", bytes=bytes, license=license)
            for name, bytes, license in (("two", None, "MIT"), ("one", size, "Apache-2.0"))
        )
        monkeypatch.setattr(registry, "listed", lambda: published)
        made_of_the_list = (registry._by_name, registry._filenames)
        for each in made_of_the_list:
            each.cache_clear()
        yield url
    for each in made_of_the_list:
        each.cache_clear()


def test_download_says_what_and_where(capsys, server, tmp_path):
    assert main(["download", "here/one", "--dry-run"]) == 0
    assert "not here" in capsys.readouterr().out
    assert main(["download", "here/one"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"here/one  [\d.]+ [kM]B  Apache-2.0", first)
    assert Path(second.strip()).read_bytes() == (tmp_path / "one.npz").read_bytes()
    assert main(["download", "here/one", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == second


def test_download_goes_on_after_a_failure(capsys, server):
    assert main(["download", "nowhere/none", "here/*"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("2 files, ") and "1 of unknown size" in output.out and "MIT" in output.out
    assert Path(output.out.splitlines()[-1].strip()).is_file()  # the second, after the first had failed
    refused, missing = output.err.splitlines()
    assert "no" in refused.lower() and "nowhere/none" in refused
    assert "two.npz does not exist" in missing


def test_download_takes_an_address(capsys, server):
    assert main(["download", f"{server}/one.npz?x=1"]) == 0
    assert Path(capsys.readouterr().out.splitlines()[1].strip()).is_file()


def test_download_takes_the_name_of_a_factory_as_open_model_does(capsys):
    assert main(["download", "vit_b16", "vit-l32", "--dry-run"]) == 0
    wanted = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith(("B_", "L_"))]
    assert wanted == ["B_16/augreg-imagenet21k+imagenet2012-224", "L_32/sam"]
    # Nobody has published weights of this size with the classes of ImageNet-1k.
    assert_refused(capsys, ["download", "vit_h14"], "Did you mean H_14/imagenet21k")
    assert_refused(capsys, ["inspect", "vit_b16"], "Run: vit-keras download B_16/augreg-imagenet21k")


# ----------------------------------------------------------- predict, any model --


def test_predict_prepares_pictures_as_the_model_says_and_names_its_labels(capsys, picture, saved, tmp_path):
    model, path = saved()
    model.preprocessing = preprocess.IMAGENET.replace(image_size=32)
    model.labels = ("ant", "bee", "cat", "dog")
    model.save(path)
    assert main(["predict", picture, "--model", path]) == 0
    logits = model.predict(model.preprocess(picture), verbose=0)[0]
    found = classes(capsys.readouterr().out)
    assert [name for _, name in found] == [model.labels[i] for i in np.argsort(-logits)]
    expected = 100 * np.sort(softmax(logits.astype("float64")))[::-1]
    np.testing.assert_allclose([p for p, _ in found], expected, rtol=0, atol=0.0501)  # one digit is printed
    served = keras.Sequential([keras.Input((None, None, 3)), vit_keras.preprocessing_layer(model), model])
    served.save(tmp_path / "served.keras")
    assert main(["predict", picture, "--model", str(tmp_path / "served.keras")]) == 0
    assert [name for _, name in classes(capsys.readouterr().out)] == [name for _, name in found]


# ----------------------------------------------------- finetune, evaluate, embed --


@pytest.fixture
def photos(tmp_path):
    """Six pictures of each of two classes."""
    for name in ("cat", "dog"):
        for seed in range(6):
            write_picture(tmp_path / "photos" / name / f"{seed}.png", seed=seed + 10 * (name == "dog"))
    return str(tmp_path / "photos")


@pytest.mark.slow
def test_finetune_on_folds_of_a_table(capsys, photos, weights, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("pandas")
    rows = [f"{kind}/{n},{kind},{n // 2}" for kind in ("cat", "dog") for n in range(6)]
    (tmp_path / "train.csv").write_text("\n".join(["photo,kind,who", *rows]))
    arguments = ["finetune", str(tmp_path / "train.csv"), "--images-dir", photos, "--weights", weights, "--epochs", "1"]
    arguments += ["--image-column", "photo", "--label-column", "kind", "--group-column", "who", "--folds", "3"]
    arguments += ["--metric", "macro_f1", "-o", str(tmp_path / "folds")]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "task='single' is assumed" in said and "Fold 2 of 3" in said and "macro_f1: " in said
    header, first = (tmp_path / "folds" / "oof.csv").read_text().splitlines()[:2]
    assert header == "id,fold,target,prediction,probability_cat,probability_dog" and first.startswith("cat/0,")
    assert_refused(capsys, arguments, "has a finished run.*--overwrite")


def test_finetune_evaluate_embed(capsys, photos, weights, tmp_path):
    out = tmp_path / "tuned"
    arguments = ["finetune", photos, "--weights", weights, "-o", str(out), "--epochs", "1", "--minutes", "0"]
    arguments += ["--held-out", "0.34", "--batch-size", "4", "--set", "learning_rate=0.002", "--set", "flip=false"]
    arguments += ["--set", "clip_norm=null", "--no-refit"]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert "8 images of 2 classes to learn from, 4 held out" in output.out and str(out / "model.keras") in output.out
    told = json.loads((out / "recipe.json").read_text())
    assert told["learning_rate"] == 0.002 and told["clip_norm"] is None and told["augmentation"]["flip"] is False
    assert f"vit-keras finetune {photos} --weights" in (out / "report.html").read_text("utf-8")
    accuracy = json.loads((out / "history.json").read_text())["held_out"]["accuracy"]
    assert_refused(capsys, arguments, "has a finished run.*--overwrite")

    model, page = str(out / "model.keras"), tmp_path / "pages" / "cats.html"
    only = ["--only", str(out / "split.json")]
    assert main(["evaluate", model, photos, *only, "-o", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"accuracy on 4 images: {100 * accuracy:.1f}") and lines[3].split()[:2] == ["cat", "2"]
    assert "\\" not in lines[3]  # the space before a percent sign is not spelled out
    assert "Confusions" in page.read_text("utf-8")
    assert main(["evaluate", model, photos, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 12

    assert main(["embed", photos, "--model", model, "-o", str(tmp_path / "seen" / "features.npz")]) == 0
    with np.load(tmp_path / "seen" / "features.npz") as file:
        features = file["features"]
    assert len(features) == 12
    picture = f"{photos}/dog/0.png"
    assert main(["embed", picture, "--model", model, "-o", str(tmp_path / "one.npy")]) == 0
    alone = np.load(tmp_path / "one.npy")
    np.testing.assert_allclose(alone[0], features[6], atol=1e-5)  # float32, in a batch of another size


def test_embed_a_table(capsys, photos, saved, tmp_path):
    pytest.importorskip("pandas")
    table, (_, model) = tmp_path / "test.csv", saved()
    table.write_text("id,x\ndog/0,1\ncat/3.png,2\n")
    arguments = ["embed", str(table), "--images-dir", photos, "--model", model, "-o", str(tmp_path / "rows.npz")]
    assert main(arguments) == 0
    with np.load(tmp_path / "rows.npz") as file:
        rows, paths = file["features"], file["paths"]
    assert [*paths] == [f"{photos}/dog/0.png", f"{photos}/cat/3.png"]
    assert main(["embed", *paths, "--model", model, "-o", str(tmp_path / "files.npy")]) == 0
    np.testing.assert_array_equal(rows, np.load(tmp_path / "files.npy"))
    table.write_text("x,id\n1,dog/0\n2,dog/none\n")
    arguments += ["--image-column", "id"]
    assert_refused(capsys, arguments, "1 of the 2 images .* are missing: .*dog/none.*--images-dir")
    assert_refused(capsys, ["embed", photos, *arguments[2:]], "are for a table")
    assert_refused(capsys, ["embed", str(table), photos, *arguments[4:-2]], "A table is embedded alone")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["finetune", "none", "--weights", "WEIGHTS"], "no folder or table none"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--set", "colour=red"], "no argument colour.*fields of Recipe"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--set", "learning_rate=fast"], "learning_rate must be"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--group-column", "patient"], "group_column .* table"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--folds", "2", "--image-size", "33"], "nearest: height 32"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--folds", "fold"], "names a column of a table. For a folder"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--metric", "rmse"], "rmse.*does not fit.*single.*macro_f1"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--set", "flip=no"], "flip must be True or False.*'no'"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "--set", "classes=9"], "are those of the images.*classes=9"),
        (["finetune", "PHOTOS", "--epochs", "1", "--set", "epochs=2"], "--epochs and --set epochs=… exclude"),
        (["finetune", "PHOTOS", "--weights", "WEIGHTS", "-o", "a.txt/run"], "a.txt is a file, not a folder"),
        (["embed", "PHOTOS", "--weights", "WEIGHTS", "-o", "a.txt/x/f.npy"], "a.txt is a file, not a folder"),
        (["evaluate", "empty.keras", "PHOTOS", "-o", "a.txt/page.html"], "a.txt is a file, not a folder"),
        (["export", "WEIGHTS", "-o", "a.txt/x.onnx"], "a.txt is a file, not a folder"),
        (["convert", "WEIGHTS", "a.txt/x.npz"], "a.txt is a file, not a folder"),
        (["average", "empty.keras", "-o", "soup.h5"], r"must end in \.keras.*soup\.h5"),
        (["export", "WEIGHTS", "-o", "x.onnx", "--labels", "none.txt"], "none.txt"),
        (["evaluate", "none.keras", "PHOTOS", "--image-size", "native"], r"no model file at none\.keras"),
        (["evaluate", "empty.keras", "PHOTOS", "-o", "page.txt"], r"must end in \.html"),
        (["evaluate", "empty.keras", "PHOTOS", "-o", "page.html"], r"page\.html is a folder"),
        (["embed", "PHOTOS", "--weights", "WEIGHTS", "-o", "features.csv"], r"must end in \.parquet"),
    ],
)
def test_training_commands_refuse(capsys, photos, weights, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.html").mkdir()
    (tmp_path / "a.txt").touch()
    (tmp_path / "empty.keras").touch()
    before = {path.name for path in tmp_path.iterdir()}
    names = {"PHOTOS": photos, "WEIGHTS": weights}
    assert_refused(capsys, [names.get(argument, argument) for argument in arguments], message)
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("option", ["check", "calibration"])
def test_export_takes_folders_and_images_to_check_and_calibrate_with(
    capsys, photos, picture, tmp_path, monkeypatch, option
):
    def stop(*_, **given):
        raise ValueError(f"{len(given[option])} images")

    monkeypatch.setattr(exports, "export_model", stop)
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = ["export", "vit_cifar10", "-o", str(tmp_path / "new.onnx")]
    arguments += [f"--{option}", "~/photos/cat", photos, picture]
    assert_refused(capsys, arguments, "^vit-keras: 19 images$")


def test_export_opens_the_weights_of_a_factory(capsys, tmp_path, monkeypatch):
    def stop(model, *_, **__):
        raise ValueError(f"exports {model}")

    monkeypatch.setattr(exports, "export_model", stop)
    monkeypatch.setattr(opening, "as_model", lambda model, weights, **_: f"{model} with {weights}")
    output = str(tmp_path / "new.onnx")
    arguments = ["export", "vit_ti16", "--weights", "mine.npz", "-o", output]
    assert_refused(capsys, arguments, "exports vit_ti16 with mine.npz")


# ------------------------------------------------------------------------ errors --


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["http://127.0.0.1:1/my picture.png", "--weights", "WEIGHTS"], "my.*picture"),
        (["text.npz", "--weights", "WEIGHTS"], "text.npz"),
        (["PICTURE", "--model", "resnet50"], "Unknown model .*vit_b16"),
        (["PICTURE", "--model", "vit_h14"], "vit_h14.*--weights"),  # none are published for ImageNet-1k
        (["PICTURE", "--model", "vit_b16", "--weights", "WEIGHTS"], "not a vit_b16"),
        (["PICTURE", "--model", "none.h5"], "none.h5"),
        (["PICTURE", "--model", "text.keras"], "text.keras"),
        (["PICTURE", "--model", "text.h5"], "text.h5"),
        (["PICTURE", "--weights", "imagenet22k"], "imagenet22k.*B_32/imagenet21k'"),
        (["PICTURE", "--weights", "none.npz"], r"none\.npz"),
        (["PICTURE", "--weights", "text.npz"], r"text\.npz is not"),
        (["PICTURE", "--weights", "half.npz"], "damaged or incomplete"),
        (["PICTURE"], "Ti_16.* not in the cache .*VIT_KERAS_OFFLINE"),
        (["PICTURE", "--weights", "WEIGHTS", "--set", "include_top=false"], "has no head"),
        (["PICTURE", "--weights", "WEIGHTS", "-o", "text.npz/map.png"], "text.npz"),
    ],
)
def test_predict_refuses(capsys, picture, weights, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    for suffix in ("keras", "h5", "npz"):
        Path(f"text.{suffix}").write_text("Feed the cat.")
    Path("half.npz").write_bytes(Path(weights).read_bytes()[:-9999])
    names = {"PICTURE": picture, "WEIGHTS": weights}
    assert_refused(capsys, ["predict", *(names.get(argument, argument) for argument in arguments)], message)


def test_weights_beside_a_saved_model(capsys, picture, weights, saved):
    _, path = saved()
    assert_refused(capsys, ["predict", picture, "--model", path, "--weights", weights], "Remove --weights")
    assert_refused(capsys, ["predict", picture, "--model", path, "--set", "classes=3"], "Remove --set")


def test_files_that_a_command_reads_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\n", encoding="utf-8-sig")
    assert exports._labels(tmp_path / "labels.txt") == ["cat", "dog"]
    (tmp_path / "split.json").write_text('{"validation": ["b.png"]}', encoding="utf-8-sig")
    assert training.evaluation._chosen(["a.png", "b.png"], tmp_path / "split.json", None).tolist() == [1]


# -------------------------------------------------------------------- real weights --


def test_the_default_model_is_the_real_one(capsys, shared, real_weights, monkeypatch):
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(real_weights))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    assert main(["predict", str(shared / "images" / "n02391049_zebra.jpg"), "--top", "1"]) == 0
    assert classes(capsys.readouterr().out)[0][1] == "zebra"
