"""The text towers of models for images and text. The same files hold an image tower, which has a family of its own.

The canonical names are those of a Vision Transformer, with `embedding/embeddings` for the table of tokens,
`logit_scale` and `logit_bias`. The fields of `config` and of `choices` are those of `vit_keras.text.TextConfig`.
"""

from __future__ import annotations

from .clip import RESBLOCKS
from .google import TEXT_TOWER
from .huggingface import CLIP_BLOCKS
from .rules import POSITIONS, TABLE, Family, array, linear, norm
from .unbuilt import unbuilt

_LOGITS = (*array("logit_scale", "logit_scale"), *array("logit_bias", "logit_bias"))
_CLIP = {"epsilon": 1e-5, "causal": True}
_SIGLIP = {"causal": False, "pooling": "last"}
_GELUS = {"mlp_activation": ("quick_gelu", "gelu")}
_POOLINGS = {"pooling": ("argmax", "eos", "last")}
_HEADS = {768: 12, 1024: 16, 1152: 16}

_EMBEDDINGS = (
    *array("embeddings.token_embedding.weight", "embedding/embeddings"),
    *array("embeddings.position_embedding.weight", POSITIONS, op=TABLE),
    *CLIP_BLOCKS,
    *norm("final_layer_norm", "Transformer/encoder_norm"),
)
_HUGGING_FACE = (
    "embeddings.token_embedding.weight",
    "encoder.layers.0.self_attn.q_proj.weight",
    "final_layer_norm.weight",
)
_IMAGES = ("*vision_model.*", "visual_projection.*", "*position_ids")

CLIP = Family(
    name="huggingface-clip-text",
    title="Hugging Face's CLIP text towers",
    detect=_HUGGING_FACE,
    absent=("head.weight",),
    rules=_EMBEDDINGS,
    outer=(*linear("text_projection", "head"), *_LOGITS),
    ignored=_IMAGES,
    config=_CLIP,
    choices={**_GELUS, **_POOLINGS},
    heads=_HEADS,
    dim_head=64,
)
SIGLIP = Family(
    name="huggingface-siglip-text",
    title="Hugging Face's SigLIP and SigLIP 2 text towers",
    detect=(*_HUGGING_FACE, "head.weight"),
    rules=(*_EMBEDDINGS, *linear("head", "head")),
    outer=_LOGITS,
    ignored=_IMAGES,
    config={**_SIGLIP, "epsilon": 1e-6, "mlp_activation": "gelu_tanh"},
    heads=_HEADS,
    dim_head=64,
)
_OPEN_CLIP = (
    "token_embedding.weight",
    "positional_embedding",
    "transformer.resblocks.0.ln_1.weight",
    "ln_final.weight",
)
_TOWER = (
    *array("token_embedding.weight", "embedding/embeddings"),
    *array("positional_embedding", POSITIONS, op=TABLE),
    *RESBLOCKS,
    *norm("ln_final", "Transformer/encoder_norm"),
)
_VISUAL = ("visual.*", "attn_mask", "input_resolution", "context_length", "vocab_size")
OPEN_CLIP = Family(
    name="clip-text",
    title="CLIP's text tower (openai/CLIP, open_clip)",
    detect=_OPEN_CLIP,
    absent=("text_projection.weight", "cls_emb"),
    rules=(*_TOWER, *array("text_projection", "head/kernel")),
    outer=_LOGITS,
    ignored=_VISUAL,
    config={"epsilon": 1e-5},
    choices={**_GELUS, **_POOLINGS, "causal": (True, False)},
    heads=_HEADS,
    dim_head=64,
)
OPEN_CLIP_SIGLIP = Family(
    name="siglip-text",
    title="SigLIP's text tower in open_clip",
    detect=(*_OPEN_CLIP, "text_projection.weight"),
    absent=("cls_emb",),
    rules=(*_TOWER, *linear("text_projection", "head")),
    outer=_LOGITS,
    ignored=_VISUAL,
    config={**_SIGLIP, "epsilon": 1e-6},
    choices={"mlp_activation": ("gelu_tanh", "gelu")},
    heads=_HEADS,
    dim_head=64,
)
BIG_VISION = Family(
    name="big_vision-text",
    title="big_vision's SigLIP text towers",
    detect=("Embed_0/embedding", "pos_embedding", "Encoder_0/encoder_norm/scale", "head/bias"),
    marks=("params/b|b",),  # which LiT's files, with other text towers, do not have
    rules=TEXT_TOWER,
    outer=tuple(
        rule
        for prefix in ("params/", "")
        for rule in (*array(f"{prefix}t", "logit_scale"), *array(f"{prefix}b", "logit_bias"))
    ),
    ignored=("*img/*", "opt/*", "chrono/*", "step"),
    config=SIGLIP.config,
    heads=_HEADS,
    dim_head=64,
)

COCA = unbuilt(
    "coca-text",
    "CoCa's text tower",
    ("token_embedding.weight", "cls_emb"),
    "CoCa's text tower has a class token behind the text, which this version cannot build",
)
BERT = unbuilt(
    "bert-text",
    "a text tower like BERT's",
    ("embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"),
    "Its text tower is a BERT (as in Chinese-CLIP, AltCLIP, BLIP, and open_clip's models with an encoder of Hugging "
    "Face's), which this version cannot build",
)

TEXT_FAMILIES = (CLIP, SIGLIP, OPEN_CLIP, OPEN_CLIP_SIGLIP, BIG_VISION, COCA, BERT)

CLIP_VOCABULARY = 49408
"""Tokens of CLIP's vocabulary, of which the end of a text has the highest number."""
