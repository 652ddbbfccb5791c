"""Weight files: find, read, load and save them.

>>> from vit_keras import checkpoints
>>> [c.name for c in checkpoints.available(variant="Ti_16")][:2]
['Ti_16/augreg-imagenet21k', 'Ti_16/augreg-imagenet21k+imagenet2012-224']
"""

from .._internal.imports import attach

_SUBMODULES = (
    "architecture",
    "augreg",
    "cache",
    "checkpoint",
    "describe",
    "download",
    "families",
    "hints",
    "loading",
    "locate",
    "model_weights",
    "readers",
    "registry",
    "transformers_json",
    "weights",
    "wording",
    "writing",
)
# Each name and the module that defines it. Those in `checkpoint` and `locate` need no Keras and no backend.
_NAMES = {
    "Checkpoint": "checkpoint",
    "LoadReport": "loading",
    "available": "locate",
    "load_weights": "loading",
    "save_weights": "writing",
}

__all__ = sorted(_NAMES)
__getattr__, __dir__ = attach(__name__, _SUBMODULES, _NAMES)
