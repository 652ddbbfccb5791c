"""Accuracy, speed, size and provenance of an exported file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from ..backend.keras_internals import no_gradients
from ..backend.precision import full_precision
from ..checkpoints.checkpoint import megabytes
from ..preprocess.images import read
from .formats import exported_files
from .images import image_files, model_inputs, resized_images, unresized
from .plan import Plan, in_float32
from .running import Running
from .runtimes import seconds
from .timing import in_turns

__all__ = ["Comparison", "Report", "compare", "sha256"]

TOLERANCE = 1e-4
"""Largest difference of an output for the same pixels, as a share of its largest value where that is above 1."""
RESIZED_TOLERANCE = 0.02
"""The same where the file itself resizes: a resampled pixel can be one gray level off, where it lies half-way."""
BYTES_TOLERANCE = 0.05
"""The same where the file itself also decodes a JPEG."""
_AT_ONCE = 16
"""Images that are computed at once: more would take the memory of all of them."""
_LONG_ENOUGH = 20.0
"""Seconds after which the two are timed no more."""
QUANTIZED_AGREEMENT = 0.9
"""Least share of images that keep their class in a quantized file; one of several images may always lose it."""
QUANTIZED_TOLERANCE = 0.25
"""Largest difference of a quantized file that ranks no classes, as a share of the largest value above 1."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Outputs of a file for some images, compared with those of the model."""

    inputs: str  # "images", "pixels" or "bytes"
    images: int  # their number
    difference: float  # the largest of any output; as a share of the largest value where that is above 1
    tolerance: float | None  # none for a quantized file
    same_class: int | None  # images whose most probable class is the same; none without classes

    @property
    def passes(self) -> bool:
        """Whether the difference is allowed; a quantized file must agree on most classes, if it ranks any."""
        if not np.isfinite(self.difference):
            return False
        if self.tolerance is None and self.same_class is not None:
            return self.same_class >= max(1, min(QUANTIZED_AGREEMENT * self.images, self.images - 1))
        if self.tolerance is None:
            return self.difference <= QUANTIZED_TOLERANCE
        same = self.same_class is None or self.same_class == self.images
        return same and self.difference <= self.tolerance

    def __str__(self) -> str:
        limit = "" if self.tolerance is None else f" (allowed: {self.tolerance:g})"
        same = "" if self.same_class is None else f", same class {self.same_class} of {self.images}"
        return f"{self.inputs}: difference {self.difference:.1e}{limit}{same}"


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of an export. `str` is a short text, `to_json` all of it.

    Attributes:
        path: The file or folder.
        format: The name of its format.
        bytes: Its size.
        sha256: Its hash; for several files, the hash of their names and hashes.
        comparisons: Comparisons with the model; empty if the file was not checked.
        milliseconds: `{"file": …, "model": …}` for one image, medians, in turns on this machine; or `None`.
        runtime: Name and version of what ran the file, or `None`.
        cpu: What the processor can do that matters here.
        metadata: What the file says of itself.
        notes: Notes, one sentence each.

    Example:
        >>> print(Report(path="model.onnx", format="onnx", bytes=3_600_000, sha256="0" * 64))
        file     model.onnx, 3.6 MB, sha256 0000000000000000…
        check    not checked
        weights  of unknown source, license: unknown
    """

    path: str
    format: str
    bytes: int
    sha256: str
    comparisons: tuple[Comparison, ...] = ()
    milliseconds: dict[str, float] | None = None
    runtime: str | None = None
    cpu: str = ""
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def pairs(self) -> list[tuple[str, str]]:
        """Return headings and texts for print."""
        found = [("file", f"{self.path}, {megabytes(self.bytes)}, sha256 {self.sha256[:16]}…")]
        found += [("check", str(each)) for each in self.comparisons] or [("check", "not checked")]
        if self.milliseconds:
            file, model = self.milliseconds["file"], self.milliseconds["model"]
            found.append(("speed", f"{file:.1f} ms an image; the model in Keras: {model:.1f} ms"))
        if self.runtime:
            found.append(("runtime", f"{self.runtime}, {self.cpu}"))
        origin, source, license = (self.metadata.get(key) for key in ("origin", "source", "license"))
        source = f"based on {origin}" if origin else source or "of unknown source"
        found.append(("weights", f"{source}, license: {license or 'unknown'}"))
        return found + [("note", note) for note in self.notes]

    def __str__(self) -> str:
        return "\n".join(f"{heading:8} {text}" for heading, text in self.pairs())

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def compare(plan: Plan, name: str, path: Path, images: Sequence[Any]) -> dict[str, Any]:
    """Run a file in a process of its own, compare its outputs with the model's, and return the fields of a `Report`."""
    inputs = model_inputs(plan, images)
    expected = _expected(plan, inputs)
    with Running(name, path) as file:
        if not file.about["alone"]:
            raise ValueError(f"To run {path.name}, its runtime imported Keras or vit_keras.")
        found = list(_comparisons(plan, name, file, images, inputs, expected))
        wrong = [str(comparison) for comparison in found if not comparison.passes]
        if wrong:
            raise ValueError(
                f"{path.name} does not compute what the model {plan.model.name!r} computes. {'; '.join(wrong)}. "
                + (
                    f"A quantized file must predict the same class for {QUANTIZED_AGREEMENT:.0%} of the images: pass "
                    "images of your own as check=, leave out quantize=, or pass check=False."
                    if plan.quantize
                    else "It was deleted. Pass check=False to keep it."
                )
            )
        notes = _notes(plan, name, file, images, inputs, expected)
        return {
            "comparisons": tuple(found),
            "milliseconds": _milliseconds(plan, file, inputs[0]),
            "runtime": file.about["version"],
            "notes": notes,
        }


