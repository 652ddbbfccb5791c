#!/usr/bin/env python3
"""How tables of positions are read: every family, every grid of patches up to 16 x 16, by shapes alone.

    grid_outcomes.py          # writes docs/grids.csv

A row of the table is a family, the tokens before the patches in its files, and which of them have rows. Its numbers
count the 256 grids: how many are read *right*, how many with a warning (*warns*), how many are a question to the caller
(*asks*), and how many a file alone is taken for a square without a word (*square*). `wrong` would be any other reading.
"""

import collections
import csv
import functools
import itertools
import pathlib

from vit_keras.checkpoints import grids
from vit_keras.checkpoints.families import FAMILIES
from vit_keras.checkpoints.families.rules import ATTENTION, BLOCK, POSITIONS

PATH = pathlib.Path(__file__).parents[2] / "docs" / "grids.csv"
GRIDS = list(itertools.product(range(1, 17), repeat=2))
EVIDENCE = {
    "alone": (),
    "image_size": ("wanted",),
    "config.json": ("stated",),
    "source_grid": ("source_grid",),
}
WORDS = ("right", "warns", "asks", "square")
COLUMNS = ("family", "tokens", "rows", *(f"{given}: {word}" for given in EVIDENCE for word in WORDS))
RELATIVE, MIXING = (
    name.format(i=0) for name in (f"{ATTENTION}/relative_position_bias", f"{BLOCK}/token_mixing/Dense_0/kernel")
)


def structures(family):
    """Yield `(names of tables, tokens before the patches)` that files of a family can have."""
    targets = {
        target.format(i=0) if target and "{i}" in target else target
        for rule in (*family.rules, *family.outer)
        if not (set(family.absent) & {rule.source})
        and not (rule.source == "pos_embed" and "pos_embed" in family.absent)
        for target in rule.targets
        if not target or target.count("{") < 2
    }
    needs_relative = any("relative_position_bias_table" in name for name in family.detect)
    if MIXING in targets:
        yield (MIXING,), {}
        return
    has_class = [{}, {"cls": 1}] if "cls" in targets else [{}]
    if any("cls" in name or "class" in name for name in family.detect):
        has_class = has_class[1:]
    tokens = [dict(found) for found in has_class]
    if "dist" in targets:
        tokens.append({"cls": 1, "dist": 1})
    if "registers" in targets:
        tokens += [{**found, "registers": 4} for found in has_class]
    if needs_relative:
        yield (RELATIVE,), {"cls": 1}
    elif POSITIONS in targets:
        for found in tokens:
            yield (POSITIONS,), found


def layouts(shapes, family):
    """The layouts of `grids.layouts` that files of a family have by its own code."""
    convention = False if family.name in grids.NO_ROWS else family.config.get("position_prefix")
    together = any({"registers", "position_prefix"} <= set(group) for group in family.excludes)
    for layout in grids.layouts(shapes, family):
        only_tokens = layout.position_prefix and not layout.register_positions and "cls" in shapes
        if convention is not None and layout.position_prefix is not convention and "cls" in shapes:
            continue
        if layout.register_positions and not together:
            continue
        if layout.rows and family.name.startswith("timm-naflex"):
            continue
        if "registers" in shapes and together and only_tokens:
            continue
        yield layout


def outcome(family, shapes, grid, layout, given):
    """Return how one table is read, in a word."""
    told = {"position_prefix": layout.position_prefix, "register_positions": layout.register_positions}
    stored = grid if family.name.startswith("timm-naflex") else None  # its table has two axes
    table = grids.read(
        shapes, family, **dict.fromkeys(EVIDENCE[given], grid), told=told if "config" in given else None, saved=stored
    )
    if table.grid is None:
        return "asks"
    if table.warning:
        return "warns"
    patches = grid[0] * grid[1]
    original = grid
    turned = family.name in grids.TURNED
    if turned and RELATIVE in shapes:
        original = grid[::-1]
    elif (turned or family.name in grids.SQUARE) and given != "source_grid":
        original = grids.square_grid(patches) or grid
    # Of a wanted size, a family's own code may read a table in its own way: the images are the caller's.
    native = table.native if given in ("config.json", "source_grid") else grid
    if (table.grid, native, table.layout.rows) == (original, grid, layout.rows):
        return "right"
    return "square" if given == "alone" and table.native[0] == table.native[1] else "wrong"


def _shapes(tables, tokens, grid, layout):
    down, across = grid
    rows = {
        POSITIONS: (1, down * across + layout.rows, 8),
        RELATIVE: ((2 * down - 1) * (2 * across - 1) + 3, 2),
        MIXING: (down * across, 8),
    }
    return {**{name: (1, count, 8) for name, count in tokens.items()}, **{name: rows[name] for name in tables}}


@functools.cache
def rows():
    """Return the rows of the table: `(family, tokens, layout, {(given, word): count})`."""
    return list(_rows())


def _rows():
    seen = {}
    for family in FAMILIES.values():
        if family.refused:
            continue
        for tables, tokens in structures(family):
            for layout in layouts(_shapes(tables, tokens, (1, 1), grids.Layout(True, False, 0)), family):
                key = (  # all that a reading depends on
                    *(tables, tuple(tokens.items()), layout, family.config.get("position_prefix"), family.excludes),
                    *(family.name in names for names in (grids.SQUARE, grids.TURNED, grids.NO_ROWS)),
                    family.name.startswith("timm-naflex"),
                )
                if key not in seen:
                    counts = collections.Counter(
                        (given, outcome(family, _shapes(tables, tokens, grid, layout), grid, layout, given))
                        for given in EVIDENCE
                        for grid in GRIDS
                    )
                    seen[key] = counts
                yield family, tokens, layout, seen[key]


def table():
    """Return the rows as they are in the file: strings."""
    found = []
    for family, tokens, layout, counts in rows():
        having = {True: "all", False: "tokens"}[layout.register_positions] if layout.rows else "none"
        texts = (family.name, "+".join(tokens) or "none", having)
        found.append([*texts, *(str(counts[given, word]) for given in EVIDENCE for word in WORDS)])
    return found


def main():
    """Write the file."""
    with PATH.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *table()])


if __name__ == "__main__":
    main()
