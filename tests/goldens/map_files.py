"""Golden files of attention and relevance maps: what is stored, and how the checkpoint behind one is made again.

A golden file `data/maps/NAME.npz` was written by `make_map_golden.py`. It holds what the reference implementations of
the methods in `vit_keras.visualize.maps` made of one tiny model of timm's and two pictures. As with the files of
`family_files`, weights and pictures are functions of a seed and are not stored.

    golden = load("vit")
    model = from_checkpoint(write(golden, tmp_path), **golden.meta["options"])
    recording = record(model, list(golden.images), target=golden.meta["targets"])
    golden.arrays["chefer"]                     # what `maps.relevance_map(recording)` has to be

NumPy only.
"""

import dataclasses
import json
import pathlib

import numpy as np
from family_files import pictures, state_dict, write_safetensors

DIRECTORY = pathlib.Path(__file__).parents[1] / "data" / "maps"


@dataclasses.dataclass(frozen=True)
class MapGolden:
    """One golden file.

    Attributes:
        name: of the file, without suffix.
        meta: what is known of the case:
            `class`, `built` (how), `seed`, `names`: {name: shape} of the checkpoint, in timm's order;
            `options`: what `from_checkpoint` has to be told; `images`: their number, size and hash;
            `targets`: the class explained in each picture; `grid`; `prefix`: the tokens before the patches;
            `sources`: {name of an array: [library and version or title of the paper, "package" or "formula"]}.
        images: uint8 (2, height, width, 3).
        arrays: {name: float32 array}. Maps are (2, *grid) unless said otherwise in `make_map_golden.py`.
    """

    name: str
    meta: dict
    images: np.ndarray
    arrays: dict

    def state_dict(self):
        """The checkpoint, {name: array}, in the order of the original."""
        return state_dict(self.meta["seed"], self.meta["names"], {})


def cases():
    """The names of all golden files, sorted."""
    return sorted(p.stem for p in DIRECTORY.glob("*.npz"))


def load(name):
    """The golden file `name`."""
    with np.load(DIRECTORY / f"{name}.npz", allow_pickle=False) as f:
        arrays = {k: f[k] for k in f.files}
    meta = json.loads(str(arrays.pop("meta")))
    return MapGolden(name, meta, pictures(meta["seed"], meta["images"]), arrays)


def write(golden, directory):
    """Write the checkpoint of a golden file into a directory; the path of the file."""
    return write_safetensors(pathlib.Path(directory) / "model.safetensors", golden.state_dict())
