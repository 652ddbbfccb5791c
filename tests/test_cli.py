"""The command line: what it prints, what it writes, and that whatever goes wrong is said in one line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import vit_keras
from vit_keras import checkpoints, utils, visualize, vit
from vit_keras.cli import main


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


# --------------------------------------------------------------------- predict --


@pytest.mark.parametrize("top", [1, 3, 10])
def test_predict_names_the_file_and_the_most_probable_classes(capsys, picture, weights, top):
    assert main(["predict", picture, "--weights", weights, "--top", str(top)]) == 0
    output = capsys.readouterr().out
    assert picture in output.splitlines()
    model = vit.from_checkpoint(weights)
    logits = model.predict(vit.preprocess_inputs(utils.read(picture, 64))[None], verbose=0)[0]
    probabilities = 100 * softmax(logits.astype("float64"))
    order = np.argsort(-probabilities)[:top]
    assert [name for _, name in classes(output)] == [f"class {i}" for i in order]
    # Percent are printed with one digit.
    np.testing.assert_allclose([p for p, _ in classes(output)], probabilities[order], rtol=0, atol=0.0501)


def test_predict_names_five_classes_if_not_told_how_many(capsys, picture, weights):
    main(["predict", picture, "--weights", weights])
    assert len(classes(capsys.readouterr().out)) == 5


def test_predict_names_no_more_classes_than_there_are(capsys, picture, weights):
    assert main(["predict", picture, "--weights", weights, "--top", "99"]) == 0
    assert len(classes(capsys.readouterr().out)) == 10


def test_a_thousand_classes_are_those_of_imagenet(capsys, picture, google_npz, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # long names are wrapped
    main(["predict", picture, "--weights", str(google_npz("ViT-mu_16", image_size=32, classes=1000)), "--top", "1000"])
    names = [name for _, name in classes(capsys.readouterr().out)]
    assert len(names) == 1000 and set(names) == set(utils.get_imagenet_classes())


def test_predict_takes_several_pictures(capsys, picture, weights, tmp_path):
    other = write_picture(tmp_path / "other.png", 30, 30, seed=1)
    main(["predict", picture, other, "--weights", weights, "--top", "2"])
    both = capsys.readouterr().out
    main(["predict", picture, "--weights", weights, "--top", "2"])
    main(["predict", other, "--weights", weights, "--top", "2"])
    assert both == capsys.readouterr().out


def test_predict_with_a_saved_model(capsys, picture, saved):
    model, path = saved()
    assert main(["predict", picture, "--model", path, "--top", "4"]) == 0
    logits = model.predict(vit.preprocess_inputs(utils.read(picture, 32))[None], verbose=0)[0]
    assert [name for _, name in classes(capsys.readouterr().out)] == [f"class {i}" for i in np.argsort(-logits)]


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_probabilities_of_the_model_are_printed_as_they_are(capsys, picture, saved, activation):
    model, path = saved(activation=activation)
    main(["predict", picture, "--model", path])
    scores = model.predict(vit.preprocess_inputs(utils.read(picture, 32))[None], verbose=0)[0]
    printed = [percent for percent, _ in classes(capsys.readouterr().out)]
    np.testing.assert_allclose(printed, 100 * np.sort(scores)[::-1], rtol=0, atol=0.0501)  # one digit is printed


@pytest.mark.parametrize("model", ["vit_ti16", "vit-ti16"])
def test_predict_with_a_model_and_its_weights(capsys, picture, google_npz, model):
    path = str(google_npz("ViT-Ti_16", image_size=32, classes=10))
    assert main(["predict", picture, "--model", model, "--weights", path, "--top", "1"]) == 0
    assert len(classes(capsys.readouterr().out)) == 1


# ------------------------------------------------------------------- attention --


def test_attention_writes_a_picture_of_the_pictures_size(capsys, picture, weights, tmp_path):
    path = tmp_path / "new" / "folder" / "map.png"
    assert main(["predict", picture, "--weights", weights, "--attention", str(path)]) == 0
    image = Image.open(path)
    assert image.format == "PNG" and image.mode == "RGB" and image.size == (56, 40)
    expected = visualize.attention_map(vit.from_checkpoint(weights), picture)
    assert np.abs(np.asarray(image).astype(int) - expected).max() <= 1  # where rounding tips over
    assert str(path) in capsys.readouterr().out


def test_attention_of_several_pictures_goes_to_as_many_files(capsys, picture, weights, tmp_path):
    other = write_picture(tmp_path / "other.png", 30, 70, seed=1)
    assert main(["predict", picture, other, "--weights", weights, "--attention", str(tmp_path / "map.png")]) == 0
    sizes = {path.name: Image.open(path).size for path in tmp_path.glob("map*")}
    assert sizes == {"map-1.png": (56, 40), "map-2.png": (70, 30)}


@pytest.mark.parametrize("names", [("a/picture.png", "b/picture.png"), ("picture.png", "picture.bmp")])
def test_attention_of_pictures_of_the_same_name(capsys, weights, tmp_path, names):
    first, second = (write_picture(tmp_path / name, seed=seed) for seed, name in enumerate(names))
    maps = tmp_path / "maps"
    assert main(["predict", first, second, "--weights", weights, "--attention", str(maps / "map.png")]) == 0
    assert len(list(maps.iterdir())) == 2


# ---------------------------------------------------------------------- models --


@pytest.mark.parametrize("columns", ["80", "60"])  # a name that is cut off is of no use
def test_models_lists_every_checkpoint(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["models"]) == 0
    words = capsys.readouterr().out.split()
    names = [checkpoint.name for checkpoint in checkpoints.available()]
    assert names and set(names) <= set(words)


def test_models_says_which_are_here(capsys, tmp_path, monkeypatch):
    main(["models"])
    assert "yes" not in capsys.readouterr().out.split()
    checkpoint = checkpoints.available(variant="Ti_16", image_size=384)[0]
    with open(tmp_path / Path(checkpoint.path).name, "wb") as file:
        file.truncate(checkpoint.bytes)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    main(["models"])
    here = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "yes" in line.split()]
    assert here == [checkpoint.name]


# ------------------------------------------------------------------------ errors --


def test_a_missing_picture(capsys, weights, tmp_path):
    missing = str(tmp_path / "nothing.jpg")
    assert_refused(capsys, ["predict", missing, "--weights", weights], r"Could not find image.*nothing\.jpg")


def test_what_is_no_picture(capsys, weights, tmp_path):
    (tmp_path / "notes.jpg").write_text("Feed the cat.")
    assert_refused(capsys, ["predict", str(tmp_path / "notes.jpg"), "--weights", weights], r"reading .*notes\.jpg")


def test_a_wrong_picture_is_found_before_anything_is_printed(capsys, picture, weights, tmp_path):
    main(["predict", picture, str(tmp_path / "nothing.jpg"), "--weights", weights])
    assert capsys.readouterr().out == ""


def test_an_address_that_is_none(capsys, weights):
    assert_refused(capsys, ["predict", "http://127.0.0.1:1/my picture.png", "--weights", weights], "my.*picture")


@pytest.mark.parametrize("model", ["resnet50", "vit_b64"])
def test_an_unknown_model(capsys, picture, model):
    assert_refused(capsys, ["predict", picture, "--model", model], "Unknown model .*vit_b16")


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_a_missing_model(capsys, picture, tmp_path, name):
    assert_refused(capsys, ["predict", picture, "--model", str(tmp_path / name)], name)


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_what_is_no_model(capsys, picture, tmp_path, name):
    (tmp_path / name).write_text("Feed the cat.")
    assert_refused(capsys, ["predict", picture, "--model", str(tmp_path / name)], name)


def test_unknown_weights(capsys, picture):
    assert_refused(capsys, ["predict", picture, "--weights", "imagenet22k"], "Unexpected weights: imagenet22k.*B_16/")


def test_missing_weights(capsys, picture, tmp_path):
    assert_refused(capsys, ["predict", picture, "--weights", str(tmp_path / "none.npz")], r"no file .*none\.npz")


def test_published_weights_that_are_not_here(capsys, picture, monkeypatch):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    assert_refused(capsys, ["predict", picture], "Ti_16.* is not in the cache and VIT_KERAS_OFFLINE is set")


def test_a_model_without_published_weights_for_imagenet(capsys, picture):
    assert_refused(capsys, ["predict", picture, "--model", "vit_h14"], "No ImageNet-1k weights .*vit_h14.*--weights")


def test_weights_of_another_architecture(capsys, picture, weights):
    assert_refused(capsys, ["predict", picture, "--model", "vit_b16", "--weights", weights], "not a vit_b16")


def test_weights_beside_a_saved_model(capsys, picture, weights, saved):
    _, path = saved()
    assert_refused(capsys, ["predict", picture, "--model", path, "--weights", weights], "leave out --weights")


def test_a_text_as_weights(capsys, picture, tmp_path):
    (tmp_path / "notes.npz").write_text("Feed the cat.")
    assert_refused(capsys, ["predict", picture, "--weights", str(tmp_path / "notes.npz")], r"notes\.npz is not")


def test_truncated_weights(capsys, picture, weights):
    os.truncate(weights, os.path.getsize(weights) // 2)
    assert_refused(capsys, ["predict", picture, "--weights", weights], "damaged or incomplete")


@pytest.mark.parametrize("top", ["0", "-3"])
def test_a_top_that_is_none(capsys, picture, weights, top):
    assert_refused(capsys, ["predict", picture, "--weights", weights, f"--top={top}"], f"--top .*{top}")


def test_a_model_that_is_no_classifier(capsys, picture, saved):
    _, path = saved(include_top=False, pooling=None)
    assert_refused(capsys, ["predict", picture, "--model", path], "no classifier")


def test_a_model_for_grey_images(capsys, picture, saved):
    _, path = saved(channels=1)
    status = main(["predict", picture, "--model", path])
    assert capsys.readouterr().err.count("\n") == status  # it works, or one line says why not


def test_a_model_of_two_outputs(capsys, picture, tmp_path):
    inputs = keras.Input((32, 32, 3))
    flat = keras.layers.Flatten()(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(3)(flat), keras.layers.Dense(3)(flat)])
    model.save(tmp_path / "two.keras")
    assert_refused(capsys, ["predict", picture, "--model", str(tmp_path / "two.keras")], "output")


def test_attention_of_a_model_without_any(capsys, picture, tmp_path):
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.save(tmp_path / "plain.keras")
    arguments = ["predict", picture, "--model", str(tmp_path / "plain.keras"), "--attention", str(tmp_path / "map.png")]
    assert_refused(capsys, arguments, "Expected one Vision Transformer")


@pytest.mark.parametrize("name", ["map.txt", "map"])
def test_attention_into_a_file_of_no_known_kind(capsys, picture, weights, tmp_path, name):
    assert_refused(
        capsys, ["predict", picture, "--weights", weights, "--attention", str(tmp_path / name)], "extension|format"
    )


def test_attention_into_a_place_where_nothing_can_be_written(capsys, picture, weights, tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "map.png")
    assert_refused(capsys, ["predict", picture, "--weights", weights, "--attention", path], "file")


@pytest.mark.parametrize("arguments", [[], ["predict"], ["paint", "a.png"], ["predict", "a.png", "--top", "many"]])
def test_wrong_arguments_show_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("usage: vit-keras")


# ----------------------------------------------------------------------- version --


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"vit-keras {vit_keras.__version__}\n"


def test_the_package_runs_as_a_program():
    root = str(Path(vit_keras.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "-m", "vit_keras", "--version"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stdout) == (0, f"vit-keras {vit_keras.__version__}\n")
    assert "Traceback" not in result.stderr


# -------------------------------------------------------------------- real weights --


def test_a_zebra(capsys, shared, real_weights):
    assert main(["predict", str(shared / "images" / "n02391049_zebra.jpg"), "--weights", str(real_weights)]) == 0
    assert classes(capsys.readouterr().out)[0][1] == "zebra"


def test_the_default_model_is_the_real_one(capsys, shared, real_weights, monkeypatch):
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(real_weights))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    assert main(["predict", str(shared / "images" / "n02391049_zebra.jpg"), "--top", "1"]) == 0
    assert classes(capsys.readouterr().out)[0][1] == "zebra"
