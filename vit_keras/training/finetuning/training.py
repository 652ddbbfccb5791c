"""One training: a model that is compiled, its images, and its run; and how its head and its number of epochs start."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import keras
import numpy as np

from ... import __version__
from ..._internal.finite import check_outputs
from ..._internal.progress import SECONDS_BETWEEN_LINES
from ...anatomy import name_classes
from ...anatomy import task as task_of
from ...anatomy.around import heads
from ...anatomy.outputs import NUMBERS, labels_of, output_kind, output_names
from ...anatomy.parts import find_vit
from ...checkpoints.locate import find
from ...model import VisionTransformer
from ...opening import resize
from ..checks import UNBALANCED
from ..data.dataset import ImageFolder
from ..embeddings import ridge_probe
from ..evaluation import Evaluation, predicted
from ..evaluation.calibration import calibrate, tempered
from ..evaluation.flips import MOST_IMAGES, FlipTest, flip_test
from ..evaluation.frozen import FrozenFeatures
from ..lora import merge_lora
from ..losses import CrossEntropy, accuracy
from ..recipes import Recipe
from .baseline import Baseline
from .results import pixels
from .run import Checkpointer, RunState, TimeLimit, counted, duration, seconds_per_step

if TYPE_CHECKING:
    from .trainings import Trainings

__all__: list[str] = []

_NO_LIMIT = " (minutes=0 or --minutes 0: no limit)"
SCALE_OF_NUMBERS = 0.1
"""Of a head that starts as ridge regression of numbers: better than 0.3 and 1 (benchmarks/finetuning.md)."""

SHARE_OF_FLIPS = 0.05
"""Share of a time limit that the test of mirror images may take."""

_MOST_OF_HEAD = 20_000
"""Largest number of images that a new head is computed from, which bounds its memory."""


class Lines(keras.callbacks.Callback):
    """Callback that prints a line every few seconds, where no terminal shows Keras' bar."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch, self._next = epoch + 1, time.monotonic() + SECONDS_BETWEEN_LINES

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_LINES
            step = f"step {batch + 1} of {self.params['steps']}, loss {logs['loss']:.4f}"
            print(f"Epoch {self._epoch}: {step}", flush=True)


class Score(keras.callbacks.Callback):
    """Callback that adds the metric of the held-out images, by averaged weights if any, to the values of an epoch."""

    def __init__(self, training: Training, callbacks: list[keras.callbacks.Callback]):
        super().__init__()
        self._training = training
        self._averages = [each for each in callbacks if isinstance(each, keras.callbacks.SwapEMAWeights)]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        for each in self._averages:  # not on_predict_end, in which Keras does not take the averages out again
            each.on_test_begin()
        logs[f"val_{self._training.request.metric}"] = self._training.score()
        for each in self._averages:
            each.on_test_end()


def with_head(
    given: keras.Model,
    size: tuple[int, int],
    names: tuple[str, ...],
    task: str = "single",
    *,
    keep: bool = True,
    dtype: str | None = None,
) -> tuple[VisionTransformer, bool]:
    """Return a copy for images of this size and this task, and whether it keeps its head, which means the same."""
    vit = find_vit(given)
    kept = keep and task_of(vit) == task and output_names(vit) == names and bool(labels_of(vit))
    options: dict[str, Any] = {"dtype": dtype} | ({} if task == "single" else {"activation": "linear"})
    options |= {} if kept and task not in NUMBERS else {"head_bias": True}  # the mean of numbers goes into the bias
    classes = 1 if task == "ordinal" else len(names)
    tuned = cast("VisionTransformer", resize(given, size, classes=classes, include_top=True, **options))
    if not kept:
        for head in heads(tuned):
            for variable in head.variables:
                variable.assign(np.zeros(variable.shape))
    elif "head_bias" in options:  # a head of another form is not copied
        for theirs, head in zip(heads(vit), heads(tuned)):
            bias = theirs.bias if theirs.use_bias else np.zeros(head.bias.shape)
            head.kernel.assign(theirs.kernel)
            head.bias.assign(bias)
    name_classes(tuned, names, task)
    return tuned, kept


