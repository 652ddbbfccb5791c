"""The command `vit-keras`: every sub-command is one call into the package."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


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
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    options.command = shlex.join(["vit-keras", *arguments])
    try:
        with _warnings_in_one_line():
            return options.run(options) or 0
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (ImportError, OSError, TypeError, ValueError) as error:
        _complain(error)
        return 1


def _complain(problem: Any) -> None:
    print("vit-keras:", _printable(" ".join(str(problem).split())), file=sys.stderr)


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings():
        as_python_does = warnings.showwarning

        def show(message, category, *place):
            if category is UserWarning:
                _complain(f"warning: {message}")
            else:
                as_python_does(message, category, *place)

        warnings.showwarning = show
        yield


# --- the commands and their options -----------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    from . import __version__
    from .visualize import METHODS

    parser = argparse.ArgumentParser(prog="vit-keras", description="Vision Transformers for Keras.")
    parser.add_argument("--version", action="version", version=f"vit-keras {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        added.set_defaults(run=run)
        return added

    predict = command("predict", _predict, "say what is in pictures")
    _add_pictures(predict)
    predict.add_argument("--top", type=int, default=5, metavar="N", help="how many classes to name; default: 5")
    predict.add_argument(
        "--attention",
        type=Path,
        metavar="PNG",
        help="write the attention map here; of several pictures, to PNG-1, PNG-2 …",
    )
    _add_reading(predict)

    attention = command("attention", _attention, "draw what a model looks at in pictures")
    _add_pictures(attention)
    attention.add_argument(
        "--method", choices=[*METHODS], help="default: rollout, or with --class relevance; the last six are of a class"
    )
    _add_class(attention, "which class a map is for; default: the predicted one, where a method is of a class")
    attention.add_argument(
        "--style",
        choices=("overlay", "paper", "vit_keras"),
        help="colour over the picture (the default), the picture coming out of the dark, or as vit-keras 0.x drew",
    )
    attention.add_argument(
        "--grid", action="store_true", help="one figure of all methods side by side, a row for each of several pictures"
    )
    _add_output(attention, "out.png", "the picture; of several, out-1.png, out-2.png …")
    _add_reading(attention)

    explore = command("explore", _explore, "make an interactive page of what a model looks at, in one HTML file")
    _add_pictures(explore)
    _add_class(explore, "which class a map of relevance is for; default: the predicted one")
    explore.add_argument(
        "--max-mb", type=float, default=6.0, metavar="MB", help="largest size; what is over it is reduced; default: 6"
    )
    _add_output(explore, "out.html", "the page")
    _add_reading(explore)

    finetune = command("finetune", _finetune, "fine-tune a model on a folder of pictures, and write a report")
    finetune.add_argument("folder", metavar="DIR", help="the pictures: DIR/class/picture.jpg")
    _add_model(finetune)
    finetune.add_argument(
        "--out", type=Path, default="finetuned", metavar="DIR", help="for the results; default: finetuned"
    )
    finetune.add_argument(
        "--recipe", default="finetune", help="how to train, such as lp_ft, lora or vit; default: finetune"
    )
    finetune.add_argument("--epochs", type=int, metavar="N", help="default: what the recipe suggests")
    finetune.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="train fewer epochs if it took longer; default: 12, or with --epochs no limit",
    )
    finetune.add_argument(
        "--image-size",
        type=_image_size,
        metavar="N|HxW",
        help="pixels, or `native`: the model's own; default: these, or fewer where the pictures are smaller",
    )
    finetune.add_argument("--batch-size", type=int, default=32, metavar="N", help="pictures in a step; default: 32")
    finetune.add_argument("--held-out", type=float, default=0.2, metavar="SHARE", help="to measure on; default: 0.2")
    finetune.add_argument("--balance", action="store_true", help="let all classes weigh the same")
    finetune.add_argument("--seed", type=int, default=0, metavar="N", help="of the split, the order, the augmentation")
    finetune.add_argument("--overwrite", action="store_true", help="begin anew where --out has another run")
    _add_errors(finetune)
    _add_reading(finetune, "or of its recipe or augmentation, such as learning_rate=1e-4 or flip=false")

    evaluate = command("evaluate", _evaluate, "measure a model on a folder of pictures")
    evaluate.add_argument("model", metavar="MODEL", help="a saved model (.keras, .h5), or a published name")
    evaluate.add_argument("folder", metavar="DIR", help="the pictures: DIR/class/picture.jpg")
    evaluate.add_argument(
        "--only", type=Path, metavar="SPLIT", help="only those held out, as split.json of `finetune` says"
    )
    evaluate.add_argument("--report", type=Path, metavar="HTML", help="write a page with the mistakes and their maps")
    _add_errors(evaluate)
    _add_json(evaluate)

    embed = command("embed", _embed, "write what a model sees in pictures: one vector for each")
    embed.add_argument("images", nargs="+", metavar="DIR|IMAGE", help="a folder of pictures, or pictures")
    _add_model(embed)
    _add_output(embed, "features.parquet", ".parquet, .npz or .npy")
    embed.add_argument("--layer", help="whose output is wanted, or `tokens`; default: what the head sees")
    embed.add_argument("--batch-size", type=int, default=32, metavar="N", help="pictures at once; default: 32")
    _add_errors(embed)
    _add_reading(embed)

    inspect = command("inspect", _inspect, "say what a file of weights is, without reading its values")
    inspect.add_argument(
        "file", metavar="FILE", help="a file, a folder as Hugging Face makes them, or a published name"
    )
    inspect.add_argument("--names", action="store_true", help="list all arrays, and what each becomes in a model")
    _add_json(inspect)
    _add_reading(inspect, settings=False)

    convert = command("convert", _convert, "make of a file of weights one of another kind")
    convert.add_argument("source", metavar="IN", help="a file of weights, a published name, or a URL")
    convert.add_argument(
        "target",
        type=Path,
        metavar="OUT",
        help=".keras (a whole model), .weights.h5, .npz (as Google's) or .safetensors (as timm's)",
    )
    convert.add_argument("--format", help="whose names OUT gets: google, timm, huggingface, or a family of `inspect`")
    convert.add_argument(
        "--image-size",
        type=_image_size,
        default="native",
        metavar="N|HxW",
        help="pixels that the model is for, or `any`; default: those of IN",
    )
    _add_reading(convert)

    download = command("download", _download, "fetch published weights")
    download.add_argument(
        "names", nargs="+", metavar="NAME", help="a published name, a pattern such as 'Ti_16/*', or a URL"
    )
    download.add_argument("--dry-run", action="store_true", help="only say what would be fetched")

    models = command("models", _models, "list the published weights")
    models.add_argument("pattern", nargs="?", metavar="PATTERN", help="part of the name, or with * for anything")
    models.add_argument("--family", help="names and layout of the weights, such as timm")
    models.add_argument("--source", help="who publishes them, such as facebook")
    models.add_argument("--classes", type=int, metavar="N", help="outputs of the head")
    models.add_argument("--image-size", type=int, metavar="N", help="pixels")
    models.add_argument("--licence", help="such as MIT")
    models.add_argument("--all", action="store_true", help="not only our own and the files of Google's papers")
    _add_json(models)
    return parser


def _add_pictures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="a file or a URL")
    _add_model(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    from .pretrained import DEFAULT_MODEL

    parser.add_argument(
        "--model",
        help=f"a factory such as vit_b16, or a saved model (.keras, .h5); default: {DEFAULT_MODEL}, or what --weights is for",
    )
    parser.add_argument("--weights", help="a published name (see `vit-keras models`), a file of weights, or a URL")


def _add_class(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument(
        "--class", dest="target", metavar="CLASS", help=f"{help}: a number, a name such as tabby, or predicted"
    )


def _add_output(parser: argparse.ArgumentParser, name: str, help: str) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar=name, help=help)


def _add_errors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--errors", choices=("skip", "raise"), default="skip", help="whether damaged pictures are left out or refused"
    )


def _add_reading(parser: argparse.ArgumentParser, more: str = "", settings: bool = True) -> None:
    parser.add_argument("--family", help="of the file, where its names do not tell")
    parser.add_argument("--key", help="which of several state dicts in a PyTorch file, such as model_ema")
    if settings:
        parser.add_argument(
            "--set",
            action="append",
            type=_setting,
            default=[],
            metavar="NAME=VALUE",
            help="what the file does not tell, or what is to be changed, such as num_heads=6 (a field of ViTConfig)"
            + (more and f", {more}"),
        )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it for programs")


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"say NAME=VALUE, such as num_heads=3, not {text!r}")
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return name, parse(value.strip())
    return name, value


def _image_size(text: str) -> tuple[int, int] | str | None:
    if text in ("any", "native"):
        return None if text == "any" else text
    found = re.fullmatch(r"([1-9]\d{0,5})(?:[x×]([1-9]\d{0,5}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"say N for a square, HxW, or any, not {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _reading(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `from_checkpoint`."""
    settings = dict(options.set)
    for name in ("family", "key", "image_size"):
        if name in vars(options):
            if name in settings:
                raise ValueError(f"Say --{name.replace('_', '-')}, not --set {name}=…")
            settings[name] = getattr(options, name)
    return settings


