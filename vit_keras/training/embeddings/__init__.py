"""Features of a frozen model: compute them, cache them, and classify by a linear probe or nearest neighbors."""

from .cache import features
from .engines import Embedder
from .extraction import embed
from .probe import Probe, knn, linear_probe, ridge_probe

__all__ = ["Embedder", "Probe", "embed", "features", "knn", "linear_probe", "ridge_probe"]
