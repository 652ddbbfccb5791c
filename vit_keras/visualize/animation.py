"""Animated GIFs of recordings and of ready frames."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .._internal.atomic import complete
from .._internal.validate import expanded, positive_integer
from .colors import stretch
from .figures import Look, look_of, of_one_image
from .options import check_options, parameters_of
from .overlays import as_picture, in_size

__all__ = ["animate"]

_SIZE = 480  # pixels, of a recording


def animate(
    frames: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    fps: float = 2.0,
    image: int = 0,
    size: int | None = None,
    **look: Any,
) -> Any:
    """Make an animated GIF of a recording or of ready frames.

    Frames share one palette, so that what does not move does not flicker.

    Args:
        frames: A recording with attention, for rollout up to each of its layers; or frames of one size, an iterable of
            whatever `overlay` takes as an image.
        path: File to write, with a name ending in .gif; `None` to get the bytes. A file appears when it is complete.
        fps: Frames in a second, at most 50.
        image: Index of the image in a recording.
        size: Longest side of the image in each frame, in pixels; smaller images are enlarged. `None`: 480 for a
            recording, and ready frames keep their size. The caption below a recording's frames is always whole.
        **look: See `plot_maps`, for a recording.

    Returns:
        `path`, or the bytes of the file.

    Raises:
        ValueError: There are no frames, they differ in size, or an argument is out of range.
        TypeError: There is no such option.
        FileNotFoundError: The folder does not exist.

    Example:
        >>> frames = (np.full((32, 48, 3), 80 * n, "uint8") for n in range(3))
        >>> animate(frames)[:6]
        b'GIF89a'
    """
    if not 0 < fps <= 50:
        raise ValueError(f"fps must be in (0, 50], the range of a GIF. Received: {fps}")
    size = None if size is None else positive_integer(size, "size")
    if hasattr(frames, "attention"):
        frames = _recorded_frames(of_one_image(frames, image), size or _SIZE, look_of(look, animate))
    elif isinstance(frames, (str, bytes, os.PathLike, Image.Image)) or not isinstance(frames, Iterable):
        raise ValueError(f"frames must be a recording or an iterable of images. Received: {type(frames).__name__}")
    else:
        check_options(look, parameters_of(animate, without=("look",)), "animate, for ready frames,")
        frames = (in_size(as_picture(frame), size) if size else as_picture(frame) for frame in frames)
    if path is None:
        file = io.BytesIO()
        _write_gif(file, frames, fps)
        return file.getvalue()
    target = expanded(path)
    if target.suffix.lower() != ".gif":
        raise ValueError(f"An animation is a GIF; the name must end in .gif. Received: {path}")
    with complete(target) as part, part.open("wb") as file:
        _write_gif(file, frames, fps)
    return path


def _recorded_frames(recording: Any, size: int, look: Look) -> list[np.ndarray]:
    from .maps import attention_rollout

    pixels = in_size(recording.images[0], size)
    how = {} if recording.head_fusion is None else {"head_fusion": recording.head_fusion}
    steps = [
        dataclasses.replace(recording, layers=recording.layers[:n], attention=recording.attention[:n])
        for n in range(1, len(recording.layers) + 1)
    ]
    maps = [attention_rollout(step, **how) for step in steps]
    names = [f"up to layer {layer}" for layer in recording.layers]
    pictures = [look.over(pixels, stretch(m[0], look.clip)) for m in maps]
    letters = ImageDraw.Draw(Image.new("1", (1, 1)))
    width = max(pixels.shape[1], *(math.ceil(letters.textlength(name, font=_FONT)) + 12 for name in names))
    return [_captioned(picture, name, width) for picture, name in zip(pictures, names)]


def _captioned(picture: np.ndarray, text: str, width: int) -> np.ndarray:
    """Put a line of text below an image, on a black sheet that is wide enough for both."""
    height = picture.shape[0]
    sheet = Image.new("RGB", (width, height + 24), "black")
    sheet.paste(Image.fromarray(picture), ((width - picture.shape[1]) // 2, 0))
    ImageDraw.Draw(sheet).text((6, height + 5), text, fill="white", font=_FONT)
    return np.asarray(sheet)


try:
    _FONT: Any = ImageFont.load_default(13)
except (TypeError, ImportError):  # Pillow before 10.1, or without FreeType: its bitmap font
    _FONT = ImageFont.load_default()


def _write_gif(file: Any, frames: Iterable[np.ndarray], fps: float) -> None:
    """Write frames as a GIF that plays for ever, in one palette that suits all."""
    pictures: list[Image.Image] = []
    for number, pixels in enumerate(frames):
        pictures.append(Image.fromarray(pixels))
        if pictures[-1].size != pictures[0].size:
            raise ValueError(
                f"Frames must have one size. Frame {number} has {pictures[-1].size}, those before {pictures[0].size} "
                "pixels."
            )
    if not pictures:
        raise ValueError("There are no frames.")
    small = [np.asarray(p.resize((min(p.width, 160), min(p.height, 160)), Image.Resampling.NEAREST)) for p in pictures]
    # The method loses no rare color, such as the brightest.
    palette = Image.fromarray(np.concatenate(small)).quantize(256, Image.Quantize.FASTOCTREE)
    first, *others = (p.quantize(palette=palette, dither=Image.Dither.NONE) for p in pictures)
    times = [round(100 * n / fps) for n in range(len(pictures) + 1)]  # whole hundredths of a second
    durations = [10 * (after - before) for before, after in itertools.pairwise(times)]
    first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0, disposal=1, optimize=False)
