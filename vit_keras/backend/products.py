"""Products of matrices on PyTorch, on CPUs by the faster of its two libraries.

PyTorch multiplies float32 matrices by MKL, which on some AMD processors reaches half of what oneDNN reaches, inside the
same PyTorch. The two are timed once a process, and the faster one is kept: in training and in inference, from the first
product to the last. What oneDNN has no formula for (float16, `torch.func`, compiling, tracing, gradients of gradients)
is computed by PyTorch's ordinary products.

bfloat16 is multiplied by oneDNN in any case, except in PyTorch's fused attention. But only a direct call of oneDNN adds
the bias and computes the GELU with the product. So a product with its GELU is timed, and the attention against two
products: on AMD processors that multiply bfloat16, they take half as long, and a quarter in training.

PyTorch's GELU in its tanh form takes four times as long as the exact one on processors with AVX-512. In float32 it is
timed against four operations that PyTorch computes by a library of vector functions.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

logger: logging.Logger = logging.getLogger("vit_keras")

LIBRARIES = ("auto", "pytorch", "onednn")
"""Values of the environment variable `VIT_KERAS_PRODUCTS`: the faster one, PyTorch's own choice, oneDNN."""

DTYPES = ("float32", "bfloat16")
"""Types of numbers whose products may be oneDNN's."""

KINDS = (*DTYPES, "attention", "gelu")
"""What is timed: a product in float32, one with its GELU in bfloat16, an attention in bfloat16, the tanh GELU."""

LEAST = 2**22
"""Multiplications from which on oneDNN pays: a call of it costs some 15 microseconds more."""

SHAPES = {"float32": (64, 768, 3072), "bfloat16": (197, 384, 1536)}
"""Rows, inner size and columns of the products that are timed: a part of the largest one of ViT-B, and of ViT-S."""

HEADS = (6, 197, 64)
"""Heads, tokens and width of the attention that is timed: of ViT-S at 224 px."""

MOST_SCORE_BYTES = 8 << 20
"""Maximum size of the scores that are computed at once: more do not stay in the caches of a processor."""

AT_ONCE = 1 << 16
"""Numbers whose tanh GELU is computed at once in each thread: they stay in the cache of a core."""

ROUNDS = 8
"""How often each library is timed; the first time does not count."""

PRIVATE = {
    "product": "ops.mkldnn._linear_pointwise",
    "gelu": "ops.aten.gelu_.default",
    "transforms": "_C._functorch.peek_interpreter_stack",
    "dispatch_mode": "utils._python_dispatch._get_current_dispatch_mode",
    "function_mode": "overrides._get_current_function_mode",
}
"""The private names of PyTorch that are needed; if one is missing, its ordinary product or GELU is used."""

_lock = threading.Lock()
_clock: Callable[[], float] = time.perf_counter if os.name == "nt" else time.thread_time  # steps of 16 ms on Windows
_library: dict[str, str] = {}


def linear(x: Any, kernel: Any, bias: Any = None, gelu: str | None = None) -> Any:
    """Return `x @ kernel + bias`, or its GELU (`"none"`: exact, or `"tanh"`), of PyTorch tensors."""
    # All have one dtype and device. Without gradients, oneDNN computes the GELU while the product is in the processor's
    # caches.
    torch = sys.modules["torch"]
    if x.dim() == kernel.dim() == 2:
        if torch.jit.is_tracing() or x.numel() * kernel.shape[1] < LEAST or not _is_plain_product(torch, x, kernel):
            return _ordinary(torch, x, kernel, bias, gelu)
        differentiated = torch.is_grad_enabled() and (
            x.requires_grad or kernel.requires_grad or (bias is not None and bias.requires_grad)
        )
        by_onednn = library(_dtype(x)) == "onednn"
        if by_onednn and not differentiated:
            return _multiply(x, kernel, bias, gelu)
        if x.dtype is torch.bfloat16:
            return _ordinary(torch, x, kernel, bias, gelu)
        if by_onednn:
            return _with_gelu(torch, _function().apply(x, kernel, bias), gelu)
        return _in_place(torch, x, kernel, bias, gelu, differentiated)
    x = torch.matmul(x, kernel)
    return _with_gelu(torch, x if bias is None else x + bias, gelu)


