"""The notebook runs from top to bottom, offline, on a competition as Kaggle lays one out."""

import json
import os
import subprocess
import sys

import make_google_npz
import numpy as np
import pytest
from PIL import Image
from support import ROOT

from vit_keras.checkpoints.locate import find

NOTEBOOK = json.loads((ROOT / "examples" / "kaggle.ipynb").read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.any_backend
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    contest, weights = tmp_path / "input" / "flowers", tmp_path / "input" / "vit" / "keras" / "ti16" / "1"
    rng, rows = np.random.default_rng(0), {"train": [], "test": []}
    for part, count in (("train", 8), ("test", 3)):
        (contest / part).mkdir(parents=True)
        for n in range(count):
            pixels = rng.integers(0, 120, (40, 50, 3)) + np.array([120 * (n % 2), 0, 0])
            Image.fromarray(pixels.astype("uint8")).save(contest / part / f"{n:03}.jpg")
            rows[part].append({"id": f"{n:03}", "label": ("daisy", "rose")[n % 2]})
        pd.DataFrame(rows[part]).to_csv(contest / f"{part}.csv", index=False)
    sample = pd.DataFrame({"id": ["000", "001", "002"], "rose": 0.5, "daisy": 0.5})
    sample.to_csv(contest / "sample_submission.csv", index=False)
    weights.mkdir(parents=True)
    name = find("Ti_16/augreg-imagenet21k+imagenet2012-224").path.rsplit("/")[-1]
    make_google_npz.save(weights / name, make_google_npz.make("ViT-Ti_16"))
    code = "\n".join(CODE).replace("FOLDS, EPOCHS, BATCH = 5, 10, 32", "FOLDS, EPOCHS, BATCH = 2, 1, 4")
    assert "= 2, 1, 4" in code
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "KAGGLE_INPUT": str(tmp_path / "input"), "KERAS_BACKEND": "torch", "PYTHONPATH": path}
    (tmp_path / "working").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "working",
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = pd.read_csv(tmp_path / "working" / "submission.csv", dtype={"id": str})
    assert [*found.columns] == ["id", "rose", "daisy"] and found["id"].tolist() == ["000", "001", "002"]
    np.testing.assert_allclose(found[["rose", "daisy"]].sum(axis=1), 1, atol=1e-5)
    assert {"report.html", "oof.csv", "fold0", "fold1"} <= {
        path.name for path in (tmp_path / "working/folds").iterdir()
    }
