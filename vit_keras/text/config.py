"""The configuration of a text tower."""

from __future__ import annotations

import dataclasses
from typing import Any

from .._internal.validate import check_activations, check_fields, is_number, one_of, positive_integer

__all__ = ["POOLINGS", "TextConfig"]

POOLINGS = ("argmax", "eos", "last")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """The configuration of a text tower: all settings that its computation depends on.

    The defaults are those of OpenAI's CLIP ViT-B (arXiv 2103.00020, section 2.4).

    Args:
        vocab_size: Number of different tokens.
        context_length: Maximum number of tokens in a text.
        num_layers: Number of blocks.
        hidden_size: Width of a token.
        num_heads: Attention heads of a block.
        mlp_dim: Hidden width of a block's MLP.
        mlp_activation: `"quick_gelu"` (OpenAI's CLIP), `"gelu"` (open_clip), `"gelu_tanh"` (SigLIP), or any Keras
            activation name.
        epsilon: Added to the variance in every layer normalization.
        causal: Whether a token attends only to itself and earlier tokens (CLIP), or to all (SigLIP).
        pooling: Which token represents the text. `"argmax"`: the one with the highest number, which in CLIP's
            vocabulary is the end of the text. `"eos"`: the first one that is `eos_id`. `"last"`: the last one, which
            may be padding (SigLIP).
        eos_id: Number of the token at the end of a text, for the pooling `"eos"`.
        output_size: Width of the features; `None` for the pooled token itself, without a projection.
        output_bias: Whether the projection has a bias (SigLIP).
        name: Name of the model.

    Raises:
        ValueError: A value is out of range, or two values contradict each other.

    Example:
        >>> TextConfig(num_layers=2).replace(hidden_size=64, num_heads=2).hidden_size
        64
    """

    vocab_size: int = 49408
    context_length: int = 77
    num_layers: int = 12
    hidden_size: int = 512
    num_heads: int = 8
    mlp_dim: int = 2048
    mlp_activation: str = "quick_gelu"
    epsilon: float = 1e-5
    causal: bool = True
    pooling: str = "argmax"
    eos_id: int | None = None
    output_size: int | None = 512
    output_bias: bool = False
    name: str = "text"

    def __post_init__(self) -> None:
        def put(field: str, value: Any) -> None:
            object.__setattr__(self, field, value)

        for field in ("vocab_size", "context_length", "num_layers", "hidden_size", "num_heads", "mlp_dim"):
            put(field, positive_integer(getattr(self, field), field))
        if self.output_size is not None:
            put("output_size", positive_integer(self.output_size, "output_size"))
        if self.eos_id is not None:
            put("eos_id", positive_integer(self.eos_id, "eos_id", least=0))
        if not (is_number(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon must be a number that is not negative. Received: {self.epsilon!r}")
        check_activations({"mlp_activation": self.mlp_activation})
        one_of(self.pooling, "pooling", POOLINGS)
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} is not divisible by num_heads={self.num_heads}.")
        if self.pooling == "eos" and (self.eos_id is None or self.eos_id >= self.vocab_size):
            raise ValueError(
                f"pooling='eos' needs the eos_id, below vocab_size={self.vocab_size}. Received: eos_id={self.eos_id}"
            )

    def replace(self, **changes: Any) -> TextConfig:
        """Return a copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or the new combination is not valid.
        """
        check_fields(TextConfig, changes)
        return dataclasses.replace(self, **changes)
