"""What tells one Vision Transformer from another, as data.

`ViTConfig` describes a model completely: `vit_keras.vit.build(config)` needs nothing else.
`VARIANTS` is the table of the published sizes (paper, Table 1; Ti and S from "How to train your
ViT?", arXiv 2106.10270, Table 2). Dropout rates are those of the reference's `configs/models.py`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

NO_REMAT_WITH_DROPOUT = (
    "remat=True computes a block twice, and Keras would drop out other values the second time: it needs dropout=0 and "
    "attention_dropout=0. Received: dropout={}, attention_dropout={}"
)
POOLINGS = {"token": "token", "cls": "token", "gap": "gap", "mean": "gap", None: None}


def size_pair(value: Any, argument: str) -> tuple[int, int]:
    """Read an `int` or a `(height, width)` pair; any integer type will do.

    Raises:
        ValueError: `value` is neither one positive integer nor two.
    """
    values = value.tolist() if hasattr(value, "tolist") else value
    values = values if isinstance(values, (tuple, list)) else [values, values]
    try:
        pair = tuple(operator.index(v) for v in values)
    except TypeError:
        pair = ()
    if len(pair) != 2 or min(pair) < 1 or bool in map(type, values):
        raise ValueError(
            f"The {argument} argument must be a tuple of 2 integers or a single integer. Received: {value!r}"
        )
    return pair


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer, completely.

    Args:
        image_size: Pixels of the input, `(height, width)` or one integer for a square.
        patch_size: Pixels of a patch, `(height, width)` or one integer for a square.
        channels: Channels of the input image.
        num_layers: Number of transformer blocks (the paper's *layers*).
        hidden_size: Width of a token (the paper's *hidden size D*).
        num_heads: Attention heads of a block.
        mlp_dim: Hidden width of a block's MLP.
        dim_head: Width of a head; `None` for `hidden_size / num_heads`.
        dropout: Rate after the attention, after the MLP's GELU and after the MLP.
        emb_dropout: Rate after the position embeddings; `None` for `dropout`.
        attention_dropout: Rate on the attention weights.
        pooling: `"token"` (alias `"cls"`): the class token. `"gap"` (alias `"mean"`): no class token,
            the mean over the patches. `None`: all tokens, class token first.
        representation_size: Width of the tanh layer before the head (`pre_logits`), or `None`.
        include_top: Whether the model ends in a classification head.
        classes: Number of classes of the head.
        activation: Activation of the head: a Keras name such as `"softmax"`.
        mlp_activation: `"gelu_tanh"` (what Google's checkpoints were trained with), `"gelu"` (the
            exact one: PyTorch's, and vit-keras 0.x), or any Keras activation name.
        epsilon: Added to the variance in every layer normalisation.
        remat: Whether the blocks keep only their inputs in training and compute the rest again in the backward pass:
            less memory for more time. Not together with dropout. (JAX on a CPU saves nothing: XLA undoes it there.)
        drop_remainder: Whether an image that is not a whole number of patches loses its right and
            bottom rest, as in the reference, instead of raising a `ValueError`.
        name: Name of the model.

    Raises:
        ValueError: A value is out of range or two of them contradict each other.

    Example:
        >>> config = ViTConfig(image_size=(224, 448), num_layers=2, hidden_size=64, num_heads=2, mlp_dim=128)
        >>> config.grid
        (14, 28)
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    channels: int = 3
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    mlp_dim: int = 3072
    dim_head: int | None = None
    dropout: float = 0.0
    emb_dropout: float | None = None
    attention_dropout: float = 0.0
    pooling: str | None = "token"
    representation_size: int | None = None
    include_top: bool = True
    classes: int = 1000
    activation: Any = "linear"
    mlp_activation: str = "gelu_tanh"
    epsilon: float = 1e-6
    remat: bool = False
    drop_remainder: bool = False
    name: str = "vit"

    def __post_init__(self) -> None:
        def put(field: str, value: Any) -> None:
            object.__setattr__(self, field, value)

        put("image_size", size_pair(self.image_size, "image_size"))
        put("patch_size", size_pair(self.patch_size, "patch_size"))
        for field in ("channels", "num_layers", "hidden_size", "num_heads", "mlp_dim", "classes"):
            put(field, _positive(getattr(self, field), field))
        for field in ("dim_head", "representation_size"):
            if getattr(self, field) is not None:
                put(field, _positive(getattr(self, field), field))
        for field in ("dropout", "emb_dropout", "attention_dropout"):
            rate = getattr(self, field)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"{field} is a rate in [0, 1). Received: {rate!r}")
        try:
            put("pooling", POOLINGS[self.pooling])
        except (KeyError, TypeError):
            raise ValueError(
                f"pooling must be 'token', 'gap' or None (or the aliases 'cls', 'mean'). Received: {self.pooling!r}"
            ) from None
        if self.pooling is None and (self.include_top or self.representation_size):
            raise ValueError("pooling=None returns all tokens, which a head cannot take: say include_top=False too.")
        if self.remat and (self.dropout or self.attention_dropout):
            raise ValueError(NO_REMAT_WITH_DROPOUT.format(self.dropout, self.attention_dropout))
        if self.dim_head is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by num_heads={self.num_heads}: "
                "change one of them, or give dim_head."
            )
        if min(self.grid) < 1:
            raise ValueError(f"image_size={self.image_size} is smaller than one patch of {self.patch_size} pixels.")
        if not self.drop_remainder and any(s % p for s, p in zip(self.image_size, self.patch_size)):
            raise ValueError(_not_divisible(self.image_size, self.patch_size))

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def embedding_dropout(self) -> float:
        """The rate after the position embeddings."""
        return self.dropout if self.emb_dropout is None else self.emb_dropout

    def replace(self, **changes: Any) -> ViTConfig:
        """A copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or the new combination is not valid.
        """
        unknown = sorted(set(changes) - {f.name for f in dataclasses.fields(self)})
        if unknown:
            known = ", ".join(f.name for f in dataclasses.fields(self))
            raise ValueError(f"Unknown option {', '.join(unknown)}. A ViT can be given: {known}.")
        return dataclasses.replace(self, **changes)


def _positive(value: Any, field: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ValueError(f"{field} must be a positive integer. Received: {value!r}")
    return number


def _not_divisible(image_size: tuple[int, int], patch_size: tuple[int, int]) -> str:
    fits = [
        sorted({max(1, math.floor(s / p)) * p, math.ceil(s / p) * p}, key=lambda v, s=s: abs(v - s))
        for s, p in zip(image_size, patch_size)
    ]
    nearest = [
        f"{axis} {' or '.join(map(str, sizes))}"
        for axis, sizes, s in zip(("height", "width"), fits, image_size)
        if s not in sizes
    ]
    return (
        f"image_size={image_size} is not a whole number of patches of {patch_size} pixels; nearest: "
        f"{', '.join(nearest)}. Or say drop_remainder=True to ignore the rest, as the reference implementation does."
    )


def _variant(name: str, size: str, patch: int, image: int = 224, dropout: float = 0.0) -> ViTConfig:
    layers, hidden, heads, mlp = _SIZES[size]
    return ViTConfig(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        mlp_dim=mlp,
        patch_size=(patch, patch),
        image_size=(image, image),
        dropout=dropout,
    )


# Size: layers, hidden size, heads, MLP dim.
_SIZES = {
    "Ti": (12, 192, 3, 768),
    "S": (12, 384, 6, 1536),
    "B": (12, 768, 12, 3072),
    "L": (24, 1024, 16, 4096),
    "H": (32, 1280, 16, 5120),
}

# The key is Google's name of the architecture. L defaults to 384 pixels as it did in vit-keras.
VARIANTS = {
    "Ti_16": _variant("vit-ti16", "Ti", 16),
    "S_16": _variant("vit-s16", "S", 16),
    "S_32": _variant("vit-s32", "S", 32),
    "B_8": _variant("vit-b8", "B", 8),
    "B_16": _variant("vit-b16", "B", 16),
    "B_32": _variant("vit-b32", "B", 32),
    "L_16": _variant("vit-l16", "L", 16, image=384, dropout=0.1),
    "L_32": _variant("vit-l32", "L", 32, image=384),
    "H_14": _variant("vit-h14", "H", 14, dropout=0.1),
}
