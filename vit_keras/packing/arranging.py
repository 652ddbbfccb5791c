"""Arrange images in sequences of patches, with NumPy only."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .._internal.validate import positive_integer
from ..config import ViTConfig, check_image_size
from ..positions import places_of
from ..resampling import resizing_matrices

__all__ = ["Packing", "arrange", "fitting_size"]


@dataclasses.dataclass(frozen=True, eq=False)
class Packing:
    """Images in sequences, and how to get them back. Returned by `arrange`.

    A sequence is a row. It contains the tokens of its images one after the other, with the tokens before the patches
    first, and padding at the end.

    Attributes:
        inputs: What a `PackedTransformer` takes, arrays by name. `patches`: float32 `(rows, tokens, down, across,
            channels)`, the pixels of each patch. `images`: int32 `(rows, tokens)`, the number of the image in its row;
            -1 for padding. `starts`: int32 `(rows, images)`, the first token of each image. `roles`: float32 `(rows,
            tokens, prefix)`, 1 where a token is that one of those before the patches. `places`: int32 `(rows,
            tokens, 4)`: row and column of a patch, and the patches down and across of its image. `table`, of a model
            with learned positions: float32 `(rows, tokens, down + across)`, how much a patch has of each row and of
            each column of the table.
        slots: int `(images, 2)`: row of each image, and its number there.
        spans: int `(images, 2)`: its first token, and the first one after it.
        grids: Patches down and across of each image.
        of_tokens: Whether the model returns a vector for each token (`pooling=None`) instead of one for each image.

    Example:
        >>> from vit_keras import packing, vit
        >>> packed = packing.pack(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2), 16)
        >>> arranged = packed.arrange([np.zeros((32, 32, 3), "float32"), np.zeros((16, 48, 3), "float32")])
        >>> arranged.grids, arranged.fill
        (((2, 2), (1, 3)), 0.5625)
    """

    inputs: dict[str, np.ndarray]
    slots: np.ndarray
    spans: np.ndarray
    grids: tuple[tuple[int, int], ...]
    of_tokens: bool = False

    @property
    def fill(self) -> float:
        """Share of the tokens that are not padding."""
        return float((self.inputs["images"] >= 0).mean())

    def unpack(self, outputs: Any) -> np.ndarray | list[np.ndarray]:
        """Return the outputs of a packed model for each image, in the order of the images.

        Args:
            outputs: `(rows, images, width)`, or `(rows, tokens, width)` of a model that returns all tokens: an array
                or a tensor.

        Returns:
            An array `(images, width)`, or for all tokens a list of `(tokens of the image, width)`.

        Raises:
            ValueError: The shape of `outputs` does not fit this packing.
        """
        from keras import ops  # nothing else here needs it

        outputs = outputs if isinstance(outputs, np.ndarray) else ops.convert_to_numpy(outputs)
        places = self.inputs["images" if self.of_tokens else "starts"].shape
        if outputs.shape[:2] != places:
            what = "tokens" if self.of_tokens else "images"
            raise ValueError(f"The outputs for this packing are (rows, {what}) = {places}. Received: {outputs.shape}")
        if self.of_tokens:
            return [outputs[row, start:stop] for row, (start, stop) in zip(self.slots[:, 0], self.spans)]
        return outputs[self.slots[:, 0], self.slots[:, 1]]

    def spread(self, values: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return one value per image, such as its label, in the form that `fit` needs along with `inputs`.

        Args:
            values: One for each image: numbers, or arrays of one shape.

        Returns:
            The values as `(rows, images, ...)`, and sample weights `(rows, images)`: 0 where there is no image, and
            scaled so that Keras' mean over all places is the mean over the images.

        Raises:
            ValueError: There is not one value for each image.
        """
        array = np.asarray(values)
        if array.shape[:1] != (len(self.slots),):
            raise ValueError(f"There must be a value for each of {len(self.slots)} images. Received: {array.shape}")
        places = self.inputs["starts"].shape
        spread, weights = np.zeros((*places, *array.shape[1:]), array.dtype), np.zeros(places, "float32")
        spread[self.slots[:, 0], self.slots[:, 1]] = array
        weights[self.slots[:, 0], self.slots[:, 1]] = math.prod(places) / len(array)
        return spread, weights


