"""Infer the patch grid of a file's position embeddings, and which tokens before the patches have positions.

The number of rows is ambiguous: 16 rows are 4 x 4 or 2 x 8 patches, or 3 x 5 patches and a class token. The sources
are, in this order: the caller's `source_grid`, the grid that the file stores, neighboring files and metadata
(`config.json`, the registry, our metadata), the image size that the caller wants, and finally the assumption of a
square grid with the usual tokens. An unknown grid sets `Table.error`, and an uncertain one `Table.warning`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._internal.bounds import patch_cells, patch_stride
from .._internal.validate import size_pair
from ..positions import relative_position_rows, square_grid
from .families.rules import ATTENTION, BLOCK, POSITIONS, Family

__all__ = ["Layout", "Table", "has_positions", "image_size_of", "is_cut", "layouts", "patches_of", "read"]

Grid = tuple[int, int]

SQUARE = frozenset(
    (
        *("huggingface-dinov2", "huggingface-internvl", "huggingface-dpt", "huggingface-clip", "huggingface-siglip"),
        *("huggingface-owlvit", "huggingface-blip", "huggingface-janus", "dinov2", "dino", "flexivit", "torchvision"),
    )
)
"""Families whose own code takes every table for a square, and resamples it for other images."""

TURNED = frozenset(("huggingface-beit",))
"""Families whose own code reads a table of relative positions as (across, down), and resamples it to (down, across).

It takes a table of learned positions for a square.
"""


NO_ROWS = frozenset(("deit3", "rope-vit"))
"""Families whose tables have no row for the class token, unless their `config` has a `position_prefix`."""


class Layout(NamedTuple):
    """The tokens that have rows in a table of positions."""

    position_prefix: bool  # whether the class and distillation tokens have rows
    register_positions: bool  # whether the registers have rows
    rows: int  # rows before the patches


@dataclasses.dataclass(frozen=True)
class Table:
    """The interpretation of the positions in a file."""

    grid: Grid | None  # patches down and across
    native: Grid | None  # those of the file's images; differs from `grid` if the family's own code resamples the table
    patches: int | None
    layout: Layout
    shown_by: str | None  # "source_grid", "file", "config", "image_size" or "square"
    warning: str = ""  # the other possible grids, and the argument that decides; or empty
    error: str = ""  # the missing information, and the argument that supplies it; or empty

    @property
    def fields(self) -> dict[str, bool]:
        """The fields of `ViTConfig` for the tokens that have rows."""
        return {
            "position_prefix": self.layout.position_prefix,
            "register_positions": self.layout.register_positions,
        }


class _Rows(NamedTuple):
    """What the shapes in a file say of its grid: numbers of rows, `None` where there is no such table."""

    learned: int | None
    relative: int | None
    mixing: int | None
    tokens: int
    registers: int

    def fit(self, grid: Grid, layout: Layout) -> bool:
        down, across = grid
        return (
            self.learned in (None, layout.rows + down * across)
            and self.relative in (None, relative_position_rows(grid, self.tokens + self.registers))
            and self.mixing in (None, down * across)
        )

    def patches(self, layout: Layout) -> int | None:
        return self.mixing if self.learned is None else self.learned - layout.rows

    def square(self, layout: Layout) -> Grid | None:
        patches = self.patches(layout)
        if patches is None and self.relative is not None:
            of_tokens = relative_position_rows((1, 1), self.tokens + self.registers) - 1
            patches = ((math.isqrt(max(0, self.relative - of_tokens)) + 1) // 2) ** 2
        grid = None if patches is None else square_grid(patches)
        return grid if grid and self.fit(grid, layout) else None


def _rows(shapes: Mapping[str, tuple[int, ...]]) -> _Rows | None:
    learned, relative, mixing = (
        shapes[name][axis] if len(shapes.get(name, ())) > axis else None
        for name, axis in (
            (POSITIONS, 1),
            (f"{ATTENTION}/relative_position_bias".format(i=0), 0),
            (f"{BLOCK}/token_mixing/Dense_0/kernel".format(i=0), 0),
        )
    )
    if learned is relative is mixing is None:
        return None
    registers = shapes["registers"][1] if len(shapes.get("registers", ())) == 3 else 0
    return _Rows(learned, relative, mixing, ("cls" in shapes) + ("dist" in shapes), registers)


def has_positions(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether the weights of a model belong to a grid of patches."""
    return _rows(shapes) is not None


