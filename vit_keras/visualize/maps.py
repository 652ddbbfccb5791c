"""Recordings in, maps on the grid of patches out."""

from __future__ import annotations

import numpy as np


def attention_rollout(attention: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """How much of each patch reaches the output, by attention rollout.

    Each layer passes on the mean of a token's own state (the residual) and of what it attends to; the
    product over the layers says how much of each input token is in the output (Abnar & Zuidema 2020,
    arXiv 2005.00928, section 3; ViT paper, appendix D.8). Only the row of the class token is computed, from
    the last layer down; without a class token it is the mean row of the patches.

    Args:
        attention: `(layers, batch, tokens, tokens)`, mean over the heads; rows are queries.
        grid: Patches down and across; tokens before them (the class token) are left out of the map.

    Returns:
        float32 `(batch, grid[0], grid[1])`. Together with the tokens before the patches it sums to 1.

    Raises:
        ValueError: There are fewer tokens than patches.

    Example:
        >>> attention_rollout(np.full((1, 1, 5, 5), 0.2), (2, 2))[0]
        array([[0.1, 0.1],
               [0.1, 0.1]], dtype=float32)
    """
    patches = grid[0] * grid[1]
    prefix = attention.shape[-1] - patches
    if prefix < 0:
        raise ValueError(f"{attention.shape[-1]} tokens are fewer than the {patches} patches of the grid {grid}.")
    row = np.zeros((attention.shape[1], 1, attention.shape[-1]))
    if prefix:
        row[:, :, 0] = 1.0
    else:
        row[:] = 1.0 / patches
    for scores in attention[::-1]:
        row = row / (1.0 + scores.sum(axis=-1, dtype="float64")[:, None])
        row = row + row @ scores
    return row[:, 0, prefix:].reshape(-1, *grid).astype("float32")
