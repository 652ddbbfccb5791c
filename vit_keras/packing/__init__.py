"""Pack images of different sizes into sequences of tokens, in which each image attends only to itself.

Packing: NaViT (arXiv 2307.06304). With one image a sequence, it is NaFlex' padding (SigLIP 2, arXiv 2502.14786).

    >>> import vit_keras
    >>> from vit_keras import vit
    >>> model = vit.build_model(64, 8, 2, 64, 2, "tiny", 128, classes=10)
    >>> packed = vit_keras.pack(model, tokens=128)
    >>> images = [np.zeros((64, 32, 3), "float32"), np.zeros((24, 64, 3), "float32"), np.zeros((48, 48, 3), "float32")]
    >>> packed.predict_images(images).shape
    (3, 10)
"""

from .._internal.imports import attach

_NAMES = {
    "PackedBatches": "model",
    "PackedTransformer": "model",
    "Packing": "arranging",
    "pack": "model",
}

__all__ = list(_NAMES)
__getattr__, __dir__ = attach(__name__, ("arranging", "model"), _NAMES)