def patches_of(image_size: Grid, fields: Mapping[str, Any]) -> Grid:
    """Return the whole patches down and across of an image, for the `patch_size` and `resnet` in fields of a model."""
    cells, patch = patch_cells(image_size, fields.get("resnet")), size_pair(fields["patch_size"], "patch_size")
    return cells[0] // patch[0], cells[1] // patch[1]


def is_cut(image_size: Grid, fields: Mapping[str, Any]) -> bool:
    """Return whether an image has more pixels than its whole patches, for a model with these fields."""
    cells, patch = patch_cells(image_size, fields.get("resnet")), size_pair(fields["patch_size"], "patch_size")
    return any(count % step for count, step in zip(cells, patch))


def image_size_of(grid: Grid, stated: Grid | None, fields: Mapping[str, Any]) -> Grid:
    """Return the pixels of images with this grid: those that are stated, if they have it, or else whole patches."""
    if stated is not None and patches_of(stated, fields) == tuple(grid):
        return stated
    stride = patch_stride(fields["patch_size"], fields.get("resnet"))
    return grid[0] * stride[0], grid[1] * stride[1]


def layouts(shapes: Mapping[str, tuple[int, ...]], family: Family) -> list[Layout]:
    """Return the possible layouts of a table of a family, the most common first."""
    rows = _rows(shapes)
    if rows is None or rows.learned is None:
        return [Layout(True, False, 0)]
    tokens, registers = rows.tokens, rows.registers
    of_tokens, of_none = Layout(True, False, tokens), Layout(False, False, 0)
    found = [of_tokens, of_none] if tokens else [of_tokens]
    if registers:
        found.append(Layout(True, True, tokens + registers))
    # timm's tables have rows for all tokens before the patches, or as usual with registers, for none.
    together = registers > 0 and any({"registers", "position_prefix"} <= set(group) for group in family.excludes)
    usual = False if together and tokens else _convention(family) is not False
    return sorted(
        found,
        key=lambda layout: (
            layout.position_prefix is not usual,
            (together and tokens > 0) is not layout.register_positions,
        ),
    )


def _convention(family: Family) -> bool | None:
    """Return whether the class token has a row in a family's tables; `None` if that varies."""
    return False if family.name in NO_ROWS else family.config.get("position_prefix")


def read(
    shapes: Mapping[str, tuple[int, ...]],
    family: Family,
    *,
    source_grid: Grid | None = None,
    asked: Mapping[str, Any] | None = None,
    saved: Grid | None = None,
    stated: Grid | None = None,
    told: Mapping[str, Any] | None = None,
    wanted: Grid | None = None,
    usual: Mapping[str, Any] | None = None,
    is_ours: bool = False,
) -> Table | None:
    """Infer the patch grid of the positions in a file, from `{canonical name: shape}` and all sources."""
    # Grids are patches down and across: `source_grid` from the caller, `saved` with the table, `stated` by neighboring
    # files or metadata (`is_ours`: this package's, whose tables are never transposed), `wanted` for the caller's
    # images. `asked` (by the caller), `told` (by neighboring files) and `usual` (in published models) have
    # `position_prefix` and `register_positions`.
    rows = _rows(shapes)
    if rows is None:
        return None
    is_square = family.name in SQUARE or (family.name in TURNED and rows.relative is None)
    hard = {"position_prefix": True} if family.config.get("position_prefix") else {}
    possible = _agreeing(layouts(shapes, family), asked)
    believed = _agreeing(possible, {**hard, **(told or {}), **(asked or {})})
    if usual:
        first = _agreeing(believed, usual)
        believed = [*first, *(layout for layout in believed if layout not in first)]
    if source_grid is not None and not any(rows.fit(source_grid, layout) for layout in possible):
        raise ValueError(_mismatch(rows, believed, possible, f"the grid {(source_grid[0], source_grid[1])}"))
    known = (
        ("source_grid", source_grid, [*believed, *possible]),
        ("file", saved, possible),
        ("config", stated, believed),
    )
    found = next(
        (
            (source, (grid[0], grid[1]), layout)
            for source, grid, candidates in known
            for layout in candidates
            if grid is not None and rows.fit(grid, layout)
        ),
        None,
    )
    if found is None:
        has_convention = bool(usual) or _convention(family) is not None
        table = _guess(rows, believed, wanted, has_convention, is_square)
        error = _mismatch(rows, believed, possible, "a square grid") + " Pass source_grid=(down, across)."
        table = dataclasses.replace(table, error="" if table.grid else error)
    else:
        shown_by, grid, layout = found
        table = Table(grid, grid, math.prod(grid), layout, shown_by)
    if is_ours or table.grid is None:
        return table
    if family.name in TURNED and rows.relative is not None:
        turned = table.grid[::-1]
        if rows.learned is not None and turned != table.grid and square_grid(math.prod(turned)):
            error = "it has positions that transformers reads as a square, and relative ones that it does not"
            return dataclasses.replace(table, grid=None, error=f"{error}: no model here does both.")
        return dataclasses.replace(table, grid=turned)
    if table.shown_by == "config" and is_square:
        return dataclasses.replace(table, grid=rows.square(table.layout) or table.grid)
    return table


