"""Files of weights: find them, read them, put them into a model.

>>> from vit_keras import checkpoints
>>> [c.name for c in checkpoints.available(variant="Ti_16")][:2]
['Ti_16/augreg-imagenet21k', 'Ti_16/augreg-imagenet21k+imagenet2012-224']
"""

from .architecture import complete
from .loading import LoadReport, ModelWeights, adapt_channels, fill, load_weights, open_source
from .locate import available, fetch, find, is_local
from .registry import Checkpoint
from .weights import Weights
from .writing import save_weights

__all__ = [
    "Checkpoint",
    "LoadReport",
    "ModelWeights",
    "Weights",
    "adapt_channels",
    "available",
    "complete",
    "fetch",
    "fill",
    "find",
    "is_local",
    "load_weights",
    "open_source",
    "save_weights",
]
