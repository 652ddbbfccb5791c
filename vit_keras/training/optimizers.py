"""Keras' optimizers with what a ViT needs and Keras lacks: a rate for each layer (BEiT, arXiv 2106.08254, appendix H),
no weight decay of biases, normalizations, tokens and positions, and layers that start to learn later than the head.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from .._internal.validate import is_number
from .._internal.warn import warn_caller
from ..backend import replicas, updates
from ..backend.guarded import have_values
from ..backend.keras_internals import batches_seen, index_of, rate_or_schedule, variables_of

__all__ = ["LayerwiseAdamW", "LayerwiseLamb", "LayerwiseSGD", "WarmupDecay", "depths", "fused", "is_decayed"]

DECAYS = ("cosine", "linear", "constant")

_BLOCK = re.compile(r"encoderblock_(\d+)/")
_BEFORE_THE_BLOCKS = re.compile(
    r"(^|/)(embedding/(kernel|bias)$|embedding_norm|patch_norm|class_token|distillation_token|register_tokens|"
    r"Transformer_posembed_input|rotary_positions|Transformer_norm_pre|conv_root|gn_root|block\d+_unit\d+)"
)
# A text tower's table of tokens, right before its positions; not an `Embedding` that a user has added to a ViT.
_TEXT_TABLE = re.compile(r"(^|/)embedding/embeddings (\S*/)?Transformer_posembed_input/")
_LAST_NORM = re.compile(r"(^|/)Transformer_encoder_norm/")
_NEVER_DECAYED = re.compile(r"(^|/)(cls|registers|probe|pos_embedding|relative_position_bias|frequencies|\w*token)$")


def depths(variables: Sequence[Any]) -> list[int]:
    """Return the depth of each variable in a Vision Transformer by its path, counted as timm does (`group_matcher`)."""
    # 0 before the blocks, 1 to L for the blocks, L for the last normalization, L + 1 for everything else. Of several
    # towers, as in `ImageText`, L is the deepest one's, and the others are counted down from their heads.
    paths = [getattr(variable, "path", variable.name) for variable in variables]
    places = [_place(path, after) for path, after in zip(paths, [*paths[1:], ""])]
    in_blocks = [path[found.start() :] for path in paths if (found := _BLOCK.search(path))]
    several = len({*in_blocks}) < len(in_blocks)  # towers have the same names
    last, towers, blocks = 0.0, [], [0.0]
    for place in places:
        if place is not None:
            if place < last and (several or last == math.inf):
                blocks.append(0)
            last = place
            blocks[-1] = blocks[-1] if place == math.inf else max(blocks[-1], place)
        towers.append(len(blocks) - 1)
    most, counts = max(blocks), [blocks[tower] for tower in towers]
    return [
        int(most - count + min(place, count)) if count and place is not None else int(most) + 1
        for place, count in zip(places, counts)
    ]


def _place(path: str, after: str) -> float | None:
    """Return a variable's place in its tower: 0 before the blocks, n in a block, infinity in the last normalization."""
    if block := _BLOCK.search(path):
        return int(block[1]) + 1
    if _BEFORE_THE_BLOCKS.search(path) or _TEXT_TABLE.search(f"{path} {after}"):
        return 0
    return math.inf if _LAST_NORM.search(path) else None


def is_decayed(variable: Any) -> bool:
    """Return whether a variable has weight decay: not biases, normalizations, layer scales, tokens and positions."""
    return len(variable.shape) > 1 and not _NEVER_DECAYED.search(getattr(variable, "path", variable.name))


