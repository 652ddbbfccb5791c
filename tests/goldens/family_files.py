"""Golden files of other implementations: what is stored, and how the checkpoint behind one is made again.

A golden file `data/families/NAME.npz` was written by `make_family_golden.py`. It holds the outputs of the original
implementation of one family (timm, transformers, open_clip, ...) for one tiny model, and a description of the
checkpoint: the names and shapes of its tensors as that library writes them to disk. The weights themselves are not
stored, for each is a function of the seed, its name and its shape (`value`), and neither are the pictures.

    golden = load("timm_vit")
    path = write(golden, tmp_path)              # tmp_path/model.safetensors, config.json beside it where there is one
    model = from_checkpoint(path, **golden.options)
    model.predict(golden.inputs)                # is golden.output

NumPy only.
"""

import dataclasses
import json
import math
import pathlib
import re
import struct
import zlib

import numpy as np
from make_google_npz import image, preprocess, uniform

DIRECTORY = pathlib.Path(__file__).parents[1] / "data" / "families"

# What these files do not show: DINO's names are timm's, and timm resamples BEiT's own files in its own way.
# The arrays of RoPE-ViT beside a table are those of DeiT III.
OPTIONS = {
    "dino_original": {"family": "dino"},
    "beit_original": {"relative_resize": "geometric_linear"},
    "timm_rope_ape": {"family": "rope-vit"},
}
PATCH_SIZES = {"timm_flexivit": 6}
# One golden file for each thing that models compute, or files store, differently. These run by default on every
# backend, and in the more expensive tests. The others are further spellings of the same, for `make test-slow`.
MECHANISMS = {
    "timm_vit": "one array for query, key and value; the exact GELU; positions by antialiased bicubic interpolation",
    "hf_vit": "an array for each projection; config.json; positions by bicubic interpolation",
    "deit3_original": "layer scale; positions without a row for the class token",
    "hf_deit_distilled": "a distillation token, and a head for each token",
    "dinov2_hub_giant": "a gated MLP; DINO's interpolation of positions",
    "hf_dinov2_reg_classifier": "registers; a head on the class token beside the mean",
    "dinov3_original": "rotary positions; no bias on keys",
    "beit_original": "relative positions, a table in each block; the norm after the pooling",
    "hf_beit_shared": "relative positions, one table for all blocks; their bilinear interpolation",
    "openai_clip": "the image tower of two; a norm before the blocks; the quick GELU; one in_proj array",
    "hf_clip_classifier": "the mean over the patches of a model with a class token; no last norm",
    "hf_siglip": "attention pooling; no class token",
    "timm_vit_map": "attention pooling over the patches alone, of a model with a class token and registers",
    "hf_siglip2_naflex": "the patch embedding as a linear layer",
    "torchvision_vit": "positions by bicubic interpolation with aligned corners",
    "torchvision_vit_representation": "pre_logits",
    "timm_eva02_clip": "axial rotary positions of a reference grid, beside a table; norms inside attention and MLP",
    "timm_eva02_enormous": "norms after the attention and after the MLP",
    "timm_rope_mixed_ape": "rotary positions with learned frequencies",
    "timm_pe_core": "axial rotary positions with an offset, columns first; attention pooling of other sizes",
    "timm_so150m_reg4_gap": "rows for the registers in the table of positions",
    "timm_hybrid_r8": "a ResNet before the blocks",
    "timm_mixer": "an MLP over the patches",
    "timm_flexivit": "patches of another size than the file's",
    "vit_pytorch_0_40_mean": "the mean over all tokens",
    "vit_pytorch_dim_head_32": "norms around the patch embedding; another width of heads; no bias on projections",
    "vit_pytorch_simple": "positions of sines and cosines",
}
SEED = 7
BUFFER = "buffer/"

_LAYER_SCALE = re.compile(r"(^|\.)(gamma(_\d)?|lambda_?\d)$")
_TOKEN = re.compile(
    r"(cls_token|class_token|class_embedding|dist_token|distillation_token|reg_token|register_tokens|storage_tokens"
    r"|mask_token|probe|latent|pos_embed\w*|pos_embedding|position_embeddings?(\.weight)?|positional_embedding)$"
)
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
}


def value(seed, name, shape):
    """The float32 values of the tensor `name` of a checkpoint.

    The spreads are those of trained networks rather than of fresh ones: activations reach the range where the GELUs
    differ, and no norm, bias, token or layer scale is a value that would hide its loss.
    """
    if name.endswith("relative_position_bias_table"):
        return uniform(seed, name, shape, 0.5)
    if _LAYER_SCALE.search(name):
        return uniform(seed, name, shape, 0.2, 0.5)
    if _TOKEN.search(name):
        return uniform(seed, name, shape, 0.3)
    if len(shape) == 1 and name.endswith("weight"):
        return uniform(seed, name, shape, 0.2, 1.0)
    if len(shape) > 1:
        return uniform(seed, name, shape, 1.4 / math.sqrt(math.prod(shape[1:])))
    return uniform(seed, name, shape, 0.1)


