"""Write `presets.zip`, presets that KerasHub 0.32.0 saves, and `outputs.npz`, what it computes with them.

pip install keras-hub
KERAS_BACKEND=torch python tests/data/keras_hub/make.py
"""

import tempfile
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
CASES = {  # options of the backbone and of the classifier
    "token": ({}, {}),
    "gap": ({"use_class_token": False, "num_layers": 1}, {"pooling": "gap"}),
    "all": ({"num_layers": 1}, {"pooling": "gap"}),
    "pre_logits": (
        {
            "image_shape": (24, 32, 3),
            "patch_size": (8, 16),
            "num_layers": 1,
            "use_mha_bias": False,
            "layer_norm_epsilon": 1e-5,
        },
        {"intermediate_dim": 8, "activation": "softmax"},
    ),
}


def value(name, shape, seed):
    """Return a weight: small, and for scales around 1."""
    return np.random.default_rng(seed).normal(0, 0.2, shape).astype("float32") + np.float32("gamma" in name)


def main():
    with tempfile.TemporaryDirectory() as folder:
        np.savez(HERE / "outputs.npz", **write(Path(folder)))
        with zipfile.ZipFile(HERE / "presets.zip", "w", zipfile.ZIP_LZMA) as archive:
            for path in sorted(Path(folder).rglob("*.*")):
                archive.write(path, path.relative_to(folder))


def write(folder):
    """Write a preset and a file of weights for each case, and return the outputs."""
    import keras
    import keras_hub

    found = {}
    for case, (backbone, classifier) in CASES.items():
        backbone = {"image_shape": (32, 32, 3), "patch_size": 8, **SIZES, **backbone}
        converter = keras_hub.layers.ViTImageConverter(
            image_size=backbone["image_shape"][:2], scale=1 / 127.5, offset=-1, antialias=True
        )
        model = keras_hub.models.ViTImageClassifier(
            keras_hub.models.ViTBackbone(**backbone),
            num_classes=3,
            preprocessor=keras_hub.models.ViTImageClassifierPreprocessor(converter),
            **classifier,
        )
        model.set_weights([value(w.path, w.shape, seed) for seed, w in enumerate(model.weights)])
        model.save_to_preset(str(folder / case))
        if not case.startswith(("gap", "all")):  # whose pooling only a preset shows
            model.save_weights(str(folder / f"{case}.weights.h5"))
        images = np.random.default_rng(1).uniform(-1, 1, (2, *backbone["image_shape"])).astype("float32")
        found[case] = keras.ops.convert_to_numpy(model(images))
        found[f"{case}-backbone"] = keras.ops.convert_to_numpy(model.backbone(images))
        pixels = np.random.default_rng(2).integers(0, 256, (40, 70, 3), "uint8")
        found[f"{case}-inputs"] = keras.ops.convert_to_numpy(converter(pixels[None]))
    return found


if __name__ == "__main__":
    main()
