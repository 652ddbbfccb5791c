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
    "Duplicates": "duplicates",
    "Embedder": "embeddings",
    "Evaluation": "evaluation",
    "FinetuneResult": "results",
    "FoldsResult": "results",
    "ImageCurve": "curve_over_images",
    "ImageFolder": "dataset",
    "LabelIssues": "wrong_labels",
    "LabelsEvaluation": "other_evaluations",
    "LayerwiseAdamW": "optimizers",
    "LayerwiseLamb": "optimizers",
    "LayerwiseSGD": "optimizers",
    "MaskedAutoencoder": "masked",
    "MaskedPatchPrediction": "masked",
    "NumbersEvaluation": "other_evaluations",
    "Probe": "embeddings",
    "Recipe": "recipes",
    "Reliability": "calibration",
    "Sample": "sampling",
    "WarmupDecay": "optimizers",
    "add_lora": "lora",
    "average": "averaging",
    "calibrate": "calibration",
    "check": "checks",
    "class_weights": "checks",
    "embed": "embeddings",
    "evaluate": "evaluation",
    "features": "embeddings",
    "finetune": "finetuning",
    "head_layers": "freeze",
    "image_curve": "curve_over_images",
    "image_folder": "dataset",
    "image_table": "table",
    "knn": "embeddings",
    "label_issues": "wrong_labels",
    "linear_probe": "embeddings",
    "merge_lora": "lora",
    "near_duplicates": "duplicates",
    "out_of_fold": "wrong_labels",
    "predict_table": "submission",
    "recipe": "recipes",
    "sample": "sampling",
    "temperature": "calibration",
    "train_only": "freeze",
}
_SUBMODULES = (
    "augment",
    "averaging",
    "calibration",
    "call",
    "callbacks",
    "charts",
    "checks",
    "columns",
    "curve_over_images",
    "dataset",
    "decoding",
    "distill",
    "duplicates",
    "embeddings",
    "evaluation",
    "findings",
    "findings_report",
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
    "wrong_labels",
)

__all__ = list(_NAMES)
__getattr__, __dir__ = attach(__name__, _SUBMODULES, _NAMES)
