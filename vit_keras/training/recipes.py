"""Recipes: the settings with which a Vision Transformer trains well, as data, for `model.compile` and `model.fit`.

    >>> from vit_keras import vit
    >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3)
    >>> finetune = recipe("finetune", epochs=3)
    >>> finetune.compile(model)
    >>> # model.fit(dataset, epochs=finetune.epochs, callbacks=finetune.callbacks)

Every value is a field of `Recipe` that can be read and changed: `recipe("finetune", learning_rate=1e-4,
layer_decay=0.65)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from .. import anatomy
from .._internal.validate import (
    as_array,
    check_fields,
    check_switches,
    is_number,
    one_of,
    positive_integer,
    python_numbers,
)
from ..anatomy.outputs import NUMBERS
from ..anatomy.parts import checked, find_vit, has_vit, learner, set_rates
from ..backend import replicas
from ..backend.keras_internals import policy_of
from . import lora as low_rank
from .callbacks import Horizon, Reseed, check_before_training
from .checks import check, ensure_built, first_batch, warn_of_quantized_kernels
from .data.augment import Augmentation
from .data.read_ahead import name_learner
from .distill import Distillation
from .freeze import train_only
from .losses import loss_and_accuracy
from .optimizers import DECAYS, LayerwiseAdamW, LayerwiseLamb, LayerwiseSGD, WarmupDecay, check_layers
from .recipe_table import RECIPE_TABLE

OPTIMIZERS = {
    "sgd": (LayerwiseSGD, ("momentum",)),
    "adamw": (LayerwiseAdamW, ("beta_1", "beta_2", "epsilon")),
    "lamb": (LayerwiseLamb, ("beta_1", "beta_2", "epsilon")),
}
_CHOICES: dict[str, Any] = {
    "optimizer": OPTIMIZERS,
    "schedule": DECAYS,
    "scale_learning_rate": (False, True, "sqrt"),
    "loss": ("auto", "binary"),
    "head": ("zeros", "ridge"),
}
PLAIN = Augmentation(crop=None, flip=False)
"""No augmentation, of images that are kept large enough for one."""

BATCH = 32
"""Images in a step of `finetune`."""

_FEW_STEPS = {"rate": 0.25, "layer_decay": 0.9}
"""Factor of the rate, and layer decay, below 60 steps: better than 1 and 0.75 (benchmarks/finetuning.md)."""


def rate_for(hidden_size: int | None, task: str = "single") -> float:
    """Return a rate of AdamW for fine-tuning: in inverse proportion to the width, as in µP (arXiv 2203.03466)."""
    # 2e-3 up to a hidden size of 192: with ViT-Ti/16, it was better than 5e-4 and 1e-3 on all of three data sets. 5e-4
    # from 768 on: of ViT-B/16 and wider models nothing was measured here, and BEiT and MAE use such rates. Half of it
    # for a squared error: it was better than the whole and a quarter.
    return (0.5 if task in NUMBERS else 1) * 0.384 / min(max(hidden_size or 768, 192), 768)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a training.

    Args:
        name: Name of the recipe.
        source: Where its numbers come from.
        optimizer: `"sgd"`, `"adamw"` or `"lamb"`.
        learning_rate: The highest learning rate, which the head has. `None`: by the hidden size and the task (see
            `rate_for`).
        batch_size: The batch size that `learning_rate` is for.
        scale_learning_rate: How the learning rate follows the batch size: `True`, in proportion (arXiv 1706.02677);
            `"sqrt"`, with its square root up to `batch_size` (arXiv 2205.10287); or `False`, not at all. `"sqrt"`
            becomes `False` if the learning rate is changed and this is not.
        epochs: A suggested number of epochs.
        schedule: Decay after the warm-up: `"cosine"`, `"linear"` or `"constant"`.
        warmup: Fraction of all steps in which the learning rate rises to `learning_rate`.
        final_learning_rate: Learning rate at the end, as a fraction of `learning_rate`.
        momentum: Momentum of SGD.
        beta_1: Decay rate of the first moment, for AdamW and LAMB.
        beta_2: Decay rate of the second moment, for AdamW and LAMB.
        epsilon: Numerical constant of AdamW and LAMB.
        weight_decay: Decoupled weight decay of matrices only (see `optimizers.is_decayed`).
        layer_decay: Layer-wise decay: each layer learns at this times the rate of the layer above it; 1 for one rate.
            A model without this package's blocks has one rate.
        clip_norm: Largest norm of the gradient of all variables together, or `None`.
        loss: `"auto"`: cross-entropy over the classes; a binary cross-entropy for each class where the model has one
            output or a sigmoid, or where images have several classes. `"binary"`: always a binary cross-entropy for
            each class.
        label_smoothing: Probability that is spread from the true class over all classes (see `losses.CrossEntropy`).
        ema: Momentum of an exponential moving average of the weights, which validation and the trained model use; or
            `None`.
        accumulate: Number of batches whose gradients make one step.
        halve_batch_below: Number of images in all epochs below which `finetune` halves its batch (see `batch_for`).
        head: Start of a new head in `finetune`: `"zeros"`; or `"ridge"`, a ridge regression of the labels on the
            features of the untrained model (`ridge_probe`). For numbers, it is scaled by 0.1.
        train: What is trained: `"all"`, `"head"`, a number of last blocks with the head, or `None` to leave all
            as it is.
        unfreeze_at: Fractions of the training at which the layers below the head start to learn (see
            `optimizers.Layerwise`).
        dropout: Dropout rate in the blocks, or `None` for the model's own.
        stochastic_depth: Stochastic depth rate of the last block (see `ViTConfig`), or `None` for the model's own.
        lora: Rank of low-rank adapters, which are then trained instead of the blocks, or `None`.
        lora_projections: Projections with an adapter (see `lora.add_lora`).
        augmentation: Augmentation of the training images, as an `augment.Augmentation` or its fields. The dataset
            applies it.
        augment_from: Number of steps from which on `finetune` augments (see `for_steps`). 0 if the augmentation is
            changed and this is not.
        gentle_below: Number of steps that all images make in all epochs below which `finetune` trains at a quarter of
            the rate and a layer decay of 0.9 (see `for_model`). 0 if the layer decay is changed and this is not. It has
            no effect with a `learning_rate` of your own.
        flip_test: Whether `finetune` tests if the images can be mirrored (`flip_test`), and else leaves the flips of
            the augmentation out. False if the augmentation is changed and this is not.
        dtype: Keras dtype policy in which `finetune` trains the model, or `None` for the model's own.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> recipe("deit").replace(epochs=100).stochastic_depth
        0.1
    """

    name: str
    source: str
    optimizer: str = "adamw"
    learning_rate: float | None = 1e-3
    batch_size: int = 512
    scale_learning_rate: bool | str = False
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
    halve_batch_below: int = 0
    head: str = "zeros"
    train: str | int | None = "all"
    unfreeze_at: tuple[float, ...] = ()
    dropout: float | None = None
    stochastic_depth: float | None = None
    lora: int | None = None
    lora_projections: tuple[str, ...] = ("query", "value")
    augmentation: Augmentation | None = None
    augment_from: int = 0
    gentle_below: int = 0
    flip_test: bool = False
    dtype: str | None = None

    def __post_init__(self) -> None:
        names = self.lora_projections
        converted: dict[str, Any] = {
            **python_numbers(vars(self)),
            "unfreeze_at": check_layers(self.layer_decay, self.unfreeze_at),
            "lora_projections": tuple(names) if isinstance(names, (tuple, list)) else (names,),
        }
        if isinstance(self.augmentation, Mapping):
            converted["augmentation"] = Augmentation().replace(**self.augmentation)
        for field, value in converted.items():
            object.__setattr__(self, field, value)
        if not isinstance(self.augmentation, (Augmentation, type(None))):
            raise ValueError(
                "augmentation must be an Augmentation, a mapping of its fields, or None. "
                f"Received: {self.augmentation!r}"
            )
        for projection in self.lora_projections:
            one_of(projection, "lora_projections", low_rank.PROJECTIONS)
        for field, choices in _CHOICES.items():
            one_of(getattr(self, field), field, choices)
        blocks = isinstance(self.train, int) and not isinstance(self.train, bool) and self.train > 0
        if not blocks and self.train not in ("all", "head", None):
            raise ValueError(f"train must be 'all', 'head', a number of last blocks, or None. Received: {self.train!r}")
        if self.train == "head" and self.unfreeze_at and self.lora is None:
            raise ValueError("unfreeze_at is when blocks start to learn, and train='head' trains none. Leave one out.")
        check_switches(self)
        self._check_numbers()

    def _check_numbers(self) -> None:
        below_one = ("warmup", "final_learning_rate", "label_smoothing", "momentum", "beta_1", "beta_2", "ema")
        ranges = {
            **dict.fromkeys((*below_one, "dropout", "stochastic_depth"), (0, 1)),
            **{field: (0, float("inf")) for field in ("learning_rate", "epsilon", "weight_decay", "clip_norm")},
        }
        least = dict.fromkeys(("augment_from", "gentle_below", "halve_batch_below"), 0)
        least |= dict.fromkeys(("batch_size", "epochs", "accumulate", "lora"), 1)
        for field in least:
            if getattr(self, field) is not None or field != "lora":
                positive_integer(getattr(self, field), field, least[field])
        for field, (low, high) in ranges.items():
            value = getattr(self, field)
            if value is not None and not (is_number(value) and low <= value < high):
                raise ValueError(f"{field} must be at least {low} and below {high}. Received: {value!r}")

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or a value is out of range.
        """
        check_fields(Recipe, changes, augmentation=Augmentation)
        if "augmentation" in changes:
            changes = {"augment_from": 0, "flip_test": False} | changes
        if "layer_decay" in changes:
            changes = {"gentle_below": 0} | changes
        if changes.get("learning_rate") is not None and self.scale_learning_rate == "sqrt":
            changes = {"scale_learning_rate": False} | changes
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        """Return one value a line, without what is off, with the learning rate that will be used."""
        batches = {True: "in proportion for others", "sqrt": "by the square root for smaller ones"}
        how = batches.get(self.scale_learning_rate)
        rate = f"{rate_for(192):g} up to a hidden size of 192, {rate_for(None):g} from 768 on"
        rate = rate if self.learning_rate is None else f"{self.learning_rate:g}"
        values = {**vars(self), "learning_rate": f"{rate} for batches of {self.batch_size}, {how}" if how else rate}
        if self.augmentation is not None:
            values["augmentation"] = ", ".join(f"{k}={v!r}" for k, v in vars(self.augmentation).items() if v)
        others = {name for _, names in OPTIMIZERS.values() for name in names} - {*OPTIMIZERS[self.optimizer][1]}
        others |= {"batch_size", "scale_learning_rate", *(["lora_projections"] if self.lora is None else [])}
        shown = {name: value for name, value in values.items() if name not in others and value not in (None, False, ())}
        return "\n".join(f"{name}: {value}" for name, value in shown.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain JSON; `Recipe(**…)` is the inverse."""
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
        """Prepare a model for `fit`: freeze layers and set rates as the recipe says, and compile.

        Without `steps`, `fit` needs `callbacks=recipe.callbacks`, which tell the schedule its number of steps. Without
        them it raises a `ValueError` before the first step.

        Args:
            model: Any Keras model. It may be a Vision Transformer of this package, or contain one at any depth.
            data: The training data, as for `fit`; for arrays, a pair. Its first batch determines the loss, and is
                checked (`vit_keras.training.checks.check`).
            loss: A Keras loss. `None`: a cross-entropy that fits the model's outputs and takes class numbers
                as well as one-hot labels; a binary one if the model's task is `"multi"`, or `data` has images of
                several classes; the mean squared error if the task is `"regression"` or `"ordinal"` (`anatomy.task`).
                A model with several outputs needs a loss. A model with its own `compute_loss` gets none, but for
                `Distillation`.
            metrics: As for `keras.Model.compile`. `"accuracy"` is the one for the labels that the loss takes.
                A model of several outputs has none, unless you pass some.
            batch_size: The batch size of `fit`. `None`: the batch size of `data`, if known.
            steps: Number of batches of the whole training. `None`: those of `fit`, through `callbacks`.
            **options: More arguments of `keras.Model.compile`, such as `run_eagerly` and `steps_per_execution`.

        Raises:
            TypeError: The model is not a Keras model.
            ValueError: The model is not built, lacks what the recipe sets, or does not fit the data; or it needs a
                `loss`.

        Example:
            >>> from vit_keras import vit
            >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3, activation="softmax")
            >>> recipe("probe").compile(model)
            >>> [variable.path for variable in model.trainable_variables]
            ['head/kernel', 'head/bias']
        """
        with replicas.scope_of(checked(model)):
            replicas.check_accumulation(self.accumulate)
            batch_size, labels = (batch_size, None) if data is None else self._check(model, data, loss, batch_size)
            ensure_built(model)
            if several := len(getattr(model, "outputs", None) or ()) > 1:
                metrics = None if metrics == ("accuracy",) else metrics
            metrics = metrics if several or isinstance(metrics, dict) else keras.tree.flatten(metrics or [])
            own_loss = type(model).compute_loss is not keras.Model.compute_loss
            learns_labels = isinstance(model, Distillation) or not own_loss
            if loss is None and learns_labels:
                loss, right = loss_and_accuracy(learner(model), labels, self.loss == "binary", self.label_smoothing)
                metrics = [right if metric == "accuracy" else metric for metric in keras.tree.flatten(metrics)]
                metrics = [metric for metric in metrics if metric is not None]
            elif not learns_labels and isinstance(metrics, list):
                metrics = [metric for metric in metrics if metric != "accuracy"]
            self._prepare(model, own_loss)
            optimizer = self.for_model(model).make_optimizer(batch_size, steps)
            if options.get("auto_scale_loss", True) and policy_of(model).name == "mixed_float16":
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")  # as Keras does
            model.compile(optimizer=optimizer, loss=loss, metrics=metrics or None, **options)
            check_before_training(model)

    def _check(self, model, data, loss, batch_size):
        """Check the data, and return the batch size and the labels of the first batch."""
        if hasattr(data, "__next__"):  # a batch that is taken from it is lost
            check(model, data, loss=loss)  # warns of that
            return batch_size, None
        inputs, labels = first_batch(data)
        ensure_built(model, inputs)
        name_learner(model, data)  # the loss depends on the task
        check(model, data, loss=loss)
        batch_size = batch_size or (None if isinstance(data, tuple) else len(keras.tree.flatten(inputs)[0]))
        return batch_size, labels if labels is None or isinstance(labels, (dict, list, tuple)) else as_array(labels)

    def for_model(self, model: keras.Model, task: str | None = None, steps: int | None = None) -> Recipe:
        """Return the recipe with the rates for a model, a task (`None`: its own) and steps (`None`: many), if unset."""
        if self.learning_rate is not None:
            return self
        hidden_size = None  # as of a wide model
        with contextlib.suppress(ValueError):
            blocks = anatomy.blocks(find_vit(model))  # `keras.Model(vit.inputs, …)` has no configuration
            hidden_size = next((each.shape[-1] for block in blocks for each in block.layernorm1.variables), None)
            task = task or anatomy.task(learner(model))
        rate = rate_for(hidden_size, task or "single")
        if steps is None or steps >= self.gentle_below:
            return dataclasses.replace(self, learning_rate=rate)
        rate, layer_decay = _FEW_STEPS["rate"] * rate, _FEW_STEPS["layer_decay"]
        return dataclasses.replace(self, learning_rate=rate, layer_decay=layer_decay)

    def for_steps(self, steps: int) -> Recipe:
        """Return the recipe for a training of this many steps: without augmentation if they are below `augment_from`.

        Example:
            >>> recipe("finetune").for_steps(10).augmentation.crop is None
            True
        """
        if self.augmentation is None or steps >= self.augment_from:
            return self
        return self.replace(augmentation=PLAIN)

    def batch_for(self, images: float) -> int:
        """Return the batch size of `finetune` for a training that sees this many images in all epochs."""
        return BATCH // 2 if images < self.halve_batch_below else BATCH

    def rate(self, batch_size: int | None = None) -> float:
        """Return the highest learning rate for a batch size; see `scale_learning_rate`.

        Example:
            >>> recipe("augreg").rate(256), recipe("lora").rate(256)
            (0.015, 0.005)
        """
        rate = rate_for(None) if self.learning_rate is None else self.learning_rate
        times = (batch_size or self.batch_size) * self.accumulate / self.batch_size
        if not (self.scale_learning_rate and batch_size):
            return rate
        return rate * (min(times, 1) ** 0.5 if self.scale_learning_rate == "sqrt" else times)

    def without_flips(self) -> Recipe:
        """Return the recipe with an augmentation that does not mirror images.

        Example:
            >>> recipe("finetune").without_flips().augmentation.flip
            False
        """
        if self.augmentation is None:
            return self
        return self.replace(augmentation=self.augmentation.replace(flip=False), augment_from=self.augment_from)

    def make_optimizer(self, batch_size: int | None = None, steps: int | None = None) -> keras.optimizers.Optimizer:
        """Return the optimizer of this recipe for a batch size; see `compile`."""
        optimizer, fields = OPTIMIZERS[self.optimizer]
        average = {} if self.ema is None else {"use_ema": True, "ema_momentum": self.ema ** (1 / self.accumulate)}
        return optimizer(
            WarmupDecay(self.rate(batch_size), self.warmup, self.schedule, self.final_learning_rate, steps),
            layer_decay=self.layer_decay,
            unfreeze_at=self.unfreeze_at,
            weight_decay=self.weight_decay,
            global_clipnorm=self.clip_norm,
            gradient_accumulation_steps=self.accumulate if self.accumulate > 1 else None,
            **average,
            **{field: getattr(self, field) for field in fields},
        )

    def _prepare(self, model, own_loss) -> None:
        fields = [field for field in ("dropout", "stochastic_depth", "lora") if getattr(self, field) is not None]
        if fields and not has_vit(model):
            raise ValueError(
                f"The recipe {self.name!r} sets {' and '.join(fields)} in a Vision Transformer, and {model.name!r} "
                f"does not contain exactly one. Without: recipe({self.name!r}, "
                f"{', '.join(f'{field}=None' for field in fields)}). For the image tower of an ImageText, first "
                f"call {'training.add_lora' if self.lora else 'anatomy.set_rates'}(model.image, …)."
            )
        if self.dropout is not None or self.stochastic_depth is not None:
            set_rates(find_vit(model), dropout=self.dropout, stochastic_depth=self.stochastic_depth)
        if self.lora is not None:
            low_rank.add_lora(model, self.lora, self.lora_projections)
        elif self.train is not None and not (own_loss and learner(model) is model and self.train == "all"):
            train_only(model, self.train)  # what another model with a loss of its own has frozen stays so
        if self.lora is None:
            warn_of_quantized_kernels(model)

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """New callbacks for `fit`. The schedule needs them; add your own: `[*recipe.callbacks, mine]`."""
        return [
            Horizon(),
            Reseed(),
            *([] if self.ema is None else [keras.callbacks.SwapEMAWeights()]),
        ]


RECIPES = {name: Recipe(name=name, **fields) for name, fields in RECIPE_TABLE.items()}
"""All recipes, by name."""


def recipe(name: str | Recipe, **changes: Any) -> Recipe:
    """Return a recipe by its name, with some fields changed.

    Args:
        name: A name in `RECIPES`, or a `Recipe`.
        **changes: Fields of `Recipe` to change.

    Raises:
        ValueError: There is no such recipe or field, or a value is out of range.

    Example:
        >>> recipe("vit", ema=0.9999).optimizer
        'sgd'
    """
    found = name if isinstance(name, Recipe) else RECIPES[one_of(name, "recipe", RECIPES)]
    return found.replace(**changes)
