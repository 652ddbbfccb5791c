"""The plan of an export: a model, its inputs and its outputs, inspected once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from .. import __version__, anatomy, layers
from .. import labels as known_labels
from .._internal.tap import tap
from .._internal.validate import positive_integer
from ..anatomy.around import around, heads, mixes
from ..anatomy.dry_run import readout, runs
from ..anatomy.inputs import image_shape, native_size, preprocessing_of
from ..anatomy.outputs import NUMBERS, output_kind, output_names
from ..anatomy.parts import find_vit, has_attention, patch_stride, prefix_names
from ..backend import compiled
from ..backend.keras_internals import INPUT_DTYPE, flat_layers
from ..checkpoints.describe import cached_as
from ..checkpoints.locate import find
from ..preprocess import Preprocessing
from ..preprocess.layer import Preprocess
from .formats import FORMATS, OPSETS

__all__ = ["Plan", "in_float32"]

Shape = tuple[int | None, int | None, int | None, int]
"""`(batch, height, width, channels)`, with `None` for open dimensions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of an export, from which every format is written; made by `Plan.of`."""

    model: keras.Model
    input_shape: Shape  # of the model's own input
    preprocessing: Preprocessing | None  # what makes the model's input of an image; `None`: the file takes that input
    kind: str  # "logits", "probabilities", "numbers", "features" or any "outputs"
    classes: int | None
    labels: tuple[str, ...] | None  # names of the classes, or of the numbers or levels that the model predicts
    top: int
    attention: int = 0  # outputs `attention_{n}`
    quantize: str | None = None
    calibration: Mapping[str, Sequence[float]] | None = None  # magnitudes by the path of a layer normalization
    opset: int = OPSETS[-1]
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: keras.Model,
        *,
        preprocessing: bool = True,
        labels: Sequence[str] | str | None = None,
        top: int = 5,
        attention: bool = False,
        quantize: str | None = None,
        calibration: Mapping[str, Sequence[float]] | None = None,
        batch_size: int | None = None,
        opset: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Plan:
        """Return the plan of exporting a model, or raise `ValueError` for a model that cannot be exported."""
        vit = find_vit(model)
        _, height, width, channels = image_shape(model)
        if channels is None:
            raise ValueError(
                f"The model {model.name!r} takes images of any number of channels. Build it with a fixed one: "
                "keras.Input((height, width, 3))."
            )
        if height == vit.input_shape[-1] != channels:
            raise ValueError(
                f"The input of the model {model.name!r} is ({height}, {width}, {channels}), which looks like channels "
                "first, and images are (height, width, channels). Export the model in it that takes such images, or "
                "build it with keras.Input((height, width, channels))."
            )
        _check(model)
        output = tuple(getattr(model, "output_shape", None) or ())
        if anatomy.task(model) in NUMBERS:
            kind = "numbers" if len(output) == 2 else "outputs"  # of each place
        else:
            kind = output_kind(model) or "outputs"
        count = output[-1] if len(output) == 2 and kind in ("logits", "probabilities", "numbers") else None
        classes = None if kind == "numbers" else count
        if batch_size is not None:
            positive_integer(batch_size, "batch_size")
        if opset is not None and opset not in OPSETS:
            raise ValueError(f"opset must be an integer from {OPSETS[0]} to {OPSETS[-1]}. Received: {opset!r}")
        blocks = anatomy.blocks(vit)
        if attention and not has_attention(model):
            raise ValueError(f"The model {model.name!r} has no attention to return. Pass attention=False.")
        if attention and (times := runs(model)) > 1:
            raise ValueError(
                f"The model {model.name!r} runs its ViT {times} times, and attention=True returns the attention of one "
                "run. Pass attention=False."
            )
        return cls(
            model=model,
            input_shape=(batch_size, height, width, channels),
            preprocessing=preprocessing_of(model) if preprocessing else None,
            kind=kind,
            classes=classes,
            labels=_labels(model, labels, count),
            top=min(positive_integer(top, "top"), classes or top),
            attention=len(blocks) if attention else 0,
            quantize=quantize,
            calibration=calibration,
            opset=opset or OPSETS[-1],
            metadata=_metadata(model) if metadata is None else metadata,
        )

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The `(height, width)` in which images reach the model; `None` where they keep their own."""
        if self.preprocessing is not None:
            return self.preprocessing.image_size
        _, height, width, _ = self.input_shape
        return None if height is None or width is None else (height, width)

    @property
    def image_shape(self) -> Shape:
        """The shape of uint8 images of any size, from which `preprocessing` makes the model's input."""
        channels = self.input_shape[3]
        return (self.input_shape[0], None, None, 3 if channels == 1 else channels)

    @property
    def fixed_size(self) -> tuple[int, int]:
        """The `(height, width)` of the images of a file that resizes none; `ValueError` if the model takes any."""
        if self.image_size is None:
            whole = find_vit(self.model) is self.model
            how = "Export" if whole else "Build it around the ViT that is returned by"
            *others, last = (name for name, each in FORMATS.items() if each.resizes)
            raise ValueError(
                f"A file of this format, or with batch_size=, takes images of one size, and the model "
                f"{self.model.name!r} takes any. {how} vit_keras.resize(model, image_size), or choose the format "
                f"{', '.join(others)} or {last} without batch_size."
            )
        return self.image_size

    def resizes(self, format: str) -> bool:
        """Return whether a file of a format takes images of any size; one for batches of one size does not."""
        return FORMATS[format].resizes and self.input_shape[0] is None

    def prepare(self, resize: bool = True) -> Callable[[Any], Any]:
        """Return what makes the model's input of a batch, which comes in the model's size without `resize`."""
        if self.preprocessing is None:
            return lambda inputs: inputs
        return Preprocess(self.preprocessing if resize else self.preprocessing.replace(image_size=None, crop=None))

    def file_input(self, resize: bool = True) -> tuple[Shape, str]:
        """Return shape and dtype of what `prepare(resize)` takes."""
        shape, dtype = (self.input_shape, "float32") if self.preprocessing is None else (self.image_shape, "uint8")
        return (shape if resize else (shape[0], *self.fixed_size, shape[3])), dtype

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of what `outputs` returns, in order."""
        names = {"logits": ("logits", "probabilities", "features"), "probabilities": ("probabilities", "features")}
        return (*names.get(self.kind, (self.kind,)), *(f"attention_{n}" for n in range(self.attention)))

    def outputs(self, inputs: Any) -> dict[str, Any]:
        """Run the model in float32, on tensors or in a trace, and return `{name: float32 tensor}` by `output_names`."""
        vit, read = find_vit(self.model), []
        taking = heads(vit)
        if pooled := not taking and len(vit.output.shape) == 3 and self.kind in ("logits", "probabilities"):
            taking = [layer for layer in around(self.model) if mixes(layer)]

        def note(layer, name, tensor):
            if name == ("input" if taking else "output") and not (pooled and (read or len(tensor.shape) != 2)):
                read.append(tensor)
            return tensor

        with in_float32(self.model), tap(note, taking or [vit]), contextlib.ExitStack() as stack:
            scores = stack.enter_context(layers.record_attention()) if self.attention else []
            (result,) = keras.tree.flatten(self.model(inputs, training=False))
        found = {self.kind: result}
        if self.kind == "logits":
            alone = anatomy.task(self.model) == "multi" or result.shape[-1] == 1
            found["probabilities"] = ops.sigmoid(result) if alone else ops.softmax(result, axis=-1)
        if self.kind in ("logits", "probabilities"):
            found["features"] = sum(read[1:], start=read[0]) / len(read)  # DeiT has two heads
        if len(scores) != self.attention:
            raise ValueError(
                f"The model {self.model.name!r} shows the attention of {len(scores)} blocks of {self.attention}: a "
                "block has an attention of its own, or runs more than once. Export it with attention=False."
            )
        found |= {f"attention_{n}": score for n, score in enumerate(scores)}
        return {name: ops.cast(found[name], "float32") for name in self.output_names}

    @property
    def _last_resizing(self) -> Preprocessing | None:
        """The last preprocessing before the ViT that resizes, in the model or in the file; `None` if there is none."""
        inside = [layer.preprocessing for layer in flat_layers(self.model) if isinstance(layer, Preprocess)]
        found = [each for each in (self.preprocessing, *inside) if each is not None and each.image_size]
        return found[-1] if found else None

    def patches(self) -> dict[str, Any]:
        """Return which tokens are patches, and which part of an image the ViT sees, as plain JSON."""
        vit, last = find_vit(self.model), self._last_resizing
        size = native_size(vit) if last is None else last.image_size
        return {
            "size": size,
            "crop": None if last is None else last.crop,
            "crop_mode": None if last is None else last.crop_mode,
            "resized": None if last is self.preprocessing else self.image_size,  # by the file, and again by the model
            "stride": patch_stride(vit, size),
            "prefix": len(prefix_names(vit)),
            "readout": self._readout(),
        }

    def _readout(self) -> list[float]:
        """Return how much each token counts, the patches together as one number if all count the same."""
        shares, prefix = readout(self.model), len(prefix_names(find_vit(self.model)))
        same = np.ptp(shares[prefix:]) < 1e-4 or self.image_size is None
        shares = np.append(shares[:prefix], shares[prefix:].sum()) if same else shares
        return [round(float(share), 6) for share in shares]

    def metadata_json(self) -> dict[str, Any]:
        """Return the metadata of a file as plain JSON."""
        task, known = anatomy.task(self.model), {}
        if self.attention:
            with contextlib.suppress(ValueError):  # nothing tells the stride of some models for images of any size
                known["patches"] = self.patches()
        return {
            "name": self.model.name,
            "outputs": list(self.output_names),
            "classes": self.classes,
            "labels": None if self.labels is None else list(self.labels),
            **({} if task == "single" else {"task": task}),
            "image_size": None if self.image_size is None else list(self.image_size),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_dict(),
            "quantize": self.quantize,
            **({} if self.calibration is None else {"calibrated": True}),
            **self._tokens(),
            **known,
            **self.metadata,
        }

    def _tokens(self) -> dict[str, Any]:
        """Return what tells how much memory an image of any size takes."""
        config = getattr(find_vit(self.model), "config", None)
        if config is None or self.image_size is not None:
            return {}
        known = {"stride": list(config.stride), "heads": config.num_heads, "width": config.hidden_size}
        return {"tokens": known}


def _check(model: keras.Model) -> None:
    """Raise `ValueError` for a model that has not one input and one output, and weights of float32."""
    for what in ("inputs", "outputs"):
        found = getattr(model, what, None)
        if found is not None and len(found) != 1:
            raise ValueError(
                f"A model of one input and one output is exported. {model.name!r} has {len(found)} {what}. Pass a "
                "model of one."
            )
    quantized = [layer.name for layer in flat_layers(model) if getattr(layer, "quantization_mode", None)]
    if quantized:
        raise ValueError(
            f"The model {model.name!r} is quantized by Keras (its layer {quantized[0]!r}, for one). Export the float "
            "model, and pass quantize= where the format offers it."
        )
    refused = {"float16", "bfloat16", "float64"}
    stored = {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights} & refused
    if stored:
        raise ValueError(
            f"The weights of {model.name!r} are {', '.join(sorted(stored))}, and those of an export are float32. "
            "Build it with dtype='float32' or a mixed policy. For a ViT, vit_keras.resize(model, image_size, "
            "dtype='float32') makes a copy that can be exported."
        )


def _labels(model: keras.Model, labels: Any, count: int | None) -> tuple[str, ...] | None:
    """Return the names of the classes, numbers or levels of a model with a `count` of outputs."""
    if labels is None:
        return output_names(model) if count else None
    names = known_labels.names(labels)
    if names is None:
        raise ValueError(f"labels is a list of names, 'imagenet-1k' or 'cifar-10'. Received: {labels!r}")
    if len(names) != count and anatomy.task(model) != "ordinal":
        what = "numbers" if anatomy.task(model) in NUMBERS else "classes"
        raise ValueError(f"labels= has {len(names)} names, and the model {model.name!r} has {count or 'no'} {what}.")
    return tuple(map(str, names))


def _metadata(model: keras.Model) -> dict[str, Any]:
    """Return metadata about a model's weights and the versions of the programs that export it."""
    vit = find_vit(model)
    origin, report = getattr(vit, "origin", None), getattr(vit, "load_report", None)
    source = None if report is None else str(report.source)
    published = find(origin) if origin else source and cached_as(Path(source))
    policies = {layer.compute_dtype for layer in flat_layers(model)}
    return {
        "origin": published.name if published else origin,
        "source": published.url if published else source and Path(source).name,  # a path names whose machine it was
        "license": published.license if published else None,
        "weights_sha256": weights_sha256(model),
        "model_dtypes": sorted(policy for policy in policies if policy),
        "versions": {
            "vit_keras": __version__,
            "keras": keras.__version__,
            "backend": keras.backend.backend(),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def weights_sha256(model: keras.Model) -> str:
    """Return a hash of a model's weights: their shapes, dtypes and values in order."""
    digest = hashlib.sha256()
    for weight in model.weights:
        value = ops.convert_to_numpy(weight)
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data if value.dtype.kind in "fiub" else value.tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def in_float32(model: keras.Model) -> Iterator[None]:
    """Let all layers of a model compute in float32 while the block runs; a no-op where they do."""
    inside, narrow = flat_layers(model), ("float16", "bfloat16", "float64")
    changed = [layer for layer in inside if layer.compute_dtype in narrow]
    policies = [layer.dtype_policy for layer in changed]
    # A Sequential without an Input casts images to what its first layer computed in when it was built.
    starts = [layer for layer in inside if isinstance(layer, keras.layers.InputLayer) and layer.dtype in narrow]
    inputs = [x for layer in starts for x in (layer, layer.output)]
    dtypes = [x.dtype for x in inputs]
    with compiled.set_aside(model) if changed or inputs else contextlib.nullcontext():
        try:
            for layer in changed:
                layer.dtype_policy = "float32"
            for x in inputs:
                object.__setattr__(x, INPUT_DTYPE, "float32")
            yield
        finally:
            for layer, policy in zip(changed, policies):
                layer.dtype_policy = policy
            for x, dtype in zip(inputs, dtypes):
                object.__setattr__(x, INPUT_DTYPE, dtype)