# --- predict ----------------------------------------------------------------------------------------------------


def _predict(options: argparse.Namespace) -> None:
    from . import visualize

    if options.top < 1:
        raise ValueError(f"--top must be at least 1. Received: {options.top}")
    pictures = _pictures(options.images)
    model = _model(options.model, options.weights, _reading(options))
    for number, (name, picture) in enumerate(zip(options.images, pictures), start=1):
        scores = _classify(model, picture)
        _print_classes(name, scores, _labels(model, len(scores)), options.top)
        if options.attention:
            path = _numbered(options.attention, number, len(pictures))
            _save_picture(visualize.attention_map(model=model, image=picture), path)
            print(f"attention map: {path}")


def _pictures(images: Sequence[str]) -> list:
    """What is to be looked at, read before a model is: a typo should cost no wait."""
    from . import utils

    return [utils.read(image, None) for image in images]


def _numbered(path: Path, number: int, count: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}") if count > 1 else path


def _save_picture(pixels: Any, path: Path) -> None:
    from PIL import Image

    with _complete(path) as part:
        Image.fromarray(pixels).save(part)


@contextlib.contextmanager
def _complete(target: Path) -> Iterator[Path]:
    """`files.complete` in a folder that is made if need be."""
    from .atomic import complete

    target.parent.mkdir(parents=True, exist_ok=True)
    with complete(target) as part:
        yield part


