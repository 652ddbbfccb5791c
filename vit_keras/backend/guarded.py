"""Base classes of the package's models, which lose no weights where a step raises an error."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import keras

from .._internal.finite import check_model
from .._internal.validate import native_order
from . import compiled, openvino

__all__ = ["CheckedModel", "Guarded", "have_values"]

logger: logging.Logger = logging.getLogger("vit_keras")

_compiling: contextvars.ContextVar[bool] = contextvars.ContextVar("vit_keras_compiling", default=False)

if TYPE_CHECKING:
    _Model = keras.Model
else:
    _Model = object  # Keras makes each base of a functional model that is a `keras.Model` functional, too


def have_values(variables: Iterable[Any]) -> bool:
    """Return whether variables have values: on JAX, those of a model have none after a step that failed."""
    values = (variable._value for variable in variables) if keras.backend.backend() == "jax" else ()
    return not any(value is None or value.is_deleted() for value in values)


@contextlib.contextmanager
def variables_survive(model: keras.Model) -> Iterator[None]:
    """Restore a model's variables if an error leaves the block: on JAX, Keras takes them out for a loop."""
    if keras.backend.backend() != "jax":
        yield
        return
    values = [(variable, variable._value) for variable in model.variables]
    values += [(variable, variable._value) for variable in getattr(getattr(model, "optimizer", None), "variables", ())]
    try:
        yield
    except BaseException:
        model.jax_state_sync()
        for variable, value in values:  # what no step has consumed yet
            if variable._value is None and not value.is_deleted():
                variable._value = value
        model._jax_state = None
        raise


class Guarded(_Model):
    """Mixin for a model that keeps its variables if a step fails, and compiles its steps again after a change."""

    @property
    def jit_compile(self) -> Any:
        """Whether Keras compiles the steps. On PyTorch, this package does so: `compiles_blocks`."""
        return keras.backend.backend() != "torch" and keras.Model.jit_compile.fget(self)

    @jit_compile.setter
    def jit_compile(self, value: Any) -> None:
        keras.Model.jit_compile.fset(self, value)

    @property
    def compiles_blocks(self) -> bool:
        """Whether blocks run compiled on PyTorch: by `compile(jit_compile=True)` of this model or one around it."""
        return self._jit_compile is True or _compiling.get()

    @contextlib.contextmanager
    def _steps(self) -> Iterator[None]:
        """Keep the variables if a step fails, and compile the blocks of the models inside."""
        compiling = keras.backend.backend() == "torch" and self.compiles_blocks
        if compiling and not _compiling.get():
            logger.info("The blocks of %r run as one function that torch.compile makes at the first step.", self.name)
        token = _compiling.set(compiling)
        try:
            with variables_survive(self):
                yield
        finally:
            _compiling.reset(token)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        openvino.refuse("fit")
        with self._steps():
            return super().fit(*native_order(args), **native_order(kwargs))

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._steps():
            return super().evaluate(*native_order(args), **native_order(kwargs))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self._steps():
            return super().predict(*native_order(args), **native_order(kwargs))

    def make_train_function(self, force: bool = False) -> Any:
        return super().make_train_function(force or compiled.is_outdated(self, "train"))

    def make_test_function(self, force: bool = False) -> Any:
        return super().make_test_function(force or compiled.is_outdated(self, "test"))

    def make_predict_function(self, force: bool = False) -> Any:
        return super().make_predict_function(force or compiled.is_outdated(self, "predict"))


class CheckedModel(Guarded, keras.Model):
    """A model around other models, which warns of infinite and undefined weights when it loads some."""

    def learner(self) -> keras.Model:  # as a property, Keras would save and load its weights once more
        """Return the model that learns: this one, or one inside it."""
        return self

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Load weights as `keras.Model.load_weights` does, and warn if some are infinite or undefined."""
        super().load_weights(filepath, *args, **kwargs)
        check_model(filepath, self)
