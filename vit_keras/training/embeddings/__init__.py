"""Features of a frozen model: compute them, cache them, and classify by a linear probe or nearest neighbors.

>>> from vit_keras.training.embeddings import embed, features, linear_probe
>>> embed(model, "photos", output="photos.parquet")  # doctest: +SKIP
>>> seen = features(model, folder)  # computed once, then read from the disk  # doctest: +SKIP
>>> linear_probe(seen, folder.labels).apply_to(model)  # doctest: +SKIP
"""

from .cache import features
from .engines import Embedder
from .extraction import embed
from .probe import Probe, knn, linear_probe, ridge_probe

__all__ = ["Embedder", "Probe", "embed", "features", "knn", "linear_probe", "ridge_probe"]