def _model(model: str | None, weights: str | None, reading: dict[str, Any]):
    from .pretrained import is_saved_model, open_model

    if not is_saved_model(model):
        return open_model(model, weights, **reading)
    if weights is not None:
        raise ValueError("A saved model has its weights: leave out --weights.")
    if any(value is not None for value in reading.values()):
        raise ValueError("A saved model is what it is: leave out --set, --family and --key.")
    return open_model(model)


def _classify(model, picture):
    """Return the probabilities of the classes of one picture."""
    from . import anatomy

    inputs = anatomy.preprocessing_of(model)(picture)
    return anatomy.probabilities(model, model.predict(inputs, verbose=0))[0]


def _labels(model, count: int) -> Sequence[str]:
    from .labels import class_names

    return class_names(model) or [f"class {index}" for index in range(count)]


def _print_classes(name: str, scores, labels: Sequence[str], top: int) -> None:
    print(_printable(name))
    for index in (-scores).argsort()[:top]:
        _print_class(scores, labels, index)


def _print_class(scores, labels: Sequence[str], index: int) -> None:
    print(f"  {scores[index]:6.1%}  {_printable(labels[index])}")


# --- attention and explore --------------------------------------------------------------------------------------


def _attention(options: argparse.Namespace) -> None:
    from . import visualize

    output = options.output.expanduser()
    _check_attention(options, output)
    pictures = _pictures(options.images)
    paths = [output if options.grid else _numbered(output, n, len(pictures)) for n in range(1, len(pictures) + 1)]
    _check_output(paths, options.images)
    model = _model(options.model, options.weights, _reading(options))
    method = options.method or ("rollout" if options.target is None else "relevance")
    if options.grid:
        _print_grid(model, pictures, options, output)
        return
    for name, picture, path in zip(options.images, pictures, paths):
        target = _target(model, options.target)
        if method in visualize.OF_A_CLASS:
            target = _print_target(model, name, picture, target)
        else:
            print(_printable(name))
        style = options.style or "overlay"
        _save_picture(visualize.attention_map(model, picture, method=method, target=target, style=style), path)
        print(f"{method}: {path}")


