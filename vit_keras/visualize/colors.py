"""Colors of numbers: tables of Matplotlib's maps, and the scale of a map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .._internal.validate import as_array, did_you_mean

__all__ = ["COLORS", "color", "stretch"]

# Every fifth of the 256 colors of Matplotlib's maps, from black or blue to bright: inferno, viridis and magma by N.
# Smith and S. van der Walt (CC0), cividis by Nuñez, Anderton and Renslow (2018), turbo by A. Mikhailov (Google,
# Apache-2.0).
_TABLES = {
    "inferno": (
        "00000402020c0504170a072210092d160b391e0c45260c512f0a5b380962400a67490b6a510e6c59106e61136e69166e71196e78"
        "1c6d801f6c88226a902568982766a02a63a82e5fb0315bb73557bf3952c63d4dcc4248d34743d94d3ddf5337e45a31e9612bed69"
        "25f1711ff47918f78212f98b0bfa9407fb9d07fca60cfcb014fbba1ffac42af8cd37f6d746f4e156f2ea69f2f27df5f992fcffa4"
    ),
    "viridis": (
        "44015446085c471063481769481d6f482475472a7a46307e453781433d844142873f48893d4e8a3a538b38598c355e8d33638d31"
        "688e2e6d8e2c718e2a768e297b8e27808e25848e23898e218e8d20928c1f978b1e9c891fa18821a58524aa8328ae802eb37c35b7"
        "793dbc7446c06f50c46a5ac86465cb5e70cf577cd25089d54895d840a2da37b0dd2fbddf26cae11fd8e219e5e419f1e51dfde725"
    ),
    "cividis": (
        "00224e002656002a5f002d68003070083370163770203a6f273e6e2e416d34456c3a486c3f4c6c444f6c49536c4e566c535a6d57"
        "5d6d5c616e60646f656870696b716d6f727272747676767a7a787e7d788381798885788d8878928c789690779b9476a09875a59c"
        "74aaa073afa471b5a86fbaac6dbfb06bc4b468c9b965cfbd62d4c15fdac65bdfca57e5cf52ead34cf0d846f6dd3ffce236fee838"
    ),
    "turbo": (
        "30123b36215f3b2f803f3e9c424bb54559cb4666dd4773eb4680f6458cfd4099ff38a5fb2fb2f427bee91fc9dd1ad4d018ddc21a"
        "e4b622ebaa2ff19b3ff68a52fa7a65fd6979fe598bff4b9cfe40a9fb39b7f735c3f134d0ea34dbe236e5d938eecf3af5c53afaba"
        "39fdae35fea130fe932afc8423f9751df46617ef5811e84b0ce14109d83706ce2d04c32503b71d02a916019b0f018b09027a0403"
    ),
    "magma": (
        "00000402020b0504160907200e0b2b140e361a104221114e29115a311165390f6e420f754a107952137c5a167e6219806a1c8172"
        "1f81792282812581892881912b81992d80a1307eaa337db2357bba3878c23b75ca3e72d2426fd9466be04c67e75263ec5860f160"
        "5df4695cf7725cf97b5dfb8560fc8e64fd9869fea16efeaa74feb47bfebd82fec68afecf92fed89afde2a3fdebacfcf4b6fcfdbf"
    ),
}
COLORS = {name: np.frombuffer(bytes.fromhex(table), "uint8").reshape(-1, 3) for name, table in _TABLES.items()}

Clip = float | tuple[float, float] | Literal["inner"]
Cmap = str | Callable[[np.ndarray], np.ndarray]


def stretch(heat: np.ndarray, clip: Clip = (0, 99)) -> np.ndarray:
    """Return a map with the values of `limits_of` brought to 0 and 1; a constant map and NaN become 0."""
    return scaled(heat, limits_of(heat, clip))


def color(values: np.ndarray, cmap: Cmap = "inferno") -> np.ndarray:
    """Return colors in [0, 255] of the shape `(*values.shape, 3)` for values in [0, 1]; see `overlay` for `cmap`."""
    return color_and_opacity(values, cmap)[0]


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


def scaled(heat: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Bring a map to [0, 1] between two values; what is not a number becomes 0."""
    heat, (low, high) = as_array(heat, "float64"), limits
    if not high > low:
        return np.zeros_like(heat)
    return np.where(np.isnan(heat), 0, np.clip((heat - low) / (high - low), 0, 1))


def color_and_opacity(values: np.ndarray, cmap: Cmap) -> tuple[np.ndarray, np.ndarray | float]:
    """Return colors in [0, 255] and their opacity; see `overlay` for `cmap`."""
    if isinstance(cmap, str):
        if cmap not in COLORS:
            raise ValueError(
                f"cmap must be one of {', '.join(COLORS)}, or a function such as matplotlib.colormaps['gray']."
                f"{did_you_mean(cmap, COLORS)} Received: {cmap!r}"
            )
        steps = np.linspace(0, 1, len(COLORS[cmap]))
        return np.stack([np.interp(values, steps, channel) for channel in COLORS[cmap].T], axis=-1), 1.0
    if not callable(cmap):
        raise ValueError(f"cmap must be a name or a function. Received: {type(cmap).__name__}")
    colors = np.asarray(cmap(values))
    if colors.shape not in ((*np.shape(values), 3), (*np.shape(values), 4)):
        raise ValueError(
            f"cmap must return (..., 3) or (..., 4) for values of the shape {np.shape(values)}. "
            f"It returned {colors.shape}"
        )
    colors = colors / 255 if np.issubdtype(colors.dtype, np.integer) else colors
    return 255 * np.clip(colors[..., :3], 0, 1), colors[..., 3:] if colors.shape[-1] == 4 else 1.0
