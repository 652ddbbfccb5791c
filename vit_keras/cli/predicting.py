"""`predict` and `zero-shot`: the classes of images in files and folders, as text, JSON or CSV, batch by batch."""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from .. import anatomy
from .._internal.atomic import check_output, complete
from .._internal.plain_json import as_json
from .._internal.validate import expanded
from ..anatomy.inputs import preprocessing_of
from ..preprocess.images import read
from ..text.matching import zero_shot_classifier
from ..text.opening import open_image_text
from ..training.embeddings.batches import batches_of_files, run_over
from ..visualize.attention import attention_map
from .console import printable
from .loading import files_of, opened, taken, warn_of_embedding
from .options import settings_of
from .pictures import check_picture, line_of, numbered, save_picture

__all__ = ["classify", "predict", "zero_shot"]

_TABLES = {".csv": "csv", ".json": "array", ".jsonl": "json"}
"""The suffixes of files of predictions, and the form of each."""


def predict(images: Sequence[str], **options: Any) -> None:
    """Classify images."""
    loading = taken(options)

    def classifier() -> Any:
        model = opened(**loading)
        warn_of_embedding(model)
        return model

    classify(images, classifier, "rollout", **options)


def zero_shot(
    images: Sequence[str],
    *,
    model: str,
    text: Sequence[str],
    template: Sequence[str] = ("{}",),
    tokenizer: str = "auto",
    top: int | None = None,
    **options: Any,
) -> None:
    """Classify images by sentences, with a model for images and text (CLIP, SigLIP).

    Args:
        model: Published name, such as openai/clip-vit-base-patch32, or weights or a saved model (.keras) of both
            towers, next to the files of the tokenizer.
        text: Sentences or class names.
        template: Sentences in which {} is replaced by each text, such as 'a photo of a {}.'; several are averaged;
            default: the text alone.
        tokenizer: Folder of the tokenizer; default: the folder of --model.
        top: Number of texts to print; default: all.
    """
    settings = settings_of(**taken(options))

    def classifier() -> Any:
        towers = open_image_text(model, tokenizer=tokenizer, **settings)
        return zero_shot_classifier(towers, text, template)

    classify(images, classifier, "relevance", top=top, **options)


def classify(
    images: Sequence[str],
    classifier: Callable[[], Any],
    method: str,
    *,
    top: int | None = 5,
    batch_size: int = 32,
    json: bool = False,
    csv: bool = False,
    output: str | None = None,
    errors: str = "skip",
) -> None:
    """Print the most probable classes of each image, and write them or attention maps.

    Args:
        top: Number of classes to print.
        batch_size: Images per batch.
        json: Print one JSON object per image and line.
        csv: Print CSV, one line per image and class.
        output: Write the predictions (.csv, .json or .jsonl), or also draw attention maps (map.png; for several images
            map-1.png, map-2.png …).
    """
    files = files_of(images)
    path = None if output is None else expanded(output)
    table = path if path is not None and path.suffix.lower() in _TABLES else None
    maps = [] if path is None or table else [numbered(path, n, len(files)) for n in range(len(files))]
    if path is not None and not table:
        check_picture(path, also=f"{', '.join(_TABLES)}, ")
    check_output([table] if table else maps, files)
    model = classifier()
    kind = "attention map" if method == "rollout" else f"{method} map"
    place = count = 0
    with contextlib.ExitStack() as stack:
        write = [_writer("json" if json else "csv" if csv else "text", sys.stdout)] if json or csv or not table else []
        if table:
            write.append(stack.enter_context(_table(table)))
        for name, scores in _scores(model, files, batch_size, errors):
            count += 1
            found = {"image": name.replace(os.sep, "/"), "predictions": anatomy.top_predictions(model, scores, top)}
            for each in write:
                each(found)
            if maps:
                place = files.index(name, place) + 1
                target = int(scores.argmax()) if method == "relevance" else None
                save_picture(attention_map(model, read(name, None), method=method, target=target), maps[place - 1])
                print(f"{kind}: {maps[place - 1]}", file=sys.stderr if json or csv else None)
    if table:
        print(f"{table}, {count:,} {'image' if count == 1 else 'images'}", file=sys.stderr)


def _scores(model: Any, files: Sequence[str], batch_size: int, errors: str) -> Iterator[tuple[str, Any]]:
    """Yield each image that can be read with its probabilities or numbers; the next ones are read meanwhile."""
    batches, total = batches_of_files(list(files), None, batch_size)
    found = run_over(
        batches,
        lambda images: anatomy.predictions(model, model.predict(images, batch_size=len(images), verbose=0)),
        preprocessing_of(model),
        model=model,
        errors=errors,
        total=total,
        progress=total > batch_size and not sys.stdout.isatty(),
    )
    for batch in found:
        yield from zip(cast("Sequence[str]", batch.paths), batch.images)  # files have paths
        sys.stdout.flush()


@contextlib.contextmanager
def _table(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield the writer of a file, which appears when it is complete."""
    form = _TABLES[path.suffix.lower()]
    with (
        complete(path, make_folder=True) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        yield _writer(form, file)
        file.write("\n]\n" if form == "array" else "")


def _writer(form: str, file: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes the predictions of an image in a form: text, csv, json (lines) or an array."""
    numbers, rows = itertools.count(), csv.writer(file, lineterminator="\n")

    def write(found: dict[str, Any]) -> None:
        is_first = not next(numbers)
        if form == "text":
            lines = [printable(found["image"]), *map(line_of, found["predictions"])]
            print("\n".join(lines), file=file)
        elif form == "csv":
            for rank, each in enumerate(found["predictions"], start=1):
                if is_first and rank == 1:
                    rows.writerow(("image", "rank", *each))
                rows.writerow((found["image"], rank, *each.values()))
        elif form == "json":
            print(as_json(found), file=file)
        else:
            file.write(("[\n" if is_first else ",\n") + as_json(found))

    return write