def scale_head(model: keras.Model, scale: np.ndarray | float, shift: np.ndarray | float) -> None:
    """Let a model return `scale` times its outputs plus `shift`, by changing the weights of its heads."""
    for head in heads(model):
        head.kernel.assign(keras.ops.convert_to_numpy(head.kernel) * scale)
        if head.use_bias:
            head.bias.assign(keras.ops.convert_to_numpy(head.bias) * scale + shift)


def _without_prior(model: keras.Model, recipe: Recipe, train: ImageFolder) -> dict[str, Any]:
    """Return the options of `compile` by which a model does not learn how frequent each class is."""
    logits = output_kind(model) == "logits"
    counts = np.maximum(cast("np.ndarray", train.counts), 1)  # there are classes: see _check_task
    loss = CrossEntropy(from_logits=logits, label_smoothing=recipe.label_smoothing, prior=counts)
    return {"loss": loss, "metrics": [accuracy]}


def digest(text: str, *arrays: np.ndarray) -> str:
    """Return a short hash of a text and of arrays."""
    found = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).view("uint8").data)
    return found.hexdigest()


class Training:
    """A compiled model, what it is trained on, and its run. Without images held out, it follows the plan of another."""

    run: RunState
    evaluation: Evaluation
    baseline: Baseline | None = None
    temperature: float | None = None

    def __init__(self, request: Trainings, train: ImageFolder, held_out: ImageFolder | None = None):
        self.request: Trainings = request
        self.train: ImageFolder = train
        self.held_out: ImageFolder | None = held_out
        self.parts: list[ImageFolder] = [train] if held_out is None else [train, held_out]
        self.steps_of_all: int = math.ceil(sum(len(part.paths) for part in self.parts) / train.batch_size)
        data, recipe = request.data, request.recipe
        model, kept = with_head(request.given, train.image_size, data.names, data.task, dtype=recipe.dtype)
        self.model: VisionTransformer = model
        self.has_new_head: bool = not kept
        self.unit: tuple[np.ndarray, np.ndarray] | None = None
        if data.task in NUMBERS:
            spread = train.labels.std(axis=0, dtype="float64")
            self.unit = mean, deviation = train.labels.mean(axis=0, dtype="float64"), np.where(spread > 0, spread, 1.0)
            for part in self.parts:
                part.labels = ((part.labels - mean) / deviation).astype("float32")
            if kept:
                scale_head(self.model, 1 / deviation, -mean / deviation)
        how = _without_prior(self.model, recipe, train) if request.balance == "prior" else {}
        with warnings.catch_warnings():
            if request.balance:  # what the warning advises
                warnings.filterwarnings("ignore", UNBALANCED)
            recipe.compile(self.model, train, batch_size=train.batch_size, **how)

    @property
    def images(self) -> str:
        """The numbers of images, in words."""
        held_out = "none" if self.held_out is None else f"{len(self.held_out.paths):,}"
        return f"{len(self.train.paths):,} images of {self.request.data.words} to learn from, {held_out} held out"

    def split(self) -> dict[str, list[str]]:
        """Return the training images and the held-out images."""
        parts = zip(("training", "validation"), self.parts)
        return {name: [self.request.data.ids[row] for row in part.rows] for name, part in parts}

    def settings(self) -> dict[str, Any]:
        """Return what the result depends on."""
        data = self.request.data
        return {
            "images": digest(json.dumps([self.split(), data.names]), data.labels),
            "model": digest(json.dumps(self.model.settings()), *self.model.get_weights()),
            "batch_size": self.train.batch_size,
            **self.request.settings(),
        }

    def score(self) -> float:
        """Return the metric of the held-out images in the middle of the training."""
        held_out, data = cast("ImageFolder", self.held_out), self.request.data
        outputs, labels = predicted(self.model, held_out), held_out.labels
        if self.unit is not None:
            outputs, labels = outputs * self.unit[1] + self.unit[0], data.labels[held_out.rows]
        return Evaluation(data.names, (), labels, outputs, data.task).score(self.request.metric)

    # --- the plan -----------------------------------------------------------------------------------------------------

    def start_head(self, frozen: FrozenFeatures | None) -> None:
        """Start a new head as the recipe says, by features of the images; a run that goes on has its start on disk."""
        if frozen is None or self.request.recipe.head == "zeros" or not self.has_new_head:
            return
        if self.run.has_start:
            self.run.restore_start(self.model)
            return
        data = self.request.data
        seen = np.sort(frozen.places(self.train.rows))[:_MOST_OF_HEAD]  # the features are in a random order
        labels, scale = data.labels[frozen.rows[seen]], 1.0
        if self.unit is not None:
            labels, scale = (labels - self.unit[0]) / self.unit[1], SCALE_OF_NUMBERS
        if len(np.unique(labels, axis=0)) > 1:
            ridge_probe(frozen.features[seen], labels, classes=len(data.names)).apply_to(self.model, scale)
        self.run.save_start(self.model)

    def epochs_within(self, limit: TimeLimit) -> float:
        """Return the epochs within a time limit, or the part of one, by a few steps that are then undone."""
        self.run.save_start(self.model)
        step = seconds_per_step(self.model, self.train, self._callbacks())
        self.run.restore_start(self.model)
        self.request.say(f"A step takes {step:.2g} seconds: {planned(limit, step)}")
        return limit.epochs(step)

    def test_flips(self) -> FlipTest | None:
        """Return a test of whether the images can be mirrored, if that matters in a training of all epochs."""
        request = self.request
        augmentation = request.recipe.for_steps(request.wanted * self.steps_of_all).augmentation
        if not (request.probe and request.recipe.flip_test and augmentation is not None and augmentation.flip):
            return None
        order = np.random.default_rng(request.seed).permutation(len(self.train.paths))[:MOST_IMAGES]
        seconds = request.seconds and SHARE_OF_FLIPS * request.seconds
        whole = resize(self.model, self.train.image_size, merge_tokens=0, patch_dropout=0.0)  # has all patches
        images, labels = self.train.arrays(order)[0], self.train.labels[order]
        return flip_test(whole, images, labels, classes=len(request.data.names), seconds=seconds)

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return max(1, round(self.run.epochs * len(self.train)))

    @property
    def plan_steps(self) -> int:
        """The steps by which the run is planned: those that all images make, so that all folds have one plan."""
        return max(1, round(self.run.epochs * self.steps_of_all))

    @property
    def plan(self) -> Recipe:
        """The recipe of the run."""
        how = self.request.recipe.for_steps(self.plan_steps).replace(epochs=math.ceil(self.run.epochs))
        return how if self.run.flip_test is None or self.run.flip_test.safe else how.without_flips()

    def say_plan(self) -> None:
        """Print the plan, and its reasons."""
        how, recipe, size = self.plan, self.request.recipe, self.train.batch_size
        if how.augmentation == recipe.augmentation:
            augmented = "augmented"
        elif self.plan_steps >= recipe.augment_from:
            augmented = "augmented, but not mirrored"
            self.request.say(cast("FlipTest", self.run.flip_test).text)
        else:
            fewer = f"all images make {self.plan_steps:,} steps, fewer than {recipe.augment_from}"
            augmented = f"not augmented, because {fewer}"
        steps = f"{self.steps:,} {'step' if self.steps == 1 else 'steps'} of {size} images"
        self.request.say(f"Plan: {steps} at a rate of up to {how.rate(size):.3g}; images are {augmented}")

    # --- the training -------------------------------------------------------------------------------------------------

    def fit_and_measure(
        self, place: Path, frozen: FrozenFeatures | None, folds: int = 1, whole: RunState | None = None
    ) -> dict[str, Any]:
        """Train the model in a folder, measure it and the features before, and return all numbers as plain JSON."""
        request, held_out = self.request, cast("ImageFolder", self.held_out)
        if frozen is not None and request.data.task == "single":
            self.baseline = Baseline.of(frozen, request.data, self.train, held_out)
        if self.baseline is not None:
            request.say(f"Linear probe, in {duration(self.baseline.seconds)}: {self.baseline.text}")
        self.fit(place, frozen, folds, whole)
        run, outputs = self.run, check_outputs(self.model, predicted(self.model, held_out))
        self.evaluation = request.evaluation(held_out.rows, outputs)
        if request.calibrate:
            self.temperature = calibrate(self.model, self.evaluation)
            shares = tempered(self.evaluation.probabilities, self.temperature, request.data.task).astype("float32")
            self.evaluation = dataclasses.replace(self.evaluation, raw=shares)
        request.say(f"On the held-out images: {self.evaluation.headline}")
        told = {"epochs": run.epochs, "seconds": run.seconds, "history": run.history}
        told |= {"temperature": self.temperature, "held_out": self.evaluation.to_dict()}
        told |= {} if self.baseline is None else {"before_training": self.baseline.to_dict()}
        told |= {} if run.flip_test is None else {"flip_test": dataclasses.asdict(run.flip_test)}
        return {**told, "facts": facts(self)}

    def fit(self, place: Path, frozen: FrozenFeatures | None, folds: int = 1, whole: RunState | None = None) -> None:
        """Train the model, or continue, in a folder, to the last epoch."""
        request = self.request
        self.run = RunState(place / ".state", self.settings(), request.overwrite)
        if not self.run.done:
            self.start_head(frozen)
        if not self.run.epochs and whole is not None and whole.epochs:
            self.run.begin(whole.epochs, whole.flip_test)
            self.say_plan()
        elif not self.run.epochs:
            flips, epochs = self.test_flips(), request.wanted
            if (left := request.left(folds)) is not None:
                passes = 1 if request.metric is None else 2  # over the held-out images
                validation = passes * len(cast("ImageFolder", self.held_out))
                epochs = self.epochs_within(
                    TimeLimit(time.monotonic() + left, request.wanted, len(self.train), validation)
                )
            self.run.begin(epochs, flips)
            self.say_plan()
        if self.run.done:
            self.run.restore(self.model)
            request.say(f"Continuing after epoch {self.run.done} of {counted(self.run.epochs)}")
        try:
            if self.run.done < self.run.epochs:
                self._fit()
        except KeyboardInterrupt:
            epochs = f"{self.run.done} of {counted(self.run.epochs)}"
            request.say(f"\nStopped after epoch {epochs}. The same call continues from there")
            raise
        self.run.restore(self.model)
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # their average, if one is kept
        if request.recipe.lora is not None:
            merge_lora(self.model)
        if self.unit is not None:
            scale_head(self.model, self.unit[1], self.unit[0])
            for part in self.parts:
                part.labels = request.data.labels[part.rows]

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        return [*self.request.recipe.callbacks, *self.train.callbacks]

    def _fit(self) -> None:
        callbacks, run = self._callbacks(), self.run
        scored = self.request.metric is not None and self.held_out is not None
        lines = [Lines()] if self.request.progress and not sys.stdout.isatty() else []
        self.train.augmentation = self.plan.augmentation
        self.model.fit(
            self.train,
            validation_data=self.held_out,
            initial_epoch=run.done,
            epochs=math.ceil(run.epochs),
            steps_per_epoch=None if run.epochs >= 1 else self.steps,
            class_weight=self.train.class_weight if self.request.balance in (True, "weights") else None,
            verbose=(2 if lines else 1) if self.request.progress else 0,
            callbacks=[*callbacks, *([Score(self, callbacks)] if scored else []), Checkpointer(run), *lines],
        )