@keras.saving.register_keras_serializable("vit_keras")
@dataclasses.dataclass(eq=False)
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then a decay: the reference's schedule (vit_jax, `create_learning_rate_schedule`)."""

    peak: float
    warmup: float = 0.0
    decay: str = "cosine"
    final: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and not (is_number(self.steps) and self.steps >= 1):
            raise ValueError(f"steps must be a positive integer. Received: {self.steps!r}")

    def __call__(self, step: Any) -> Any:
        if self.steps is None:
            raise ValueError(NO_HORIZON)
        return self.at(step, self.steps)

    def at(self, step: Any, steps: Any) -> Any:
        """Return the learning rate of a step, counted from 0, in a training of this many steps."""
        step, steps = ops.cast(step, "float32"), ops.cast(steps, "float32")
        left = 1 - ops.clip((step / steps - self.warmup) / max(1 - self.warmup, 1e-9), 0, 1)
        if self.decay == "cosine":
            left = ops.sin(math.pi / 2 * left) ** 2  # 0.5 - 0.5 cos(π left), without its cancellation near 0
        elif self.decay == "constant":
            left = ops.ones_like(left)
        rate = self.peak * (self.final + (1 - self.final) * left)
        return rate * ops.clip((step + 1) / (steps * self.warmup), 0, 1) if self.warmup else rate

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


NO_HORIZON = (
    "The learning rate's schedule does not know the number of steps of this training. Pass "
    "callbacks=recipe.callbacks to fit (with your own: callbacks=[*recipe.callbacks, mine]), or steps= to "
    "recipe.compile."
)


FOLLOWS_SCHEDULE = (
    "The learning rate follows the schedule that this optimizer has, such as a recipe's, and cannot be set. Leave out "
    "callbacks that set it (ReduceLROnPlateau, LearningRateScheduler). Or compile the model with a rate instead of a "
    "schedule: model.compile(training.LayerwiseAdamW(learning_rate=…, layer_decay=0.75, global_clipnorm=1.0), loss=…)."
)


class NothingToTrainError(ValueError, NotImplementedError):
    """An optimizer was built without variables: Keras' reader of `.h5` files does so, and catches the second kind."""


NO_STEP = "This training changes no weight."


def check_layers(layer_decay: Any, unfreeze_at: Any) -> tuple[float, ...]:
    """Check the layer-wise arguments of an optimizer (see `Layerwise`), and return `unfreeze_at` as a tuple."""
    starts = tuple(unfreeze_at) if isinstance(unfreeze_at, (tuple, list)) else (unfreeze_at,)
    if not (is_number(layer_decay) and 0 < layer_decay <= 1):
        raise ValueError(f"layer_decay must be above 0 and at most 1. Received: {layer_decay!r}")
    if not all(is_number(start) and 0 <= start < 1 for start in starts) or list(starts) != sorted(starts):
        raise ValueError(
            f"unfreeze_at must be increasing fractions of the training, from 0 to below 1. Received: {starts!r}"
        )
    return tuple(float(start) for start in starts)


_Optimizer = keras.optimizers.Optimizer if TYPE_CHECKING else object


