"""Record attention, values, tokens and gradients of a model in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from .. import anatomy
from .._internal.validate import one_of
from .._internal.warn import warn_caller
from ..anatomy.dry_run import readout
from ..anatomy.outputs import output_kind, why_not_classifier
from ..anatomy.parts import attention_blocks, block_numbers, find_vit, learner, patch_grid, patch_stride, prefix_names
from ..backend import openvino
from ..labels import class_numbers
from ..layers import AttentionPooling, TransformerBlock
from ..layers.tokens import PatchMap
from .forward_pass import Plan, watch
from .options import check_options, parameters_of
from .pictures import ModelInputs
from .recording import FUSIONS, GRADIENT_FUSIONS, Recording

__all__ = ["Recorder", "patch_logit_lens", "record"]


def record(
    model: keras.Model,
    images: Any,
    layers: Sequence[int] | int | None = None,
    target: Any = None,
    **options: Any,
) -> Recording:
    """Run a model once on images and keep what its blocks computed, in inference mode.

    Args:
        model: A ViT of this package, or any model of one image input with one inside: `Sequential`, a fine-tuned
            model, nested to any depth.
        images: Pixels: an array `(height, width)`, `(height, width, channels)` or `(batch, height, width, channels)` in
            [0, 255], or floats in [-1, 1]; anything that `vit_keras.utils.read` reads; or a list of such. Each is
            stretched to the model's size. For a model that takes any size, all must have one size, and are stretched to
            whole patches.
        layers: Numbers of the blocks to keep, from the end if negative; `None` for all.
        target: What the gradients are of. `None`: there are none. `"predicted"`: the logit of the class with the
            highest one. A class, by its number or its name, or a list with one for each image: its logit. A function of
            the model's output: what it returns, one number for each image, or their sum.
        **options: Any of these. `keep`: what to keep, of `"attention"`, `"values"`, `"tokens"` and `"normed"`; with a
            target also the gradients with respect to attention and normed tokens, if these are kept. `head_fusion`: how
            to fuse the heads while the model runs, which takes far less memory: `"mean"`, `"max"` or `"min"`; with a
            target also `"relevance"`, the mean of the positive parts of attention × gradient, or `"gradient"`, the
            positive part of their mean. `query`: which rows of attention to keep, `"all"` or `"auto"`, only the mean of
            those that the output is read from (the class token's). `exits`: whether to explain each block by the score
            that the rest of the model gives to its own output (for `legrad`). `preprocess`: what the model's input
            needs, from pixels in [0, 255]: `"own"`, the normalization of the ViT's checkpoint, as far as the model does
            not normalize itself, `None`, or a function of `(batch, height, width,
            channels)`. `grid`: patches down and across, if they cannot be inferred from the model.

    Returns:
        A `Recording`.

    Raises:
        ValueError: There is no ViT in the model or more than one, an image does not fit it, there is no such block or
            class, or the model has no classes and the target is one.
        TypeError: An argument is not of these kinds, or there is no such option.

    Warns:
        UserWarning: All gradients are zero, as of a head that has not been trained yet.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> recording = record(model, np.zeros((2, 48, 64, 3), "uint8"))
        >>> recording.attention.shape, recording.tokens.shape, recording.grid, recording.prefix
        ((2, 2, 2, 17, 17), (3, 2, 17, 64), (4, 4), ('cls',))
    """
    check_options(options, parameters_of(Recorder, ("model", "layers")), "record")
    return Recorder(model, layers, **options)(images, target)


class Recorder:
    """A reusable `record`: the same options for many images."""

    def __init__(
        self,
        model: keras.Model,
        layers: Sequence[int] | int | None = None,
        *,
        keep: Iterable[str] = ("attention", "values", "tokens"),
        head_fusion: str | None = None,
        query: str = "all",
        exits: bool = False,
        preprocess: Callable[..., Any] | str | None = "own",
        grid: tuple[int, int] | None = None,
    ):
        self.model: keras.Model = learner(model)
        self.vit: keras.Model = find_vit(model)
        self.grid = grid
        count = len(attention_blocks(self.vit))
        kept = frozenset([keep] if isinstance(keep, str) else keep)
        for name in sorted(kept):
            one_of(name, "keep", ("attention", "values", "tokens", "normed"))
        one_of(head_fusion, "head_fusion", (None, *FUSIONS, *GRADIENT_FUSIONS))
        one_of(query, "query", ("all", "auto"))
        self.plan: Plan = Plan(block_numbers(layers, count), kept, head_fusion, query, exits)
        if self.plan.exits and maps_in(self.model) > 1:
            raise ValueError(
                f"The model {self.model.name!r} reads the tokens of several blocks, so a block has no exit of its own "
                "(exits=True, method='legrad'). Other methods work, such as 'relevance'."
            )
        # The rows that a MAP head reads are known at the end only.
        self.late_query: bool = self.plan.query == "auto" and any(
            isinstance(layer, AttentionPooling) for layer in self.vit.layers
        )
        if self.late_query:
            self.plan = dataclasses.replace(self.plan, query="all")
        self.inputs: ModelInputs = ModelInputs(self.model, preprocess)

    def __call__(self, images: Any, target: Any = None) -> Recording:
        if target is not None:
            openvino.refuse("A map or a recording for a class")
        inputs, pictures = self.inputs(images)
        size = self.inputs.seen_size(inputs.shape[1:3])
        labels = anatomy.class_names(self.model)
        plan = self.plan
        if target is not None:
            plan = dataclasses.replace(plan, target=target if callable(target) else "class")
        elif plan.head_fusion in GRADIENT_FUSIONS or plan.exits is True:
            raise ValueError("This needs gradients: pass target=, such as 'predicted' or the number of a class.")
        classes = self._classes(plan, target, inputs, labels) if plan.target == "class" else None
        seen = watch(self.model, inputs, classes, plan)
        _check(seen, classes, plan)
        down, across = patch_grid(self.vit, size) if self.grid is None else self.grid
        tokens, prefix = int(seen.pop("count")), prefix_names(self.vit)
        if tokens != len(prefix) + down * across:
            raise ValueError(
                f"{tokens} tokens are not {len(prefix)} and {down} x {across} patches. Pass grid=(down, across)."
            )
        readout = readout_of(self.model, tokens, seen.get("pooling_attention"), len(inputs))
        for name in ("attention", "gradients"):
            if self.late_query and name in seen:
                seen[name] = np.einsum("bq,lb...qk->lb...k", readout, seen[name])
        if "values" in plan.keep:
            blocks = attention_blocks(self.vit)
            seen["projections"] = np.stack([projection_of(blocks[n]) for n in plan.layers])
        known = getattr(self.vit, "config", None) is not None or self.grid is None
        return Recording(
            images=tuple(pictures),
            grid=(down, across),
            prefix=prefix,
            layers=plan.layers,
            patch_size=patch_stride(self.vit, size) if known else (size[0] // down, size[1] // across),
            readout=readout,
            labels=labels,
            head_fusion=plan.head_fusion,
            exits=plan.exits is True,
            **seen,
        )

    def _classes(self, plan: Plan, target: Any, inputs: np.ndarray, labels: Sequence[str] | None) -> np.ndarray:
        """Return the class of each image; -1 for one that the pass itself finds to be the predicted one."""
        lack = why_not_classifier(self.model)
        if lack and (output_kind(self.model) == "features" or "outputs" in lack):
            raise ValueError(
                f"The model {self.model.name!r} has no single output of the shape (batch, classes): {lack}. Pass as "
                "target a function from its output to one number for each image."
            )
        classes = class_numbers(target, len(inputs), labels)
        if plan.exits and (classes < 0).any():  # what the whole model predicts, not each exit
            predicted = watch(self.model, inputs, None, Plan(plan.layers))["logits"]
            classes = np.where(classes < 0, predicted.argmax(axis=-1), classes).astype("int32")
        return classes


def patch_logit_lens(
    model: keras.Model,
    images: Any,
    layers: Sequence[int] | int | None = None,
    *,
    preprocess: Callable[..., Any] | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> np.ndarray:
    """Return the logits of each patch after each block, as if it were the only token that the head reads.

    The rest of the model, from the final normalization on, sees one patch at a time (the "logit lens" of
    nostalgebraist, 2020, on patches). A head that was trained on a class token or a mean of patches is only roughly
    valid for a single one.

    Args:
        model: See `record`.
        images: See `record`.
        layers: After which blocks; `None` for all.
        preprocess: See `Recorder`.
        grid: See `Recorder`.

    Returns:
        float32 `(layers, batch, down, across, classes)`: logits.

    Raises:
        ValueError: The model has no single output `(batch, classes)`; see `record` for the rest.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> patch_logit_lens(model, np.zeros((32, 32, 3), "uint8")).argmax(axis=-1).shape
        (2, 1, 4, 4)
    """
    recorder = Recorder(model, layers, keep=(), preprocess=preprocess, grid=grid)
    recorder.plan = dataclasses.replace(recorder.plan, exits="patches")
    recording = None if maps_in(model) else recorder(images)
    if recording is None or recording.logits is None:
        raise ValueError(
            "The model has no single output of the shape (batch, classes) that it reads from tokens, whatever their "
            "number."
        )
    return recording.logits.reshape(len(recording.layers), len(recording.images), *recording.grid, -1)


def _check(seen: dict[str, Any], classes: np.ndarray | None, plan: Plan) -> None:
    if classes is not None and classes.max() >= seen["logits"].shape[-1]:
        raise ValueError(
            f"The model has the classes 0 to {seen['logits'].shape[-1] - 1}. Received the target {classes.max()}."
        )
    if plan.head_fusion in GRADIENT_FUSIONS:
        slopes = "attention"
    else:
        slopes = "gradients" if "attention" in plan.keep else "normed_gradients"
    if plan.target is not None and slopes in seen and not seen[slopes].any():
        warn_caller(
            "All gradients are zero, as of a model whose head has not been trained: a map of them will be blank."
        )


def readout_of(model: keras.Model, tokens: int, pooling_attention: np.ndarray | None, count: int) -> np.ndarray:
    """Return `Recording.readout` of `count` images, from the attention of a MAP head where there is one."""
    if pooling_attention is not None:
        return pooling_attention.mean(axis=1)
    return np.tile(readout(model, tokens), (count, 1))


def maps_in(model: keras.Model) -> int:
    """Return the number of blocks whose patches a model reads as a map (`vit_keras.feature_maps`)."""
    return sum(isinstance(layer, PatchMap) for layer in find_vit(model).layers)


def values_add_up(model: keras.Model) -> bool:
    """Return whether the output of each attention is a sum of the tokens' values, with no normalization after it."""
    return all(_adds_up(block) for block in attention_blocks(find_vit(model)))


def _adds_up(block: TransformerBlock) -> bool:
    return not (block.att.attention_norm or block.post_norm)


def projection_of(block: TransformerBlock) -> np.ndarray:
    """Return a block's part of `Recording.projections`."""
    att = block.att
    if not _adds_up(block):
        raise ValueError(
            "The values do not add up to the output of an attention with attention_norm or post_norm. Methods without "
            "values work, such as 'rollout'; in record, pass keep=('attention', 'tokens')."
        )
    out = att.combine_heads
    if getattr(out, "quantization_mode", None) is None:
        kernel = out.kernel
    else:  # what it multiplies by: `kernel` has the integers of int8 and int4
        kernel = out(ops.eye(att.num_heads * att.projection_dim)) - (0 if out.bias is None else out.bias)
    kernel = ops.convert_to_numpy(kernel).astype("float32")
    if block.layer_scale is not None:
        kernel = kernel * ops.convert_to_numpy(block.layerscale1.gamma).astype("float32")
    return kernel.reshape(att.num_heads, att.projection_dim, -1)