def attend(query: Any, key: Any, value: Any) -> Any:
    """Return `scaled_dot_product_attention` of PyTorch tensors `(batch, heads, tokens, width)`, without a bias."""
    # In bfloat16 on a CPU, it is computed as two products if they are faster, except for images with many tokens
    # (`MOST_SCORE_BYTES`). The scores are then rounded to bfloat16 before the softmax, as on the other backends.
    torch = sys.modules["torch"]
    fused = torch.nn.functional.scaled_dot_product_attention
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if query.dtype is not torch.bfloat16 or query.device.type != "cpu" or is_traced or _is_watched(torch):
        return fused(query, key, value)
    scores = 2 * query.shape[1] * query.shape[2] * key.shape[2]
    fits = 0 < scores <= MOST_SCORE_BYTES
    if not fits or library("attention") != "onednn" or not _are_plain(torch, query, key, value):
        return fused(query, key, value)
    images = MOST_SCORE_BYTES // scores
    if query.shape[0] <= images:
        return _by_two_products(query, key, value)
    parts = zip(*(x.split(images) for x in (query, key, value)))
    return torch.cat([_by_two_products(*part) for part in parts])


def library(kind: str = "float32") -> str:
    """Return the faster way to compute a kind of product on the CPU, timed at the first call."""
    # `"pytorch"` or `"onednn"` for `"float32"`, `"bfloat16"` and `"attention"` (in bfloat16), and `"pytorch"` or
    # `"passes"` for `"gelu"` (the tanh GELU in float32).
    if kind not in _library:
        with _lock:
            if kind not in _library:
                _library[kind] = _choose(kind)
    return _library[kind]


def _choose(kind: str) -> str:
    wanted = os.environ.get("VIT_KERAS_PRODUCTS", "auto").lower()
    if wanted not in LIBRARIES:
        logger.info("VIT_KERAS_PRODUCTS is %r, which is none of %s.", wanted, ", ".join(LIBRARIES))
    if wanted in ("auto", "onednn"):
        try:
            if not sys.modules["torch"].backends.mkldnn.is_available():
                return "pytorch"
            _private.cache_clear()
            seconds = _seconds(kind)
            logger.info("Seconds of products (%s): %s", kind, seconds)
            other = next(name for name in seconds if name != "pytorch")
            if wanted == "onednn" or seconds[other] < 0.95 * seconds["pytorch"]:
                return other
        except Exception as error:
            logger.info("PyTorch's own way is kept (%s): %s: %s", kind, type(error).__name__, error)
    return "pytorch"


def _seconds(kind: str) -> dict[str, float]:
    """Return the seconds of a product, an attention or a GELU by each way, timed in turns."""
    # The choice holds for the whole process, so it must not depend on the machine's other load at this moment: the
    # clock is this thread's processor time, and the best of several rounds counts.
    torch = sys.modules["torch"]
    dtype = torch.float32 if kind in ("float32", "gelu") else torch.bfloat16
    runs: dict[str, Callable[[], Any]]
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        if kind == "attention":
            x = torch.full((1, *HEADS), 0.5, device="cpu", dtype=dtype)
            fused = torch.nn.functional.scaled_dot_product_attention
            runs = {"pytorch": lambda: fused(x, x, x), "onednn": lambda: _by_two_products(x, x, x)}
        elif kind == "gelu":
            x = torch.full((AT_ONCE,), 0.5, device="cpu", dtype=dtype)
            runs = {
                "pytorch": lambda: _private("gelu")(x.clone(), approximate="tanh"),
                "passes": lambda: _gelu_in_passes(torch, x.clone()),
            }
        else:
            rows, inner, columns = SHAPES[kind]
            shapes = (rows, inner), (inner, columns), (columns,)
            x, kernel, bias = (torch.full(shape, 0.5, device="cpu", dtype=dtype) for shape in shapes)
            gelu = None if kind == "float32" else "tanh"
            ordinary = functools.partial(_in_place, differentiated=False) if gelu is None else _ordinary
            runs = {
                "pytorch": lambda: ordinary(torch, x, kernel, bias, gelu),
                "onednn": lambda: _by_onednn(x, kernel, bias, gelu),
            }
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                start = _clock()
                run()
                found[name].append(_clock() - start)
    return {name: min(each[1:]) for name, each in found.items()}


@functools.cache
def _private(name: str) -> Any:
    value = sys.modules["torch"]
    for part in PRIVATE[name].split("."):
        value = getattr(value, part)
    return value


def _is_plain_product(torch: Any, x: Any, kernel: Any) -> bool:
    """Whether a product is on a CPU, and nothing watches or transforms what is computed."""
    if torch.compiler.is_compiling() or _dtype(x) not in DTYPES or not x.is_cpu:
        return False
    return not _is_watched(torch) and _are_plain(torch, x, kernel)


