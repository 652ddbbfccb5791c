"""What any model with a Vision Transformer in it says about itself: the one place that answers.

The ViT may be the model itself, or nested in it at any depth; what stands before it (augmentation, preprocessing) and
after it (dropout, a head, a softmax) is looked at too. Code that asks what pixels a model takes, whether its outputs
are logits, or where its blocks and its head are, asks here, so that all answers agree.
"""

from .inputs import (
    batch_preprocessing_of,
    front,
    image_shape,
    input_range,
    native_size,
    own_preprocessing,
    preprocessing_of,
    remember_preprocessing,
)
from .outputs import (
    class_names,
    lack_of_classes,
    last_activation,
    last_layer,
    name_classes,
    output_kind,
    output_source,
    outputs_of,
    probabilities,
    softmax,
)
from .parts import (
    HEAD,
    attention_blocks,
    block_numbers,
    blocks,
    final_norm,
    find_vit,
    has_attention,
    has_vit,
    head_layers,
    heads,
    leaves,
    patch_grid,
    patch_stride,
    prefix_names,
    readout,
    set_rates,
)

__all__ = [
    "HEAD",
    "attention_blocks",
    "batch_preprocessing_of",
    "block_numbers",
    "blocks",
    "class_names",
    "final_norm",
    "find_vit",
    "front",
    "has_attention",
    "has_vit",
    "head_layers",
    "heads",
    "image_shape",
    "input_range",
    "lack_of_classes",
    "last_activation",
    "last_layer",
    "leaves",
    "name_classes",
    "native_size",
    "output_kind",
    "output_source",
    "outputs_of",
    "own_preprocessing",
    "patch_grid",
    "patch_stride",
    "prefix_names",
    "preprocessing_of",
    "probabilities",
    "readout",
    "remember_preprocessing",
    "set_rates",
    "softmax",
]
