"""Training: recipes for `model.fit`, folders of pictures, embeddings and probes, pre-training without labels, distillation.

    >>> from vit_keras import training, vit
    >>> model = vit.vit_cifar10(classes=5)
    >>> finetune = training.recipe("finetune", epochs=3)
    >>> train, validation = training.image_folder("flowers", model=model, validation_split=0.2)  # doctest: +SKIP
    >>> finetune.compile(model, train)  # doctest: +SKIP
    >>> model.fit(train, epochs=3, callbacks=[*finetune.callbacks, *train.callbacks])  # doctest: +SKIP

`docs/training.md` is the guide. From the shell: `vit-keras finetune`, `evaluate` and `embed`.
"""

from .augment import Augmentation
from .checks import check, class_weights
from .dataset import ImageFolder, image_folder
from .distill import Distillation
from .embedding import Probe, embed, features, knn, linear_probe
from .evaluation import Evaluation, evaluate
from .finetuning import FinetuneResult, finetune
from .freeze import head_layers, train_only
from .lora import add_lora, merge_lora
from .masked import MaskedAutoencoder, MaskedPatchPrediction
from .optimizers import LayerwiseAdamW, LayerwiseLamb, LayerwiseSGD, WarmupDecay
from .recipes import RECIPES, Recipe, recipe

__all__ = [
    "RECIPES",
    "Augmentation",
    "Distillation",
    "Evaluation",
    "FinetuneResult",
    "ImageFolder",
    "LayerwiseAdamW",
    "LayerwiseLamb",
    "LayerwiseSGD",
    "MaskedAutoencoder",
    "MaskedPatchPrediction",
    "Probe",
    "Recipe",
    "WarmupDecay",
    "add_lora",
    "check",
    "class_weights",
    "embed",
    "evaluate",
    "features",
    "finetune",
    "head_layers",
    "image_folder",
    "knn",
    "linear_probe",
    "merge_lora",
    "recipe",
    "train_only",
]
