"""Keras' own files of weights, those of vit-keras 0.x and kecam, and the `tf_model.h5` of Hugging Face.

Keras has had three ways to name and number what it saves, and in Hugging Face's TensorFlow files some words of
PyTorch's names differ. `readable` gives the arrays of a file names that a table can list.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .google import BIG_VISION, GOOGLE, MIXER
from .rules import AS_IS, ATTENTION, BLOCK, MLP, POSITIONS, Family, Op, Rule, array
from .timm import ROPE_VIT, TIMM
from .vit_pytorch import VIT

IN_TORCH = "_torch_params"
"""What Keras puts before the path of a variable in PyTorch's state dicts."""

_PROJECTIONS = (("query", "query_dense"), ("key", "key_dense"), ("value", "value_dense"), ("out", "combine_heads"))


class Renamed(Mapping[str, Any]):
    """The arrays of a reader under other names; arrays of two and four axes may be returned in PyTorch's layout."""

    format: Any
    metadata: Any
    path: Any
    reader: Any

    def __init__(
        self, reader: Any, names: dict[str, str], transposed: frozenset[str] = frozenset(), metadata: Any = None
    ):
        self.reader, self.path, self.format = reader, reader.path, reader.format
        self.metadata = reader.metadata if metadata is None else metadata
        self._names, self._transposed = names, transposed

    def _order(self, name: str, ndim: int) -> tuple[int, ...]:
        return (1, 0) if ndim == 2 else (3, 2, 0, 1) if ndim == 4 else tuple(range(ndim))

    def __getitem__(self, name: str) -> np.ndarray:
        value = self.reader[self._names[name]]
        return value.transpose(self._order(name, value.ndim)) if name in self._transposed else value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        shape = self.reader.shape(self._names[name])
        return tuple(shape[axis] for axis in self._order(name, len(shape))) if name in self._transposed else shape

    def stored(self, name: str) -> Any:
        """Return how an array is stored: its own type, and why it is unreadable."""
        inner = self.reader.stored(self._names[name])
        return inner if inner.problem else dataclasses.replace(inner, shape=self.shape(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def readable(reader: Any) -> Any:
    """Return a reader whose names a table can list: the given one, or a view of it."""
    if reader.format in ("keras_weights", "keras"):
        return Renamed(reader, _count_blocks(reader))
    if reader.format == "h5" and any("_._" in name for name in reader):
        names, transposed = {}, set()
        for name in reader:
            words: list[str] = name.replace("_._", "/").split("/")
            *module, leaf = words
            renamed = ".".join((*module, _PYTORCH_WORDS.get(leaf, leaf)))
            names[renamed] = name
            if leaf == "kernel":
                transposed.add(renamed)
        return Renamed(reader, names, frozenset(transposed))
    if reader.format == "h5":
        return Renamed(reader, {_unslashed(name): name for name in reader})
    if any(f"{IN_TORCH}." in name for name in reader):
        return Renamed(reader, {name.replace(f"{IN_TORCH}.", f"{IN_TORCH}:", 1): name for name in reader})
    return reader


_PYTORCH_WORDS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}


def _unslashed(name: str) -> str:
    """Return a name of vit-keras 0.1 or 0.2 in one spelling."""
    # 0.1 has slashes where 0.2 has underscores; both repeat a block's name in its MLP, or leave the MLP out.
    name = name.replace("Transformer/", "Transformer_", 1)
    return re.sub(r"^(Transformer_encoderblock_\d+)/(?:MlpBlock_3/)?(?:\w*_)?(Dense_[01])/", r"\1/MlpBlock_3/\2/", name)


_BLOCKS = ("transformer_block", "vi_t_encoder_block", "dei_t_encoder_block", "dinov2_layer", "sig_lip_encoder_layer")
"""Layers of this package and of KerasHub that are repeated."""


def _count_blocks(reader: Mapping[str, Any]) -> dict[str, str]:
    """Return names with a number on every block, dense layer, normalization and stage of a ResNet."""
    # Keras leaves out the first number, and Keras 2 counts in steps of two.
    old = any("_layer_checkpoint_dependencies" in name for name in reader)
    units = _stages(reader)
    names = {}
    for name in reader:
        renamed = re.sub(_UNIT, lambda m: units.get(m[0], m[0]), name, count=1)
        renamed = renamed.replace("_layer_checkpoint_dependencies", "layers")
        for kind in (*_BLOCKS, "dense", "layer_normalization"):
            renamed = re.sub(rf"(?<=/){kind}(?=/)", f"{kind}_0", renamed)
            if old:
                renamed = re.sub(rf"(?<=/){kind}_(\d+)(?=/)", lambda m, kind=kind: f"{kind}_{int(m[1]) // 2}", renamed)
        names[renamed] = name
    return names


_UNIT = re.compile(r".*?/residual_unit(?:_(\d+))?(?=/)")


def _stages(names: Mapping[str, Any]) -> dict[str, str]:
    """Return residual units by stage: `{"layers/residual_unit_2": "layers/block2/unit1"}`."""
    # Keras numbers them from the first stage to the last. Only the first unit of a stage projects its input.
    found = {m[0]: int(m[1] or 0) for name in names if (m := _UNIT.match(name))}
    places, stage, first = {}, 0, 0
    for path, number in sorted(found.items(), key=lambda item: item[1]):
        if f"{path}/conv_proj/vars/0" in names:
            stage, first = stage + 1, number
        places[path] = f"{path.rpartition('/')[0]}/block{stage}/unit{number - first + 1}"
    return places


def variables(source: str, target: str, *leaves: str, ops: tuple[Op, ...] = (AS_IS, AS_IS)) -> tuple[Rule, ...]:
    """Return the rules for the variables of one layer, which Keras numbers in the order of `leaves`."""
    return tuple(Rule(f"{source}/vars/{n}", (f"{target}/{leaf}",), ops[n]) for n, leaf in enumerate(leaves))


DENSE, NORM = ("kernel", "bias"), ("scale", "bias")
_IN, _RESIDUAL = "layers/transformer_block_{i}", "layers/block{s}/unit{u}"


def _is_alone(shape_of: Any) -> bool:
    return shape_of("layers/dense_1/vars/0") is None


TOP = (
    *(Rule(f"layers/dense_0/vars/{n}", (f"head/{leaf}",), when=_is_alone) for n, leaf in enumerate(DENSE)),
    *variables("layers/dense_0", "pre_logits", *DENSE),
    *variables("layers/dense_1", "head", *DENSE),
)

KERAS = Family(
    name="keras",
    title="Keras' .weights.h5 and .keras, of this package and of vit-keras 0.x",
    detect=("layers/conv2d/vars/0", "layers/transformer_block_0/layernorm1/vars/0", "layers/add_position_embs/vars/0"),
    rules=(
        *array("layers/std_conv2d/vars/0", "conv_root/kernel"),
        *variables("layers/group_norm", "gn_root", *NORM),
        *(
            rule
            for suffix in ("1", "2", "3", "_proj")
            for rule in (
                *variables(f"{_RESIDUAL}/conv{suffix}", f"block{{s}}/unit{{u}}/conv{suffix}", "kernel"),
                *variables(f"{_RESIDUAL}/gn{suffix}", f"block{{s}}/unit{{u}}/gn{suffix}", *NORM),
            )
        ),
        *variables("layers/conv2d", "embedding", *DENSE),
        *array("layers/class_token/vars/0", "cls"),
        *array("layers/register_tokens/vars/0", "registers"),
        *array("layers/add_position_embs/vars/0", POSITIONS),
        *variables(f"{_IN}/layernorm1", f"{BLOCK}/LayerNorm_0", *NORM),
        *(
            rule
            for name, attribute in _PROJECTIONS
            for rule in variables(f"{_IN}/att/{attribute}", f"{ATTENTION}/{name}", *DENSE)
        ),
        *variables(f"{_IN}/att/norm", f"{ATTENTION}/norm", *NORM),
        *variables(f"{_IN}/layernorm2", f"{BLOCK}/LayerNorm_2", *NORM),
        *variables(f"{_IN}/mlpblock/layers/dense_0", f"{MLP}/Dense_0", *DENSE),
        *variables(f"{_IN}/mlpblock/layers/dense_1", f"{MLP}/Dense_1", *DENSE),
        *variables(f"{_IN}/mlpblock/norm", f"{MLP}/norm", *NORM),
        *variables(f"{_IN}/mlpblock/gate", f"{MLP}/Gate", *DENSE),
        *array(f"{_IN}/layerscale1/vars/0", f"{BLOCK}/LayerScale_0/scale"),
        *array(f"{_IN}/layerscale2/vars/0", f"{BLOCK}/LayerScale_1/scale"),
        *variables("layers/layer_normalization_0", "Transformer/encoder_norm", *NORM),
        *TOP,
    ),
    ignored=("*/vars/activation", "*/vars/grid", "optimizer/*", "*seed_generator*"),
    config={"mlp_activation": "gelu", "position_prefix": True},
    heads={192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16},
    suffix=None,
)


def _named(source: str, target: str, *leaves: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple(Rule(f"{source}/{theirs}", (f"{target}/{ours}",)) for theirs, ours in leaves)


_NAMED_DENSE, _NAMED_NORM = (("kernel", "kernel"), ("bias", "bias")), (("gamma", "scale"), ("beta", "bias"))
_TOKENS = {"cls": "class_token/cls", "dist": "distillation_token/cls", "registers": "register_tokens/registers"}
_CANONICAL = {
    target: None
    for family in (GOOGLE, BIG_VISION, MIXER, TIMM, ROPE_VIT, VIT)
    for rule in family.rules
    for target in rule.targets
    if target and "+1" not in target
}


def _path(name: str) -> str:
    """Return the path in a model of this package of the variable with a canonical name."""
    name = re.sub(r"^(block\{s\})/", r"\1_", _TOKENS.get(name, name).replace("Transformer/", "Transformer_", 1))
    layer, _, leaf = name.rpartition("/")
    has_scale = f"{layer.replace('Transformer_', 'Transformer/', 1).replace('}_unit', '}/unit')}/scale" in _CANONICAL
    return f"{layer}/{ {'scale': 'gamma', 'bias': 'beta'}.get(leaf, leaf) if has_scale else leaf }"


KERAS_H5 = Family(
    name="keras-h5",
    title="Keras' older .h5, of vit-keras 0.x",
    detect=("embedding/kernel", "Transformer_posembed_input/pos_embedding"),
    rules=tuple(Rule(_path(name), (name,)) for name in _CANONICAL),
    ignored=("optimizer/*", "*seed_generator*", "*/iterations*"),
    config={"mlp_activation": "gelu", "position_prefix": True},
    heads=KERAS.heads,
    suffix=None,
)
KERAS_TORCH = dataclasses.replace(
    KERAS_H5,
    name="keras-torch",
    title="the state dict of a model of this package on PyTorch",
    detect=(f"{IN_TORCH}:embedding/kernel", f"{IN_TORCH}:Transformer_encoderblock_0/LayerNorm_0/gamma"),
    rules=tuple(dataclasses.replace(rule, source=f"{IN_TORCH}:{rule.source}") for rule in KERAS_H5.rules),
    ignored=(*KERAS_H5.ignored, "_functional.*"),  # a Sequential's second mention of the same tensors
    config={},
)

# Several layers side by side: (in, query + key + value).
SIDE_BY_SIDE = Op(lambda a, n: np.split(a, n, axis=-1), lambda parts, heads: np.concatenate(parts, axis=-1))
_OF_KECAM = "block{i}"


def _fused(source: str, *targets: str, **options: Any) -> tuple[Rule, ...]:
    return tuple(Rule(f"{source}/{x}", tuple(f"{t}/{x}" for t in targets), SIDE_BY_SIDE, **options) for x in DENSE)


KECAM = Family(
    name="kecam",
    title="keras-cv-attention-models' ViT, FlexiViT and DINOv2",
    detect=("block0_attn_qkv/kernel", "stem_conv/kernel", "cls_token/tokens"),
    marks=("positional_embedding/positional_embedding",),
    # BEiT and EVA-02; CLIP and MetaTransformer; ViT-5: the names do not show what they compute in addition.
    absent=("block0_attn_query_bias/bias", "pre_ln/gamma", "reg_token/tokens", "block0_attn_q_rmsnorm/gamma"),
    rules=(
        *_named("stem_conv", "embedding", *_NAMED_DENSE),
        *array("cls_token/tokens", "cls"),
        *array("positional_embedding/positional_embedding", POSITIONS),
        *_named(f"{_OF_KECAM}_attn_ln", f"{BLOCK}/LayerNorm_0", *_NAMED_NORM),
        *_fused(f"{_OF_KECAM}_attn_qkv", *(f"{ATTENTION}/{name}" for name in ("query", "key", "value"))),
        *_named(f"{_OF_KECAM}_attn_output", f"{ATTENTION}/out", *_NAMED_DENSE),
        *array(f"{_OF_KECAM}_attn_gamma/weight", f"{BLOCK}/LayerScale_0/scale"),
        *_named(f"{_OF_KECAM}_mlp_ln", f"{BLOCK}/LayerNorm_2", *_NAMED_NORM),
        *_named(f"{_OF_KECAM}_mlp_dense_1", f"{MLP}/Dense_0", *_NAMED_DENSE),
        *_fused(f"{_OF_KECAM}_mlp_dense_gate", f"{MLP}/Gate", f"{MLP}/Dense_0", implied={"mlp_activation": "silu"}),
        *_named(f"{_OF_KECAM}_mlp_dense_2", f"{MLP}/Dense_1", *_NAMED_DENSE),
        *array(f"{_OF_KECAM}_mlp_gamma/weight", f"{BLOCK}/LayerScale_1/scale"),
        *_named("out_ln", "Transformer/encoder_norm", *_NAMED_NORM),
        *_named("predictions", "head", *_NAMED_DENSE),
    ),
    ignored=("optimizer/*", "*seed_generator*", "*/iterations*"),
    config={"mlp_activation": "gelu", "position_resize": "bilinear"},
    heads={**KERAS.heads, 1536: 24},
    suffix=None,
)

KECAM_GAP = dataclasses.replace(
    KECAM,
    name="kecam-gap",
    title="keras-cv-attention-models' EVA, and ViT with use_mean_pooling_head=True",
    by_name_only=True,
    rules=(
        *(rule for rule in KECAM.rules if not rule.source.startswith("out_ln/")),
        *_named("out_ln", "fc_norm", *_NAMED_NORM),
    ),
)

FAMILIES = (KERAS, KERAS_TORCH, KERAS_H5, KECAM, KECAM_GAP)
