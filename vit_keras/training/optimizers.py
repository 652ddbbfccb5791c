"""Keras' optimizers with a learning rate for each layer, and a schedule that knows its end when training starts.

What fine-tuning a Vision Transformer needs and Keras lacks: layer-wise learning-rate decay (BEiT, arXiv 2106.08254, appendix H),
no weight decay on biases, normalisations, tokens and positions, and layers that start to learn later than the head.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

DECAYS = ("cosine", "linear", "constant")

_BLOCK = re.compile(r"encoderblock_(\d+)/")
_BEFORE_THE_BLOCKS = re.compile(
    r"(^|/)(embedding/(kernel|bias)$|embedding_norm|patch_norm|class_token|distillation_token|register_tokens|"
    r"Transformer_posembed_input|Transformer_norm_pre|conv_root|gn_root|block\d+_unit\d+)"
)
_LAST_NORM = re.compile(r"(^|/)Transformer_encoder_norm/")
_NEVER_DECAYED = re.compile(r"(^|/)(cls|registers|probe|pos_embedding|relative_position_bias|\w*token)$")


def depths(variables: Sequence[Any]) -> list[int]:
    """How deep in a Vision Transformer each variable is, counted as timm counts (`group_matcher`).

    Args:
        variables: Variables of a model, of which the paths tell. Blocks count wherever the ViT is in the model.

    Returns:
        0 for what is before the blocks (embedding, tokens, positions, the ResNet of a hybrid), 1 … L for the blocks, L for the
        last normalisation, L + 1 for all else: the head, and what a user put around the ViT. Without any block: 1 for everything.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3)
        >>> sorted(set(depths(model.variables)))
        [0, 1, 2, 3]
    """
    paths = [getattr(variable, "path", variable.name) for variable in variables]
    blocks = [_BLOCK.search(path) for path in paths]
    count = max((int(block[1]) + 1 for block in blocks if block), default=0)

    def depth(path, block):
        if block:
            return int(block[1]) + 1
        if count and _BEFORE_THE_BLOCKS.search(path):
            return 0
        return count if count and _LAST_NORM.search(path) else count + 1

    return [depth(path, block) for path, block in zip(paths, blocks)]


def is_decayed(variable: Any) -> bool:
    """Whether weight decay is good for a variable: not for biases, normalisations, layer scales, tokens and positions."""
    return len(variable.shape) > 1 and not _NEVER_DECAYED.search(getattr(variable, "path", variable.name))


@keras.saving.register_keras_serializable("vit_keras")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A rise in a straight line from 0, then a decay: the reference's schedule (vit_jax, `create_learning_rate_schedule`).

    Lengths are fractions of all steps, of which `fit` and not this object knows the number. The optimizers of this module are
    told it by a callback (`vit_keras.training.recipes.Horizon`); with any other optimizer give `steps`.

    Args:
        peak: The highest learning rate.
        warmup: The fraction of all steps in which it is reached.
        decay: `"cosine"`, `"linear"` or `"constant"`.
        final: What is left in the end, as a fraction of the peak.
        steps: Number of all steps (batches, also where gradients are accumulated), or `None`.

    Raises:
        ValueError: A value is out of range; when called, `steps` is not known.

    Example:
        >>> schedule = WarmupDecay(0.1, warmup=0.1, steps=100)
        >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    def __init__(self, peak, warmup=0.0, decay="cosine", final=0.0, steps=None):
        if decay not in DECAYS:
            raise ValueError(f"decay must be one of {', '.join(map(repr, DECAYS))}. Received: {decay!r}")
        for name, value in (("warmup", warmup), ("final", final)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a fraction from 0 to 1. Received: {value!r}")
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be a positive integer. Received: {steps!r}")
        self.peak = peak
        self.warmup = warmup
        self.decay = decay
        self.final = final
        self.steps = steps

    def __call__(self, step):
        if self.steps is None:
            raise ValueError(NO_HORIZON)
        return self.at(ops.cast(step, "float32") / self.steps)

    def at(self, progress: Any) -> Any:
        """The learning rate when this fraction of all steps is done."""
        left = 1 - ops.clip((progress - self.warmup) / max(1 - self.warmup, 1e-9), 0, 1)
        if self.decay == "cosine":
            left = 0.5 - 0.5 * ops.cos(math.pi * left)
        elif self.decay == "constant":
            left = ops.ones_like(left)
        rate = self.peak * (self.final + (1 - self.final) * left)
        return rate * ops.clip(progress / self.warmup, 0, 1) if self.warmup else rate

    def get_config(self):
        return {name: getattr(self, name) for name in ("peak", "warmup", "decay", "final", "steps")}


NO_HORIZON = (
    "The learning rate's schedule does not know how many steps there will be: pass callbacks=recipe.callbacks to fit (with your "
    "own: callbacks=[*recipe.callbacks, mine]), or steps= to recipe.compile."
)


class Layerwise:
    """What the optimizers below add to those of Keras.

    Args:
        learning_rate: That of the head: a float, a `WarmupDecay` or any schedule.
        layer_decay: Each layer learns at this times the rate of the one above it; 1: all at the same.
        thaw: Fractions of all steps at which what is below the head starts to learn, its rate being 0 until then. One number:
            all at once. More: the blocks are parted in as many groups, and the uppermost starts first.
        **options: Those of the Keras optimizer. `weight_decay` is decoupled and follows each layer's rate, as in PyTorch.

    Raises:
        ValueError: An argument is out of range, or `thaw` has no schedule to measure by or no blocks to hold back.
    """

    def __init__(self, learning_rate=1e-3, *, layer_decay=1.0, thaw=(), **options):
        thaw = tuple(thaw) if isinstance(thaw, (tuple, list)) else (thaw,)
        if not 0 < layer_decay <= 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1. Received: {layer_decay!r}")
        if not all(0 <= start < 1 for start in thaw) or list(thaw) != sorted(thaw):
            raise ValueError(f"thaw must be rising fractions of the training, from 0 to below 1. Received: {thaw!r}")
        super().__init__(learning_rate=learning_rate, **options)
        if thaw and not isinstance(self._learning_rate, WarmupDecay):
            raise ValueError("thaw needs a learning_rate that knows the end of the training: a WarmupDecay.")
        self.layer_decay = layer_decay
        self.thaw = thaw
        # The first step of the training and the number of its steps: a variable, for compiled steps must see it change.
        self.span = self.add_variable((2,), dtype="int", name="span")
        self.awaits_horizon = False
        self._has_horizon = False
        self._rate_now = None
        if isinstance(self._learning_rate, WarmupDecay) and not self.needs_horizon:
            self._set_span(0, self._learning_rate.steps)

    def begin(self, steps: int, done: int = 0) -> None:
        """Start a training: let the schedule run over so many steps, of which some may be done already.

        Where the schedule was made with `steps` of its own, these remain.
        """
        if self.needs_horizon:
            self._set_span(int(ops.convert_to_numpy(self._iterations)) - done, steps)

    def _set_span(self, first, steps):
        self.span.assign([first, steps])
        self._has_horizon = True

    @property
    def needs_horizon(self) -> bool:
        """Whether `begin` must tell how many steps there will be: there is a `WarmupDecay` without `steps` of its own."""
        return isinstance(self._learning_rate, WarmupDecay) and self._learning_rate.steps is None

    @property
    def can_start(self) -> bool:
        """Whether a training may start: the number of steps is known, or a callback waits to tell it (`awaits_horizon`)."""
        return self._has_horizon or self.awaits_horizon or not self.needs_horizon

    @property
    def has_horizon(self) -> bool:
        """Whether the number of steps is known, having been told or loaded."""
        return self._has_horizon

    def progress(self) -> Any:
        """The fraction of all steps that is done, a scalar.

        Raises:
            ValueError: It is not known how many there are.
        """
        if not self._has_horizon:
            raise ValueError(NO_HORIZON)
        first, steps = self.span[0], self.span[1]
        return ops.cast(self._iterations - first, "float32") / ops.cast(steps, "float32")

    def build(self, variables):
        if self.built:
            return
        depth = depths(variables)
        head = max(depth)
        if self.thaw and min(depth) == head:
            raise ValueError(
                "thaw holds back the blocks of a Vision Transformer, and there are none among the variables."
            )
        self._rates = [(self.layer_decay ** (head - d), self._start(d, head)) for d in depth]
        self._decayed = [is_decayed(variable) for variable in variables]
        super().build(variables)

    def _start(self, depth, head):
        """The fraction of all steps at which a depth starts to learn; of `head` depths below the head."""
        return 0.0 if depth == head or not self.thaw else self.thaw[(head - 1 - depth) * len(self.thaw) // head]

    def _get_current_learning_rate(self):
        if self._rate_now is not None:
            return self._rate_now
        if isinstance(self._learning_rate, WarmupDecay):
            return self._learning_rate.at(self.progress())
        return super()._get_current_learning_rate()

    def _use_weight_decay(self, variable):
        return self._decayed[self._get_variable_index(variable)] and super()._use_weight_decay(variable)

    def _apply_weight_decay(self, variables):
        """Nothing yet: a layer's decay follows its own rate, in `_backend_update_step`."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        groups = collections.defaultdict(list)
        for gradient, variable in zip(grads, trainable_variables):
            groups[self._rates[self._get_variable_index(variable)]].append((gradient, variable))
        progress = self.progress() if self.thaw else None
        for (factor, start), pairs in groups.items():
            rate = ops.convert_to_tensor(learning_rate) * factor
            rate = ops.where(progress >= start, rate, 0.0) if start else rate
            gradients, variables = map(list, zip(*pairs))
            decayed = [variable for variable in variables if self._use_weight_decay(variable)]
            if self.weight_decay and decayed:
                self._rate_now = rate
                super()._apply_weight_decay(decayed)
                self._rate_now = None
            super()._backend_update_step(gradients, variables, rate)

    def load_own_variables(self, store):
        super().load_own_variables(store)
        self._has_horizon = self._has_horizon or bool(ops.convert_to_numpy(self.span)[1])

    def get_config(self):
        return {**super().get_config(), "layer_decay": self.layer_decay, "thaw": list(self.thaw)}


def _fastest(optimizer: type) -> type:
    """The class that Keras itself uses: on PyTorch one that updates all variables by one call."""
    return type(optimizer()) if keras.backend.backend() == "torch" else optimizer


@keras.saving.register_keras_serializable("vit_keras")
class LayerwiseAdamW(Layerwise, _fastest(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` with a learning rate for each layer. See `Layerwise`.

    Example:
        >>> LayerwiseAdamW(1e-3, layer_decay=0.75, weight_decay=0.05, global_clipnorm=1.0).layer_decay
        0.75
    """


@keras.saving.register_keras_serializable("vit_keras")
class LayerwiseSGD(Layerwise, _fastest(keras.optimizers.SGD)):
    """`keras.optimizers.SGD` with a learning rate for each layer. See `Layerwise`."""


@keras.saving.register_keras_serializable("vit_keras")
class LayerwiseLamb(Layerwise, _fastest(keras.optimizers.Lamb)):
    """`keras.optimizers.Lamb` (arXiv 1904.00962) with a learning rate for each layer. See `Layerwise`."""
