"""Vision Transformers for Keras 3, on TensorFlow, JAX and PyTorch."""

from ._internal.imports import attach, register_with_keras

__version__ = "1.0.0"

_SUBMODULES = (
    "anatomy",
    "checkpoints",
    "config",
    "cost",
    "export",
    "labels",
    "layers",
    "opening",
    "packing",
    "preprocess",
    "serve",
    "text",
    "training",
    "utils",
    "visualize",
    "vit",
)
_NAMES = {
    "average": "training.averaging",
    "convert": "converting",
    "distribute": "backend.distribution",
    "feature_maps": "backbone",
    "from_checkpoint": "opening",
    "load_model": "checkpoints.saved_models",
    "merge_tokens": "opening",
    "open_image_text": "text.opening",
    "open_model": "opening",
    "pack": "packing.model",
    "preprocessing_layer": "opening",
    "resize": "opening",
    "save_weights": "checkpoints.writing",
    "zero_shot": "text.matching",
    "zero_shot_classifier": "text.matching",
}

__all__ = [*_SUBMODULES, *_NAMES]
__getattr__, __dir__ = attach(__name__, _SUBMODULES, _NAMES)

register_with_keras()
