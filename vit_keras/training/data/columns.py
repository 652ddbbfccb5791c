"""Write a submission: predictions in the columns and order that a competition requires."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from ... import anatomy
from ..._internal.warn import warn_caller
from ...anatomy.outputs import NUMBERS, output_names, why_not_classifier
from .folder import first_few
from .table import NUMBER

__all__ = ["VALUES", "Meaning", "check_spelling", "columns_of", "meaning_of"]

VALUES = ("auto", "names", "numbers", "probabilities")
"""Kinds of values in a submission; see `vit_keras.training.predict_table`."""


class Meaning(NamedTuple):
    """Meaning of the outputs of a model: its task, the names of what it predicts, and how many outputs it has."""

    task: str
    names: tuple[str, ...]
    outputs: int

    def __str__(self) -> str:
        return f"task {self.task!r}, {self.outputs} outputs, {first_few(self.names, 10)}"


def meaning_of(model: keras.Model) -> Meaning:
    """Return the meaning of a model's outputs; raise a `ValueError` if it has not one output `(batch, n)` of a head."""
    if lack := why_not_classifier(model):
        raise ValueError(f"The model {model.name!r} predicts nothing for a table: {lack}.")
    count, task, names = model.output_shape[-1], anatomy.task(model), output_names(model)
    if (task, count) == ("single", 1):  # a probability of its own: there is no other class to choose
        task = "multi"
    if names is None:
        if task == "ordinal":
            raise ValueError(f"The model {model.name!r} does not know its levels: set model.labels to their names.")
        names = ("prediction",) if count == 1 else map(str, range(count))
    return Meaning(task, tuple(names), count)


def columns_of(
    scores: np.ndarray,
    meaning: Meaning,
    sample: Mapping[str, np.ndarray] | None = None,
    values: str = "auto",
    separator: str | None = None,
) -> dict[str, Any]:
    """Return predictions `(n, outputs)` as columns, under the names and in the order that is wanted."""
    titles = None if sample is None else [*sample][1:]
    values = _values(meaning, sample) if values == "auto" else values
    if values == "probabilities" and meaning.task in NUMBERS:
        raise ValueError(f"There are no probabilities to write: the task of the models is {meaning.task!r}.")
    if separator is not None and (meaning.task != "multi" or values != "names"):
        raise ValueError(
            'separator= (--separator) is for models of several labels and values="names" (--values). Received: '
            f"separator={separator!r}, models of the task {meaning.task!r}, and {values} to write."
        )
    one_column = {"names": ("single", "multi", "ordinal"), "numbers": ("single", "ordinal")}
    if meaning.task in one_column.get(values, ()):
        separator = " " if separator is None else separator
        if titles is not None and len(titles) != 1:
            raise ValueError(
                f"The predictions are one column, and the sample has {len(titles)} after the ids: {first_few(titles)}"
            )
        return {(titles or ["label"])[0]: _decisions(scores, meaning, values, separator)}
    are_there = (values, meaning.task) == ("numbers", "multi")
    scores = (scores >= 0.5).astype(int) if are_there else scores.astype("float32")
    if meaning.task == "single" and meaning.outputs == 2 and titles and len(titles) == 1:
        return {titles[0]: scores[:, 1]}
    return {title: scores[:, n] for title, n in _matched(titles, meaning.names).items()}


