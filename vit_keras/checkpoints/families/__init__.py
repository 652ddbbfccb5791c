"""Families of checkpoints, which translate names to canonical names, without importing Keras.

The canonical name of a weight is its name in Google's original .npz files, for example
`Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel`; the layout is Keras'. Each module of this folder lists its
`FAMILIES`, and is found by itself. `docs/add_a_family.md` shows how to add one.
"""

import importlib
import pkgutil

from . import timm, timm_naflex
from .rules import Family

__all__ = ["FAMILIES", "TIMM_FAMILIES", "Family", "family_named"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in pkgutil.iter_modules(__path__)
    for family in getattr(importlib.import_module(f"{__name__}.{module.name}"), "FAMILIES", ())
}
TIMM_FAMILIES = (*timm.FAMILIES, *timm_naflex.FAMILIES)
"""Those of timm's names, whose `config.json` names an architecture of timm."""


def family_named(name: str) -> Family:
    """Return a family by its name."""
    if name not in FAMILIES:
        raise ValueError(f"Unknown family: {name!r}. The families are {', '.join(FAMILIES)}.")
    return FAMILIES[name]
