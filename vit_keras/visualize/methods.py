"""The kinds of maps. A new one is one row here and one function in `maps`; everything else is derived from the table.

Not even NumPy is imported here, so that `vit-keras --help` can list them at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .options import parameters_of

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Method:
    """A kind of map.

    Attributes:
        name: What `attention_map(method=)` takes.
        make: From a `Recording` to float32 maps `(batch, down, across)`; its further parameters are the method's
            options. A function, or the name of one in `vit_keras.visualize.maps`.
        summary: What the map shows, in a few words.
        of_class: Whether the map is for a class.
        keep: What `record` must keep for it.
        bound: Parameters of `make` that the method decides.
        needs: Further options of `record`. A map from the whole recording is the same; these save memory and time.
    """

    name: str
    make: Callable[..., np.ndarray] | str
    summary: str
    of_class: bool = False
    keep: tuple[str, ...] = ("attention",)
    bound: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def function(self) -> Callable[..., np.ndarray]:
        """The function that `make` names, with the arguments in `bound`."""
        make = self.make
        if isinstance(make, str):
            from . import maps

            make = getattr(maps, make)
        return functools.partial(make, **self.bound) if self.bound else make

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that `attention_map` takes for this method."""
        return parameters_of(self.function, without=("recording",))

    @property
    def exits(self) -> bool:
        """Whether it needs the gradients of each block's own exit."""
        return bool(self.needs.get("exits"))

    def plan(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of `record`, and those of `make`, for a caller's options."""
        recorded, made = {"keep": self.keep, **self.needs}, dict(options)
        if "head_fusion" in made:
            recorded["head_fusion"] = made["head_fusion"]
        if made.get("layer") is not None and "layers" in recorded:
            recorded["layers"], made["layer"] = made["layer"], -1  # the only one recorded
        return recorded, made


_FOR_TOKENS = ("attention", "values", "tokens")
_CAM = {"of_class": True, "keep": ("normed",), "needs": {"layers": -1}}

_TABLE = (
    Method(
        "rollout",
        "attention_rollout",
        "attention rollout: attention multiplied through all layers",
        needs={"head_fusion": "mean"},
    ),
    Method(
        "attention",
        "mean_of_heads",
        "attention of the last layer, averaged over the heads",
        needs={"query": "auto", "layers": -1},
    ),
    Method(
        "alti",
        "alti_rollout",
        "ALTI: contributions of the tokens (attention × values) through all layers",
        keep=_FOR_TOKENS,
    ),
    Method(
        "norm",
        "alti_rollout",
        "contributions of the tokens through all layers, measured by their 2-norm",
        keep=_FOR_TOKENS,
        bound={"kind": "norm"},
    ),
    Method(
        "relevance",
        "relevance_map",
        "relevance: attention × gradient, accumulated through all layers",
        of_class=True,
        needs={"head_fusion": "relevance"},
    ),
    Method(
        "gradient_rollout",
        "gradient_rollout",
        "attention rollout of attention × gradient",
        of_class=True,
        needs={"head_fusion": "gradient"},
    ),
    Method("gradcam", "grad_cam", "Grad-CAM in the last block", **_CAM),
    Method("hirescam", "grad_cam", "HiResCAM in the last block", **_CAM, bound={"kind": "hirescam"}),
    Method("layercam", "grad_cam", "LayerCAM in the last block", **_CAM, bound={"kind": "layercam"}),
    Method("legrad", "legrad", "LeGrad: gradients of the class at every layer", of_class=True, needs={"exits": True}),
)

METHODS: dict[str, Method] = {method.name: method for method in _TABLE}
"""The methods of `attention_map`, by name; those for a class come last."""

OF_A_CLASS = tuple(method.name for method in _TABLE if method.of_class)
"""Names of the methods whose maps are for a class."""
