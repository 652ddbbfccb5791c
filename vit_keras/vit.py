"""Vision Transformers: one builder, and a factory for each published size.

    >>> from vit_keras import vit
    >>> model = vit.vit_ti16(image_size=224, classes=10, pretrained=False)
    >>> model.output_shape
    (None, 10)

The graph is flat, and its layers have the names they had in vit-keras 0.x: `embedding`, `class_token`,
`Transformer_posembed_input`, `Transformer_encoderblock_{n}`, `Transformer_encoder_norm`, `ExtractToken`,
`pre_logits`, `head`. So `get_layer` and `model.layers[:k]` work as one expects.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
import os
import warnings
from typing import Any, TypedDict

import keras
import numpy as np

from . import checkpoints, compiled, layers, saving
from .config import VARIANTS, ViTConfig, patch_stride, size_pair
from .layers import MixerBlock, resnet_root
from .preprocess import GOOGLE, Preprocess, Preprocessing

ImageSizeArg = tuple[int, int] | int


class ConfigDict(TypedDict):
    """The sizes of a model as `build_model` takes them (vit-keras 0.x; see `ViTConfig`)."""

    dropout: float
    mlp_dim: int
    num_heads: int
    num_layers: int
    hidden_size: int


CONFIG_B: ConfigDict = {"dropout": 0.1, "mlp_dim": 3072, "num_heads": 12, "num_layers": 12, "hidden_size": 768}
CONFIG_L: ConfigDict = {"dropout": 0.1, "mlp_dim": 4096, "num_heads": 16, "num_layers": 24, "hidden_size": 1024}

# Where vit-keras 0.x kept its copies of eight of Google's files; for scripts that fetch them by hand.
BASE_URL = "https://github.com/faustomorales/vit-keras/releases/download/dl"
WEIGHTS = {"imagenet21k": 21843, "imagenet21k+imagenet2012": 1000}
SIZES = set(VARIANTS)


def preprocess_inputs(X):
    """Bring pixels from [0, 255] to the [-1, 1] that the models expect: `(x - 127.5) / 127.5`.

    Args:
        X: Pixels in [0, 255] of any shape and real dtype: an array, a list, a PIL image, or a tensor (also inside
            `tf.data`, whatever the backend). It is not changed.

    Returns:
        float32 of the same shape: a NumPy array, or a tensor where a tensor came in.

    Example:
        >>> preprocess_inputs(np.array([0, 255], "uint8"))
        array([-1.,  1.], dtype=float32)
    """
    if isinstance(X, (np.ndarray, np.generic, list, tuple)) or not hasattr(X, "dtype"):
        return (np.asarray(X, "float32") - np.float32(127.5)) / np.float32(127.5)
    return keras.layers.Rescaling(1 / 127.5, offset=-1.0, dtype="float32")(X)


def interpret_image_size(image_size_arg: ImageSizeArg) -> tuple[int, int]:
    """Read an image size, `(height, width)` or one integer for a square.

    Raises:
        ValueError: It is neither.

    Example:
        >>> interpret_image_size(224)
        (224, 224)
    """
    return size_pair(image_size_arg, "image_size")


@keras.saving.register_keras_serializable("vit_keras")
class VisionTransformer(keras.Model):
    """A functional Keras model that knows its `ViTConfig`. Made by `build` and the factories.

    Attributes:
        config: The `ViTConfig` it was built from, which is saved with the model; `None` in a copy that
            `keras.models.clone_model` made.
        preprocessing: How the checkpoint's pictures are prepared (`vit_keras.preprocess.Preprocessing`), which is saved with the
            model too.
        labels: Names of the classes: a tuple, the name of a list of them (`"imagenet-1k"`), or `None`.
        load_report: What happened when the factory loaded the pre-trained weights, or `None`.
    """

    config: ViTConfig | None = None
    preprocessing: Preprocessing = GOOGLE
    labels: tuple[str, ...] | str | None = None
    load_report: checkpoints.LoadReport | None = None

    def preprocess(self, images: Any, image_size: ImageSizeArg | None = None) -> np.ndarray:
        """Read pictures and make of them what this model takes, as its checkpoint was trained and measured.

        Args:
            images: One picture, or a list or batch of them: whatever `vit_keras.utils.read` reads, paths, PIL images, arrays.
            image_size: For a model that takes any size; `None`: that of the checkpoint.

        Returns:
            float32 `(n, height, width, channels)`; of one picture, n is 1.

        Raises:
            FileNotFoundError: There is no such picture.
            ValueError: It cannot be read.

        Example:
            >>> model = build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
            >>> model.preprocess(np.zeros((480, 640, 3), "uint8")).shape
            (1, 32, 32, 3)
        """
        fixed = tuple(self.input_shape[1:3])
        return self.preprocessing(images, (None if None in fixed else fixed) or image_size)

    def settings(self) -> dict[str, Any]:
        """What there is to know of the model besides its weights, as plain JSON."""
        return {
            "config": None if self.config is None else dataclasses.asdict(self.config),
            "preprocessing": self.preprocessing.to_dict(),
            "labels": self.labels,
        }

    def call(self, inputs, training=None, mask=None, **kwargs):
        """Run the model: compiled where images come in outside of any graph, unless `run_eagerly` is set."""
        self._check_size(inputs)
        plain = mask is None and not kwargs and not self.run_eagerly and not layers.is_tapped()
        if plain and _runs_eagerly(inputs, training):
            images = keras.ops.convert_to_tensor(inputs, dtype=self.inputs[0].dtype)
            return compiled.run(self, _forward[bool(training)], images, key=bool(training))
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def _check_size(self, inputs) -> None:
        size = tuple(getattr(inputs, "shape", ()))[1:3]
        any_size = self.config is not None and self.config.image_size is None and len(size) == 2 and None not in size
        if any_size and min(self.config.grid_of(size)) < 1:
            raise ValueError(
                f"The model {self.name!r} takes images of at least one patch, {self.config.stride} pixels. Received: {size}"
            )

    def compile(self, *args, **kwargs):
        """Compile as `keras.Model.compile` does; `jit_compile="auto"` means no XLA where TensorFlow has only a CPU.

        There XLA gains 2 % of a training step, loses more on a single image, and makes dropout five times slower.
        """
        given = len(args) > 7 or kwargs.get("jit_compile", "auto") != "auto"
        if not given and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            kwargs["jit_compile"] = "auto" if tf.config.list_physical_devices("GPU") else False
        super().compile(*args, **kwargs)

    def compile_from_config(self, config):
        """Compile a model that was loaded as it was saved, which Keras leaves to who overrides `compile`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force=False):
        if self._on_one_tensorflow_device() and self.optimizer is not None and not self.optimizer.built:
            # Variables that are made while the step is traced cost a second trace, half of the time of the first step.
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        metrics = getattr(self, "_compile_metrics", None)
        if metrics is not None and not metrics.built and y is not None and self._on_one_tensorflow_device():

            def spec(tensor):
                return keras.KerasTensor(tensor.shape, tensor.dtype.name)

            # Metrics named by a string make their variables now, which would cost a second trace as above, were it not
            # done in another thread: what is traced is a matter of the thread.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                thread.submit(
                    metrics.build, *(keras.tree.map_structure(spec, tensors) for tensors in (y, y_pred))
                ).result()
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """Predict as `keras.Model.predict` does.

        Of an array or a tensor the batches are cut here: the input pipeline that Keras builds for it, anew at every call, costs
        TensorFlow 40 ms, more than the model itself for an image or two.
        """
        one_device = self._on_one_tensorflow_device()
        if one_device and keras.ops.is_tensor(x):
            x = keras.ops.convert_to_numpy(x)
        in_memory = isinstance(x, np.ndarray) and len(x) > 0
        if not (one_device and in_memory and steps is None and self.steps_per_execution == 1):
            return super().predict(x, batch_size, verbose, steps, callbacks)
        x = x.astype(keras.config.floatx()) if x.dtype.kind == "f" else x
        batch_size = batch_size or 32
        batches = [x[i : i + batch_size] for i in range(0, len(x), batch_size)]
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=len(batches), model=self
            )
        self.stop_predicting = False
        outputs = []
        callbacks.on_predict_begin()
        for step, batch in enumerate(batches):
            callbacks.on_predict_batch_begin(step)
            outputs.append(self.predict_on_batch(batch))
            callbacks.on_predict_batch_end(step, {"outputs": outputs[-1]})
            if self.stop_predicting:
                break
        callbacks.on_predict_end()
        return np.concatenate(outputs)

    def _on_one_tensorflow_device(self) -> bool:
        return keras.backend.backend() == "tensorflow" and self.distribute_strategy.num_replicas_in_sync == 1

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """Load weights as `keras.Model.load_weights` does; files of vit-keras 0.x will do.

        Position embeddings of another image size are resampled to this model's.
        """
        blocks = [layer.mlpblock for layer in self.layers if isinstance(layer, layers.TransformerBlock)]
        before = [block.activation for block in blocks]
        with saving.readable_weights(filepath) as (path, untold_activation):
            super().load_weights(path, skip_mismatch=skip_mismatch, **kwargs)
        if untold_activation:
            for block in blocks:
                block.activation = "gelu"  # the one that vit-keras 0.x had
        if blocks and [block.activation for block in blocks] != before:
            self.train_function = self.test_function = self.predict_function = None  # the other one is in these
            self.config = self.config and self.config.replace(mlp_activation=blocks[0].activation)

    def get_config(self):
        settings = self.settings()
        return {**super().get_config(), "vit": settings.pop("config"), **settings}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        vit, preprocessing, labels = (config.pop(key, None) for key in ("vit", "preprocessing", "labels"))
        model = super().from_config(config, custom_objects)
        for layer in model.layers:
            if (
                not layer.trainable
            ):  # Keras has told the layer, but not those inside of it, and TensorFlow ignores what is no change
                layer.trainable = True
                layer.trainable = False
        model.config = None if vit is None else ViTConfig(**vit)
        model.preprocessing = GOOGLE if preprocessing is None else Preprocessing.from_dict(preprocessing)
        model.labels = tuple(labels) if isinstance(labels, list) else labels
        return model


