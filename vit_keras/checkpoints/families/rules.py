"""Translate the names in a file to canonical names and back, with the rules of a family.

A family lists `Rule`s. A rule holds the name of one array in a file, the weights of the model that are in it, and their
layout. Patterns are names with open numbers: `"blocks.{i}.norm1"`. `"{s+1}"` is the number `{s}` of another name,
counted from one instead of zero. The same rules run in both directions, so whatever is read can be written.

See `docs/add_a_family.md`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

BLOCK = "Transformer/encoderblock_{i}"
ATTENTION = f"{BLOCK}/MultiHeadDotProductAttention_1"
MLP = f"{BLOCK}/MlpBlock_3"
POSITIONS = "Transformer/posembed_input/pos_embedding"
ROPE = ("rope_theta", "rope_kind", "rope_grid", "rope_offset")
"""The fields of `ViTConfig` for rotary positions."""
NUMERICS = ("mlp_activation", "epsilon", *ROPE, "post_norm", "map_heads", "map_prefix", "resnet_numerics")
"""The fields of `ViTConfig` that change what a model computes with its weights, and that no array shows."""


class Op(NamedTuple):
    """A change of layout between the array of a file and the weights that it holds."""

    read: Callable[[np.ndarray, int], list[np.ndarray]]  # the array and the number of weights, to Keras' layout
    write: Callable[[list[np.ndarray], int], np.ndarray]  # the weights and the number of heads of the model


AS_IS = Op(lambda a, n: [a], lambda parts, heads: parts[0])
# PyTorch's (out, in), several layers stacked along the first axis. Vectors are only split.
LINEAR = Op(
    lambda a, n: [part.T for part in np.split(a, n)],
    lambda parts, heads: np.concatenate([part.T for part in parts]),
)
TRANSPOSED = Op(lambda a, n: [a.T], lambda parts, heads: parts[0].T)
# (out, in, down, across) becomes (down, across, in, out).
CONV = Op(lambda a, n: [a.transpose(2, 3, 1, 0)], lambda parts, heads: parts[0].transpose(3, 2, 0, 1))
# Flax keeps the heads apart: (in, heads, width) and (heads, width); on the way out (heads, width, out).
HEADS = Op(
    lambda a, n: [a.reshape(*a.shape[:-2], -1)],
    lambda parts, heads: parts[0].reshape(*parts[0].shape[:-1], heads, -1),
)
FROM_HEADS = Op(
    lambda a, n: [a.reshape(-1, a.shape[-1])],
    lambda parts, heads: parts[0].reshape(heads, -1, parts[0].shape[-1]),
)
# (1, 1, 1, channels): old Flax kept the axes of a group normalization.
CHANNELS = Op(lambda a, n: [a.reshape(-1)], lambda parts, heads: parts[0].reshape(1, 1, 1, -1))


def _tokens(ndim: int) -> Op:
    return Op(
        lambda a, n: [a.reshape(1, -1, a.shape[-1])], lambda parts, heads: parts[0].reshape(parts[0].shape[3 - ndim :])
    )


TOKENS, TABLE, VECTOR = _tokens(3), _tokens(2), _tokens(1)


@dataclasses.dataclass(frozen=True)
class Rule:
    """The content of one array in a file."""

    source: str  # pattern of its name
    targets: tuple[str | None, ...]  # patterns of the canonical names of its weights; None for a part that is left out
    op: Op = AS_IS  # its layout
    # a condition on `shape_of`, for arrays that the name alone does not identify
    when: Callable[[Callable[[str], tuple[int, ...] | None]], bool] | None = None
    stacked: bool = False  # whether the first axis counts the blocks
    shared: bool = False  # whether all blocks share the array
    implied: Mapping[str, Any] | None = None  # fields of `ViTConfig` that a file with such an array implies
    requires: str | None = None  # pattern of another weight; the array is written only for models that have it


def array(source: str, *targets: str | None, op: Op = AS_IS, **options: Any) -> tuple[Rule, ...]:
    """Return the rule for one array."""
    return (Rule(source, targets, op, **options),)


def linear(source: str, *targets: str | None, dot: str = ".", **options: Any) -> tuple[Rule, ...]:
    """Return the rules for a linear layer of PyTorch, or for several layers stacked in one array."""
    return tuple(
        Rule(f"{source}{dot}{theirs}", tuple(t and f"{t}/{ours}" for t in targets), LINEAR, **options)
        for theirs, ours in (("weight", "kernel"), ("bias", "bias"))
    )


def joined(source: str, *targets: str, **options: Any) -> tuple[Rule, ...]:
    """Return the rules for `in_proj_weight` and `in_proj_bias` of `torch.nn.MultiheadAttention`."""
    return linear(f"{source}.in_proj", *targets, dot="_", **options)


def conv(source: str, target: str, **options: Any) -> tuple[Rule, ...]:
    """Return the rules for a convolution of PyTorch."""
    return (
        Rule(f"{source}.weight", (f"{target}/kernel",), CONV, **options),
        Rule(f"{source}.bias", (f"{target}/bias",), **options),
    )


def norm(source: str, target: str, **options: Any) -> tuple[Rule, ...]:
    """Return the rules for a normalization of PyTorch."""
    return array(f"{source}.weight", f"{target}/scale", **options) + array(
        f"{source}.bias", f"{target}/bias", **options
    )


def packed(wide: str, narrow: str) -> Callable[..., Any]:
    """Return the condition that `wide`, a gated MLP's first two layers, has twice the rows that `narrow` takes."""

    def is_packed(shape_of: Callable[..., Any]) -> bool:
        first, last = shape_of(wide), shape_of(narrow)
        return bool(first and last) and first[0] == 2 * last[-1]

    return is_packed


