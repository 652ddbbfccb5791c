"""The description of a published weight file."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from ..preprocess import Preprocessing

__all__ = ["Checkpoint"]

STORAGE = "https://storage.googleapis.com/"
HUB = "https://huggingface.co/"
PACKAGE = "package:"  # the scheme of a file that comes with this package, next to this module

SUFFIXES = (".npz", ".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".h5", ".keras")
"""The ends of names of files of weights."""

TASKS = ("classify", "features", "image-text")
"""What a published file is for: it classifies, or its tower goes with a text tower, or it has no classes."""

_IMAGE_TEXT = re.compile(r"clip|siglip|\blit/", re.IGNORECASE)

LICENSES = {
    "Apache-2.0": "https://www.apache.org/licenses/LICENSE-2.0",
    "BSD-3-Clause": "https://opensource.org/license/bsd-3-clause",
    "CC-BY-NC-4.0": "https://creativecommons.org/licenses/by-nc/4.0/legalcode",
    "DINOv3": "https://ai.meta.com/resources/models-and-libraries/dinov3-license/",
    "MIT": "https://opensource.org/license/mit",
    "apple-ascl": "https://huggingface.co/apple/DFN5B-CLIP-ViT-H-14/blob/main/LICENSE",
}
"""Where the text of each license in the registry is."""


@functools.cache
def preset(text: str, image_size: int) -> Preprocessing:
    """Return the preprocessing that a text in the registry names."""
    # After an `@` comes a different crop: a share (`clip@0.95`), `clip@squash`, or the shortest side in pixels
    # (`torchvision@242`).
    from ..preprocess import PRESETS  # imports NumPy, which a list of names does not need
    from ..preprocess.json_formats import crop_fraction

    name, _, changes = text.partition("@")
    result = PRESETS[name].replace(image_size=image_size)
    if not changes:
        return result
    found = re.fullmatch(r"(squash)?([\d.]*)", changes)
    if found is None:
        raise ValueError(f"A preprocessing is name, name@crop or name@squash. Received: {text!r}")
    mode, number = found.groups()
    crop = float(number) if number else None
    crop = crop_fraction(image_size, int(crop)) if crop and crop > 1 else crop
    return result.replace(crop=crop, crop_mode=mode or "center")


class _Lazy:
    """The field `preprocessing`: a text becomes a `Preprocessing` on first access."""

    def __get__(self, checkpoint: Checkpoint | None, owner: type | None = None) -> Any:
        if checkpoint is None:  # `dataclass` asks for the default value
            return "google"
        value = checkpoint.__dict__["preprocessing"]
        if isinstance(value, str):
            value = checkpoint.__dict__["preprocessing"] = preset(value, checkpoint.image_size)
        return value

    def __set__(self, checkpoint: Checkpoint, value: Any) -> None:
        checkpoint.__dict__["preprocessing"] = value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published weight file.

    Attributes:
        weights: The value of `weights=` for the factory of its variant; without a variant, its full name.
        url: Its address.
        variant: Google's name of the architecture, such as `"B_16"` (`vit_keras.variants.VARIANTS`); `None` for files
            from other publishers.
        family: The names and layout of its weights (`vit_keras.checkpoints.families`).
        source: Its publisher: `"google"`, `"timm"`, `"facebook"` …
        image_size: Height and width in pixels of the images it was last trained on.
        classes: Number of outputs of its head; `None` without a head.
        labels: Name of the list of classes, such as `"imagenet-1k"`, or `None`.
        preprocessing: Its publisher's preprocessing of images (a `Preprocessing`).
        options: Fields of `ViTConfig` that cannot be inferred from the file and differ from the family's.
        bytes: Exact size of the file; `None` if unknown.
        sha256: Hash of the file; `None` if none is public.
        representation_size: Width of `pre_logits`; `None` without that layer.
        top1: ImageNet-1k top-1 accuracy in percent, or `None`.
        top1_source: Source of `top1`: `"google"`, `"timm"`, `"facebook"` or `"torchvision"`.
        architecture: timm's name of the architecture, and fields of `ViTConfig` in which the file differs from it;
            `None` for timm's own files and Google's ViTs, whose names contain it.
        parameters: Number of parameters of the model; `None` for AugReg's files.
        macs: Multiply-accumulate operations for one image of `image_size`; `None` for AugReg's files.
        license: SPDX name of the license if it has one.

    Example:
        >>> Checkpoint(weights="mine", url="https://example.org/mine.npz").filename
        'mine.npz'
    """

    weights: str
    url: str
    variant: str | None = None
    family: str = "google"
    source: str = "google"
    image_size: int = 224
    classes: int | None = None
    labels: str | None = None
    preprocessing: Preprocessing = _Lazy()  # pyright: ignore[reportAssignmentType] (a descriptor with this type)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    bytes: int | None = None
    sha256: str | None = None
    representation_size: int | None = None
    top1: float | None = None
    top1_source: str | None = None
    architecture: str | None = None
    parameters: int | None = None
    macs: int | None = None
    license: str = "Apache-2.0"

    @property
    def name(self) -> str:
        """The unique name, for `weights=` of any function: `B_16/imagenet21k`."""
        return self.weights if self.variant is None else f"{self.variant}/{self.weights}"

    @property
    def path(self) -> str:
        """The path on the server; for Google's own files, inside their bucket."""
        path = unquote(urlsplit(self.url).path).lstrip("/")
        return path.partition("/")[2] if self.url.startswith(STORAGE) else path

    @property
    def filename(self) -> str:
        """The last part of the URL. On some servers all files have the same one."""
        return self.path.rpartition("/")[2]

    @property
    def megabytes(self) -> float | None:
        """The size of the file in MB: `bytes` if known, otherwise the size of its parameters in float32."""
        if self.bytes is not None:
            return self.bytes / 1e6
        return None if self.parameters is None else 4 * self.parameters / 1e6

    @property
    def task(self) -> str:
        """The purpose of the file, one of `TASKS`.

        Example:
            >>> Checkpoint(weights="mine", url="https://example.org/mine.npz", labels="imagenet-1k").task
            'classify'
        """
        if self.labels is not None:
            return "classify"
        return "image-text" if _IMAGE_TEXT.search(f"{self.family} {self.weights}") else "features"

    @property
    def license_url(self) -> str | None:
        """The URL of the license text; `None` if it is unknown."""
        return LICENSES.get(self.license)

    def to_dict(self) -> dict[str, Any]:
        """Return all facts as plain JSON."""
        fields = dataclasses.asdict(self) | {"options": dict(self.options)}
        fields["preprocessing"] = self.preprocessing.to_dict()
        return {name: getattr(self, name) for name in ("name", "megabytes", "task", "license_url")} | fields

    @property
    def sha256_prefix(self) -> str | None:
        """The first eight digits of the hash, from `sha256` or from a file name that follows torch.hub's rule."""
        found = re.search(r"-([0-9a-f]{8})\.pth$", self.filename)
        return self.sha256[:8] if self.sha256 else found and found[1]


def megabytes(size: int | None) -> str:
    """Return a number of bytes as text, in powers of ten as Google and Hugging Face count them."""
    if size is None:
        return "size unknown"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.{2 if unit == 'GB' else 1}f} {unit}"
    return f"{size} bytes"
