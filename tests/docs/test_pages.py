"""The pages run as they stand, in an empty folder, in the documented installation."""

import make_google_npz
import pytest
from pages import type_page

from vit_keras.checkpoints.locate import find

for needed in ("cleanlab", "matplotlib", "onnxruntime", "pandas", "sklearn"):
    pytest.importorskip(needed, reason="the documented installation has it")

TI_16 = "Ti_16/augreg-imagenet21k+imagenet2012-224"
SLOW = ["docs/checkpoints.md", "docs/feature_maps.md", "docs/index.md", "docs/merging.md"]
SLOW.append("docs/training.md")
QUICK = ["docs/classify.md", "docs/embed.md", "docs/explain.md", "docs/troubleshooting.md"]


@pytest.mark.filterwarnings("ignore")  # a reader sees them
@pytest.mark.parametrize(
    "page",
    [
        pytest.param("README.md", marks=[pytest.mark.slow, pytest.mark.smoke]),
        *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW),
        *QUICK,
    ],
)
def test_a_page_runs_in_an_empty_folder(page, monkeypatch, tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    make_google_npz.save(weights / find(TI_16).path.rpartition("/")[2], make_google_npz.make("ViT-Ti_16"))
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(weights))  # in place of a download
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    type_page(page)
