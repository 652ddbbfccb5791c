"""Open a model from a name, a file, a folder or a URL.

`open_model` accepts all of these. It calls `from_checkpoint` for weights, `load_model` for saved models, and the
factories of `vit_keras.vit`. One function, `_configure`, decides what is built: it takes a preset, applies what the
file says, and then what the user says.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import keras

from ._internal.bounds import about, patch_stride
from ._internal.validate import check_activations, check_fields, did_you_mean, path_text, size_pair
from ._internal.warn import warn_caller
from .anatomy.around import alone
from .anatomy.parts import find_vit, keeper, learner
from .build import build
from .checkpoints.architecture import check_head, complete
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.grids import image_size_of, is_cut
from .checkpoints.loading import fill, open_source
from .checkpoints.locate import available, fetch, find, is_meant_as_path, recommended
from .checkpoints.model_weights import ModelWeights
from .checkpoints.saved_models import is_whole_model, load_model
from .checkpoints.settings import take_settings
from .checkpoints.weights import Weights
from .config import ViTConfig
from .copying import keep_settings, with_vit
from .model import VisionTransformer
from .preprocess.layer import Preprocess
from .variants import CIFAR10, FACTORIES, VARIANTS, variant_of

__all__ = ["from_checkpoint", "merge_tokens", "open_model", "preprocessing_layer", "resize"]

ImageSize = tuple[int, int] | int | None

DEFAULT_MODEL = "vit_ti16"


def open_model(
    model: str | os.PathLike[str] | Checkpoint | None = None,
    weights: str | os.PathLike[str] | Checkpoint | None = None,
    **options: Any,
) -> keras.Model:
    """Open a model with its weights, by name, file, folder or URL.

    Args:
        model: A factory (`"vit_b16"`), a published name (`"vit_cifar10"`; see `checkpoints.available`) or `Checkpoint`,
            a saved model (`.keras`, `.h5`, the folder of a `finetune`), a file of weights, a folder from Hugging Face,
            or a URL. `None` selects the model that `weights` are for or, if that is also `None`, `DEFAULT_MODEL`.
        weights: A published name, a file or a URL, which chooses the weights of a factory. `None` selects the
            recommended ImageNet-1k weights.
        **options: Options of `from_checkpoint`, such as `image_size`, `classes` and `dtype`.

    Returns:
        The model, which is a `VisionTransformer` unless it was saved as a different kind of Keras model.

    Raises:
        FileNotFoundError: The file does not exist.
        ConnectionError: The weights must be downloaded, and their server cannot be reached.
        ValueError: The model is unknown, the weights are not for it, or an option does not fit.

    Example:
        >>> open_model("vit_cifar10").output_shape
        (None, 10)
    """
    if isinstance(model, Checkpoint) and weights is None:
        model, weights = None, model
    if weights is None and isinstance(model, str) and "://" in model and find(model) is None:
        check_fields(ViTConfig, {*options} - {*(from_checkpoint.__kwdefaults__ or ())})  # before a download
        model = fetch(model)  # its content shows what it is
    if isinstance(model, (str, os.PathLike)) and is_whole_model(model):
        if received := [option for option, value in {"weights": weights, **options}.items() if value is not None]:
            raise ValueError(f"{model} is a whole model: it takes no weights and no options. Received: {received}")
        return load_model(model, compile=False)
    if model is None and weights is not None:
        return from_checkpoint(weights, **options)
    name = path_text(DEFAULT_MODEL if model is None else model, "model")
    variant = variant_of(name)
    if variant is None:
        if weights is not None:
            raise ValueError(
                f"weights= chooses the weights of a factory ({', '.join(FACTORIES)}). Received: model={name!r}"
            )
        found = find(name)
        if not (found or "://" in name or os.path.exists(os.path.expanduser(name)) or is_meant_as_path(name)):
            hint = did_you_mean(name, [*FACTORIES, *(checkpoint.name for checkpoint in available())])
            raise ValueError(
                f"Unknown model {name}.{hint} There are: {', '.join(FACTORIES)}, vit_cifar10, published names "
                "(checkpoints.available()), files of weights, folders, URLs, and saved models (.keras, .h5)."
            )
        return from_checkpoint(found or name, **options)
    if weights is None:
        weights = recommended(variant)
        if weights is None:
            raise ValueError(f"No ImageNet-1k weights are published for {name}. Pass weights= (--weights).")
    found = find(weights, variant)
    opened, preset = from_checkpoint(found or weights, **options), VARIANTS[variant]
    if any(getattr(opened.config, size) != getattr(preset, size) for size in _SIZES if size not in options):
        raise ValueError(f"{found.name if found else weights} holds a {opened.name}, not a {name}.")
    return opened


def as_model(model: Any, **options: Any) -> keras.Model:
    """Return an open model, or open it (see `open_model`); of a distillation or pre-training, the model that learns."""
    return learner(model if isinstance(model, keras.Model) else open_model(model, **options))


def from_checkpoint(
    weights: str | os.PathLike[str] | Checkpoint,
    *,
    image_size: ImageSize | str = "native",
    source_grid: tuple[int, int] | None = None,
    dtype: Any = None,
    family: str | None = None,
    strict: bool = True,
    key: str | None = None,
    **options: Any,
) -> VisionTransformer:
    """Build the model that a file of weights is for, and load the weights.

    The format is detected from the first bytes of the file (.npz, safetensors, PyTorch's .pth without PyTorch, Keras'
    .h5 and .keras), the family from the names of the arrays, and the architecture from their shapes. Everything else
    comes from a `config.json` next to the file, the registry of published checkpoints, or the arguments.

    Args:
        weights: A published name (`"Ti_16/augreg-imagenet21k+imagenet2012-224"`), a `Checkpoint` (see
            `checkpoints.available`), the path of a file or of a folder from Hugging Face, or a URL.
        image_size: Pixels of the input, `(height, width)` or one integer for a square. `"native"` is the size at which
            the weights were trained. With `None`, the model takes images of any size.
        source_grid: Patches down and across of the file's position embeddings. `None` uses the grid that
            `config.json` or the registry states, or else a square (docs/checkpoints.md, "Which grid").
        dtype: Keras dtype policy; `None` for the global one.
        family: Name of the family (`checkpoints.families.FAMILIES`), if the names in the file do not show it.
        strict: Whether a name in the file that the family does not know is an error.
        key: Name of one of several state dicts in a PyTorch file, such as `"model_ema"`.
        **options: Fields of `ViTConfig` to change or to add. `include_top=False` drops the head, `classes=10` makes
            a new one, `patch_size=8` resamples the patch embedding, and `num_heads=6` adds what the file does not say.

    Returns:
        A `VisionTransformer`, with its `preprocessing`, `labels` and `load_report`.

    Raises:
        FileNotFoundError: The file does not exist.
        ConnectionError: The server cannot be reached.
        ValueError: The file is damaged, belongs to an unknown family or does not say all that is needed, or an option
            does not fit it.

    Example:
        >>> model = from_checkpoint("Ti_16.npz", classes=10, image_size=384)  # doctest: +SKIP
    """
    check_fields(ViTConfig, options)  # before a download
    check_activations(options)
    source = open_source(weights, family=family, strict=strict, key=key, channels=options.get("channels"))
    with about(source.path):
        config, native = _configure(None, source, {"image_size": image_size, **options}, source_grid)
    model = build(config, dtype=dtype)
    _load_and_describe(model, source, native, source_grid=source_grid, resize_patches="patch_size" in options)
    _report_assumptions(model, config, source, options)
    return model


def create(
    variant: str,
    image_size: ImageSize,
    classes: int | None,
    activation: Any,
    include_top: bool,
    pretrained: bool,
    pretrained_top: bool | None,
    weights: str | os.PathLike[str] | None,
    dtype: Any,
    options: dict[str, Any],
) -> VisionTransformer:
    """Build a model of a published size and load its weights: what every factory of `vit_keras.vit` does."""
    # `variant` is a key of `VARIANTS`, or "cifar10"; the other arguments are those of the factories.
    preset = CIFAR10 if variant == "cifar10" else VARIANTS[variant]
    wishes = {"image_size": image_size, "classes": classes, "activation": activation, "include_top": include_top}
    wishes = {name: value for name, value in wishes.items() if name != "classes" or value is not None} | options
    _configure(preset, None, wishes)  # a wrong argument must not cost a download
    published = None if weights is None else find(weights, variant)
    source, native = None, preset.image_size
    if pretrained and weights is not None:
        source = open_source(published or weights, variant)
        head_classes = source.architecture["classes"] if source.architecture["include_top"] else None
        representation_size = source.architecture.get("representation_size")
    else:
        if published is None and weights is not None:
            raise ValueError(
                f"pretrained=False loads nothing. Received: weights={os.fspath(weights)!r} too. Leave out one."
            )
        head_classes, representation_size = (getattr(published, x, None) for x in ("classes", "representation_size"))
        preset = preset.replace(classes=head_classes or 1000)
        wishes = {"representation_size": representation_size, **wishes}
    config, _ = _configure(preset, source, wishes)
    obstacles = {
        "Can only use pretrained_top with include_top.": not config.include_top,
        "Can only use pretrained_top with pretrained.": source is None,
        wrong_classes(weights, head_classes): config.classes != head_classes,
        f"Can only use pretrained_top with representation_size = {representation_size}.": (
            config.representation_size != representation_size
        ),
    }
    obstacle = next((reason for reason, holds in obstacles.items() if holds), None)
    if pretrained_top and obstacle:
        warn_caller(f"{obstacle} The head is not the pre-trained one.")
    model = build(config, dtype=dtype)
    if source is not None:
        how = {"include_head": not obstacle and pretrained_top is not False, "resize_patches": "patch_size" in options}
        _load_and_describe(model, source, native, **how)
        known = {**options, "num_heads": preset.num_heads, "pooling": preset.pooling}
        _report_assumptions(model, config, source, known)
    return model


def wrong_classes(weights: Any, classes: int | None) -> str:
    """Return why a head of other classes cannot be used, in the words of vit-keras 0.x."""
    return f"Can only use pretrained_top with {weights} if classes = {classes}."


_SIZES = ("num_layers", "hidden_size", "num_heads", "mlp_dim", "patch_size")
_FIXED = (*_SIZES, "channels", "name")
"""What a preset decides whatever the file says: a file of other sizes is refused when it is loaded."""

_READ_FROM_FILE = ("position_resize", "patch_resize", "relative_resize")
"""What the file's own arrays are read by, where the user knows better."""