def axes(name: str, count: int) -> Callable[..., Any]:
    """Return the condition that an array has a number of axes."""
    return lambda shape_of: len(shape_of(name) or ()) == count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Checkpoints that share names, layout and numerics."""

    name: str  # in `family=` and in reports
    title: str  # whose checkpoints these are
    # Names that all its files have, without a common prefix such as `module.`; "a|b" is one of two. If a file fits
    # several families, the one that knows most of its names is chosen, and of these the one with most of both:
    detect: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()  # names that a file must have to be detected, not with `family=`; perhaps unprefixed
    by_name_only: bool = False  # whether no file is detected as this family; the user or the registry must name it
    absent: tuple[str, ...] = ()  # names that no file of this family has, but files of another family have
    rules: tuple[Rule, ...]  # of its arrays; the first that fits is read, and the first whose weights exist is written
    outer: tuple[Rule, ...] = ()  # rules for names outside of the common prefix
    written_prefix: str = ""  # the common prefix that written files have; any prefix is read
    ignored: tuple[str, ...] = ()  # patterns (`*` for anything) of names that are known and no part of the model
    others: tuple[str, ...] = ()  # the same for names outside of the common prefix
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields that neither names nor shapes show
    # fields that nothing in a file shows, and their possible values: the user, the registry or a config.json names one
    choices: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    heads: Mapping[int, int] = dataclasses.field(default_factory=dict)  # by the hidden size of the published models
    dim_head: int | None = None  # width of a head, for widths that are not in `heads`
    preprocessing: str = "google"  # a preset of `vit_keras.preprocess`
    refused: str | None = None  # why its files cannot be loaded, if the family is known but cannot be built
    format: str | None = None  # of `save_weights`; the first family of a format that can hold a model is written
    suffix: str | None = ".safetensors"  # of written files; None if this package writes none
    # fields in which all its models agree, with their possible values; parts that a model lacks do not count
    only: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    excludes: tuple[tuple[str, ...], ...] = ()  # groups of fields that none of its models has set together

    def prefix(self, names: Iterable[str], *, marked: bool = False) -> str | None:
        """Return the common prefix of a file's names, or `None` if it is of another family or lacks `marks`."""
        return min(self.prefixes(names, marked=marked), key=lambda p: (len(p), p), default=None)

    def prefixes(self, names: Iterable[str], *, marked: bool = False) -> list[str]:
        """Return all prefixes behind which a file has this family's names."""
        names = set(names)
        found = []
        marks = self.marks if marked else ()
        for first in self.detect[0].split("|"):
            ends = [name for name in names if name.endswith(first)]
            found += [
                prefix
                for prefix in (name[: -len(first)] for name in ends)
                if (not prefix or prefix[-1] in "./")
                and all(any(prefix + n in names for n in alternatives.split("|")) for alternatives in self.detect)
                and all(any({n, prefix + n} & names for n in alternatives.split("|")) for alternatives in marks)
                and not any(prefix + name in names for name in self.absent)
            ]
        return found