@dataclasses.dataclass(frozen=True)
class Golden:
    """One golden file.

    Attributes:
        name: of the file, without suffix.
        meta: what is known of the case:
            `family`, `library` (with its version), `class`, `built` (how), `seed`;
            `names`: {name: shape} of the checkpoint, in its order;
            `config`: a config.json, or None;
            `options`: what names, shapes and config.json cannot tell, by its name in `ViTConfig`;
            `output`: "logits" or "pooled"; `pool`: what is pooled, in words;
            `prefix_tokens`: the tokens before the patches, in order;
            `final_norm`: whether the last norm is on the "tokens" or on what they are "pooled" to (then `tokens` have
            none); `resize`: how the second size was made, in words; `resize_method`: its name in `vit_keras.positions`,
            None without a table; `notes`.
        images, images_2: uint8 pictures (n, height, width, 3): two of the native size, one of another size or None.
        output, output_2: float32 (n, classes or width) of the original, for all pictures.
        tokens, tokens_2: float32 (1, prefix + patches, width), the last tokens, for the first picture.
        buffers: the tensors of the checkpoint that are stored as they are, {name: array}.
    """

    name: str
    meta: dict
    images: np.ndarray
    images_2: np.ndarray
    output: np.ndarray
    output_2: np.ndarray
    tokens: np.ndarray
    tokens_2: np.ndarray
    buffers: dict

    @property
    def options(self):
        """What a user has to say because the file does not."""
        return self.meta["options"]

    @property
    def inputs(self):
        """`images` in [-1, 1], the input of every original here."""
        return preprocess(self.images)

    @property
    def inputs_2(self):
        """`images_2` in [-1, 1], or None."""
        return None if self.images_2 is None else preprocess(self.images_2)

    def state_dict(self):
        """The checkpoint, {name: array}, in the order of the original."""
        return state_dict(self.meta["seed"], self.meta["names"], self.buffers)


def state_dict(seed, names, buffers):
    """{name: array} of the checkpoint with these {name: shape} and stored buffers."""
    return {n: np.asarray(buffers[n] if n in buffers else value(seed, n, tuple(s))) for n, s in names.items()}


def cases():
    """The names of all golden files, sorted."""
    return sorted(p.stem for p in DIRECTORY.glob("*.npz"))


def matrix(names, default=tuple(MECHANISMS)):
    """Parameters of a test, of which all but the default ones are marked slow."""
    import pytest

    # The default ones first: of a test with `few_cases`, the later cases are slow.
    in_order = sorted(names, key=lambda name: name not in default)
    return [pytest.param(name, marks=() if name in default else pytest.mark.slow) for name in in_order]


def pictures(seed, size):
    """The uint8 pictures of a case: (n, height, width), checked against the hash that was stored with the outputs."""
    n, height, width, crc = size
    x = image(seed, n=n, size=(height, width))
    if zlib.crc32(x.tobytes()) != crc:
        raise ValueError(f"pictures of {n} x {height} x {width} from seed {seed} are not those of the golden file")
    return x


def load(name):
    """The golden file `name`."""
    with np.load(DIRECTORY / f"{name}.npz", allow_pickle=False) as f:
        arrays = {k: f[k] for k in f.files}
    meta = json.loads(str(arrays.pop("meta")))
    sizes = meta["images"]
    return Golden(
        name=name,
        meta=meta,
        images=pictures(meta["seed"], sizes[0]),
        images_2=pictures(meta["seed"], sizes[1]) if len(sizes) > 1 else None,
        output=arrays.get("output"),
        output_2=arrays.get("output_2"),
        tokens=arrays.get("tokens"),
        tokens_2=arrays.get("tokens_2"),
        buffers={k[len(BUFFER) :]: v for k, v in arrays.items() if k.startswith(BUFFER)},
    )


def write_safetensors(path, tensors, metadata=None):
    """Write {name: array} as a .safetensors file: the header's length (u64), the header (JSON), the raw values."""
    header, offset = {"__metadata__": metadata or {"format": "pt"}}, 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _DTYPES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            f.write(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
    return pathlib.Path(path)


def write(golden, directory, config=True):
    """Write the checkpoint of a golden file into a directory, with its config.json beside it; the path of the file."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if config and golden.meta["config"]:
        (directory / "config.json").write_text(json.dumps(golden.meta["config"]))
    return write_safetensors(directory / "model.safetensors", golden.state_dict())


def run(model, inputs):
    import keras

    model.run_eagerly = True  # nothing is run twice here: compiling would take longer than it saves
    return keras.ops.convert_to_numpy(model(inputs))


KECAM = np.load(pathlib.Path(__file__).parents[1] / "data" / "kecam" / "outputs.npz")


def write_kecam(case, path, extra=()):
    """Write the file that kecam's `save_weights` writes, with the weights of tests/data/kecam/make.py."""
    named = [*json.loads(str(KECAM[case])), *extra]
    import h5py

    with h5py.File(path, "w") as file:
        layers = list(dict.fromkeys(name.split("/")[0] for name, _ in named))
        file.attrs["layer_names"] = layers
        for layer in layers:
            group = file.create_group(layer)
            group.attrs["weight_names"] = [name for name, _ in named if name.split("/")[0] == layer]
            for seed, (name, shape) in enumerate(named):
                if name.split("/")[0] == layer:
                    value = np.random.default_rng(seed).normal(0, 0.2, shape).astype("float32")
                    group[name] = value + np.float32("gamma" in name)
    return path
