"""Inspect any model with a Vision Transformer: inputs, outputs and parts.

The ViT may be the model itself, or nested in it at any depth. Layers before it (augmentation, preprocessing) and after
it (dropout, a head, a softmax) are taken into account. This module alone decides which pixels a model takes, whether
its outputs are logits, and where its blocks and its head are, so that the whole package agrees.
"""

from .outputs import (
    class_names,
    levels,
    name_classes,
    predictions,
    probabilities,
    task,
    top_predictions,
)
from .parts import blocks, find_vit

__all__ = [
    "blocks",
    "class_names",
    "find_vit",
    "levels",
    "name_classes",
    "predictions",
    "probabilities",
    "task",
    "top_predictions",
]