def detect(
    families: Iterable[Family], names: Iterable[str], shape_of: Callable[[str], tuple[int, ...]]
) -> Family | None:
    """Return the family of a file, or `None` if it is unknown."""
    names = list(names)
    candidates = [f for f in families if not f.by_name_only and f.prefix(names, marked=True) is not None]
    if len(candidates) < 2:
        return candidates[0] if candidates else None

    def unknown_and_unmarked(family: Family) -> tuple[int, int]:
        return len(bind(family, names, shape_of).unknown), -len(family.detect + family.marks)

    return min(candidates, key=unknown_and_unmarked)


class Part(NamedTuple):
    """The place of one weight of a model in a file."""

    source: str
    rule: Rule
    index: int
    block: int | None


class Binding(NamedTuple):
    """A file read by a family's table."""

    parts: dict[str, Part]
    ignored: tuple[str, ...]  # names that are known and not part of the model
    unknown: tuple[str, ...]  # names that fit no rule
    doubled: tuple[str, ...]  # canonical names that two arrays claim
    told: dict[str, Any]  # fields of `ViTConfig` that the arrays imply (`Rule.implied`)


_NUMBER = re.compile(r"\{(\w+)(\+1)?\}")


@functools.cache
def _compile(pattern: str) -> re.Pattern:
    parts = _NUMBER.split(pattern)  # text, letter, "+1" or None, text, …
    groups = "".join(re.escape(text) + rf"(?P<{letter}>\d+)" for text, letter in zip(parts[::3], parts[1::3]))
    return re.compile(groups + re.escape(parts[-1]))


_DIGITS = re.compile(r"\d+")


def _form(text: str) -> str:
    """Return a name or a pattern without its numbers: a name can fit those patterns only that have the same form."""
    return _DIGITS.sub("#", _NUMBER.sub("0", text))


