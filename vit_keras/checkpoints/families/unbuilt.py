"""Hugging Face families that cannot be built, and whose files are refused with the reason."""

from __future__ import annotations

from .rules import Family


def unbuilt(name: str, title: str, detect: tuple[str, ...], why: str, absent: tuple[str, ...] = ()) -> Family:
    """Return a known family that cannot be built."""
    return Family(name=name, title=title, detect=detect, absent=absent, rules=(), ignored=("*",), refused=why)


_PATCH_EMBEDDINGS = "embeddings.patch_embeddings.projection.weight"
FAMILIES = (
    unbuilt(
        "huggingface-intern-6b",
        "InternViT-6B",
        (
            "encoder.layer.0.attention.q_norm.weight|encoder.layers.0.attn.q_norm.weight",
            "encoder.layer.0.lambda_1|encoder.layers.0.ls1",
        ),
        "InternViT-6B normalizes queries and keys, which this version cannot build",
    ),
    unbuilt(
        "huggingface-aimv2",
        "Hugging Face's AIMv2",
        ("encoder.layers.0.rms_norm1.weight",),
        "AIMv2 has RMS normalizations and layers of the MLP without biases, which this version cannot build",
    ),
    unbuilt(
        "huggingface-mlcd",
        "Hugging Face's MLCD",
        ("class_pos_emb", "embeddings.class_embedding"),
        "MLCD has rotary positions of another kind, with learned ones for the class token, which this version cannot "
        "build",
    ),
    unbuilt(
        "huggingface-xclip",
        "Hugging Face's X-CLIP image tower",
        ("embeddings.class_embedding", "encoder.layers.0.message_fc.weight"),
        "X-CLIP is for videos: its blocks exchange messages between the pictures, which this version cannot build",
    ),
    unbuilt(
        "huggingface-yolos",
        "Hugging Face's YOLOS",
        ("embeddings.detection_tokens",),
        "YOLOS has detection tokens with positions of their own, and positions between the blocks, which this version "
        "cannot build",
    ),
    unbuilt(
        "huggingface-vitpose",
        "Hugging Face's ViTPose",
        (_PATCH_EMBEDDINGS, "encoder.layer.0.mlp.fc1.weight", "encoder.layer.0.attention.attention.query.weight"),
        "ViTPose pads pictures before it cuts them into patches, and adds the class token's position to all patches, "
        "which this version cannot build",
        absent=("embeddings.cls_token",),
    ),
    unbuilt(
        "huggingface-videomae",
        "Hugging Face's VideoMAE",
        (_PATCH_EMBEDDINGS, "encoder.layer.0.layernorm_before.weight", "encoder.layer.0.layernorm_after.weight"),
        "VideoMAE is for videos: its patches and positions extend over several pictures, which this version cannot "
        "build",
        absent=("embeddings.cls_token", "embeddings.position_embeddings"),
    ),
)
