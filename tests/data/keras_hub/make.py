"""Write `presets.zip` and `towers.zip`, presets that KerasHub 0.32.0 saves, and what it computes with them.

`outputs.npz` and `towers.npz` hold the outputs.

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

TOWERS = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def value(name, shape, seed):
    """Return a weight: small, and for scales around 1."""
    return np.random.default_rng(seed).normal(0, 0.2, shape).astype("float32") + np.float32("gamma" in name)


def main():
    for archive_name, outputs, make in (("presets", "outputs", write), ("towers", "towers", write_towers)):
        with tempfile.TemporaryDirectory() as folder:
            np.savez_compressed(HERE / f"{outputs}.npz", **make(Path(folder)))
            with zipfile.ZipFile(HERE / f"{archive_name}.zip", "w", zipfile.ZIP_LZMA) as archive:
                for path in sorted(Path(folder).rglob("*.*")):
                    archive.write(path, path.relative_to(folder))


def write_towers(folder):
    """Write a preset of each other backbone, one of them in pieces and one also as a whole model."""
    import keras
    import keras_hub

    models, outputs = keras_hub.models, {}
    dinov2 = {**TOWERS, "patch_size": 4, "image_shape": (16, 16, 3), "position_embedding_shape": (16, 16)}
    registers = {"num_register_tokens": 2, "use_swiglu_ffn": True, "position_embedding_shape": (24, 24)}
    deit = models.DeiTBackbone(image_shape=(12, 16, 3), patch_size=4, layer_norm_epsilon=1e-5, **TOWERS)
    converter = keras_hub.layers.DeiTImageConverter(
        image_size=(12, 16), scale=1 / 51, offset=-2, interpolation="bicubic"
    )
    text = models.SigLIPTextEncoder(vocabulary_size=9, embedding_dim=8, max_sequence_length=4, **TOWERS)
    cases = {
        "dinov2": models.DINOV2Backbone(**dinov2),
        "registers": models.DINOV2Backbone(**{**dinov2, **registers}, antialias_in_interpolation=True),
        "deit": models.DeiTImageClassifier(deit, 3, models.DeiTImageClassifierPreprocessor(converter)),
        "deit-gap": models.DeiTImageClassifier(deit, 3, pooling="gap", activation="softmax"),
        "siglip": models.SigLIPBackbone(
            models.SigLIPVisionEncoder(patch_size=4, image_shape=(16, 16, 3), **TOWERS, name="vision"), text
        ),
    }
    for case, model in cases.items():
        for seed, weight in enumerate(model.weights):
            if "int" not in str(weight.dtype):  # the numbers of positions
                weight.assign(value(weight.path, weight.shape, seed))
        model.save_to_preset(str(folder / case), **({"max_shard_size": 4e-6} if case == "registers" else {}))
        if case in ("dinov2", "registers"):  # positions are resampled while a file is read
            model = models.DINOV2Backbone.from_preset(str(folder / case))
            if case == "dinov2":
                larger = models.DINOV2Backbone.from_preset(str(folder / case), image_shape=(24, 24, 3))
                images = np.random.default_rng(1).uniform(-1, 1, (2, 24, 24, 3)).astype("float32")
                outputs[f"{case}-larger"] = keras.ops.convert_to_numpy(larger({"images": images}))
            model.save_to_preset(str(folder / case), **({"max_shard_size": 4e-6} if case == "registers" else {}))
        if case == "deit-gap":
            model.save(folder / "deit-gap.keras")
        tower = model.vision_encoder if case == "siglip" else model
        shape = (12, 16) if case.startswith("deit") else (16, 16)
        images = np.random.default_rng(1).uniform(-1, 1, (2, *shape, 3)).astype("float32")
        given = images if case.startswith("deit") else {"images": images}
        outputs[case] = keras.ops.convert_to_numpy(tower(given))
    return outputs


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
