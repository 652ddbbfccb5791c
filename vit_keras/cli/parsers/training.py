"""The options of `finetune`, `evaluate`, `predict-table`, `average` and `embed`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...labels import TASKS
from ..arguments import add_alias, add_errors, add_json, add_loading, add_model, add_output
from ..options import image_size, integer, number

__all__ = ["average", "embed", "evaluate", "finetune", "predict_table"]

_FOLDER_OR_TABLE = (
    "folder with one subfolder per class: DIR/class/image.jpg; or a table of images and labels: .csv, .tsv or .parquet"
)


def finetune(parser: argparse.ArgumentParser) -> None:
    """Add the options of `finetune`."""
    parser.add_argument("folder", metavar="DIR|TABLE", help=_FOLDER_OR_TABLE)
    add_model(parser)
    _add_table(parser)
    add_output(parser, "DIR", "folder for the results; default: finetuned", default=Path("finetuned"))
    parser.add_argument(
        "--recipe",
        default="finetune",
        metavar="NAME",
        help="training recipe, such as finetune, lp_ft, lora or vit; default: finetune",
    )
    parser.add_argument("--epochs", type=integer(), metavar="N", help="number of epochs; default: chosen by the recipe")
    parser.add_argument(
        "--minutes",
        type=number(),
        metavar="N",
        help="time limit in minutes, which may reduce the number of epochs; default: 12, or none with --epochs",
    )
    parser.add_argument(
        "--image-size",
        type=image_size,
        metavar="N|HxW",
        help="input size in pixels, or `native`, the size of the weights; default: native, or smaller for small images",
    )
    parser.add_argument(
        "--batch-size", type=integer(), metavar="N", help="images per step; default: 32, or 16 for a short training"
    )
    parser.add_argument(
        "--held-out",
        type=number(most=1),
        default=0.2,
        metavar="SHARE",
        help="fraction of images held out for validation; default: 0.2",
    )
    parser.add_argument(
        "--folds",
        metavar="N|COLUMN",
        help="cross-validate: the number of folds, or the column of the table with fold numbers; default: one model",
    )
    parser.add_argument(
        "--metric", metavar="NAME", help="metric that chooses the best epoch, such as macro_f1, map or rmse"
    )
    balance = parser.add_mutually_exclusive_group()
    balance.add_argument("--balance", action="store_true", help="give every class the same total weight in the loss")
    balance.add_argument(
        "--balance-by",
        choices=("weights", "prior"),
        help="let rare classes count as much as frequent ones: by class weights, as --balance does, or by a loss "
        "corrected for the class frequencies; default: neither",
    )
    parser.add_argument(
        "--no-probe",
        dest="probe",
        action="store_false",
        help="do not analyze the images before training; a new head then starts at zero, images are mirrored without "
        "a test, and the report lacks the linear probe, near-duplicates, suspected wrong labels and the learning curve",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="calibrate the probabilities on the held-out images by temperature scaling, which changes no predicted "
        "class",
    )
    parser.add_argument(
        "--seed",
        type=integer(0),
        default=0,
        metavar="N",
        help="random seed for the split, the order of the images and the augmentation; default: 0",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in the output folder")
    add_errors(parser)
    add_loading(parser, "or set an option of the recipe or its augmentation, such as learning_rate=1e-4 or flip=false")


def _add_table(parser: argparse.ArgumentParser) -> None:
    """Add what the columns of a table are, and what they mean."""
    table = _add_columns(parser, "column or columns of the labels; default: label")
    table.add_argument(
        "--task",
        choices=("auto", *TASKS),
        default="auto",
        help="what the labels are: one class per image, several labels, numbers, or ordered levels; default: auto, "
        "inferred from the labels",
    )
    table.add_argument(
        "--group-column", metavar="NAME", help="column of groups, such as patients; a split keeps each group together"
    )
    add_alias(table, "--group", "group_column")
    table.add_argument("--weight-column", metavar="NAME", help="column with the weight of each image in the loss")
    add_alias(table, "--weight", "weight_column")
    table.add_argument("--class-names", metavar="NAME", nargs="+", help="names of the classes or levels, in order")


def _add_columns(parser: argparse.ArgumentParser, labels: str) -> argparse._ArgumentGroup:
    """Add where the images and the labels of a table are."""
    table = parser.add_argument_group("tables")
    table.add_argument(
        "--images-dir", type=Path, metavar="DIR", help="folder of the images; default: the folder of the table"
    )
    add_alias(table, "--images", "images_dir", type=Path)
    table.add_argument(
        "--image-column", metavar="NAME", default="image", help="column of image files or ids; default: image"
    )
    table.add_argument("--label-column", metavar="NAME", nargs="+", help=labels)
    table.add_argument("--separator", metavar="TEXT", help="text between the labels of a column with several")
    return table


def _add_batches(parser: argparse.ArgumentParser) -> None:
    """Add the size of the images that a model gets, and how many at once."""
    parser.add_argument(
        "--image-size",
        type=image_size,
        default="native",
        metavar="N|HxW",
        help="input size in pixels, for models that take any size; default: native, the size of the weights",
    )
    parser.add_argument("--batch-size", type=integer(), default=32, metavar="N", help="images per batch; default: 32")


def evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the options of `evaluate`."""
    parser.add_argument("model", metavar="MODEL", help="saved model (.keras, .h5) or published name")
    parser.add_argument("folder", metavar="DIR|TABLE", help=_FOLDER_OR_TABLE)
    _add_columns(parser, "column or columns of the labels; default: label, or those that the model was trained on")
    parser.add_argument(
        "--only",
        type=Path,
        metavar="SPLIT.JSON",
        help="evaluate only the images that `finetune` held out, listed in its split.json; default: all images",
    )
    _add_batches(parser)
    add_output(
        parser,
        "report.html",
        "also write a report of the mistakes, with attention maps",
        required=False,
    )
    add_errors(parser)
    add_json(parser)