def arrange(
    images: Sequence[np.ndarray],
    config: ViTConfig,
    tokens: int,
    slots: int,
    rows: int | None = None,
    *,
    largest_first: bool = True,
) -> Packing:
    """Pack images of any sizes into sequences: the largest first, each into the first sequence with room for it."""
    grids, counts = grids_and_tokens(images, config, tokens)
    order = sorted(range(len(counts)), key=lambda image: -counts[image] if largest_first else image)
    places = _first_fit(counts, tokens, slots, order)
    used = 1 + max(row for row, _, _ in places)
    return _fill(images, config, grids, counts, places, (-(-used // (rows or 1)) * (rows or 1), tokens, slots))


def batches_of(counts: Sequence[int], tokens: int, slots: int, rows: int, order: Iterable[int]) -> list[list[int]]:
    """Return the numbers of the images in each batch, which fits, in the given order, into `rows` sequences."""
    # A sequence has at most `tokens` tokens and `slots` images.
    places = _first_fit(counts, tokens, slots, order, rows)
    batches: dict[int, list[int]] = {}
    for image in order:
        batches.setdefault(places[image][0] // rows, []).append(image)
    return [batches[number] for number in sorted(batches)]


def grids_and_tokens(images: Sequence[Any], config: ViTConfig, tokens: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the grid of patches and the number of tokens of each image."""
    grids = [_grid(image, config) for image in images]
    counts = [config.prefix_tokens + math.prod(grid) for grid in grids]
    if not counts:
        raise ValueError("There are no images.")
    if max(counts) > tokens:
        height, width = images[int(np.argmax(counts))].shape[:2]
        raise ValueError(
            f"An image of {height} x {width} pixels has {max(counts):,} tokens, and a sequence has {tokens:,}. Pass "
            f"tokens={max(counts)} or more, or make the image smaller."
        )
    return grids, counts


def fitting_size(size: tuple[int, int], patch: tuple[int, int], patches: int) -> tuple[int, int]:
    """Return the largest size for an image with the same aspect ratio and a maximum number of patches."""
    patches = positive_integer(patches, "patches")

    def grid(scale):
        return [max(1, math.ceil(side * scale / cell)) for side, cell in zip(size, patch)]

    # The grid grows with the scale, by one row or column at a time: the scale lies between two neighboring numbers.
    low, high = 0.0, max(patches * cell / side for side, cell in zip(size, patch)) + 1
    for _ in range(60):
        scale = (low + high) / 2
        low, high = (scale, high) if math.prod(grid(scale)) <= patches else (low, scale)
    down, across = grid(low)
    return down * patch[0], across * patch[1]


def _grid(image: Any, config: ViTConfig) -> tuple[int, int]:
    shape = tuple(getattr(image, "shape", ()))
    if len(shape) != 3 or shape[2] != config.channels:
        raise ValueError(f"An image must be an array (height, width, {config.channels}). Received: shape {shape}")
    check_image_size(config, shape[:2])
    return config.grid_of(shape[:2])


def _first_fit(counts, tokens, slots, order, at_once=None) -> list[tuple[int, int, int]]:
    """Return row, number and first token of each image; `at_once` rows are filled before those after them are begun."""
    ends: list[int] = []
    numbers: list[int] = []
    places: list[Any] = [None] * len(counts)
    for image in order:
        first = 0 if at_once is None else (max(len(ends), 1) - 1) // at_once * at_once
        fits = (n for n in range(first, len(ends)) if ends[n] + counts[image] <= tokens and numbers[n] < slots)
        row = next(fits, len(ends))
        if row == len(ends):
            ends.append(0)
            numbers.append(0)
        places[image] = (row, numbers[row], ends[row])
        ends[row] += counts[image]
        numbers[row] += 1
    return places


def _fill(images, config, grids, counts, places, shape) -> Packing:
    """Write the images into the arrays of a `Packing`."""
    rows, tokens, slots = shape
    prefix, (down, across) = config.prefix_tokens, config.patch_size
    inputs = {
        "patches": np.zeros((rows, tokens, down, across, config.channels), "float32"),
        "images": np.full((rows, tokens), -1, "int32"),
        "starts": np.zeros((rows, slots), "int32"),
        "roles": np.zeros((rows, tokens, prefix), "float32"),
        "places": np.ones((rows, tokens, 4), "int32"),
    }
    learned = config.position == "learned"
    if learned:
        inputs["table"] = np.zeros((rows, tokens, sum(config.grid or config.position_grid)), "float32")
    for image, grid, count, (row, number, start) in zip(images, grids, counts, places):
        first, stop = start + prefix, start + count
        x = np.asarray(image)[: grid[0] * down, : grid[1] * across]
        x = x.reshape(grid[0], down, grid[1], across, -1).transpose(0, 2, 1, 3, 4)
        x = x.reshape(-1, *x.shape[2:])
        inputs["patches"][row, first:stop] = x
        inputs["images"][row, start:stop] = number
        inputs["starts"][row, number] = start
        inputs["roles"][row, start:first] = np.eye(prefix)
        inputs["places"][row, first:stop] = np.stack([*places_of(grid), *np.full((len(x), 2), grid).T], axis=1)
        if learned:
            inputs["table"][row, first:stop] = _shares(
                grid, config.grid or config.position_grid, config.position_resize
            )
    spans = np.array([(start, start + count) for (_, _, start), count in zip(places, counts)])
    slots_of_images = np.array([place[:2] for place in places])
    return Packing(inputs, slots_of_images, spans, tuple(grids), of_tokens=config.pooling is None)


@functools.lru_cache(1024)
def _shares(grid: tuple[int, int], table: tuple[int, int], method: str) -> np.ndarray:
    """Return the weights of a table's rows and columns for the patches of a grid: `(patches, down + across)`."""
    matrices = resizing_matrices(table, grid, method)
    return np.concatenate([matrix[place.astype(int)] for matrix, place in zip(matrices, places_of(grid))], axis=1)
