"""Google's own files: the original ViT, AugReg, and what their code saves (google-research/vision_transformer).

The published files carry the module numbers of pre-Linen Flax, which are the canonical names here; files
that later versions of the code save carry Linen's. Some have a prefix, with the optimiser's state beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIXES = ("", "params/", "opt/target/")

_LINEN = (
    (re.compile(r"^(Transformer/encoderblock_\d+/)LayerNorm_1/"), r"\1LayerNorm_2/"),
    (
        re.compile(r"^(Transformer/encoderblock_\d+/)MultiHeadDotProductAttention_0/"),
        r"\1MultiHeadDotProductAttention_1/",
    ),
    (re.compile(r"^(Transformer/encoderblock_\d+/)MlpBlock_0/"), r"\1MlpBlock_3/"),
)

_POSITIONS = "Transformer/posembed_input/pos_embedding"

_OTHERS = (  # a telling name, and what it tells
    ("conv_root/kernel", "a hybrid of a ResNet and a ViT"),
    ("stem/kernel", "an MLP-Mixer"),
    ("pos_embedding", "a big_vision checkpoint"),
)


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Map the canonical name of each weight of the model to its name in the file.

    Args:
        names: All names in the file.

    Returns:
        `{canonical name: name in the file}`; what lies outside the model's prefix is left out.

    Raises:
        ValueError: The names are not those of a plain ViT of Google's; the message says what they are.
    """
    names = list(names)
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in names and f"{p}{_POSITIONS}" in names), None)
    stripped = [n[len(p) :] for p in PREFIXES for n in names if n.startswith(p)]
    for telling, kind in _OTHERS:
        if telling in stripped:
            raise ValueError(f"The file holds {kind} ({telling!r} is in it), which this version cannot build.")
    if prefix is None:
        some = ", ".join(map(repr, sorted(names)[:4]))
        raise ValueError(
            f"The file is not one of Google's ViT checkpoints: 'embedding/kernel' and {_POSITIONS!r} are missing. "
            f"It has {len(names)} arrays: {some}{' …' if len(names) > 4 else ''}."
        )
    canonical = {}
    for name in names:
        if name.startswith(prefix):
            target = name[len(prefix) :]
            for pattern, replacement in _LINEN:
                target = pattern.sub(replacement, target)
            canonical[target] = name
    return canonical


def architecture(shapes: dict[str, tuple[int, ...]]) -> dict:
    """Tell the architecture from the shapes of the weights.

    Args:
        shapes: `{canonical name: shape}`.

    Returns:
        Fields of a `vit_keras.config.ViTConfig`, and `positions`: the rows of the table of position
        embeddings that belong to patches.

    Raises:
        ValueError: Weights are missing that every ViT has.
    """
    try:
        patch_h, patch_w, channels, hidden_size = shapes["embedding/kernel"]
        block = "Transformer/encoderblock_0/"
        _, num_heads, dim_head = shapes[block + "MultiHeadDotProductAttention_1/query/kernel"]
        mlp_dim = shapes[block + "MlpBlock_3/Dense_0/bias"][0]
        rows = shapes[_POSITIONS][1]
        top = {name: shapes[f"{name}/bias"][0] for name in ("pre_logits", "head") if f"{name}/bias" in shapes}
    except KeyError as error:
        raise ValueError(f"The file is not a complete ViT checkpoint: {error} is missing.") from None
    except (ValueError, IndexError):
        raise ValueError("The file is not a ViT checkpoint: some of its arrays have other shapes.") from None
    blocks = {name.split("/")[1] for name in shapes if name.startswith("Transformer/encoderblock_")}
    has_token = "cls" in shapes
    return {
        "patch_size": (patch_h, patch_w),
        "channels": channels,
        "num_layers": len(blocks),
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "dim_head": None if num_heads * dim_head == hidden_size else dim_head,
        "mlp_dim": mlp_dim,
        "pooling": "token" if has_token else "gap",
        "representation_size": top.get("pre_logits"),
        "include_top": "head" in top,
        "classes": top.get("head", 1000),
        "positions": rows - has_token,
    }
