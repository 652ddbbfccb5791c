"""The commands, their options and their help. Imports nothing heavy: `--help` must be immediate."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import __version__
from ..cost import BYTES, OPTIMIZERS, STRATEGIES
from ..export.formats import FORMATS
from ..visualize.methods import METHODS, OF_A_CLASS
from .arguments import add_alias, add_errors, add_images, add_json, add_loading, add_model, add_output
from .options import STYLES, image_size, method, setting

__all__ = ["build_parser"]

_FOLDER = "folder with one subfolder per class: DIR/class/image.jpg"
_CLASS = "a number, a name such as tabby, or `predicted`"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; `run` of what it returns is the function of the command, as `module.function`.

    Example:
        >>> build_parser().parse_args(["predict", "cat.jpg"]).run
        'pictures.predict'
    """
    parser = argparse.ArgumentParser(
        prog="vit-keras",
        description="Vision Transformers for Keras: classify images, see what a model looks at, fine-tune, "
        "evaluate, and work with weight files.",
        epilog="`vit-keras COMMAND --help` describes the options of a command.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"vit-keras {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def command(run: str, help: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            run.rpartition(".")[2],
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=f"example:\n  vit-keras {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    _predict(command("pictures.predict", "classify images", "predict cat.jpg --top 3"))
    _attention(command("pictures.attention", "draw what a model looks at in images", "attention cat.jpg -o map.png"))
    _explore(
        command(
            "pictures.explore",
            "write an interactive page of a model's attention (one HTML file)",
            "explore cat.jpg -o cat.html",
        )
    )
    _finetune(
        command(
            "training.finetune",
            "fine-tune a model on a folder of images and write a report",
            "finetune flowers --model vit_ti16 -o flowers-ti16",
        )
    )
    _evaluate(
        command(
            "training.evaluate",
            "measure the accuracy of a model on a folder of images",
            "evaluate flowers-ti16/model.keras flowers --only flowers-ti16/split.json",
        )
    )
    _embed(
        command(
            "training.embed", "compute one feature vector per image", "embed flowers --model vit_ti16 -o flowers.npz"
        )
    )
    _export(
        command(
            "exports.export",
            "export a model to a file that runs without this package, and compare the two",
            "export vit_ti16 -o vit_ti16.onnx",
        )
    )
    _benchmark(
        command("exports.benchmark", "time exported files in turns", "benchmark vit_ti16.onnx vit_ti16.tflite vit_ti16")
    )
    _serve(
        command("serving.serve", "answer requests for a model over HTTP, with a page for people", "serve model.onnx")
    )
    _inspect(command("weights.inspect", "describe a weight file without reading its values", "inspect vit.safetensors"))
    _convert(command("weights.convert", "convert a weight file to another format", "convert vit.npz vit.safetensors"))
    _download(command("weights.download", "download published weights", "download 'Ti_16/*' --dry-run"))
    _models(command("weights.models", "list published weights", "models dinov2 --source facebook"))
    _cost(
        command(
            "weights.cost",
            "compute what a model costs: parameters, operations, memory, communication",
            "cost vit_l16 --batch-size 512 --training --devices 8 --strategy fsdp",
        )
    )
    return parser


# --- one function for each command --------------------------------------------------------------------------------


def _predict(parser: argparse.ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of classes to print; default: 5")
    add_output(
        parser,
        "map.png",
        "also write the attention map; for several images map-1.png, map-2.png …",
        old="--attention",
        required=False,
    )
    add_loading(parser)


def _attention(parser: argparse.ArgumentParser) -> None:
    add_images(parser)
    general = [name for name in METHODS if name not in OF_A_CLASS]
    parser.add_argument(
        "--method",
        type=method,
        metavar="NAME",
        help=f"{', '.join(general)}; or, to explain a class, {', '.join(OF_A_CLASS)}; "
        "default: rollout, or relevance with --class",
    )
    parser.add_argument(
        "--class",
        dest="target",
        metavar="CLASS",
        help=f"class to explain: {_CLASS}; default: the predicted class, if the method explains a class",
    )
    parser.add_argument(
        "--style",
        choices=STYLES,
        help="overlay: colors over the image; paper: the image, bright where the map is high; vit_keras: as drawn by "
        "vit-keras 0.x; default: overlay",
    )
    parser.add_argument(
        "--all-methods",
        action="store_true",
        help="draw all methods side by side in one figure, one row per image (needs Matplotlib)",
    )
    parser.add_argument("--grid", dest="all_methods", action="store_true", help=argparse.SUPPRESS)
    add_output(parser, "map.png", "image file to write; for several images map-1.png, map-2.png …")
    add_loading(parser)


def _explore(parser: argparse.ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument(
        "--class",
        dest="target",
        metavar="CLASS",
        help=f"class that the relevance map explains: {_CLASS}; default: the predicted class",
    )
    parser.add_argument(
        "--max-mb",
        type=float,
        default=6.0,
        metavar="MB",
        help="largest size of the page in megabytes; layers and heads are reduced to fit; default: 6",
    )
    add_output(parser, "page.html", "page to write")
    add_loading(parser)


def _finetune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help=_FOLDER)
    add_model(parser)
    add_output(parser, "DIR", "folder for the results; default: finetuned", old="--out", default=Path("finetuned"))
    parser.add_argument(
        "--recipe",
        default="finetune",
        metavar="NAME",
        help="training recipe, such as finetune, lp_ft, lora or vit; default: finetune",
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="number of epochs; default: chosen by the recipe")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="time limit in minutes: train fewer epochs if more would exceed it; default: 12, or none with --epochs",
    )
    parser.add_argument(
        "--image-size",
        type=image_size,
        metavar="N|HxW",
        help="input size in pixels, or `native`: the size of the weights; default: native, or less if the images are "
        "smaller",
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per step; default: 32")
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="share of images held out for validation; default: 0.2",
    )
    parser.add_argument("--balance", action="store_true", help="give all classes the same weight in the loss")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="random seed of the split, the order and the augmentation; default: 0",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in the output folder")
    add_errors(parser)
    add_loading(parser, "or of the recipe or its augmentation, such as learning_rate=1e-4 or flip=false")


def _evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="saved model (.keras, .h5) or published name")
    parser.add_argument("folder", metavar="DIR", help=_FOLDER)
    parser.add_argument(
        "--only",
        type=Path,
        metavar="SPLIT.JSON",
        help="evaluate only the images that `finetune` held out, listed in its split.json; default: all images",
    )
    add_output(
        parser,
        "report.html",
        "also write a report with the mistakes and their attention maps",
        old="--report",
        required=False,
    )
    add_errors(parser)
    add_json(parser)


def _embed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="DIR|IMAGE", help="folder of images, or image files and URLs")
    add_model(parser)
    add_output(parser, "FILE", "file to write: .parquet, .npz or .npy")
    parser.add_argument(
        "--layer",
        metavar="NAME",
        help="layer whose output is written, or `tokens` for all tokens; default: the input of the head",
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per batch; default: 32")
    add_errors(parser)
    add_loading(parser)


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="saved model (.keras, .h5), factory such as vit_b16, published name, or weight file",
    )
    endings = ", ".join(f"{each.suffix or 'no ending'} ({name})" for name, each in FORMATS.items())
    add_output(parser, "FILE", f"file to write, or folder of a SavedModel; its ending is {endings}")
    parser.add_argument("--format", choices=FORMATS, help="format of the file; default: by its ending")
    parser.add_argument(
        "--raw", action="store_true", help="let the file take the model's own float input instead of uint8 pictures"
    )
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="text file with the name of a class in each line; default: known"
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of classes that are named; default: 5")
    quantized = "; ".join(f"{name}: {', '.join(each.quantize)}" for name, each in FORMATS.items() if each.quantize)
    parser.add_argument("--quantize", metavar="NAME", help=f"smaller weights ({quantized}); default: float32")
    parser.add_argument(
        "--attention",
        action=argparse.BooleanOptionalAction,
        help="let the file return the attention of every block too; default: only for a page",
    )
    parser.add_argument(
        "--check", nargs="+", metavar="DIR|IMAGE", help="pictures to compare model and file with; default: drawn ones"
    )
    parser.add_argument("--no-check", action="store_true", help="do not run the file")
    add_json(parser)
    add_loading(parser)


def _benchmark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="exported file or folder")
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="images per batch; default: 1")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="runs of each file; default: 10")
    add_json(parser)


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="FILE|NAME",
        help="ONNX file that `vit_keras.export` wrote; or a factory such as vit_b16, a published name or a saved model "
        "(.keras, .h5), which is exported first",
    )
    parser.add_argument("--weights", metavar="NAME|FILE|URL", help="weights of a factory; default: ImageNet-1k")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all; default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0 for any; default: 8000")
    parser.add_argument("--name", metavar="NAME", help="name of the model in addresses; default: that in the file")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="requests computed at once; default: 2")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each; default: as many as cores")
    parser.add_argument(
        "--batch",
        type=int,
        default=1,
        metavar="N",
        help="requests computed together, which pays on a GPU, not on a CPU; default: 1",
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="N", help="seconds for each step of a request; default: 30"
    )
    parser.add_argument("--max-mb", type=float, default=10.0, metavar="MB", help="largest request; default: 10")
    parser.add_argument("--max-megapixels", type=float, default=50.0, metavar="N", help="largest picture; default: 50")
    parser.add_argument(
        "--pending",
        type=int,
        default=64,
        metavar="N",
        help="requests that may wait; more get the status 503; default: 64",
    )
    parser.add_argument(
        "--per-client",
        type=int,
        metavar="N",
        help="requests of one address that may wait; more get the status 429; default: no limit",
    )
    add_loading(parser)


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="weight file, Hugging Face folder or published name")
    parser.add_argument("--names", action="store_true", help="list all arrays and the weights that they become")
    add_json(parser)
    add_loading(parser, settings=False)


