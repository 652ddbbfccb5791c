"""Principal components and vectors of length 1."""

from __future__ import annotations

import numpy as np


def principal_components(samples: np.ndarray, n: int) -> np.ndarray:
    """Return at most n principal components of `(samples, features)`, of length 1 and with a positive maximum."""
    centered = samples - samples.mean(axis=0)
    _, strength, components = np.linalg.svd(centered, full_matrices=False)
    components = components[strength > 1e-6 * np.linalg.norm(samples)][:n]  # the others are rounding errors of float32
    largest = np.abs(components).argmax(axis=1)
    return components * np.sign(components[np.arange(len(components)), largest])[:, None]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors along the last axis to length 1; one of length 0 stays, and is similar to no other."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
