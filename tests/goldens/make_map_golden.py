#!/usr/bin/env python3
"""Write the golden files of tests/data/maps: attention and relevance maps of the reference implementations.

Run by hand, in an environment that holds the originals; no test needs them. The files that are committed came from

    torch 2.13.0 (CPU), timm 1.0.31, grad-cam 1.5.7, captum 0.9.0, torchcam 0.5.0, fast-vit-rollout 0.1.1,
    torchxai-explain 0.3.0, txv 0.0.2, einops, opencv-python-headless 5.0.0, SciPy, scikit-learn, ttach

    make_map_golden.py                  # every case
    make_map_golden.py vit deit         # those whose names begin so

Every model is one of timm's, tiny, with the seeded weights of `family_files.value`, in float64. Where a method's
authors published a package, the package makes the map. Some methods exist only as a repository or a paper: these are
written here from their definitions, one layer, head and token after another, and say "formula". Nothing is shared with
vit_keras, so that a mistake has to be made twice to go unseen.

A map is (2, *grid), one for each picture, unless its function says otherwise.
"""

import copy
import dataclasses
import importlib.metadata
import json
import pathlib
import sys
import warnings
import zlib

import cv2
import numpy as np
import torch
from family_files import SEED, state_dict
from make_family_golden import save, shapes
from make_google_npz import image
from map_files import DIRECTORY
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.contenders._torchvision import stand_in

stand_in()
torch.set_default_dtype(torch.float64)  # some of the packages make an identity matrix without asking for a type

