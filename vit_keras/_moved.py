"""Where the modules of earlier versions live now: `{old module: (new modules)}`.

Every import path that was ever public keeps working, `from vit_keras.visualize.draw import overlay` for one, without a file for
each. A module that is split or renamed gets a line here.
"""

MOVED: dict[str, tuple[str, ...]] = {
    # --- core
    "files": ("atomic",),
    "pretrained": ("opening",),
    "saving": ("legacy_files",),
    "mixer": ("layers.mixer",),
    "resnet": ("layers.resnet",),
    # --- checkpoints
    # --- visualize
    # --- training
    "training.data": ("training.dataset", "training.listing", "training.decoding"),
    # finetune
    "training.embedding": ("training.embeddings",),
}
