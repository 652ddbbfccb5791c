"""Animations: frames, times and files."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image
from recordings import looking_at, recording, tiles
from support import noise

from vit_keras.visualize import animation, maps, overlays

# ----------------------------------------------------------------- animations --


def frames_of(gif):
    with Image.open(io.BytesIO(gif)) as file:
        for n in range(file.n_frames):
            file.seek(n)
            yield np.asarray(file.convert("RGB")), file.info["duration"]


def moving_square(count=6, background=None):
    background = noise(40, 60, 3) // 8 if background is None else background
    for n in range(count):
        frame = background.copy()
        frame[10:20, 8 * n : 8 * n + 8] = (250, 200, 40)
        yield frame


def test_frames_come_back(tmp_path):
    path = tmp_path / "square.gif"
    assert animation.animate(moving_square(), path, fps=4) == path
    result = list(frames_of(path.read_bytes()))
    assert len(result) == 6
    for (frame, duration), expected in zip(result, moving_square()):
        assert duration == 250
        # 256 colours for 32 ** 3 and one more: 16 levels are twice the spacing of a cube of 6 ** 3 over 32 levels.
        assert np.abs(frame.astype(int) - expected).max() <= 16
    assert [p.name for p in tmp_path.iterdir()] == ["square.gif"]


def test_it_plays_for_ever_and_the_bytes_are_the_file(tmp_path):
    gif = animation.animate(moving_square())
    animation.animate(moving_square(), tmp_path / "same.gif")
    assert (tmp_path / "same.gif").read_bytes() == gif
    assert Image.open(io.BytesIO(gif)).info["loop"] == 0


def test_a_recording_by_depth(tmp_path):
    # Each layer looks at its own patch only, so one patch is added by each.
    places = [[(0, 0)], [(2, 5)], [(0, 5)]]
    made = looking_at(places, (3, 6), picture=(120, 240))
    result = [frame for frame, _ in frames_of(animation.animate(made, size=240, interpolation="nearest"))]
    assert len(result) == 3
    coloured = [np.abs(tiles(frame[:120], (3, 6)) - 0.6 * 80).max(axis=-1) > 5 for frame in result]
    found = [{(int(row), int(column)) for row, column in zip(*where.nonzero())} for where in coloured]
    assert found == [{(0, 0)}, {(0, 0), (2, 5)}, {(0, 0), (2, 5), (0, 5)}]
    for n, frame in enumerate(result, start=1):
        part = dataclasses.replace(made, layers=made.layers[:n], attention=made.attention[:n])
        heat = maps.attention_rollout(part)[0]
        expected = overlays.overlay(made.images[0], heat, interpolation="nearest").astype(int)
        assert np.abs(frame[:120] - expected).mean() < 4  # 256 colours
        assert frame[120:].max() > 200  # the caption


def test_ready_frames_have_the_size_that_is_asked_for():
    (frame, _), *_ = frames_of(animation.animate([noise(20, 40, 3)] * 2, size=120))
    assert frame.shape == (60, 120, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: animation.animate([], path), "There are no frames"),
        (lambda path: animation.animate([noise(4, 6, 3), noise(6, 4, 3)], path), r"Frame 1 has \(4, 6\).*\(6, 4\)"),
        (
            lambda path: animation.animate([noise(4, 6, 3)], path.with_suffix(".mp4")),
            "must end in .gif. Received: .*mp4",
        ),
        (lambda path: animation.animate([noise(4, 6, 3)], path, fps=0), r"\(0, 50\].*Received: 0"),
        (lambda path: animation.animate([noise(4, 6, 3)], path, fps=60), "Received: 60"),
        (lambda path: animation.animate("frames.mp4", path), "an iterable of images. Received: str"),
        (lambda path: animation.animate(recording(attention=None), path), "has no attention"),
    ],
)
def test_what_cannot_be_animated_leaves_nothing(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "bad.gif")
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_breaks_off_leaves_the_old_file(tmp_path):
    def broken():
        yield noise(4, 6, 3)
        raise RuntimeError("the camera fell")

    path = tmp_path / "video.gif"
    animation.animate([noise(4, 6, 3)], path)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="the camera fell"):
        animation.animate(broken(), path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["video.gif"]
