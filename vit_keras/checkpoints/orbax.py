"""Open checkpoints of `keras.callbacks.OrbaxCheckpoint` on any number of devices and any backend.

Keras itself requires the number of devices that wrote the checkpoint.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

__all__ = ["assign", "is_checkpoint", "read"]


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder of Orbax checkpoints of a model, or one such checkpoint."""
    return _last(Path(path)) is not None


def _last(folder: Path) -> Path | None:
    """Return the folder of the last complete checkpoint: folders are numbered, and a file marks a complete one."""
    steps = [folder, *folder.glob("[0-9]*")] if os.path.isdir(folder) else []  # False for a name that is too long
    whole = [step for step in steps if (step / "model_config").is_dir() and (step / "_CHECKPOINT_METADATA").is_file()]
    return max(whole, key=lambda step: int(step.name) if step.name.isdigit() else -1, default=None)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration and the values of all variables, for `set_state_tree`, in a folder's last checkpoint."""
    last = _last(Path(path))
    if last is None:
        raise FileNotFoundError(f"{path} has no whole checkpoint of Orbax in it.")
    try:
        import orbax.checkpoint as orbax
    except ImportError:
        raise ImportError(f"{path} was written by Orbax. Install it: pip install orbax-checkpoint") from None
    step = last.absolute()

    def empty(found):  # Orbax reads into an array of NumPy what is asked for as one, whatever devices held it
        return np.empty(found.shape, found.dtype)

    shapes = orbax.v1.checkpointables_metadata(step).metadata["pytree"]
    loaded = orbax.v1.load_checkpointables(
        step, {"pytree": keras.tree.map_structure(empty, shapes), "model_config": None}
    )
    return json.loads(loaded["model_config"]["config"]), loaded["pytree"]


def assign(state: dict[str, Any], model: keras.Model) -> None:
    """Assign the values that `read` returned to a model's variables, and to its optimizer if it has one."""
    # The checkpoint must have every variable except states of random numbers, which may have other names.
    optimizer = getattr(model, "optimizer", None)
    kinds = {"trainable_variables", "non_trainable_variables", *(["optimizer_variables"] if optimizer else [])}
    state = {kind: values for kind, values in state.items() if kind in kinds}
    there = {path for values in state.values() for path in _paths(values)}
    variables = [*model.variables, *(optimizer.variables if optimizer else [])]
    missing = [v.path for v in variables if v.path not in there and not v.path.endswith("seed_generator_state")]
    if missing:
        raise ValueError(f"the checkpoint lacks {len(missing)} of {len(variables)} variables, the first {missing[0]!r}")
    model.set_state_tree(state)


def _paths(values: Any, above: tuple[str, ...] = ()) -> list[str]:
    if not isinstance(values, dict):
        return ["/".join(above)]
    return [path for name, inner in values.items() for path in _paths(inner, (*above, name))]