class Layerwise(_Optimizer):
    """Mixin that adds layer-wise learning rates to an optimizer of Keras."""

    def __init__(
        self, learning_rate: Any = 1e-3, *, layer_decay: float = 1.0, unfreeze_at: Any = (), **options: Any
    ) -> None:
        starts = check_layers(layer_decay, unfreeze_at)
        super().__init__(learning_rate=learning_rate, **options)
        if starts and self.schedule is None:
            raise ValueError("unfreeze_at needs a learning_rate that knows the end of the training: a WarmupDecay.")
        self.layer_decay = layer_decay
        self.unfreeze_at = starts
        # First step and number of steps of the training; a variable, because compiled steps must see it change.
        self.span: keras.Variable = self.add_variable((2,), dtype="int", name="span")
        self.awaits_horizon: bool = False  # a callback will call `begin` before the first step
        self._rate_now = None
        self._take_span()

    def _take_span(self) -> None:
        steps = None if self.schedule is None else self.schedule.steps
        self.has_horizon: bool = steps is not None
        if steps is not None:
            self.span.assign([0, steps])

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the head, now. If it follows a schedule, only another can be set, before `fit`."""
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        follows = isinstance(rate_or_schedule(self), keras.optimizers.schedules.LearningRateSchedule)
        if follows and not callable(learning_rate):
            raise TypeError(FOLLOWS_SCHEDULE)
        keras.optimizers.Optimizer.learning_rate.fset(self, learning_rate)
        self._take_span()

    @property
    def last_rate(self) -> Any:
        """The learning rate of the head in the last step."""
        if self.schedule is None:
            return self.learning_rate
        step, steps = self._step_of_all()
        return self.schedule.at(step - 1, steps)

    @property
    def schedule(self) -> WarmupDecay | None:
        """The schedule of the learning rate, if it is a `WarmupDecay`."""
        given = rate_or_schedule(self)
        return given if isinstance(given, WarmupDecay) else None

    def begin(self, steps: int, done: int = 0) -> None:
        """Start a training of a number of steps, of which some may be done; a schedule with `steps` keeps its own."""
        self.awaits_horizon = False
        first, together = int(ops.convert_to_numpy(batches_seen(self))) - done, self.gradient_accumulation_steps or 1
        if self.needs_horizon:
            self.span.assign([first, steps])
            self.has_horizon = True
        if first // together == (first + steps) // together:
            warn_caller(
                f"{NO_STEP} It has {steps} batches, and {together} are accumulated for one step. Train for more "
                "epochs, or pass a smaller accumulate=."
            )

    @property
    def needs_horizon(self) -> bool:
        """Whether the number of steps must come from `begin`: there is a `WarmupDecay` without `steps` of its own."""
        return self.schedule is not None and self.schedule.steps is None

    @property
    def can_start(self) -> bool:
        """Whether a training can start: a callback will set its steps (`awaits_horizon`), or the rate is not 0 yet."""
        schedule = self.schedule
        if self.awaits_horizon or schedule is None or schedule.steps is not None:
            return True
        seen, end = int(ops.convert_to_numpy(batches_seen(self))), int(ops.convert_to_numpy(self.span).sum())
        return self.has_horizon and (schedule.decay == "constant" or schedule.final > 0 or seen < end)

    def can_update(self, variables: Sequence[Any]) -> bool:
        """Return whether a built optimizer can update these variables: its own, or some of them."""
        known = {id(variable) for variable in variables_of(self)}
        given = {id(variable) for variable in variables}
        # It must be all of them on JAX, and for averages of weights, which Keras finds by their order.
        return given == known if keras.backend.backend() == "jax" or self.use_ema else given <= known

    def progress(self) -> Any:
        """Return the fraction of all steps that is done, a scalar."""
        step, steps = self._step_of_all()
        return ops.cast(step, "float32") / ops.cast(steps, "float32")

    def _step_of_all(self) -> tuple[Any, Any]:
        """Return the number of steps that are done, and of all steps. Accumulated batches make one step together."""
        if not self.has_horizon:
            raise ValueError(NO_HORIZON)
        first, last = self.span[0], self.span[0] + self.span[1]
        batches = (ops.cast(batches, "int32") for batches in (batches_seen(self), first, last))
        seen, first, last = (ops.floor_divide(each, self.gradient_accumulation_steps or 1) for each in batches)
        return seen - first, ops.maximum(last - first, 1)

    def finalize_variable_values(self, var_list: Any) -> None:
        if not have_values(var_list):
            return  # Keras also calls this after a failed step, whose error must not be hidden by another
        super().finalize_variable_values(var_list)
        if self.use_ema and keras.backend.backend() == "jax":
            # Each variable and its average are one array now, which Keras' next compiled step would delete.
            for variable in var_list:
                variable.assign(ops.copy(variable))

    def build(self, variables: Any) -> None:
        if self.built:
            return
        if not variables:
            raise NothingToTrainError(
                "The model has no variables to train: all its layers are frozen. Set trainable = True on those to "
                'train, or use a recipe with train="all", train="head" or a number of last blocks. To open a file '
                "without its optimizer, pass compile=False."
            )
        depth = depths(variables)
        head = max(depth)
        if self.unfreeze_at and min(depth) == head:
            raise ValueError(
                "unfreeze_at needs the blocks of a Vision Transformer, and none of the variables is in one."
            )
        self._rates = [(self.layer_decay ** (head - d), self._start(d, head)) for d in depth]
        self._decayed = [is_decayed(variable) for variable in variables]
        super().build(variables)

    def _start(self, depth, head):
        """Return the fraction of all steps at which a depth starts to learn; there are `head` depths below the head."""
        starts = self.unfreeze_at
        return 0.0 if depth == head or not starts else starts[(head - 1 - depth) * len(starts) // head]

    def _get_current_learning_rate(self):
        return self._rate_of_the_head() if self._rate_now is None else self._rate_now

    def _rate_of_the_head(self):
        known = self.schedule
        return super()._get_current_learning_rate() if known is None else known.at(*self._step_of_all())

    def _use_weight_decay(self, variable):
        return self._decayed[index_of(self, variable)] and super()._use_weight_decay(variable)

    def _clip_gradients(self, grads):
        if replicas.count() == 1 or not (self.clipnorm or self.global_clipnorm or self.clipvalue):
            at_once = self.global_clipnorm is not None and updates.clipped(grads, self.global_clipnorm)
            return at_once or super()._clip_gradients(grads)
        clipped = super()._clip_gradients(replicas.summed(grads))  # Keras would clip the part of each replica
        return [None if each is None else replicas.share(each) for each in clipped]  # Keras adds them up again

    def _apply_weight_decay(self, variables):
        """Do nothing yet: a layer's decay follows its own rate, in `_backend_update_step`."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # Not the given rate: where another replica is in the middle of its step, that is the rate of a layer.
        head, pairs = ops.convert_to_tensor(self._rate_of_the_head()), collections.defaultdict(list)
        for gradient, variable in zip(grads, trainable_variables):
            pairs[self._rates[index_of(self, variable)]].append((gradient, variable))
        progress, groups = self.progress() if self.unfreeze_at else None, []
        for (factor, start), each in pairs.items():
            rate = head * factor
            rate = ops.where(progress >= start, rate, 0.0) if start else rate
            gradients, variables = map(list, zip(*each))
            decayed = [variable for variable in variables if self._use_weight_decay(variable)]
            if self.weight_decay and decayed:
                self._rate_now = rate
                super()._apply_weight_decay(decayed)
                self._rate_now = None
            groups.append((gradients, variables, rate))
        if not updates.by_kernel(self, groups):
            for group in groups:
                super()._backend_update_step(*group)

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        self.has_horizon = self.has_horizon or bool(ops.convert_to_numpy(self.span)[1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layer_decay": self.layer_decay, "unfreeze_at": list(self.unfreeze_at)}


def _fastest(optimizer: type) -> type:
    """Return the class that Keras itself uses: on PyTorch one that updates all variables in one call."""
    return type(optimizer()) if keras.backend.backend() == "torch" else optimizer


@keras.saving.register_keras_serializable("vit_keras")
class LayerwiseAdamW(Layerwise, _fastest(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` with a learning rate for each layer. See `Layerwise`.

    Example:
        >>> LayerwiseAdamW(1e-3, layer_decay=0.75, weight_decay=0.05, global_clipnorm=1.0).layer_decay
        0.75
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        updates.update(self, super().update_step, gradient, variable, learning_rate)


@keras.saving.register_keras_serializable("vit_keras")
class LayerwiseSGD(Layerwise, _fastest(keras.optimizers.SGD)):
    """`keras.optimizers.SGD` with a learning rate for each layer. See `Layerwise`."""


@keras.saving.register_keras_serializable("vit_keras")
class LayerwiseLamb(Layerwise, _fastest(keras.optimizers.Lamb)):
    """`keras.optimizers.Lamb` (arXiv 1904.00962) with a learning rate for each layer. See `Layerwise`."""


def fused(optimizer: keras.optimizers.Adam) -> keras.optimizers.Adam:
    """Let an Adam or AdamW of Keras update float32 weights by one kernel, like `fused=True` in PyTorch.

    Keras computes an update in a dozen operations (docs/scale.md). `LayerwiseAdamW`, and so `recipe(…).compile` and
    `finetune`, use the kernel of PyTorch or TensorFlow by themselves. On JAX, where XLA joins the operations, and with
    `amsgrad`, this changes nothing. A saved model does not remember it.

    Args:
        optimizer: The optimizer. It is changed; other optimizers are not.

    Returns:
        The same optimizer.

    Raises:
        TypeError: It is another kind of optimizer.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile(fused(keras.optimizers.AdamW(1e-3)), "mse")
    """
    if not isinstance(optimizer, keras.optimizers.Adam):
        raise TypeError(f"fused takes a keras.optimizers.Adam or AdamW. Received: {optimizer!r}")
    updates.use_kernel(optimizer)
    return optimizer
