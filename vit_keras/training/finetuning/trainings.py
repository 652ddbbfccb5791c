"""One training and its report, or one training for each fold and a joint report."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from ..._internal.atomic import complete, delete_left
from ..._internal.warn import warn_caller
from ...opening import open_model
from .. import metrics
from ..data.dataset import ImageFolder
from ..data.folder import Labeled
from ..evaluation import Evaluation, explained_images, images_of_mistakes, relative
from ..evaluation.calibration import calibrate
from ..evaluation.findings import Finding, analyze, wrong_labels
from ..evaluation.flips import FlipTest
from ..evaluation.frozen import FrozenFeatures
from ..evaluation.report import report
from ..recipes import Recipe
from . import results
from .baseline import Baseline
from .results import FinetuneResult, FoldsResult
from .run import LATER, RunState, counted, duration, images_within
from .training import Training, digest, scale_head, with_head

__all__: list[str] = []

Pair = tuple[ImageFolder, ImageFolder]


@contextmanager
def noted_warnings(notes: list[str]) -> Iterator[None]:
    """Add the texts of all warnings to a list, for the report; the warnings are shown all the same."""
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
    finally:
        texts = [str(each.message) for each in caught if each.category is UserWarning]
        notes += [text for text in dict.fromkeys(texts) if text not in notes]
        for each in caught:
            warn_caller(str(each.message), each.category)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainings:
    """The arguments of `finetune` (see there), the images and the model that were found, and its trainings."""

    data: Labeled
    given: keras.Model
    model: Any
    """As the user named it."""

    title: str
    recipe: Recipe
    output: Path
    started: float
    notes: list[str]
    epochs: int | None
    seconds: float | None
    batch_size: int | None
    metric: str | None
    balance: bool | str
    probe: bool
    calibrate: bool
    overwrite: bool
    seed: int
    mistakes: int
    refit: bool
    command: str | None
    progress: bool

    def say(self, text: str) -> None:
        """Print a line, if that is wanted."""
        if self.progress:
            print(text, flush=True)

    def settings(self) -> dict[str, Any]:
        """Return the options that a run which continues must have again."""
        names = ("epochs", "metric", "balance", "probe", "refit", "seed")
        return {"recipe": self.recipe.to_dict(), **{name: getattr(self, name) for name in names}}

    @property
    def wanted(self) -> int:
        """The number of epochs to train if there is time."""
        return self.epochs or self.recipe.epochs

    def left(self, folds: int = 1) -> float | None:
        """Return the seconds that each of some folds has from now on; `None` for no limit."""
        return None if self.seconds is None else (self.started + self.seconds - time.monotonic()) / folds

    @property
    def _accuracy_decides(self) -> bool:
        """Whether the accuracy says which of two classifiers is better: neither a metric nor a balance does."""
        return self.metric in (None, "accuracy") and not self.balance

    # --- what both have in common -------------------------------------------------------------------------------------

    def _frozen(self, pairs: Sequence[Pair], settings: dict[str, Any]) -> FrozenFeatures | None:
        """Return the features of all images before the training, if wanted, and set the batch size that time allows."""
        run = RunState(self.output / ".state", settings, self.overwrite)  # another run is an error before long work
        for number, (_, held_out) in enumerate(pairs):
            self._check_metric(held_out.rows, "the held-out part" if len(pairs) == 1 else f"fold {number}")
        frozen = None
        if self.probe:
            frozen = FrozenFeatures.of(
                self.given, *pairs[0], seconds=self.seconds, seed=self.seed, progress=self.progress
            )
        if self.batch_size is not None:
            return frozen
        size = run.settings["batch_size"] if run.begun else None
        if size is None and frozen is not None and (left := self.left(len(pairs))) is not None:
            size = self.recipe.batch_for(images_within(left, frozen.seconds / len(frozen.rows)))
            size = min(size, pairs[0][0].batch_size)
        for part in (part for pair in pairs for part in pair if size is not None):
            part.batch_size = cast("int", size)
        return frozen

    def _check_metric(self, rows: np.ndarray, part: str) -> None:
        """Raise a `ValueError` if a part of the images does not define the metric, even if all are predicted right."""
        if self.metric is None:
            return
        labels = self.data.labels[rows]
        right = np.eye(len(self.data.names))[labels] if self.data.task == "single" else labels
        found = Evaluation(self.data.names, (), labels, right, self.data.task)
        if not np.isfinite(found.score(self.metric)):
            raise ValueError(
                f"The images of {part} do not define {self.metric!r}. They are too few, or all alike: hold out more "
                "(validation_split=, --held-out, fewer folds), or pass another metric=."
            )

    def _training(self, pair: Sequence[ImageFolder], number: int = 0, folds: int = 1) -> Training:
        keras.utils.set_random_seed(self.seed + number)  # the same training, whatever was drawn before
        with noted_warnings(self.notes):
            training = Training(self, *pair)
        model, fold = training.model, "" if folds == 1 else f"Fold {number} of {folds}: "
        weights = f"{model.name} for {results.pixels(model)} pixels, {model.count_params():,} weights"
        self.say(f"{fold}{training.images}; {weights}; recipe {self.recipe.name}")
        return training

    def _page(
        self, evaluation: Evaluation, findings: Iterable[Finding], told: Iterable[str], how: Recipe, **others: Any
    ) -> str:
        findings = tuple(findings)
        return report(
            evaluation,
            notes=[*self.notes, *(each.remark for each in findings if each.remark), *told],
            command=self.command,
            recipe=how.to_dict(),
            findings=findings,
            data=self.data,
            **others,
        )

    # --- one training -----------------------------------------------------------------------------------------------

    def one(self, train: ImageFolder, held_out: ImageFolder, everything: ImageFolder | None = None) -> FinetuneResult:
        """Train one model, measure it, train one on all images if there is time, and write a report."""
        pair = (train, held_out)
        frozen = self._frozen([pair], self.settings())
        findings = () if frozen is None else analyze(frozen, self.data, [pair], seed=self.seed)
        for each in findings:
            for line in filter(None, (each.line, each.remark and f"Warning: {each.remark}")):
                self.say(line)
        training = self._training(pair)
        told = training.fit_and_measure(self.output, frozen)
        model, run, how = training.model, training.run, training.plan
        evaluation, baseline = training.evaluation, training.baseline
        again = self._refit(training, everything, frozen)
        told["refit"] = again and {"seconds": again.run.seconds, "history": again.run.history}
        probed = None
        if baseline is not None:
            advice = "ship probe.keras, or train longer or on more images"
            if again is not None:  # no number tells how good this model is
                advice = "compare probe.keras with model.keras, which has learned all images, on new ones"
            self.notes.append(baseline.verdict(evaluation.accuracy, advice, decides=self._accuracy_decides))
            self.say(self.notes[-1])
            if self._accuracy_decides and baseline.probe is not None and baseline.accuracy >= evaluation.accuracy:
                probed, _ = with_head(self.given, train.image_size, self.data.names, self.data.task, keep=False)
                baseline.probe.apply_to(probed)
                if self.calibrate:
                    calibrate(probed, held_out)
        page = self._page(
            evaluation,
            findings,
            [*results.remarks(run, self.wanted), _remark_on_refit(training, again)],
            how,
            title=f"{model.name}, fine-tuned on {self.title}",
            subtitle=training.images,
            history=run.history,
            images=images_of_mistakes(model, evaluation, self.data.root, self.mistakes),
            facts=told["facts"],
            temperature=told["temperature"],
        )
        files = {
            "report.html": page,
            "history.json": {**told, "images": {each.key: each.told for each in findings}},
            "recipe.json": how.to_dict(),
            "split.json": {**training.split(), "refit": again is not None},
        }
        model = model if again is None else again.model
        results.write(self.output, files, model, probed)
        run.remove()
        self.say(f"Wrote {self.output / 'model.keras'} and, next to it, {', '.join(files)}")
        return FinetuneResult(model, evaluation, run.history, again is not None, how, self.output)

    def _refit(
        self, training: Training, everything: ImageFolder | None, frozen: FrozenFeatures | None
    ) -> Training | None:
        """Train on all images by the plan of a training on a part of them, if wanted and if there is time."""
        if everything is None:
            return None
        left, train = self.left(), training.train
        everything.batch_size = train.batch_size
        needed = training.run.seconds * len(everything) / len(train) + LATER
        if not training.run.decide(left is None or left >= needed):
            return None
        self.say("Training on all images, by the same plan")
        again = self._training([everything])
        again.fit(self.output / ".state", frozen, whole=training.run)
        if training.temperature is not None:  # of the model that has not seen the held-out images
            scale_head(again.model, 1 / training.temperature, 0.0)
        return again

    # --- folds ------------------------------------------------------------------------------------------------------

    def folds(self, pairs: Sequence[Pair]) -> FoldsResult:
        """Train one model for each fold, and write one report of all; folds that are finished are not trained again."""
        settings = self._settings_of(pairs)
        frozen = self._frozen(pairs, settings)
        whole = self._begun({**settings, "batch_size": pairs[0][0].batch_size})  # which `_frozen` may have changed
        findings = () if frozen is None else analyze(frozen, self.data, pairs, seed=self.seed)
        done: list[dict[str, Any]] = []
        for number, pair in enumerate(pairs):
            place = self.output / f"fold{number}"
            if not (place / "model.keras").exists():
                self._fold(self._training(pair, number, len(pairs)), place, frozen, len(pairs), whole)
                gc.collect()
            delete_left(place)  # of a call that was killed after it wrote the model
            shutil.rmtree(place / ".state", ignore_errors=True)
            done.append({"fold": number, **json.loads((place / "history.json").read_text(encoding="utf-8"))})
            if not whole.epochs:
                flips = done[0].get("flip_test")
                whole.begin(done[0]["epochs"], flips and FlipTest(**flips))
        return self._joined(pairs, done, whole, findings)

    def _settings_of(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Return what the result of all folds depends on, without the batch size."""
        rows = [part.rows for _, part in pairs]
        return {
            "images": digest(json.dumps([self.data.ids, self.data.names]), self.data.labels, *rows),
            "model": digest(self.given.name, *self.given.get_weights()),
            "image_size": pairs[0][0].image_size,
            **self.settings(),
            "calibrate": self.calibrate,
        }

    def _begun(self, settings: dict[str, Any]) -> RunState:
        """Return the run of all folds, which has the number of epochs that all share."""
        whole = RunState(self.output / ".state", settings, self.overwrite)
        if not whole.begun:  # what an earlier run has left is none of this one
            for left in results.models_of_folds(self.output):
                left.unlink()
            whole.begin(0)
        return whole

    def _fold(self, training: Training, place: Path, *how: Any) -> None:
        """Train a fold, and write its model, its predictions and its numbers."""
        told = training.fit_and_measure(place, *how)
        with complete(place / "predictions.npz") as part, open(part, "wb") as file:
            np.savez(file, rows=training.parts[-1].rows, outputs=training.evaluation.raw)
        files = {"history.json": told, "recipe.json": training.plan.to_dict(), "split.json": training.split()}
        results.write(place, files, training.model)

    def _joined(
        self, pairs: Sequence[Pair], done: list[dict[str, Any]], whole: RunState, findings: tuple[Finding, ...]
    ) -> FoldsResult:
        """Join the predictions of all folds, and write their results."""
        places = [self.output / f"fold{number}" for number in range(len(pairs))]
        how = Recipe(**json.loads((places[0] / "recipe.json").read_text(encoding="utf-8")))  # the plan of all folds
        saved = [np.load(place / "predictions.npz") for place in places]
        parts = [self.evaluation(each["rows"], each["outputs"]) for each in saved]
        rows, outputs = (np.concatenate([each[name] for each in saved]) for name in ("rows", "outputs"))
        folds = np.concatenate([np.full(len(each["rows"]), number) for number, each in enumerate(saved)])
        evaluation = self.evaluation(rows, outputs)
        name = self.metric or metrics.DEFAULTS[self.data.task]
        scores = {name: [part.score(name) for part in parts]}
        spread = results.spread(scores[name])
        if self.probe and self.data.task == "single":
            learned = [np.isin(part.labels, self.data.labels[train.rows]) for part, (train, _) in zip(parts, pairs)]
            known = np.concatenate(learned)  # no model predicts a class that it has not learned
            if known.any():
                judge = "the model of the fold that has not learned the image"
                findings += (wrong_labels(self.data, rows[known], evaluation.probabilities[known], judge),)
        told = {
            "task": self.data.task,
            "scores": scores,
            "mean": {name: results.mean(values) for name, values in scores.items()},
            "folds": [{**result, "images": len(part.labels)} for result, part in zip(done, parts)],
            "out_of_fold": evaluation.to_dict(),
            "images": {each.key: each.told for each in findings},
        }
        table = [
            (
                str(result["fold"]),
                f"{len(part.labels):,}",
                results.spread([value]),
                counted(result["epochs"]),
                duration(result["seconds"]),
            )
            for result, part, value in zip(done, parts, scores[name])
        ]
        if all("before_training" in result for result in done):
            before = Baseline.joined([result["before_training"] for result in done])
            advice = "ship linear probes (training.linear_probe), or train longer or on more images"
            self.notes.append(before.verdict(evaluation.accuracy, advice, decides=self._accuracy_decides))
            self.say(self.notes[-1])
            told["before_training"] = before.to_dict()
        by = None
        if self.calibrate:
            by = np.concatenate([np.full((len(p.labels), 1), r["temperature"]) for r, p in zip(done, parts)])
        page = self._page(
            evaluation,
            findings,
            results.remarks(whole, self.wanted),
            how,
            title=f"{done[0]['facts']['model'].partition(',')[0]}, fine-tuned on {len(pairs)} folds of {self.title}",
            subtitle=f"{len(rows):,} images of {self.data.words}, each predicted by the model that has not seen it",
            folds=(("Fold", "Images", name, "Epochs", "Time"), table, f"{name}: {spread}"),
            histories=[result["history"] for result in done],
            images=self._mistakes_of_folds(evaluation, folds, places),
            facts={**done[0]["facts"], "time": duration(sum(result["seconds"] for result in done))},
            temperature=by,
        )
        files = {"report.html": page, "report.json": told, "recipe.json": how.to_dict()}
        files["oof.csv"] = results.predictions_csv(self.data, rows, folds, evaluation)
        results.write(self.output, files, None)
        whole.remove()
        self.say(f"{name}: {spread} over {len(pairs)} folds; out of fold: {evaluation.headline}")
        self.say(f"Wrote {self.output / 'report.html'} and, next to it, oof.csv, report.json and fold*/model.keras")
        return FoldsResult(evaluation, scores, tuple(p / "model.keras" for p in places), how, self.output)

    def _mistakes_of_folds(self, evaluation: Evaluation, folds: np.ndarray, places: Sequence[Path]) -> dict[int, Any]:
        """Return the images of the worst mistakes of all folds, each with the map of the model that made it."""
        worst, found = evaluation.mistakes()[: self.mistakes], {}
        for fold in np.unique(folds[worst]):
            rows = worst[folds[worst] == fold]
            found |= explained_images(open_model(places[fold] / "model.keras"), evaluation, self.data.root, rows)
            gc.collect()
        return {int(number): found[number] for number in worst}

    def evaluation(self, rows: np.ndarray, outputs: np.ndarray) -> Evaluation:
        paths = tuple(relative(self.data.paths[row], self.data.root) for row in rows)
        return Evaluation(self.data.names, paths, self.data.labels[rows], outputs, self.data.task)


def _remark_on_refit(training: Training, again: Training | None) -> str:
    """Return which model was measured, and which images the saved one has learned."""
    train, held_out = training.train, f"{len(training.parts[1].paths):,}"
    learned = f"{min(len(train.paths), training.steps * train.batch_size):,}"
    measured = f"All numbers are those of a model that learned {learned} images and had not seen the {held_out}"
    if again is not None:
        everything = f"{len(again.train.paths):,} images ({duration(again.run.seconds)})"
        return (
            f"{measured} held-out ones. The saved model then learned all {everything} by the same plan, so it should "
            "be a little better; only new images can tell."
        )
    late = training.run.refits is False
    why = " There was no time to train it again on all images." if late else ""
    return f"{measured} held-out ones. It is the one that was saved.{why}"
