"""Train Vision Transformers: recipes for `model.fit`, folders of images, embeddings, pre-training, distillation.

    >>> from vit_keras import training, vit
    >>> model = vit.vit_cifar10(classes=5)
    >>> finetune = training.recipe("finetune", epochs=3)
    >>> train, validation = training.image_folder("flowers", model=model, validation_split=0.2)  # doctest: +SKIP
    >>> finetune.compile(model, train)  # doctest: +SKIP
    >>> model.fit(train, epochs=3, callbacks=[*finetune.callbacks, *train.callbacks])  # doctest: +SKIP

`docs/training.md` is the guide. On the command line: `vit-keras finetune`, `evaluate` and `embed`.
"""

from .._imports import attach

_NAMES = {
    "RECIPES": "recipes",
    "Augmentation": "augment",
    "Distillation": "distill",
    "Embedder": "embeddings",
    "Evaluation": "evaluation",
    "FinetuneResult": "results",
    "FoldsResult": "results",
    "ImageFolder": "dataset",
    "LabelsEvaluation": "other_evaluations",
    "LayerwiseAdamW": "optimizers",
    "LayerwiseLamb": "optimizers",
    "LayerwiseSGD": "optimizers",
    "MaskedAutoencoder": "masked",
    "MaskedPatchPrediction": "masked",
    "NumbersEvaluation": "other_evaluations",
    "Probe": "embeddings",
    "Recipe": "recipes",
    "Sample": "sampling",
    "WarmupDecay": "optimizers",
    "add_lora": "lora",
    "average": "averaging",
    "check": "checks",
    "class_weights": "checks",
    "embed": "embeddings",
    "evaluate": "evaluation",
    "features": "embeddings",
    "finetune": "finetuning",
    "head_layers": "freeze",
    "image_folder": "dataset",
    "image_table": "table",
    "knn": "embeddings",
    "linear_probe": "embeddings",
    "merge_lora": "lora",
    "predict_table": "submission",
    "recipe": "recipes",
    "sample": "sampling",
    "train_only": "freeze",
}
_SUBMODULES = (
    "augment",
    "averaging",
    "call",
    "callbacks",
    "charts",
    "checks",
    "columns",
    "dataset",
    "decoding",
    "distill",
    "embeddings",
    "evaluation",
    "finetuning",
    "freeze",
    "job",
    "labeled",
    "listing",
    "lora",
    "losses",
    "masked",
    "metrics",
    "optimizers",
    "other_evaluations",
    "read_ahead",
    "recipe_table",
    "recipes",
    "report",
    "results",
    "run",
    "sampling",
    "splits",
    "submission",
    "table",
    "trivial",
    "views",
)

__all__ = list(_NAMES)
__getattr__, __dir__ = attach(__name__, _SUBMODULES, _NAMES)