def _runs_eagerly(inputs, training) -> bool:
    """Whether these images come from a plain `model(images)`: outside of any graph, and worth compiling for."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.executing_eagerly() and isinstance(inputs, (tf.Tensor, np.ndarray))
    if backend == "jax":
        import jax

        return not training and isinstance(inputs, (jax.Array, np.ndarray)) and not isinstance(inputs, jax.core.Tracer)
    return False


# The model as Keras runs it, which is what is compiled.
_forward = {
    training: functools.partial(
        lambda model, images, training: super(VisionTransformer, model).call(images, training), training=training
    )
    for training in (False, True)
}

# Keras' older format, .h5, names the class of a model without its package.
keras.saving.get_custom_objects().setdefault("VisionTransformer", VisionTransformer)


def build(config: ViTConfig, *, dtype: Any = None) -> VisionTransformer:
    """Build the model that a configuration describes, with fresh weights.

    Initialisation follows the reference: the class token and the head's kernel are zero, position embeddings have a
    standard deviation of 0.02, attention and MLP kernels are Glorot-uniform.

    Args:
        config: What to build.
        dtype: Keras dtype policy; `None` for the global one. With half precision the head still computes and returns
            float32.

    Returns:
        A model from `(batch, height, width, channels)`, in [-1, 1], to `(batch, classes)`, to
        `(batch, hidden_size)` without a head, or to `(batch, tokens, hidden_size)` with `pooling=None`.

    Example:
        >>> build(ViTConfig(num_layers=2, hidden_size=64, num_heads=2, mlp_dim=128, classes=10)).count_params()
        129610
    """
    if not isinstance(config.activation, str):  # of a string, serialize would import TensorFlow, whatever the backend
        config = config.replace(activation=keras.activations.serialize(keras.activations.get(config.activation)))
    policy = keras.dtype_policies.get(dtype) if dtype is not None else keras.config.dtype_policy()
    inputs = keras.Input((*(config.image_size or (None, None)), config.channels))
    patches = _embed_patches(inputs, config, policy)
    tokens = _add_positions(patches, config, policy)
    tokens = _encode(tokens, patches, config, policy)
    model = VisionTransformer(inputs, _head(_pool(tokens, config, policy), config, policy), name=config.name)
    model.config = config
    model.preprocessing = _for_channels(GOOGLE, config.channels)
    return model


def _for_channels(preprocessing: Preprocessing, channels: int) -> Preprocessing:
    """The same for images of another number of channels, of which all have the mean of the old ones."""
    if preprocessing.channels == channels:
        return preprocessing
    means = {field: float(np.mean(getattr(preprocessing, field))) for field in ("mean", "std")}
    return preprocessing.replace(channels=channels, **means)


def _norm(name: str, config: ViTConfig, policy: Any):
    return keras.layers.LayerNormalization(epsilon=config.epsilon, name=name, dtype=policy)


def _embed_patches(x, config, policy):
    """An image becomes a grid of tokens, `(batch, down, across, hidden_size)`."""
    if config.resnet is not None:
        x = resnet_root(x, config.resnet, numerics=config.resnet_numerics, dtype=policy)
    if config.patch_norm:
        x = layers.PatchNormalization(config.patch_size, config.epsilon, name="patch_norm", dtype=policy)(x)
    x = keras.layers.Conv2D(
        config.hidden_size,
        config.patch_size,
        strides=config.patch_size,
        padding="valid",
        data_format="channels_last",
        use_bias=config.patch_bias,
        kernel_initializer="lecun_normal",
        name="embedding",
        dtype=policy,
    )(x)
    return _norm("embedding_norm", config, policy)(x) if config.patch_norm else x


def _add_positions(patches, config, policy):
    """The tokens of the patches with those before them, and where they are (paper, equation 1)."""
    x = keras.layers.Reshape((-1 if config.grid is None else math.prod(config.grid), config.hidden_size), dtype=policy)(
        patches
    )

    def add_prefix(x):
        if config.distillation_token:
            x = layers.ClassToken(name="distillation_token", dtype=policy)(x)
        return layers.ClassToken(name="class_token", dtype=policy)(x) if config.has_class_token else x

    prefix_tokens = config.position_prefix_tokens if config.position == "learned" else 0
    if prefix_tokens:
        x = add_prefix(x)
    options = {"name": "Transformer_posembed_input", "dtype": policy}
    if config.position == "learned":
        grid = config.grid or config.position_grid
        add = layers.AddPositionEmbs(
            grid, config.embedding_dropout, config.position_resize, prefix_tokens=prefix_tokens, **options
        )
        x = add(x) if config.grid else add(x, patches=patches)
    elif config.position == "sincos2d":
        x = layers.AddSinCosPositionEmbs(config.embedding_dropout, **options)(x, patches=patches)
    elif config.embedding_dropout:
        x = keras.layers.Dropout(config.embedding_dropout, dtype=policy)(x)
    if not prefix_tokens:
        x = add_prefix(x)
    if config.registers:
        after = config.prefix_tokens - config.registers
        x = layers.RegisterTokens(config.registers, after, name="register_tokens", dtype=policy)(x)
    if config.patch_dropout:
        x = layers.PatchDropout(config.patch_dropout, config.prefix_tokens, name="patch_dropout", dtype=policy)(x)
    return x


def _encode(x, patches, config, policy):
    """The blocks (paper, equations 2 and 3)."""
    if config.pre_norm:
        x = _norm("Transformer_norm_pre", config, policy)(x)
    positions = {}
    if config.rope_theta is not None:
        dim_head = config.dim_head or config.hidden_size // config.num_heads
        rope = layers.RotaryPositions(dim_head, config.rope_theta, name="rotary_positions", dtype=policy)
        positions = {"rope": rope(patches)}
    for n in range(config.num_layers):
        name = f"Transformer_encoderblock_{n}"
        if config.tokens_mlp_dim is not None:
            x = MixerBlock(
                tokens_mlp_dim=config.tokens_mlp_dim,
                mlp_dim=config.mlp_dim,
                dropout=config.dropout,
                activation=config.mlp_activation,
                epsilon=config.epsilon,
                name=name,
                dtype=policy,
            )(x)
            continue
        x = layers.TransformerBlock(
            num_heads=config.num_heads,
            mlp_dim=config.mlp_dim,
            dropout=config.dropout,
            dim_head=config.dim_head,
            attention_dropout=config.attention_dropout,
            mlp_activation=config.mlp_activation,
            epsilon=config.epsilon,
            remat=config.remat,
            qkv_bias=config.qkv_bias,
            key_bias=config.key_bias,
            out_bias=config.out_bias,
            relative_grid=config.grid if config.relative_positions else None,
            relative_resize=config.relative_resize,
            layer_scale=config.layer_scale,
            gated_mlp=config.gated_mlp,
            stochastic_depth=config.stochastic_depth_of(n),
            name=name,
            dtype=policy,
        )(x, **positions)
    return _norm("Transformer_encoder_norm", config, policy)(x) if config.final_norm == "tokens" else x


def _pool(x, config, policy):
    """The tokens become what the head sees: one vector, or two where there is a distillation token."""

    def token(name, index=0):
        return layers.ExtractToken(index, name=name, dtype=policy)(x)

    def mean(prefix_tokens):
        return layers.MeanToken(prefix_tokens, name="pooling", dtype=policy)(x)

    if config.pooling == "token+dist":
        pooled = [token("ExtractToken"), token("ExtractDistillationToken", index=1)]
    elif config.pooling == "token":
        pooled = [token("ExtractToken")]
    elif config.pooling == "token+gap":
        join = keras.layers.Concatenate(name="token_and_mean", dtype=policy)
        pooled = [join([token("ExtractToken"), mean(config.prefix_tokens)])]
    elif config.pooling == "map":
        pool = layers.AttentionPooling(
            config.num_heads, config.mlp_dim, config.mlp_activation, config.epsilon, name="MAPHead_0", dtype=policy
        )
        pooled = [pool(x)]
    else:
        pooled = [x if config.pooling is None else mean(config.prefix_tokens if config.pooling == "gap" else 0)]
    if config.final_norm == "pooled" and config.pooling is not None:
        norm = _norm("fc_norm", config, policy)
        pooled = [norm(x) for x in pooled]
    return pooled


def _head(pooled, config, policy):
    x = pooled[0]
    if config.representation_size is not None:
        x = keras.layers.Dense(
            config.representation_size,
            activation="tanh",
            kernel_initializer="lecun_normal",
            name="pre_logits",
            dtype=policy,
        )(x)
    head_policy = "float32" if policy.compute_dtype in ("float16", "bfloat16") else policy

    def head(name, x, activation):
        return keras.layers.Dense(
            config.classes,
            activation=activation,
            use_bias=config.head_bias,
            kernel_initializer="zeros",
            name=name,
            dtype=head_policy,
        )(x)

    if len(pooled) == 1:
        return head("head", x, config.activation) if config.include_top else x
    if not config.include_top:
        return keras.layers.Average(name="tokens_average", dtype=policy)(pooled)
    logits = [head(name, x, "linear") for name, x in zip(("head", "head_dist"), pooled)]
    x = keras.layers.Average(name="heads_average", dtype=head_policy)(logits)
    linear = config.activation in (None, "linear")
    return x if linear else keras.layers.Activation(config.activation, name="activation", dtype=head_policy)(x)


def build_model(
    image_size: ImageSizeArg,
    patch_size: int | tuple[int, int],
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    name: str,
    mlp_dim: int,
    classes: int,
    dropout: float = 0.1,
    activation: Any = "linear",
    include_top: bool = True,
    representation_size: int | None = None,
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build a ViT of any size, with fresh weights.

    Args:
        image_size: Pixels of the input, `(height, width)` or one integer for a square.
        patch_size: Pixels of a patch, likewise.
        num_layers: Number of transformer blocks.
        hidden_size: Width of a token.
        num_heads: Attention heads of a block.
        name: Name of the model.
        mlp_dim: Hidden width of a block's MLP.
        classes: Number of classes.
        dropout: Rate of dropout in the blocks and after the position embeddings.
        activation: Activation of the head.
        include_top: Whether the model ends in a classification head.
        representation_size: Width of the tanh layer before the head, or `None`.
        dtype: Keras dtype policy; `None` for the global one.
        **options: Further fields of `ViTConfig`: `pooling`, `dim_head`, `channels`, `emb_dropout`, …

    Returns:
        A `VisionTransformer`; see `build`.

    Raises:
        ValueError: A value is out of range, two of them contradict each other, or an option does not exist.

    Example:
        >>> build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10, pooling="gap").output_shape
        (None, 10)
    """
    config = ViTConfig().replace(
        image_size=image_size,
        patch_size=patch_size,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        name=name,
        mlp_dim=mlp_dim,
        classes=classes,
        dropout=dropout,
        activation=activation,
        include_top=include_top,
        representation_size=representation_size,
        **options,
    )
    return build(config, dtype=dtype)


