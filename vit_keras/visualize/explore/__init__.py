"""The explorer: one HTML file in which a person clicks on a patch and sees what it attends to, in every layer and head.

The file contains everything it needs (attention, images, script) and makes no network requests: it can be mailed, put
on a website or opened in ten years. The page itself is `explorer.html` in this folder; `source` computes its data,
`pack` compresses them, `fit` reduces them to a size, and `page` writes the file.
"""

from __future__ import annotations

import contextlib
import html
import numbers
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._internal.atomic import complete
from ..._internal.validate import expanded, instance
from ..recording import Recording
from .page import make_page
from .source import Source, name_apart, of_model, of_recording

__all__ = ["AttentionExplorer", "explorer"]

NOTEBOOK_MB = 1.0
_IMAGE_SIDES = (768, 512)  # longest side of an image in the page, in pixels, of a few images and of many


def explorer(
    model_or_recording: Any,
    images: Any = None,
    *,
    target: Any = "auto",
    max_mb: float = 6.0,
    compare: Any = None,
    path: str | os.PathLike[str] | None = None,
    title: str | None = None,
    **options: Any,
) -> AttentionExplorer:
    """Make an interactive page of a model's attention, in one HTML file that works without a network.

    The page opens on ALTI (on rollout where the recording has no values). Click on a patch to see where it looks, hover
    to follow the pointer, and go through layers and heads. Attention rollout from any token, similarity of patches and,
    with a target, class relevance are further views. Two images or two models stand side by side.

    Args:
        model_or_recording: A model, which is run on `images`, or a `Recording` of all rows of attention.
        images: Whatever `record` takes. Goes with a model.
        target: What class relevance explains: what `record` takes, as `"predicted"` or a class, by number or name, or a
            list with one for each image. `None`: no relevance. `"auto"`: the predicted class, of a model with a trained
            head. Goes with a model.
        max_mb: The largest size of the file in millions of bytes. The page keeps as much as fits: first the heads are
            averaged, from the first layer on; then layers are left out. The page says so.
        compare: A second model, run on the same images in the same way, or for a `Recording` a second one: the page
            opens with both side by side.
        path: Where to save the file; `None`: nowhere yet.
        title: Heading of the page.
        **options: More options of `record`, as `layers=`, `head_fusion="mean"`, `preprocess=` or `grid=`.

    Returns:
        An `AttentionExplorer`: `.html`, `.save(path)`; a notebook shows it.

    Raises:
        ValueError: The recording has no attention of all rows, the images do not fit into `max_mb` (once the page is
            made, by `.html` or `.save`), or what `record` raises.
        TypeError: The first argument is neither a model nor a recording, or an argument does not go with it.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> page = explorer(model, np.zeros((48, 64, 3), "uint8"), title="A black picture")
        >>> page.html[:15]
        '<!doctype html>'
    """
    if isinstance(max_mb, bool) or not isinstance(max_mb, numbers.Real) or not max_mb > 0:
        raise ValueError(f"max_mb must be a positive number of megabytes. Received: {max_mb!r}")
    given = [model_or_recording] if compare is None else [model_or_recording, compare]
    if isinstance(model_or_recording, Recording):
        extra = ["images"] * (images is not None) + ["target"] * (not isinstance(target, str) or target != "auto")
        if extra or options:
            raise TypeError(
                f"A recording needs no more arguments. Leave out {', '.join([*extra, *options])}, or pass a model."
            )
        sources = [of_recording(instance(one, Recording, "compare")) for one in given]
    else:
        sources = [of_model(one, images, target, options) for one in given]
    name_apart(sources)
    page = AttentionExplorer(sources, "Attention explorer" if title is None else str(title), float(max_mb))
    if path is not None:
        page.save(path)
    return page


class AttentionExplorer:
    """A page of attention, made by `explorer`."""

    def __init__(self, sources: Sequence[Source], title: str, max_mb: float):
        self._sources = tuple(sources)
        self._title = title
        self._max_mb = max_mb
        self._packed: dict[tuple[Any, ...], Any] = {}
        self._made: tuple[str, tuple[str, ...]] | None = None

    @property
    def html(self) -> str:
        """The page, made on first access."""
        return self._make()[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the page says about how it was reduced."""
        return self._make()[1]

    def _make(self) -> tuple[str, tuple[str, ...]]:
        if self._made is None:
            side = _IMAGE_SIDES[sum(len(s.recording.images) for s in self._sources) > 4]
            self._made = make_page(self._sources, self._title, self._max_mb, side, self._packed)
        return self._made

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, which appears only when it is complete, and return its path."""
        path = expanded(path)
        with complete(path) as part:
            part.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """Return a smaller version in a frame of its own: notebooks limit how much a cell may print."""
        most, limit = max(len(s.recording.images) for s in self._sources), min(NOTEBOOK_MB, self._max_mb)
        for count in (most >> halvings for halvings in range(most.bit_length())):
            with contextlib.suppress(ValueError):  # it does not fit
                page, _ = make_page([s.first(count) for s in self._sources], self._title, limit, 384, self._packed)
                break
        else:
            return f"<p>Too large for a notebook; <code>.save(path)</code> writes it.</p><!-- {limit} MB -->"
        part = "" if count == most else f" of the first {count} images"
        note = f"This is a smaller version{part} for the notebook; <code>.save(path)</code> writes the whole one."
        return (
            '<iframe sandbox="allow-scripts allow-downloads" title="Attention explorer" loading="lazy" '
            f'style="width: 100%; height: 860px; border: 0" srcdoc="{html.escape(page)}"></iframe>'
            f'<p style="font: 12px system-ui, sans-serif; opacity: .7">{note}</p>'
        )
