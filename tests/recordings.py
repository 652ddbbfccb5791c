"""Pictures, maps and recordings made by hand, and where they are bright or warm."""

import numpy as np

from vit_keras.visualize.recording import Recording


def grey_image(height=60, width=120, level=100):
    return np.full((height, width, 3), level, "uint8")


def lit(place, grid):
    """A map of one patch."""
    heat = np.zeros(grid)
    heat[place] = 1
    return heat


def tiles(picture, grid):
    """Mean colour of each patch, `(down, across, 3)`."""
    down, across = grid
    height, width = picture.shape[0] // down * down, picture.shape[1] // across * across
    return picture[:height, :width].reshape(down, height // down, across, width // across, -1).mean(axis=(1, 3))


def warmest(picture, grid):
    warmth = (tiles(picture, grid) * (1, 0, -1)).sum(axis=-1)
    return np.unravel_index(warmth.argmax(), warmth.shape)


def recording(layers=3, batch=2, heads=4, grid=(3, 6), prefix=("cls",), picture=(60, 120), seed=0, **fields):
    """A recording of random attention, with pictures of one grey."""
    tokens = len(prefix) + grid[0] * grid[1]
    attention = np.exp(np.random.default_rng(seed).standard_normal((layers, batch, heads, tokens, tokens)))
    attention /= attention.sum(axis=-1, keepdims=True)
    readout = np.zeros((batch, tokens), "float32")
    readout[:, :1] = 1
    if not prefix:
        readout[:] = 1 / tokens
    fields = {"attention": attention.astype("float32"), **fields}
    pictures = tuple(grey_image(*picture, level=80 + 40 * n) for n in range(batch))
    return Recording(pictures, grid, prefix, tuple(range(layers)), (16, 16), readout, **fields)


def looking_at(places, grid, **options):
    """A recording of one image whose head h looks at the patch `places[layer][h]` in each layer."""
    tokens = 1 + grid[0] * grid[1]
    attention = np.full((len(places), 1, len(places[0]), tokens, tokens), 1e-4, "float32")
    for layer, row in enumerate(places):
        for head, place in enumerate(row):
            attention[layer, 0, head, :, 1 + np.ravel_multi_index(place, grid)] = 1
    return recording(len(places), 1, len(places[0]), grid, attention=attention, **options)
