"""Every place where this package replaces a part of Keras, of OpenVINO or of Python's import system at run time.

Each lasts for one call, or as long as its user asks for it. On OpenVINO, where Keras computes with old weights, three
last for the process. A patch is the first thing that a new release breaks. `tests/test_patches.py` finds the
assignments in the code, fails when one is missing here, and fails when a framework no longer needs a patch.
"""

from __future__ import annotations

from typing import NamedTuple


class Patch(NamedTuple):
    """One replacement."""

    replaced: str
    """What is replaced."""
    code: str
    """The module of this package that replaces it, and the assignment there."""
    lasts: str
    """How long it stays replaced."""
    reason: str
    """What the framework lacks or does wrong."""
    until: str
    """What ends the patch. No released version does so yet, unless one is named."""
    test: str
    """The test that fails when the patch is no longer needed; or, after `"none: "`, why there is none."""


_INSIDE_A_CALL = "one call of the model"
_NO_HOOKS = "Keras has no hook that sees the inputs of a layer inside a model."
_HOOKS = "Keras calls hooks of layers on every backend, as PyTorch does with register_forward_hook"

PATCHES = (
    Patch(
        "keras.Operation.symbolic_call, keras.Layer.symbolic_call",
        "backend.keras_internals: each.symbolic_call",
        "one export to ONNX",
        "Keras cannot let a caller compute what an operation returns for the caller's own symbolic tensors.",
        "a public protocol for that, as __torch_function__ is in PyTorch",
        "test_keras_still_asks_no_symbolic_tensor_for_a_result",
    ),
    Patch(
        "keras.ops.shape",
        "export.onnx.trace: ops.shape",
        "one export to ONNX",
        "ops.shape is not an Operation: it returns None for an unknown size, with which nothing can be computed.",
        "ops.shape calls an Operation",
        "test_keras_still_returns_none_for_an_unknown_size",
    ),
    Patch(
        "keras.ops.broadcast_to",
        "export.onnx.trace: ops.broadcast_to",
        "one export to ONNX",
        "ops.broadcast_to does not look at its shape: with an array and a symbolic size it computes, and fails.",
        "ops.broadcast_to is symbolic where a size is",
        "test_keras_still_cannot_broadcast_an_array_to_a_symbolic_size",
    ),
    Patch(
        "backend of a preprocessing layer",
        "export.onnx.trace: object.__setattr__(layer, 'backend', _Operations())",
        "one export to ONNX",
        "Keras' preprocessing layers compute with the functions of a backend, which take no symbolic tensors.",
        "these layers compute with keras.ops",
        "test_keras_still_preprocesses_with_the_functions_of_a_backend",
    ),
    Patch(
        "dtype of a model's input",
        "export.plan: object.__setattr__(x, INPUT_DTYPE, 'float32')",
        "one export",
        "Keras gives a Sequential without an Input one of the dtype of its first layer, which nothing can change.",
        "the dtype of an input can be assigned",
        "test_keras_still_fixes_the_dtype_of_an_input",
    ),
    Patch(
        "call of a layer with a hook",
        "_internal.tap: object.__setattr__(layer, name, through_hooks)",
        _INSIDE_A_CALL,
        _NO_HOOKS,
        _HOOKS,
        "test_keras_still_has_no_hooks_of_layers",
    ),
    Patch(
        "activation of a last softmax or sigmoid",
        "visualize.gradients: object.__setattr__(last, 'activation', unless_left_out)",
        _INSIDE_A_CALL,
        "Gradients are those of logits, and Keras cannot leave out one operation of a functional model.",
        "a public way to call a model with one operation replaced",
        "none: it is the lack of a function, and clone_model, the nearest one, copies all weights.",
    ),
    Patch(
        "make_train_function of a compiled model",
        "training.callbacks: model.make_train_function",
        "as long as the model that a recipe compiled",
        "Keras on JAX takes the variables out of a model before a step, and loses them when the step raises an error.",
        "Keras puts the variables back after an error",
        "test_keras_on_jax_still_loses_the_variables_when_a_step_fails",
    ),
    Patch(
        "keras.src.backend.torch.random.torch_seed_generator",
        "backend.keras_internals: random.torch_seed_generator",
        "the trace of a model by torch.compile",
        "Keras draws by a generator that it makes of a number, which a compiled function reads once.",
        "Keras draws in a compiled function by a generator that PyTorch compiles",
        "test_keras_still_makes_a_generator_for_each_draw",
    ),
    Patch(
        "keras.src.backend.jax.distribution_lib.distribute_data_input",
        "backend.keras_internals: distribution_lib.distribute_data_input",
        "from distribute(how) to distribute(None) on JAX",
        "Keras on JAX fails on a batch that the devices do not divide (github.com/keras-team/keras/issues/21167).",
        "the issue is closed",
        "test_keras_on_several_jax_devices_still_needs_both_patches",
    ),
    Patch(
        "keras.src.backend.jax.distribution_lib.distribute_tensor",
        "backend.keras_internals: distribution_lib.distribute_tensor",
        "from distribute(how) to distribute(None) on JAX",
        "Keras takes the outputs of a layer with several for an array outside of the traced step.",
        "distribute_tensor looks at each output",
        "test_keras_on_several_jax_devices_still_needs_both_patches",
    ),
    Patch(
        "keras.src.backend.openvino.trainer.OpenVINOTrainer._get_compiled_model",
        "backend.keras_internals: trainer.OpenVINOTrainer._get_compiled_model",
        "always, where Keras runs on OpenVINO",
        "Keras keeps what it compiled first, whatever weights and dtypes come later, and fails in threads.",
        "predict() follows an assignment to a weight, and inputs of another dtype",
        "test_keras_on_openvino_still_needs_both_patches",
    ),
    Patch(
        "keras.src.backend.openvino.trainer.ov",
        "backend.keras_internals: trainer.ov",
        "always, where Keras runs on OpenVINO",
        "Keras passes no properties to OpenVINO, which then computes in bfloat16 on processors that have it.",
        "Keras passes a precision to compile_model",
        "test_keras_on_openvino_still_needs_both_patches",
    ),
    Patch(
        "keras.src.backend.openvino.core.compile_model",
        "backend.keras_internals: core.compile_model",
        "always, where Keras runs on OpenVINO",
        "Keras passes no properties to OpenVINO where operations are computed outside of predict(), either.",
        "Keras 3.15 is the oldest: it passes float32",
        "none: only a Keras older than the installed one needs it",
    ),
    Patch(
        "keras.Variable.__init__",
        "checkpoints.saved_models: owner.__init__",
        "the opening of one file",
        "A file of a few hundred bytes can describe a model of any size, and Keras builds it.",
        "Keras bounds what a file may build",
        "test_keras_still_builds_far_more_than_a_file_can_hold",
    ),
    Patch(
        "exec_module of the loader of Keras",
        "_internal.imports: loader.exec_module",
        "until Keras is imported",
        "Keras opens a saved model only if the modules of its classes were imported before, and imports none itself.",
        "Keras imports the module that a registered class is in, or asks entry points",
        "test_keras_still_imports_no_module_for_an_unknown_class",
    ),
)
"""The patches of frameworks, in the order of the rooms that make them."""