TARGETS = [2, 4]
"""The class explained in each picture: two, so that gradients that leak from one picture to the other are seen. With
    some others
Grad-CAM's maps of some models have no positive part, and a blank map is no test."""
TINY = {"patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "mlp_ratio": 2, "num_classes": 5}
REGISTERS = ["cls", "reg0", "reg1", "reg2", "reg3"]
NO_TOKEN = {"class_token": False}
CASES = {
    "vit": {"img_size": (32, 32), "prefix": ["cls"]},
    "vit_deep": {"img_size": (24, 32), "args": {"depth": 12, "num_heads": 4}, "prefix": ["cls"], "only_maps": True},
    "vit_rectangle": {"img_size": (16, 48), "prefix": ["cls"]},
    "dinov2_registers": {
        "img_size": (24, 24),
        "args": {"reg_tokens": 4, "no_embed_class": True, "init_values": 1.0},
        "prefix": REGISTERS,
    },
    "deit_distilled": {"img_size": (24, 32), "prefix": ["cls", "dist"], "class": "VisionTransformerDistilled"},
    "vit_gap": {"img_size": (32, 24), "args": {**NO_TOKEN, "global_pool": "avg", "fc_norm": False}, "prefix": []},
    "vit_fc_norm": {"img_size": (24, 32), "args": {"global_pool": "avg", "fc_norm": True}, "prefix": ["cls"]},
    "siglip": {
        "img_size": (24, 32),
        "args": {**NO_TOKEN, "global_pool": "map"},
        "prefix": [],
        "options": {"mlp_activation": "gelu"},
    },
}
REFERENCES = {}


def reference(source, kind="formula"):
    """Register a function of a `Run` that makes the array of its name, or `None` where it is not defined."""

    def register(function):
        REFERENCES[function.__name__] = source, kind, function
        return function

    return register


def package(name):
    """Register as made by an installed package."""
    return reference(f"{name} {importlib.metadata.version(name)}", "package")


# ---------------------------------------------------------------------------------------------- one run of an original
# --


@dataclasses.dataclass
class Run:
    """What one original did with two pictures. NumPy arrays of float64; row = query.

    Attributes:
        model: timm's, in float64 and without fused attention, which keeps no attention.
        x: its input, a tensor (2, 3, height, width).
        grid, prefix: patches down and across; tokens before the patches.
        logits: (2, classes).
        attention, gradients: (layers, 2, heads, tokens, tokens); the gradients are of the target's logit.
        inputs: (layers, 2, tokens, width), what went into each block.
        normed, normed_gradients: (2, tokens, width), after the first norm of the last block.
        values: (layers, 2, heads, tokens, width of a head).
        projections: (layers, heads, width of a head, width), times the layer scale.
        pooling, pooling_gradients: (2, heads, tokens), the attention of a MAP head, or None.
        readout: (2, tokens), how much the output reads of each token.
    """

    model: nn.Module
    x: torch.Tensor
    grid: tuple
    prefix: int
    logits: np.ndarray
    attention: np.ndarray
    gradients: np.ndarray
    inputs: np.ndarray
    normed: np.ndarray
    normed_gradients: np.ndarray
    values: np.ndarray
    projections: np.ndarray
    pooling: np.ndarray
    pooling_gradients: np.ndarray
    readout: np.ndarray

    @property
    def reads_class_token(self):
        """Whether the output is made of the class token alone."""
        return bool((self.readout[:, 0] == 1).all())

    def map_of(self, rows):
        """(2, tokens) or a list of two rows to maps."""
        rows = np.stack([np.asarray(row) for row in rows])
        return rows[:, self.prefix :].reshape(len(rows), *self.grid)

    def read(self, matrices):
        """Maps of two (tokens, tokens) matrices: the rows that the output reads."""
        return self.map_of([weights @ np.asarray(m) for weights, m in zip(self.readout, matrices)])


def build(case):
    """(the model with seeded weights, in evaluation mode and float64; {name: shape} of its weights)."""
    from timm.models import deit, vision_transformer

    cls = getattr(deit, case["class"]) if "class" in case else vision_transformer.VisionTransformer
    model = cls(img_size=case["img_size"], **TINY | case.get("args", {}))
    names = shapes(model.state_dict())
    weights = {k: torch.from_numpy(v.astype(np.float64)) for k, v in state_dict(SEED, names, {}).items()}
    model.load_state_dict(weights, strict=True)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return model.double().eval(), names


def run(model, pixels, case):
    """Run a model forwards and backwards and keep what the methods need."""
    x = torch.from_numpy((pixels.astype(np.float64) - 127.5) / 127.5).permute(0, 3, 1, 2)
    kept = {"attention": [], "inputs": [], "qkv": [], "normed": []}

    def keep(key):
        def hook(module, args, output):
            tensor = args[0] if key == "inputs" else output
            tensor.retain_grad()
            kept[key].append(tensor)

        return hook

    hooks = []
    for block in model.blocks:
        for key, module in (
            ("inputs", block),
            ("normed", block.norm1),
            ("qkv", block.attn.qkv),
            ("attention", block.attn.attn_drop),
        ):
            hooks.append(module.register_forward_hook(keep(key)))
    pool = getattr(model, "attn_pool", None)
    if pool is not None:
        hooks.append(pool.register_forward_hook(keep_pooling(kept)))
    model.zero_grad()
    logits = model(x)
    logits[range(len(TARGETS)), TARGETS].sum().backward()
    for hook in hooks:
        hook.remove()

    def stack(key):
        return np.stack([t.detach().numpy() for t in kept[key]])

    heads = model.blocks[0].attn.num_heads
    batch, tokens, width = kept["inputs"][0].shape
    values = stack("qkv").reshape(-1, batch, tokens, 3, heads, width // heads)[:, :, :, 2].swapaxes(2, 3)
    prefix, readout = len(case["prefix"]), np.zeros((batch, tokens))
    pooling = pooling_gradients = None
    if pool is not None:
        attention = kept["pooling"]
        pooling, pooling_gradients = (t.detach().numpy()[:, :, 0] for t in (attention, attention.grad))
        readout = pooling.mean(axis=1)
    elif model.global_pool == "avg":
        readout[:, prefix:] = 1 / (tokens - prefix)
    else:
        read = 2 if "dist" in case["prefix"] else 1
        readout[:, :read] = 1 / read
    return Run(
        model=model,
        x=x,
        grid=tuple(model.patch_embed.grid_size),
        prefix=prefix,
        logits=logits.detach().numpy(),
        attention=stack("attention"),
        gradients=np.stack([t.grad.numpy() for t in kept["attention"]]),
        inputs=stack("inputs"),
        normed=kept["normed"][-1].detach().numpy(),
        normed_gradients=kept["normed"][-1].grad.numpy(),
        values=values,
        projections=np.stack([projection(block, heads) for block in model.blocks]),
        pooling=pooling,
        pooling_gradients=pooling_gradients,
        readout=readout,
    )


def projection(block, heads):
    """(heads, width of a head, width) of a block: a head's values times this is what it adds to a token."""
    kernel = block.attn.proj.weight.detach().numpy().T
    if not isinstance(block.ls1, nn.Identity):
        kernel = kernel * block.ls1.gamma.detach().numpy()
    return kernel.reshape(heads, -1, kernel.shape[-1])


def keep_pooling(kept):
    """A hook that computes a MAP head again and keeps its attention: timm has no module after the softmax to hook."""

    def hook(pool, args, output):
        x = args[0]
        batch, tokens, width = x.shape
        q = pool.q(pool.latent).reshape(pool.latent_len, pool.num_heads, -1).transpose(0, 1)
        k, v = pool.kv(x).reshape(batch, tokens, 2, pool.num_heads, -1).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) * pool.scale).softmax(dim=-1)
        attention.retain_grad()
        kept["pooling"] = attention
        y = pool.proj((attention @ v).transpose(1, 2).reshape(batch, pool.latent_len, width))
        y = (y + pool.mlp(pool.norm(y)))[:, 0]
        torch.testing.assert_close(y, output, rtol=0, atol=1e-12)
        return y

    return hook


