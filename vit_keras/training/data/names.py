"""Names of classes and the task of a dataset, given to the model that trains on it."""

from __future__ import annotations

from typing import Any

import keras

from ... import anatomy
from ...anatomy import parts
from ...anatomy.parts import has_vit
from ...backend.guarded import CheckedModel
from ..distill import Distillation


def name_learner(model: keras.Model, data: Any) -> None:
    """Attach the task and the class names of an `ImageFolder` to the model that learns them; ignore other data."""
    learns = isinstance(model, Distillation) or not isinstance(model, CheckedModel)
    if not (hasattr(data, "class_names") and learns and has_vit(model)):
        return
    learner = parts.learner(model)
    independent = data.one_hot and anatomy.task(learner) == "multi"  # by choice, for classes
    anatomy.name_classes(learner, data.class_names, "multi" if independent else data.task)