def _check_attention(options: argparse.Namespace, output: Path) -> None:
    """Wrong wishes should not cost the reading of a model."""
    from PIL import Image

    from . import visualize

    if options.grid:
        for wish in ("method", "style"):
            if getattr(options, wish) is not None:
                raise ValueError(f"--grid draws all methods, as overlays: leave out --{wish}.")
        known = [f".{ending}" for ending in visualize.new_figure(1, 1).canvas.get_supported_filetypes()]
    else:
        known = [ending for ending, kind in Image.registered_extensions().items() if kind in Image.SAVE]
    if output.suffix.lower() not in known:
        raise ValueError(f"-o ends in .png, or in another extension of pictures. Received: {output}")


def _check_output(paths: Sequence[Path], images: Sequence[str]) -> None:
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{path} is a folder: name the file in it.")
        for image in images:
            _check_target(path, Path(image).expanduser())


def _target(model, name: str | None) -> int | str | None:
    """Return the number of the class that --class names; "predicted" and `None` stay."""
    from . import anatomy
    from .labels import class_names
    from .visualize.record import class_named

    if name in (None, "predicted"):
        return name
    if not name.isdecimal():
        return class_named(name, class_names(model))
    if lack := anatomy.lack_of_classes(model):
        raise ValueError(f"The model {model.name!r} has no classes to choose from: {lack}.")
    if int(name) >= model.output_shape[-1]:
        raise ValueError(f"The model has the classes 0 to {model.output_shape[-1] - 1}. Received: --class {name}")
    return int(name)


def _print_target(model, name: str, picture, target: int | str | None) -> int:
    """Say which class of a picture is explained; without a wish it is the predicted one."""
    scores = _classify(model, picture)
    number = int(scores.argmax()) if target in (None, "predicted") else target
    print(_printable(name))
    _print_class(scores, _labels(model, len(scores)), number)
    return number


def _print_grid(model, pictures: Sequence, options: argparse.Namespace, path: Path) -> None:
    """One figure of all methods, of several pictures in a row for each."""
    from . import anatomy, visualize

    rows = []
    for name, picture in zip(options.images, pictures):
        title, target = Path(name).name, _target(model, options.target)
        if target is None and anatomy.lack_of_classes(model):
            print(_printable(name))
        else:
            target = _print_target(model, name, picture, target)
            title = f"{title}: {_labels(model, model.output_shape[-1])[target]}"
        title = title.replace("$", r"\$")  # or Matplotlib reads it as a formula
        rows.append((title, picture, _maps(model, picture, target)))
    if len(rows) == 1:
        ((title, picture, maps),) = rows
        figure = visualize.plot_maps(maps, picture)
        figure.suptitle(title, size=11)
    else:
        width = 1.6  # inches of a map
        heights = [width * len(picture) / picture.shape[1] + 0.8 for _, picture, _ in rows]
        figure = visualize.new_figure(width * (len(rows[0][2]) + 1), sum(heights))
        axes = figure.subplots(len(rows), 1, height_ratios=heights)
        for ax, (title, picture, maps) in zip(axes, rows):
            visualize.plot_maps(maps, picture, ax, columns=len(maps) + 1)
            ax.set_title(title, loc="left", size=9)
    with _complete(path) as part:
        figure.savefig(part, dpi=200)
    print(f"{len(rows[0][2])} methods: {path}")


