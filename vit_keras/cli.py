"""The command `vit-keras`: every sub-command is one call into the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DEFAULT_MODEL = "vit_ti16"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows `vit-keras`; `None` for the process's own.

    Returns:
        The exit status: 0, or 1 after a message about what went wrong.

    Example:
        >>> main(["predict", "no_such_file.jpg", "--weights", "no_such_file.npz"])
        1
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (OSError, TypeError, ValueError) as error:
        print(f"vit-keras: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    from . import __version__

    parser = argparse.ArgumentParser(prog="vit-keras", description="Vision Transformers for Keras.")
    parser.add_argument("--version", action="version", version=f"vit-keras {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    predict = commands.add_parser("predict", help="say what is in pictures")
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="a file or a URL")
    predict.add_argument(
        "--model",
        help=f"a factory such as vit_b16, or a saved model (.keras, .h5); default: {DEFAULT_MODEL}, or what --weights is for",
    )
    predict.add_argument("--weights", help="a published name (see `vit-keras models`), an .npz file, or a URL")
    predict.add_argument("--top", type=int, default=5, metavar="N", help="how many classes to name; default: 5")
    predict.add_argument(
        "--attention",
        type=Path,
        metavar="PNG",
        help="write the attention map here; of several pictures, to PNG-1, PNG-2 …",
    )
    predict.set_defaults(run=_predict)

    models = commands.add_parser("models", help="list the published weights")
    models.set_defaults(run=_models)
    return parser


def _predict(options: argparse.Namespace) -> None:
    import numpy as np
    from PIL import Image

    from . import utils, visualize, vit

    if options.top < 1:
        raise ValueError(f"--top must be at least 1. Received: {options.top}")
    pictures = [utils.read(image, None) for image in options.images]  # before the model: a typo should cost no wait
    model = _model(options.model, options.weights)
    if len(model.outputs) != 1 or len(model.output_shape) != 2:
        raise ValueError(f"{model.name} is no classifier: its output has the shape {model.output_shape}.")
    size, channels = model.input_shape[1:3], model.input_shape[3]
    if channels not in (1, 3):
        raise ValueError(f"{model.name} takes images of {channels} channels; a picture has 3.")
    for number, (name, picture) in enumerate(zip(options.images, pictures), start=1):
        inputs = utils.resize(picture, size)
        inputs = vit.preprocess_inputs(utils.grey(inputs) if channels == 1 else inputs)
        _print_classes(name, model.predict(inputs[None], verbose=0)[0], _gives_logits(model), options.top)
        if options.attention:
            path = options.attention
            if len(pictures) > 1:
                path = path.with_name(f"{path.stem}-{number}{path.suffix}")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(visualize.attention_map(model=model, image=picture))).save(path)
            print(f"attention map: {path}")


def _model(model: str | None, weights: str | None):
    from . import checkpoints, load_model, vit
    from .config import VARIANTS

    if model is not None and Path(model).suffix in (".keras", ".h5"):
        if weights is not None:
            raise ValueError("A saved model has its weights: leave out --weights.")
        return load_model(model, compile=False)
    variants = {config.name.replace("-", "_"): variant for variant, config in VARIANTS.items()}
    if model is None and weights is not None:
        return vit.from_checkpoint(weights)
    variant = variants.get((model or DEFAULT_MODEL).replace("-", "_"))
    if variant is None:
        raise ValueError(f"Unknown model {model}. There are: {', '.join(variants)}, or a file (.keras, .h5).")
    if weights is None:
        recommended = [c for c in checkpoints.available(variant=variant) if c.classes == 1000]
        if not recommended:
            raise ValueError(f"No ImageNet-1k weights are published for {model}: say which --weights.")
        weights = max(recommended, key=lambda c: (c.image_size == 224, c.top1 or 0)).name
    elif checkpoints.find(weights, variant):
        weights = checkpoints.find(weights, variant).name
    built = vit.from_checkpoint(weights)
    if built.name != VARIANTS[variant].name:
        raise ValueError(f"{weights} holds a {built.name}, not a {model}.")
    return built


def _gives_logits(model) -> bool:
    import keras

    return getattr(model.layers[-1], "activation", None) is keras.activations.linear


def _print_classes(name: str, scores, logits: bool, top: int) -> None:
    import numpy as np

    from .utils import get_imagenet_classes

    labels = get_imagenet_classes() if len(scores) == 1000 else [f"class {i}" for i in range(len(scores))]
    if logits:
        scores = np.exp(scores.astype("float64") - scores.max())
        scores /= scores.sum()
    print(name)
    for index in np.argsort(-scores)[:top]:
        print(f"  {scores[index]:6.1%}  {labels[index]}")


def _models(options: argparse.Namespace) -> None:
    from . import checkpoints
    from .config import VARIANTS

    columns = "{:42}{:>4}{:>8}{:>6}{:>7}{:>6}"
    print(columns.format("WEIGHTS", "PX", "CLASSES", "MB", "TOP-1", "HERE"))
    for variant in VARIANTS:
        for checkpoint in checkpoints.available(variant=variant):
            top1 = "" if checkpoint.top1 is None else f"{checkpoint.top1:.1f}"
            here = "yes" if checkpoints.is_local(checkpoint) else ""
            numbers = checkpoint.image_size, checkpoint.classes, round(checkpoint.bytes / 1e6), top1, here
            print(columns.format(checkpoint.name, *numbers))
    print(
        "\nFor --weights and vit_keras.from_checkpoint. Top-1: ImageNet-1k, in percent, as published. Licence: Apache-2.0."
    )
