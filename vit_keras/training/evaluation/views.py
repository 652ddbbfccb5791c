"""Test-time augmentation: each image is seen several times, and the predictions are averaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..._internal.validate import one_of
from ...preprocess import Preprocessing
from ...preprocess.images import read
from ..data.decoding import Decoder

__all__ = ["VIEWS", "SeveralViews", "cut"]

_SIDE = 7 / 8
_WHOLE = (0.0, 0.0, 1.0, 1.0)

VIEWS = {
    "flip": (),
    "crops": tuple((y, x, y + _SIDE, x + _SIDE) for y in (0, 1 - _SIDE) for x in (0, 1 - _SIDE)),
}
"""The boxes that each name adds to the whole image: `(top, left, bottom, right)` as shares of its sides.

`"crops"` are its four corners, of seven eighths of each side. `"flip"` adds the mirror image of every view."""


class SeveralViews(Decoder):
    """Reader of the pixels of all views of a file (`VIEWS`), which is decoded once; `count` has mirror images too."""

    def __init__(self, preprocessing: Preprocessing, tta: str | Iterable[str] = ()):
        self.normalize: Callable[[np.ndarray], np.ndarray] = preprocessing.normalize  # which a decoder does without
        super().__init__(preprocessing, roomy=False)
        names = [name.strip() for name in tta.split(",") if name.strip()] if isinstance(tta, str) else [*tta]
        chosen = {one_of(name, "tta", VIEWS) for name in names}
        boxes = [_WHOLE, *(box for name, boxes in VIEWS.items() if name in chosen for box in boxes)]
        self.boxes: list[tuple[float, float, float, float]] = boxes
        self.mirrored: bool = "flip" in chosen
        self.count: int = len(self.boxes) * (1 + self.mirrored)

    def __call__(self, path: Any) -> np.ndarray:
        """Return uint8 `(boxes, height, width, channels)`, without the mirror images."""
        image = read(path, None)
        return np.stack([self.plain(cut(image, box)) for box in self.boxes])

    def inputs(self, images: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the inputs for each view, and its mirror image, of pixels `(n, boxes, height, width, channels)`."""
        for n in range(len(self.boxes)):
            view = self.normalize(images[:, n])
            yield view
            if self.mirrored:
                yield view[:, :, ::-1]

    def bytes(self) -> int:
        return super().bytes() * len(self.boxes)

    def key(self) -> str:
        return json.dumps([super().key(), self.boxes])


def cut(image: np.ndarray, box: tuple[float, float, float, float]) -> np.ndarray:
    """Return a part of an image: a box `(top, left, bottom, right)` as shares of its sides."""
    height, width = image.shape[:2]
    top, left, bottom, right = (round(share * side) for share, side in zip(box, (height, width) * 2))
    return image[top:bottom, left:right]