def _maps(model, picture, target: int | None) -> dict:
    """A map by each method, of only two passes through the model; without a target by those that are of no class."""
    from . import visualize

    whole = visualize.record(model, picture, target=target, keep=("attention", "values", "tokens", "normed"))
    if target is not None:
        exits = visualize.record(model, picture, target=target, keep=("attention",), exits=True)
    return {
        name: make(exits if needs.get("exits") else whole)[0]
        for name, (needs, make) in visualize.METHODS.items()
        if target is not None or name not in visualize.OF_A_CLASS
    }


def _explore(options: argparse.Namespace) -> None:
    from .checkpoints.inspect import megabytes
    from .visualize.explorer import explorer

    output = options.output.expanduser()
    if output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"-o ends in .html. Received: {output}")
    _check_output([output], options.images)
    _pictures(options.images)
    model = _model(options.model, options.weights, _reading(options))
    target = "auto" if options.target is None else _target(model, options.target)
    page = explorer(model, options.images, target=target, max_mb=options.max_mb)
    with _complete(output) as part:
        page.save(part)
    print(f"{output}, {megabytes(output.stat().st_size)}")
    for note in page.notes:
        print(f"  {_printable(note)}")


# --- training ---------------------------------------------------------------------------------------------------


def _finetune(options: argparse.Namespace) -> None:
    from .training.augment import Augmentation
    from .training.finetuning import finetune
    from .training.recipes import recipe

    said = dict(options.set)
    reading = {name: value for name, value in _reading(options).items() if value is not None or name in said}
    known = recipe(options.recipe)
    augmentation = known.augmentation or Augmentation(crop=None, flip=False)
    changes = {name: reading.pop(name) for name in said if name in known.to_dict()}
    augmented = {name: reading.pop(name) for name in said if name in augmentation.to_dict()}
    if augmented:
        changes["augmentation"] = augmentation.replace(**augmented)
    finetune(
        options.folder,
        model=options.model,
        weights=options.weights,
        recipe=known.replace(**changes),
        epochs=options.epochs,
        minutes=options.minutes,
        batch_size=options.batch_size,
        validation_split=options.held_out,
        balance=options.balance,
        out=options.out,
        overwrite=options.overwrite,
        seed=options.seed,
        errors=options.errors,
        command=options.command,
        **reading,
    )


def _evaluate(options: argparse.Namespace) -> None:
    from .training.evaluation import evaluate, pictures_of_mistakes
    from .training.report import report

    if options.report is not None and options.report.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--report ends in .html. Received: {options.report}")
    model = _model(options.model, None, {})
    progress = sys.stdout.isatty() and not options.json
    found = evaluate(model, options.folder, only=options.only, errors=options.errors, progress=progress)
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        _print_evaluation(found)
    if options.report is not None:
        page = report(
            found,
            title=f"{model.name} on {Path(options.folder).resolve().name}",
            subtitle=str(options.model),
            pictures=pictures_of_mistakes(model, found, options.folder),
            command=options.command,
        )
        with _complete(options.report.expanduser()) as part:
            part.write_text(page, encoding="utf-8")


def _print_evaluation(found) -> None:
    low, high = found.interval
    print(f"accuracy {found.accuracy:.1%} on {len(found.labels):,} pictures (at 95 %: {low:.1%} to {high:.1%})\n")
    scores = [each for each in found.per_class if each["pictures"] or each["precision"] is not None]
    measures = ("precision", "recall", "f1")
    rows = [
        (each["name"], str(each["pictures"]), *("-" if each[m] is None else f"{each[m]:.1%}" for m in measures))
        for each in scores
    ]
    _print_table(_console(), ("CLASS", "PICTURES", "PRECISION", "RECALL", "F1"), rows, "<>>>>", limit=100)


def _embed(options: argparse.Namespace) -> None:
    from .checkpoints.inspect import megabytes
    from .training.embedding import embed

    output = options.output.expanduser()
    if output.suffix not in (".parquet", ".npz", ".npy"):
        raise ValueError(f"-o ends in .parquet, .npz or .npy. Received: {output}")
    model = _model(options.model, options.weights, _reading(options))
    images = options.images[0] if len(options.images) == 1 and Path(options.images[0]).is_dir() else options.images
    output.parent.mkdir(parents=True, exist_ok=True)
    embed(
        model,
        images,
        batch_size=options.batch_size,
        output=output,
        layer=options.layer,
        errors=options.errors,
        progress=sys.stderr.isatty(),
    )
    print(f"{output}, {megabytes(output.stat().st_size)}")


