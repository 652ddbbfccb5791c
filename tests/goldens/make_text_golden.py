#!/usr/bin/env python3
"""Write the golden files of tests/data/text: what transformers and open_clip compute of images and texts.

Run by hand, in an environment that holds both; no test needs them. The files that are committed came from

    torch 2.13.0 (CPU), transformers 5.23.0, open_clip_torch 3.3.0

Every model is tiny and has seeded weights (`family_files.value`), and computes in float64. A file holds the names and
shapes of the checkpoint, the JSON files beside it, tokens, and what came out.
"""

import json
import sys

import numpy as np
import torch
from family_files import SEED, state_dict
from make_google_npz import image
from text_files import DIRECTORY, IMAGE_SIZE, LENGTH, VOCABULARY, tokens

# torchvision's compiled operators need CUDA; its Python part, and so open_clip, only their declarations.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "bos_token_id": 1, "pad_token_id": 0, **SIZES}
VISION = {"image_size": IMAGE_SIZE, "patch_size": 8, **SIZES}
CFG = {"context_length": LENGTH, "vocab_size": VOCABULARY, "width": 64, "heads": 1, "layers": 2}
VISION_CFG = {"image_size": IMAGE_SIZE, "patch_size": 8, "width": 64, "head_width": 32, "layers": 2}
SIGLIP_CFG = {**CFG, "no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}


def of_transformers(kind, eos, vision=VISION):
    """A model of transformers, its forward pass, and its `config.json`."""
    import transformers

    config = {"text_config": {**TEXT, "eos_token_id": eos}, "vision_config": vision}
    if kind in ("CLIP", "MetaClip2"):
        config["projection_dim"] = 24
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config))

    def forward(pixels, ids):
        inputs = {"pixel_values": pixels}
        if kind == "Siglip2":  # rows of flattened patches
            n, side = len(pixels), IMAGE_SIZE // 8
            rows = pixels.unflatten(2, (side, 8)).unflatten(4, (side, 8)).permute(0, 2, 4, 3, 5, 1)
            shapes, mask = torch.tensor([[side, side]] * n), torch.ones(n, side**2, dtype=torch.int64)
            inputs = {
                "pixel_values": rows.reshape(n, side**2, -1),
                "pixel_attention_mask": mask,
                "spatial_shapes": shapes,
            }
        losing = model(**inputs, input_ids=ids[: len(pixels)], return_loss=True)
        out = model(**inputs, input_ids=ids)
        return (
            out.text_model_output.pooler_output,
            out.vision_model_output.pooler_output,
            out.logits_per_image,
            losing.loss,
        )

    return model, forward, {"config.json": json.loads(model.config.to_json_string())}


def of_open_clip(text, custom=False, **options):
    """The same of a model of open_clip."""
    import open_clip

    config = {"embed_dim": 64, "vision_cfg": VISION_CFG, "text_cfg": text, **options}
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)

    def forward(pixels, ids):
        logits, few = (model.get_logits(pixels, some)[0] for some in (ids, ids[: len(pixels)]))
        if model.logit_bias is None:
            loss = open_clip.ClipLoss()(
                model.encode_image(pixels, True), model.encode_text(ids[: len(pixels)], True), 1.0
            )
            same = torch.arange(len(few))
            loss = (torch.nn.functional.cross_entropy(few, same) + torch.nn.functional.cross_entropy(few.T, same)) / 2
        else:
            same = 2 * torch.eye(len(few), dtype=few.dtype) - 1
            loss = -torch.nn.functional.logsigmoid(same * few).sum() / len(few)
        return model.encode_text(ids), model.encode_image(pixels), logits, loss

    return model, forward, {"open_clip_config.json": {"model_cfg": {**config, "custom_text": custom}}}


CASES = {
    "hf_clip": lambda: of_transformers("CLIP", 5),
    "hf_clip_argmax": lambda: of_transformers("CLIP", 2),
    "hf_metaclip2": lambda: of_transformers("MetaClip2", 2),
    "hf_siglip": lambda: of_transformers("Siglip", 5),
    "hf_siglip2": lambda: of_transformers(
        "Siglip2", 5, {"num_patches": (IMAGE_SIZE // 8) ** 2, "patch_size": 8, **SIZES}
    ),
    "open_clip": lambda: of_open_clip(CFG, quick_gelu=True),
    "open_clip_gelu": lambda: of_open_clip(CFG),
    "open_clip_eos": lambda: of_open_clip({**CFG, "pool_type": "eos", "eos_id": 5}),
    "open_clip_not_causal": lambda: of_open_clip({**CFG, "no_causal_mask": True}, custom=True),
    "open_clip_siglip": lambda: of_open_clip(SIGLIP_CFG, custom=True, init_logit_bias=-10),
    "open_clip_siglip2": lambda: of_open_clip(
        {**SIGLIP_CFG, "act_kwargs": {"approximate": "tanh"}}, custom=True, init_logit_bias=-10
    ),
}


def make(name):
    """Write one golden file."""
    model, forward, files = CASES[name]()
    names = {key: list(value.shape) for key, value in model.state_dict().items() if "position_ids" not in key}
    weights = state_dict(SEED, names, {})
    model.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in weights.items()}, strict=False)
    model.double().eval()
    pixels = (image(SEED, n=2, size=(IMAGE_SIZE, IMAGE_SIZE)).astype("float64") - 127.5) / 127.5
    with torch.no_grad():
        found = forward(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(tokens()).long())
    outputs = dict(zip(("text", "image", "logits", "loss"), (np.asarray(x, "float32") for x in found)))
    DIRECTORY.mkdir(exist_ok=True)
    np.savez_compressed(DIRECTORY / f"{name}.npz", meta=json.dumps({"names": names, "files": files}), **outputs)


if __name__ == "__main__":
    for name in CASES:
        if not sys.argv[1:] or name.startswith(tuple(sys.argv[1:])):
            make(name)
            print(name)
