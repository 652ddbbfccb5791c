"""Pre-training on images without labels: a ViT learns to predict masked patches, and its head stays as it was."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from .._internal.validate import is_number
from ..anatomy.parts import blocks, final_norm, find_vit
from ..backend import replicas
from ..backend.guarded import CheckedModel
from ..layers import TransformerBlock
from ..positions import sincos2d

__all__ = ["MaskedAutoencoder", "MaskedPatchPrediction", "patchify"]


class _MaskedPretraining(CheckedModel):
    """An encoder, random numbers, and a loss on the patches that are `"masked"`, `(batch, patches)`, in the outputs."""

    def __init__(self, encoder: Any, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        vit = _trainable_on_patches(encoder)
        self.autocast, self.dtype_policy = False, vit.get_layer("embedding").dtype_policy  # by which losses are scaled
        # Not tracked by Keras: the head is not trained here, so it must have neither weight decay nor a warning that
        # it has no gradient.
        object.__setattr__(self, "encoder", vit)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def learner(self) -> keras.Model:
        """Return the encoder."""
        return self.encoder

    def _add_mask_token(self, width):
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.mask_token = self.add_weight(shape=(width,), initializer=normal, name="mask_token")

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool | None = True
    ) -> Any:
        """Return the mean loss of the masked patches. Labels are ignored."""
        losses = self.patch_losses(ops.cast(x, "float32"), y_pred)  # `(batch, patches)`
        masked = ops.cast(y_pred["masked"], losses.dtype)
        count = ops.maximum(ops.sum(masked), 1)
        if sample_weight is not None:
            masked = masked * ops.reshape(ops.cast(sample_weight, losses.dtype), (-1, 1))
        return replicas.share(ops.sum(losses * masked) / count + sum(self.losses))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return self.get_metrics_result()

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        store["seed"] = self.seed_generator.state  # Keras leaves it out, and a resumed run must mask the same patches

    def load_own_variables(self, store: Any) -> None:
        self.mask_token.assign(store["0"])
        self.seed_generator.state.assign(store["seed"])

    def get_config(self) -> dict[str, Any]:
        own = {"encoder": keras.saving.serialize_keras_object(self.encoder), "seed": self.seed}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects)
        return cls(**{**config, "encoder": encoder})


@keras.saving.register_keras_serializable("vit_keras")
class MaskedPatchPrediction(_MaskedPretraining):
    """The paper's self-supervision (arXiv 2010.11929, appendix B.1.2): predict the mean colors of corrupted patches.

    Each patch is corrupted with a probability of one half. The embeddings of 80 % of these are replaced by a learned
    one, those of 10 % by one of another patch of the batch, and those of 10 % are kept. A dense layer on the last
    tokens predicts the mean color of a patch in 3 bits a channel, as one of 512 classes. The paper trains with Adam and
    a rate of 2e-4.

    Args:
        encoder: The Vision Transformer to train, or a model with one inside. It determines how images are preprocessed.
        corrupt: Fraction of the patches that are corrupted. Only these have a loss.
        bits: Bits of the mean of a channel.
        seed: Seed of the corruption; `None` for another one each time.

    Input shape:
        As the encoder's.

    Output shape:
        A dictionary: `"colors"`, logits `(batch, patches, 2 ** (bits * channels))`, and `"masked"`, booleans
        `(batch, patches)`: whether a patch was corrupted.

    Raises:
        ValueError: The encoder cannot be trained like this (a hybrid, images of any size, patch dropout), or an
            argument is out of range.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pretraining = MaskedPatchPrediction(model)
        >>> tuple(pretraining(np.zeros((4, 32, 32, 3), "float32"))["colors"].shape)
        (4, 16, 512)
    """

    def __init__(
        self,
        encoder: Any,
        corrupt: float = 0.5,
        bits: int = 3,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(encoder, seed, **kwargs)
        config = self.encoder.config
        _check_part("corrupt", corrupt)
        if not isinstance(bits, int) or not 1 <= bits * config.channels <= 16:
            raise ValueError(
                f"bits must be an integer of at least 1, with at most 16 for all {config.channels} channels. "
                f"Received: {bits!r}"
            )
        self.corrupt, self.bits = corrupt, bits
        patches = next(layer for layer in self.encoder.layers if isinstance(layer, keras.layers.Reshape)).input
        self._embed = keras.Model(self.encoder.input, patches)
        self._mix = keras.Model(patches, _blocks_and_norm(self.encoder)[-1].output)
        self._add_mask_token(config.hidden_size)
        self.colors = keras.layers.Dense(2 ** (bits * config.channels), name="colors", dtype="float32")
        self.colors.build((None, config.hidden_size))
        self.built = True

    def call(self, images: Any, training: bool | None = None) -> Any:
        patches = self._embed(images, training=training)
        fate = keras.random.uniform(ops.shape(patches)[:-1], seed=self.seed_generator)
        tokens = self._mix(self._corrupted(patches, fate[..., None]), training=training)
        return {
            "colors": self.colors(tokens[:, self.encoder.config.prefix_tokens :]),
            "masked": ops.reshape(fate < self.corrupt, (-1, math.prod(self.encoder.config.grid))),
        }

    def _corrupted(self, patches, fate):
        rows = ops.reshape(patches, (-1, patches.shape[-1]))
        order = ops.argsort(keras.random.uniform(ops.shape(rows)[:1], seed=self.seed_generator))
        others = ops.reshape(ops.take(rows, order, axis=0), ops.shape(patches))
        replaced = ops.where(fate < self.corrupt * 0.9, others, patches)
        return ops.where(fate < self.corrupt * 0.8, ops.cast(self.mask_token, patches.dtype), replaced)

    def patch_classes(self, images: Any) -> Any:
        """Return the class of each patch's mean color, `(batch, patches)`, in which blue changes fastest."""
        config, preprocessing, levels = self.encoder.config, self.encoder.preprocessing, 2**self.bits
        pixels = patchify(images, config.patch_size)
        pixels = ops.reshape(pixels, (-1, pixels.shape[1], math.prod(config.patch_size), config.channels))
        std, mean = (ops.convert_to_tensor(x, "float32") for x in (preprocessing.std, preprocessing.mean))
        places = ops.floor((ops.mean(pixels, axis=2) * std + mean) * levels)
        weights = ops.convert_to_tensor([levels**n for n in reversed(range(config.channels))], "float32")
        return ops.cast(ops.sum(ops.clip(places, 0, levels - 1) * weights, axis=-1), "int32")

    def patch_losses(self, images: Any, outputs: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(
            self.patch_classes(images), outputs["colors"], from_logits=True
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "corrupt": self.corrupt, "bits": self.bits}


@keras.saving.register_keras_serializable("vit_keras")
class MaskedAutoencoder(_MaskedPretraining):
    """Masked autoencoder (arXiv 2111.06377): encode a quarter of the patches, reconstruct the others.

    The encoder sees only the patches that are not masked, which makes it fast. A light decoder, which is discarded
    afterwards, takes its tokens, with a learned token in every masked place, and predicts the pixels there.
    Reference: facebookresearch/mae, `models_mae.py`, which trains with AdamW, betas (0.9, 0.95), weight decay 0.05, and
    a rate of 1.5e-4 for every 256 images of a batch.

    Args:
        encoder: The Vision Transformer to train, or a model with one inside. It determines how images are preprocessed.
        mask_ratio: Fraction of the patches that the encoder does not see.
        decoder_depth: Blocks of the decoder.
        decoder_width: Hidden size of the decoder.
        decoder_heads: Attention heads of the decoder.
        norm_pixels: Whether the pixels of each patch are normalized before they are compared with the prediction.
        seed: Seed of the masking; `None` for another one each time.

    Input shape:
        As the encoder's.

    Output shape:
        A dictionary: `"pixels"`, `(batch, patches, height * width * channels of a patch)`, and `"masked"`, booleans
        `(batch, patches)`.

    Raises:
        ValueError: The encoder cannot be trained like this (a hybrid, images of any size, patch dropout, a Mixer,
            rotary or relative positions, which need the whole grid), or an argument is out of range.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pretraining = MaskedAutoencoder(model, decoder_depth=1, decoder_width=32, decoder_heads=2)
        >>> tuple(pretraining(np.zeros((4, 32, 32, 3), "float32"))["pixels"].shape)
        (4, 16, 192)
    """

    def __init__(
        self,
        encoder: Any,
        mask_ratio: float = 0.75,
        decoder_depth: int = 8,
        decoder_width: int = 512,
        decoder_heads: int = 16,
        norm_pixels: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(encoder, seed, **kwargs)
        config = self.encoder.config
        for field in ("rope_theta", "relative_positions", "tokens_mlp_dim"):
            if getattr(config, field):
                raise ValueError(
                    f"A masked autoencoder leaves patches out, which {self.encoder.name!r} does not allow: with "
                    f"{field}, its weights or positions are for the whole grid. MaskedPatchPrediction leaves none out."
                )
        _check_part("mask_ratio", mask_ratio)
        patches = math.prod(config.grid)
        self._visible = int(patches * (1 - mask_ratio))
        if not 0 < self._visible < patches:
            raise ValueError(f"mask_ratio={mask_ratio} leaves {self._visible} of {patches} patches visible.")
        if decoder_width % decoder_heads or decoder_width % 4 or decoder_width < 8:
            raise ValueError(
                f"decoder_width must be at least 8, divisible by decoder_heads and by 4. Received: {decoder_width}, "
                f"decoder_heads={decoder_heads}"
            )
        self.mask_ratio, self.norm_pixels = mask_ratio, norm_pixels
        self.decoder_depth, self.decoder_width, self.decoder_heads = decoder_depth, decoder_width, decoder_heads
        self._encode = _blocks_and_norm(self.encoder)
        self._embed = keras.Model(self.encoder.input, self._encode[0].input)
        policy, width = self.encoder.get_layer("embedding").dtype_policy, decoder_width
        self._add_mask_token(width)
        self.decoder_embed = keras.layers.Dense(width, name="decoder_embed", dtype=policy)
        self.decoder_blocks = [
            TransformerBlock(
                decoder_heads,
                4 * width,
                mlp_activation=config.mlp_activation,
                epsilon=config.epsilon,
                name=f"decoderblock_{n}",
                dtype=policy,
            )
            for n in range(decoder_depth)
        ]
        self.decoder_norm = keras.layers.LayerNormalization(epsilon=config.epsilon, name="decoder_norm", dtype=policy)
        pixels = math.prod(config.patch_size) * config.channels
        self.decoder_pixels = keras.layers.Dense(pixels, name="decoder_pixels", dtype="float32")
        self.decoder_embed.build((None, None, config.hidden_size))
        for layer in (*self.decoder_blocks, self.decoder_norm, self.decoder_pixels):
            layer.build((None, None, width))
        self.built = True

    def call(self, images: Any, training: bool | None = None) -> Any:
        prefix_tokens = self.encoder.config.prefix_tokens
        tokens = self._embed(images, training=training)
        prefix, patches = tokens[:, :prefix_tokens], tokens[:, prefix_tokens:]
        order = self.draw_order(ops.shape(patches)[0])
        x = ops.concatenate([prefix, _pick(patches, order[:, : self._visible])], axis=1)
        for layer in self._encode:
            x = layer(x)
        places = ops.argsort(order, axis=1)
        return {"pixels": self._decode(x, places)[:, prefix_tokens:], "masked": places >= self._visible}

    def draw_order(self, batch: int) -> Any:
        """Return the patches of each image in random order, `(batch, patches)`. The encoder sees the first of them."""
        noise = keras.random.uniform((batch, math.prod(self.encoder.config.grid)), seed=self.seed_generator)
        return ops.argsort(noise, axis=1)

    def _decode(self, tokens, places):
        """Return the pixels of all tokens, from the visible tokens and the place of each patch in their order."""
        grid, prefix_tokens = self.encoder.config.grid, self.encoder.config.prefix_tokens
        x = self.decoder_embed(tokens)
        shape = ops.shape(x)[0], math.prod(grid) - self._visible, self.decoder_width
        hidden = ops.broadcast_to(ops.cast(self.mask_token, x.dtype), shape)
        patches = _pick(ops.concatenate([x[:, prefix_tokens:], hidden], axis=1), places)
        # The reference divides j by width / 4 in the exponent of a frequency, where `sincos2d` divides by one less.
        positions = sincos2d(grid, self.decoder_width, 10000 ** (1 - 4 / self.decoder_width))
        x = ops.concatenate([x[:, :prefix_tokens], patches + ops.cast(positions, x.dtype)], axis=1)
        for layer in (*self.decoder_blocks, self.decoder_norm, self.decoder_pixels):
            x = layer(x)
        return x

    def patch_losses(self, images: Any, outputs: Any) -> Any:
        pixels = patchify(images, self.encoder.config.patch_size)
        if self.norm_pixels:
            count = pixels.shape[-1]
            variance = ops.var(pixels, axis=-1, keepdims=True) * (count / (count - 1))
            pixels = (pixels - ops.mean(pixels, axis=-1, keepdims=True)) / ops.sqrt(variance + 1e-6)
        return ops.mean(ops.square(outputs["pixels"] - pixels), axis=-1)

    def get_config(self) -> dict[str, Any]:
        fields = ("mask_ratio", "decoder_depth", "decoder_width", "decoder_heads", "norm_pixels")
        return {**super().get_config(), **{field: getattr(self, field) for field in fields}}


def patchify(images: Any, patch_size: tuple[int, int]) -> Any:
    """Return the pixels of each whole patch, row by row, `(batch, patches, height * width * channels of a patch)`."""
    (height, width), channels = patch_size, images.shape[-1]
    down, across = images.shape[1] // height, images.shape[2] // width
    x = images[:, : down * height, : across * width]
    x = ops.transpose(ops.reshape(x, (-1, down, height, across, width, channels)), (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, down * across, height * width * channels))


def _pick(tokens, order):
    """Return tokens `(batch, tokens, width)` in the order `(batch, picked)`."""
    batch, count, width = ops.shape(tokens)[0], tokens.shape[1], tokens.shape[2]
    rows = ops.cast(order, "int32") + count * ops.arange(batch, dtype="int32")[:, None]
    picked = ops.take(ops.reshape(tokens, (-1, width)), ops.reshape(rows, (-1,)), axis=0)
    return ops.reshape(picked, (-1, order.shape[1], width))


def _blocks_and_norm(vit: keras.Model) -> list[keras.layers.Layer]:
    return [*blocks(vit), *filter(None, [final_norm(vit)])]


def _trainable_on_patches(model: keras.Model) -> keras.Model:
    """Return the Vision Transformer in a model, or raise a `ValueError` if patches cannot be masked in it."""
    vit = find_vit(model)
    config = getattr(vit, "config", None)
    if config is None:
        raise ValueError(
            f"The model {vit.name!r} has no configuration. Build it with vit_keras.vit, or save and load the original "
            "instead of cloning it."
        )
    obstacles = {
        "takes images of any size (vit_keras.resize makes a model of one size)": config.image_size is None,
        "is a hybrid, whose ResNet sees parts of masked patches": config.resnet is not None,
        "drops patches itself (build it with patch_dropout=0)": config.patch_dropout > 0,
        "merges tokens (vit_keras.merge_tokens(model, 0) makes one that does not)": config.merge_tokens != 0,
    }
    for obstacle, there in obstacles.items():
        if there:
            raise ValueError(f"The model {vit.name!r} cannot learn from masked patches: it {obstacle}.")
    return vit


def _check_part(argument: str, value: Any) -> None:
    if not (is_number(value) and 0 < value <= 1):
        raise ValueError(f"{argument} must be a fraction of the patches, above 0 and at most 1. Received: {value!r}")