# --- inspect ----------------------------------------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> None:
    from .checkpoints.inspect import describe, sentences

    path = _local(options.file)
    report = describe(path, family=options.family, key=options.key, names=options.names)
    if options.json:
        print(json.dumps(report, indent=2, default=str))
        return
    console = _console()
    console.print(_printable(str(report["path"])), style="bold", soft_wrap=True)
    for group in sentences(report):
        console.print()
        _print_pairs(console, group)
    if options.names:
        console.print()
        rows = [(a["name"], "×".join(map(str, a["shape"])), a["dtype"], _becomes(a)) for a in report["names"]]
        _print_table(console, ("NAME", "SHAPE", "TYPE", "BECOMES"), rows, "<<<<")


def _local(name: str) -> Path:
    """The file of a path or of a published name; nothing is fetched to look at it."""
    from . import checkpoints

    path = Path(name).expanduser()
    checkpoint = None if path.exists() else checkpoints.find(name)
    if checkpoint is not None and not checkpoints.is_local(checkpoint):
        raise FileNotFoundError(f"{checkpoint.name} is published, but not here: vit-keras download {checkpoint.name}")
    if checkpoint is not None:
        return checkpoints.fetch(checkpoint.url, progress=False)
    if not path.exists():
        raise FileNotFoundError(f"There is no file of weights at {path}, and no published one of that name.")
    return path


def _becomes(entry: dict[str, Any]) -> str:
    """The canonical names of what an array holds, those of several in one: `…/{query,key,value}/kernel`."""
    names = [name.split("/") for name in entry["becomes"]]
    if not names:
        return f"({entry['status']})"
    if len({len(parts) for parts in names}) > 1:
        return ", ".join(map("/".join, names))
    columns = [list(dict.fromkeys(parts)) for parts in zip(*names)]
    return "/".join(
        parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}" if len(parts) < 4 else f"{{{parts[0]},…,{parts[-1]}}}"
        for parts in columns
    )


# --- convert ----------------------------------------------------------------------------------------------------


def _convert(options: argparse.Namespace) -> None:
    from . import vit
    from .checkpoints.inspect import megabytes

    target = options.target.expanduser()
    write = _writer(target, options.format)
    _check_target(target, Path(options.source).expanduser())
    model = vit.from_checkpoint(options.source, **_reading(options))
    report = model.load_report
    _check_target(target, Path(report.source))
    target.parent.mkdir(parents=True, exist_ok=True)
    names = write(model)
    pairs = [("read", f"{report.source}, {report.loaded:,} weights"), *(("adapted", text) for text in report.adapted)]
    if report.fresh:
        pairs.append(("new", f"{', '.join(report.fresh)}: not in the file, and not trained"))
    pairs.append(("wrote", f"{target}, {names}, {megabytes(target.stat().st_size)}"))
    pairs += [("but", text) for text in _losses(model, target)]
    _print_pairs(_console(), pairs)


def _writer(target: Path, format: str | None) -> Any:
    """What writes a model to a path, and says in which form; a wrong wish should not cost the reading."""
    from . import checkpoints
    from .checkpoints.families import FAMILIES
    from .checkpoints.writing import FORMATS

    if target.is_dir():
        raise ValueError(f"{target} is a folder: name the file in it.")
    if target.suffix in (".npz", ".safetensors"):
        if format not in (None, *FORMATS, *FAMILIES):
            raise ValueError(f"Unknown --format {format}. There are: {', '.join((*FORMATS, *FAMILIES))}.")
        return lambda model: f"names of the family {checkpoints.save_weights(model, target, format)}"
    if not target.name.endswith((".keras", ".weights.h5")):
        raise ValueError(f"OUT ends in .keras, .weights.h5, .npz or .safetensors. Received: {target}")
    if format is not None:
        raise ValueError(f"--format is for .npz and .safetensors. Received: {target}")

    def write(model) -> str:
        whole = target.suffix == ".keras"
        with _complete(target) as part:
            (model.save if whole else model.save_weights)(part)
        return "a whole Keras model" if whole else "Keras' weights"

    return write


