"""vit_keras: `recipe("finetune")`, plain Keras on the same model, the linear probe and the nearest neighbors."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

import vit_keras
from vit_keras import anatomy, training
from vit_keras.backend import products
from vit_keras.training.evaluation.flips import MOST_IMAGES, FlipTest
from vit_keras.training.evaluation.frozen import SHARE
from vit_keras.training.finetuning.run import images_within
from vit_keras.training.finetuning.training import SCALE_OF_NUMBERS, SHARE_OF_FLIPS

from . import common
from .common import BATCH, Data, Processor

_models: dict[tuple, tuple[keras.Model, list[np.ndarray]]] = {}


def learn(request: dict[str, Any]) -> dict[str, Any]:
    """Train as a contender does, and return its score, its steps and its processor time."""
    keras.utils.set_random_seed(request["seed"])
    data = common.read(request)
    style, _, rate = request["style"].partition(" ")
    if style in ("linear_probe", "knn"):
        return _frozen(data, style, request)
    if style == "call":
        return _call(data, request)
    model = _model(request, data)
    return _finetune(model, data, request) if style == "finetune" else _adam(model, data, request, rate)


def _model(request: dict[str, Any], data: Data) -> keras.Model:
    """Return a model with the weights of the file and a new head, built once."""
    size, key = data.pixels.shape[1], (request["weights"], data.pixels.shape[1], data.outputs)
    if key not in _models:
        model = vit_keras.from_checkpoint(request["weights"], image_size=size, classes=data.outputs)
        _models[key] = model, model.get_weights()
    model, weights = _models[key]
    model.set_weights(weights)
    return model


class Stream(keras.utils.PyDataset):
    """Batches of a data set, as many as there are steps."""

    def __init__(self, data: Data, batch: int, steps: int, seed: int, augmentation: Any = None):
        super().__init__()
        self.data, self.seed, self.augmentation = data, seed, augmentation
        self.order = [chosen for _, chosen in zip(range(steps), common.order(len(data.pixels), batch, seed))]

    def __len__(self):
        return len(self.order)

    def __getitem__(self, index):
        chosen = self.order[index]
        pixels = self.data.pixels[chosen]
        if self.augmentation is not None:
            rng, size = np.random.default_rng([self.seed, index]), pixels.shape[1:3]
            pixels = np.stack([self.augmentation.augment_image(each, size, rng) for each in pixels])
        return common.prepared(pixels), self.data.labels[chosen]


def _loss(data: Data) -> Any:
    return {
        "single": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "multi": keras.losses.BinaryCrossentropy(from_logits=True),
        "regression": "mse",
    }[data.kind]


def _fit(model: keras.Model, stream: Stream, callbacks: list) -> dict[str, Any]:
    with Processor() as processor:
        model.fit(stream, epochs=1, verbose=0, callbacks=callbacks)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    batches = (stream.data.test_pixels[n : n + 100] for n in range(0, len(stream.data.test_pixels), 100))
    outputs = np.concatenate([model.predict_on_batch(common.prepared(batch)) for batch in batches])
    done = {"score": stream.data.score(outputs), "steps": len(stream), "processor": processor.seconds}
    return {**done, "products": products.library()}


def _steps(model: keras.Model, data: Data, budget: dict[str, float], batch: int = BATCH) -> int:
    """Return the steps of some images within the budget; the model is compiled, and gets its weights back."""
    weights = model.get_weights()
    images = Stream(data, batch, 1, 0)[0]
    steps = common.steps_within(budget, lambda: model.train_on_batch(*images))
    model.set_weights(weights)
    return steps


def _finetune(model: keras.Model, data: Data, request: dict[str, Any]) -> dict[str, Any]:
    anatomy.name_classes(model, [str(output) for output in range(data.outputs)], data.kind)
    how, budget = training.recipe("finetune"), dict(request["budget"])
    seconds, flips, batch = budget.get("seconds"), None, BATCH
    with Processor() as looking:
        forward = _start_head(model, data, SHARE * (seconds or float("inf")), request["seed"])
        if seconds:  # a few steps are not augmented
            flips = _flip_test(model, data, SHARE_OF_FLIPS * seconds, request["seed"])
    if seconds:
        budget["seconds"] -= looking.seconds
        batch = how.batch_for(images_within(budget["seconds"], forward))
    if flips is not None and not flips.safe:
        how = how.without_flips()
    how.compile(model, Stream(data, batch, 1, 0), steps=1)
    steps = _steps(model, data, budget, batch)
    how = how.for_steps(steps)
    stream = Stream(data, batch, steps, request["seed"], how.augmentation)
    how.compile(model, stream, steps=steps)
    done = _fit(model, stream, list(how.callbacks))
    done["flips"] = None if flips is None else f"{flips.worse} of {flips.images}"
    return {**done, "processor": looking.seconds + done["processor"]}


def _call(data: Data, request: dict[str, Any]) -> dict[str, Any]:
    """`training.finetune(folder)` with all defaults, its report included."""
    if data.kind != "single":
        return {"skipped": "the data sets of few images have one class of several"}
    with tempfile.TemporaryDirectory() as place, Processor() as processor:
        folder = Path(place, "images")
        for number, (pixels, label) in enumerate(zip(data.pixels, data.labels)):
            (folder / f"{label:02}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{label:02}" / f"{number}.png")
        options = {"output": Path(place, "finetuned"), "seed": request["seed"], "progress": False}
        result = training.finetune(folder, weights=request["weights"], **options)
    batches = (data.test_pixels[n : n + 100] for n in range(0, len(data.test_pixels), 100))
    outputs = np.concatenate([result.model.predict_on_batch(common.prepared(batch)) for batch in batches])
    done = {"score": data.score(outputs), "steps": int(result.model.optimizer.iterations), "refit": result.refit}
    return {**done, "held_out": 100 * result.evaluation.accuracy, "processor": processor.seconds}


def _flip_test(model: keras.Model, data: Data, seconds: float, seed: int) -> FlipTest | None:
    """Test whether the images can be mirrored, as `training.finetune` does."""
    order = np.random.default_rng(seed).permutation(len(data.pixels))[:MOST_IMAGES]
    pixels, labels = common.prepared(data.pixels[order]), data.labels[order]
    return training.flip_test(model, pixels, labels, classes=data.outputs, seconds=seconds)


def _start_head(model: keras.Model, data: Data, seconds: float, seed: int) -> float:
    """Start the head as `training.finetune` does, from as many images as the time allows; return the time of one."""
    begun, order = time.process_time(), np.random.default_rng(seed).permutation(len(data.pixels))

    def batches() -> Iterator[np.ndarray]:
        for first in range(0, len(order), BATCH):
            if first and time.process_time() - begun > seconds:
                return
            yield common.prepared(data.pixels[order[first : first + BATCH]])

    seen = training.embed(model, batches(), progress=False)
    forward = (time.process_time() - begun) / len(seen)
    probe = training.ridge_probe(seen, data.labels[order[: len(seen)]], classes=data.outputs)
    probe.apply_to(model, SCALE_OF_NUMBERS if data.kind == "regression" else 1.0)
    return forward


def _adam(model: keras.Model, data: Data, request: dict[str, Any], rate: str) -> dict[str, Any]:
    def compile_model():
        model.compile(training.fused(keras.optimizers.Adam(float(rate) if rate else 1e-3)), _loss(data))

    compile_model()
    steps = _steps(model, data, request["budget"])
    compile_model()
    return _fit(model, Stream(data, BATCH, steps, request["seed"]), [])


def _frozen(data: Data, style: str, request: dict[str, Any]) -> dict[str, Any]:
    if data.kind != "single":
        return {"skipped": f"{style} is for one class of several"}
    model = _model(request, data)
    test = training.embed(model, data.test_pixels, image_size=data.pixels.shape[1], progress=False)
    with Processor() as processor:
        seen = training.embed(model, data.pixels, image_size=data.pixels.shape[1], progress=False)
        if style == "knn":
            found = training.knn(seen, data.labels, test, k=min(20, len(seen)))
        else:
            found = training.linear_probe(seen, data.labels).predict(test)
    return {"score": data.score(np.eye(data.outputs)[found]), "steps": 0, "processor": processor.seconds}
