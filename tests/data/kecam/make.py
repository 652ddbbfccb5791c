"""Write `outputs.npz`: what keras-cv-attention-models 1.4.3 computes with seeded weights, at two sizes.

pip install kecam tf-keras
TF_USE_LEGACY_KERAS=1 KECAM_BACKEND=tensorflow python tests/data/kecam/make.py
"""

import json
from pathlib import Path

import numpy as np

CASES = {
    "vit": ("vit", "ViT", {}),
    "flexivit": ("flexivit", "FlexiViT", {}),
    "eva": ("eva", "EVA", {"attn_qkv_bias": True}),
    "dinov2": ("dinov2", "DINOv2", {"use_gated_mlp": True, "activation": "swish", "mlp_ratio": 2}),
}
SIZES = ((32, 32), (48, 64))
HERE = Path(__file__).parent


def value(name, shape, seed):
    """Return a weight: small, and for scales around 1."""
    return np.random.default_rng(seed).normal(0, 0.2, shape).astype("float32") + np.float32("gamma" in name)


def images(size):
    return np.random.default_rng(1).uniform(-1, 1, (2, *size, 3)).astype("float32")


def main():
    from keras_cv_attention_models import beit

    found = {}
    for case, (module, name, options) in CASES.items():
        sizes = {"depth": 2, "embed_dim": 32, "num_heads": 2, "patch_size": 8, "num_classes": 5}
        build = getattr(getattr(beit, module), name)
        for size in SIZES:
            saved = str(HERE / f"{case}.h5") if size != SIZES[0] else None
            model = build(**sizes, **options, input_shape=(*size, 3), classifier_activation=None, pretrained=saved)
            if saved is None:
                model.set_weights([value(w.name, w.shape, seed) for seed, w in enumerate(model.weights)])
                model.save_weights(HERE / f"{case}.h5")
                found[case] = json.dumps([[w.name, list(w.shape)] for w in model.weights])
            found[f"{case} {size[0]}"] = np.asarray(model(images(size)))
        (HERE / f"{case}.h5").unlink()
    np.savez(HERE / "outputs.npz", **found)


if __name__ == "__main__":
    main()
