"""Maps of the same images after each epoch: what a model looks at while it learns."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image, ImageDraw

from .._internal.atomic import complete
from .._internal.validate import expanded, one_of, positive_integer
from .animation import caption_font
from .attention import STYLES, attention_map, check_arguments
from .figures import columns_for
from .pictures import is_list_of_pictures, read_picture

_STYLES = tuple(name for name, draw in STYLES.items() if draw is not None)
_TAG = "attention"
_GAP, _LINE = 4, 22  # pixels


class AttentionMapCallback(keras.callbacks.Callback):
    """Draw attention maps of some images before training and after each epoch, as PNG files or for TensorBoard.

    The images are arranged in a sheet with the number of the epoch below. All sheets have one size, so that
    `visualize.animate(callback.paths, "training.gif")` makes a film of them. Training is not affected: the maps are
    made in inference mode and draw no random numbers.

    Args:
        images: What `attention_map` takes, read once.
        folder: Where to write `epoch-000.png` (before training), `epoch-001.png` (after the first epoch) …; it is
            created if needed. `None`: nowhere.
        tensorboard: A folder for TensorBoard's logs, to which the sheets are written as images. On TensorFlow this
            needs no further package; on other backends it needs tensorboardX, or on PyTorch tensorboard.
        every: Number of epochs between two drawings. The maps before training are always drawn.
        method: See `attention_map`.
        target: See `attention_map`. As long as a new head is all zeros, a map for a class is blank.
        style: `"overlay"`, `"paper"` or `"vit_keras"`: see `attention_map`.
        size: Height of an image in the sheet, in pixels.
        columns: Images in a row; `None`: chosen by their aspect ratio.
        **options: More options of `attention_map`, such as `head_fusion`, `preprocess` or `grid`.

    Attributes:
        paths: The written files, in the order of the epochs.

    Raises:
        ValueError: There are no images or no place to write to, or an argument is out of range. What does not fit the
            model is found before training begins.
        TypeError: The method has no such option.
        ImportError: The package that writes for TensorBoard is not installed.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> images = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), "uint8")
        >>> callback = AttentionMapCallback(images[:2], "maps")
        >>> history = model.fit(vit.preprocess_inputs(images), np.arange(10), epochs=2, verbose=0, callbacks=[callback])
        >>> [path.name for path in callback.paths]
        ['epoch-000.png', 'epoch-001.png', 'epoch-002.png']
    """

    every: int
    size: int

    def __init__(
        self,
        images: Any,
        folder: str | os.PathLike[str] | None = None,
        *,
        tensorboard: str | os.PathLike[str] | None = None,
        every: int = 1,
        method: str | None = None,
        target: Any = None,
        style: str = "overlay",
        size: int = 224,
        columns: int | None = None,
        **options: Any,
    ):
        super().__init__()
        if folder is None and tensorboard is None:
            raise ValueError("The maps need a place: pass folder=…, tensorboard=… or both.")
        one_of(style, "style", _STYLES)
        if "return_map" in options:
            raise ValueError("The callback writes images. Leave out return_map.")
        of_method = {name: value for name, value in options.items() if name not in ("preprocess", "grid")}
        check_arguments(method, target, style, of_method)
        self.every, self.size = positive_integer(every, "every"), positive_integer(size, "size")
        self.columns: int | None = None if columns is None else positive_integer(columns, "columns")
        self.images: list[Any] = _held(images if is_list_of_pictures(images) else [images])
        if not self.images:
            raise ValueError("There are no images to draw maps of.")
        self.folder: Path | None = None if folder is None else expanded(folder)
        self.options: dict[str, Any] = {"method": method, "target": target, "style": style, **options}
        self.paths: list[Path] = []
        self._open = None if tensorboard is None else _tensorboard(expanded(tensorboard))
        self._writer = None
        self._begun = False
        self._warned: set[str] = set()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begun = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._begun:
            with self._warnings_once():
                warnings.filterwarnings("ignore", "All gradients are zero", UserWarning)  # a new head is of zeros
                self._draw(epoch)
        self._begun = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if (epoch + 1) % self.every == 0:
            with self._warnings_once():
                self._draw(epoch + 1)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _draw(self, epoch: int) -> None:
        model = self.model
        if hasattr(model, "jax_state_sync"):  # on JAX, weights in training are not in the model's variables
            model.jax_state_sync()
        sheet = _sheet(list(attention_map(model, self.images, **self.options)), self.size, self.columns, epoch)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"epoch-{epoch:03d}.png"
            with complete(path) as part:
                sheet.save(part)
            self.paths = sorted({*self.paths, path}, key=lambda known: int(known.stem.partition("-")[2]))
        if self._open is not None:
            self._writer = self._writer or self._open()
            self._writer.add_image(_TAG, np.asarray(sheet), epoch, dataformats="HWC")
            self._writer.flush()

    @contextlib.contextmanager
    def _warnings_once(self) -> Iterator[None]:
        """Show each warning once, and not after each epoch."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
        for warning in caught:
            if str(warning.message) not in self._warned:
                self._warned.add(str(warning.message))
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _held(images: list[Any]) -> list[Any]:
    """Copy images into arrays that nobody else can change."""
    return [
        _held(image)
        if is_list_of_pictures(image)
        else np.array(image if isinstance(image, np.ndarray) else read_picture(image))
        for image in images
    ]


