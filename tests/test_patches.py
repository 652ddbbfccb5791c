"""What is replaced in frameworks at run time: the list is complete, and each framework still needs it.

A test named `test_keras_…_still_…` fails when a framework no longer needs a patch. Then the patch goes.
"""

import ast
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support import ROOT

from vit_keras.backend.keras_internals import SymbolicTensor, answering
from vit_keras.backend.patches import PATCHES

PACKAGE = ROOT / "vit_keras"

NO_PATCHES = {
    "_internal.imports: setattr(sys.modules[package], name, value)": "a module of this package",
    "backend.updates: setattr(optimizer, name, kernel)": "an optimizer, when its owner asks for it",
    "backend.precision: setattr(place, name, full)": "settings of PyTorch, which it documents",
    "backend.precision: setattr(place, name, value)": "settings of PyTorch, which it documents",
    "cli: setattr(sys, name, open(os.devnull, mode, encoding='utf-8'))": "streams that Python says may be None",
    "cli.options: setattr(namespace, self.dest, values[0] if len(values) == 1 else values)": "an argparse action",
    "cli.console: warnings.showwarning": "Python's documented way to show warnings otherwise",
    "export: sys.modules[__name__].__class__": "a module of this package",
    "layers._base: setattr(layer, name, value)": "a setting of a copy, which its model had",
}
"""Assignments that look like patches, and why they are not."""

UNDONE = {
    "setattr(ops, name, function)",
    "object.__setattr__(layer, 'backend', own)",
    "object.__setattr__(layer, name, before)",
    "object.__setattr__(last, 'activation', own)",
    "object.__setattr__(x, INPUT_DTYPE, dtype)",
}
"""Assignments that take a patch back."""

METHODS = {name for kind in (keras.Model, keras.Variable) for name in dir(kind) if callable(getattr(kind, name))}
METHODS |= {"create_module", "exec_module"}  # of an importer


def imported(tree):
    """The names that a file imports from elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.asname or name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (name.asname or name.name for name in node.names)


def assignments(path):
    """The assignments in a file to a method of Keras or of an importer, or to a name in a module that is not ours."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    foreign = {*imported(tree)}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in [each for one in targets for each in getattr(one, "elts", [one])]:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
                owner = ast.unparse(target).split(".")[0].split("[")[0]
                if target.attr in METHODS or owner in foreign:
                    yield ast.unparse(target)
        is_set = isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "object.__setattr__")
        if is_set and ast.unparse(node.args[0]) != "self":
            yield ast.unparse(node)


def found():
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        yield from (f"{module}: {each}" for each in assignments(path) if each not in UNDONE)


def test_every_patch_is_listed():
    assert {*found()} == {patch.code for patch in PATCHES} | {*NO_PATCHES}


def test_every_patch_has_a_test_or_a_reason_for_none():
    for patch in PATCHES:
        assert patch.test in globals() or patch.test.startswith("none: "), patch.replaced


# --- exports: Keras' operations on symbolic tensors ---


def test_keras_still_asks_no_symbolic_tensor_for_a_result():
    x = SymbolicTensor((2,), "float32", value="x")
    assert type(keras.ops.exp(x)) is keras.KerasTensor
    with answering(lambda operation, args, kwargs: args[0].value):
        assert keras.ops.exp(x) == "x"


def test_keras_still_returns_none_for_an_unknown_size():
    x = SymbolicTensor((None, 3), "float32", value="x")
    with answering(lambda operation, args, kwargs: "a size"):
        assert keras.ops.shape(x) == (None, 3)


def test_keras_still_cannot_broadcast_an_array_to_a_symbolic_size():
    size = SymbolicTensor((), "int32", value="n")
    asked = []
    with answering(lambda operation, *rest: asked.append(operation)), pytest.raises((TypeError, ValueError)):
        keras.ops.broadcast_to(np.ones((1, 3), "float32"), (size, 3))
    assert not asked


def test_keras_still_preprocesses_with_the_functions_of_a_backend():
    assert hasattr(keras.layers.Rescaling(0.5).backend, "core")


def test_keras_still_fixes_the_dtype_of_an_input():
    model = keras.Sequential([keras.layers.Dense(1, dtype="mixed_bfloat16")])
    model.build((None, 4))
    assert model.inputs[0].dtype == "bfloat16"
    with pytest.raises(AttributeError):
        model.inputs[0].dtype = "float32"


