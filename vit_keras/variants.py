"""The published sizes of the Vision Transformer, as a table.

Paper, Table 1; Ti and S: "How to train your ViT?" (arXiv 2106.10270), Table 2. Dropout rates are those of the
reference's `configs/models.py`. g: "Scaling Vision Transformers" (arXiv 2106.04560), Table 2.
"""

from __future__ import annotations

from .config import ViTConfig

_SIZES = {  # layers, hidden size, heads, MLP dim
    "Ti": (12, 192, 3, 768),
    "S": (12, 384, 6, 1536),
    "B": (12, 768, 12, 3072),
    "L": (24, 1024, 16, 4096),
    "H": (32, 1280, 16, 5120),
    "g": (40, 1408, 16, 6144),
}


def _variant(name: str, patch: int, image: int = 224, dropout: float = 0.0) -> ViTConfig:
    layers, hidden, heads, mlp = _SIZES[name]
    return ViTConfig(
        name=f"vit-{name.lower()}{patch}",
        image_size=(image, image),
        patch_size=(patch, patch),
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        mlp_dim=mlp,
        dropout=dropout,
    )


VARIANTS = {
    "Ti_16": _variant("Ti", 16),
    "S_16": _variant("S", 16),
    "S_32": _variant("S", 32),
    "B_8": _variant("B", 8),
    "B_16": _variant("B", 16),
    "B_32": _variant("B", 32),
    "L_16": _variant("L", 16, image=384, dropout=0.1),
    "L_32": _variant("L", 32, image=384),
    "H_14": _variant("H", 14, dropout=0.1),
}
"""By Google's name of the architecture. L defaults to 384 pixels, as it did in vit-keras 0.x."""

FACTORIES = {config.name.replace("-", "_"): variant for variant, config in VARIANTS.items()}
"""Google's names by the names of the factories, such as `vit_b16`."""


def variant_of(name: str) -> str | None:
    """Return Google's name of a factory's architecture (`B_16`), or `None` if no factory has this name."""
    return FACTORIES.get(name.replace("-", "_"))


UNPUBLISHED = {"g_14": _variant("g", 14)}
"""Larger sizes, of which Google published no weights: for `vit_keras.cost`."""

CIFAR10 = ViTConfig(
    name="vit-cifar10",
    image_size=(32, 32),
    patch_size=(1, 1),
    resnet=(),
    num_layers=6,
    hidden_size=128,
    num_heads=4,
    mlp_dim=256,
    classes=10,
)
"""The small hybrid that comes with the package (`examples/train_cifar10.py` trained it)."""
