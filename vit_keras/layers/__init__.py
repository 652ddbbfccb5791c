"""The layers of a Vision Transformer, in the order in which an image meets them.

Paper: "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1 and appendix A.
Reference: google-research/vision_transformer, `vit_jax/models_vit.py`.

Every layer can be used alone: `build` creates all weights, `get_config` is complete, dtype policies are honored, and
the same code runs on TensorFlow, JAX and PyTorch. Attributes, weights and sub-layers have the names and order of
vit-keras 0.x, whose weight files therefore load here.
"""

from .._internal.tap import record_attention, tap  # isort: skip  (the others show what they compute to it)
from .resnet import StdConv2D, resnet_root  # isort: skip
from .tokens import ClassToken, ExtractToken, PatchDropout, RegisterTokens  # isort: skip
from .positions import AddPositionEmbs, AddSinCosPositionEmbs  # isort: skip
from .rotary import RotaryPositions  # isort: skip
from .attention import MultiHeadSelfAttention  # isort: skip
from .mlp import LayerScale, MlpBlock  # isort: skip
from .block import TransformerBlock  # isort: skip
from .merging import MergingBlock  # isort: skip
from .pooling import AttentionPooling  # isort: skip

__all__ = [
    "AddPositionEmbs",
    "AddSinCosPositionEmbs",
    "AttentionPooling",
    "ClassToken",
    "ExtractToken",
    "LayerScale",
    "MergingBlock",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PatchDropout",
    "RegisterTokens",
    "RotaryPositions",
    "StdConv2D",
    "TransformerBlock",
    "record_attention",
    "resnet_root",
    "tap",
]
