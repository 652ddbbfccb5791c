"""A training job: a compiled model, its training and validation data, fitting and evaluation."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
import warnings
from typing import Any, cast

import keras
import numpy as np

from ...anatomy import NUMBERS, find_vit, heads, last_activation, name_classes, output_names, predictions
from ...anatomy import task as task_of
from ...model import VisionTransformer
from ...opening import resize
from .. import metrics
from ..checks import UNBALANCED
from ..data.dataset import ImageFolder
from ..data.folder import Labeled
from ..embeddings import ridge_probe
from ..evaluation import Evaluation, evaluate_decoded
from ..evaluation.flips import MOST_IMAGES, FlipTest, flip_test
from ..evaluation.frozen import Frozen
from ..lora import merge_lora
from ..losses import CrossEntropy, accuracy
from ..recipes import Recipe
from .options import FinetuneOptions
from .run import Keep, Run, TimeLimit, counted, seconds_per_step

__all__: list[str] = []

_MOST_PLANS = 4
_NO_LIMIT = " (minutes=0 or --minutes 0: no limit)"
SCALE_OF_NUMBERS = 0.1
"""Of a head that starts as ridge regression of numbers: a tenth was better than 0.3 and 1 (docs/training.md)."""

SHARE_OF_FLIPS = 0.05
"""Share of a time limit that the test of mirror images may take."""

_MOST_OF_HEAD = 20_000
"""Largest number of images that a new head is computed from, which bounds its memory."""


class Score(keras.callbacks.Callback):
    """Callback that adds the metric of the held-out images to the values of an epoch.

    Args:
        job: What is trained.
        averages: The callbacks that put averages of the weights in their place for as long as a model is tested.
    """

    averages: list[Any]
    job: Job

    def __init__(self, job: Job, averages: list[keras.callbacks.Callback]):
        super().__init__()
        self.job, self.averages = job, averages

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        for each in self.averages:  # not on_predict_end, in which Keras does not take the averages out again
            each.on_test_begin()
        logs[f"val_{self.job.options.metric}"] = self.job.score()
        for each in self.averages:
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
    """Return a copy for images of this size and this task, and whether it keeps its head.

    The head is kept if the model's outputs mean the same already, unless `keep` is false. A new one has a bias, and
    starts at zero, as the reference's. A head of numbers gets a bias. If `dtype` is `None`, the copy has the given
    model's dtype policy.
    """
    vit = find_vit(given)
    kept = keep and task_of(vit) == task and output_names(vit) == names and bool(getattr(vit, "labels", None))
    options: dict[str, Any] = {"dtype": dtype} | ({} if task == "single" else {"activation": "linear"})
    options |= {} if kept and task not in NUMBERS else {"head_bias": True}  # the mean of numbers goes into the bias
    tuned = resize(given, size, classes=1 if task == "ordinal" else len(names), include_top=True, **options)
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


def scale_head(model: keras.Model, scale: np.ndarray, shift: np.ndarray) -> None:
    """Let a model return `scale` times its outputs plus `shift`, by changing the weights of its heads."""
    for head in heads(model):
        kernel, bias = (keras.ops.convert_to_numpy(variable) for variable in (head.kernel, head.bias))
        head.kernel.assign(kernel * scale)
        head.bias.assign(bias * scale + shift)


def _without_prior(model: keras.Model, recipe: Recipe, train: ImageFolder) -> dict[str, Any]:
    """Return the options of `compile` by which a model does not learn how frequent each class is."""
    logits = last_activation(model) == "linear"
    counts = np.maximum(cast("np.ndarray", train.counts), 1)  # there are classes: see FinetuneOptions.check
    loss = CrossEntropy(from_logits=logits, label_smoothing=recipe.label_smoothing, prior=counts)
    return {"loss": loss, "metrics": [accuracy]}


def digest(text: str, *arrays: np.ndarray) -> str:
    """Return a short hash of a text and of arrays."""
    found = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).view("uint8").data)
    return found.hexdigest()


@dataclasses.dataclass(frozen=True)
class Job:
    """A compiled model, and what it is trained on.

    Where the labels are numbers, they are standardized for the training, and the head with them; `fit` takes both back
    at its end, so that the model predicts in the unit of the labels.
    """

    model: keras.Model
    recipe: Recipe
    train: ImageFolder
    held_out: ImageFolder
    data: Labeled
    options: FinetuneOptions
    has_new_head: bool
    unit: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(
        cls,
        given: keras.Model,
        recipe: Recipe,
        train: ImageFolder,
        held_out: ImageFolder,
        data: Labeled,
        options: FinetuneOptions,
    ) -> Job:
        """Return the job of training a copy of a model; the labels of the datasets are standardized from here on."""
        model, kept = with_head(given, train.image_size, data.names, data.task, dtype=recipe.dtype)
        unit = None
        if data.task in NUMBERS:
            spread = train.labels.std(axis=0, dtype="float64")
            unit = train.labels.mean(axis=0, dtype="float64"), np.where(spread > 0, spread, 1.0)
            for part in (train, held_out):
                part.labels = ((part.labels - unit[0]) / unit[1]).astype("float32")
            if kept:
                scale_head(model, 1 / unit[1], -unit[0] / unit[1])
        how = _without_prior(model, recipe, train) if options.balance == "prior" else {}
        with warnings.catch_warnings():
            if options.balance:  # what the warning advises
                warnings.filterwarnings("ignore", UNBALANCED)
            recipe.compile(model, train, batch_size=train.batch_size, **how)
        return cls(model, recipe, train, held_out, data, options, not kept, unit)

    def say(self, text: str) -> None:
        """Print a line, if that is wanted."""
        if self.options.progress:
            print(text, flush=True)

    @property
    def pictures(self) -> str:
        """The numbers of images, in words."""
        held_out = f"{len(self.held_out.paths):,} held out"
        return f"{len(self.train.paths):,} images of {self.data.words} to learn from, {held_out}"

    @property
    def best_by(self) -> tuple[str, bool]:
        """The value that selects the best epoch, and whether higher is better."""
        if self.options.metric is not None:
            return f"val_{self.options.metric}", metrics.greater_is_better(self.options.metric)
        return ("val_accuracy", True) if self.data.task == "single" else ("val_loss", False)

    def split(self) -> dict[str, list[str]]:
        """Return the training images and the held-out images."""
        parts = {"training": self.train, "validation": self.held_out}
        return {name: [self.data.ids[row] for row in part.rows] for name, part in parts.items()}

    def settings(self) -> dict[str, Any]:
        """Return the settings that affect the result, except the number of epochs and the seed."""
        weights = () if self.data.weights is None else (self.data.weights,)
        return {
            "pictures": digest(json.dumps([self.split(), self.data.names]), self.data.labels, *weights),
            "model": digest(json.dumps(self.model.settings()), *self.model.get_weights()),
            "recipe": self.recipe.to_dict(),
            "batch_size": self.train.batch_size,
            **self.options.saved(),
        }

    def evaluate(self) -> Any:
        """Return the evaluation of the held-out images, in the unit of the labels; after `fit`."""
        return evaluate_decoded(self.model, self.held_out, self.data.root, batch_size=self.train.batch_size)

    def score(self) -> float:
        """Return the metric of the held-out images in the middle of the training."""
        batches = (self.held_out[n][0] for n in range(len(self.held_out)))
        outputs = predictions(self.model, np.concatenate([self.model.predict_on_batch(batch) for batch in batches]))
        labels = self.held_out.labels
        if self.unit is not None:
            outputs, labels = outputs * self.unit[1] + self.unit[0], self.data.labels[self.held_out.rows]
        found = Evaluation(self.data.names, (), labels, outputs, self.data.task)
        return metrics.of_evaluation(self.options.metric, found)

    def start_head(self, run: Run, frozen: Frozen | None) -> None:
        """Start a new head as the recipe says; a run that goes on has its start on disk.

        Args:
            run: The run, in which no epoch is done.
            frozen: The features of the images; `None` for a head of zeros.
        """
        if frozen is None or self.recipe.head == "zeros" or not self.has_new_head:
            return
        if run.has_start:
            run.restore_start(self.model)
            return
        seen = np.sort(frozen.places(self.train.rows))[:_MOST_OF_HEAD]  # the features are in a random order
        labels, scale = self.data.labels[frozen.rows[seen]], 1.0
        if self.unit is not None:
            labels, scale = (labels - self.unit[0]) / self.unit[1], SCALE_OF_NUMBERS
        if len(np.unique(labels, axis=0)) > 1:
            ridge_probe(frozen.features[seen], labels, classes=len(self.data.names)).apply_to(self.model, scale)
        run.save_start(self.model)

    def plan(self, run: Run, limit: TimeLimit) -> float:
        """Return the epochs within the time limit, or the part of one, by a few steps that are then undone."""
        run.save_start(self.model)
        step = seconds_per_step(self.model, self.train, self._callbacks())
        run.restore_start(self.model)
        self.say(f"A step takes {step:.2g} seconds: {planned(limit, step)}")
        return limit.epochs(step)

    def test_flips(self, epochs: int) -> FlipTest | None:
        """Return a test of whether the images can be mirrored, if that matters in a training of this many epochs."""
        augmentation = self.recipe.for_steps(epochs * len(self.train)).augmentation
        if not (self.options.probe and self.recipe.flip_test and augmentation is not None and augmentation.flip):
            return None
        order = np.random.default_rng(self.options.seed).permutation(len(self.train.paths))[:MOST_IMAGES]
        seconds = self.options.seconds and SHARE_OF_FLIPS * self.options.seconds
        whole = resize(self.model, self.train.image_size, merge_tokens=0, patch_dropout=0.0)  # has all patches
        images, labels = self.train.arrays(order)[0], self.train.labels[order]
        return flip_test(whole, images, labels, classes=len(self.data.names), seconds=seconds)

    def steps(self, run: Run) -> int:
        """Return the number of steps of a run, whose number of epochs is decided."""
        return max(1, round(run.epochs * len(self.train)))

    def plan_steps(self, run: Run) -> int:
        """Return the steps by which a run is planned: of folds, those of the first."""
        return run.plan_steps or self.steps(run)

    def plan_of(self, run: Run) -> Recipe:
        """Return the recipe of a run, whose number of epochs is decided."""
        how = self.recipe.for_steps(self.plan_steps(run)).replace(epochs=math.ceil(run.epochs))
        return how if run.flip_test is None or run.flip_test.safe else how.without_flips()

    def say_plan(self, run: Run) -> None:
        """Print the plan of a training, and its reasons."""
        how, steps, size = self.plan_of(run), self.steps(run), self.train.batch_size
        first = self.plan_steps(run)
        if how.augmentation == self.recipe.augmentation:
            augmented = "augmented"
        elif first >= self.recipe.augment_from:
            augmented = "augmented, but not mirrored"
            self.say(cast("FlipTest", run.flip_test).text)
        else:
            augmented = f"not augmented, because {first:,} steps are fewer than {self.recipe.augment_from}"
        planned_steps = f"{steps:,} {'step' if steps == 1 else 'steps'} of {size} images"
        planned_steps += f" at a rate of up to {how.rate(size):.3g}"
        self.say(f"Plan: {planned_steps}; images are {augmented}")

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        return [*self.recipe.callbacks, *self.train.callbacks]

    def _scoring(self, callbacks: list[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
        averages = [each for each in callbacks if isinstance(each, keras.callbacks.SwapEMAWeights)]
        return [] if self.options.metric is None else [Score(self, averages)]

    def fit(self, run: Run, limit: TimeLimit | None) -> None:
        """Train, or continue, to the last epoch, and take the weights of the best."""
        if run.done:
            run.restore(self.model, run.done - 1)
            self.say(f"Continuing after epoch {run.done} of {counted(run.epochs)}")
        try:
            for attempt in range(_MOST_PLANS):
                watched = limit if attempt + 1 < _MOST_PLANS else None
                keep = Keep(run, watched)
                if not run.ended:
                    self._fit(run, keep)
                if watched is None or keep.planned is None:
                    break
                run.restore_start(self.model)
                run.begin(keep.planned)
                epochs = f"{counted(keep.planned)} of {watched.wanted} epochs"
                self.say(f"The speed of a step has changed: starting over with {epochs}")
        except KeyboardInterrupt:
            self.say(f"\nStopped after epoch {run.done} of {counted(run.epochs)}. The same call continues from there")
            raise
        run.restore(self.model, run.best)
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # their average, if one is kept
        if self.recipe.lora is not None:
            merge_lora(self.model)
        if self.unit is not None:
            scale_head(self.model, self.unit[1], self.unit[0])
            for part in (self.train, self.held_out):
                part.labels = self.data.labels[part.rows]

    def _fit(self, run: Run, keep: Keep) -> None:
        callbacks = self._callbacks()
        self.train.augmentation = self.plan_of(run).augmentation
        self.model.fit(
            self.train,
            validation_data=self.held_out,
            initial_epoch=run.done,
            epochs=math.ceil(run.epochs),
            steps_per_epoch=None if run.epochs >= 1 else self.steps(run),
            class_weight=self.train.class_weight if self.options.balance in (True, "weights") else None,
            verbose=(1 if sys.stdout.isatty() else 2) if self.options.progress else 0,
            callbacks=[*callbacks, *self._scoring(callbacks), keep],
        )


def planned(limit: TimeLimit, step: float) -> str:
    """Return a sentence about the number of epochs that fit into the time."""
    possible = limit.epochs(step)
    if possible >= limit.wanted:
        return f"{possible} epochs take about {duration(possible * limit.epoch(step))}"
    if possible >= 1:
        return f"the time limit allows {possible} of {limit.wanted} epochs{_NO_LIMIT}"
    return f"one epoch takes {duration(limit.epoch(step))}. The time limit allows {possible:.0%} of it{_NO_LIMIT}"


def duration(seconds: float) -> str:
    """Return seconds in words."""
    return f"{seconds / 60:.1f} minutes" if seconds >= 100 else f"{seconds:.0f} seconds"
