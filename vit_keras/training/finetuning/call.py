"""A call of `finetune`: a training run with its report, or a run for each fold and a joint report."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from ..._internal.atomic import complete
from ..._internal.warn import warn_caller
from ...opening import open_model
from .. import metrics
from ..data.dataset import ImageFolder
from ..data.folder import Labeled
from ..evaluation import Evaluation, explained_pictures, pictures_of_mistakes, relative
from ..evaluation.calibration import calibrate, tempered
from ..evaluation.findings import Finding, look_at, wrong_labels
from ..evaluation.flips import FlipTest
from ..evaluation.frozen import Frozen
from ..evaluation.report import report
from ..recipes import Recipe
from .baseline import Baseline
from .job import Job, digest, duration, with_head
from .options import FinetuneOptions, check_metric
from .results import (
    FinetuneResult,
    FoldsResult,
    facts,
    mean,
    models_of_folds,
    pixels,
    predictions_csv,
    remarks,
    remarks_on_plan,
    spread,
    write,
)
from .run import Run, TimeLimit, counted, images_within

__all__: list[str] = []


@contextmanager
def noted_warnings(notes: list[str]) -> Iterator[None]:
    """Add the texts of all warnings to a list, for the report; the warnings are shown all the same."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
    except BaseException:
        with suppress(Warning):  # where warnings are errors, none replaces this one
            _note(caught, notes)
        raise
    _note(caught, notes)


