# Written by tools/make_stubs.py.
from . import anatomy as anatomy
from . import checkpoints as checkpoints
from . import config as config
from . import cost as cost
from . import labels as labels
from . import layers as layers
from . import opening as opening
from . import packing as packing
from . import preprocess as preprocess
from . import serve as serve
from . import text as text
from . import training as training
from . import utils as utils
from . import visualize as visualize
from . import vit as vit
from .backbone import feature_maps as feature_maps
from .backend.distribution import distribute as distribute
from .checkpoints.saved_models import load_model as load_model
from .checkpoints.writing import save_weights as save_weights
from .converting import convert as convert
from .opening import from_checkpoint as from_checkpoint
from .opening import merge_tokens as merge_tokens
from .opening import open_model as open_model
from .opening import preprocessing_layer as preprocessing_layer
from .opening import resize as resize
from .packing.model import pack as pack
from .text.matching import zero_shot as zero_shot
from .text.matching import zero_shot_classifier as zero_shot_classifier
from .text.opening import open_image_text as open_image_text
from .training.averaging import average as average
from .export import _Callable

__version__: str
export: _Callable
