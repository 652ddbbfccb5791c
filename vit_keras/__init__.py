"""Vision Transformers for Keras 3: exact weights, honest attention maps, TensorFlow, JAX and PyTorch."""

__version__ = "1.0.0.dev0"

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("tensorflow", "jax", "jaxlib", "torch"):
        raise
    raise ImportError(
        f"Keras runs on {error.name}, which is not installed. Install it with pip install 'vit-keras[{error.name}]', or "
        "choose another backend by the environment variable KERAS_BACKEND (tensorflow, jax or torch)."
    ) from None

from . import checkpoints, config, layers, preprocess, saving, utils, visualize, vit
from .checkpoints import save_weights
from .saving import load_model
from .vit import from_checkpoint, preprocessing, resize

__all__ = [
    "checkpoints",
    "config",
    "from_checkpoint",
    "layers",
    "load_model",
    "preprocess",
    "preprocessing",
    "resize",
    "save_weights",
    "saving",
    "utils",
    "visualize",
    "vit",
]
