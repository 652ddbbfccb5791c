"""Where the modules of earlier versions live now: `{old module: (new modules)}`.

Every import path that was ever public keeps working, `from vit_keras.visualize.draw import overlay` for one, without a
file for each. A module that is split or renamed gets a line here.
"""

MOVED: dict[str, tuple[str, ...]] = {
    # --- core
    "files": ("atomic",),
    "pretrained": ("opening",),
    "saving": ("legacy_files",),
    "mixer": ("layers.mixer",),
    "resnet": ("layers.resnet",),
    # --- checkpoints
    "checkpoints.torch_pickle": ("checkpoints.readers.torch_pickle",),
    "checkpoints.inspect": ("checkpoints.describe", "checkpoints.wording"),
    # --- visualize
    "visualize.record": (
        "visualize.recorder",
        "visualize.recording",
        "visualize.plan",
        "visualize.gradients",
        "visualize.pictures",
        "anatomy",
        "labels",
    ),
    "visualize.evaluate": ("visualize.faithfulness",),
    # figures
    "visualize.draw": ("visualize.overlays", "visualize.figures", "visualize.animation", "visualize.colors"),
    "visualize.explorer": ("visualize.explore",),
    "visualize.inspect": ("visualize.analysis", "visualize.paper_figures"),
    # --- training
    "training.data": ("training.dataset", "training.listing", "training.decoding"),
    # finetune
    "training.embedding": ("training.embeddings",),
}

MOVED_NAMES: dict[str, dict[str, str]] = {
    "checkpoints.families.huggingface": {
        "MODELS": "checkpoints.transformers_json",
        "Model": "checkpoints.transformers_json",
        "model_of": "checkpoints.transformers_json",
    },
    "config": {"VARIANTS": "variants"},
    "labels": {"class_names": "anatomy", "name_classes": "anatomy"},
    "layers": {"drop_path": "layers._base", "find_vit": "anatomy", "patch_grid": "anatomy", "set_rates": "anatomy"},
    "preprocess": {"Preprocess": "preprocess_layer"},
    "vit": {
        "GOOGLE": "preprocess",
        "Preprocess": "preprocess_layer",
        "Preprocessing": "preprocess",
        "VARIANTS": "variants",
    },
}
"""Names that left a module which is still there: `{module: {name: its home}}`."""
