"""Results of fine-tuning: files, scores, and remarks for the report."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import statistics
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ..._internal.atomic import complete
from ..._internal.plain_json import as_json
from ..data.folder import Labeled
from ..evaluation.tasks import as_lines
from ..metrics import on_scale
from ..recipes import Recipe
from .run import RunState

__all__ = ["FinetuneResult", "FoldsResult"]


@dataclasses.dataclass(frozen=True, repr=False)
class FinetuneResult:
    """The result of fine-tuning.

    Attributes:
        model: The model after the last epoch; its `labels` are the names of the classes.
        evaluation: The evaluation of the held-out images, before any model had learned them: an `Evaluation` of the
            task.
        history: Values after each epoch of the training without the held-out images, by name.
        refit: Whether `model` was then trained on all images by the same plan, so that it has learned the held-out ones
            too. If not, it is the model that `evaluation` is about.
        recipe: How it was trained.
        folder: Where `model.keras`, `report.html`, `history.json`, `recipe.json` and `split.json` are.

    Example:
        >>> [field.name for field in dataclasses.fields(FinetuneResult)][:3]
        ['model', 'evaluation', 'history']
    """

    model: keras.Model
    evaluation: Any
    history: dict[str, list[float]]
    refit: bool
    recipe: Recipe
    folder: Path

    def __repr__(self) -> str:
        learned = "all images, those held out too" if self.refit else "the images that are not held out"
        files = {name.partition(".")[0]: str(self.folder / name) for name in ("model.keras", "report.html")}
        epochs = str(len(self.history.get("loss", ())))
        told = {"epochs": epochs, "the saved model has learned": learned}
        return as_lines({**self.evaluation.figures, **told, **files})


@dataclasses.dataclass(frozen=True, repr=False)
class FoldsResult:
    """The result of fine-tuning one model for each fold.

    Attributes:
        evaluation: The evaluation of all images, each predicted by the model that has not learned it.
        scores: The metrics of each fold by name: the metric that was asked for, or else the task's own. NaN where the
            images of a fold do not define it, such as the average precision where no label differs.
        models: The files of the models.
        recipe: How they were trained.
        folder: Where `report.html`, `report.json` and `oof.csv` are, and a folder for each fold.

    Example:
        >>> [field.name for field in dataclasses.fields(FoldsResult)][:3]
        ['evaluation', 'scores', 'models']
    """

    evaluation: Any
    scores: dict[str, list[float]]
    models: tuple[Path, ...]
    recipe: Recipe
    folder: Path

    def __repr__(self) -> str:
        told = {f"{name}, mean of {len(values)} folds": spread(values) for name, values in self.scores.items()}
        return as_lines({**told, **self.evaluation.figures, "report": str(self.folder / "report.html")})


def spread(values: list[float]) -> str:
    """Return the mean of the folds, and the deviation between them; of those whose images define the metric."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "–"
    return f"{statistics.fmean(known):.4f}" + (f" ± {statistics.stdev(known):.4f}" if len(known) > 1 else "")


def mean(values: list[float]) -> float:
    """Return the mean of the folds whose images define the metric; NaN if there is none."""
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else math.nan


def models_of_folds(output: Path) -> list[Path]:
    """Return the files of the models that folds have left in a folder."""
    return [path for path in output.glob("fold*/model.keras") if re.fullmatch(r"fold\d+", path.parent.name)]


def predictions_csv(data: Labeled, rows: np.ndarray, folds: np.ndarray, evaluation: Any) -> str:
    """Return predictions of some rows, each of a fold, as a table: id, fold, true and predicted values."""
    scale = getattr(evaluation, "scale", None)
    outputs = evaluation.outputs if scale is None else on_scale(evaluation.outputs, scale)
    outputs = np.asarray(outputs, "float32").reshape(len(rows), -1)
    if data.task in ("single", "ordinal"):
        named = [
            [data.names[true], data.names[number]] for true, number in zip(evaluation.targets, evaluation.predictions)
        ]
        numbers = [f"probability_{name}" for name in data.names] if data.task == "single" else ["number"]
        header = ["target", "prediction", *numbers]
    else:
        named = [[str(value) for value in row] for row in np.asarray(evaluation.labels, "float32")]
        kind = "probability" if data.task == "multi" else "prediction"
        header = [f"{what}_{name}" for what in ("target", kind) for name in data.names]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["id", "fold", *header])
    for place in np.argsort(rows, kind="stable"):
        row = [str(value) for value in outputs[place]]  # the shortest text that reads as the same float32
        table.writerow([data.ids[rows[place]], int(folds[place]), *named[place], *row])
    return text.getvalue()


def remarks(run: RunState, wanted: int) -> list[str]:
    """Return why mirror images are left out, and what the time limit left out."""
    found = [] if run.flip_test is None or run.flip_test.safe else [run.flip_test.text]
    if run.epochs < 1:
        part = f"The time limit allowed {run.epochs:.0%} of an epoch: the other training images were not learned."
        found.append(f"{part} More time may improve the accuracy.")
    elif run.epochs < wanted:
        found.append(f"The time limit allowed {run.epochs} of {wanted} epochs. More epochs may improve the accuracy.")
    return found


def pixels(model: keras.Model) -> str:
    """Return the size of a model's images, in words."""
    return "×".join(map(str, model.config.image_size))


def write(output: Path, texts: dict[str, Any], model: keras.Model | None, probe: keras.Model | None = None) -> None:
    """Write texts, JSON and models, `model.keras` last: where it is, everything is. A run of the other kind goes."""
    mark, *others = ("model.keras", "split.json", "history.json") if model is None else ("oof.csv", "report.json")
    for fold in () if model is None else models_of_folds(output):
        fold.unlink()
    if (output / mark).exists():  # an earlier run was with folds, and this one is not, or the reverse
        for name in (*others, mark):  # the mark last, should this be interrupted
            (output / name).unlink(missing_ok=True)
    (output / "probe.keras").unlink(missing_ok=True)
    if probe is not None:
        with complete(output / "probe.keras") as part:
            probe.save(part)
    for name, text in texts.items():
        with complete(output / name) as part:
            text = text if isinstance(text, str) else as_json(text, indent=1)
            part.write_text(text, encoding="utf-8", errors="backslashreplace")  # the name of a file may not be UTF-8
    if model is not None:
        with complete(output / "model.keras") as part:
            model.save(part)