def _sheet(pictures: list[np.ndarray], height: int, columns: int | None, epoch: int) -> Image.Image:
    """Arrange images of one height in rows, above a line with the number of the epoch."""
    ratios = [p.shape[0] / p.shape[1] for p in pictures]
    widths = [max(1, round(height / ratio)) for ratio in ratios]
    across = min(columns or columns_for(len(pictures), float(np.median(ratios))), len(pictures))
    rows = [range(n, min(n + across, len(pictures))) for n in range(0, len(pictures), across)]
    width = max(sum(widths[n] + _GAP for n in row) - _GAP for row in rows)
    sheet = Image.new("RGB", (width, len(rows) * (height + _GAP) + _LINE), "white")
    for top, row in enumerate(rows):
        starts = itertools.accumulate((widths[n] + _GAP for n in row), initial=0)
        for n, left in zip(row, starts):
            picture = Image.fromarray(pictures[n]).resize((widths[n], height), Image.Resampling.BICUBIC)
            sheet.paste(picture, (left, top * (height + _GAP)))
    ImageDraw.Draw(sheet).text((2, sheet.height - _LINE + 2), f"epoch {epoch}", fill="black", font=caption_font(13))
    return sheet


# --- TensorBoard ------------------------------------------------------------------------------------------------


def _tensorboard(folder: Path) -> Callable[[], Any]:
    """Return a function that opens a writer with tensorboardX's methods `add_image`, `flush` and `close`."""
    if keras.backend.backend() == "tensorflow":
        return lambda: _TensorFlowWriter(folder)
    for module in ("tensorboardX", "torch.utils.tensorboard"):
        with contextlib.suppress(ImportError):
            writer = importlib.import_module(module).SummaryWriter
            return lambda: writer(os.fspath(folder))
    raise ImportError(
        "Images for TensorBoard are written with tensorboardX, which is not installed: pip install tensorboardX"
    )


class _TensorFlowWriter:
    """Write what `tf.summary.image` does, without the package tensorboard, which only the viewer of the logs needs."""

    def __init__(self, folder: Path):
        import tensorflow as tf

        self.summary = tf.summary
        self.metadata = tf.compat.v1.SummaryMetadata()
        self.metadata.plugin_data.plugin_name = "images"
        self.writer = tf.summary.create_file_writer(os.fspath(folder))
        self.flush, self.close = self.writer.flush, self.writer.close

    def add_image(self, tag: str, picture: np.ndarray, step: int, dataformats: str) -> None:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        height, width = (str(n).encode() for n in picture.shape[:2])
        with self.writer.as_default(), self.summary.record_if(True):
            self.summary.write(tag, [width, height, file.getvalue()], step, self.metadata)
