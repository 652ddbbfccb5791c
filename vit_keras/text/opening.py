"""Open a text tower, or both towers of a model for images and text, from a weight file."""

from __future__ import annotations

import os
from typing import Any

from .._internal import finite
from .._internal.bounds import about
from ..checkpoints.model_weights import canonical_variables
from ..checkpoints.saved_models import is_whole_model
from ..opening import ImageSize, from_checkpoint, open_model
from .config import TextConfig
from .model import ImageText
from .published import published
from .reading import LOGITS, TextWeights
from .tokenizer import Tokenizer
from .tower import TextTransformer, build_text

__all__ = ["open_image_text", "open_text"]


def open_text(
    weights: str | os.PathLike[str],
    *,
    dtype: Any = None,
    strict: bool = True,
    key: str | None = None,
    **options: Any,
) -> TextTransformer:
    """Build the text tower in a weight file, and load its weights.

    Args:
        weights: The path of a file or of a folder from Hugging Face, a published name, or a URL. The families are
            CLIP, open_clip and SigLIP (`checkpoints.families.text`).
        dtype: Keras dtype policy; `None` for the global one.
        strict: Whether names in the file that its family does not know raise an error.
        key: Which of several state dicts in a PyTorch file.
        **options: Fields of `TextConfig` that the file does not show, such as `mlp_activation="quick_gelu"`.

    Returns:
        A `TextTransformer`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged, has no text tower of a known family, or lacks a field that must be passed.

    Example:
        >>> tower = open_text("openai/clip-vit-base-patch32")  # doctest: +SKIP
    """
    if found := published(weights, tokenizer=False):
        weights, options = found.path, {**found.fields, **options}
    return _text_tower(TextWeights(weights, strict=strict, key=key, **options), dtype)


def _text_tower(source: TextWeights, dtype: Any) -> TextTransformer:
    """Build the text tower of a file, with its weights."""
    with about(source.path):
        model = build_text(source.config, dtype=dtype)
        variables = canonical_variables(model)
        found = {name: shape for name, shape in source.shapes.items() if name not in LOGITS}
        wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
        if found != wanted:
            other = sorted({name for name, _ in found.items() ^ wanted.items()})
            name = other[0]
            raise ValueError(
                f"The text tower does not fit its configuration. {name} is {found.get(name, 'missing')}, "
                f"and would be {wanted.get(name, 'absent')}" + (f"; and {len(other) - 1} more." if other[1:] else ".")
            )
        for name in source.shapes:
            source[name]  # the whole file is read before anything is used
        for name, variable in variables.items():
            variable.assign(source[name])
        finite.check_model(source.path, model)
        return model


def open_image_text(
    weights: str | os.PathLike[str],
    *,
    tokenizer: Any = "auto",
    text: dict[str, Any] | None = None,
    image_size: ImageSize | str = "native",
    dtype: Any = None,
    strict: bool = True,
    key: str | None = None,
    **options: Any,
) -> ImageText:
    """Open both towers of a model for images and text: CLIP, open_clip, SigLIP or SigLIP 2.

    Args:
        weights: A published name such as `"openai/clip-vit-base-patch32"`, whose weights, settings and tokenizer are
            downloaded once; the path of a file or of a folder from Hugging Face; a URL; or a saved `ImageText`
            (`.keras`), which takes no other option than `tokenizer`.
        tokenizer: A `Tokenizer`, the folder of one, or `None`. `"auto"` uses the files next to the weights, and reads
            them when the first text is tokenized.
        text: Fields of `TextConfig` that the file does not show, such as `{"causal": True}`.
        image_size: See `from_checkpoint`.
        dtype: Keras dtype policy of both towers; `None` for the global one.
        strict: Whether names in the file that its family does not know raise an error.
        key: Which of several state dicts in a PyTorch file.
        **options: Options of `from_checkpoint` for the image tower. `mlp_activation` applies to both towers.

    Returns:
        An `ImageText`, with its temperature.

    Raises:
        ConnectionError: A published file could not be downloaded.
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged, a tower is of an unknown family, a field is missing that must be passed, or a
            saved model is not an `ImageText`.

    Example:
        >>> model = open_image_text("openai/clip-vit-base-patch32")  # doctest: +SKIP
    """
    if is_whole_model(weights):
        given = {} if image_size == "native" else {"image_size": image_size}
        given |= {} if strict else {"strict": strict}
        return _saved(weights, tokenizer, text=text, dtype=dtype, key=key, **given, **options)
    folder: Any = None
    origin = None
    if found := published(weights, tokenizer=tokenizer == "auto"):
        origin, weights, folder, options = str(weights), found.path, found.folder, {**found.fields, **options}
    shared = {name: options[name] for name in ("mlp_activation",) if name in options}
    source = TextWeights(weights, strict=strict, key=key, **{**shared, **(text or {})})
    if LOGITS[0] not in source.shapes:
        raise ValueError(f"{source.path} has no {LOGITS[0]}: it is a text tower alone. Open it with open_text.")
    image = from_checkpoint(weights, image_size=image_size, dtype=dtype, strict=strict, key=key, **options)
    image.origin = origin or image.origin
    if image.output_shape[-1] != (source.config.output_size or source.config.hidden_size):
        raise ValueError(
            f"{source.path}: the image tower returns {image.output_shape[-1]} features and the text tower "
            f"{source.config.output_size or source.config.hidden_size}."
        )
    scale, *bias = (float(source[name].reshape(())) for name in LOGITS if name in source.shapes)
    return ImageText(
        image,
        _text_tower(source, dtype),
        "sigmoid" if bias else "softmax",
        tokenizer=tokenizer_of(source, folder or "auto" if tokenizer == "auto" else tokenizer),
        logit_scale=scale,
        logit_bias=bias[0] if bias else None,
    )


def _saved(path: str | os.PathLike[str], tokenizer: Any, **options: Any) -> ImageText:
    """Open an `ImageText` that was saved, which has no tokenizer."""
    model = open_model(path, **options)
    if not isinstance(model, ImageText):
        raise ValueError(f"{os.fspath(path)} is not a saved ImageText, but {model.name!r}, which open_model opens.")
    config = getattr(model.text, "config", None)
    length = [config.context_length] if isinstance(config, TextConfig) else []
    if tokenizer is not None and not callable(tokenizer):
        tokenizer = Tokenizer(path if tokenizer == "auto" else tokenizer, *length)
    model.tokenizer = tokenizer
    return model


def tokenizer_of(source: TextWeights, tokenizer: Any = "auto") -> Any:
    """Return the tokenizer of a text tower; for `tokenizer` see `open_image_text`."""
    if tokenizer is None or callable(tokenizer):
        return tokenizer
    folder = source.path.parent if tokenizer == "auto" else tokenizer
    return Tokenizer(folder, source.config.context_length, open_clip=source.text_cfg)
