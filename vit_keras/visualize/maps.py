"""Maps of recordings on the grid of patches: float32 `(batch, down, across)`.

Maps through several layers need only the row of the class token (or of whatever the model's output is read from), so
they multiply one row from the last layer down, which costs far less than the whole product.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .._internal.validate import instance, one_of
from .overlays import mass_mask as mass_mask
from .recording import Recording, fuse_heads

# Bytes of the contributions of tokens to a chunk of tokens that may exist at once.
_MAX_CHUNK = 8 << 20


def attention_rollout(
    recording: Recording,
    *,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual: float = 0.5,
    start_layer: int = 0,
    query: Any = "auto",
) -> np.ndarray:
    """Return the share of each patch in the output, by attention rollout.

    Each layer passes on the mean of a token's own state (the residual) and of what it attends to; the
    product over the layers says how much of each input token is in the output (Abnar & Zuidema 2020,
    arXiv 2005.00928, section 3; ViT paper, appendix D.8).

    Args:
        recording: A `Recording` with attention, its heads fused or not.
        head_fusion: `"mean"` of the heads, as in the paper, `"max"` or `"min"` (vit-explain).
        discard_ratio: Share of the lowest attentions of a layer that become zero before (vit-explain; the first entry
            never does).
        residual: Share of a token's own state.
        start_layer: The first block to go through; from the end if negative.
        query: Whose map: `"auto"`, what the output is read from; `"cls"`, the class token's; `"mean"` of the patches;
            or a patch, `(row, column)`.

    Returns:
        float32 `(batch, down, across)`. Together with the tokens before the patches it sums to 1.

    Raises:
        ValueError: The recording has no attention, or an argument is out of range.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> attention_rollout(visualize.record(model, np.zeros((32, 32, 3), "uint8"))).shape
        (1, 4, 4)
    """
    if not 0 <= discard_ratio < 1 or not 0 <= residual <= 1:
        raise ValueError(f"discard_ratio must be in [0, 1), residual in [0, 1]. Received: {discard_ratio}, {residual}")
    layers = _fused(recording, head_fusion)
    return _roll(recording, layers, residual, discard_ratio, start_layer, _start(recording, query))


def cls_attention(recording: Recording, layer: int | None = None, head: int | None = None) -> np.ndarray:
    """Return the class token's attention in one layer, for each head (DINO, arXiv 2104.14294, figure 1).

    Without a class token it is the mean attention of the tokens that the output is read from. A MAP head has an
    attention of its own, which is the default there.

    Args:
        recording: With attention, heads not fused.
        layer: Which block, from the end if negative; `None`: the last attention before the output.
        head: Which head; `None` for all.

    Returns:
        float32 `(batch, heads, down, across)`, or `(batch, down, across)` of one head.

    Raises:
        ValueError: The recording has no attention, or no such layer or head.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> cls_attention(visualize.record(model, np.zeros((32, 32, 3), "uint8"))).shape
        (1, 2, 4, 4)
    """
    instance(recording, Recording, "recording")
    if layer is None and recording.pooling_attention is not None:
        rows = recording.pooling_attention
    else:
        rows = _need(recording, "attention")[_index(recording, -1 if layer is None else layer)]
        if recording.head_fusion is not None:
            raise ValueError("The heads of this recording were fused: record with head_fusion=None.")
        if rows.ndim == 4:
            rows = np.einsum("bq,bhqk->bhk", recording.readout, rows)
    if head is not None and not -rows.shape[1] <= head < rows.shape[1]:
        raise ValueError(f"The layer has {rows.shape[1]} heads. Received: head={head}")
    return recording.patches(rows if head is None else rows[:, head]).astype("float32")


def mean_of_heads(recording: Recording, layer: int | None = None, head: int | None = None) -> np.ndarray:
    """Return `cls_attention` of a head, or the mean over all heads: float32 `(batch, down, across)`."""
    maps = cls_attention(recording, layer, head)
    return maps.mean(axis=1) if head is None else maps


def alti_rollout(recording: Recording, start_layer: int = 0, kind: str = "alti", query: Any = "auto") -> np.ndarray:
    """Return the rollout of the contributions of tokens to each other: their attention times their values.

    An attention sink, a token that all attend to but whose values are small, counts for little here. This needs neither
    gradients nor a head.

    Args:
        recording: With attention (heads not fused), values and tokens.
        start_layer: See `attention_rollout`.
        kind: How a contribution is measured: `"alti"`, by how much nearer to the sum of all it brings (ALTI, Ferrando
            et al. 2022, arXiv 2203.04212, with the 1-norm); `"norm"`, by its 2-norm (Kobayashi et al. 2021, arXiv
            2109.07152). The residual is a contribution of a token to itself; the bias of the values belongs to their
            token, that of the output projection to none; layer normalization is inside the values, as it was in this
            pass.
        query: See `attention_rollout`.

    Returns:
        float32 `(batch, down, across)`. Together with the tokens before the patches it sums to 1.

    Raises:
        ValueError: The recording lacks something, or an argument is not of these.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> alti_rollout(visualize.record(model, np.zeros((32, 32, 3), "uint8"))).shape
        (1, 4, 4)
    """
    one_of(kind, "kind", ("alti", "norm"))
    return _roll(recording, token_contributions(recording, kind), 0.0, 0.0, start_layer, _start(recording, query))


def relevance_map(recording: Recording, start_layer: int = 0, query: Any = "auto") -> np.ndarray:
    """Return the relevance of each patch for the target: generic attention explainability (Chefer et al. 2021).

    Attention of each head times its gradient, positive parts, mean over the heads: `C`. From the first layer to the
    last `R = R + C R` (arXiv 2103.15679, equations 5 and 6). The default of maps for a class.

    Args:
        recording: With attention and gradients: `record(…, target=…)`, with `head_fusion=None` or `"relevance"`.
        start_layer: See `attention_rollout`; its authors advise to start later in deep models.
        query: See `attention_rollout`.

    Returns:
        float32 `(batch, down, across)`.

    Raises:
        ValueError: The recording has no gradients.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10, include_top=False)
        >>> recording = visualize.record(model, np.zeros((32, 32, 3), "uint8"), target=lambda features: features[:, 0])
        >>> relevance_map(recording).shape
        (1, 4, 4)
    """
    row = _start(recording, query)
    if query == "auto" and recording.pooling_gradients is not None:
        row = np.maximum(recording.pooling_attention * recording.pooling_gradients, 0).mean(axis=1)
    for contribution in _from(recording, _fused(recording, "relevance"), start_layer)[::-1]:
        row = row + _times(row, contribution)
    return recording.patches(row).astype("float32")


def gradient_rollout(
    recording: Recording, *, discard_ratio: float = 0.0, start_layer: int = 0, query: Any = "auto"
) -> np.ndarray:
    """Return attention rollout with each layer weighted by its gradient (vit-explain's idea, without its faults).

    The mean over the heads comes first, then its positive part. The reference, vit-explain, multiplies the layers with
    gradients in reverse order, takes (in inference mode) the gradient of the scores before the softmax, and normalizes
    columns for rows.

    Args:
        recording: With attention and gradients: `record(…, target=…)`, with `head_fusion=None` or `"gradient"`.
        discard_ratio: See `attention_rollout`.
        start_layer: See `attention_rollout`.
        query: See `attention_rollout`.

    Returns:
        float32 `(batch, down, across)`.

    Raises:
        ValueError: The recording has no gradients.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model, picture = vit.vit_cifar10(), np.zeros((32, 32, 3), "uint8")
        >>> gradient_rollout(visualize.record(model, picture, target="cat")).shape
        (1, 8, 8)
    """
    row = _start(recording, query)
    if query == "auto" and recording.pooling_gradients is not None:
        row = np.maximum((recording.pooling_attention * recording.pooling_gradients).mean(axis=1), 0)
        row = row / np.maximum(row.sum(axis=-1, keepdims=True), np.finfo("float32").tiny)
    return _roll(recording, _fused(recording, "gradient"), 0.5, discard_ratio, start_layer, row)


def grad_cam(recording: Recording, kind: str = "gradcam", layer: int = -1) -> np.ndarray:
    """Return Grad-CAM or a relative of it, on the patches after the first normalization of a block.

    There the patches have gradients; after the last block only the class token has one. The values are those of
    pytorch-grad-cam before it stretches them to [0, 1].

    Args:
        recording: `record(…, target=…, keep=("normed",))`.
        kind: `"gradcam"` (arXiv 1610.02391), `"hirescam"` (arXiv 2011.08891), `"layercam"` (Jiang et al. 2021) or
            `"elementwise"` (pytorch-grad-cam's GradCAMElementWise).
        layer: Which block, from the end if negative.

    Returns:
        float32 `(batch, down, across)`, not negative.

    Raises:
        ValueError: The recording lacks the gradients, or has no such layer; or there is no such kind.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model, picture = vit.vit_cifar10(), np.zeros((32, 32, 3), "uint8")
        >>> grad_cam(visualize.record(model, picture, target="cat", keep=("normed",))).shape
        (1, 8, 8)
    """
    index = _index(recording, layer)
    states, slopes = (_need(recording, name)[index] for name in ("normed", "normed_gradients"))
    states, slopes = (x[:, len(recording.prefix) :] for x in (states, slopes))
    if kind == "gradcam":
        heat = (states * slopes.mean(axis=1, keepdims=True)).sum(axis=-1)
    elif kind == "hirescam":
        heat = (states * slopes).sum(axis=-1)
    elif kind == "layercam":
        heat = (states * np.maximum(slopes, 0)).sum(axis=-1)
    elif kind == "elementwise":
        heat = np.maximum(states * slopes, 0).sum(axis=-1)
    else:
        raise ValueError(f"kind must be 'gradcam', 'hirescam', 'layercam' or 'elementwise'. Received: {kind!r}")
    return np.maximum(heat, 0).reshape(-1, *recording.grid).astype("float32")


def legrad(recording: Recording, start_layer: int = 0) -> np.ndarray:
    """Return LeGrad (arXiv 2404.03214): how the target's score at each layer's exit grows with attention to a patch.

    Args:
        recording: `record(…, target=…, exits=True)`.
        start_layer: See `attention_rollout`.

    Returns:
        float32 `(batch, down, across)`, not negative: the mean over layers, heads and queries.

    Raises:
        ValueError: The recording was not made with `exits=True`.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model, picture = vit.vit_cifar10(), np.zeros((32, 32, 3), "uint8")
        >>> legrad(visualize.record(model, picture, target="cat", exits=True)).shape
        (1, 8, 8)
    """
    instance(recording, Recording, "recording")
    if not recording.exits:
        raise ValueError("legrad needs gradients of each layer's own exit: record(..., target=..., exits=True)")
    slopes = _from(recording, _need(recording, "gradients"), start_layer)
    return recording.patches(np.maximum(slopes, 0).mean(axis=(0, 2, 3))).astype("float32")


def token_contributions(recording: Recording, kind: str = "alti") -> np.ndarray:
    """Return how much each token contributes to each other in each block: see `alti_rollout`."""
    names = ("attention", "values", "projections", "tokens")
    attention, values, projections, tokens = (_need(recording, name) for name in names)
    if attention.ndim != 5:
        raise ValueError("Contributions need all heads and rows: record with head_fusion=None and query='all'.")
    result = np.empty((*attention.shape[:2], *attention.shape[3:]), "float32")
    for n, projection in enumerate(projections):
        for image in range(attention.shape[1]):
            result[n, image] = _contributions(attention[n, image], values[n, image], projection, tokens[n, image], kind)
    return result


def _contributions(attention, values, projection, tokens, kind):
    """Return the contributions in one block and image: `(tokens, tokens)`, rows sum to 1."""
    count, width = tokens.shape
    projected = np.matmul(values, projection).transpose(1, 0, 2)  # (token, head, width)
    rows = max(1, _MAX_CHUNK // (4 * count * width))
    result = np.empty((count, count), "float32")
    for start in range(0, count, rows):
        chunk = np.arange(start, min(start + rows, count))
        parts = np.matmul(attention[:, chunk].transpose(2, 1, 0), projected)  # (from, to, width)
        parts[chunk, chunk - start] += tokens[chunk]
        if kind == "norm":
            result[chunk] = np.sqrt(np.einsum("jid,jid->ji", parts, parts)).T
            continue
        whole = parts.sum(axis=0)
        parts -= whole
        np.abs(parts, out=parts)
        result[chunk] = np.maximum(np.abs(whole).sum(axis=-1)[:, None] - parts.sum(axis=-1).T, 0)
    return result / np.maximum(result.sum(axis=-1, keepdims=True), np.finfo("float32").tiny)


# --- parts ------------------------------------------------------------------------------------------------------


def _roll(recording, layers, residual, discard_ratio, start_layer, row):
    """Return a row times the product of all layers, each averaged with the identity, with rows that sum to 1."""
    for scores in _from(recording, layers, start_layer)[::-1]:
        scores = _discard(scores, discard_ratio) if discard_ratio else scores
        sums = residual + (1 - residual) * scores.sum(axis=-1, dtype="float64")
        row = row / np.where(sums > 0, sums, 1)
        row = residual * row + (1 - residual) * _times(row, scores)
    return recording.patches(row).astype("float32")


def _times(row, matrices):
    return np.matmul(row[:, None], matrices)[:, 0]


def _discard(scores, ratio):
    flat = scores.reshape(len(scores), -1).copy()
    lowest = int(flat.shape[1] * ratio)
    if lowest:
        order = np.argpartition(flat, lowest - 1, axis=-1)[:, :lowest]
        first = flat[:, 0].copy()
        np.put_along_axis(flat, order, 0, axis=-1)
        flat[:, 0] = first
    return flat.reshape(scores.shape)


def _fused(recording, how):
    """Return attention (times its gradients) without the heads' axis, as recorded or from all heads."""
    if how not in ("mean", "max", "min", "relevance", "gradient"):
        raise ValueError(f"head_fusion must be 'mean', 'max' or 'min'. Received: {how!r}")
    attention, fused = _need(recording, "attention"), recording.head_fusion
    if fused not in (None, how):
        raise ValueError(
            f"This needs head_fusion={how!r} or head_fusion=None. The recording has head_fusion={fused!r}."
        )
    if attention.ndim != (5 if fused is None else 4):
        raise ValueError("This needs all rows of attention: record with query='all'.")
    if fused is not None:
        return attention
    if how not in ("relevance", "gradient"):
        return fuse_heads(attention, None, how)
    if recording.exits:
        raise ValueError("This needs gradients of the model's output: record with exits=False.")
    return fuse_heads(attention, _need(recording, "gradients"), how)


_REMEDY = {
    "attention": "keep 'attention' in record",
    **dict.fromkeys(("values", "projections"), "keep 'values' in record"),
    "tokens": "keep 'tokens' in record",
    "normed": "record(..., target=..., keep=('normed',))",
    "normed_gradients": "record(..., target=..., keep=('normed',))",
    "gradients": "record with a target: 'predicted', a class, or for a model without classes a function of its output. "
    "alti_rollout needs none",
}


def _need(recording: Recording, field: str) -> np.ndarray:
    instance(recording, Recording, "recording")
    value = getattr(recording, field)
    if value is None:
        raise ValueError(f"The recording has no {field.replace('_', ' ')}: {_REMEDY[field]}.")
    return value


def _index(recording: Recording, layer: int) -> int:
    """Return the place of a block in the recording."""
    instance(recording, Recording, "recording")
    layers, layer = recording.layers, operator.index(layer)
    if -len(layers) <= layer < 0:
        return layer % len(layers)
    if layer not in layers:
        raise ValueError(f"The recording has the blocks {', '.join(map(str, layers))}. Received: {layer}")
    return layers.index(layer)


def _from(recording: Recording, layers: np.ndarray, start_layer: int) -> np.ndarray:
    return layers[_index(recording, start_layer) if start_layer else 0 :]


def _start(recording: Recording, query: Any) -> np.ndarray:
    """Return a weight for each token whose map is wanted: `(batch, tokens)`."""
    instance(recording, Recording, "recording")
    readout = recording.readout.astype("float64")
    if isinstance(query, str) and query == "auto":
        return readout
    row = np.zeros_like(readout)
    prefix, (down, across) = len(recording.prefix), recording.grid
    if isinstance(query, str) and query == "cls":
        if "cls" not in recording.prefix:
            raise ValueError("There is no class token. Pass query='mean' for the mean of the patches.")
        row[:, recording.prefix.index("cls")] = 1
    elif isinstance(query, str) and query == "mean":
        row[:, prefix:] = 1 / (down * across)
    elif isinstance(query, (tuple, list)) and len(query) == 2:
        i, j = (operator.index(n) for n in query)
        if not (0 <= i < down and 0 <= j < across):
            raise ValueError(f"The grid has {down} x {across} patches. Received: query={query}")
        row[:, prefix + i * across + j] = 1
    else:
        raise ValueError(f"query must be 'auto', 'cls', 'mean' or a patch (row, column). Received: {query!r}")
    return row