def _note(caught: list[warnings.WarningMessage], notes: list[str]) -> None:
    texts = [str(warning.message) for warning in caught if warning.category is UserWarning]
    notes += [text for text in dict.fromkeys(texts) if text not in notes]
    for warning in caught:
        warn_caller(str(warning.message), warning.category)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A request to fine-tune, with the images and the model that were found.

    Attributes:
        data: The images.
        given: The model to begin with.
        model: How it was named.
        title: What the images are called.
        recipe: How to train.
        output: Folder for the results.
        started: When the call began, as `time.monotonic()` counts.
        options: What was asked for.
        notes: Warnings, for the report.
    """

    data: Labeled
    given: keras.Model
    model: Any
    title: str
    recipe: Recipe
    output: Path
    started: float
    options: FinetuneOptions
    notes: list[str]

    def job(self, train: ImageFolder, held_out: ImageFolder) -> Job:
        """Return the job of training on one part of the images."""
        with noted_warnings(self.notes):
            return Job.of(self.given, self.recipe, train, held_out, self.data, self.options)

    def fit(
        self,
        job: Job,
        output: Path,
        frozen: Frozen | None,
        folds: int = 1,
        whole: Run | None = None,
    ) -> Run:
        """Train, or continue, in a folder, and return the run, whose state is still there.

        Args:
            job: What to train.
            output: The folder.
            frozen: The features of the images, if they are known.
            folds: The number of trainings that share the time that is left.
            whole: For a fold, the run of all folds; the first fold decides the plan of all.
        """
        run, wanted, limit = (
            Run(output / ".state", job.settings(), self.options.overwrite, job.best_by),
            self._wanted,
            None,
        )
        if not run.done:
            job.start_head(run, frozen)
        if run.decided is None and whole is not None and whole.decided is not None:
            run.begin(whole.decided, whole.flip_test, whole.plan_steps)
            job.say_plan(run)
        elif run.decided is None:
            flips = job.test_flips(wanted)
            if (left := self._left(folds)) is not None:
                passes = 1 if job.options.metric is None else 2  # over the held-out images
                limit = TimeLimit(time.monotonic() + left, wanted, len(job.train), passes * len(job.held_out))
            run.begin(wanted if limit is None else job.plan(run, limit), flips)
            job.say_plan(run)
        job.fit(run, limit)
        return run

    def _frozen(self, train: ImageFolder, held_out: ImageFolder) -> Frozen | None:
        """Return the features of all images before the training, where that is wanted."""
        if not self.options.probe:
            return None
        return Frozen.of(self.given, train, held_out, seconds=self.options.seconds, seed=self.options.seed)

    def _choose_batch(self, frozen: Frozen | None, pairs: Sequence[tuple[ImageFolder, ImageFolder]]) -> None:
        """Set the batch size, unless the user did: the one of an unfinished run, or one that fits the time limit."""
        if self.options.batch_size is not None:
            return
        size = None if self.options.overwrite else Run.batch_size(self.output / ".state")
        if size is None and frozen is not None and (left := self._left(len(pairs))) is not None:
            size = self.recipe.batch_for(images_within(left, frozen.seconds / len(frozen.rows)))
            size = min(size, pairs[0][0].batch_size)
        if size is not None:
            for part in (part for pair in pairs for part in pair):
                part.batch_size = size

    def _baseline(self, frozen: Frozen | None, job: Job) -> Baseline | None:
        """Return the baseline of the features before training, for images with one class."""
        if frozen is None or self.data.task != "single":
            return None
        parts, classes = (job.train.rows, job.held_out.rows), len(self.data.names)
        found = Baseline.of(frozen, self.data.labels, *parts, classes=classes)
        if found is not None:
            job.say(
                f"Without training, of {found.held_out:,} held-out images ({duration(found.seconds)}): {found.text}"
            )
        return found

    def _untrained(self, train: ImageFolder) -> keras.Model:
        return with_head(self.given, train.image_size, self.data.names, self.data.task, keep=False)[0]

    def _left(self, folds: int = 1) -> float | None:
        """Return the seconds that each of some folds has from now on; `None` for no limit."""
        seconds = self.options.seconds
        return None if seconds is None else (self.started + seconds - time.monotonic()) / folds

    @property
    def _accuracy_decides(self) -> bool:
        """Whether the accuracy says which of two classifiers is better: neither a metric nor a balance does."""
        return self.options.metric in (None, "accuracy") and not self.options.balance

    @property
    def _wanted(self) -> int:
        return self.options.epochs or self.recipe.epochs

    def _facts(self, job: Job, epochs: float, seconds: float) -> dict[str, Any]:
        told: dict[str, Any] = {"epochs": counted(epochs), "time": duration(seconds)}
        told |= {"batch": job.train.batch_size, "seed": self.options.seed}
        metric = {} if self.options.metric is None else {"metric": self.options.metric}
        return {**facts(job.model, self.given, self.model), **told, **metric}

    def _look(self, frozen: Frozen | None, pairs: Sequence[tuple[ImageFolder, ImageFolder]]) -> tuple[Finding, ...]:
        """Look at the images before the training."""
        return () if frozen is None else look_at(frozen, self.data, pairs, seed=self.options.seed)

    def _calibrated(self, model: keras.Model, evaluation: Any) -> tuple[Any, float | None]:
        """Calibrate a model if requested; return its evaluation and the temperature."""
        if not self.options.calibrate:
            return evaluation, None
        by = calibrate(model, evaluation)
        shares = tempered(evaluation.probabilities, by, evaluation.task).astype("float32")
        return dataclasses.replace(evaluation, raw=shares), by

    # --- one training -----------------------------------------------------------------------------------------------

    def one(self, train: ImageFolder, held_out: ImageFolder) -> FinetuneResult:
        """Train one model, and write its report."""
        check_metric(self.options, self.data, held_out.rows, "the held-out part")
        frozen = self._frozen(train, held_out)
        self._choose_batch(frozen, [(train, held_out)])
        keras.utils.set_random_seed(self.options.seed)  # the same training, whatever was drawn before
        job = self.job(train, held_out)
        tuned = job.model
        job.say(
            f"{job.pictures}; {tuned.name} for {pixels(tuned)} pixels, {tuned.count_params():,} weights; recipe "
            f"{self.recipe.name}"
        )
        before, findings = self._baseline(frozen, job), self._look(frozen, [(train, held_out)])
        for each in findings:
            for line in filter(None, (each.line, each.remark and f"Warning: {each.remark}")):
                job.say(line)
        run = self.fit(job, self.output, frozen)
        evaluation, by = self._calibrated(tuned, job.evaluate())
        how = job.plan_of(run)
        job.say(f"On the held-out images: {evaluation.headline}")
        if before is not None:
            self.notes.append(before.verdict(evaluation.accuracy, decides=self._accuracy_decides))
            job.say(self.notes[-1])
        beaten = before is not None and self._accuracy_decides and before.beats(evaluation.accuracy)
        probed = cast("Baseline", before).put_into(self._untrained(train)) if beaten else None
        if probed is not None and self.options.calibrate:
            calibrate(probed, held_out)
        page = report(
            evaluation,
            title=f"{tuned.name}, fine-tuned on {self.title}",
            subtitle=job.pictures,
            history=run.history,
            best_epoch=run.best,
            notes=[*self.notes, *(each.remark for each in findings if each.remark), *remarks(run, self._wanted)],
            pictures=pictures_of_mistakes(tuned, evaluation, self.data.root, self.options.mistakes),
            command=self.options.command,
            recipe=how.to_dict(),
            facts=self._facts(job, run.epochs, run.seconds),
            temperature=by,
            findings=findings,
            data=self.data,
        )
        told = {"best_epoch": run.best, "seconds": run.seconds, "history": run.history, "temperature": by}
        told |= {**_told(before, run), "images": {each.key: each.told for each in findings}}
        files = {
            "report.html": page,
            "history.json": {**told, "held_out": evaluation.to_dict()},
            "recipe.json": how.to_dict(),
            "split.json": job.split(),
        }
        write(self.output, files, tuned, probed)
        run.remove()
        job.say(f"Wrote {self.output / 'model.keras'} and, next to it, {', '.join(files)}")
        return FinetuneResult(tuned, evaluation, run.history, run.best, how, self.output)

    # --- folds ------------------------------------------------------------------------------------------------------

    def folds(self, pairs: Sequence[tuple[ImageFolder, ImageFolder]]) -> FoldsResult:
        """Train one model for each fold, and write one report of all; folds that are finished are not trained again."""
        for number, (_, held_out) in enumerate(pairs):
            check_metric(self.options, self.data, held_out.rows, f"fold {number}")
        frozen = self._frozen(*pairs[0])
        self._choose_batch(frozen, pairs)
        whole = self._begun(pairs)
        findings = self._look(frozen, pairs)
        results: list[dict[str, Any]] = []
        for number, (train, held_out) in enumerate(pairs):
            place = self.output / f"fold{number}"
            if not (place / "model.keras").exists():
                self._fold(place, number, len(pairs), whole, frozen, train, held_out)
                gc.collect()
            shutil.rmtree(place / ".state", ignore_errors=True)  # left where a call was killed right after the model
            results.append({"fold": number, **json.loads((place / "history.json").read_text(encoding="utf-8"))})
            if whole.decided is None:
                flips = results[0].get("flip_test")
                whole.begin(results[0]["epochs"], flips and FlipTest(**flips), results[0].get("plan_steps"))
        return self._joined(pairs, results, whole, findings)

    def _begun(self, pairs: Sequence[tuple[ImageFolder, ImageFolder]]) -> Run:
        """Return the run of all folds: what it depends on, and the number of epochs, which all folds share."""
        rows = [held_out.rows for _, held_out in pairs]
        weights = [array for array in (self.data.weights,) if array is not None]
        told = json.dumps([self.data.ids, self.data.names])
        settings = {
            "pictures": digest(told, self.data.labels, *weights, *rows),
            "model": digest(self.given.name, *self.given.get_weights()),
            "recipe": self.recipe.to_dict(),
            "batch_size": pairs[0][0].batch_size,
            "image_size": pairs[0][0].image_size,
            **self.options.saved(),
            "calibrate": self.options.calibrate,
        }
        whole = Run(self.output / ".state", settings, self.options.overwrite)
        if not whole.begun:  # what an earlier run has left is none of this one
            for left in models_of_folds(self.output):
                left.unlink()
            whole.begin(None)
        return whole

    def _fold(
        self,
        place: Path,
        number: int,
        count: int,
        whole: Run,
        frozen: Frozen | None,
        train: ImageFolder,
        held_out: ImageFolder,
    ) -> None:
        keras.utils.set_random_seed(self.options.seed + number)
        job = self.job(train, held_out)
        job.say(f"Fold {number} of {count}: {job.pictures}")
        before = self._baseline(frozen, job)
        run = self.fit(job, place, frozen, count, whole)
        evaluation, by = self._calibrated(job.model, job.evaluate())
        job.say(f"On fold {number}: {evaluation.headline}")
        told = {"best_epoch": run.best, "epochs": run.epochs, "seconds": run.seconds, "history": run.history}
        told |= {"plan_steps": job.plan_steps(run), **_told(before, run)}
        with complete(place / "predictions.npz") as part, open(part, "wb") as file:
            np.savez(file, rows=held_out.rows, outputs=evaluation.raw)
        told["facts"] = {name: str(value) for name, value in self._facts(job, run.epochs, run.seconds).items()}
        told |= {"held_out": evaluation.to_dict(), "temperature": by}
        how = job.plan_of(run)
        files = {"history.json": told, "recipe.json": how.to_dict(), "split.json": job.split()}
        write(place, files, job.model)
        run.remove()

    def _joined(
        self,
        pairs: Sequence[tuple[ImageFolder, ImageFolder]],
        results: list[dict[str, Any]],
        whole: Run,
        findings: tuple[Finding, ...],
    ) -> FoldsResult:
        """Join the predictions of all folds, and write their results."""
        places = [self.output / f"fold{number}" for number in range(len(pairs))]
        how = Recipe(**json.loads((places[0] / "recipe.json").read_text(encoding="utf-8")))  # the plan of all folds
        saved = [np.load(place / "predictions.npz") for place in places]
        parts = [self._evaluation(each["rows"], each["outputs"]) for each in saved]
        rows = np.concatenate([each["rows"] for each in saved])
        folds = np.concatenate([np.full(len(each["rows"]), number) for number, each in enumerate(saved)])
        evaluation = self._evaluation(rows, np.concatenate([each["outputs"] for each in saved]))
        name, scores = self._scores(parts)
        if self.options.probe and self.data.task == "single":
            learned = [np.isin(part.labels, self.data.labels[train.rows]) for part, (train, _) in zip(parts, pairs)]
            known = np.concatenate(learned)  # no model predicts a class that it has not learned
            if known.any():
                judge = "the model of the fold that has not learned the image"
                findings += (wrong_labels(self.data, rows[known], evaluation.probabilities[known], judge),)
        told = {
            "task": self.data.task,
            "scores": scores,
            "mean": {name: mean(values) for name, values in scores.items()},
            "folds": [{**r, "pictures": len(part.labels)} for r, part in zip(results, parts)],
            "out_of_fold": evaluation.to_dict(),
            "images": {each.key: each.told for each in findings},
        }
        table = [
            (
                str(result["fold"]),
                f"{len(part.labels):,}",
                spread([value]),
                f"{result['best_epoch'] + 1} of {len(result['history']['loss'])}",
                duration(result["seconds"]),
            )
            for result, part, value in zip(results, parts, scores[name])
        ]
        if all("before_training" in result for result in results):
            before = Baseline.joined([result["before_training"] for result in results])
            saved = "linear probes (training.linear_probe)"
            self.notes.append(before.verdict(evaluation.accuracy, saved, decides=self._accuracy_decides))
            told["before_training"] = before.to_dict()
        by = None
        if self.options.calibrate:
            by = np.concatenate([np.full((len(p.labels), 1), r["temperature"]) for r, p in zip(results, parts)])
        page = report(
            evaluation,
            title=f"{results[0]['facts']['model'].partition(',')[0]}, fine-tuned on {len(pairs)} folds of {self.title}",
            subtitle=f"{len(rows):,} images of {self.data.words}, each predicted by the model that has not seen it",
            folds=(("Fold", "Images", name, "Best epoch", "Time"), table, f"{name}: {spread(scores[name])}"),
            histories=[(result["history"], result["best_epoch"]) for result in results],
            notes=[
                *self.notes,
                *(each.remark for each in findings if each.remark),
                *remarks_on_plan(whole, self._wanted),
            ],
            pictures=self._mistakes_of_folds(evaluation, folds, places),
            command=self.options.command,
            recipe=how.to_dict(),
            facts={**results[0]["facts"], "time": duration(sum(result["seconds"] for result in results))},
            temperature=by,
            findings=findings,
            data=self.data,
        )
        files = {"report.html": page, "report.json": told, "recipe.json": how.to_dict()}
        write(self.output, {**files, "oof.csv": predictions_csv(self.data, rows, folds, evaluation)}, None)
        whole.remove()
        if self.options.progress:
            print(f"{name}: {spread(scores[name])} over {len(pairs)} folds; out of fold: {evaluation.headline}")
            print(f"Wrote {self.output / 'report.html'} and, next to it, oof.csv, report.json and fold*/model.keras")
        return FoldsResult(evaluation, scores, tuple(p / "model.keras" for p in places), how, self.output)

    def _mistakes_of_folds(self, evaluation: Any, folds: np.ndarray, places: Sequence[Path]) -> dict[int, Any]:
        """Return the images of the worst mistakes of all folds, each with the map of the model that made it."""
        worst, found = evaluation.mistakes()[: self.options.mistakes], {}
        for fold in np.unique(folds[worst]):
            model = open_model(places[fold] / "model.keras")
            found |= explained_pictures(model, evaluation, self.data.root, worst[folds[worst] == fold])
            del model
            gc.collect()
        return {int(number): found[number] for number in worst}

    def _evaluation(self, rows: np.ndarray, outputs: np.ndarray) -> Any:
        paths = tuple(relative(self.data.paths[row], self.data.root) for row in rows)
        return Evaluation(self.data.names, paths, self.data.labels[rows], outputs, self.data.task)

    def _scores(self, parts: Sequence[Any]) -> tuple[str, dict[str, list[float]]]:
        """Return the name of the metric that counts, and the metric of each fold."""
        name = self.options.metric or metrics.DEFAULTS[self.data.task]
        return name, {name: [metrics.of_evaluation(name, part) for part in parts]}


def _told(before: Baseline | None, run: Run) -> dict[str, Any]:
    """Return what was found before the training, as plain JSON."""
    flips = {} if run.flip_test is None else {"flip_test": dataclasses.asdict(run.flip_test)}
    return flips if before is None else {"before_training": before.to_dict(), **flips}
