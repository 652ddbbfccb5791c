"""Recipes: how a Vision Transformer is trained well, as data, for `model.compile` and `model.fit`.

    >>> from vit_keras import vit
    >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3)
    >>> finetune = recipe("finetune", epochs=3)
    >>> finetune.compile(model)
    >>> # model.fit(dataset, epochs=finetune.epochs, callbacks=finetune.callbacks)

Every value is a field of `Recipe`, to be read and to be changed: `recipe("finetune", learning_rate=1e-4, layer_decay=0.65)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from .. import layers
from . import lora as low_rank
from .augment import Augmentation
from .callbacks import Horizon, Reseed, check_horizon_before_training
from .checks import as_array, check, first_batch, last_activation, outputs_of
from .freeze import train_only
from .losses import CrossEntropy, accuracy
from .optimizers import DECAYS, LayerwiseAdamW, LayerwiseLamb, LayerwiseSGD, WarmupDecay
from .recipe_table import RECIPE_TABLE

OPTIMIZERS = {
    "sgd": (LayerwiseSGD, ("momentum",)),
    "adamw": (LayerwiseAdamW, ("beta_1", "beta_2", "epsilon")),
    "lamb": (LayerwiseLamb, ("beta_1", "beta_2", "epsilon")),
}
LOSSES = ("auto", "binary")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a model, completely.

    Args:
        name: What it is called.
        source: Where its numbers come from.
        optimizer: `"sgd"`, `"adamw"` or `"lamb"`.
        learning_rate: The highest one, that of the head.
        batch_size: The batch that `learning_rate` is for.
        scale_learning_rate: Whether another batch changes the learning rate in proportion (arXiv 1706.02677).
        epochs: How many to train, as a suggestion.
        schedule: What follows the warm-up: `"cosine"`, `"linear"` or `"constant"`.
        warmup: The fraction of all steps in which the learning rate rises from 0.
        final_learning_rate: What it falls to, as a fraction of `learning_rate`.
        momentum: Of SGD.
        beta_1: Of AdamW and LAMB; so are `beta_2` and `epsilon`.
        weight_decay: Decoupled, and only of matrices: see `optimizers.is_decayed`.
        layer_decay: Each layer learns at this times the rate of the one above it; 1: all at the same. A model without this
            package's blocks has one rate.
        clip_norm: The longest that the gradient of all variables together may be, or `None`.
        loss: `"auto"`: cross-entropy over classes, or of each by itself where there is one output or a sigmoid, or the labels
            say so; `"binary"`: of each by itself.
        label_smoothing: What is spread from the true class over all.
        ema: Momentum of an exponential moving average of the weights, which validation and the trained model then have; or `None`.
        accumulate: Batches of which the gradients make one step.
        train: `"all"`, `"head"`, a number of last blocks with the head, or `None` to leave every layer as frozen as it is.
        thaw: Fractions of the training at which what is below the head starts to learn: see `optimizers.Layerwise`.
        dropout: Rate in the blocks, or `None` for the model's own.
        stochastic_depth: Rate of the last block (see `ViTConfig`), or `None` for the model's own.
        lora: Rank of low-rank adapters, which then are trained in place of the blocks, or `None`.
        lora_projections: Where these are: see `lora.add_lora`.
        augmentation: What training pictures go through, fields of `augment.Augmentation`; it is the data's to apply.
        dtype: Keras dtype policy to build the model with, or `None` for the global one.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> recipe("deit").replace(epochs=100).stochastic_depth
        0.1
    """

    name: str
    source: str
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    batch_size: int = 512
    scale_learning_rate: bool = False
    epochs: int = 10
    schedule: str = "cosine"
    warmup: float = 0.0
    final_learning_rate: float = 0.0
    momentum: float = 0.9
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    layer_decay: float = 1.0
    clip_norm: float | None = None
    loss: str = "auto"
    label_smoothing: float = 0.0
    ema: float | None = None
    accumulate: int = 1
    train: str | int | None = "all"
    thaw: tuple[float, ...] = ()
    dropout: float | None = None
    stochastic_depth: float | None = None
    lora: int | None = None
    lora_projections: tuple[str, ...] = ("query", "value")
    augmentation: Augmentation | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for field in ("thaw", "lora_projections"):
            value = getattr(self, field)
            object.__setattr__(self, field, tuple(value) if isinstance(value, (tuple, list)) else (value,))
        for field, choices in (("optimizer", OPTIMIZERS), ("schedule", DECAYS), ("loss", LOSSES)):
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"{field} must be one of {', '.join(map(repr, choices))}. Received: {getattr(self, field)!r}"
                )
        blocks = isinstance(self.train, int) and not isinstance(self.train, bool) and self.train > 0
        if not blocks and self.train not in ("all", "head", None):
            raise ValueError(f"train must be 'all', 'head', a number of last blocks, or None. Received: {self.train!r}")
        self._check_numbers()
        if isinstance(self.augmentation, Mapping):
            object.__setattr__(self, "augmentation", Augmentation(**self.augmentation))

    def _check_numbers(self) -> None:
        below_one = ("warmup", "final_learning_rate", "label_smoothing", "momentum", "beta_1", "beta_2", "ema")
        ranges = {
            **dict.fromkeys((*below_one, "dropout", "stochastic_depth"), (0, 1)),
            **{field: (1, float("inf")) for field in ("batch_size", "epochs", "accumulate", "lora")},
            **{field: (0, float("inf")) for field in ("learning_rate", "epsilon", "weight_decay", "clip_norm")},
        }
        for field, (low, high) in ranges.items():
            value = getattr(self, field)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (is_number and low <= value < high):
                raise ValueError(f"{field} must be at least {low} and below {high}. Received: {value!r}")

    def replace(self, **changes: Any) -> Recipe:
        """A copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ValueError(f"A recipe has no {', '.join(unknown)}. It has: {', '.join(known)}.")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain JSON, of which `Recipe(**…)` makes it again."""
        return dataclasses.asdict(self)

    def compile(
        self,
        model: keras.Model,
        data: Any = None,
        *,
        loss: Any = None,
        metrics: Any = ("accuracy",),
        batch_size: int | None = None,
        steps: int | None = None,
        **options: Any,
    ) -> None:
        """Make a model ready for `fit`: freeze and set what the recipe says, and compile it.

        Args:
            model: Any Keras model with a Vision Transformer in it: one of this package, or layers around one, at any depth.
            data: The training data, as for `fit`: its first labels tell which loss it takes, and they and its pictures are
                checked (`vit_keras.training.checks.check`). Of arrays, give a pair.
            loss: A Keras loss; `None`: cross-entropy that fits the model's last activation, for labels that are numbers of
                classes or one-hot alike; for pictures of several classes each, if `data` shows it. A model of several outputs
                needs one; to a model with a `compute_loss` of its own none is given.
            metrics: As for `keras.Model.compile`; `"accuracy"` is that of the labels that the loss takes.
            batch_size: What `fit` will take; `None`: the data's, if it tells.
            steps: How many batches there will be in all; `None`: what `fit` is told, through `callbacks`.
            **options: More for `keras.Model.compile`, such as `run_eagerly` and `steps_per_execution`.

        Raises:
            TypeError: The model is no Keras model.
            ValueError: The model is not built, lacks what the recipe sets, or does not fit the data; or a loss must be given.

        Example:
            >>> from vit_keras import vit
            >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3, activation="softmax")
            >>> recipe("probe").compile(model)
            >>> [variable.path for variable in model.trainable_variables]
            ['head/kernel', 'head/bias']
        """
        if not isinstance(model, keras.Model):
            raise TypeError(f"A recipe compiles a Keras model. Received: {type(model).__name__}")
        labels = None
        if data is not None:
            batch_size, labels = self._look_at(model, data, loss, batch_size)
        _build(model)
        metrics = [metrics] if isinstance(metrics, str) else metrics or []
        own_loss = type(model).compute_loss is not keras.Model.compute_loss
        if loss is None and not own_loss:
            loss, right = self._loss_and_accuracy(model, labels)
            metrics = [right if metric == "accuracy" else metric for metric in metrics]
        elif own_loss:
            metrics = [metric for metric in metrics if metric != "accuracy"]
        self._prepare(model, own_loss)
        model.compile(optimizer=self.make_optimizer(batch_size, steps), loss=loss, metrics=metrics, **options)
        check_horizon_before_training(model)

    def _loss_and_accuracy(self, model, labels):
        outputs = outputs_of(model)
        if len(outputs) != 1:
            raise ValueError(f"The model {model.name!r} has {len(outputs)} outputs: say loss=, one for each.")
        classes, activation = outputs[0].shape[-1], last_activation(model)
        if activation not in ("linear", "softmax", "sigmoid"):
            raise ValueError(
                f"The model {model.name!r} ends in {activation!r}, for which there is no usual loss: say loss=."
            )
        options = {"from_logits": activation == "linear", "label_smoothing": self.label_smoothing}
        per_output = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0 if activation == "linear" else 0.5)
        if classes == 1:
            return keras.losses.BinaryCrossentropy(**options), per_output
        several = labels is not None and labels.shape[1:] == (classes,) and np.abs(labels.sum(1) - 1).max() > 1e-3
        binary = bool(several) or self.loss == "binary" or activation == "sigmoid"
        return CrossEntropy(binary=binary, **options), per_output if several else accuracy

    def _look_at(self, model, data, loss, batch_size):
        if hasattr(data, "__next__"):  # what is taken from it is gone
            check(model, data, loss=loss)  # which says so
            return batch_size, None
        inputs, labels = first_batch(data)
        _build(model, inputs)
        check(model, data, loss=loss)
        if not isinstance(data, tuple):
            batch_size = batch_size or len(inputs)
        return batch_size, labels if labels is None or isinstance(labels, (dict, list, tuple)) else as_array(labels)

    def make_optimizer(self, batch_size: int | None = None, steps: int | None = None) -> keras.optimizers.Optimizer:
        """The optimizer of this recipe, for batches of this size; see `compile`."""
        rate = self.learning_rate
        if self.scale_learning_rate and batch_size:
            rate *= batch_size * self.accumulate / self.batch_size
        optimizer, fields = OPTIMIZERS[self.optimizer]
        average = {} if self.ema is None else {"use_ema": True, "ema_momentum": self.ema ** (1 / self.accumulate)}
        return optimizer(
            WarmupDecay(rate, self.warmup, self.schedule, self.final_learning_rate, steps),
            layer_decay=self.layer_decay,
            thaw=self.thaw,
            weight_decay=self.weight_decay,
            global_clipnorm=self.clip_norm,
            gradient_accumulation_steps=self.accumulate if self.accumulate > 1 else None,
            **average,
            **{field: getattr(self, field) for field in fields},
        )

    def _prepare(self, model, own_loss) -> None:
        if self.dropout is not None or self.stochastic_depth is not None:
            layers.set_rates(layers.find_vit(model), dropout=self.dropout, stochastic_depth=self.stochastic_depth)
        if self.lora is not None:
            low_rank.add_lora(model, self.lora, self.lora_projections)
        elif self.train is not None and not (own_loss and self.train == "all"):  # a teacher stays frozen
            train_only(model, self.train)

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Fresh callbacks for `fit`, without which the schedule does not know its end; add your own: `[*recipe.callbacks, mine]`."""
        return [
            Horizon(),
            Reseed(),
            *([] if self.ema is None else [keras.callbacks.SwapEMAWeights()]),
            *([] if self.lora is None else [low_rank.RestartLora()]),
        ]


RECIPES = {name: Recipe(name=name, **fields) for name, fields in RECIPE_TABLE.items()}


def recipe(name: str | Recipe, **changes: Any) -> Recipe:
    """A recipe by its name, with some fields changed.

    Args:
        name: One of `RECIPES`, or a `Recipe` itself.
        **changes: Fields of `Recipe`.

    Raises:
        ValueError: There is no such recipe or field, or a value is out of range.

    Example:
        >>> recipe("vit", ema=0.9999).optimizer
        'sgd'
    """
    if not isinstance(name, Recipe):
        if name not in RECIPES:
            raise ValueError(f"There is no recipe {name!r}. There are: {', '.join(RECIPES)}.")
        name = RECIPES[name]
    return name.replace(**changes)


def _build(model: keras.Model, inputs: Any = None) -> None:
    """Build a `Sequential` that was not begun with its input: its first layer may know it, or the data."""
    if model.built:
        return
    shape = getattr(model.layers[0], "input_shape", None) if model.layers else None
    shape = shape or getattr(inputs, "shape", None)
    if shape is None or not isinstance(model, keras.Sequential):
        raise ValueError(f"The model {model.name!r} is not built: begin it with keras.Input, or call it once.")
    model.build((None, *shape[1:]))
