"""The plan of a recording: the arrays to keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .._internal.validate import did_you_mean, one_of
from ..anatomy.parts import block_numbers
from .recording import FUSIONS, GRADIENT_FUSIONS

KEPT = ("attention", "values", "tokens", "normed")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a recording, by which compiled functions are told apart."""

    layers: tuple[int, ...]  # numbers of the blocks, rising
    keep: frozenset[str] = frozenset()  # some of `KEPT`
    head_fusion: str | None = None
    query: str = "all"  # "all" rows of attention, or "auto": the mean of those that the output is read from
    # whether each block leaves through the rest of the model; "patches": each patch by itself
    exits: bool | str = False
    target: str | Callable[..., Any] | None = None  # what gradients are of: None, "class" or a function of the outputs

    @classmethod
    def of(cls, count: int, layers: Any, keep: Any, head_fusion: Any, query: Any, exits: Any) -> Plan:
        """Return the plan of a caller's arguments, for a model of `count` blocks."""
        kept = frozenset([keep] if isinstance(keep, str) else keep)
        if wrong := sorted(kept - set(KEPT)):
            raise ValueError(
                f"keep must be of {', '.join(KEPT)}.{did_you_mean(wrong[0], KEPT)} Received: {', '.join(wrong)}"
            )
        one_of(head_fusion, "head_fusion", (None, *FUSIONS, *GRADIENT_FUSIONS))
        query = one_of(query, "query", ("all", "auto"))
        return cls(block_numbers(layers, count), kept, head_fusion, query, exits)

    def with_target(self, target: Any) -> Plan:
        """Return the plan for a target as `record` takes it."""
        if target is None:
            if self.head_fusion in GRADIENT_FUSIONS or self.exits is True:
                raise ValueError("This needs gradients: pass target=, such as 'predicted' or the number of a class.")
            return self
        return dataclasses.replace(self, target=target if callable(target) else "class")
