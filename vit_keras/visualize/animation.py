"""Animated GIFs of recordings and of frames that are ready."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont, ImageStat

from ..atomic import complete
from .figures import _Look, _of_one_image, _shrunk
from .overlays import _picture


def animate(
    frames: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    over: str = "layers",
    fps: float = 2.0,
    image: int = 0,
    size: int = 480,
    **look: Any,
) -> Any:
    """Make an animated GIF, of a recording or of frames that are ready.

    Frames share one palette, so that what does not move does not flicker; a frame that it does not fit, as after a cut, brings
    a new one. Frames are written as they come: a video does not have to fit into memory.

    Args:
        frames: A recording with attention; or frames of one size, an iterable of whatever `overlay` takes as an image.
        path: Where to write, a name ending in .gif; `None` to get the bytes. A file appears when it is complete.
        over: What a recording runs over: `"layers"`, attention rollout up to each of them; or `"discard"`, rollout with more and more
            of the lowest attentions left out, from none to 90 %.
        fps: Frames in a second, at most 50.
        image: Which image of a recording.
        size: Longest side of the frames of a recording, in pixels. Ready frames stay as they are.
        **look: See `plot_maps`, for a recording.

    Returns:
        `path`, or the bytes of the file.

    Raises:
        ValueError: There are no frames, they differ in size, or an argument is out of range.
        FileNotFoundError: The folder does not exist.

    Example:
        >>> frames = (overlay(np.zeros((32, 48, 3), "uint8"), np.eye(4) * n) for n in range(3))
        >>> animate(frames)[:6]
        b'GIF89a'
    """
    if not 0 < fps <= 50:
        raise ValueError(f"fps is in (0, 50], the most that a GIF can. Received: {fps}")
    samples: Sequence[Any] = ()
    if hasattr(frames, "attention"):
        frames = samples = _recorded_frames(_of_one_image(frames, image), over, size, _Look(**look))
    elif isinstance(frames, (str, bytes, os.PathLike, Image.Image)) or not isinstance(frames, Iterable):
        raise ValueError(f"frames is a recording or an iterable of images. Received: {type(frames).__name__}")
    if path is None:
        file = io.BytesIO()
        _write_gif(file, frames, fps, samples)
        return file.getvalue()
    target = Path(path).expanduser()
    if target.suffix.lower() != ".gif":
        raise ValueError(f"An animation is a GIF: name it .gif. Received: {path}")
    with complete(target) as part, part.open("wb") as file:
        _write_gif(file, frames, fps, samples)
    return path


def _recorded_frames(recording: Any, over: str, size: int, look: _Look) -> list[np.ndarray]:
    from .maps import attention_rollout

    pixels = _shrunk(recording.images[0], size)
    how = {} if recording.heads is None else {"head_fusion": recording.heads}
    if over == "layers":
        depths = range(1, len(recording.layers) + 1)
        steps = [
            dataclasses.replace(recording, layers=recording.layers[:n], attention=recording.attention[:n])
            for n in depths
        ]
        maps = [attention_rollout(step, **how) for step in steps]
        names = [f"up to layer {layer}" for layer in recording.layers]
    elif over == "discard":
        ratios = [n / 10 for n in range(10)]
        maps = [attention_rollout(recording, discard_ratio=ratio, **how) for ratio in ratios]
        names = [f"{100 * ratio:.0f} % discarded" for ratio in ratios]
    else:
        raise ValueError(f"over is 'layers' or 'discard'. Received: {over!r}")
    pictures = [look.over(pixels, values) for values in look.values([m[0] for m in maps])]
    return [_captioned(picture, name) for picture, name in zip(pictures, names)]


def _captioned(picture: np.ndarray, text: str) -> np.ndarray:
    """A picture above a line of text."""
    height, width = picture.shape[:2]
    sheet = Image.new("RGB", (width, height + 24), "black")
    sheet.paste(Image.fromarray(picture))
    ImageDraw.Draw(sheet).text((6, height + 5), text, fill="white", font=caption_font(13))
    return np.asarray(sheet)


def caption_font(size: int) -> Any:
    """Pillow's own font."""
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError):  # Pillow before 10.1, or without FreeType: its bitmap font
        return ImageFont.load_default()