def _configure(
    preset: ViTConfig | None,
    source: Weights | ModelWeights | None,
    options: dict[str, Any],
    source_grid: tuple[int, int] | None = None,
) -> tuple[ViTConfig, tuple[int, int] | None]:
    """Return the configuration from a preset, a file and the user's options, and the image size of the file."""
    # In rising priority. `image_size` may be "native".
    check_fields(ViTConfig, options)
    fields = {} if preset is None else dataclasses.asdict(preset)
    native = fields.get("image_size")
    if source is not None:
        _settle_grid(source, options, source_grid)
        fixed = {name: fields[name] for name in _FIXED if name in fields}
        fields |= _said_by_file(source, fixed, options) | fixed
        source.architecture |= {name: options[name] for name in _READ_FROM_FILE if name in options}
        options = _with_implied(source, options)
        if preset is None:
            native = _native_size(source, fields, source_grid)
            size = options.get("image_size", "native")
            if (size in ("native", None) or size_pair(size, "image_size") == native) and is_cut(native, fields):
                fields["drop_remainder"] = True  # as its authors' convolution does
            fields = _of_same_size(source, fields) | fields
        if not source.architecture["include_top"] and {"include_top", "pooling"}.isdisjoint(options):
            ends_in = source.architecture.get("representation_size")
            options = {"representation_size": ends_in, **options}
    if options.get("image_size", "native") == "native":
        options = {**options, "image_size": native}
    elif options["image_size"] is None:
        grid = source and (source.grid() or source_grid)
        fields["position_grid"] = grid or (preset and preset.grid)
    fields |= options
    of_tokens = fields.get("pooling", "token") is None and options.get("classes") is None
    if of_tokens or not fields.get("include_top", True):  # without a head, no pre_logits
        fields |= {"representation_size": None, **options, "include_top": False}
    return ViTConfig().replace(**fields), native


