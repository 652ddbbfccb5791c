"""KerasHub's `ImageClassifier`, compiled as it comes."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np

from . import common
from .common import BATCH, Processor


def learn(request: dict[str, Any]) -> dict[str, Any]:
    """Train as a contender does, and return its score, its steps and its processor time."""
    keras.utils.set_random_seed(request["seed"])
    data = common.read(request)
    if data.kind != "single":
        return {"skipped": "ImageClassifier is for one class of several"}
    size = data.pixels.shape[1:3]
    converter = keras_hub.layers.ViTImageConverter(image_size=size, scale=1 / 127.5, offset=-1.0)
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(image_converter=converter)

    def make():
        return keras_hub.models.ImageClassifier.from_preset(
            request["transformers"], num_classes=data.outputs, preprocessor=preprocessor
        )

    chosen = common.order(len(data.pixels), BATCH, request["seed"])

    def images(steps):
        numbers = np.concatenate([next(chosen) for _ in range(steps)])
        return data.pixels[numbers], data.labels[numbers]

    trial, batch = make(), images(1)
    steps = common.steps_within(request["budget"], lambda: trial.fit(*batch, batch_size=BATCH, verbose=0))
    model = make()
    with Processor() as processor:
        model.fit(*images(steps), batch_size=BATCH, verbose=0, shuffle=False)
    outputs = model.predict(data.test_pixels, batch_size=BATCH, verbose=0)
    return {"score": data.score(outputs), "steps": steps, "processor": processor.seconds}
