"""Which grid the positions in a file are for: every family and every grid by shapes, some against their originals."""

import csv
import json
import warnings

import grid_outcomes
import numpy as np
import pytest
from family_files import load, matrix, run, write
from support import ASSUMED, OTHER_PIXELS

from vit_keras import from_checkpoint, save_weights, vit
from vit_keras.checkpoints.describe import describe
from vit_keras.checkpoints.families import FAMILIES, family_named
from vit_keras.checkpoints.families.rules import POSITIONS
from vit_keras.checkpoints.grids import Layout, read
from vit_keras.checkpoints.weights import Weights
from vit_keras.checkpoints.wording import sentences

RECTANGLES = {  # with the options that a file alone needs
    "timm_vit": {"num_heads": 2},
    "timm_deit3": {"num_heads": 2},
    "timm_clip": {"num_heads": 2, "mlp_activation": "gelu"},
    "timm_eva02": {"num_heads": 2},
    "timm_dinov2_reg4": {"num_heads": 2},
    "timm_beit": {},
    "hf_vit": {"num_heads": 2},
    "hf_dinov2": {"num_heads": 2},
    "hf_beit": {},
}


@pytest.fixture
def strict():
    """Turn warnings about grids into errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*source_grid", category=UserWarning)
        yield


def assert_is_original(model, golden):
    # Two float32 implementations differ by about 1e-6 of the largest value; the original computed in float64.
    limit = 1e-5 * max(1, np.abs(golden.output).max())
    np.testing.assert_allclose(run(model, golden.inputs), golden.output, rtol=0, atol=limit)


def of(name):
    golden = load(f"rectangles/{name}")
    grid = tuple(side // 8 for side in golden.inputs.shape[1:3])
    return golden, grid


# --- every grid of every family, by shapes alone -----------------------------------------------------------------


def test_every_family_and_grid_is_read_as_in_the_table():
    """docs/grids.csv; `python tests/goldens/grid_outcomes.py` writes it."""
    with grid_outcomes.PATH.open(encoding="utf-8") as file:
        committed = list(csv.reader(file))
    assert committed == [list(grid_outcomes.COLUMNS), *grid_outcomes.table()]


def test_no_table_is_read_wrong_without_a_word():
    read_families = set()
    for family, _, _, counts in grid_outcomes.rows():
        read_families.add(family.name)
        assert not [given for (given, word), count in counts.items() if word == "wrong" and count]
        for given in ("config.json", "source_grid"):
            assert counts[given, "right"] + counts[given, "asks"] == len(grid_outcomes.GRIDS), (family.name, given)
            assert not counts[given, "asks"] or family.name == "huggingface-beit"
        assert not counts["image_size", "square"]
        assert sum(counts["image_size", word] for word in ("right", "warns", "asks")) == len(grid_outcomes.GRIDS)
    assert len(read_families) > 35
    assert {"timm", "timm-clip", "eva02", "big_vision", "huggingface-beit", "timm-mixer"} <= read_families
    assert read_families <= set(FAMILIES)


@pytest.mark.parametrize("family", ["timm", "timm-clip", "eva02", "timm-unnormed"])
def test_square_with_or_without_a_class_row(family):
    """n * n rows are n x n patches, or n * n - 1 and a row for the class token: (n - 1) x (n + 1) for one."""
    for side in range(2, 17):
        square_with_or_without_a_class_row(family_named(family), side)


def square_with_or_without_a_class_row(family, side):
    shapes = {POSITIONS: (1, side * side, 8), "cls": (1, 1, 8)}
    table = read(shapes, family)
    assert table.grid == (side, side)
    assert "source_grid=" in table.warning
    assert read(shapes, family, source_grid=(side, side)).layout == Layout(False, False, 0)
    assert not read(shapes, family, source_grid=(side, side)).warning
    rectangle = read(shapes, family, source_grid=(side - 1, side + 1))
    assert (rectangle.grid, rectangle.layout.rows, rectangle.warning) == ((side - 1, side + 1), 1, "")
    assert read(shapes, family, stated=(side - 1, side + 1)).grid == (side - 1, side + 1)
    told = read(shapes, family, told={"position_prefix": True})
    assert told.grid is None
    assert "Pass source_grid=" in told.error
    assert not read(shapes, family, usual={"position_prefix": False, "register_positions": False}).warning


# --- against the originals ---------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("name", RECTANGLES)
@OTHER_PIXELS
def test_folder_of_a_rectangle(name, tmp_path, strict):
    golden, grid = of(name)
    model = from_checkpoint(write(golden, tmp_path).parent)
    assert model.config.grid == grid
    assert_is_original(model, golden)


@pytest.mark.parametrize("name", matrix(RECTANGLES, ["timm_dinov2_reg4", "hf_beit"]))
@ASSUMED
def test_rectangle_alone_with_source_grid(name, tmp_path, strict):
    golden, grid = of(name)
    # The original of DINOv2 reads the table as a square, whatever the images are.
    options = {"image_size": golden.inputs.shape[1:3]} if name == "hf_dinov2" else {"source_grid": grid}
    model = from_checkpoint(write(golden, tmp_path, config=False), **RECTANGLES[name], **options)
    assert_is_original(model, golden)


def test_arguments_of_timm_decide(tmp_path, strict):
    """`no_embed_class` of model_args takes the row for the class token away: 16 rows become 4 x 4 patches."""
    golden, _ = of("timm_vit")
    path = write(golden, tmp_path)
    config = json.loads((path.parent / "config.json").read_text())
    config["model_args"] |= {"no_embed_class": True, "img_size": [16, 64], "global_pool": "avg"}
    config["model_args"]["pool_include_prefix"] = True
    (path.parent / "config.json").write_text(json.dumps(config))
    weights = Weights(path)
    found = weights.table.grid, weights.table.layout.rows, weights.architecture["pooling"]
    assert found == ((2, 8), 0, "all")


# --- this package's own files ------------------------------------------------------------------------------------


def tiny(**options):
    return vit.build_model((24, 40), 8, 2, 64, 2, "tiny", 128, classes=3, **options)


@pytest.mark.parametrize(
    "options",
    [{}, *(pytest.param(o, marks=pytest.mark.slow) for o in ({"position_prefix": False}, {"pooling": "gap"}))],
)
@pytest.mark.parametrize("format", ["google", "big_vision", "timm", "huggingface", "weights.h5"])
def test_what_is_written_is_read(format, options, tmp_path):
    model = tiny(**options)
    suffix = {"google": ".npz", "big_vision": ".npz", "weights.h5": ".weights.h5"}.get(format, ".safetensors")
    path = tmp_path / f"model{suffix}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.save_weights(path) if format == "weights.h5" else save_weights(model, path, format)
        except ValueError as error:
            assert "Nothing was written" in str(error)
            pytest.skip("the format cannot hold the model")
    advice = {}
    if suffix == ".npz":
        assert any("source_grid=(3, 5)" in str(warning.message) for warning in caught)
        advice["source_grid"] = (3, 5)
    if format == "weights.h5":
        advice |= {"mlp_activation": model.config.mlp_activation, "pooling": model.config.pooling}
    again = from_checkpoint(path, **advice, num_heads=2, epsilon=model.config.epsilon)
    assert again.config.grid == (3, 5)
    inputs = np.random.default_rng(0).uniform(-1, 1, (1, 24, 40, 3)).astype("float32")
    # The same weights in the same graph.
    np.testing.assert_allclose(run(again, inputs), run(model, inputs), rtol=0, atol=1e-6)


def test_inspect_says_which_grid(tmp_path):
    golden, _ = of("timm_vit")
    report = describe(write(golden, tmp_path))
    assert report["grid"]["patches"] == (3, 5)
    assert report["grid"]["shown_by"] == "config"
    alone = describe(write(golden, tmp_path / "alone", config=False))
    assert "15 patches" in alone["grid"]["doubt"]
    lines = dict(line for group in sentences(alone) for line in group)
    assert lines["grid"].startswith("4×4, as nothing says")
    assert "source_grid" in lines["grid"]