# --- models: what happens inside of a call or a step ---


def test_keras_still_has_no_hooks_of_layers():
    """PyTorch's modules have them, which layers are on that backend alone."""
    own = [kind for kind in keras.Layer.__mro__ if kind.__module__.startswith("keras.")]
    assert not [name for kind in own for name in vars(kind) if "forward" in name and "hook" in name]


@pytest.mark.only_on("torch", reason="only there do draws take a generator")
def test_keras_still_makes_a_generator_for_each_draw():
    from keras.src.backend.torch import random

    assert random.torch_seed_generator(keras.random.SeedGenerator(0)) is not None


@pytest.mark.core
@pytest.mark.only_on("jax", reason="only there do steps take the variables out of the model")
def test_keras_on_jax_still_loses_the_variables_when_a_step_fails():
    class Fails(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            raise ValueError("no rate")

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(Fails()), "mse")
    with pytest.raises(ValueError, match="no rate"):
        model.fit(np.ones((2, 3)), np.ones((2, 2)), verbose=0)
    assert all(variable._value is None for variable in model.trainable_variables)


# --- backends ---


def run(program, backend, **environment):
    """Run a program in a process with plain Keras on a backend, and return what the last line that it prints says."""
    environment = {**os.environ, "KERAS_BACKEND": backend, **environment}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


ON_EIGHT_DEVICES = """
import json
import jax, keras, numpy as np
from keras.src.backend.jax import distribution_lib

keras.distribution.set_distribution(keras.distribution.DataParallel())
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
try:
    model.fit(np.ones((10, 3)), np.ones((10, 2)), batch_size=8, verbose=0)
    uneven = None
except ValueError as error:
    uneven = str(error)
layout = keras.distribution.distribution().get_data_layout((8, 3))
one, two = (
    str(jax.make_jaxpr(lambda x: distribution_lib.distribute_tensor(outputs(x), layout))(np.ones((8, 3))))
    for outputs in (lambda x: x, lambda x: (x, x))
)
print(json.dumps({"uneven": uneven, "one": one, "two": two}))
"""


@pytest.mark.slow
def test_keras_on_several_jax_devices_still_needs_both_patches():
    pytest.importorskip("jax")
    told = run(ON_EIGHT_DEVICES, "jax", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert "partitioned 8 times" in (told["uneven"] or "")
    assert "sharding_constraint" in told["one"]
    assert "sharding_constraint" not in told["two"]


ON_OPENVINO = """
import json
import keras, numpy as np
from keras.src.backend.openvino import trainer

seen, plain = [], trainer.ov.compile_model
trainer.ov.compile_model = lambda *args, **kwargs: seen.append([len(args), *kwargs]) or plain(*args, **kwargs)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
before = model.predict(np.ones((2, 3), "float32"), verbose=0)
model.layers[-1].bias.assign([1.0, 1.0])
after = model.predict(np.ones((2, 3), "float32"), verbose=0)
print(json.dumps({"arguments": seen[0], "moved": float(abs(after - before).max())}))
"""


@pytest.mark.slow
def test_keras_on_openvino_still_needs_both_patches():
    pytest.importorskip("openvino")
    told = run(ON_OPENVINO, "openvino")
    assert told["arguments"] == [2]  # the model and the device, and no properties
    assert told["moved"] == 0  # although 1 was added to each output


# --- files and imports ---


def test_keras_still_builds_far_more_than_a_file_can_hold():
    described = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)]).get_config()
    described = {"module": "keras", "class_name": "Sequential", "config": described}
    built = keras.saving.deserialize_keras_object(described)
    assert 4 * built.count_params() > 1000 * len(json.dumps(described))


def test_keras_still_imports_no_module_for_an_unknown_class(tmp_path, monkeypatch):
    (tmp_path / "not_imported_yet.py").write_text(
        "import keras\n@keras.saving.register_keras_serializable('later')\nclass Later(keras.layers.Layer):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    described = {"class_name": "Later", "config": {}, "module": "not_imported_yet", "registered_name": "later>Later"}
    with pytest.raises(TypeError, match="Could not locate"):
        keras.saving.deserialize_keras_object(described)
    assert "not_imported_yet" not in sys.modules