def _guess(rows: _Rows, believed: list[Layout], wanted: Grid | None, has_convention: bool, is_square: bool) -> Table:
    """Read a table as the grid of the images that the caller wants to pass, or else as a square."""
    squares = [(layout, grid) for layout in believed if (grid := rows.square(layout))]
    conventional = has_convention and bool(squares) and squares[0][0] is believed[0]
    if wanted is not None and (not squares or (wanted != squares[0][1] and not is_square)):
        for layout in believed[:1] if conventional else believed:
            if rows.fit(wanted, layout):
                warning = _warn_of_wanted(rows, wanted, layout, squares)
                return Table(wanted, wanted, math.prod(wanted), layout, "image_size", warning)
    if not squares:
        return Table(None, None, rows.patches(believed[0]), believed[0], None)
    layout, grid = squares[0]
    warning = ""
    if layout is not believed[0] or (len(squares) > 1 and not has_convention):
        other = believed[0] if layout is not believed[0] else squares[1][0]
        warning = _warn_of_rows(rows, grid, layout, other)
    return Table(grid, grid, math.prod(grid), layout, "square", warning)


def _agreeing(found: list[Layout], told: Mapping[str, Any] | None) -> list[Layout]:
    """Return the layouts that agree with the known fields, as far as there are any."""
    told = told or {}
    for field in Layout._fields[:2]:
        if field in told:
            found = [layout for layout in found if getattr(layout, field) is bool(told[field])] or found
    return list(found)


# --- in words -----------------------------------------------------------------------------------------------


def _by(grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]}"


def _in_words(layout: Layout, rows: _Rows) -> str:
    """Describe the tokens that have rows, such as "without a row for the class token"."""
    tokens = {1: "the class token", 2: "the class and the distillation token"}.get(rows.tokens, "")
    if layout.register_positions:
        return f"with rows for {tokens + ' and ' if tokens else ''}{rows.registers} registers"
    if not layout.rows:
        return f"without a row for {tokens}" if tokens else f"without rows for {rows.registers} registers"
    return f"with a row for {tokens}" if layout.rows == 1 else f"with rows for {tokens}"


def _count(rows: _Rows, layout: Layout) -> str:
    patches = rows.patches(layout)
    return f"{rows.relative} relative positions" if patches is None else f"{patches} patches"


def _others(rows: _Rows, believed: list[Layout], possible: list[Layout]) -> str:
    """Describe the numbers of patches with other layouts."""
    others = [layout for layout in (*believed, *possible) if layout is not believed[0]]
    texts = dict.fromkeys(f"{_count(rows, layout)} {_in_words(layout, rows)}" for layout in others)
    return f", or {', or '.join(texts)}" if texts and rows.learned is not None else ""


def _mismatch(rows: _Rows, believed: list[Layout], possible: list[Layout], wanted: str) -> str:
    return f"it has {_count(rows, believed[0])}, which is not {wanted}{_others(rows, believed, possible)}."


def _warn_of_wanted(rows: _Rows, wanted: Grid, layout: Layout, squares: list[tuple[Layout, Grid]]) -> str:
    read_as = f"Its positions are read as {_by(wanted)} patches, the grid of the images that the model is built for"
    if not squares:
        return f"{read_as}. Pass source_grid={wanted} to be sure."
    other, square = squares[0]
    rest = "" if other == layout else f" {_in_words(other, rows)}"
    advice = f"Pass source_grid={wanted} or source_grid={square} to be sure."
    return f"{read_as}. They may also be {_by(square)}{rest}. {advice}"


def _warn_of_rows(rows: _Rows, grid: Grid, layout: Layout, other: Layout) -> str:
    return (
        f"Its {rows.learned} positions are read as {_by(grid)} patches {_in_words(layout, rows)}. They may also be "
        f"{rows.patches(other)} patches {_in_words(other, rows)}. Pass source_grid=(down, across) to be sure, "
        f"source_grid={grid} for what is read."
    )