def _write_gif(file: Any, frames: Iterable[Any], fps: float, samples: Sequence[Any]) -> None:
    """Write frames one by one, where Pillow's own `save_all` would collect all of them before it writes the first."""
    number, before, common = -1, None, None
    palette = _palette([Image.fromarray(s) for s in samples]) if len(samples) else None
    limit = math.inf
    for number, frame in enumerate(frames):
        frame = Image.fromarray(_picture(frame))
        if before is not None and frame.size != before.size:
            raise ValueError(
                f"Frames have one size. Frame {number} has {frame.size}, those before {before.size} pixels."
            )
        if palette is not None:
            coded, shown, error = _code(frame, palette)
        if palette is None or error > limit:
            palette = _palette([frame])
            coded, shown, error = _code(frame, palette)
            limit = 2 * error + 1
        if before is None:
            common, box = palette, (0, 0, *frame.size)
            file.write(_gif_header(frame.size, common))
        else:  # nothing may have changed, but the frame has its time
            box = ImageChops.difference(shown, before).getbbox() or (0, 0, 1, 1)
        hundredths = round(100 * (number + 1) / fps) - round(100 * number / fps)
        file.write(_gif_frame(coded, box, hundredths, None if palette is common else palette))
        before = shown
    if number < 0:
        raise ValueError("There are no frames.")
    file.write(b";")


def _palette(pictures: Sequence[Image.Image]) -> Image.Image:
    """An image that carries the colours which suit all of the pictures."""
    small = [p.resize((min(p.width, 160), min(p.height, 160)), Image.Resampling.NEAREST) for p in pictures]
    sheet = Image.new("RGB", (small[0].width, sum(p.height for p in small)))
    for place, picture in zip(itertools.accumulate((p.height for p in small), initial=0), small):
        sheet.paste(picture, (0, place))
    return sheet.quantize(256, Image.Quantize.FASTOCTREE)  # which loses no rare colour, such as the brightest


def _code(frame: Image.Image, palette: Image.Image) -> tuple[Image.Image, Image.Image, float]:
    """A frame in the colours of a palette, what it looks like then, and by how many levels it is off."""
    coded = frame.quantize(palette=palette, dither=Image.Dither.NONE)
    shown = coded.convert("RGB")
    return coded, shown, max(ImageStat.Stat(ImageChops.difference(frame, shown)).mean)


def _gif_header(size: tuple[int, int], palette: Image.Image) -> bytes:
    """The size, the common palette, and that it plays for ever."""
    screen = struct.pack("<HHBBB", *size, 0xF7, 0, 0)
    return b"GIF89a" + screen + _gif_colours(palette) + b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def _gif_frame(
    coded: Image.Image, box: tuple[int, int, int, int], hundredths: int, palette: Image.Image | None
) -> bytes:
    """A part of a frame, drawn over the one before for some hundredths of a second, perhaps with a palette of its own."""
    file = io.BytesIO()
    coded.crop(box).save(file, "GIF", optimize=False, interlace=0)
    data = file.getvalue()
    start = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)  # after the screen and its palette
    while data[start : start + 1] == b"\x21":  # extensions: blocks of a length each, up to an empty one
        start += 2
        while data[start]:
            start += data[start] + 1
        start += 1
    left, top, right, bottom = box
    control = b"\x21\xf9\x04" + struct.pack("<BHBB", 1 << 2, hundredths, 0, 0)
    place = b"," + struct.pack("<HHHHB", left, top, right - left, bottom - top, 0x87 if palette else 0)
    return control + place + (_gif_colours(palette) if palette else b"") + data[start + 10 : -1]


def _gif_colours(palette: Image.Image) -> bytes:
    return bytes(palette.getpalette())[:768].ljust(768, b"\0")