def check_spelling(
    meaning: Meaning, written: Mapping[str, np.ndarray], values: str, separator: str | None = None
) -> None:
    """Compare the values of a sample submission with the names to be written, before anything is predicted."""
    if len(written) != 2 or meaning.task == "regression" or values in ("numbers", "probabilities"):
        return
    title, column = [*written.items()][1]
    texts = [text for text in column if isinstance(text, str)]
    separator = " " if separator is None else separator
    found = {part.strip() for text in texts for part in (text.split(separator) if meaning.task == "multi" else [text])}
    unknown = sorted(found - {"", *meaning.names})
    numbers = {float(name): name for name in meaning.names if NUMBER.fullmatch(name)}
    for value in unknown:
        if NUMBER.fullmatch(value) and float(value) in numbers and not {*meaning.names} & found:
            raise ValueError(
                f"The sample has {value!r} in its column {title!r}, and the models would write "
                f"{numbers[float(value)]!r}. Set model.labels to the names as the sample spells them, or pass "
                'values="numbers".'
            )
    numeric = any(map(NUMBER.fullmatch, unknown))
    if unknown and not numeric and not {*meaning.names} & found:
        warn_caller(
            f"The models predict none of the values in the sample's column {title!r}: {first_few(unknown)}. "
            f"They predict: {first_few(meaning.names)}."
        )


def _values(meaning: Meaning, sample: Mapping[str, np.ndarray] | None) -> str:
    """Return the kind of values that a sample submission asks for."""
    usual = {"single": "names", "multi": "probabilities", "regression": "numbers", "ordinal": "names"}[meaning.task]
    if sample is None or meaning.task == "regression":
        return usual
    if len(sample) != 2:
        return usual if meaning.task == "ordinal" else "probabilities"
    title, column = [*sample.items()][1]
    kind = column.dtype.kind
    kind = "O" if kind == "f" and np.isnan(column).all() else kind
    if meaning.task == "multi":
        return "probabilities" if kind in _NUMERIC and meaning.outputs == 1 else "names"
    if kind == "b" and {name.strip().lower() for name in meaning.names} >= {"true", "false"}:
        return "names"  # as a CSV file spells them
    named = all(map(NUMBER.fullmatch, meaning.names))  # such names, 4 or 0.5, are the numbers asked for
    if kind == "f" and meaning.task == "single" and meaning.outputs == 2:
        return "probabilities"
    if kind == "f" and meaning.task == "single" and not (named and any("." in name for name in meaning.names)):
        raise ValueError(
            f"The sample has one column of decimal numbers, {title!r}, and the models have "
            f'{meaning.outputs} classes. Pass values="names" or "numbers".'
        )
    return "numbers" if kind in _NUMERIC and not named else "names"


_NUMERIC = "iufb"


def _decisions(scores: np.ndarray, meaning: Meaning, values: str, separator: str) -> list[Any]:
    if meaning.task == "multi":
        divided = [name for name in meaning.names if (separator in name if separator else len(name) > 1)]
        if divided:
            raise ValueError(
                f"The separator {separator!r} is in the names of labels: {first_few(divided)}. Pass separator= "
                "(--separator), a text that is in none of them, such as '|'."
            )
        return [separator.join(name for name, s in zip(meaning.names, row) if s >= 0.5) for row in scores]
    ordinal = meaning.task == "ordinal"
    numbers = anatomy.levels(scores[:, 0], len(meaning.names)) if ordinal else scores.argmax(axis=1)
    return numbers.tolist() if values == "numbers" else [meaning.names[n] for n in numbers]


def _matched(titles: list[str] | None, names: Sequence[str]) -> dict[str, int]:
    """Return the number of the output for each title. Two outputs of one name get their numbers behind it."""
    shared = {name for name, count in collections.Counter(names).items() if count > 1}
    names = [f"{name} ({n})" if name in shared else name for n, name in enumerate(names)]
    if titles is None or len(titles) == len(names) == 1:
        return {title: n for n, title in enumerate(titles or names)}
    place = {name.strip(): n for n, name in enumerate(names)}
    missing, extra = [t for t in titles if t.strip() not in place], {*place} - {t.strip() for t in titles}
    if missing or extra:
        raise ValueError(
            "The columns of the sample are not what the models predict. "
            f"Not predicted: {first_few(missing) or 'none'}; not in the sample: {first_few(sorted(extra)) or 'none'}."
        )
    return {title: place[title.strip()] for title in titles}