# --------------------------------------------------------------------------------------------- the model's own numbers
# --


@reference("timm", "package")
def logits(run):
    """(2, classes)."""
    return run.logits


@package("captum")
def attention(run):
    """(layers, 2, heads, tokens, tokens): LayerActivation of the dropout after each softmax."""
    from captum.attr import LayerActivation

    found = [LayerActivation(run.model, b.attn.attn_drop).attribute(run.x) for b in run.model.blocks]
    return np.stack([a.detach().numpy() for a in found])


@reference("torch.autograd on timm", "package")
def gradients(run):
    """(layers, 2, heads, tokens, tokens): of the target's logit by the attention."""
    return run.gradients


@package("captum")
def gradient_times_attention(run):
    """(layers, 2, heads, tokens, tokens): LayerGradientXActivation of the same; of some cases only."""
    if not run.reads_class_token:
        return None
    from captum.attr import LayerGradientXActivation

    found = [
        LayerGradientXActivation(run.model, b.attn.attn_drop).attribute(run.x, target=TARGETS) for b in run.model.blocks
    ]
    return np.stack([a.detach().numpy() for a in found])


@reference("torch.autograd on timm", "package")
def normed(run):
    """(2, tokens, width): after the first norm of the last block."""
    return run.normed


@reference("torch.autograd on timm", "package")
def normed_gradients(run):
    """(2, tokens, width): of the target's logit by these."""
    return run.normed_gradients


@reference("timm's attention pooling, computed again")
def pooling(run):
    """(2, heads, tokens): the attention of a MAP head; `keep_pooling` checks that timm's output comes of it."""
    return run.pooling


@reference("torch.autograd on the same")
def pooling_gradients(run):
    """(2, heads, tokens): of the target's logit by it."""
    return run.pooling_gradients


# --------------------------------------------------------------------------------------------------------------
# rollout --


def unit_rows(matrix):
    """A matrix, each row of it divided by its sum."""
    return matrix / matrix.sum(axis=-1)[:, None]


def chain(matrices):
    """W_L ... W_2 W_1 of [W_1, ..., W_L]."""
    product = np.eye(len(matrices[0]))
    for matrix in matrices:
        product = matrix @ product
    return product


