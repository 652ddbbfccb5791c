"""`predict`: the classes of images in files and folders, as text, JSON or CSV, batch by batch."""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from .. import anatomy
from .._internal.plain_json import as_json
from .._internal.validate import expanded
from ..preprocess.images import read
from ..training.embeddings.batches import batches_of_files, run_over
from ..visualize.attention import attention_map
from .console import printable
from .options import TABLES
from .pictures import (
    check_output,
    check_picture,
    complete_in_new_folder,
    files_of,
    label,
    numbered,
    open_with_options,
    print_class,
    save_picture,
    warn_of_embedding,
)

__all__ = ["predict"]

Row = Callable[[str, Any], None]
"""What writes the name and the scores of an image."""


def predict(options: argparse.Namespace) -> None:
    """Print the most probable classes of each image, and write them or attention maps if asked to."""
    files = files_of(options.images)
    output = options.output and expanded(options.output)
    table = output if output is not None and output.suffix.lower() in TABLES else None
    maps = [numbered(output, n + 1, len(files)) for n in range(len(files))] if output and not table else []
    if output and not table:
        check_picture(output, also=f"{', '.join(TABLES)}, ")
    check_output([table] if table else maps, files)
    model = open_with_options(options)
    warn_of_embedding(model)
    with contextlib.ExitStack() as opened:
        rows: list[Row] = []
        if options.json or options.csv or not table:
            kind = "json" if options.json else "csv" if options.csv else "text"
            rows.append(opened.enter_context(_KINDS[kind](sys.stdout, model, options.top)))
        if table:
            part = opened.enter_context(complete_in_new_folder(table))
            file = opened.enter_context(part.open("w", encoding="utf-8", errors="backslashreplace", newline=""))
            rows.append(opened.enter_context(_KINDS[TABLES[table.suffix.lower()]](file, model, options.top)))
        place = count = 0
        for name, scores in _scores(model, files, options):
            count += 1
            for row in rows:
                row(name, scores)
            if maps:
                place = files.index(name, place) + 1
                save_picture(attention_map(model, read(name, None)), maps[place - 1])
                print(f"attention map: {maps[place - 1]}", file=sys.stderr if options.json or options.csv else None)
    if table:
        print(f"{table}, {count:,} {'image' if count == 1 else 'images'}", file=sys.stderr)


def _scores(model: Any, files: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield each image that can be read with its probabilities or numbers; the next ones are read meanwhile."""
    batches, total = batches_of_files(list(files), None, options.batch_size)
    found = run_over(
        batches,
        lambda images: anatomy.predictions(model, model.predict(images, batch_size=len(images), verbose=0)),
        anatomy.preprocessing_of(model),
        model=model,
        errors=options.errors,
        total=total,
        progress=total > options.batch_size and sys.stderr.isatty() and not sys.stdout.isatty(),
    )
    for batch in found:
        yield from zip(cast("Sequence[str]", batch.paths), batch.images)  # files have paths
        sys.stdout.flush()


# --- as what ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _text(file: Any, model: Any, top: int) -> Iterator[Row]:
    def row(name: str, scores: Any) -> None:
        print(printable(name), file=file)
        for index in _best(model, scores, top):
            print_class(model, scores, index)

    yield row


@contextlib.contextmanager
def _json_lines(file: Any, model: Any, top: int) -> Iterator[Row]:
    yield lambda name, scores: print(as_json(_described(model, name, scores, top)), file=file)


@contextlib.contextmanager
def _json(file: Any, model: Any, top: int) -> Iterator[Row]:
    """Write one array, an image a line."""
    count = 0

    def row(name: str, scores: Any) -> None:
        nonlocal count
        file.write(("," if count else "[") + "\n" + as_json(_described(model, name, scores, top)))
        count += 1

    yield row
    file.write("\n]\n" if count else "[]\n")


@contextlib.contextmanager
def _csv(file: Any, model: Any, top: int) -> Iterator[Row]:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("image", "rank", "class", "name", _measure(model)))

    def row(name: str, scores: Any) -> None:
        described = _described(model, name, scores, top)
        for rank, found in enumerate(described["predictions"], start=1):
            writer.writerow((described["image"], rank, found["class"], found["name"], found[_measure(model)]))

    yield row


_KINDS = {"text": _text, "json": _json_lines, "csv": _csv, "array": _json}


def _described(model: Any, name: str, scores: Any, top: int) -> dict[str, Any]:
    named = anatomy.output_names(model) is not None
    measure = _measure(model)
    found = []
    for index in _best(model, scores, top):
        of_class = label(model, scores, index) if named else None
        found.append({"class": int(index), "name": of_class, measure: float(f"{scores[index]:.6g}")})
    return {"image": name.replace(os.sep, "/"), "predictions": found}


def _measure(model: Any) -> str:
    return "value" if anatomy.task(model) in anatomy.NUMBERS else "probability"


def _best(model: Any, scores: Any, top: int) -> Any:
    """Return the classes with the highest scores, of equal ones the first; or all numbers in their order."""
    return range(len(scores)) if anatomy.task(model) in anatomy.NUMBERS else (-scores).argsort(kind="stable")[:top]
