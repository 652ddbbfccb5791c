"""The published checkpoints, as data.

`registry.csv`, kept by hand, and `registry_timm.csv`, which `tools/make_registry.py` writes, have a line for each
file; AugReg's 52,268 files have a grammar instead. Nothing is read before the first question.

Sources: the file lists of google-research/vision_transformer (README, `configs/models.py`) and big_vision, the AugReg
paper (arXiv 2106.10270), timm's configurations, torchvision's, OpenAI's and Hugging Face's. Sizes of Google's files
follow from the format (an uncompressed zip) and agree with every size Google lists; those of SAM and GSAM are larger by
what cannot be known, and left out. A hash is given where one is public.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import fnmatch
import functools
import importlib.resources
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ..preprocess import PRESETS, Preprocessing, crop_fraction
from .download import download

STORAGE = "https://storage.googleapis.com/"
BUCKET = f"{STORAGE}vit_models/"
AUGREG_INDEX = f"{BUCKET}augreg/index.csv"
HUB = "https://huggingface.co/"
PACKAGE = "package:"  # a file that comes with this package, beside this module
_LABELS = {
    10: "cifar-10",
    1000: "imagenet-1k",
    11221: "imagenet-21k-p",
    11821: "imagenet-12k",
    21841: "imagenet-22k",
    21843: "imagenet-21k",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One published file of weights.

    Attributes:
        weights: What to pass as `weights=` to the factory of its variant; of a file that is no variant's, its name.
        url: Where it is published.
        variant: Google's name of the architecture, such as `"B_16"` (`vit_keras.config.VARIANTS`); `None` for
            others than Google's own files.
        family: The names and layout of its weights (`vit_keras.checkpoints.families`).
        source: Who publishes it: `"google"`, `"timm"`, `"facebook"` …
        image_size: Pixels that it was trained at last, height = width.
        classes: Number of outputs of its head, or `None` where it has none.
        labels: What the classes are, such as `"imagenet-1k"`, or `None`.
        preprocessing: How its publisher brings a picture to its input.
        options: Fields of `ViTConfig` that the file cannot tell, where they are not the family's.
        bytes: Exact size of the file, or `None` where it is not known.
        sha256: Hash of the file, or `None` where none is public.
        representation_size: Width of `pre_logits`, or `None` where the file has none.
        top1: ImageNet-1k top-1 accuracy in percent, or `None`.
        top1_source: Who measured that: `"google"` or `"timm"`.
        licence: SPDX name where there is one.
    """

    weights: str
    url: str
    variant: str | None = None
    family: str = "google"
    source: str = "google"
    image_size: int = 224
    classes: int | None = None
    labels: str | None = None
    preprocessing: Preprocessing = PRESETS["google"]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    bytes: int | None = None
    sha256: str | None = None
    representation_size: int | None = None
    top1: float | None = None
    top1_source: str | None = None
    licence: str = "Apache-2.0"

    @property
    def name(self) -> str:
        """The name that tells it from all others, for `weights=` of any function: `B_16/imagenet21k`."""
        return self.weights if self.variant is None else f"{self.variant}/{self.weights}"

    @property
    def path(self) -> str:
        """Its place on the server: of Google's own files, in their bucket."""
        path = unquote(urlsplit(self.url).path).lstrip("/")
        return path.partition("/")[2] if self.url.startswith(STORAGE) else path

    @property
    def filename(self) -> str:
        """The last part of the URL, which on some servers is the same for all."""
        return self.path.rpartition("/")[2]

    @property
    def sha256_prefix(self) -> str | None:
        """The first eight digits of the hash, from `sha256` or from the file's name where torch.hub's rule puts them."""
        found = re.search(r"-([0-9a-f]{8})\.pth$", self.filename)
        return self.sha256[:8] if self.sha256 else found and found[1]

    @property
    def mean(self) -> tuple[float, ...]:
        """Of the preprocessing."""
        return self.preprocessing.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Of the preprocessing."""
        return self.preprocessing.std

    @property
    def interpolation(self) -> str:
        """Of the preprocessing."""
        return self.preprocessing.interpolation

    @property
    def crop(self) -> float | None:
        """Of the preprocessing."""
        return self.preprocessing.crop


def __getattr__(name: str) -> Any:
    if name == "CHECKPOINTS":
        return listed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def listed() -> tuple[Checkpoint, ...]:
    """All checkpoints that have a line in the tables, Google's first; also `CHECKPOINTS`.

    Example:
        >>> listed()[0].name
        'B_8/imagenet21k'
    """
    folder = importlib.resources.files(__package__)
    tables = ("registry.csv", "registry_timm.csv")
    lines = (folder.joinpath(table).read_text(encoding="utf-8").splitlines() for table in tables)
    return tuple(_checkpoint(row) for table in lines for row in csv.DictReader(table))


def _checkpoint(row: Mapping[str, str]) -> Checkpoint:
    fields = {field: row[field] or None for field in ("variant", "sha256", "top1_source")}
    numbers = {field: int(row[field]) if row[field] else None for field in ("classes", "bytes", "representation_size")}
    size = int(row["image_size"])
    return Checkpoint(
        **fields,
        **numbers,
        weights=row["name"],
        url=_url(row["name"], row["url"]),
        family=row["family"],
        source=_source(row),
        image_size=size,
        labels=_LABELS.get(numbers["classes"] or 0),
        preprocessing=_preprocessing(row["preprocessing"], size),
        options=dict(_option(part) for part in row["options"].split()),
        top1=float(row["top1"]) if row["top1"] else None,
        licence=row["licence"],
    )


def _source(row: Mapping[str, str]) -> str:
    if row["url"].startswith(PACKAGE):
        return "vit_keras"
    of_google = row["variant"] or row["family"] in ("big_vision", "flexivit")
    return "google" if of_google else row["name"].partition("/")[0]


def _url(name: str, url: str) -> str:
    """An address in full. Without one, the file is on the hub, in the repository of that name."""
    if url.startswith(("https://", PACKAGE)):
        return url
    if url.startswith("gs:"):
        return STORAGE + quote(url[3:])
    return f"{HUB}{name}/resolve/main/{url or 'model.safetensors'}"


def _preprocessing(text: str, size: int) -> Preprocessing:
    """A preset, with another crop after an `@`: `clip@0.95`, `clip@squash`, `torchvision@242` (the shortest side)."""
    preset, _, changes = text.partition("@")
    found = re.fullmatch(r"(squash)?([\d.]*)", changes)
    result = PRESETS[preset].replace(image_size=size)
    if not changes:
        return result
    crop = float(found[2]) if found[2] else None
    crop = crop_fraction(size, int(crop)) if crop and crop > 1 else crop
    return result.replace(crop=crop, crop_mode=found[1] or "center")


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    for read in (int, float):
        try:
            return name, read(value)
        except ValueError:
            pass
    return name, value


@functools.cache
def _by_name() -> dict[str, Checkpoint]:
    """Every name and URL by which a listed checkpoint is known."""
    names = {}
    for checkpoint in listed():
        place = checkpoint.path
        if checkpoint.variant is not None:
            stem = place.removesuffix(".npz")
            names |= dict.fromkeys((stem, f"{stem}.npz"), checkpoint)
            if checkpoint.family == "mixer":
                names |= dict.fromkeys((f"mixer/{stem}", f"mixer/{stem}.npz"), checkpoint)
        names |= dict.fromkeys((checkpoint.url, unquote(checkpoint.url)), checkpoint)
    return names | {checkpoint.name: checkpoint for checkpoint in listed()}


def find(name: str, variant: str | None = None) -> Checkpoint | None:
    """The published checkpoint of that name, or `None`.

    Args:
        name: A full name (`"B_16/imagenet21k"`, `"timm/deit_tiny_patch16_224.fb_in1k"`), with `variant` what
            follows the slash, a path in Google's buckets (`"sam/ViT-B_16"`), the name of any AugReg file, or a
            published URL.
        variant: Google's name of the architecture.

    Example:
        >>> find("imagenet21k", "B_16") == find("imagenet21k/ViT-B_16")
        True
    """
    known = _by_name()
    if variant is not None and f"{variant}/{name}" in known:
        return known[f"{variant}/{name}"]
    if name in known:
        return known[name]
    folder, _, stem = name.removeprefix(BUCKET).rpartition("/")
    return _augreg_file(stem.removesuffix(".npz")) if folder in ("", "augreg", *AUGREG_MODELS) else None


def is_unique(basename: str) -> bool:
    """Whether no more than one published file has this name.

    Example:
        >>> is_unique("ViT-B_16.npz")
        False
    """
    return _filenames()[basename] <= 1


@functools.cache
def _filenames() -> collections.Counter:
    return collections.Counter(c.filename for c in listed())


def by_filename(basename: str, bytes: int | None = None) -> Checkpoint | None:
    """The published checkpoint that a local file is a copy of, judged by its name and size.

    A file from a hub, where all have one name, may be called as its repository is.

    Args:
        basename: Name of the file, without folders.
        bytes: Its size. Two of Google's files may have one name.

    Returns:
        The checkpoint, or `None` where none has that name, several have, or the size is wrong.

    Example:
        >>> by_filename("deit_tiny_patch16_224-a1311bcf.pth").name
        'facebook/deit_tiny_patch16_224'
    """
    stem = re.sub(r"\.(safetensors|bin|pth|pt|h5)$", "", basename)
    found = [
        c for c in listed() if c.filename == basename or (c.url.startswith(HUB) and c.weights.endswith(f"/{stem}"))
    ]
    if not found and basename.endswith(".npz"):
        found = list(filter(None, [_augreg_file(basename.removesuffix(".npz"))]))
    if bytes is not None:
        exact = [c for c in found if c.bytes == bytes]
        found = exact or (found if all(c.bytes is None for c in found) else [])
    return found[0] if len(found) == 1 else None


def select(
    *,
    family: str | None = None,
    source: str | None = None,
    variant: str | None = None,
    classes: int | None = None,
    image_size: int | None = None,
    name: str | None = None,
    licence: str | None = None,
    labels: str | None = None,
) -> list[Checkpoint]:
    """The listed checkpoints of some kind. What is left out does not matter.

    Args:
        family: Names and layout of the weights, such as `"timm"`.
        source: Who publishes it, such as `"facebook"`.
        variant: Google's name of the architecture.
        classes: Number of outputs of the head.
        image_size: Pixels.
        name: Pattern of the full name, `*` for anything.
        licence: SPDX name; capitals do not matter.
        labels: What the classes are, such as `"imagenet-1k"`.

    Raises:
        ValueError: No listed checkpoint has such a family, source, variant, licence or labels.

    Example:
        >>> [c.image_size for c in select(source="timm", name="*deit_base_patch16*")]
        [224, 384]
    """
    wanted = {"family": family, "source": source, "variant": variant, "licence": licence, "labels": labels}
    wanted = {field: value for field, value in wanted.items() if value is not None}
    for field, value in wanted.items():
        values = {str(getattr(c, field)) for c in listed()} - {"None"}
        if value.lower() not in {v.lower() for v in values}:
            raise ValueError(f"Unknown {field} {value!r}. There are: {', '.join(sorted(values))}.")
    return [
        c
        for c in listed()
        if all(str(getattr(c, field)).lower() == value.lower() for field, value in wanted.items())
        and classes in (None, c.classes)
        and image_size in (None, c.image_size)
        and (name is None or fnmatch.fnmatchcase(c.name, name))
    ]


# ---- AugReg: "How to train your ViT?", arXiv 2106.10270 -----------------------------------------------------

AUGREG_MODELS = ("Ti_16", "S_32", "S_16", "B_32", "B_16", "B_8", "L_16", "R_Ti_16", "R26_S_32", "R50_L_32")
AUGREG_AUGMENTATIONS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
AUGREG_CLASSES = {"i1k": 1000, "i21k": 21843}
AUGREG_ADAPTED = {"imagenet2012": 1000, "cifar100": 100, "kitti": 4, "oxford_iiit_pet": 37, "resisc45": 45}
_AUGREG_NAME = re.compile(
    r"(?P<name>\w+?)-(?P<ds>i1k|i21k)-(?P<epochs>\d+)ep-lr_(?P<lr>[\d.e-]+)-aug_(?P<aug>\w+)-wd_(?P<wd>[\d.e-]+)"
    r"-do_(?P<do>[\d.]+)-sd_(?P<sd>[\d.]+)"
    r"(--(?P<adapt_ds>\w+)-steps_(?P<steps>\d+)k-lr_(?P<adapt_lr>[\d.e-]+?)-res_(?P<res>\d+))?"
)


def augreg(
    name: str,
    ds: str = "i21k",
    *,
    aug: str = "medium1",
    wd: float = 0.1,
    do: float = 0.0,
    sd: float = 0.0,
    lr: float = 0.001,
    epochs: int = 300,
    adapt_ds: str | None = None,
    steps: int = 20_000,
    adapt_lr: float = 0.03,
    res: int = 224,
) -> Checkpoint:
    """Any of AugReg's files, by what it was trained with.

    Not every combination was published; `query_augreg` knows which were.

    Args:
        name: Architecture, such as `"B_16"`.
        ds: Data set of the pre-training: `"i1k"` or `"i21k"` (`"i21k_30"`: for 30 epochs).
        aug: Augmentation: `"none"`, `"light0"`, `"light1"`, `"medium1"`, `"medium2"`, `"strong1"` or `"strong2"`.
        wd: Weight decay.
        do: Dropout.
        sd: Stochastic depth.
        lr: Learning rate.
        epochs: Epochs.
        adapt_ds: Data set of the fine-tuning: `"imagenet2012"`, `"cifar100"`, `"kitti"`, `"oxford_iiit_pet"` or
            `"resisc45"`; `None` for the pre-trained file.
        steps: Steps of the fine-tuning; in the name they are thousands, rounded down.
        adapt_lr: Learning rate of the fine-tuning.
        res: Pixels of the fine-tuning, 224 or 384.

    Raises:
        ValueError: A value is not one that there are files of.

    Example:
        >>> augreg("Ti_16", aug="none", wd=0.03, adapt_ds="imagenet2012").name
        'Ti_16/augreg-imagenet21k+imagenet2012-224'
    """
    if ds == "i21k_30":
        ds, epochs = "i21k", 30
    for argument, value, choices in (
        ("name", name, AUGREG_MODELS),
        ("ds", ds, (*AUGREG_CLASSES, "i21k_30")),
        ("aug", aug, AUGREG_AUGMENTATIONS),
        ("adapt_ds", adapt_ds, (None, *AUGREG_ADAPTED)),
        ("res", res, (224, 384)),
        ("epochs", epochs, (30, 300)),
    ):
        if value not in choices:
            raise ValueError(f"{argument} of an AugReg file is one of {str(choices)[1:-1]}. Received: {value!r}")
    numbers = {"wd": wd, "do": do, "sd": sd, "lr": lr, "adapt_lr": adapt_lr, "steps": steps}
    try:
        wd, do, sd, lr, adapt_lr, steps = (float(v) for v in numbers.values())
    except (TypeError, ValueError):
        raise ValueError(f"{', '.join(numbers)} of an AugReg file are numbers. Received: {numbers}") from None
    if min(wd, do, sd, lr, adapt_lr, steps) < 0:
        raise ValueError(f"{', '.join(numbers)} of an AugReg file are not negative. Received: {numbers}")
    stem = f"{name}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}"
    if adapt_ds is not None:
        stem += f"--{adapt_ds}-steps_{int(steps // 1000)}k-lr_{adapt_lr}-res_{res}"
    known = _by_name().get(f"augreg/{stem}")
    if known is not None:
        return known
    classes = AUGREG_CLASSES[ds] if adapt_ds is None else AUGREG_ADAPTED[adapt_ds]
    size = 224 if adapt_ds is None else res
    return Checkpoint(
        variant=name,
        weights=stem,
        url=f"{BUCKET}augreg/{stem}.npz",
        image_size=size,
        classes=classes,
        labels=_LABELS.get(classes, adapt_ds),
        preprocessing=PRESETS["google"].replace(image_size=size),
        bytes=_augreg_bytes(name, size, classes),
    )


def _augreg_bytes(name: str, image_size: int, classes: int) -> int | None:
    """The size of a listed file of the same architecture: names and shapes, not values, make it."""
    for c in listed():
        if (c.variant, c.image_size, c.classes) == (name, image_size, classes) and c.path.startswith("augreg/"):
            return c.bytes
    return None


def parse_augreg(filename: str) -> dict[str, Any]:
    """What the name of an AugReg file says: the arguments of `augreg`.

    Args:
        filename: With or without `.npz` and folders.

    Raises:
        ValueError: It is no name of an AugReg file.

    Example:
        >>> parse_augreg("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0.npz")["aug"]
        'light1'
    """
    found = _AUGREG_NAME.fullmatch(filename.replace("\\", "/").rpartition("/")[2].removesuffix(".npz"))
    if found is None:
        raise ValueError(
            f"{filename!r} is no name of an AugReg file, which is like "
            "'B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_384.npz'."
        )
    fields = {field: value for field, value in found.groupdict().items() if value is not None}
    for field in {"epochs", "steps", "res"} & set(fields):
        fields[field] = int(fields[field])
    for field in {"lr", "wd", "do", "sd", "adapt_lr"} & set(fields):
        try:
            fields[field] = float(fields[field])
        except ValueError:
            raise ValueError(f"{filename!r}: {field} is not a number: {fields[field]!r}") from None
    if "steps" in fields:
        fields["steps"] *= 1000
    return fields


def _augreg_file(stem: str) -> Checkpoint | None:
    try:
        checkpoint = augreg(**parse_augreg(stem))
    except ValueError:
        return None
    return checkpoint if checkpoint.path == f"augreg/{stem}.npz" else None


def query_augreg(index: str | os.PathLike | None = None, **filters: Any) -> list[Checkpoint]:
    """The AugReg files that were published, best first, from Google's index of them.

    What the paper recommends is the first with `ds="i21k"`: the highest accuracy on held-out data of the pre-training
    (`final_val`).

    Args:
        index: The file `index.csv`; `None` to fetch it (some 20 MB).
        **filters: Values that columns must have: `name`, `ds`, `epochs`, `lr`, `aug`, `wd`, `do`, `sd`,
            `adapt_ds`, `adapt_lr`, `adapt_steps`, `adapt_resolution`, … `adapt_ds=None` asks for the pre-trained
            files, everything else for the fine-tuned ones.

    Returns:
        Checkpoints by falling `final_val`, then `adapt_final_val`. `top1` is `adapt_final_test` where that is of
        ImageNet.

    Raises:
        FileNotFoundError: There is no such file, or being offline it is not at hand.
        ConnectionError: It could not be fetched.
        ValueError: It is no such index, or has no such column.

    Example:
        >>> query_augreg("index.csv", name="B_16", ds="i21k", adapt_ds="imagenet2012")[0].top1  # doctest: +SKIP
        85.49
    """
    path = Path(download(AUGREG_INDEX) if index is None else index).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no index of AugReg at {path}.")
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        table = csv.DictReader(file)
        columns = table.fieldnames or []
        if not {"filename", "adapt_filename", "final_val", "adapt_final_val", "adapt_ds"} <= set(columns):
            raise ValueError(f"{path} is not AugReg's index.csv: its first line is {','.join(columns)[:100]!r}.")
        unknown = sorted(set(filters) - set(columns))
        if unknown:
            raise ValueError(f"The index has no column {', '.join(unknown)}. There are: {', '.join(columns)}.")
        pretrained = "adapt_ds" in filters and filters["adapt_ds"] is None
        wanted = {k: v for k, v in filters.items() if not (pretrained and k == "adapt_ds")}
        rows = [row for row in table if all(_same(row[column], value) for column, value in wanted.items())]
    rows.sort(key=lambda row: (-_number(row["final_val"]), -_number(row["adapt_final_val"])))
    result: dict[str, Checkpoint] = {}
    for row in rows:
        stem = (row["filename"] if pretrained else row["adapt_filename"]).rpartition("/")[2].removesuffix(".npz")
        if stem and stem not in result:
            result[stem] = _indexed(stem, None if pretrained else row)
    return list(result.values())


def _indexed(stem: str, row: Mapping[str, str] | None) -> Checkpoint:
    checkpoint = augreg(**parse_augreg(stem))
    if row is None or row["adapt_ds"] != "imagenet2012" or not row.get("adapt_final_test"):
        return checkpoint
    top1 = round(100 * _number(row["adapt_final_test"]), 2)
    return dataclasses.replace(checkpoint, top1=top1, top1_source="google")


def _same(cell: str, value: Any) -> bool:
    if isinstance(value, str):
        return cell == value
    try:
        return float(cell) == float(value)
    except (TypeError, ValueError):
        return cell == str(value)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("-inf")
