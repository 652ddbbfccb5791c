"""An exported file, and its answer to an image. Needs neither Keras nor its backend."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from .._internal.imports import extra
from .._internal.warn import ignore_in_process
from ..preprocess import Preprocessing
from ..preprocess.images import MAX_PIXELS, read, resize_in_steps

__all__ = ["Refused", "ServedModel"]

RESULTS = ("probabilities", "numbers", "features", "outputs")
"""Outputs of exported files. An answer has the first of these that its file returns."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Formats that are decoded. Pillow knows more, and would start another program for some."""
MAX_SIDE = 1 << 17
"""Pixels of the longest side: Pillow takes six times as much memory for rows of one pixel."""
MAX_RESIZED = 1 << 22
"""Pixels of an image that was resized for the model and is not cropped yet."""
MAX_PATCHES = 1 << 12
"""Patches of an image where a model takes any size: attention between them takes memory by their square."""
MAX_NUMBERS = 1 << 20
"""Numbers in the answer to one image."""

Run: TypeAlias = Callable[[np.ndarray, Sequence[str]], Mapping[str, np.ndarray]]
Opened: TypeAlias = tuple[Mapping[str, str], Sequence[str], Run]
"""The metadata of a file, the names of its outputs, and a function that computes some of them."""


class Refused(Exception):
    """A request, or an image in it, is not computed; `status` is that of HTTP."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status: int = status


class ServedModel:
    """A file written by `vit_keras.export`: ONNX, OpenVINO or SavedModel. Threads may share it."""

    def __init__(self, path: Path, threads: int | None = None):
        if not path.exists():
            raise FileNotFoundError(f"There is no file {path}.")
        opened = _saved_model if path.is_dir() else _openvino if path.suffix.lower() == ".xml" else _onnx
        try:
            about, outputs, run = opened(path, threads)
            self.run: Run = run
            known = {
                key: json.loads(about.get(key, "null")) for key in ("labels", "patches", "preprocessing", "tokens")
            }
            self.preprocessing: Preprocessing = Preprocessing.from_dict(known["preprocessing"])
            self.name: str = about.get("name", path.stem)
            self.task: str | None = about.get("task")
            self.labels: Sequence[str] | None = known["labels"]
            self.patches: Mapping[str, Any] | None = known["patches"]
            self.stride: Sequence[int] = (known["tokens"] or {"stride": (16, 16)})["stride"]
            attention = (name for name in outputs if name.startswith("attention_"))
            self.attention: Sequence[str] = sorted(attention, key=lambda name: int(name.rpartition("_")[2]))
            self.result: str = next(name for name in RESULTS if name in outputs)
            self.answer(np.zeros((*(self.preprocessing.image_size or (64, 64)), 3), "uint8"))
        except ImportError:
            raise
        except Exception as error:  # runtimes raise errors of any kind
            raise ValueError(
                f"{path} cannot be served: {error or type(error).__name__}. Pass a model of 1 or 3 channels, or its "
                "file as vit_keras.export(model, path) writes it, without batch_size=: ONNX, OpenVINO or SavedModel."
            ) from error

    def answers(
        self, files: Sequence[bytes], top: int, attention: bool, max_pixels: int, deadline: float
    ) -> list[dict[str, Any]]:
        """Return the answer to each image file, or its `error` and `status`."""
        found: list[dict[str, Any]] = []
        for data in files:
            try:
                if time.monotonic() > deadline:
                    raise Refused(503, "The time of the request is over. Send fewer images.")
                image = read_image(data, max_pixels)
                max_pixels -= image.shape[0] * image.shape[1]
                found.append(self.answer(image, top, attention))
            except Refused as error:
                found.append({"error": str(error), "status": error.status})
        return found

    def answer(self, image: np.ndarray, top: int = 5, attention: bool = False) -> dict[str, Any]:
        """Return the answer to one image, uint8 `(height, width, 3)`."""
        names = [self.result, *(self.attention if attention else ())]
        outputs = self.run(self._resized(image, len(names))[None], names)
        values = outputs[self.result][0]
        answer: dict[str, Any] = {"model": self.name, "size": list(image.shape[:2])}
        if values.size > MAX_NUMBERS:
            raise Refused(413, f"The answer has {values.size:,} numbers, and at most {MAX_NUMBERS:,} are sent.")
        if self.result == "probabilities" and values.ndim == 1:
            best = np.argsort(-values, kind="stable")[:top].tolist()
            labels = self.labels or {n: f"class {n}" for n in best}
            answer["predictions"] = [
                {"class": n, "label": labels[n], "probability": float(f"{values[n]:.6g}")} for n in best
            ]
        elif self.result == "numbers":
            answer["numbers"] = [{"name": self._name(*each), "value": float(each[1])} for each in enumerate(values)]
        else:
            answer[self.result] = values.tolist()
        if attention:
            scores = [outputs[name][0] for name in names[1:]]
            answer["attention"] = self._maps(scores, image.shape[:2]) if scores and self.patches else None
        return answer

    def _name(self, place: int, value: float) -> str:
        """Return the name of a number: its own label, or the label of the nearest level."""
        if self.labels and self.task == "ordinal":
            place = round(min(max(float(value), 0), len(self.labels) - 1)) if math.isfinite(value) else 0
        return self.labels[place] if self.labels else f"number {place}"

    def _resized(self, image: np.ndarray, outputs: int) -> np.ndarray:
        """Resize an image as the file would, so that there is no large image in it. The file crops."""
        (height, width), size = image.shape[:2], self.preprocessing.image_size
        if size is None:
            patches = height * width / math.prod(self.stride)
            most = MAX_PATCHES / math.sqrt(outputs)  # the attention of every block stays in memory
            if not (height >= self.stride[0] and width >= self.stride[1] and patches <= most):
                least = "×".join(map(str, self.stride))
                message = f"The image has {height}×{width} pixels. The model takes at least {least}, and at most"
                raise Refused(413, f"{message} {int(most * math.prod(self.stride)):,} pixels.")
            return image
        (down, across), _ = self.preprocessing.geometry((height, width), size)
        if down * across > MAX_RESIZED:
            message = f"The image of {height}×{width} pixels would be resized to {down}×{across} for the model, and"
            raise Refused(413, f"{message} at most {MAX_RESIZED:,} pixels are taken. Crop it.")
        return resize_in_steps(image, (down, across), self.preprocessing.interpolation)

    def _maps(self, scores: Sequence[np.ndarray], source: tuple[int, int]) -> dict[str, Any] | None:
        """Return the attention of the tokens that the output is read from, by head and as rollout, or `None`."""
        # `scores` are `(heads, tokens, tokens)` of each block, and `source` is `(height, width)` of the image. The
        # result has `grid`, the patches down and across; `box`, the part of the image that they cover, top, left,
        # height and width as shares; `rollout` and `layers`, maps of the patches in rows. `None`: the grid is unknown.
        about, count = self.patches or {}, scores[0].shape[-1]
        size, stride = about["size"] or self.preprocessing.image_size or source, about["stride"]
        grids = [[rounded(side / step) for side, step in zip(size, stride)] for rounded in (math.floor, math.ceil)]
        grid = next((each for each in grids if math.prod(each) == count - about["prefix"]), None)
        if grid is None:  # a layer before the ViT crops; `ceil`: a hybrid's ResNet pads
            return None
        start = np.array(about["readout"])  # the share of each token in the output
        if start.size == about["prefix"] + 1:  # of all patches together
            start = np.append(start[:-1], np.full(count - start.size + 1, start[-1] / (count - start.size + 1)))
        rollout = start
        for score in reversed(scores):
            rollout = (rollout + rollout @ score.mean(axis=0)) / 2
        whole, corner, seen = size, (0, 0), [number * step for number, step in zip(grid, stride)]
        if about["size"]:
            last = Preprocessing(image_size=size, crop=about["crop"], crop_mode=about["crop_mode"] or "center")
            whole, corner = last.geometry(about["resized"] or source, size)
        box = [part / side for part, side in zip((*corner, *map(min, seen, size)), (*whole, *whole))]

        def numbers(values: np.ndarray) -> list[float]:
            return [float(f"{value:.3g}") for value in values[about["prefix"] :].tolist()]

        layers = [[numbers(start @ head) for head in score] for score in scores]
        return {"grid": grid, "box": box, "rollout": numbers(rollout), "layers": layers}


def read_image(data: bytes, max_pixels: int) -> np.ndarray:
    """Return an image as upright RGB, uint8 `(height, width, 3)`. Its size is checked before it is decoded."""
    ignore_in_process(Warning, r"PIL\.")  # clients cause them
    Image.init()
    max_pixels, size = min(max_pixels, MAX_PIXELS), "too many"
    try:
        with Image.open(io.BytesIO(data), formats=[name for name in FORMATS if name in Image.OPEN]) as image:
            size = f"{image.height}×{image.width}"
            if image.width * image.height <= max_pixels and max(image.size) <= MAX_SIDE:
                return read(image, None)
    except Image.DecompressionBombError:
        pass
    except ValueError as error:  # of `read`: the file is damaged, or costs too much
        raise Refused(422, str(error)) from None
    except Exception:  # Pillow's decoders raise errors of any kind
        message = f"{len(data):,} bytes were received that are not an image. Send one in {', '.join(FORMATS)}."
        raise Refused(415, message) from None
    message = f"The image has {size} pixels, and at most {max_pixels:,} more are taken, {MAX_SIDE:,} on a side."
    raise Refused(413, message)


def _onnx(path: Path, threads: int | None) -> Opened:
    onnxruntime = extra("onnxruntime", "Serving an ONNX file needs onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or getattr(os, "process_cpu_count", os.cpu_count)() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores alone
    providers = [each for each in onnxruntime.get_available_providers() if each.startswith(("CUDA", "CPU"))]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)

    def run(images: np.ndarray, outputs: Sequence[str]) -> Mapping[str, np.ndarray]:
        return dict(zip(outputs, session.run(outputs, {"images": images})))

    names = [output.name for output in session.get_outputs()]
    return session.get_modelmeta().custom_metadata_map, names, run


def _openvino(path: Path, threads: int | None) -> Opened:
    core = extra("openvino", "Serving an OpenVINO file needs openvino").Core()
    model = core.read_model(path)
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads or 0}
    compiled, own = core.compile_model(model, "CPU", options), threading.local()

    def run(images: np.ndarray, outputs: Sequence[str]) -> Mapping[str, np.ndarray]:
        if not hasattr(own, "request"):  # a compiled model that is called shares one request between threads
            own.request = compiled.create_infer_request()
        own.request.infer({"images": images})
        return {name: own.request.get_tensor(name).data.copy() for name in outputs}

    about = {name: value.astype(str) for name, value in model.rt_info["vit_keras"].items()}
    return about, [output.get_any_name() for output in model.outputs], run


def _saved_model(path: Path, threads: int | None) -> Opened:
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"  # TensorFlow imports Keras, and crashes next to PyTorch
    tf = extra("tensorflow", "Serving a SavedModel needs TensorFlow", "pip install tensorflow")
    if threads:
        with contextlib.suppress(RuntimeError):  # TensorFlow computes already, with its own number
            tf.config.threading.set_intra_op_parallelism_threads(threads)
    loaded = tf.saved_model.load(os.fspath(path))
    function = loaded.signatures["images"]

    def run(images: np.ndarray, outputs: Sequence[str], kept: Any = loaded) -> Mapping[str, np.ndarray]:
        found = function(images=tf.constant(images))  # which does not keep the model, and its variables, by itself
        return {name: found[name].numpy() for name in outputs}

    about = json.loads((path / "assets.extra/vit_keras.json").read_text(encoding="utf-8"))
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    return texts, list(function.structured_outputs), run
