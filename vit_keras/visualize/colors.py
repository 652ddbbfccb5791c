"""Colors of numbers: tables of Matplotlib's maps, and the scale of a map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .._internal.imports import extra
from .._internal.validate import as_array, did_you_mean

__all__ = ["color", "stretch"]

# Every fifth of the 256 colors of Matplotlib's map inferno, by N. Smith and S. van der Walt (CC0).
_INFERNO = np.frombuffer(
    bytes.fromhex(
        "00000402020c0504170a072210092d160b391e0c45260c512f0a5b380962400a67490b6a510e6c59106e61136e69166e71196e78"
        "1c6d801f6c88226a902568982766a02a63a82e5fb0315bb73557bf3952c63d4dcc4248d34743d94d3ddf5337e45a31e9612bed69"
        "25f1711ff47918f78212f98b0bfa9407fb9d07fca60cfcb014fbba1ffac42af8cd37f6d746f4e156f2ea69f2f27df5f992fcffa4"
    ),
    "uint8",
).reshape(-1, 3)

Clip = float | tuple[float, float] | Literal["inner"]
Cmap = str | Callable[[np.ndarray], np.ndarray]


def stretch(heat: np.ndarray, clip: Clip = (0, 99)) -> np.ndarray:
    """Return a map with the values of `limits_of` brought to 0 and 1; a constant map and NaN become 0."""
    heat, (low, high) = as_array(heat, "float64"), limits_of(heat, clip)
    return np.where(np.isnan(heat), 0, np.clip((heat - low) / (high - low), 0, 1)) if high > low else 0 * heat


def percentiles(clip: Any) -> tuple[float, float]:
    """Return the two percentiles that `clip` means."""
    pair = tuple(clip) if np.ndim(clip) else (0, clip)
    if isinstance(clip, str) or len(pair) != 2 or not 0 <= pair[0] < pair[1] <= 100:
        raise ValueError(
            "clip must be two percentiles, 0 <= low < high <= 100, or the upper one; for maps also 'inner'. "
            f"Received: {clip!r}"
        )
    return float(pair[0]), float(pair[1])


def limits_of(heat: np.ndarray, clip: Clip) -> tuple[float, float]:
    """Return the values of a map that become the lowest and the highest color: percentiles, or by `"inner"`."""
    # With "inner", the lowest value and the highest that is not an outlier: outliers are more than three interquartile
    # ranges above the upper quartile.
    bounds = None if isinstance(clip, str) and clip == "inner" else percentiles(clip)
    heat = as_array(heat, "float64")
    heat = heat[np.isfinite(heat)]
    if not heat.size:
        return 0.0, 0.0
    if bounds is None:
        lower, upper = np.percentile(heat, (25, 75))
        low, high = heat.min(), heat[heat <= upper + 3 * (upper - lower)].max()
    else:
        low, high = np.percentile(heat, bounds)
    return (low, high) if high > low else (heat.min(), heat.max())  # equal: a single patch above the rest


def color(values: np.ndarray, cmap: Cmap = "inferno") -> np.ndarray:
    """Return colors in [0, 255] of the shape `(*values.shape, 3)` for values in [0, 1]; see `overlay` for `cmap`."""
    if isinstance(cmap, str) and cmap == "inferno":
        steps = np.linspace(0, 1, len(_INFERNO))
        return np.stack([np.interp(values, steps, channel) for channel in _INFERNO.T], axis=-1)
    if isinstance(cmap, str):
        known = extra("matplotlib", f"The color map {cmap!r} is of Matplotlib").colormaps
        if cmap not in known:
            raise ValueError(
                f"cmap must be the name of a color map, as 'inferno', or a function.{did_you_mean(cmap, known)} "
                f"Received: {cmap!r}"
            )
        cmap = known[cmap]
    if not callable(cmap):
        raise ValueError(f"cmap must be a name or a function. Received: {type(cmap).__name__}")
    colors = np.asarray(cmap(values))
    if colors.shape not in ((*np.shape(values), 3), (*np.shape(values), 4)):
        raise ValueError(
            f"cmap must return (..., 3) or (..., 4) for values of the shape {np.shape(values)}. "
            f"It returned {colors.shape}"
        )
    colors = colors[..., :3] if np.issubdtype(colors.dtype, np.integer) else 255 * colors[..., :3]
    return np.clip(colors, 0, 255)