def _check_target(target: Path, source: Path) -> None:
    if not (target.exists() and source.exists()):
        return
    in_pieces = source.is_dir() or source.name.endswith(".json")
    folder = source if source.is_dir() else source.parent
    if target.samefile(source) or (in_pieces and target.parent.samefile(folder)):
        raise ValueError(f"{target} is what is to be read: give OUT another name.")


def _losses(model, target: Path) -> Iterator[str]:
    """What a reader of the new file has to know."""
    from .checkpoints.inspect import untold

    if target.suffix in (".keras", ".npz"):  # one tells all; of the other, save_weights has said what it does not tell
        return
    try:
        fields = ", ".join(f"{field}={value}" for field, value in untold(target, model.config).items())
    except ValueError as error:
        yield f"from_checkpoint cannot read it again, only load_weights of the same model can: {error}"
        return
    if fields and target.suffix == ".safetensors":
        yield f"other readers than vit_keras have to be told {fields}, which names and shapes do not tell"
    elif fields:
        yield f"its readers have to be told {fields}, which names and shapes do not tell"


# --- download and models ----------------------------------------------------------------------------------------


def _download(options: argparse.Namespace) -> int:
    from . import checkpoints
    from .checkpoints.inspect import megabytes

    status, wanted = 0, {}
    for name in options.names:
        try:
            wanted |= {getattr(found, "url", found): found for found in _wanted(name)}
        except ValueError as error:
            status = 1
            _complain(error)
    published = [c for c in wanted.values() if not isinstance(c, str)]
    if len(wanted) > 1:
        unknown = len(wanted) - sum(c.bytes is not None for c in published)
        total = megabytes(sum(c.bytes or 0 for c in published)) if published else ""
        print(f"{len(wanted)} files, {total}{f' and {unknown} of unknown size' if unknown else ''}")
    for url, checkpoint in wanted.items():
        known = checkpoint is not url
        here = known and checkpoints.is_local(checkpoint)
        print(f"{checkpoint.name}  {megabytes(checkpoint.bytes)}  {checkpoint.licence}" if known else url, flush=True)
        try:
            if here or not options.dry_run:
                print(f"  {checkpoints.fetch(url, progress=sys.stderr.isatty())}")
            else:
                print(f"  not here: {url}")
        except (OSError, ValueError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            status = 1
            _complain(error)
    return status


def _wanted(name: str) -> list:
    """The published files of a name or a pattern, or the URL that it is."""
    from . import checkpoints

    if checkpoints.find(name):
        return [checkpoints.find(name)]
    if name.startswith(("http://", "https://")):
        return [name]
    if found := checkpoints.available(name=name):
        return found
    close = checkpoints.available(name=f"*{name.strip('*')}*")
    hint = (
        f" Did you mean {', '.join(c.name for c in close[:3])}?" if close else " `vit-keras models --all` lists them."
    )
    raise ValueError(f"No published weights have the name {name}.{hint}")


def _models(options: argparse.Namespace) -> None:
    from . import checkpoints

    fields = ("family", "source", "classes", "image_size", "licence")
    filters = {field: getattr(options, field) for field in fields if getattr(options, field) is not None}
    pattern = options.pattern
    if pattern is not None:
        filters["name"] = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
    found = checkpoints.available(**filters)
    if not found and pattern is not None and checkpoints.find(pattern):
        found = [checkpoints.find(pattern)]
    if not found:
        raise ValueError("No published weights are like that. `vit-keras models --all` lists all.")
    shown = found if filters or options.all else [c for c in found if c.variant is not None or c.source == "vit_keras"]
    shown = sorted(shown, key=_order)
    if options.json:
        print(json.dumps([_entry(c) for c in shown], indent=2))
        return
    rows = [_row(c) for c in shown]
    licences = any(row[-1] for row in rows)
    header = ("WEIGHTS", "PX", "HEAD", "MB", "TOP-1", "HERE", *(["LICENCE"] if licences else []))
    _print_table(_console(), header, rows, "<>>>><<", limit=100)
    print("\nHead: classes, or width of the embedding. Top-1: ImageNet-1k, in percent, as published.")
    print("Licence: Apache-2.0 where none is said.")
    if len(shown) < len(found):
        print(
            f"{len(found) - len(shown)} more, of other publishers and families: vit-keras models --all, or a PATTERN."
        )


def _order(checkpoint) -> tuple:
    """The one in this package first, then Google's own files by size of the model; then by name, numbers as numbers."""
    from .config import VARIANTS

    variants = (*VARIANTS, checkpoint.variant)
    parts = re.split(r"(\d+)", checkpoint.name)
    numbers = [(int(part), "") if part.isdigit() else (0, part) for part in parts]
    places = (checkpoint.source != "vit_keras", checkpoint.variant is None, variants.index(checkpoint.variant))
    return *places, checkpoint.source != "google", numbers


def _row(checkpoint) -> tuple[str, ...]:
    from . import checkpoints

    return (
        checkpoint.name,
        str(checkpoint.image_size),
        "-" if checkpoint.classes is None else str(checkpoint.classes),
        "-" if checkpoint.bytes is None else f"{checkpoint.bytes / 1e6:.0f}",
        "" if checkpoint.top1 is None else f"{checkpoint.top1:.1f}",
        "yes" if checkpoints.is_local(checkpoint) else "",
        "" if checkpoint.licence == "Apache-2.0" else checkpoint.licence,
    )


def _entry(checkpoint) -> dict[str, Any]:
    import dataclasses

    from . import checkpoints

    fields = dataclasses.asdict(checkpoint) | {"options": dict(checkpoint.options)}
    fields["preprocessing"] = checkpoint.preprocessing.to_dict()
    return {"name": checkpoint.name, **fields, "here": checkpoints.is_local(checkpoint)}


# --- printing -----------------------------------------------------------------------------------------------


def _printable(text: str) -> str:
    """Names come out of files that anybody made: what would steer a terminal is spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _console():
    """Where things are printed: in colour and as wide as the terminal, or plain and unbroken in a pipe."""
    from rich.console import Console

    narrow = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if narrow else 1000, markup=False, highlight=False, emoji=False)


def _print_pairs(console, pairs: Sequence[tuple[str, str]]) -> None:
    """Headings on the left, texts on the right, these wrapped."""
    from rich.text import Text

    margin = 14
    styles = {
        "problem": "red",
        "say": "yellow",
        "unknown": "yellow",
        "unreadable": "red",
        "but": "yellow",
        "new": "yellow",
    }
    previous = None
    for heading, text in pairs:
        lines = Text(_printable(text)).wrap(console, max(20, console.width - margin), overflow="fold")
        shown = "" if heading == previous else heading
        for number, line in enumerate(lines):
            line.rstrip()
            start = f"{'' if number else shown:{margin}}"
            console.print(Text.assemble((start, styles.get(heading, "cyan")), line), soft_wrap=True)
        previous = heading


def _print_table(
    console, header: Sequence[str], rows: Iterable[Sequence[str]], aligns: str, limit: int | None = None
) -> None:
    """Columns as wide as they need to be, for a name that is cut off is of no use.

    Where they are wider than the terminal, the last goes below the others if there is no other `limit` to keep to by
    putting them closer together.
    """
    from rich.cells import cell_len

    rows = [[_printable(cell) for cell in row[: len(header)]] for row in rows]
    widths = [max(cell_len(row[n]) for row in [header, *rows]) for n in range(len(header))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= (limit or console.width) else " "
    below = limit is None and gap == " "

    def line(cells: Sequence[str]) -> str:
        cells = cells[:-1] if below else cells
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths)]
        parts = [s + c if align == ">" else c + s for c, s, align in zip(cells, spaces, aligns)]
        return gap.join(parts).rstrip()

    console.print(line(header), style="bold", soft_wrap=True)
    for row in rows:
        console.print(line(row), soft_wrap=True)
        if below:
            console.print(f"    {row[-1]}", style="dim", soft_wrap=True)
