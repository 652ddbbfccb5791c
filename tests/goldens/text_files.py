"""Golden files of models for images and text, written by `make_text_golden.py`. NumPy only."""

import json
import pathlib

import numpy as np
from family_files import SEED, state_dict, write_safetensors
from make_google_npz import image

DIRECTORY = pathlib.Path(__file__).parents[1] / "data" / "text"
IMAGE_SIZE, LENGTH, VOCABULARY = 32, 12, 60


def tokens():
    """int32 (5, LENGTH): texts of several lengths. Number 5, 2 and the highest each end each of them, in this order."""
    random = np.random.default_rng(SEED)
    ids = random.integers(6, VOCABULARY - 1, (5, LENGTH))
    for row, length in zip(ids, (3, 5, 8, 9, 7)):
        row[length:] = 0
        row[length : length + 3] = 5, 2, VOCABULARY - 1
    ids[:, 0] = 1
    return ids.astype("int32")


def cases():
    """The names of all golden files, sorted."""
    return sorted(path.stem for path in DIRECTORY.glob("*.npz"))


def load(name):
    """What came out of the original: {"text": ..., "image": ..., "logits": ..., "loss": ...}, and the pictures."""
    with np.load(DIRECTORY / f"{name}.npz") as file:
        outputs = {key: file[key] for key in file.files if key != "meta"}
    pixels = (image(SEED, n=2, size=(IMAGE_SIZE, IMAGE_SIZE)).astype("float32") - 127.5) / 127.5
    return outputs, pixels.astype("float32")


def _meta(name):
    with np.load(DIRECTORY / f"{name}.npz") as file:
        return json.loads(str(file["meta"]))


def arrays_of(name):
    """The arrays of a checkpoint, {name: array}."""
    return state_dict(SEED, _meta(name)["names"], {})


def write(name, folder, files=True, **more):
    """Write the checkpoint of a golden file, with the JSON files beside it; more arrays may be added."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in _meta(name)["files"].items() if files else ():
        (folder / file).write_text(json.dumps(content))
    stem = "open_clip_model" if name.startswith("open_clip") else "model"
    return write_safetensors(folder / f"{stem}.safetensors", {**arrays_of(name), **more})
