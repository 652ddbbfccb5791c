"""What `import vit_keras` brings with it, and what it leaves until it is needed."""

import functools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support import ROOT, tiny_model

from vit_keras import preprocess, training, vit
from vit_keras.training.optimizers import LayerwiseLamb, LayerwiseSGD


def run(code, folder, **environment):
    """A new process in an empty folder that knows only the package; on JAX, which is imported in half the time."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


tiny = functools.partial(tiny_model, patch_size=16, num_layers=2)


def data():
    return np.zeros((2, 32, 32, 3), "float32"), np.array([0, 1])


def trained(recipe):
    model = tiny()
    recipe = training.recipe(recipe, epochs=1)
    recipe.compile(model, run_eagerly=keras.backend.backend() != "jax")
    model.fit(*data(), epochs=1, verbose=0, callbacks=recipe.callbacks)
    return model


def compiled(optimizer):
    model = tiny()
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    return model


def masked(kind, **options):
    model = kind(tiny(), **options)
    model.compile("adam")
    return model


SAVED = {
    "recipe": lambda: trained("vit"),
    "AdamW": lambda: compiled(training.LayerwiseAdamW(1e-3)),
    "SGD": lambda: compiled(LayerwiseSGD(1e-3)),
    "Lamb": lambda: compiled(LayerwiseLamb(1e-3)),
    "mixer": lambda: tiny(tokens_mlp_dim=8, pooling="gap", position=None),
    "hybrid": lambda: vit.build_model(32, 1, 1, 32, 2, "tiny", 32, classes=3, resnet=(1, 1)),
    "everything": lambda: tiny(
        registers=2, layer_scale=0.1, pooling="map", rope_theta=100.0, gated_mlp=True, patch_norm=True
    ),
    "served": lambda: keras.Sequential(
        [keras.Input((None, None, 3)), preprocess.Preprocess(preprocess.CLIP, 32), tiny()]
    ),
    "MaskedPatchPrediction": lambda: masked(training.MaskedPatchPrediction),
    "MaskedAutoencoder": lambda: masked(training.MaskedAutoencoder, decoder_depth=1, decoder_width=16, decoder_heads=2),
    "Distillation": lambda: training.Distillation(tiny(), tiny()),
}


@pytest.mark.slow
def test_what_is_saved_opens_in_a_process_that_imports_only_the_package(tmp_path):
    expected = {}
    for name, make in SAVED.items():
        model = make()
        model.save(tmp_path / f"{name}.keras")
        expected[name] = type(model).__name__
    code = f"""
import json, vit_keras, keras
print(json.dumps({{name: type(keras.saving.load_model(name + ".keras")).__name__ for name in {list(SAVED)!r}}}))
assert vit_keras.load_model("recipe.keras").optimizer is not None
"""
    assert json.loads(run(code, tmp_path, KERAS_BACKEND=keras.backend.backend())) == expected
    code = "import keras, vit_keras; print(type(keras.saving.load_model('recipe.keras').optimizer).__name__)"
    assert run(code, tmp_path) == "LayerwiseSGD\n"


LIGHT = """
import sys
import time
before = {*sys.modules}
started = time.process_time()
import vit_keras
seconds = time.process_time() - started
new = {name for name in sys.modules if name not in before and getattr(sys.modules[name], "__spec__", None)}
others = {name for name in new if name.partition(".")[0] not in {*sys.stdlib_module_names, "vit_keras"}}
assert not others, f"import vit_keras imports {sorted(others)}"
ours = {name for name in new if name.startswith("vit_keras")}
assert len(ours) <= 8, f"import vit_keras imports {sorted(ours)}"
assert seconds < 0.5, f"import vit_keras takes {seconds:.2f} s"
import vit_keras.preprocess, vit_keras.preprocess.images, vit_keras.labels, vit_keras.config
import numpy as np
picture = np.zeros((20, 30, 3), "uint8")
assert vit_keras.preprocess.PRESETS["clip"](picture, image_size=16).shape == (1, 16, 16, 3)
assert vit_keras.labels.class_named("cat", vit_keras.labels.CIFAR10) == 3
assert "keras" not in sys.modules
"""


# The import takes 0.05 s of processor time, and Keras takes 2 to 7: half a second fails on a busy machine only where
# something large is imported.
def test_importing_is_light_and_what_only_describes_leaves_keras_alone(tmp_path):
    run(LIGHT, tmp_path)


def test_a_missing_backend_is_named_with_what_to_do(tmp_path):
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError('No module named jax', name='jax')")
    code = "import vit_keras\ntry:\n    vit_keras.vit\nexcept ImportError as error:\n    print(error)"
    said = run(code, tmp_path, KERAS_BACKEND="jax")
    assert "pip install jax" in said and "KERAS_BACKEND" in said