def _convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="weight file, Hugging Face folder, published name or URL")
    parser.add_argument(
        "target",
        type=Path,
        metavar="OUT",
        help="file to write: .keras (a whole model), .weights.h5, .npz (Google's format) or .safetensors",
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="array names in a .npz or .safetensors file: google, timm, huggingface, or a family that `inspect` "
        "prints; default: google in .npz, timm in .safetensors",
    )
    parser.add_argument(
        "--image-size",
        type=image_size,
        default="native",
        metavar="N|HxW",
        help="input size of the new model in pixels, `native` or `any`; default: native, the size of IN",
    )
    add_loading(parser)


def _download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="published name (see `models`), pattern such as 'Ti_16/*', or URL"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be downloaded")


def _models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", metavar="PATTERN", help="part of a name; * stands for any text")
    parser.add_argument("--family", metavar="NAME", help="checkpoint family, such as timm")
    parser.add_argument("--source", metavar="NAME", help="publisher, such as facebook")
    parser.add_argument("--classes", type=int, metavar="N", help="number of classes of the head")
    parser.add_argument("--image-size", type=int, metavar="N", help="input size in pixels")
    parser.add_argument("--license", metavar="NAME", help="license, such as MIT")
    add_alias(parser, "--licence", "license")
    parser.add_argument("--all", action="store_true", help="list all; default: vit_cifar10 and Google's files")
    add_json(parser)


def _cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="factory such as vit_b16 (or vit_g14), published name, weight file, or saved model (.keras, .h5)",
    )
    parser.add_argument("--image-size", type=image_size, metavar="N|HxW", help="input size in pixels; default: its own")
    parser.add_argument(
        "--batch-size", type=int, default=1, metavar="N", help="images per step, on all devices together; default: 1"
    )
    parser.add_argument("--training", action="store_true", help="a step of training; default: of prediction")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="number of devices; default: 1")
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="data",
        help="data: each device has the whole model; fsdp: a part of every large weight; tensor: some heads and "
        "neurons of each block; default: data",
    )
    parser.add_argument(
        "--model-devices",
        type=int,
        metavar="N",
        help="devices that share a model, with --strategy tensor; default: all",
    )
    parser.add_argument("--dtype", choices=BYTES, default="float32", help="precision; default: float32")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="optimizer; default: adamw")
    parser.add_argument(
        "--set",
        action="append",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        help="set a field of ViTConfig, such as remat=true or classes=10; may be repeated",
    )
    add_json(parser)