def facts(training: Training) -> dict[str, str]:
    """Return further facts about a training."""
    backend, model, request = keras.backend.backend(), training.model, training.request
    given = request.given
    versions = f"{backend} {sys.modules[backend].__version__}, Python {platform.python_version()}"
    read, origin = (getattr(find_vit(given), name, None) for name in ("load_report", "origin"))
    published = find(origin) if origin else None
    based_on = {"based on": f"{origin}, license: {published.license if published else 'unknown'}"} if origin else {}
    found = {
        "model": f"{model.name}, {model.count_params():,} weights",
        "begun with": getattr(read, "source", None) or (given.name if given is request.model else request.model),
        **based_on,
        "pixels": pixels(model),
        "versions": f"vit_keras {__version__}, Keras {keras.__version__}, {versions}",
        "epochs": counted(training.run.epochs),
        "time": duration(training.run.seconds),
        "batch": training.train.batch_size,
        "seed": request.seed,
        **({} if request.metric is None else {"metric": request.metric}),
    }
    return {name: str(value) for name, value in found.items()}


def planned(limit: TimeLimit, step: float) -> str:
    """Return a sentence about the number of epochs that fit into the time."""
    possible = limit.epochs(step)
    if possible >= limit.wanted:
        return f"{possible} epochs take about {duration(possible * limit.epoch(step))}"
    if possible >= 1:
        return f"the time limit allows {possible} of {limit.wanted} epochs{_NO_LIMIT}"
    return f"one epoch takes {duration(limit.epoch(step))}. The time limit allows {possible:.0%} of it{_NO_LIMIT}"
