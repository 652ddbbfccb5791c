"""Print what becomes of random files of timm's and transformers' models, as rows of `docs/sweep.csv`.

    pip install timm transformers && python tools/measure_sweep.py [NAME …] > sweep.csv

Without names: all of them, which takes long. A row has the library, the model, whether the file was alone or in a
folder with its `config.json`, the outcome, and the reason or the warning.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "goldens")]

import sweep


def main() -> None:
    """Print the rows."""
    wanted = sys.argv[1:]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("library", "model", "file", "outcome", "reason"))
    libraries = (
        ("timm", sweep.timm_cases(), sweep.timm_case),
        ("transformers", sweep.hugging_face_cases(), sweep.hugging_face_case),
    )
    for library, names, write in libraries:
        for name in names:
            if wanted and name not in wanted and library not in wanted:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = list(sweep.rows(write, name, Path(folder)))
                except Exception as error:  # the original cannot be made so small
                    found = [("", "not made", f"{type(error).__name__}: {error}")]
                writer.writerows((library, name, *row) for row in found)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
