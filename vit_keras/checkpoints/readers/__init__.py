"""Read the arrays of a file of weights, whatever its format.

`open_weights` reads NumPy's .npz, safetensors, PyTorch's .pth, .pt and .bin, Keras' .weights.h5, .h5 and .keras, and
sharded files with an index. The format is detected from the first bytes. An array is read when it is asked for.

Nothing in a file is executed. The sizes that a file claims are compared with its own size before memory is allocated.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..._internal.validate import see
from ..checkpoint import SUFFIXES
from .archives import NpzReader
from .base import Reader
from .hdf5 import HDF5Reader, KerasReader, PresetReader
from .safetensors import SafetensorsReader
from .sharded import ShardedReader
from .sniff import Kind, is_of_keras_2, keras_2_only, kind_of
from .torch import TorchReader

__all__ = ["open_weights"]

_READERS: dict[Kind, type[Reader]] = {
    Kind.NPZ: NpzReader,
    Kind.ZIP: NpzReader,  # which says what is damaged
    Kind.SAFETENSORS: SafetensorsReader,
    Kind.TORCH: TorchReader,
    Kind.PICKLE: TorchReader,
    Kind.HDF5: HDF5Reader,
    Kind.KERAS: KerasReader,
}
_FORMATS = (
    "NumPy's .npz, safetensors, PyTorch's .pth, .pt and .bin, Keras' .weights.h5, .h5 and .keras, "
    "and the .index.json or .weights.json of a sharded file"
)
_EXPORTED = (".onnx", ".pt2", ".tflite", ".xml")
_IN_A_FOLDER = (  # the names in the folders that others and `finetune` write, the preferred first
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
    "tf_model.h5",
    "model.weights.json",
    "model.keras",
)
_OF_A_PRESET = ("model.weights.h5", "config.json")
"""Files of a KerasHub preset: alone, the first is a file of weights as any other."""


def open_weights(path: str | os.PathLike[str], key: str | None = None) -> Reader:
    """Open a file of weights, a sharded file's index, or a folder that holds one of them."""
    # In a folder of Hugging Face with several files, safetensors are preferred. Of a preset of KerasHub, backbone and
    # head are read. `key` is a state dict in a PyTorch file with several (dots go deeper: "state_dict.student"); `None`
    # is the usual one, and `reader.metadata["keys"]` lists all.
    path = Path(path)
    if is_of_keras_2(path):
        raise ValueError(keras_2_only(path))
    if os.path.isdir(path):
        file = _in_folder(path)
        has_head = file.name.startswith("model.weights.") and os.path.isfile(path / PresetReader.HEAD)
        return PresetReader(open_weights(file)) if has_head and key is None else open_weights(file, key)
    kind = kind_of(path)
    if kind is Kind.MARKUP and path.name.endswith(".json"):
        return ShardedReader(path, key)
    reader = _READERS.get(kind)
    broken = (Kind.EMPTY, Kind.GIT_LFS, Kind.WEB_PAGE)
    if reader is None and kind not in broken and path.suffix.lower() in _EXPORTED:
        raise ValueError(_exported(path))
    if reader is None:
        raise ValueError(f"{path} is {kind.words}. Supported formats: {_FORMATS}.{see('file-refused')}")
    return TorchReader(path, key) if reader is TorchReader else reader(path)


def _in_folder(folder: Path) -> Path:
    for name in _IN_A_FOLDER:
        if os.path.isfile(folder / name):
            return folder / name
    if all(os.path.isfile(folder / name) for name in _OF_A_PRESET):
        return folder / _OF_A_PRESET[0]
    if os.path.isfile(folder / "adapter_config.json"):
        raise ValueError(
            f"{folder} holds a low-rank adapter of PEFT, not a model. Merge it with PEFT, and save the whole: "
            "model.merge_and_unload().save_pretrained(folder)."
        )
    files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and os.path.isfile(p))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"{folder} holds several files of weights. Pass the path of one: {names}.")
    if os.path.isfile(folder / "saved_model.pb"):
        raise ValueError(_exported(folder))
    inner = sorted(p.parent.name for name in _IN_A_FOLDER for p in folder.glob(f"*/{name}"))
    if inner:
        raise FileNotFoundError(f"{folder} holds no file of weights, but these folders in it do: {', '.join(inner)}.")
    names = sorted(p.name for p in folder.iterdir())
    held = ", ".join(names[:5] + ["…"] * (len(names) > 5)) or "nothing"
    raise FileNotFoundError(
        f"There is no file of weights in the folder {folder}. It holds: {held}. Supported formats: {_FORMATS}."
    )


def _exported(path: Path) -> str:
    return (
        f"{path} looks like an exported file, which its own runtime runs (docs/export.md). It cannot be opened as "
        "a model. Open the model that it was exported from."
    )
