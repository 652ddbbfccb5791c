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

from . import checkpoints, config, layers, saving, utils, visualize, vit
from .saving import load_model
from .vit import from_checkpoint

__all__ = [
    "checkpoints",
    "config",
    "from_checkpoint",
    "layers",
    "load_model",
    "saving",
    "utils",
    "visualize",
    "vit",
]
