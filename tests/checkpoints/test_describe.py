"""What is known of a file without reading its values, and the names that these modules had before."""

import json

import keras
import numpy as np
import pytest
from family_files import load, write, write_safetensors
from torch_pickles import state_dict, tensor, torch_zip

import vit_keras
from vit_keras import vit
from vit_keras.checkpoints import describe, save_weights, wording
from vit_keras.checkpoints.families import FAMILIES


def test_options_that_a_file_needs(tmp_path):
    path = write(load("timm_clip"), tmp_path, config=False)
    report = describe.describe(path)
    assert set(report["needed"]) == {"num_heads", "mlp_activation"}
    headings = [pair for group in wording.sentences(report) for pair in group]
    assert ("pass", "mlp_activation=, which the file does not show: one of quick_gelu, gelu") in headings
    assert ("heads", "unknown") in headings
    json.dumps(report)


def test_a_run_of_finetune_is_its_model(tmp_path):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)
    keras.Sequential([model, keras.layers.Dense(2, name="mine")]).save(tmp_path / "model.keras")
    model.save(tmp_path / "probe.keras")
    report = describe.describe(tmp_path)
    assert report["path"] == str(tmp_path / "model.keras")
    texts = [text for group in wording.sentences(report) for _, text in group]
    assert any("vit_keras.load_model opens the file" in text for text in texts)
    assert not any("strict=False" in text for text in texts)


def test_a_saved_hybrid_with_the_root_of_a_resnet(tmp_path):
    model = vit.vit_cifar10()
    model.save(tmp_path / "hybrid.keras")
    model.save_weights(tmp_path / "hybrid.weights.h5")
    report = describe.describe(tmp_path / "hybrid.keras")
    assert report["problem"] is None and "resnet=()" in dict(wording.sentences(report)[1])["options"]
    read = vit_keras.from_checkpoint(tmp_path / "hybrid.weights.h5", num_heads=4)
    for own, expected in zip(read.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("units", [(2, 1), (1,), (1, 2, 2)])
def test_a_saved_hybrid_with_the_units_of_a_resnet(units, tmp_path):
    """Keras numbers the units without their stages."""
    side = 2 ** (4 + len(units))
    model = vit.build_model(side, 2, 1, 64, 2, "hybrid", 64, classes=3, resnet=units, resnet_numerics="timm")
    model.save(tmp_path / "hybrid.keras")
    model.save_weights(tmp_path / "hybrid.weights.h5")
    report = describe.describe(tmp_path / "hybrid.keras")
    assert report["problem"] is None and report["architecture"]["resnet"] == units
    read = vit_keras.from_checkpoint(tmp_path / "hybrid.weights.h5", num_heads=2)
    assert read.config.resnet == units and read.load_report.assumed["resnet_numerics"] == "google"
    for own, expected in zip(read.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, expected)


def test_families_that_cannot_be_built_are_not_the_closest(tmp_path):
    arrays = load("hf_vit").state_dict()
    del arrays["vit.embeddings.patch_embeddings.projection.weight"]
    problem = describe.describe(write_safetensors(tmp_path / "a.safetensors", arrays))["problem"]
    assert f"{FAMILIES['huggingface'].title}; missing: 'embeddings.patch_embeddings.projection.weight'" in problem


def test_values_that_are_not_finite_or_not_read_in_a_file_of_no_known_family(tmp_path):
    program = state_dict(a=tensor((2,), (1,)), q=tensor((2,), (1,), function="_rebuild_qtensor"))
    path = torch_zip(tmp_path / "a.pth", program, [np.array([1, np.nan], "float32").tobytes()])
    report = describe.describe(path, names=True, values=True)
    assert (report["not_finite"], report["damaged"]) == (["a"], [])
    assert [wording.becomes(entry) for entry in report["names"]] == ["(unknown)", "(unknown)"]
    file, failure = wording.sentences(report)
    assert dict(file)["unreadable"].startswith("1 array, such as q: the tensor is quantized")
    assert failure[1:] == [("it holds", "a  2"), ("", "q  one value")]


def test_fields_that_a_file_does_not_store(tmp_path):
    model = vit.build_model(32, 8, 1, 64, 2, "small", 64, classes=2, mlp_activation="gelu", dropout=0.0)
    save_weights(model, tmp_path / "x.safetensors")
    assert describe.unstored_fields(tmp_path / "x.safetensors", model.config) == {}
    with pytest.warns(UserWarning, match="store mlp_activation='gelu'"):
        save_weights(model, tmp_path / "x.npz")
    assert describe.unstored_fields(tmp_path / "x.npz", model.config) == {"mlp_activation": "gelu"}
    config = model.config.replace(activation="softmax", mlp_activation="gelu_tanh")
    assert describe.unstored_fields(tmp_path / "x.npz", config) == {"activation": "softmax"}
    assert describe.unstored_fields(tmp_path / "x.npz", config.replace(include_top=False)) == {}
    merging = config.replace(activation="linear", merge_tokens=2)
    assert describe.unstored_fields(tmp_path / "x.npz", merging) == {"merge_tokens": 2}