def _comparisons(plan, name, file, images, inputs, expected) -> Iterable[Comparison]:
    def in_batches(given, *more, signature=None):
        groups = [*_parts([n for n, each in enumerate(given) if each.shape == given[0].shape]), *more]
        outputs = file.run([np.concatenate([given[n] for n in group]) for group in groups], signature)
        wanted = [_stack([expected[n] for n in group]) for group in groups]
        return _comparison(plan, signature or "images", outputs, wanted, _tolerance(plan, inputs[0]))

    given = _file_inputs(plan, name, images, inputs)
    if plan.preprocessing is None or not plan.resizes(name):
        yield in_batches(given, [0])  # and one image alone
        return
    if name == "saved_model":
        yield in_batches(inputs, signature="pixels")
    outputs = file.run(given)
    for resized, tolerance in ((False, TOLERANCE), (True, RESIZED_TOLERANCE)):
        part = [n for n, each in enumerate(given) if _is_resized(plan, each[0]) == resized]
        if part:
            what = "images that are resized" if resized else "images"
            yield _comparison(plan, what, [outputs[n] for n in part], [expected[n] for n in part], tolerance)
    if name == "saved_model" and plan.image_shape[3] == 3:
        yield _compare_bytes(plan, file, images)


def _compare_bytes(plan, file, images):
    files = image_files(images)
    wanted = _expected(plan, model_inputs(plan, [pixels for _, pixels in files]))
    outputs = file.run([np.array([base64.b64encode(data).decode()]) for data, _ in files], "bytes")
    return _comparison(plan, "bytes", outputs, wanted, BYTES_TOLERANCE)


def _file_inputs(plan, name, images, inputs) -> Sequence[np.ndarray]:
    """Return what a file takes for each image: the model's own input, or uint8 pixels, of one size or of any."""
    if plan.preprocessing is None:
        return inputs
    if not plan.resizes(name):
        return resized_images(plan, images)
    return [(read(image, None) if plan.image_shape[3] == 3 else image)[None] for image in images]


def _is_resized(plan, pixels) -> bool:
    """Return whether the file or the model resizes or crops an image."""
    return plan.preprocessing.crop is not None or unresized(plan) not in (None, pixels.shape[:2])


def _tolerance(plan, inputs) -> float:
    """Return what is allowed for the model's own input, which a model can resize itself."""
    return TOLERANCE if unresized(plan) in (None, inputs.shape[1:3]) else RESIZED_TOLERANCE