def from_checkpoint(
    weights: str | os.PathLike,
    *,
    image_size: ImageSizeArg | str | None = "native",
    source_grid: tuple[int, int] | None = None,
    dtype: Any = None,
    family: str | None = None,
    strict: bool = True,
    key: str | None = None,
    **options: Any,
) -> VisionTransformer:
    """Build the model that a file of weights is for, and load it.

    The file's first bytes tell its format (.npz, safetensors, PyTorch's .pth without PyTorch, Keras' .h5 and .keras), the names
    in it its family, their shapes the architecture. What these do not tell comes from a `config.json` beside the file, the
    registry of published checkpoints, or the arguments.

    Args:
        weights: A published name (`"Ti_16/augreg-imagenet21k+imagenet2012-224"`; see `checkpoints.available`), the
            path of a file or of a folder from Hugging Face, or a URL.
        image_size: Pixels of the input; `"native"`: those that the file was trained at; `None`: images of any size.
        source_grid: Patches down and across of the file's position embeddings; `None` for a square.
        dtype: Keras dtype policy; `None` for the global one.
        family: Name of the family (`checkpoints.families.FAMILIES`), where it is not to be told from the names.
        strict: Whether names in the file that its family does not know are an error.
        key: Which of several state dicts in a PyTorch file, such as `"model_ema"`.
        **options: Fields of `ViTConfig` to change or to add: `classes=10` or `include_top=False` drop the file's head,
            `patch_size=8` resamples the patch embedding, `num_heads=6` tells what the file does not.

    Returns:
        A `VisionTransformer`, with its `preprocessing`, `labels` and `load_report`.

    Raises:
        FileNotFoundError: There is no such file.
        ConnectionError: The server could not be reached.
        ValueError: The file is damaged, is of no known family, does not tell all that is needed, or an option does not fit it.

    Example:
        >>> model = from_checkpoint("Ti_16.npz", classes=10, image_size=384)  # doctest: +SKIP
    """
    source = checkpoints.open_source(weights, family=family, strict=strict, key=key)
    try:
        fields = checkpoints.complete(source.architecture, source.family, options)
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from None
    source.architecture |= {field: options[field] for field in _READ_FROM_FILE if field in options}
    sizes = ("num_layers", "hidden_size", "num_heads", "mlp_dim")
    same_size = [
        c
        for c in VARIANTS.values()
        if all(getattr(c, field) == fields[field] for field in sizes)
        and c.patch_size == source.architecture["patch_size"]
    ]
    if same_size:  # Google's dropout is for fine-tuning Google's models
        fields = {"name": same_size[0].name, **fields}
        fields |= (
            {"dropout": same_size[0].dropout} if source.family.name == "google" and "dropout" not in fields else {}
        )
    options = _with_its_class_token(source, options)
    native = _native_size(source, patch_stride(fields["patch_size"], fields.get("resnet")), source_grid)
    if not source.architecture["include_top"] and {"include_top", "pooling"}.isdisjoint(options):
        options = {
            "representation_size": source.architecture.get("representation_size"),
            **options,
        }  # the file ends in it
    if image_size == "native":
        image_size = native
    elif image_size is None:
        fields["position_grid"] = source.grid(source_grid)
    model = build(_configure({**fields, "image_size": image_size}, options), dtype=dtype)
    _load_and_describe(model, source, native, source_grid=source_grid, resize_patches="patch_size" in options)
    return model


