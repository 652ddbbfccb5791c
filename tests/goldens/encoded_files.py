"""Golden files of `encode_texts`: what the originals make of sentences, from the text to its features.

`data/encoded/tokenizers.npz` holds the files of tiny tokenizers, and `data/encoded/TOWER.npz` the description of a text
tower and its features of `TEXTS`. `make_text_golden.py` wrote both. NumPy only.
"""

import json
import pathlib

import numpy as np
from family_files import SEED, state_dict, write_safetensors

DIRECTORY = pathlib.Path(__file__).parents[1] / "data" / "encoded"
LENGTH = 24
ASCII = ("a photo of a cat.", "A  Dog,\n a_dog!", "cats &amp;amp; dogs &lt;3", "", "it's 42 " + "seal, letter; " * 12)
TEXTS = (*ASCII, "it’s ﬁne", "cafe\u0301 ＡＢ", "schÃ¶n Straße")

# The tokenizers whose files may be in the folder of a tower. The features are the same with each of them.
TOKENIZERS = {
    "hf_clip": ("clip_vocabulary", "clip_json"),
    "hf_siglip": ("siglip",),
    "hf_siglip2": ("siglip2",),
    "open_clip": ("clip_gzip", "clip_vocabulary", "clip_json"),
    "open_clip_not_causal": ("clip_gzip", "clip_vocabulary", "clip_json"),
    "open_clip_last": ("clip_gzip", "clip_vocabulary", "clip_json"),
    "open_clip_named": ("clip_json", "clip_vocabulary"),
    "open_clip_siglip2": ("siglip2",),
    "open_clip_bert": ("bert",),
}


def write_tokenizer(name, folder):
    """Write the files of a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(DIRECTORY / "tokenizers.npz") as files:
        for key in files.files:
            kind, _, file = key.partition("/")
            if kind == name:
                (folder / file).write_bytes(files[key].tobytes())


def load(name):
    """The features of TEXTS by the original, float32 `(texts, width)`, each of length 1."""
    with np.load(DIRECTORY / f"{name}.npz") as file:
        return file["features"]


def write(name, folder):
    """Write the checkpoint of a tower, with the JSON files beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(DIRECTORY / f"{name}.npz") as file:
        meta = json.loads(str(file["meta"]))
    for file, content in meta["files"].items():
        (folder / file).write_text(json.dumps(content))
    stem = "open_clip_model" if name.startswith("open_clip") else "model"
    return write_safetensors(folder / f"{stem}.safetensors", state_dict(SEED, meta["names"], {}))
