"""The story of the paper: its code runs, its figures are there, its numbers are those of the studies."""

import importlib
import json
import re
import zipfile

import keras
import numpy as np
import pytest
from PIL import Image
from support import ROOT

from vit_keras import vit

FOLDER = ROOT / "docs" / "paper"
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def study():
    return importlib.import_module("benchmarks.lab.scaling_study")


@pytest.fixture
def figures():
    return importlib.import_module("benchmarks.lab.paper_figures")


def test_the_code_is_one_program():
    names = {}
    for block in BLOCKS:
        exec(compile(block, "paper.md", "exec"), names)
        assert max(map(len, block.splitlines())) <= 96  # what GitHub shows without scrolling
    assert len(BLOCKS) > 10


def test_tables_are_those_of_the_studies(figures):
    assert figures.with_tables(PAGE, figures.tables()) == PAGE
    with pytest.raises(ValueError, match="<!-- end of data -->"):
        figures.with_tables(PAGE.replace("<!-- data -->", ""), figures.tables())


def test_figures_are_there_small_and_sharp(figures):
    shown = dict(re.findall(r'<img src="paper/([^"]+)" width="(\d+)"', PAGE))
    assert {path.name for path in FOLDER.iterdir() if path.suffix != ".json"} == set(shown)
    for name, width in shown.items():
        assert (FOLDER / name).stat().st_size < 150_000
        with Image.open(FOLDER / name) as picture:
            assert np.asarray(picture.convert("L")).std() > 20, name  # not blank
            if name.endswith(".webp"):
                assert picture.width == 2 * int(width) == 2 * figures.FIGURES[name.removesuffix(".webp")][0]
    assert {f"{name}.webp" for name in figures.FIGURES} <= set(shown)


def test_patches_are_put_together_as_they_were_cut(figures):
    image = np.random.default_rng(0).random((32, 48, 3), dtype="float32")
    patches = figures.cut(image, 16)
    np.testing.assert_array_equal(patches[1, 2], image[16:, 32:])
    np.testing.assert_array_equal(figures.together(patches), image)
    apart = figures.together(patches, 2)
    assert apart.shape == (34, 52, 3)
    assert (apart[16:18] == 1).all()


def tiny(image_size=32):
    model = vit.build_model(image_size, 8, 2, 16, 2, "tiny", 32, classes=10, dropout=0.0)
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(weight.name == "gamma", 0.5, weight.shape))
    return model


def test_resolution_is_measured_against_the_own_size(figures):
    model, random = tiny(), np.random.default_rng(1)
    pictures = [random.integers(0, 256, (40, 50, 3), "uint8") for _ in range(3)]
    labels = [int(model.predict(model.preprocess(picture), verbose=0).argmax()) for picture in pictures]
    labels[2] = (labels[2] + 1) % 10
    rows = figures.measure_resolution(model, pictures, labels, sizes=(32, 48))
    assert [(row["image_size"], row["positions"]) for row in rows] == [(32, "as trained"), (48, "2-D"), (48, "1-D")]
    assert (rows[0]["right"], rows[0]["same"], rows[0]["words"], rows[1]["words"]) == (2, 3, 16, 36)
    assert rows[0]["cosine"] == pytest.approx(1)
    assert rows[1]["cosine"] != rows[2]["cosine"]
    assert len([*figures.resolution_table(rows)]) == 5


def test_flat_positions_forget_where_rows_end(figures):
    model = tiny()
    table = np.zeros((1, 17, 16), "float32")
    table[0, 1:] = np.arange(16)[:, None]  # the number of the patch: 0 to 3 in the first row, 4 to 7 in the second …
    figures.positions_of(model).assign(table)
    flat = keras.ops.convert_to_numpy(figures.positions_of(figures.flat_positions(model, 64)))[0]
    np.testing.assert_allclose(flat[1:, 0], np.linspace(0, 15, 64), rtol=1e-5)
    assert (flat[0] == 0).all()


