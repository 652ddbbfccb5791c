"""A pre-trained model by whatever name people have for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

from . import checkpoints, vit
from .config import VARIANTS
from .saving import load_model

DEFAULT_MODEL = "vit_ti16"


def open_model(
    model: str | os.PathLike[str] | None = None, weights: str | os.PathLike[str] | None = None, **options: Any
) -> keras.Model:
    """Open a model with its weights.

    Args:
        model: A factory such as `"vit_b16"`, a published name such as `"vit_cifar10"`, or a saved model (`.keras`, `.h5`). `None`:
            what `weights` are for, or without these `DEFAULT_MODEL`.
        weights: A published name, a file or a URL (see `vit_keras.from_checkpoint`). `None`: of a factory, the recommended
            ImageNet-1k weights.
        **options: Of `vit_keras.from_checkpoint`.

    Returns:
        The model.

    Raises:
        FileNotFoundError: There is no such file.
        ConnectionError: The weights are to be fetched and their server could not be reached.
        ValueError: There is no such model, the weights are not for it, or an option does not fit.

    Example:
        >>> open_model("vit_b16", image_size=384)  # doctest: +SKIP
    """
    if is_saved_model(model):
        if weights is not None or options:
            raise ValueError(f"{model} is a whole model: it takes no weights and no options. Received: {[*options]}")
        return load_model(model, compile=False)
    if model is None and weights is not None:
        return vit.from_checkpoint(weights, **options)
    if weights is None and checkpoints.find(str(model)):
        return vit.from_checkpoint(str(model), **options)
    variants = {config.name.replace("-", "_"): variant for variant, config in VARIANTS.items()}
    variant = variants.get(str(model or DEFAULT_MODEL).replace("-", "_"))
    if variant is None:
        known = ", ".join((*variants, "vit_cifar10"))
        raise ValueError(f"Unknown model {model}. There are: {known}, published names, or a file (.keras, .h5).")
    if weights is None:
        recommended = [c for c in checkpoints.available(variant=variant) if c.classes == 1000]
        if not recommended:
            raise ValueError(f"No ImageNet-1k weights are published for {model}: say which weights (--weights).")
        weights = max(recommended, key=lambda c: (c.image_size == 224, c.top1 or 0)).name
    elif found := checkpoints.find(os.fspath(weights), variant):
        weights = found.name
    opened = vit.from_checkpoint(weights, **options)
    if opened.name != VARIANTS[variant].name:
        raise ValueError(f"{weights} holds a {opened.name}, not a {model}.")
    return opened


def is_saved_model(model: Any) -> bool:
    """Whether a name is the path of a whole model.

    Example:
        >>> is_saved_model("cats.keras"), is_saved_model("vit_b16"), is_saved_model(None)
        (True, False, False)
    """
    return isinstance(model, (str, os.PathLike)) and Path(model).suffix in (".keras", ".h5")
