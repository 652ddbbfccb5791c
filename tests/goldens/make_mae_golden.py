#!/usr/bin/env python3
"""Write tests/data/mae_pretraining.npz: what transformers' ViTMAE predicts of pictures with given masks, and its
losses.

Run by hand, in an environment that holds torch and transformers; no test needs them. The committed file came from

    torch 2.13.0 (CPU), transformers 5.23.0, NumPy 2.4.6

The weights are those of `family_files.value`; only the decoder's positions are the original's own. Everything is
computed in float64. The file holds:

    meta: JSON: library, config (the config.json), names ({name: shape} of the checkpoint), seed
    noise: (pictures, patches), by which the original sorts the patches
    pixels: (pictures, patches, pixels of a patch * 3), its prediction
    masked: (pictures, patches), 1 where a patch was masked
    loss, loss_norm: with plain and with normalised pixels
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from family_files import SEED, value
from make_google_npz import image, preprocess
from safetensors.torch import load_file, save_file

TARGET = pathlib.Path(__file__).parents[1] / "data" / "mae_pretraining.npz"
CONFIG = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "decoder_hidden_size": 24,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 96,
}
OWN = "decoder.decoder_pos_embed"


def model_of(directory):
    """The original with seeded weights, and {name: shape} of its checkpoint."""
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**CONFIG))
    model.decoder.initialize_weights((32 // 8) ** 2)  # which transformers 5 undoes at the end of __init__
    model.save_pretrained(directory)
    path = pathlib.Path(directory) / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name != OWN:
            tensors[name] = torch.from_numpy(np.array(value(SEED, name, tuple(tensor.shape))))
    save_file(tensors, path, {"format": "pt"})
    names = {name: list(tensor.shape) for name, tensor in tensors.items() if name != OWN}
    return transformers.ViTMAEForPreTraining.from_pretrained(directory).double().eval(), names


def main():
    """Write the file."""
    with tempfile.TemporaryDirectory() as directory:
        model, names = model_of(directory)
        config = json.loads((pathlib.Path(directory) / "config.json").read_text())
    pictures = torch.from_numpy(preprocess(image(SEED, n=2, size=(32, 32)))).permute(0, 3, 1, 2).double()
    noise = torch.rand(2, 16, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    losses = {}
    for norm in (False, True):
        model.config.norm_pix_loss = norm
        with torch.no_grad():
            output = model(pixel_values=pictures, noise=noise)
        losses[norm] = output.loss.numpy()
    meta = {
        "library": f"transformers {transformers.__version__}",
        "config": config,
        "names": names,
        "seed": SEED,
    }
    np.savez_compressed(
        TARGET,
        meta=json.dumps(meta),
        noise=noise.numpy(),
        pixels=output.logits.numpy().astype("float32"),
        masked=output.mask.numpy(),
        loss=losses[False],
        loss_norm=losses[True],
    )
    print(TARGET, TARGET.stat().st_size, losses)


if __name__ == "__main__":
    main()
