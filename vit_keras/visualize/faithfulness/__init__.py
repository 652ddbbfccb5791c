"""Three tests of how faithful maps are, none of which needs a person to look at them.

- `evaluate_maps`: what the map calls important is removed, and the model's score should fall.
- `grid_pointing_game`: among several images side by side, a map for a class should point at the one of that class.
- `randomization_check`: a map that stays the same when the model's weights are shuffled does not explain these weights.

A *method* is, in all three: the name of a method of `attention_map`; a dictionary of its arguments, such as
`{"method": "relevance", "start_layer": 6}`; or a function of a model and of images, uint8
`(batch, height, width, channels)` in the model's size, that returns maps `(batch, down, across)` on the grid of
patches, or of the images' size. If the function has a parameter `target`, it also gets the classes to explain,
`(batch,)`, or `None`.
"""

from .pointing import GridPointing, grid_pointing_game
from .randomization import RandomizationCheck, randomization_check, spearman
from .removal import METRICS, RANDOM, MapEvaluation, evaluate_maps

__all__ = [
    "METRICS",
    "RANDOM",
    "GridPointing",
    "MapEvaluation",
    "RandomizationCheck",
    "evaluate_maps",
    "grid_pointing_game",
    "randomization_check",
    "spearman",
]
