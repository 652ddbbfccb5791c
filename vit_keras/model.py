"""The model class: a functional Keras model that knows its configuration, its preprocessing and its labels."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from PIL import Image

from ._internal import finite
from ._internal.tap import is_hooked
from ._internal.validate import native_order, received
from ._internal.warn import warn_caller
from .anatomy.inputs import batch_preprocessing_of, check_batch
from .anatomy.outputs import labels_of, set_classes, task
from .anatomy.parts import has_vit, keeper, quantization
from .anatomy.settings import read_config
from .backend import openvino
from .backend.keras_internals import concrete, flat_layers
from .backend.keras_speed import FastModel
from .backend.traced import is_inside
from .checkpoints import saved_models
from .config import ViTConfig, check_image_size
from .layers import MlpBlock
from .preprocess import Preprocessing

if TYPE_CHECKING:
    from .checkpoints.loading import LoadReport


@keras.saving.register_keras_serializable("vit_keras")
class VisionTransformer(FastModel):
    """A functional Keras model that knows its `ViTConfig`. `build` and the factories make such models.

    All attributes except `load_report` are saved with the model.

    Attributes:
        config: The `ViTConfig` from which the model was built, with what was changed in its layers since; or `None` in
            a copy that `keras.models.clone_model` made.
        preprocessing: How the images of the checkpoint are prepared (`vit_keras.preprocess.Preprocessing`). The patch
            embedding keeps it, as the next two, so any copy that Keras makes of the model has them too.
        labels: Names of the classes: a tuple, the name of a list of names (`"imagenet-1k"`), or `None`.
        task: The meaning of the outputs, one of `vit_keras.labels.TASKS`: `"single"`, one class of several; `"multi"`,
            independent labels; `"regression"`, numbers; `"ordinal"`, a number on the scale of the levels that `labels`
            names. For a model of any class, use `anatomy.task`.
        origin: Name of the published checkpoint that the weights were loaded from, or that training began with; or
            `None`. `load_weights` of the model keeps it. `checkpoints.find` returns its license and URL, except for
            some models for images and text.
        load_report: What happened when the weights were loaded, or `None`.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.vit_cifar10()
        >>> isinstance(model, VisionTransformer), model.config.num_layers, model.task
        (True, 6, 'single')
    """

    _config: ViTConfig | None = None
    origin: str | None = None
    load_report: LoadReport | None = None
    range_checked: bool = False

    @property
    def config(self) -> ViTConfig | None:
        """The `ViTConfig`, with the epsilon, the activations and the rates that the layers have now."""
        return self._config and read_config(self, self._config)

    @config.setter
    def config(self, config: ViTConfig | None) -> None:
        self._config = config

    @property
    def labels(self) -> tuple[str, ...] | str | None:
        """The names of the classes, or of a known set of them, such as `"imagenet-1k"`.

        Any sequence of names is stored as a tuple of `str`. `anatomy.class_names` returns the names in both cases.
        """
        return labels_of(self)

    @labels.setter
    def labels(self, labels: Any) -> None:
        set_classes(self, labels, self.task)

    @property
    def task(self) -> str:
        """The meaning of the outputs, one of `vit_keras.labels.TASKS`."""
        return task(self)

    @task.setter
    def task(self, task: str) -> None:
        set_classes(self, self.labels, task)

    @property
    def preprocessing(self) -> Preprocessing:
        """How the images of the checkpoint are prepared."""
        return keeper(self).preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing) -> None:
        keeper(self).preprocessing = preprocessing

    def preprocess(self, images: Any, image_size: tuple[int, int] | int | None = None) -> np.ndarray:
        """Read images and return them as this model's input, prepared as for the evaluation of its checkpoint.

        Args:
            images: One image, or a list or batch of them: paths, URLs, PIL images or arrays (see
                `vit_keras.utils.read`).
            image_size: Pixels of the result, for a model that takes images of any size. `None` selects the size of
                the checkpoint.

        Returns:
            float32 `(n, height, width, channels)`; n is 1 for one image.

        Raises:
            FileNotFoundError: An image does not exist.
            ValueError: An image cannot be read.

        Example:
            >>> from vit_keras import vit
            >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
            >>> model.preprocess(np.zeros((480, 640, 3), "uint8")).shape
            (1, 32, 32, 3)
        """
        fixed = tuple(self.input_shape[1:3])
        return self._left_to_caller()(images, (None if None in fixed else fixed) or image_size)

    def _left_to_caller(self) -> Preprocessing:
        """Return the preprocessing without what layers before a nested ViT do, as in a zero-shot classifier."""
        around = any(isinstance(layer, keras.Model) for layer in self.layers) and has_vit(self)
        return batch_preprocessing_of(self) if around else self.preprocessing

    def settings(self) -> dict[str, Any]:
        """Return the configuration, preprocessing, labels, task and origin of the model as plain JSON."""
        return {
            "config": None if self.config is None else dataclasses.asdict(self.config),
            "preprocessing": self.preprocessing.to_dict(),
            "labels": self.labels,
            **({} if self.task == "single" else {"task": self.task}),  # files of classifiers stay as they were
            **({} if self.origin is None else {"origin": self.origin}),
        }

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_inside():
            self.check_images(inputs)
            inputs = native_order(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if x is not None:
            self.check_images(x)  # here, as TensorFlow and JAX call the model without numbers
        if keras.backend.backend() == "torch" and any(each.is_inference() for each in self.parameters()):
            raise ValueError(f"{self.name!r} was made in torch.inference_mode(), which is not for training.")
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if x is not None:
            self.check_images(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self.check_images(x)
        return super().predict(x, *args, **kwargs)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse another dtype, as PyTorch's `half`, `double` and `to` set it: Keras would not know of it."""
        weights = [*self.parameters()][:1]
        if any(fn(weight).dtype != weight.dtype for weight in weights):
            raise TypeError(
                f"The dtype of {self.name!r} is Keras' policy, and stays. Build or open the model with dtype=, such as "
                '"bfloat16" or "mixed_bfloat16", or call vit_keras.resize(model, image_size, dtype=…).'
            )
        return super()._apply(fn, *args, **kwargs)

    def check_images(self, images: Any) -> None:
        """Raise an error unless the images have the model's shape. For the first batch, also check the pixel range.

        Args:
            images: A batch of images, as an array or a tensor. Anything without a known shape, such as a dataset, is
                not checked.

        Raises:
            TypeError: The argument is a path, a PIL image, a list of these, or a number. Call `preprocess` first.
            ValueError: The channels are not last, or their number or the size of the images differs from the model's.

        Warns:
            UserWarning: The pixels of the first batch are not in the range that the model was trained with.
        """
        self.check_shape(images)
        if not self.range_checked and concrete(images) and not is_hooked():
            self.range_checked = True
            warning = self._left_to_caller().range_warning(keras.ops.convert_to_numpy(images[:8]))
            if warning:
                advice = " model.preprocess(images) converts images to the model's input."
                warn_caller(warning + advice)

    def _check_type(self, images: Any) -> None:
        if hasattr(images, "row_splits"):
            raise TypeError(
                f"The model {self.name!r} takes batches of images of one size. Received: a RaggedTensor. Resize each "
                "image before it is batched (vit_keras.preprocessing_layer), or use vit_keras.pack."
            )
        one = images
        while isinstance(one, (list, tuple)) and one:
            one = one[0]
        files = (str, bytes, os.PathLike, Image.Image)
        others = (type(None), bool, int, float, list, tuple)
        text = getattr(getattr(one, "dtype", None), "kind", "") in ("U", "S", "O")
        table = hasattr(one, "columns")
        if isinstance(one, (*files, *others)) or text or table:
            read = ": it reads and resizes images as vit_keras.preprocess describes" if isinstance(one, files) else ""
            given = "paths of images" if table else "images"
            raise TypeError(
                f"The model {self.name!r} takes a batch of images, an array or a tensor {_shown(self.input_shape)}. "
                f"Received: {received(images)}. Pass model.preprocess({given}){read}."
            )

    def check_shape(self, images: Any) -> None:
        """Raise an error unless the images have the model's shape.

        Args:
            images: As for `check_images`.

        Raises:
            TypeError: The argument is not a batch of images: as in `check_images`, a ragged tensor, or a dictionary
                without the name of the model's input.
            ValueError: The channels are not last, or their number or the size of the images differs from the model's.
        """
        if keras.ops.is_tensor(images) and tuple(images.shape[1:]) == tuple(self.input_shape[1:]):
            return
        self._check_type(images)
        check_batch(self, images)
        shape, wanted = tuple(getattr(images, "shape", ())), tuple(self.input_shape)
        if len(shape) != 4 or len(wanted) != 4:
            return
        if shape[3] is not None and shape[3] != wanted[3]:
            first = " The channels come first there: use np.moveaxis(images, 1, -1)." if shape[1] == wanted[3] else ""
            raise ValueError(
                f"The model {self.name!r} takes images {_shown(wanted)}. Received: {_shown(shape)}.{first}"
            )
        size = shape[1:3]
        if any(n not in (None, m) for n, m in zip(size, wanted[1:3]) if m is not None):
            raise ValueError(
                f"The model {self.name!r} takes images {_shown(wanted)}. Received: {_shown(shape)}. "
                "model.preprocess(images) resizes images; vit_keras.resize(model, image_size) makes another model."
            )
        if None not in size and self._config is not None and self._config.image_size is None:
            check_image_size(self._config, size)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Save the model as `keras.Model.save` does, and refuse what could not be opened again.

        The path may begin with `~`.

        Raises:
            ValueError: Keras' older format, .h5, cannot hold the quantization or a model on OpenVINO, or no file an
                activation that is a function.
        """
        mode, is_h5 = quantization(self), str(filepath).endswith((".h5", ".hdf5"))
        if is_h5 and mode is not None and "float8" in mode:
            raise ValueError(f"A .h5 file cannot hold the {mode} weights of {self.name!r}. Save it as .keras.")
        if is_h5 and openvino.is_active():
            raise ValueError(f"Keras cannot write {self.name!r} as .h5 on OpenVINO. Save it as .keras.")
        if unnamed := next((mlp.activation for mlp in self._mlps() if not isinstance(mlp.activation, str)), None):
            raise ValueError(
                f"A file cannot hold the function {unnamed!r:.100} that is the activation of an MLP of {self.name!r}. "
                "Save the weights alone by model.save_weights, or set the activation to a name of Keras."
            )
        path = os.path.expanduser(filepath) if isinstance(filepath, (str, os.PathLike)) else filepath
        super().save(path, *args, **kwargs)
        if is_h5:
            saved_models.name_class(path, self)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Save the weights as `keras.Model.save_weights` does; the path may begin with `~`."""
        return super().save_weights(os.path.expanduser(filepath), *args, **kwargs)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Load weights as `keras.Model.load_weights` does; files of vit-keras 0.x work too.

        Position embeddings of another image size are resampled to this model's. The MLP's activation becomes the one
        that the weights were made with.
        """
        filepath = os.path.expanduser(filepath)
        with saved_models.readable_weights(filepath) as (path, activation_unknown):
            super().load_weights(path, skip_mismatch=skip_mismatch, **kwargs)
            for mlp in self._mlps() if activation_unknown else ():
                mlp.load_own_variables({})  # the activation that vit-keras 0.x had
        finite.check_model(filepath, self)

    def get_layer(self, name: Any = None, index: Any = None) -> Any:
        """Return a layer as `keras.Model.get_layer` does; names of vit-keras 0.1, which have slashes, work too."""
        return super().get_layer(name.replace("/", "_") if isinstance(name, str) else name, index)

    def _mlps(self) -> list[MlpBlock]:
        return [layer for layer in flat_layers(self) if isinstance(layer, MlpBlock)]

    def get_config(self) -> dict[str, Any]:
        settings = self.settings()
        origin = {} if self.origin is None else {"origin": self.origin}
        return {**super().get_config(), "vit": settings["config"], **origin}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        config = dict(config)
        vit, origin = config.pop("vit", None), config.pop("origin", None)
        model = super().from_config(config, custom_objects)
        for layer in model.layers:
            if not layer.trainable:
                # Keras has told the layer, but not the layers inside it; and TensorFlow ignores what is not a change.
                layer.trainable = True
                layer.trainable = False
        model.config = None if vit is None else ViTConfig(**vit)
        model.origin = None if origin is None else str(origin)
        return model


def _shown(shape: tuple[Any, ...]) -> str:
    return f"({', '.join('any' if n is None else str(n) for n in ('batch', *shape[1:]))})"