@full_precision()  # as the runtimes of files compute
def _expected(plan: Plan, inputs: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the model's outputs for each input: those of `predict`, and the plan's where `predict` lacks one."""
    found: list[dict[str, np.ndarray]] = [{} for _ in inputs]
    shapes = [each.shape for each in inputs]
    parts = [part for one in set(shapes) for part in _parts([n for n, shape in enumerate(shapes) if shape == one])]
    for members in parts:
        batch = np.concatenate([inputs[n] for n in members])
        with no_gradients():
            outputs = {name: ops.convert_to_numpy(value) for name, value in plan.outputs(batch).items()}
        with in_float32(plan.model):
            outputs[plan.kind] = np.asarray(plan.model.predict(batch, verbose=0))
        for row, n in enumerate(members):
            found[n] = {name: value[row : row + 1] for name, value in outputs.items()}
    return found


def _parts(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Return some images in parts that are computed at once."""
    return [numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE)]


def _stack(outputs: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([each[name] for each in outputs]) for name in outputs[0]}


def _comparison(plan, what, outputs, expected, tolerance) -> Comparison:
    difference, same, count = 0.0, 0, 0
    ranked = plan.classes is not None and plan.classes > 1  # the best of one class is always the same
    for found, wanted in zip(outputs, expected):
        count += len(wanted[plan.kind])
        for name, value in found.items():
            scale = max(1.0, float(np.abs(wanted[name]).max()))
            distance = float(np.abs(value.astype("float64") - wanted[name]).max()) / scale
            difference = distance if np.isnan(distance) else max(difference, distance)
        if ranked:
            same += _same_class(found[plan.kind], wanted[plan.kind], 0.0 if plan.quantize else tolerance)
    return Comparison(what, count, difference, None if plan.quantize else tolerance, same if ranked else None)


def _same_class(found, wanted, tolerance) -> int:
    """Return for how many rows the most probable class is the same, or as good as the tolerance can tell."""
    chosen = np.take_along_axis(wanted, found.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    slack = 2 * tolerance * max(1.0, float(np.abs(wanted).max()))
    return int((chosen >= wanted.max(axis=-1) - slack).sum())


def _notes(plan, name, file, images, inputs, expected) -> tuple[str, ...]:
    notes = list(file.about["notes"])
    if plan.preprocessing is not None and not plan.resizes(name):
        notes.append(f"Images are to be resized to {plan.image_size} before; normalization is inside.")
    dtypes = [dtype for dtype in plan.metadata.get("model_dtypes", ()) if dtype in ("float16", "bfloat16")]
    if dtypes:
        notes.append(
            f"The model computes in {dtypes[0]}, the file in float32; it is compared with the model in float32."
        )
    if name == "openvino":
        outputs = file.run(_file_inputs(plan, name, images, inputs), "default")
        other = _comparison(plan, "images", outputs, expected, TOLERANCE)
        notes.append(
            f"Checked in float32. In what OpenVINO chooses by itself here, the difference is {other.difference:.1e}."
        )
    return tuple(notes)


def _milliseconds(plan: Plan, file: Running, inputs: np.ndarray) -> dict[str, float]:
    """Return the median time for one image of the file and of the model."""
    shape = [size or fixed for size, fixed in zip(file.about["shape"], inputs.shape)]
    batch = np.repeat(inputs, shape[0], axis=0)
    file.run([np.zeros(shape, file.about["dtype"])])
    plan.model.predict_on_batch(batch)
    clocks = (file.time, lambda: seconds(plan.model.predict_on_batch, batch))
    times = in_turns(clocks, rounds=5, most=_LONG_ENOUGH)
    return {name: 1000 * statistics.median(each) / shape[0] for name, each in zip(("file", "model"), times)}


def sha256(path: Path) -> str:
    """Return the hash of a file; for several files, the hash of their names and hashes."""
    hashes = []
    for each in exported_files(path):
        with open(each, "rb") as file:
            hashes.append((each.name, hashlib.file_digest(file, "sha256").hexdigest()))
    if len(hashes) == 1:
        return hashes[0][1]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