def _said_by_file(source: Weights | ModelWeights, fixed: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a file, and the files next to it, imply."""
    said = {name: options[name] for name in options if name != "image_size"}
    known = {"num_heads": fixed["num_heads"]} if "num_heads" in fixed else {}
    with about(source.path):
        check_head(source.architecture, options)
        return complete(source.architecture, source.family, {**known, **said})


def _of_same_size(source: Weights | ModelWeights, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the name of the published size that a file has, and for Google's files the dropout for fine-tuning."""
    sizes = {**fields, "patch_size": source.architecture["patch_size"]}
    for variant in VARIANTS.values():
        if all(getattr(variant, name) == sizes[name] for name in _SIZES):
            return {"name": variant.name} | ({"dropout": variant.dropout} if source.family.name == "google" else {})
    return {}


def _with_implied(source: Weights | ModelWeights, options: dict[str, Any]) -> dict[str, Any]:
    """Add what the caller's options imply: a head for `classes`, and with another pooling the file's class token."""
    pooling, token = options.get("pooling", source.architecture.get("pooling", "")), "cls" in source.shapes
    head = {} if options.get("classes") is None else {"include_top": True}
    implied = "pooling" not in options or token == (pooling not in ("gap", "mean", "map"))
    return {**head, **({} if implied else {"class_token": token}), **options}


def _settle_grid(source: Any, options: dict[str, Any], source_grid: tuple[int, int] | None) -> None:
    """Decide by what the caller says which grid the positions of a file are for."""
    size = options.get("image_size", "native")
    wanted = size_pair(size, "image_size") if size not in ("native", None) and "patch_size" not in options else None
    rows = {name: options[name] for name in ("position_prefix", "register_positions") if name in options}
    source.settle(source_grid, image_size=wanted, **rows)


def _native_size(source: Weights | ModelWeights, fields: dict[str, Any], source_grid) -> tuple[int, int]:
    """Return the pixels that a file was trained at, by its positions and the files next to it."""
    grid = source.table.native if source.table else source.grid(source_grid)
    if grid is not None:
        return image_size_of(grid, source.image_size, fields)
    if source.table is not None:
        raise ValueError(f"{source.path}: {source.table.error}")
    if source.image_size is not None:
        return source.image_size
    stride = patch_stride(fields["patch_size"], fields.get("resnet"))
    return 224 // stride[0] * stride[0], 224 // stride[1] * stride[1]


def _load_and_describe(model: VisionTransformer, source: Any, native: Any, **options: Any) -> None:
    """Fill a new model with weights, and let it know what else the file says."""
    model.load_report = fill(model, source, **options)
    take_settings(model, source, model.load_report.fresh, native=native, is_new=True)


def _report_assumptions(model: VisionTransformer, config: ViTConfig, source: Any, options: dict[str, Any]) -> None:
    """Record on a new model what was assumed because the caller did not pass it; warn where similar models disagree."""
    open_fields = [field for field in source.assumptions.open if field not in options]
    assumed = {field: getattr(config, field) for field in open_fields}
    if model.load_report is not None:
        model.load_report = dataclasses.replace(model.load_report, assumed=assumed)
    doubts = {field: text for field, text in source.assumptions.doubts.items() if field not in options}
    if "num_heads" in options:  # who knows these knows the rest, as far as no published models disagree
        doubts = {field: text for field, text in doubts.items() if text or field == "pooling"}
    if warning := source.assumptions.warning(config, doubts, open_fields, source.family.name):
        warn_caller(f"{source.path}: {warning}")


_OF_OUTPUTS = {"classes", "include_top", "pooling", "representation_size"}
"""Options that change the outputs of a ViT, which the layers behind it are not made for."""


def resize(model: keras.Model, image_size: ImageSize, *, dtype: Any = None, **options: Any) -> keras.Model:
    """Return the model for images of a different size: position embeddings are resampled, all other weights copied.

    Args:
        model: A ViT, or a model that contains one. The layers around it are copied too.
        image_size: Pixels of the new input, `(height, width)`, one integer for a square, or `None` for any size.
        dtype: Keras dtype policy of the new model, such as `"mixed_bfloat16"`; `None` for the model's own.
        **options: Other fields of `ViTConfig` to change, such as `patch_size` (resampled as in FlexiViT). With another
            head or pooling (`classes`, `include_top`, `pooling`, `representation_size`), only the ViT is returned.

    Returns:
        A new `VisionTransformer`, or a model like the given one around it. The given model is not changed.

    Raises:
        ValueError: The size is not a whole number of patches, the model's weights depend on it (a Mixer), or the layers
            around the ViT cannot be copied.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> resize(model, (48, 64)).input_shape
        (None, 48, 64, 3)
    """
    model = learner(model)
    source, vit = ModelWeights(model), find_vit(model)
    config = ViTConfig(**source.architecture)
    source.architecture |= {field: value for field, value in options.items() if field.endswith("_resize")}
    options = _with_implied(source, options)
    fields = {"image_size": image_size, "position_grid": source.grid() if image_size is None else None, **options}
    if config.tokens_mlp_dim is not None and (image_size is None or config.replace(**fields).grid != source.grid()):
        raise ValueError(
            f"The model {vit.name!r} is a Mixer, whose weights belong to its grid of {source.grid()} patches. "
            f"It cannot be resized. Received: image_size={image_size}"
        )
    resized = build(config := config.replace(**fields), dtype=dtype or vit.get_layer("embedding").dtype_policy)
    _load_and_describe(resized, source, source.preprocessing.image_size, resize_patches="patch_size" in options)
    keep_settings(vit, resized, options)
    if options.keys() & _OF_OUTPUTS:
        return resized
    return with_vit(model, vit, resized)


def merge_tokens(model: keras.Model, r: int | Sequence[int]) -> keras.Model:
    """Return the model with token merging: it is faster and slightly less accurate (ToMe, arXiv 2210.09461).

    Each block merges r of its tokens into others with similar keys, so each block computes less than the one before.
    The weights are the same, and no training is needed.

    Args:
        model: A ViT, or a model that contains one. The layers around it are copied too.
        r: Number of tokens that each block merges, or one number for each block. 0 turns merging off.

    Returns:
        A new `VisionTransformer` with `merge_tokens` in its `ViTConfig`, or a model like the given one around it. The
            given model is not changed.

    Raises:
        ValueError: A block would have to merge more than half of its patches, or the patches of the model cannot be
            merged: it has rotary or relative positions, takes images of any size, returns all tokens, or is a Mixer.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> merged = merge_tokens(model, 4)
        >>> [layer.output[0].shape[1] for layer in merged.layers if "block" in layer.name]
        [13, 9]
    """
    size = tuple(alone(find_vit(model)).input_shape[1:3])
    return resize(model, None if None in size else size, merge_tokens=r)


def preprocessing_layer(model: keras.Model, **options: Any) -> Preprocess:
    """Return the preprocessing of a model as a Keras layer, for a model that takes raw pixels.

    Args:
        model: A ViT of this package, or a model that contains one.
        **options: Options of `keras.layers.Layer`, such as `name`.

    Returns:
        A layer that turns pixels in [0, 255], `(batch, height, width, channels)` of any size, into the model's input.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> served = keras.Sequential([keras.Input((None, None, 3)), preprocessing_layer(model), model])
        >>> served.output_shape
        (None, 10)
    """
    vit = find_vit(model)
    own = keeper(vit).preprocessing
    fixed = tuple(vit.input_shape[1:3])
    return Preprocess(own.replace(image_size=own.image_size if None in fixed else fixed), **options)