def predict_table(parser: argparse.ArgumentParser) -> None:
    """Add the options of `predict-table`."""
    parser.add_argument("table", metavar="TABLE", help="table with a row for each image: .csv, .tsv or .parquet")
    parser.add_argument(
        "--models",
        nargs="+",
        required=True,
        metavar="MODEL",
        help="saved models (.keras, .h5), such as one per fold; predictions of several are averaged",
    )
    _add_images_of_table(parser)
    add_alias(parser, "--images", "images_dir", type=Path)
    parser.add_argument(
        "--like", type=Path, metavar="SAMPLE.CSV", help="sample submission; the output gets its columns and ids"
    )
    parser.add_argument("--tta", default=(), metavar="NAMES", help="test-time augmentation: flip, crops, or flip,crops")
    parser.add_argument(
        "--average",
        choices=("probabilities", "logits"),
        default="probabilities",
        help="what is averaged; default: probabilities",
    )
    parser.add_argument(
        "--values",
        choices=("auto", "names", "numbers", "probabilities"),
        default="auto",
        help="what to write: names or numbers of classes, labels or levels, or a probability for each; "
        "default: auto, inferred from the columns of the sample",
    )
    parser.add_argument(
        "--threshold",
        type=number(most=1),
        metavar="P",
        help="probability from which a label is predicted, where names or numbers of labels are written; default: 0.5",
    )
    parser.add_argument("--separator", metavar="TEXT", help="text between the labels in one column; default: a space")
    _add_batches(parser)
    add_output(parser, "FILE", "file to write: .csv, .tsv or .parquet")
    add_errors(parser)


def _add_images_of_table(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the images of a table, and the column with their names."""
    parser.add_argument(
        "--images-dir", type=Path, metavar="DIR", help="folder of the images; default: the folder of the table"
    )
    parser.add_argument(
        "--image-column",
        metavar="NAME",
        help="column of image files, with or without suffix; default: the first column",
    )


def average(parser: argparse.ArgumentParser) -> None:
    """Add the options of `average`."""
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="saved models (.keras, .h5) of the same architecture"
    )
    add_output(parser, "model.keras", "file to write")


def embed(parser: argparse.ArgumentParser) -> None:
    """Add the options of `embed`."""
    parser.add_argument(
        "images",
        nargs="+",
        metavar="DIR|TABLE|IMAGE",
        help="folder of images, table (.csv, .tsv or .parquet), image file or URL",
    )
    add_model(parser)
    _add_images_of_table(parser)
    add_output(parser, "FILE", "file to write: .parquet, .npz or .npy")
    parser.add_argument(
        "--layer",
        metavar="NAME",
        help="layer whose output to write, or `tokens` for all tokens; default: the input of the head",
    )
    parser.add_argument("--batch-size", type=integer(), default=32, metavar="N", help="images per batch; default: 32")
    add_errors(parser)
    add_loading(parser)