@pytest.mark.parametrize("name", ["ViT", "hybrid", "ResNet"])
def test_operations_of_a_step_are_as_pytorch_counts_them(study, name):
    if keras.backend.backend() != "torch":
        pytest.skip("PyTorch counts operations")
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, flops = study.build(name)
    images = torch.zeros((2, 32, 32, 3))
    exact = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with FlopCounterMode(display=False) as counter, exact:
        model(images, training=True).sum().backward()
    assert counter.get_total_flops() == pytest.approx(2 * flops, rel=1e-3)


def test_models_cost_about_the_same(study):
    costs = [study.build(name)[1] for name in study.ARCHITECTURES]
    assert max(costs) / min(costs) < 1.2


def test_runs_are_known_by_their_results(study):
    runs = study.paper()
    assert len(runs) == len(set(runs)) == 45
    assert study.run_of({"model": "2 × 24", "tflops": 0.0999, "accuracy": 0.3}) == study.sizes()[0]
    known = {study.run_of(result) for result in json.loads((ROOT / "docs" / "scaling.json").read_text())}
    assert known <= {*study.sizes()}
    assert {study.run_of(result) for result in study.read(FOLDER / "study.json")} <= {*runs}


def test_summaries_are_means_over_seeds(study):
    results = [
        {**study.Run("ViT", 0.32, n, seed)._asdict(), "accuracy": a, "images": 6400, "tflops": 0.32}
        for n, seed, a in ((1000, 0, 0.2), (1000, 1, 0.4), (5000, 0, 0.5))
    ]
    assert study.summary(results, model="ViT", pictures=1000) == (
        2,
        pytest.approx(30),
        pytest.approx(14.1421, rel=1e-4),
    )
    assert study.summary(results, model="ViT", pictures=5000) == (1, pytest.approx(50), None)
    assert study.summary(results, model="ResNet") is None
    results += [{**result, "model": "ResNet"} for result in results]
    assert [(row[0], row[1]) for row in study.rows_of_data(results)] == [(1000, 6.4), (5000, 1.28)]


def test_batches_show_every_picture_once_in_an_epoch(study):
    images, labels = np.zeros((128, 32, 32, 3), "uint8"), np.arange(128)
    seen = [batch for _, batch in study.batches(images, labels, 3)]
    assert sorted(np.concatenate(seen[:2])) == [*range(128)]
    few = [batch for _, batch in study.batches(images[:10], labels[:10], 3)]
    assert all(len(batch) == study.BATCH for batch in few)


@pytest.mark.slow
def test_a_study_goes_on_where_it_was(study, monkeypatch, tmp_path):
    random = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as file:
        for part, count in (("train", 40), ("test", 8)):
            for kind in range(10):
                for n in range(count):
                    pixels = np.clip(random.normal(25 * kind, 20, (32, 32, 3)), 0, 255).astype("uint8")
                    with file.open(f"{part}/{kind}/{n}.png", "w") as picture:
                        Image.fromarray(pixels).save(picture, "png")
    monkeypatch.setattr(study, "EVERY", 400)
    monkeypatch.setattr(study, "PICTURES", (100, 400))
    monkeypatch.setattr(study, "BUDGETS", (0.003, 0.012))
    monkeypatch.setattr(study, "SEEDS", (0, 1))
    output = tmp_path / "study.json"
    trained, train = [], study.train
    monkeypatch.setattr(study, "train", lambda run, *data: trained.append(run) or train(run, *data))
    arguments = [str(tmp_path / "pictures.zip"), "paper", "-o", str(output)]
    study.main([*arguments, "--seeds", "0"])
    assert len(trained) == 8
    study.main(arguments)
    assert trained == study.paper()
    results = study.read(output)
    assert [study.run_of(result) for result in results] == trained
    for run, result in zip(trained, results):
        assert result["tflops"] == pytest.approx(run.budget, rel=0.15)  # whole steps
        assert result["images"] == study.BATCH * result["steps"]
        assert 0.05 < result["accuracy"] < 1
    assert [row[0] for row in study.rows_of_data(results)] == [100, 400]
    assert [row[0] for row in study.rows_of_compute(results)] == [0.003, 0.012]
    assert (tmp_path / "study_data.png").exists()
    assert (tmp_path / "study_compute.png").exists()
