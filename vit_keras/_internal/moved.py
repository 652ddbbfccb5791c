"""Where the modules of earlier versions live now: `{old module: (new modules)}`.

Every import path that was ever public keeps working, `from vit_keras.visualize.draw import overlay` for one, without a
file for each. A module that is split or renamed gets a line here.
"""

MOVED: dict[str, tuple[str, ...]] = {
    # --- _internal
    "atomic": ("_internal.atomic",),
    "bounds": ("_internal.bounds",),
    "finite": ("_internal.finite",),
    "html_page": ("_internal.html_page",),
    "layers.tap": ("_internal.tap",),
    "progress": ("_internal.progress",),
    "validate": ("_internal.validate",),
    # --- backend
    "compiled": ("backend.compiled",),
    "direct": ("backend.direct",),
    "distribution": ("backend.distribution",),
    "keras_internals": ("backend.keras_internals",),
    "keras_speed": ("backend.keras_speed",),
    "openvino_backend": ("backend.openvino",),
    "products": ("backend.products",),
    "sharding": ("backend.sharding",),
    "training.replicas": ("backend.replicas",),
    # --- preprocess
    "images": ("preprocess.images",),
    "pixels": ("preprocess.pixels",),
    "preprocess_json": ("preprocess.json_formats",),
    "preprocess_layer": ("preprocess.layer",),
    # --- checkpoints
    "legacy_files": ("checkpoints.saved_models",),
    "sharded_files": ("checkpoints.orbax",),
    # --- training
    "training.augment": ("training.data.augment",),
    "training.charts": ("training.evaluation.charts",),
    "training.columns": ("training.data.columns",),
    "training.dataset": ("training.data.dataset",),
    "training.decoding": ("training.data.decoding",),
    "training.read_ahead": ("training.data.read_ahead",),
    "training.report": ("training.evaluation.report",),
    "training.results": ("training.finetuning.results",),
    "training.run": ("training.finetuning.run",),
    "training.sampling": ("training.data.sampling",),
    "training.splits": ("training.data.splits",),
    "training.submission": ("training.evaluation.submission",),
    "training.table": ("training.data.table",),
    "training.views": ("training.evaluation.views",),
    # --- core
    "files": ("_internal.atomic",),
    "pretrained": ("opening",),
    "saving": ("checkpoints.saved_models",),
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
    "training.embedding": ("training.embeddings",),
}

MOVED_NAMES: dict[str, dict[str, str]] = {
    "checkpoints.registry": {
        **dict.fromkeys(("by_filename", "find"), "checkpoints.locate"),
        **dict.fromkeys(("augreg", "parse_augreg", "query_augreg"), "checkpoints.augreg"),
        **dict.fromkeys(("AUGREG_INDEX", "AUGREG_MODELS", "BUCKET"), "checkpoints.augreg"),
        **dict.fromkeys(("AUGREG_ADAPTED", "AUGREG_AUGMENTATIONS", "AUGREG_CLASSES"), "checkpoints.augreg"),
    },
    "checkpoints.families.huggingface": {
        "MODELS": "checkpoints.transformers_json",
        "Model": "checkpoints.transformers_json",
        "model_of": "checkpoints.transformers_json",
    },
    "config": {"VARIANTS": "variants"},
    "labels": {"class_names": "anatomy", "name_classes": "anatomy"},
    "layers": {"drop_path": "layers._base", "find_vit": "anatomy", "patch_grid": "anatomy", "set_rates": "anatomy"},
    "preprocess": {"Preprocess": "preprocess.layer"},
    "vit": {
        "GOOGLE": "preprocess",
        "Preprocess": "preprocess.layer",
        "Preprocessing": "preprocess",
        "VARIANTS": "variants",
    },
}
"""Names that left a module which is still there: `{module: {name: its home}}`."""
