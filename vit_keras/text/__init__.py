"""Compare images with sentences, without training (CLIP, open_clip, SigLIP, SigLIP 2).

    >>> from vit_keras import text
    >>> model = text.open_image_text("openai/clip-vit-base-patch32")  # doctest: +SKIP
    >>> text.zero_shot(model, "cat.jpg", ["a photo of a cat", "a photo of a dog"])  # doctest: +SKIP

`docs/zero_shot.md` is the guide. On the command line: `vit-keras zero-shot`.
"""

from .._internal.imports import attach

_NAMES = {
    "ImageText": "model",
    "TextConfig": "config",
    "TextTransformer": "tower",
    "Tokenizer": "tokenizer",
    "build_text": "tower",
    "encode_images": "matching",
    "encode_texts": "matching",
    "open_image_text": "opening",
    "open_text": "opening",
    "similarity": "matching",
    "top_k": "matching",
    "zero_shot": "matching",
    "zero_shot_classifier": "matching",
}
_SUBMODULES = ("config", "layers", "matching", "model", "opening", "published", "reading", "tokenizer", "tower")

__all__ = list(_NAMES)
__getattr__, __dir__ = attach(__name__, _SUBMODULES, _NAMES)
