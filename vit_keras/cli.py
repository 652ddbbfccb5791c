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
    except (ConnectionError, FileNotFoundError, TypeError, ValueError) as error:
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
        help="write the attention map here; with several pictures, one file each",
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
    if len(model.output_shape) != 2:
        raise ValueError(f"{model.name} is no classifier: its output has the shape {model.output_shape}.")
    for name, picture in zip(options.images, pictures):
        inputs = vit.preprocess_inputs(utils.resize(picture, model.input_shape[1:3]))
        scores = model.predict(inputs[None], verbose=0)[0].astype("float64")
        _print_classes(name, scores, options.top)
        if options.attention:
            path = options.attention
            if len(pictures) > 1:
                path = path.with_name(f"{path.stem}-{Path(name).stem}{path.suffix}")
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


def _print_classes(name: str, scores, top: int) -> None:
    import numpy as np
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from .utils import get_imagenet_classes

    labels = get_imagenet_classes() if len(scores) == 1000 else [f"class {i}" for i in range(len(scores))]
    if scores.min() < 0 or abs(scores.sum() - 1) > 1e-2:  # logits
        scores = np.exp(scores - scores.max())
        scores /= scores.sum()
    table = Table(box=box.SIMPLE, show_header=False)
    for index in np.argsort(-scores)[:top]:
        table.add_row(f"{scores[index]:6.1%}", labels[index])
    print(name)
    Console().print(table)


def _models(options: argparse.Namespace) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from . import checkpoints
    from .config import VARIANTS

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("weights", no_wrap=True)
    for heading in ("px", "classes", "MB", "top-1", "here"):
        table.add_column(heading, justify="right", no_wrap=True)
    for variant in VARIANTS:
        for checkpoint in checkpoints.available(variant=variant):
            table.add_row(
                checkpoint.name,
                str(checkpoint.image_size),
                str(checkpoint.classes),
                f"{checkpoint.bytes / 1e6:.0f}",
                "" if checkpoint.top1 is None else f"{checkpoint.top1:.1f}",
                "yes" if checkpoints.is_local(checkpoint) else "",
            )
    console = Console()
    console.print(table)
    console.print(
        "For --weights and vit_keras.from_checkpoint. Top-1 on ImageNet-1k in percent, as published. Licence: Apache-2.0.",
        highlight=False,
    )
