"""The recipes as data, one row each: fields of `recipes.Recipe` by the name of the recipe.

A field that a row leaves out has the default of `Recipe`. A new recipe is a new row. It must have a `source`;
`augmentation` holds fields of `augment.Augmentation`.
"""

# ruff: noqa: C408  (a row reads like the call of Recipe that it becomes)

from __future__ import annotations

__all__ = ["RECIPE_TABLE"]

_FINETUNE = dict(
    source="our choice for few images: AdamW with layer-wise decay as in BEiT (arXiv 2106.08254, appendix "
    "H), the paper's clipping; a rate by the model's width (recipes.rate_for), smaller batches for fewer than 200 "
    "steps, a head that starts as a linear classifier, augmentation from 60 steps on, below that a quarter of the rate "
    "and a layer decay of 0.9, and flips only where they keep the label, as measured in benchmarks/finetuning.md",
    learning_rate=None,
    batch_size=32,
    scale_learning_rate="sqrt",
    halve_batch_below=6_400,
    epochs=10,
    warmup=0.1,
    weight_decay=0.05,
    layer_decay=0.75,
    clip_norm=1.0,
    label_smoothing=0.1,
    augmentation=dict(crop=0.5, flip=True),
    augment_from=60,
    flip_test=True,
)

RECIPE_TABLE = {
    "finetune": dict(_FINETUNE, head="ridge", gentle_below=60),
    "vit": dict(
        source="ViT (arXiv 2010.11929), appendix B.1.1 and Table 4; warm-up and crops of vit_jax. For "
        "ImageNet add ema=0.9999 (B.1.1)",
        optimizer="sgd",
        learning_rate=0.03,
        batch_size=512,
        scale_learning_rate=True,
        epochs=100,
        warmup=0.05,
        clip_norm=1.0,
        augmentation=dict(crop=0.05, flip=True),
    ),
    "augreg": dict(
        source="How to train your ViT? (arXiv 2106.10270), section 3.4; vit_jax, configs/augreg.py",
        optimizer="sgd",
        learning_rate=0.03,
        batch_size=512,
        scale_learning_rate=True,
        epochs=5,
        warmup=0.2,
        clip_norm=1.0,
        dropout=0.0,
        augmentation=dict(crop=0.05, flip=True),
    ),
    "deit": dict(
        source="DeiT (arXiv 2012.12877), Table 9; final learning rate of facebookresearch/deit, main.py",
        learning_rate=1e-3,
        batch_size=1024,
        scale_learning_rate=True,
        epochs=300,
        warmup=5 / 300,
        final_learning_rate=0.01,
        weight_decay=0.05,
        label_smoothing=0.1,
        dropout=0.0,
        stochastic_depth=0.1,
        augmentation=dict(crop=0.08, flip=True, rand_augment=(2, 9), random_erasing=0.25, mixup=0.8, cutmix=1.0),
    ),
    "deit3": dict(
        source="DeiT III (arXiv 2204.07118), Table 1 (ImageNet-1k): LAMB, binary cross-entropy, 3-Augment",
        optimizer="lamb",
        learning_rate=3e-3,
        batch_size=2048,
        scale_learning_rate=True,
        epochs=400,
        warmup=5 / 400,
        weight_decay=0.02,
        clip_norm=1.0,
        loss="binary",
        dropout=0.0,
        stochastic_depth=0.1,
        augmentation=dict(crop=0.08, flip=True, color_jitter=0.3, three_augment=True, mixup=0.8, cutmix=1.0),
    ),
    "probe": dict(
        source="our choice: logistic regression on frozen features, as in the linear evaluation of DINO "
        "(arXiv 2104.14294), by AdamW",
        learning_rate=1e-3,
        batch_size=32,
        epochs=20,
        train="head",
        augmentation=dict(flip=True),
        flip_test=True,
    ),
    "lp_ft": dict(
        _FINETUNE,
        source="LP-FT (arXiv 2202.10054): the head first, then everything; the rates of finetune from 60 steps on",
        unfreeze_at=(0.3,),
    ),
    "gradual": dict(
        _FINETUNE,
        source="ULMFiT (arXiv 1801.06146), section 3.3: the upper layers first; the rates of finetune from 60 steps on",
        unfreeze_at=(0.1, 0.2, 0.3, 0.4),
    ),
    "lora": dict(
        source="LoRA (arXiv 2106.09685), section 4.2 (queries and values, rank 8) and appendix D.1 (AdamW, "
        "warm-up 0.06, linear decay); a rate as measured in benchmarks/finetuning.md",
        learning_rate=5e-3,
        batch_size=32,
        epochs=10,
        schedule="linear",
        warmup=0.06,
        weight_decay=0.01,
        clip_norm=1.0,
        label_smoothing=0.1,
        lora=8,
        augmentation=dict(crop=0.5, flip=True),
        flip_test=True,
    ),
    "scratch_small": dict(
        source="our choice for some ten thousand small images without pre-training: DeiT's augmentation "
        "and decay, milder",
        learning_rate=1e-3,
        batch_size=128,
        epochs=100,
        warmup=0.1,
        weight_decay=0.05,
        clip_norm=1.0,
        label_smoothing=0.1,
        stochastic_depth=0.1,
        augmentation=dict(crop=0.4, flip=True, rand_augment=(2, 9), mixup=0.8, cutmix=1.0),
    ),
}