def without_lowest(matrix, ratio):
    """A matrix with the lowest `floor(entries * ratio)` of its entries zeroed, but never the very first one."""
    flat = matrix.flatten()
    order = np.argsort(flat)[: int(flat.size * ratio)]
    flat[[n for n in order if n != 0]] = 0
    return flat.reshape(matrix.shape)


def rolled_out(run, fuse=np.mean, ratio=0.0, residual=0.5, start=0):
    """Attention rollout, as two whole matrices."""
    out = []
    for picture in range(len(run.x)):
        steps = []
        for layer in run.attention[start:]:
            fused = without_lowest(fuse(layer[picture], axis=0), ratio)
            steps.append(unit_rows((1 - residual) * fused + residual * np.eye(len(fused))))
        out.append(chain(steps))
    return out


ABNAR = "Abnar & Zuidema 2020, sec. 3"
GILDENBLAT = "vit-explain (Gildenblat 2020)"


@reference(ABNAR)
def rollout(run):
    return run.read(rolled_out(run))


@reference(ABNAR)
def rollout_from_layer_1(run):
    return run.read(rolled_out(run, start=1))


@reference(ABNAR)
def rollout_residual_08(run):
    """With 0.8 of the residual and 0.2 of the attention."""
    return run.read(rolled_out(run, residual=0.8))


@reference(ABNAR)
def rollout_patch_1_2(run):
    """What the patch in the second row and third column is made of, instead of what the output reads."""
    return run.map_of([m[run.prefix + run.grid[1] + 2] for m in rolled_out(run)])


@reference(f"{GILDENBLAT}, corrected")
def rollout_max_09(run):
    """Largest of the heads, nine tenths discarded; with rows normalised, where vit-explain has columns."""
    return run.read(rolled_out(run, np.max, 0.9))


@reference(f"{GILDENBLAT}, corrected")
def rollout_min_05(run):
    return run.read(rolled_out(run, np.min, 0.5))


@reference(f"{GILDENBLAT}, as it is")
def rollout_max_09_columns(run):
    """As vit-explain has it: column j divided by the sum of row j."""
    if not run.reads_class_token:
        return None
    out = []
    for picture in range(len(run.x)):
        steps = []
        for layer in run.attention:
            mixed = (without_lowest(layer[picture].max(axis=0), 0.9) + np.eye(layer.shape[-1])) / 2
            steps.append(mixed / mixed.sum(axis=-1))
        out.append(chain(steps))
    return run.read(out)


@reference("vit-keras 0.2.0")
def rollout_vit_keras(run):
    """The matrix divided by the sum of all its entries instead of by rows: the same map up to a factor."""
    if not run.reads_class_token:
        return None
    out = []
    for picture in range(len(run.x)):
        mixed = [layer[picture].mean(axis=0) + np.eye(layer.shape[-1]) for layer in run.attention]
        out.append(chain([m / m.sum() for m in mixed]))
    return run.read(out)


def of_fast_vit_rollout(run, fusion, ratio):
    """The matrices of ViTAttentionRollout."""
    from fast_vit_rollout.vit_rollout import ViTAttentionRollout

    model = copy.deepcopy(run.model)  # its hooks cannot be taken off
    return ViTAttentionRollout(model, head_fusion=fusion, discard_ratio=ratio)(run.x).numpy()


@package("fast-vit-rollout")
def fast_vit_rollout_mean(run):
    return run.read(of_fast_vit_rollout(run, "mean", 0.0))


@package("fast-vit-rollout")
def fast_vit_rollout_max(run):
    return run.read(of_fast_vit_rollout(run, "max", 0.0))


@package("fast-vit-rollout")
def fast_vit_rollout_min(run):
    return run.read(of_fast_vit_rollout(run, "min", 0.0))


