"""Train Vision Transformers: recipes for `model.fit`, folders of images, embeddings, pre-training, distillation.

    >>> from vit_keras import training, vit
    >>> model = vit.vit_cifar10(classes=5)
    >>> finetune = training.recipe("finetune", epochs=3)
    >>> train, validation = training.image_folder("flowers", model=model, validation_split=0.2)  # doctest: +SKIP
    >>> finetune.compile(model, train)  # doctest: +SKIP
    >>> model.fit(train, epochs=3, callbacks=[*finetune.callbacks, *train.callbacks])  # doctest: +SKIP

`docs/training.md` is the guide. On the command line: `vit-keras finetune`, `evaluate` and `embed`.
"""

from .._internal.imports import attach

_NAMES = {
    "RECIPES": "recipes",
    "Augmentation": "data.augment",
    "Distillation": "distill",
    "Embedder": "embeddings",
    "Evaluation": "evaluation.tasks",
    "FinetuneResult": "finetuning.results",
    "FoldsResult": "finetuning.results",
    "ImageFolder": "data.dataset",
    "LayerwiseAdamW": "optimizers",
    "MaskedAutoencoder": "masked",
    "MaskedPatchPrediction": "masked",
    "Probe": "embeddings",
    "Recipe": "recipes",
    "add_lora": "lora",
    "calibrate": "evaluation.calibration",
    "embed": "embeddings",
    "evaluate": "evaluation",
    "features": "embeddings",
    "finetune": "finetuning",
    "flip_test": "evaluation.flips",
    "fused": "optimizers",
    "image_folder": "data.dataset",
    "image_table": "data.table",
    "knn": "embeddings",
    "linear_probe": "embeddings",
    "merge_lora": "lora",
    "near_duplicates": "data.duplicates",
    "predict_table": "evaluation.submission",
    "recipe": "recipes",
    "ridge_probe": "embeddings",
    "sample": "data.sampling",
}
_SUBMODULES = (
    "data",
    "averaging",
    "callbacks",
    "checks",
    "distill",
    "embeddings",
    "evaluation",
    "finetuning",
    "freeze",
    "lora",
    "losses",
    "masked",
    "metrics",
    "optimizers",
    "recipe_table",
    "recipes",
)

__all__ = list(_NAMES)
__getattr__, __dir__ = attach(__name__, _SUBMODULES, _NAMES)
