"""Small models of every kind that is exported, with weights that are not zero."""

import keras
import numpy as np
import pytest

from vit_keras import preprocess, vit


def tiny(seed=0, **options):
    """A small model with a head that is not zero."""
    keras.utils.set_random_seed(seed)
    fields = {"image_size": 32, "patch_size": 16, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "mlp_dim": 32}
    return randomized(vit.build_model(name="tiny", **{**fields, "classes": 3, **options}), seed)


def randomized(model, seed=0):
    """Add noise to all weights, the same on every backend."""
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.dtype != "uint32":  # the state of a random generator
            value = keras.ops.convert_to_numpy(weight).astype("float32")
            weight.assign(value + generator.normal(0, 0.2, value.shape).astype("float32"))
    return model


def _nested():
    backbone = tiny(include_top=False, mlp_activation="gelu")
    return randomized(keras.Sequential([backbone, keras.layers.Dropout(0.5), keras.layers.Dense(3, "softmax")]))


def _functional():
    image = keras.Input((32, 32, 3))
    return randomized(
        keras.Model(image, keras.layers.Dense(4)(tiny(include_top=False, pooling="gap")(image)), name="f")
    )


CASES = {
    "token": tiny,
    "softmax": lambda: tiny(activation="softmax"),
    "features": lambda: tiny(include_top=False),
    "tokens": lambda: tiny(include_top=False, pooling=None),
    "gap": lambda: tiny(pooling="gap"),
    "map": lambda: tiny(pooling="map"),
    "registers": lambda: tiny(registers=2, layer_scale=0.1, gated_mlp=True, mlp_activation="silu"),
    "rope": lambda: tiny(registers=2, rope_theta=100.0, position=None),
    "mixer": lambda: tiny(tokens_mlp_dim=8, pooling="gap", position=None),
    "hybrid": lambda: tiny(patch_size=1, resnet=(1, 1)),
    "two heads": lambda: tiny(pooling="token+dist", distillation_token=True),
    "gray": lambda: tiny(channels=1),
    "merged": lambda: tiny(patch_size=8, merge_tokens=4),
    "merged patches": lambda: tiny(patch_size=8, merge_tokens=4, pooling="gap"),
    "nested": _nested,
    "functional": _functional,
    "half": lambda: tiny(dtype="mixed_bfloat16"),
    "pixels": lambda: keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Rescaling(1 / 127.5, -1), tiny()]),
    "any pixels": lambda: keras.Sequential(
        [keras.Input((None, None, 3)), preprocess.Preprocess(preprocess.CLIP, 32), tiny()]
    ),
    "any size": lambda: tiny(image_size=None, position_grid=(2, 2)),
}
"""Functions that make the models, by name."""
TOKENS = {"registers": (False, 2), "class": (True, 0), "none": (False, 0), "both": (True, 2)}
POOLINGS = ("gap", "map", "all", None)
POSITIONS = {
    "rotary": {"position": None, "rope_theta": 100.0},
    "learned": {},
    "sines": {"position": "sincos2d"},
    "rotary too": {"rope_theta": 100.0},
}


def arranged(tokens, pooling, positions):
    """A model with some tokens before the patches, a way to pool and a kind of positions."""
    class_token, registers = TOKENS[tokens]
    options = {"class_token": class_token, "registers": registers, "include_top": pooling is not None}
    return tiny(num_layers=1, pooling=pooling, **options, **POSITIONS[positions])


OFTEN = ("nested", "rope", "half", "any size")
"""Those that are tried in every format whenever the slow tests run."""


def often(cases):
    """Parameters of all cases, of which the less usual ones are `exhaustive`."""
    return [pytest.param(name, marks=() if name in OFTEN else pytest.mark.exhaustive) for name in cases]