# What the file's own arrays are read by, where the user knows better.
_READ_FROM_FILE = ("position_resize", "patch_resize", "relative_resize", "position_prefix")


def _with_its_class_token(source: checkpoints.Weights, options: dict[str, Any]) -> dict[str, Any]:
    """Another pooling than the file's takes no token away from its model, and gives it none."""
    token = "cls" in source.shapes
    implied = "pooling" not in options or token == (options["pooling"] not in ("gap", "mean", "map"))
    return options if implied else {"class_token": token, **options}


def _native_size(source: checkpoints.Weights, stride: tuple[int, int], source_grid) -> tuple[int, int]:
    """Pixels that a file was trained at, as its positions tell, or else what stands beside it."""
    grid = source.grid(source_grid)
    if grid is not None:
        return grid[0] * stride[0], grid[1] * stride[1]
    if source.positions is not None:
        raise ValueError(
            f"{source.path} has {source.positions} patches, which is not a square grid: say source_grid=(down, across)."
        )
    if source.image_size is not None:
        return source.image_size
    return tuple(224 // pixels * pixels for pixels in stride)


def _load_and_describe(model, source, native, **options) -> None:
    """Fill a new model with weights, and let it know what else the file tells."""
    model.load_report = checkpoints.fill(model, source, **options)
    config = model.config
    preprocessing = _for_channels(source.preprocessing, config.channels)
    model.preprocessing = preprocessing.replace(image_size=config.image_size or preprocessing.image_size or native)
    if config.include_top and not any(name.startswith("head/") for name in model.load_report.fresh):
        model.labels = source.labels


def resize(model: keras.Model, image_size: ImageSizeArg | None, **options: Any) -> VisionTransformer:
    """Make the same model for images of another size: position embeddings are resampled, all else is copied.

    Args:
        model: A ViT of this package, or a model with one inside (of which the ViT alone is returned).
        image_size: Pixels of the new input, `(height, width)`, one integer for a square, or `None` for images of any size.
        **options: Other fields of `ViTConfig` to change, such as `patch_size` (whose kernel is then resampled, as in FlexiViT).

    Returns:
        A new `VisionTransformer`; the given one stays as it is.

    Raises:
        ValueError: The size is not a whole number of patches, or the model has weights that belong to one size (a Mixer).

    Example:
        >>> model = build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> resize(model, (48, 64)).input_shape
        (None, 48, 64, 3)
    """
    source = checkpoints.ModelWeights(model)
    vit, config = layers.find_vit(model), ViTConfig(**source.architecture)
    source.architecture |= {field: value for field, value in options.items() if field.endswith("_resize")}
    fields = {"image_size": image_size, "position_grid": source.grid() if image_size is None else None, **options}
    if config.tokens_mlp_dim is not None and (image_size is None or config.replace(**fields).grid != source.grid()):
        raise ValueError(
            f"The model {vit.name!r} is a Mixer, whose weights belong to its grid of {source.grid()} patches: it cannot be made "
            f"one for image_size={image_size}."
        )
    resized = build(config.replace(**fields), dtype=vit.get_layer("embedding").dtype_policy)
    _load_and_describe(resized, source, source.preprocessing.image_size, resize_patches="patch_size" in options)
    return resized


def preprocessing(model: keras.Model, **options: Any) -> Preprocess:
    """The preprocessing of a model as a Keras layer, to put before it in a model that takes raw pixels.

    Args:
        model: A ViT of this package, or a model with one inside.
        **options: Of `keras.layers.Layer`, such as `name`.

    Returns:
        A layer from pixels in [0, 255], `(batch, height, width, channels)` of any size, to the model's input.

    Example:
        >>> model = build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> served = keras.Sequential([keras.Input((None, None, 3)), preprocessing(model), model])
        >>> served.output_shape
        (None, 10)
    """
    vit = layers.find_vit(model)
    own = getattr(vit, "preprocessing", GOOGLE)
    fixed = tuple(vit.input_shape[1:3])
    return Preprocess(own.replace(image_size=own.image_size if None in fixed else fixed), **options)


def _configure(fields: dict[str, Any], options: dict[str, Any]) -> ViTConfig:
    """The configuration of a checkpoint's architecture with a user's options; without a head, also without pre_logits."""
    fields = {**fields, **options}
    if not fields["include_top"] or fields.get("pooling", "token") is None:
        fields.update({"representation_size": None, **options, "include_top": False})
    return ViTConfig().replace(**fields)


def validate_pretrained_top(include_top: bool, pretrained: bool, classes: int | None, weights: str) -> int:
    """Check a demand for the pre-trained head, and say how many classes it has.

    Kept from vit-keras 0.x; the factories now decide by themselves (`pretrained_top=None`).

    Returns:
        The number of classes of the head of `weights`.

    Raises:
        ValueError: There is no head to load, because of `include_top`, `pretrained` or `weights`.

    Warns:
        UserWarning: `classes` is another number.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"Unexpected weights: {weights}.")
    if classes != WEIGHTS[weights]:
        warnings.warn(_wrong_classes(weights, WEIGHTS[weights]) + " Setting manually.", UserWarning, stacklevel=2)
    for wanted, argument in ((include_top, "include_top"), (pretrained, "pretrained")):
        if not wanted:
            raise ValueError(f"Can only use pretrained_top with {argument}.")
    return WEIGHTS[weights]


def _wrong_classes(weights: Any, classes: int | None) -> str:
    return f"Can only use pretrained_top with {weights} if classes = {classes}."


def load_pretrained(
    size: str,
    weights: str | os.PathLike,
    pretrained_top: bool,
    model: keras.Model,
    image_size: ImageSizeArg,
    patch_size: int | tuple[int, int],
) -> checkpoints.LoadReport:
    """Load published weights into a model (vit-keras 0.x; see `checkpoints.load_weights`).

    Args:
        size: Google's name of the architecture, such as `"B_16"`.
        weights: A published name of that architecture, the path of a file, or a URL.
        pretrained_top: Whether to load the head.
        model: The model.
        image_size: Ignored: the model knows.
        patch_size: Ignored: the model knows.

    Returns:
        A `LoadReport`.
    """
    source = checkpoints.Weights(checkpoints.fetch(weights, size))
    return checkpoints.load_weights(model, source, include_head=pretrained_top)


def _create(variant, image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options):
    """What every factory does: decide what the checkpoint is asked for, build, load."""
    preset = VARIANTS[variant]
    fields = {
        **dataclasses.asdict(preset),
        "image_size": image_size,
        "position_grid": preset.grid if image_size is None else None,
        "classes": 1000 if classes is None else classes,
        "activation": activation,
        "include_top": include_top,
    }
    _configure(fields, options)  # a wrong argument should not cost a download
    pretrained = bool(pretrained) and weights is not None
    source = checkpoints.open_source(weights, variant) if pretrained else None
    published = None if weights is None else checkpoints.find(os.fspath(weights), variant)
    head_classes, representation_size = None, None
    if source is not None:
        known = source.architecture
        head_classes = known["classes"] if known["include_top"] else None
        representation_size = known.get("representation_size")
        fields |= {key: value for key, value in known.items() if key not in (*_FACTORY_FIELDS, "representation_size")}
        options = _with_its_class_token(source, options)
        if image_size is None:
            fields["position_grid"] = source.grid() or preset.grid
    elif published is not None:
        head_classes, representation_size = published.classes, published.representation_size
    if classes is None and head_classes is not None:
        fields["classes"] = head_classes
    config = _configure({**fields, "representation_size": representation_size}, options)
    obstacles = {
        "Can only use pretrained_top with include_top.": not config.include_top,
        "Can only use pretrained_top with pretrained.": source is None,
        _wrong_classes(weights, head_classes): config.classes != head_classes,
        f"Can only use pretrained_top with representation_size = {representation_size}.": (
            config.representation_size != representation_size
        ),
    }
    obstacle = next((reason for reason, holds in obstacles.items() if holds), None)
    if pretrained_top and obstacle:
        warnings.warn(f"{obstacle} The head is not the pre-trained one.", UserWarning, stacklevel=3)
    model = build(config, dtype=dtype)
    if source is not None:
        include_head = obstacle is None and pretrained_top is not False
        _load_and_describe(model, source, preset.image_size, include_head=include_head)
    return model


# What a factory or its caller decides, whatever the file says: a file of other sizes is an error.
_FACTORY_FIELDS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "mlp_dim",
    "patch_size",
    "channels",
    "classes",
    "include_top",
    "inner",
)


def _factory(variant: str, weights: str):
    """The factory function of one row of the table of variants."""
    preset = VARIANTS[variant]
    default_weights = weights

    def factory(
        image_size: ImageSizeArg = preset.image_size,
        classes: int | None = None,
        activation: Any = "linear",
        include_top: bool = True,
        pretrained: bool = True,
        pretrained_top: bool | None = None,
        weights: str | os.PathLike | None = default_weights,
        *,
        dtype: Any = None,
        **options: Any,
    ) -> VisionTransformer:
        return _create(
            variant,
            image_size,
            classes,
            activation,
            include_top,
            pretrained,
            pretrained_top,
            weights,
            dtype,
            options,
        )

    factory.__name__ = factory.__qualname__ = preset.name.replace("-", "_")
    factory.__doc__ = _FACTORY_DOC.format(
        title=variant.replace("_", "/"),
        variant=variant,
        name=factory.__name__,
        layers=preset.num_layers,
        hidden=preset.hidden_size,
        heads=preset.num_heads,
        mlp=preset.mlp_dim,
    )
    return factory


_FACTORY_DOC = """Build ViT-{title}: {layers} layers, hidden size {hidden}, {heads} heads, MLP dim {mlp}.

    Args:
        image_size: Pixels of the input, `(height, width)` or one integer for a square; whole patches, or say
            `drop_remainder=True`.
        classes: Number of classes. `None`: those of the checkpoint's head, or 1000.
        activation: Activation of the head: `"linear"`, `"softmax"`, `"sigmoid"`, …
        include_top: Whether the model ends in a head. Without it the model returns the normalised class token,
            `(batch, {hidden})`, or all tokens with `pooling=None`.
        pretrained: Whether to load `weights`.
        pretrained_top: Whether to load the checkpoint's head. `None`: if `classes` are as many as it has.
        weights: A published name (`checkpoints.available(variant="{variant}")`), the path of a file, a URL, or `None`.
        dtype: Keras dtype policy; `None` for the global one.
        **options: Further fields of `ViTConfig`: `dropout`, `pooling`, `channels`, `representation_size`, …

    Returns:
        A `VisionTransformer`: a functional `keras.Model` for images in [-1, 1] (`preprocess_inputs`).

    Raises:
        FileNotFoundError: The weights are not where they were said to be.
        ConnectionError: They could not be fetched.
        ValueError: An argument is out of range, or the weights are of another architecture.

    Example:
        >>> model = {name}(image_size=224, classes=10, pretrained=False)  # doctest: +SKIP
        >>> model.output_shape  # doctest: +SKIP
        (None, 10)
    """

_I21K_I1K = "imagenet21k+imagenet2012"

vit_ti16 = _factory("Ti_16", f"augreg-{_I21K_I1K}-224")
vit_s16 = _factory("S_16", f"augreg-{_I21K_I1K}-224")
vit_s32 = _factory("S_32", f"augreg-{_I21K_I1K}-224")
vit_b8 = _factory("B_8", _I21K_I1K)
vit_b16 = _factory("B_16", _I21K_I1K)
vit_b32 = _factory("B_32", _I21K_I1K)
vit_l16 = _factory("L_16", _I21K_I1K)
vit_l32 = _factory("L_32", _I21K_I1K)
vit_h14 = _factory("H_14", "imagenet21k")


def vit_cifar10(
    image_size: ImageSizeArg = 32, classes: int | None = None, *, dtype: Any = None, **options: Any
) -> VisionTransformer:
    """The small model that comes with this package, trained from scratch on CIFAR-10: nothing is downloaded.

    A hybrid (paper, section 3.1) with six layers, hidden size 128 and 4 heads, for pictures of 32 pixels and ten classes, from
    airplane to truck. It is for trying things out and for tests: `docs/training.md` says how it was made, and how good it is.

    Args:
        image_size: Pixels of the input, `(height, width)` or one integer for a square.
        classes: Number of classes of a new head; `None` for its own ten.
        dtype: Keras dtype policy; `None` for the global one.
        **options: Further fields of `ViTConfig`: `include_top`, `pooling`, `activation`, …

    Returns:
        A `VisionTransformer` for images in [-1, 1].

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> model = vit_cifar10()
        >>> model.output_shape
        (None, 10)
    """
    options |= {} if classes is None else {"classes": classes}
    return from_checkpoint("vit_cifar10", image_size=image_size, dtype=dtype, **options)
