"""Principal components and vectors of length 1."""

from __future__ import annotations

import numpy as np


def _principal_components(samples: np.ndarray, n: int) -> np.ndarray:
    """At most n principal components of `(samples, features)`, as rows of length 1 whose largest value is positive."""
    centred = samples - samples.mean(axis=0)
    _, strength, components = np.linalg.svd(centred, full_matrices=False)
    components = components[strength > 1e-6 * np.linalg.norm(samples)][:n]  # the others are what float32 rounds off
    largest = np.abs(components).argmax(axis=1)
    return components * np.sign(components[np.arange(len(components)), largest])[:, None]


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, along the last axis; one of length 0 stays, and is like no other."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