def _by_form(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    """Group rules by the form of their names, so that each name is compared with few of them."""
    forms: dict[str, list[Rule]] = {}
    for rule in rules:
        forms.setdefault(_form(rule.source), []).append(rule)
    return forms


def _numbers(pattern: str, match: re.Match) -> dict[str, int]:
    """Return the open numbers of a pattern in a match, counted from zero."""
    return {letter: int(match[letter]) - bool(plus) for letter, plus in _NUMBER.findall(pattern)}


def _fill(pattern: str, numbers: Mapping[str, int]) -> str:
    return _NUMBER.sub(lambda hole: str(numbers[hole[1]] + bool(hole[2])), pattern)


def bind(family: Family, names: Iterable[str], shape_of: Callable[[str], tuple[int, ...]]) -> Binding:
    """Find the weights of a model that each array of a file holds."""
    names = list(names)
    prefix = family.prefix(names) or ""
    known = set(names)

    def shapes_at(start: str) -> Callable[[str], tuple[int, ...] | None]:
        return lambda name: shape_of(start + name) if start + name in known else None

    inner, outer = _by_form((*family.rules, *family.outer)), _by_form(family.outer)
    ignored_patterns = [re.compile(re.escape(p).replace(r"\*", ".*")) for p in (*family.ignored, *family.others)]
    parts: dict[str, Part] = {}
    doubled, ignored, unknown, shared = [], [], [], []
    told: dict[str, Any] = {}

    def claim(target: str | None, part: Part) -> None:
        if target is not None:
            if target in parts:
                doubled.append(target)
            parts[target] = part

    for name in names:
        inside = name.startswith(prefix)
        stem, shapes = (name[len(prefix) :], shapes_at(prefix)) if inside else (name, shapes_at(""))
        for rule in (inner if inside else outer).get(_DIGITS.sub("#", stem), ()):
            match = _compile(rule.source).fullmatch(stem)
            if match and (rule.when is None or rule.when(shapes)):
                break
        else:
            patterns = ignored_patterns[: len(family.ignored) if inside else None]
            dropped = any(p.fullmatch(stem) for p in patterns)
            (ignored if dropped or 0 in shape_of(name) else unknown).append(name)
            continue
        if 0 in shape_of(name):  # no registers, say
            ignored.append(name)
            continue
        numbers = _numbers(rule.source, match)
        told |= rule.implied or {}
        for index, target in enumerate(rule.targets):
            if rule.shared:
                shared.append((target, name, rule, index))
            elif rule.stacked:
                for block in range(shape_of(name)[0]):
                    claim(target and _fill(target, {"i": block}), Part(name, rule, index, block))
            else:
                claim(target and _fill(target, numbers), Part(name, rule, index, None))
        if not rule.targets:
            ignored.append(name)
    blocks = {int(m[1]) for name in parts if (m := re.match(r"Transformer/encoderblock_(\d+)/", name))}
    for target, name, rule, index in shared:
        for block in blocks:
            claim(_fill(target, {"i": block}), Part(name, rule, index, None))
    return Binding(parts, tuple(ignored), tuple(unknown), tuple(doubled), told)


def read(part: Part, source: np.ndarray) -> np.ndarray:
    """Return one weight of a model from the array that holds it."""
    source = source if part.block is None else source[part.block]
    try:
        return part.rule.op.read(source, len(part.rule.targets))[part.index]
    except (ValueError, IndexError) as error:
        raise ValueError(f"{part.source!r} has the wrong shape {source.shape} ({error}).") from None


def shape(part: Part, source_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what `read` returns, without the array."""
    return read(part, np.broadcast_to(np.float32(0), source_shape)).shape


class Arrays(Mapping[str, Any]):
    """The arrays of a file made from a model's weights: a family's table run backwards, when an array is read."""

    # `shapes` has all names; `unnamed` the canonical names without a name in the family; `problem` says why a weight
    # has no form in the family's files.

    def __init__(self, family: Family, weights: Any, num_heads: int, prefix: str = ""):
        self._weights, self._num_heads = weights, num_heads
        self._sources: dict[str, tuple[Op, list[str]]] = {}
        left = dict.fromkeys(weights)
        prefix = prefix or family.written_prefix
        for before, rule in (*((prefix, r) for r in family.rules), *(("", r) for r in family.outer)):
            for numbers, targets in _written(rule, left, weights.shapes):
                name = before + _fill(rule.source, numbers)
                if name not in self._sources:
                    self._sources[name] = (rule.op, targets)
                    for target in targets:
                        del left[target]
        self.unnamed: tuple[Any, ...] = tuple(left)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.problem: str | None = None
        for name, (op, targets) in self._sources.items():
            empty = [np.broadcast_to(np.float32(0), weights.shapes[t]) for t in targets]
            try:
                self.shapes[name] = op.write(empty, num_heads).shape
            except ValueError as error:
                self.problem = str(error)

    def __getitem__(self, name: str) -> np.ndarray:
        op, targets = self._sources[name]
        return np.ascontiguousarray(op.write([self._weights[target] for target in targets], self._num_heads))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _written(
    rule: Rule, left: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[tuple[dict[Any, Any], list[str]]]:
    """Yield the numbers and the weights of all arrays that a rule makes of the weights that are left."""
    patterns = [target for target in rule.targets if target is not None]
    if not patterns or len(patterns) < len(rule.targets) or rule.stacked or rule.shared:
        return
    pattern = _compile(patterns[0])
    for match in [match for name in left if (match := pattern.fullmatch(name))]:
        numbers = _numbers(patterns[0], match)
        targets = [_fill(target, numbers) for target in patterns]
        if all(t in left for t in targets) and (rule.requires is None or _fill(rule.requires, numbers) in known):
            yield numbers, targets