@package("fast-vit-rollout")
def fast_vit_rollout_min_05(run):
    """It discards after adding the residual and normalising, so this is another map than vit-explain's."""
    return run.read(of_fast_vit_rollout(run, "min", 0.5)) if run.reads_class_token else None


@package("torchxai-explain")
def torchxai_rollout(run):
    """It finds out the grid by itself, and only of squares."""
    if not run.reads_class_token or run.grid[0] != run.grid[1]:
        return None
    from torchxai.methods.attention_rollout import AttentionRollout

    explain = AttentionRollout(copy.deepcopy(run.model), head_fusion="mean", discard_ratio=0.0)
    return np.stack([explain._compute_cam(picture[None], None) for picture in run.x])


def of_txv(run):
    """txv's model of the same weights, which it knows under timm's names; or None."""
    if not run.reads_class_token or run.prefix > 1 or run.grid[0] != run.grid[1]:
        return None
    import functools

    from txv.models import VisionTransformer

    model = VisionTransformer(
        img_size=run.x.shape[-1],
        qkv_bias=True,
        norm_layer=functools.partial(nn.LayerNorm, eps=1e-6),
        **{k: TINY[k] for k in ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes")},
    )
    model.load_state_dict(run.model.state_dict(), strict=True)
    np.testing.assert_allclose(model(run.x).detach().numpy(), run.logits, rtol=0, atol=1e-10)
    return model.eval()


@package("txv")
def txv_rollout(run):
    from txv.exp import AttentionRollout

    model = of_txv(run)
    return None if model is None else AttentionRollout(model).explain(run.x).detach().numpy().reshape(-1, *run.grid)


@package("txv")
def txv_generic(run):
    """Its GenericAttention clamps the mean of the heads; Chefer et al. take the mean of the clamped heads."""
    from txv.exp import GenericAttention

    model = of_txv(run)
    if model is None:
        return None
    maps = [GenericAttention(model).explain(p[None], index=t).detach().numpy() for p, t in zip(run.x, TARGETS)]
    return np.stack(maps).reshape(-1, *run.grid)


# ----------------------------------------------------------------------------------------------------------- attention
# --


@reference("DINO (Caron et al. 2021)")
def cls_attention(run):
    """(2, heads, *grid): what the class token of the last layer attends to."""
    if not run.reads_class_token:
        return None
    row = run.attention[-1][:, :, 0, run.prefix :]
    return row.reshape(*row.shape[:2], *run.grid)


@reference("DINO (Caron et al. 2021)")
def mass_mask_06(run):
    """(2, heads, *grid): 1 where a patch is among those that have 0.6 of a head's attention, else 0."""
    maps = cls_attention(run)
    if maps is None:
        return None
    mask = np.zeros_like(maps)
    for index in np.ndindex(*maps.shape[:2]):
        flat, below = maps[index].ravel() / maps[index].sum(), 0.0
        for patch in np.argsort(flat):
            below += flat[patch]
            if abs(below - 0.4) < 1e-4:
                raise ValueError("a patch is too near to the threshold for float32 to tell on which side it is")
            mask[index].ravel()[patch] = below > 1 - 0.6
    return mask


# ------------------------------------------------------------------------------------------- attention and its
# gradient --


def relevance(run, start=0):
    """Two matrices of Chefer et al. 2021b, equations 5 and 6."""
    out = []
    for picture in range(len(run.x)):
        r = np.eye(run.attention.shape[-1])
        for a, g in zip(run.attention[start:, picture], run.gradients[start:, picture]):
            r = r + sum(np.maximum(ga * aa, 0) for ga, aa in zip(g, a)) / len(a) @ r
        out.append(r)
    return out


CHEFER = "Chefer, Gur & Wolf 2021b, eq. 5-6"


@reference(CHEFER)
def chefer(run):
    if run.pooling is not None:
        return None
    return run.read(relevance(run))


@reference(CHEFER)
def chefer_from_layer_1(run):
    if run.pooling is not None:
        return None
    return run.read(relevance(run, start=1))


@reference(CHEFER)
def chefer_pooling(run):
    """With a MAP head: its query attends to the tokens, so its own relevance is one more such step."""
    if run.pooling is None:
        return None
    row = np.maximum(run.pooling * run.pooling_gradients, 0).mean(axis=1)
    return run.map_of([r @ m for r, m in zip(row, relevance(run))])


def gradient_rolled_out(run, ratio=0.0):
    """Two matrices: rollout of the positive part of the heads' mean of attention times gradient."""
    out = []
    for picture in range(len(run.x)):
        steps = []
        for a, g in zip(run.attention[:, picture], run.gradients[:, picture]):
            fused = without_lowest(np.maximum((a * g).mean(axis=0), 0), ratio)
            steps.append(unit_rows((fused + np.eye(len(fused))) / 2))
        out.append(chain(steps))
    return out


@reference(f"{GILDENBLAT}, corrected")
def gradient_rollout(run):
    return run.read(gradient_rolled_out(run)) if run.pooling is None else None


@reference(f"{GILDENBLAT}, corrected")
def gradient_rollout_09(run):
    return run.read(gradient_rolled_out(run, 0.9)) if run.pooling is None else None


@reference(f"{GILDENBLAT}, corrected")
def gradient_rollout_pooling(run):
    """With a MAP head: its one row of positive attention times gradient, which has no residual, is one more layer."""
    if run.pooling is None:
        return None
    rows = unit_rows(np.maximum((run.pooling * run.pooling_gradients).mean(axis=1), 0))
    return run.map_of([row @ m for row, m in zip(rows, gradient_rolled_out(run))])


def hooked_gradients(model, x, target):
    """[(heads, tokens, tokens)] in the order of a backward pass: what vit-explain's hook is given.

    Dropout of a model in evaluation mode adds nothing to the graph, so the hook of the module sees the step before it,
    and the gradient that it takes for the attention's is that of the logits of the softmax.
    """
    seen, handles = [], []
    for block in model.blocks:
        handles.append(
            block.attn.attn_drop.register_backward_hook(lambda module, into, out: seen.append(into[0][0].numpy()))
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(x[None])[0, target].backward()
    for handle in handles:
        handle.remove()
    return seen


@reference(f"{GILDENBLAT}, as it is")
def gradient_rollout_vit_explain(run):
    """With its three faults: gradients in backward order, of the softmax's logits; columns normalized."""
    if not run.reads_class_token:
        return None
    out = []
    for picture, target in enumerate(TARGETS):
        seen = hooked_gradients(run.model, run.x[picture], target)
        check_hooked(run, seen, picture)
        steps = []
        for a, g in zip(run.attention[:, picture], seen):
            mixed = (np.maximum((a * g).mean(axis=0), 0) + np.eye(a.shape[-1])) / 2
            steps.append(mixed / mixed.sum(axis=-1))
        out.append(chain(steps))
    return run.read(out)


def check_hooked(run, seen, picture):
    """Stop unless a hook saw the gradient of the softmax's logits, last layer first."""
    for a, g, hooked in zip(run.attention[::-1, picture], run.gradients[::-1, picture], seen, strict=True):
        before_softmax = a * (g - (a * g).sum(axis=-1, keepdims=True))
        np.testing.assert_allclose(hooked, before_softmax, rtol=0, atol=1e-12 * np.abs(g).max())


# ---------------------------------------------------------------------------------------------- activations of one
# layer --


def to_grid(run):
    """What grad-cam calls a reshape_transform."""

    def transform(tokens):
        return tokens[:, run.prefix :].reshape(len(tokens), *run.grid, -1).permute(0, 3, 1, 2)

    return transform


def cams(run, name):
    """(maps on the grid, without the negative part; maps of the size of the picture, as drawn), of grad-cam."""
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    kept = []

    class Kept(getattr(pytorch_grad_cam, name)):
        def get_cam_image(self, *args, **kwargs):
            kept.append(super().get_cam_image(*args, **kwargs))
            return kept[-1]

    with Kept(run.model, [run.model.blocks[-1].norm1], reshape_transform=to_grid(run)) as cam:
        drawn = cam(run.x, [ClassifierOutputTarget(t) for t in TARGETS])
    return np.maximum(kept[0], 0), drawn


@package("grad-cam")
def gradcam(run):
    return cams(run, "GradCAM")[0]


@package("grad-cam")
def hirescam(run):
    return cams(run, "HiResCAM")[0]


@package("grad-cam")
def elementwise(run):
    return cams(run, "GradCAMElementWise")[0]


@package("grad-cam")
def layercam(run):
    return cams(run, "LayerCAM")[0]


def drawn_only_for_rectangles(run, name):
    """(2, height, width), to keep the files small only for the first of the rectangles."""
    return cams(run, name)[1] if run.grid == (2, 6) else None


@package("grad-cam")
def gradcam_drawn(run):
    """(2, height, width): from 0 to 1, enlarged by OpenCV, from 0 to 1 again."""
    return drawn_only_for_rectangles(run, "GradCAM")


@package("grad-cam")
def hirescam_drawn(run):
    """(2, height, width)."""
    return drawn_only_for_rectangles(run, "HiResCAM")


class OnGrid(nn.Module):
    """Tokens to channels on a grid and back: captum's LayerGradCam takes only the former."""

    def __init__(self, run):
        super().__init__()
        self.norm = run.model.blocks[-1].norm1
        self.channels = nn.Identity()
        self.run = run

    def forward(self, x):
        x = self.norm(x)
        patches = self.channels(to_grid(self.run)(x))
        return torch.cat([x[:, : self.run.prefix], patches.flatten(2).transpose(1, 2)], dim=1)


@package("captum")
def captum_gradcam(run):
    from captum.attr import LayerGradCam

    model = copy.deepcopy(run.model)
    model.blocks[-1].norm1 = layer = OnGrid(run)
    return LayerGradCam(model, layer.channels).attribute(run.x, TARGETS, relu_attributions=True)[:, 0].detach().numpy()


@package("captum")
def captum_hirescam(run):
    """LayerGradientXActivation: HiResCAM is the positive part of the sum over its channels."""
    from captum.attr import LayerGradientXActivation

    found = LayerGradientXActivation(run.model, run.model.blocks[-1].norm1).attribute(run.x, target=TARGETS)
    return np.maximum(run.map_of(found.detach().numpy().sum(axis=-1)), 0)


# ------------------------------------------------------------------------------------------------------- norms of
# values --


def contributions(run, layer, picture):
    """(tokens, tokens, width): what each token gives to each other one in a layer, the residual being its own.

    The bias of the values is a part of the values; that of the projection belongs to no token and is left out.
    """
    attention, values = run.attention[layer][picture], run.values[layer][picture]
    tokens, width = run.inputs[layer][picture].shape
    out = np.zeros((tokens, tokens, width))
    for query in range(tokens):
        for key in range(tokens):
            for head, kernel in enumerate(run.projections[layer]):
                out[query, key] += attention[head, query, key] * (values[head, key] @ kernel)
        out[query, query] += run.inputs[layer][picture, query]
    return out


def value_rollout(run, measure, start=0):
    """Maps: rollout of what `measure` makes of a layer's contributions."""
    layers = range(start, len(run.attention))
    out = []
    for picture in range(len(run.x)):
        out.append(chain([unit_rows(measure(contributions(run, layer, picture))) for layer in layers]))
    return run.read(out)


def nearness(given):
    """ALTI: by how much a token comes nearer to the whole, in the 1-norm; nothing if it does not."""
    whole = given.sum(axis=1)
    out = np.zeros(given.shape[:2])
    for query, key in np.ndindex(*out.shape):
        out[query, key] = np.abs(whole[query]).sum() - np.abs(whole[query] - given[query, key]).sum()
    return np.maximum(out, 0)


@reference("ALTI (Ferrando et al. 2022)")
def alti(run):
    return value_rollout(run, nearness)


@reference("ALTI (Ferrando et al. 2022)")
def alti_from_layer_1(run):
    return value_rollout(run, nearness, start=1)


@reference("Kobayashi et al. 2021")
def norm_rollout(run):
    return value_rollout(run, lambda given: np.sqrt((given**2).sum(axis=-1)))


# ----------------------------------------------------------------------------------------------------------------
# LeGrad --


class TorchBlock(nn.Module):
    """A block of timm's as torchvision writes it, with PyTorch's own attention: what torch-cam can look into."""

    def __init__(self, block):
        super().__init__()
        self.block = block
        self.self_attention = nn.MultiheadAttention(block.attn.proj.in_features, block.attn.num_heads, batch_first=True)
        with torch.no_grad():
            for mine, its in (
                (self.self_attention.in_proj_weight, block.attn.qkv.weight),
                (self.self_attention.in_proj_bias, block.attn.qkv.bias),
                (self.self_attention.out_proj.weight, block.attn.proj.weight),
                (self.self_attention.out_proj.bias, block.attn.proj.bias),
            ):
                mine.copy_(its)

    def forward(self, x):
        h = self.block.norm1(x)
        x = x + self.block.ls1(self.self_attention(h, h, h, need_weights=False)[0])
        return x + self.block.ls2(self.block.mlp(self.block.norm2(x)))


@package("torchcam")
def legrad(run):
    """Each layer's tokens go through the model's own final norm, pooling and head.

    By itself torch-cam knows only torchvision's models, and takes the mean of all tokens there.
    """
    from torchcam.methods import LeGrad

    model = copy.deepcopy(run.model)
    model.blocks = nn.Sequential(*map(TorchBlock, model.blocks))

    def score(tokens):
        return model.forward_head(model.norm(tokens))

    options = {"score_projection": score, "prefix_tokens": run.prefix, "grid_shape": run.grid}
    with LeGrad(model.eval(), list(model.blocks), **options) as method:
        scores = model(run.x)
        np.testing.assert_allclose(scores.detach().numpy(), run.logits, rtol=0, atol=1e-10)
        return method(TARGETS, scores, normalized=False)[0].numpy()


# -----------------------------------------------------------------------------------------------------------------
# files --


def make_map_golden(name):
    """Run one case through every reference; write its file."""
    case = CASES[name]
    model, names = build(case)
    pixels = image(SEED, n=len(TARGETS), size=case["img_size"])
    found = run(model, pixels, case)
    arrays, sources = {}, {}
    for key, (source, kind, function) in REFERENCES.items():
        array = function(found)
        if array is not None and not (case.get("only_maps") and array.ndim == 5):
            if not np.isfinite(array).all():
                raise ValueError(f"{key} of {name} is not finite")
            arrays[key], sources[key] = np.asarray(array, "float32"), [source, kind]
    args = TINY | case.get("args", {})
    meta = {
        "class": f"{type(model).__module__}.{type(model).__name__}",
        "built": f"{type(model).__name__}(img_size={case['img_size']}, "
        + ", ".join(f"{k}={v!r}" for k, v in args.items())
        + ")",
        "library": f"timm {importlib.metadata.version('timm')}",
        "opencv": cv2.__version__,
        "seed": SEED,
        "names": names,
        "options": {"num_heads": args["num_heads"], "source_grid": found.grid, **case.get("options", {})},
        "images": [*pixels.shape[:3], zlib.crc32(pixels.tobytes())],
        "targets": TARGETS,
        "grid": found.grid,
        "prefix": case["prefix"],
        "sources": sources,
    }
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / f"{name}.npz"
    save(path, {"meta": np.array(json.dumps(meta)), **arrays})
    return path


if __name__ == "__main__":
    wanted = tuple(sys.argv[1:])
    for name in CASES:
        if name.startswith(wanted or ""):
            path = make_map_golden(name)
            print(path.name, path.stat().st_size)