def _dtype(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def _are_plain(torch: Any, *tensors: Any) -> bool:
    kinds = (torch.Tensor, torch.nn.Parameter)
    return all(type(t) in kinds and t.layout is torch.strided and not t.is_meta for t in tensors)


def _is_watched(torch: Any) -> bool:
    try:
        return (
            _private("transforms")() is not None
            or _private("dispatch_mode")() is not None
            or _private("function_mode")() is not None
            or torch.autograd.forward_ad._current_level >= 0
            or not torch.backends.mkldnn.enabled
            or torch.is_autocast_enabled("cpu")
        )
    except Exception as error:
        _cannot_tell(str(error))
        return True


@functools.cache
def _cannot_tell(error: str) -> None:
    """Log once that products are ordinary, as nothing tells whether they are watched."""
    logger.info("Products are not computed by oneDNN: %s", error)


def _multiply(x: Any, kernel: Any, bias: Any = None, gelu: str | None = None) -> Any:
    """Multiply by oneDNN, or in the ordinary way where that fails; no gradient goes through it."""
    try:
        return _by_onednn(x, kernel, bias, gelu)
    except Exception as error:
        result = _ordinary(sys.modules["torch"], x, kernel, bias, gelu)  # a mistake raises here, too
        logger.info("Products are not computed by oneDNN any more: %s: %s", type(error).__name__, error)
        _library[_dtype(x)] = "pytorch"
        return result


def _by_onednn(x: Any, kernel: Any, bias: Any = None, gelu: str | None = None) -> Any:
    return _private("product")(x, kernel.t(), bias, "gelu" if gelu else "none", [], gelu or "")


def _by_two_products(query: Any, key: Any, value: Any) -> Any:
    torch = sys.modules["torch"]
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    scores = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v).unflatten(0, query.shape[:2])


def _in_place(torch: Any, x: Any, kernel: Any, bias: Any, gelu: str | None, differentiated: bool) -> Any:
    """Return the product plus the bias, and its GELU if no gradient is needed, in the memory of the product."""
    # `addmm` copies the bias into each row first. A GELU in new memory makes the C library return memory to the system
    # and take it again in each block: up to a tenth of the time.
    x = torch.mm(x, kernel)
    x = x if bias is None else x.add_(bias)
    if gelu is None or differentiated:
        return _with_gelu(torch, x, gelu)
    if gelu == "tanh" and library("gelu") != "pytorch":
        return _gelu_in_passes(torch, x)
    try:
        in_place = _private("gelu")
    except AttributeError:
        return _with_gelu(torch, x, gelu)
    return in_place(x, approximate=gelu)


def _gelu_in_passes(torch: Any, x: Any) -> Any:
    """Compute the tanh GELU in the memory of `x`, as `x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))`."""
    scale = 2 * math.sqrt(2 / math.pi)
    once = AT_ONCE * torch.get_num_threads()
    linear, space = x.new_full((), scale), x.new_empty(min(once, x.numel()))
    for part in x.view(-1).split(once):
        gate = torch.addcmul(linear, part, part, value=0.044715 * scale, out=space[: part.numel()])
        part.mul_(gate.mul_(part).sigmoid_())
    return x


def _ordinary(torch: Any, x: Any, kernel: Any, bias: Any, gelu: str | None) -> Any:
    x = torch.mm(x, kernel) if bias is None else torch.addmm(bias, x, kernel)
    return x if gelu is None else _with_gelu(torch, x, gelu)


def _with_gelu(torch: Any, x: Any, gelu: str | None) -> Any:
    return x if gelu is None else torch.nn.functional.gelu(x, approximate=gelu)


@functools.cache
def _function() -> Any:
    """Return the product as a function of PyTorch that has gradients, by oneDNN too."""
    torch = sys.modules["torch"]

    def product(x, y):
        watched = torch.is_grad_enabled() or _is_watched(torch) or not _are_plain(torch, x, y)
        return torch.mm(x, y) if watched else _multiply(x, y)  # gradients of gradients go through `mm`

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kernel, bias):
            ctx.save_for_backward(x, kernel)
            return _multiply(x, kernel, bias)

        @staticmethod
        def backward(ctx, gradient):
            x, kernel = ctx.saved_tensors
            needs_x, needs_kernel, needs_bias = ctx.needs_input_grad
            gradient = gradient.contiguous()
            return (
                product(gradient, kernel.t()) if needs_x else None,
                product(x.t(), gradient) if needs_kernel else None,
                gradient.sum(0) if needs_bias else None,
            )

    return Linear
