"""An exported ONNX file, run by onnxruntime."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._internal.validate import expanded
from ..preprocess import Preprocessing

__all__ = ["DATATYPES", "Engine"]

DATATYPES = {"tensor(uint8)": "UINT8", "tensor(float)": "FP32", "tensor(int64)": "INT64"}
"""The Open Inference Protocol's name of each type of onnxruntime that an exported file has."""
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class Engine:
    """A file written by `vit_keras.export`, ready to compute. Threads may share it. Needs neither Keras nor a backend.

    Args:
        path: The `.onnx` file. It takes `images`, uint8 `(batch, height, width, 3)`.
        threads: Threads that compute, shared by all who call `run`; `None` for as many as there are cores.
        name: The name of the model; `None` for that in the file, or the file's own. It stands in addresses: what is
            neither a letter, a digit, a dot nor a hyphen becomes an underscore.

    Attributes:
        name: The name of the model.
        labels: Names of the classes, or `None`.
        preprocessing: What makes the model's input of an image, or `None` where the file does not tell.
        outputs: `{name: (datatype, shape)}`; -1 stands for any size.
        metadata: Whatever else the file tells.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: It is not an ONNX file, it does not take images, or an output has a type that is not served.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None, name: str | None = None):
        import onnxruntime

        path = expanded(path)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.intra_op_num_threads = threads or len(_cores())
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores alone
        providers = [each for each in _PROVIDERS if each in onnxruntime.get_available_providers()]
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime's errors have no class in common
            hint = "" if path.suffix.lower() == ".onnx" else " Pass vit_keras.open_model(path) to serve another model."
            raise ValueError(f"{path} is not an ONNX file that onnxruntime opens: {error}{hint}") from None
        self._shrinking = onnxruntime.RunOptions()
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self.metadata: dict[str, Any] = _metadata(self._session.get_modelmeta().custom_metadata_map)
        self.labels: Any = self.metadata.get("labels")
        fields = self.metadata.get("preprocessing")
        self.preprocessing: Preprocessing | None = Preprocessing.from_dict(fields) if fields else None
        self.name: str = re.sub(r"[^\w.-]", "_", name or str(self.metadata.get("name") or path.stem))
        self.outputs: dict[Any, tuple[str, list[int]]] = {
            each.name: _described(each) for each in self._session.get_outputs()
        }
        inputs = {each.name: _described(each) for each in self._session.get_inputs()}
        if inputs != {"images": ("UINT8", [-1, -1, -1, 3])}:
            raise ValueError(
                f"{path} has the inputs {inputs}. Only files that take images are served, which vit_keras.export "
                "writes with preprocessing=True for models of 1 or 3 channels: images, uint8 (batch, height, width, 3) "
                "of any size."
            )
        for output, (kind, _) in self.outputs.items():
            if kind not in DATATYPES.values():
                raise ValueError(f"{path} has the output {output} of type {kind}. Served are {', '.join(DATATYPES)}.")
        scores = self.outputs.get("probabilities", ("", [-1]))[1][-1]
        if self.labels is not None and scores not in (-1, len(self.labels)):
            raise ValueError(f"{path} has {len(self.labels)} labels for {scores} classes. Export the model again.")

    def run(self, images: np.ndarray, outputs: Sequence[str], *, keep: bool = True) -> Mapping[str, np.ndarray]:
        """Compute outputs.

        Args:
            images: uint8 `(batch, height, width, 3)`.
            outputs: Their names.
            keep: Whether onnxruntime keeps the memory of this run for the next one. Without, a run takes longer.

        Returns:
            `{name: array}`.
        """
        inputs = {"images": np.ascontiguousarray(images)}
        return dict(zip(outputs, self._session.run(list(outputs), inputs, None if keep else self._shrinking)))

    @property
    def attention(self) -> tuple[str, ...]:
        """The names of the outputs that are attention, from the first block to the last."""
        found = [name for name in self.outputs if name.startswith("attention_")]
        return tuple(sorted(found, key=lambda name: int(name.rpartition("_")[2])))


def _described(value: Any) -> tuple[str, list[int]]:
    shape = [size if isinstance(size, int) else -1 for size in value.shape]
    kind: str = value.type
    return DATATYPES.get(kind, kind), shape


def _metadata(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of a file, those in JSON parsed; a name that looks like a number stays a text."""
    found: dict[str, Any] = {}
    for name, text in properties.items():
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found[name] = value if name != "name" or isinstance(value, str) else text
    return found


def _cores() -> Sequence[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)
