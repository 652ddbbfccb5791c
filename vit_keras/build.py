"""A configuration becomes a model: the whole Vision Transformer, from the image to the logits, top to bottom.

Paper: "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1.

The graph is flat, and its layers have the names that they had in vit-keras 0.x: `embedding`, `class_token`,
`Transformer_posembed_input`, `Transformer_encoderblock_{n}`, `Transformer_encoder_norm`, `ExtractToken`, `pre_logits`,
`head`. So `get_layer` and `model.layers[:k]` work as one expects.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import keras

from . import layers
from ._internal.validate import instance
from .config import ViTConfig, stored_activation
from .layers._base import LayerNormalization
from .layers.mixer import MixerBlock
from .layers.patches import Conv2D, PatchNormalization
from .layers.rotary import MixedRotaryPositions
from .layers.tokens import MeanToken
from .model import VisionTransformer
from .preprocess import GOOGLE


def build(config: ViTConfig, *, dtype: Any = None) -> VisionTransformer:
    """Build the model that a configuration describes, with fresh weights.

    Initialization follows the reference: the class token and the head's kernel are zero, position embeddings have a
    standard deviation of 0.02, attention and MLP kernels are Glorot-uniform.

    Args:
        config: What to build.
        dtype: Keras dtype policy; `None` for the global one. With half precision the head still computes and returns
            float32.

    Returns:
        A model from `(batch, height, width, channels)`, in [-1, 1], to `(batch, classes)`, to `(batch, hidden_size)`
        without a head, or to `(batch, tokens, hidden_size)` with `pooling=None`.

    Example:
        >>> build(ViTConfig(num_layers=2, hidden_size=64, num_heads=2, mlp_dim=128, classes=10)).count_params()
        129610
    """
    instance(config, ViTConfig, "config")
    if not isinstance(config.activation, str):  # of a string, serialize would import TensorFlow, whatever the backend
        config = config.replace(activation=stored_activation(config.activation, used=config.include_top))
    image = keras.Input((*(config.image_size or (None, None)), config.channels))
    with _default_dtype(dtype):
        patches = embed_patches(image, config)
        tokens, merged = encode(add_positions(patches, config), patches, config)
        outputs = classify(pool(tokens, merged, config), config)
    model = VisionTransformer(image, outputs, name=config.name)
    model.config = config
    model.preprocessing = GOOGLE.for_channels(config.channels)
    return model


def embed_patches(x: Any, config: ViTConfig) -> Any:
    """Turn an image into a grid of tokens, `(batch, down, across, hidden_size)` (paper, equation 1: `E`)."""
    if config.resnet is not None:
        x = layers.resnet_root(x, config.resnet, numerics=config.resnet_numerics)
    if config.patch_norm:
        x = PatchNormalization(config.patch_size, config.epsilon, name="patch_norm")(x)
    options = {"use_bias": config.patch_bias, "kernel_initializer": "lecun_normal", "data_format": "channels_last"}
    x = Conv2D(config.hidden_size, config.patch_size, name="embedding", **options)(x)
    return _norm("embedding_norm", config)(x) if config.patch_norm else x


def add_positions(patches: Any, config: ViTConfig) -> Any:
    """Put the class token and its like before the patches, and add position embeddings (paper, equation 1)."""
    tokens = -1 if config.grid is None else math.prod(config.grid)
    x = keras.layers.Reshape((tokens, config.hidden_size))(patches)
    learned, count = config.position == "learned", config.position_prefix_tokens
    prefix_has_positions = learned and count > 0
    if prefix_has_positions:
        x = _add_prefix(x, config)
    if config.register_positions:
        x = _add_registers(x, config)
    name, rate = "Transformer_posembed_input", config.embedding_dropout
    if learned:
        add = layers.AddPositionEmbs(
            config.grid or config.position_grid, rate, config.position_resize, count, name=name
        )
        x = add(x) if config.grid else add(x, patches=patches)
    elif config.position == "sincos2d":
        x = layers.AddSinCosPositionEmbs(rate, name=name)(x, patches=patches)
    elif rate:
        x = keras.layers.Dropout(rate)(x)
    if not prefix_has_positions:
        x = _add_prefix(x, config)
    if config.registers and not config.register_positions:
        x = _add_registers(x, config)
    if config.patch_dropout:
        x = layers.PatchDropout(config.patch_dropout, config.prefix_tokens, name="patch_dropout")(x)
    return x


def _add_prefix(x, config):
    if config.distillation_token:
        x = layers.ClassToken(name="distillation_token")(x)
    return layers.ClassToken(name="class_token")(x) if config.has_class_token else x


def _add_registers(x, config):
    after = config.prefix_tokens - config.registers
    return layers.RegisterTokens(config.registers, after, name="register_tokens")(x)


def encode(x: Any, patches: Any, config: ViTConfig) -> Any:
    """Run the blocks and the final layer normalization (paper, equations 2 to 4); return sizes of merged tokens too."""
    if config.pre_norm:
        x = _norm("Transformer_norm_pre", config)(x)
    rope, merged = _rotations(patches, config), {}
    for n in range(config.num_layers):
        x = _block(config, n)(x, **(merged if rope is None else {"rope": rope[n]}))
        x, merged = (x[0], {"sizes": x[1]}) if isinstance(x, tuple) else (x, merged)
    return _norm("Transformer_encoder_norm", config)(x) if config.final_norm == "tokens" else x, merged


def _rotations(patches, config):
    """Return the rotary positions of each block, or `None` where there are none."""
    if config.rope_theta is None or config.tokens_mlp_dim:
        return None
    name = "rotary_positions"
    if config.rope_kind == "mixed":
        sizes = (config.num_layers, config.num_heads, config.head_width, config.rope_theta)
        return MixedRotaryPositions(*sizes, name=name)(patches)
    how = (config.rope_kind, config.rope_grid, config.rope_offset)
    return [layers.RotaryPositions(config.head_width, config.rope_theta, *how, name=name)(patches)] * config.num_layers


def _block(config, n):
    name = f"Transformer_encoderblock_{n}"
    if config.tokens_mlp_dim:
        sizes = (config.tokens_mlp_dim, config.mlp_dim, config.dropout, config.mlp_activation, config.epsilon)
        return MixerBlock(*sizes, name=name)
    kind = layers.MergingBlock if any(map(config.tokens_merged_in, range(n + 1))) else layers.TransformerBlock
    own = {field: getattr(config, field) for field in kind.fields if hasattr(config, field)}
    own["stochastic_depth"] = config.stochastic_depth_of(n)
    own["relative_grid"] = config.grid if config.relative_positions else None
    own["rope_interleaved"] = config.rope_kind != "centered"
    if kind is layers.MergingBlock:
        own["merge_tokens"] = config.tokens_merged_in(n)
    return kind(**own, name=name)


def pool(x: Any, merged: Any, config: ViTConfig) -> Any:
    """Pool the tokens for the head: a list of one vector, or of two if there is a distillation token."""

    def token(name, index=0):
        return layers.ExtractToken(index, name=name)(x)

    def mean(prefix_tokens):
        return MeanToken(prefix_tokens, name="pooling")(x, **merged)

    if config.pooling is None:
        return [x]
    if config.pooling == "token":
        pooled = [token("ExtractToken")]
    elif config.pooling == "token+dist":
        pooled = [token("ExtractToken"), token("ExtractDistillationToken", index=1)]
    elif config.pooling == "token+gap":
        join = keras.layers.Concatenate(name="token_and_mean")
        pooled = [join([token("ExtractToken"), mean(config.prefix_tokens)])]
    elif config.pooling == "map":
        sizes = config.map_heads or config.num_heads, config.map_mlp_dim or config.mlp_dim
        unseen = 0 if config.map_prefix else config.prefix_tokens
        how = (config.mlp_activation, config.epsilon, unseen)
        pooled = [layers.AttentionPooling(*sizes, *how, name="MAPHead_0")(x, **merged)]
    else:
        pooled = [mean(config.prefix_tokens if config.pooling == "gap" else 0)]
    if config.final_norm == "pooled":
        norm = _norm("fc_norm", config)
        pooled = [norm(vector) for vector in pooled]
    return pooled


def classify(pooled: Any, config: ViTConfig) -> Any:
    """Turn what was pooled into logits; without a head, return it as features."""
    if config.representation_size is not None:
        kernel = {"kernel_initializer": "lecun_normal"}
        dense = keras.layers.Dense(config.representation_size, activation="tanh", **kernel, name="pre_logits")
        pooled = [dense(pooled[0])]
    if not config.include_top:
        return _average("tokens_average", pooled)
    activation = config.activation if len(pooled) == 1 else "linear"
    options = {"activation": activation, "use_bias": config.head_bias, "kernel_initializer": "zeros"}
    with _default_dtype("float32" if keras.config.dtype_policy().compute_dtype in ("float16", "bfloat16") else None):
        heads = [
            keras.layers.Dense(config.classes, name=name, **options) for name in ("head", "head_dist")[: len(pooled)]
        ]
        x = _average("heads_average", [head(vector) for head, vector in zip(heads, pooled)])
        is_whole = len(pooled) == 1 or config.activation in (None, "linear")
        return x if is_whole else keras.layers.Activation(config.activation, name="activation")(x)


def _average(name, vectors):
    return keras.layers.Average(name=name)(vectors) if len(vectors) > 1 else vectors[0]


def _norm(name, config):
    return LayerNormalization(epsilon=config.epsilon, name=name)


@contextlib.contextmanager
def _default_dtype(dtype):
    """Make a dtype policy the one of layers that are made without `dtype`; `None` leaves the global one."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(before if dtype is None else keras.dtype_policies.get(dtype))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
