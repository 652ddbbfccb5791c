"""What surrounds a Vision Transformer, asked by numbers: ends, fronts and ways around it, by all who ask."""

import functools
import gc
import itertools
import re
import tempfile
import warnings
import weakref

import keras
import numpy as np
import pytest
from keras import ops
from support import OTHER_PIXELS, noise

import vit_keras
from vit_keras import anatomy, layers, training, visualize, vit
from vit_keras.anatomy.around import around, head_layers
from vit_keras.anatomy.dry_run import activation, ending, input_range, readout, runs
from vit_keras.anatomy.inputs import preprocessing_of
from vit_keras.anatomy.outputs import output_kind
from vit_keras.anatomy.parts import find_vit
from vit_keras.export.plan import Plan
from vit_keras.model import VisionTransformer
from vit_keras.training.checks import check
from vit_keras.training.freeze import train_only

K, D = keras.layers, keras.layers.Dense
pytestmark = OTHER_PIXELS


def tiny(**options):
    return vit.build_model(32, 8, 2, 32, 2, "tiny", 64, **{"classes": 3, "dropout": 0.0, **options})


def features(**options):
    return tiny(include_top=False, **options)


def behind(*after, **options):
    """Layers behind a ViT that is nested."""
    return keras.Sequential([features(**options), *after])


def on(make, base=None):
    """Layers on the ViT's own tensors."""
    base = base or tiny()
    return keras.Model(base.input, make(base.output))


def before(make, shape=(32, 32, 3), base=tiny, dtype=None):
    image = keras.Input(shape, dtype=dtype)
    return keras.Model(image, base()(make(image)))


def scrambled(model):
    """Return a model with random weights: nothing is zero, and nothing is what it was at the start."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in str(weight.dtype) and "variance" not in weight.path:
            weight.assign(rng.normal(size=weight.shape) * 0.3)
    return model


class Soft(K.Layer):
    def call(self, x):
        return ops.softmax(x)


class SoftHead(K.Layer):
    def __init__(self):
        super().__init__()
        self.dense = D(3)

    def call(self, x):
        return ops.softmax(self.dense(x))


class Kernel(K.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    def call(self, x):
        return ops.softmax(x @ self.kernel)


class Cosine(Kernel):
    def call(self, x):
        return 16 * ops.normalize(x) @ ops.normalize(self.kernel, axis=0)


class Holder(K.Layer):
    """A user's layer that holds the ViT."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


class Subclass(keras.Model):
    """A user's subclass: its attributes may be in any order."""

    def __init__(self, order=("vit", "scale", "mine"), end=None, **options):
        super().__init__(**options)
        parts = {"vit": features, "scale": lambda: K.Rescaling(1 / 127.5, -1), "mine": lambda: D(3, activation=end)}
        for name in order:
            setattr(self, name, parts[name]())

    def call(self, images, training=None):
        return self.mine(self.vit(self.scale(images), training=training))


def subclass(order=("vit", "scale", "mine"), end=None):
    model = Subclass(order, end)
    model(np.zeros((1, 32, 32, 3), "float32"))
    return model


def part(n):
    """One of three outputs of a nested model."""
    base, image = features(), keras.Input((32, 32, 3))
    three = keras.Model(base.input, [D(3, "softmax")(base.output), D(4)(base.output), base.output])
    return keras.Model(image, three(image)[n])


def named(key):
    base, image = features(), keras.Input((32, 32, 3))
    two = keras.Model(base.input, {"a": D(3, "softmax")(base.output), "b": D(4)(base.output)})
    return keras.Model(image, two(image)[key])


def two_heads(join):
    base = features()
    return keras.Model(base.input, join()([D(3)(base.output), D(3)(base.output)]))


def experts(end=None):
    base = features()
    shares, each = D(2, "softmax")(base.output), ops.stack([D(3, end)(base.output) for _ in range(2)], axis=1)
    return keras.Model(base.input, ops.sum(shares[..., None] * each, axis=1))


def with_numbers(end=None):
    image, numbers, base = keras.Input((32, 32, 3)), keras.Input((4,)), features()
    return keras.Model([image, numbers], D(3, end)(K.Concatenate()([base(image), D(8, "relu")(numbers)])))


def branch():
    image, base = keras.Input((32, 32, 3)), features()
    beside = K.GlobalAveragePooling2D()(K.Conv2D(4, 3, activation="relu")(image))
    return keras.Model(image, D(3)(K.Concatenate()([base(image), beside])))


L, P, F = "logits", "probabilities", "features"
ENDS = {
    "Dense": (L, lambda: behind(D(3))),
    "Dense of zeros": (L, lambda: behind(D(3, kernel_initializer="zeros"))),
    "one logit": (L, lambda: behind(D(1))),
    "softmax": (P, lambda: behind(D(3, "softmax"))),
    "sigmoid": (P, lambda: behind(D(3, "sigmoid"))),
    "one sigmoid": (P, lambda: behind(D(1, "sigmoid"))),
    "Softmax() as activation": (P, lambda: behind(D(3, activation=K.Softmax()))),
    "Activation as activation": (P, lambda: behind(D(3, activation=K.Activation("softmax")))),
    "partial": (P, lambda: behind(D(3, activation=functools.partial(keras.activations.softmax, axis=-1)))),
    "ops.softmax": (P, lambda: behind(D(3, activation=ops.softmax))),
    "lambda": (P, lambda: behind(D(3, activation=lambda x: ops.softmax(x)))),
    "log_softmax": (L, lambda: behind(D(3, "log_softmax"))),
    "sparsemax": (P, lambda: behind(D(3, "sparsemax"))),
    "hard_sigmoid": (P, lambda: behind(D(3, "hard_sigmoid"))),
    **{name: (None, lambda name=name: behind(D(3, name))) for name in ("relu", "tanh", "gelu", "hard_silu", "elu")},
    "logits and their sigmoid": (None, lambda: on(lambda y: ops.concatenate([y, ops.sigmoid(y)], axis=-1))),
    "Activation(ops.softmax)": (P, lambda: behind(D(3), K.Activation(ops.softmax))),
    "Activation(Softmax())": (P, lambda: behind(D(3), K.Activation(K.Softmax()))),
    "Lambda": (P, lambda: behind(D(3), K.Lambda(lambda x: ops.softmax(x)))),
    "own layer": (P, lambda: behind(D(3), Soft())),
    "own head": (P, lambda: behind(SoftHead())),
    "own kernel": (P, lambda: behind(Kernel())),
    "BatchNormalization": (L, lambda: behind(D(3), K.BatchNormalization())),
    "Rescaling": (L, lambda: behind(D(3), K.Rescaling(0.5))),
    "percent": (None, lambda: behind(D(3, "softmax"), K.Rescaling(100.0))),
    "softmax - 0.5": (None, lambda: behind(D(3, "softmax"), K.Rescaling(1.0, -0.5))),
    "cosines": (L, lambda: behind(Cosine())),
    "UnitNormalization": (None, lambda: behind(D(3), K.UnitNormalization())),
    "EinsumDense": (L, lambda: behind(K.EinsumDense("bi,io->bo", 3, bias_axes="o"))),
    "EinsumDense, softmax": (P, lambda: behind(K.EinsumDense("bi,io->bo", 3, activation="softmax"))),
    "Conv1D": (L, lambda: behind(K.Reshape((1, 32)), K.Conv1D(3, 1), K.Flatten())),
    "hidden layers": (L, lambda: behind(D(8, "relu"), K.Dropout(0.1), D(3))),
    "the ViT": (L, tiny),
    "the ViT, softmax": (P, lambda: tiny(activation="softmax")),
    "the ViT, Softmax()": (P, lambda: tiny(activation=K.Softmax())),
    "the ViT, DeiT": (L, lambda: tiny(pooling="token+dist", distillation_token=True)),
    "a Mixer": (L, lambda: tiny(tokens_mlp_dim=16, pooling="gap", class_token=False, position=None)),
    "softmax(vit)": (P, lambda: on(ops.softmax)),
    "sigmoid(vit)": (P, lambda: on(ops.sigmoid)),
    "log_softmax(vit)": (L, lambda: on(ops.log_softmax)),
    "exp(log_softmax(vit))": (P, lambda: on(lambda y: ops.exp(ops.log_softmax(y)))),
    "vit / T": (L, lambda: on(lambda y: y / 2.0)),
    "softmax(vit / T)": (P, lambda: on(lambda y: ops.softmax(y / 2.0))),
    "mean of two softmaxes": (P, lambda: on(lambda y: (ops.softmax(y) + ops.softmax(2 * y)) / 2)),
    "clip(softmax)": (P, lambda: on(lambda y: ops.clip(ops.softmax(y), 1e-6, 1))),
    "cast(softmax)": (P, lambda: on(lambda y: ops.cast(ops.softmax(y), "float16"))),
    "softmax[:, :2]": (P, lambda: on(lambda y: ops.softmax(y)[:, :2])),
    "logits[:, :2]": (L, lambda: on(lambda y: y[:, :2])),
    "two heads side by side": (L, lambda: two_heads(K.Concatenate)),
    "the sum of two heads": (L, lambda: two_heads(K.Add)),
    "a gate": (L, lambda: on(lambda x: D(3)(x) * D(3, "sigmoid")(x), features())),
    "a mixture of experts": (L, experts),
    "a mixture of experts, softmax": (P, lambda: experts("softmax")),
    "features": (F, features),
    "features, LayerNormalization": (F, lambda: behind(K.LayerNormalization())),
    "features, UnitNormalization": (F, lambda: behind(K.UnitNormalization())),
    "pre_logits": (F, lambda: features(representation_size=8)),
    "pooled tokens": (F, lambda: behind(K.GlobalAveragePooling1D(), pooling=None)),
    "pooled tokens, Dense": (L, lambda: behind(K.GlobalAveragePooling1D(), D(3), pooling=None)),
    "the first of three outputs": (P, lambda: part(0)),
    "the second of three outputs": (L, lambda: part(1)),
    "the third of three outputs": (F, lambda: part(2)),
    "an output by name": (P, lambda: named("a")),
    "another output by name": (L, lambda: named("b")),
    "a subclass": (L, subclass),
    "a subclass, softmax": (P, lambda: subclass(end="softmax")),
    "frames": (P, lambda: frames("softmax")),
    "nested twice": (P, lambda: keras.Sequential([keras.Sequential([tiny(), K.Dropout(0.1)]), K.Softmax()])),
    "an image and numbers": (L, with_numbers),
    "an image and numbers, softmax": (P, lambda: with_numbers("softmax")),
    "a CNN beside the ViT": (L, branch),
}
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    ENDS["tf.nn.softmax"] = (P, lambda: behind(D(3, activation=tf.nn.softmax)))
if keras.backend.backend() == "jax":
    import jax

    ENDS["jax.nn.softmax"] = (P, lambda: behind(D(3, activation=jax.nn.softmax)))
if keras.backend.backend() == "torch":
    import torch

    ENDS["torch.nn.Softmax"] = (P, lambda: behind(D(3, activation=torch.nn.Softmax(-1))))
ALONE = ("sigmoid", "one sigmoid", "hard_sigmoid", "sigmoid(vit)")


def frames(end=None):
    pooled = K.GlobalAveragePooling1D()
    return keras.Sequential(
        [keras.Input((2, 32, 32, 3)), K.TimeDistributed(features()), pooled, D(3, end, name="mine")]
    )


@pytest.mark.few_cases(3)
@pytest.mark.core
@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_known_by_its_numbers(end):
    kind, make = ENDS[end]
    assert output_kind(make() if "zeros" in end else scrambled(make())) == kind


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_same_for_all_who_ask(end):
    kind, make = ENDS[end]
    model = make() if "zeros" in end else scrambled(make())
    assert output_kind(model) == kind
    single = len(getattr(model, "inputs", None) or [0]) == 1 and end != "frames"
    recipe = training.recipe("finetune", augmentation=None)
    if kind not in (L, P):
        with pytest.raises(ValueError, match="Pass loss="):
            recipe.compile(model)
    else:
        recipe.compile(model)
        assert model.loss.from_logits == (kind == L)
        n = ending(model).width
        assert getattr(model.loss, "binary", True) == (end in ALONE or n == 1)
        outputs = np.array([[0.25] * 2 + [0.5] * (n - 2) if n > 1 else [0.25]], "float32")
        softmax = np.exp(outputs) / np.exp(outputs).sum()
        logits = 1 / (1 + np.exp(-outputs)) if n == 1 else softmax
        np.testing.assert_allclose(anatomy.probabilities(model, outputs), logits if kind == L else outputs, rtol=1e-6)
        if end.startswith("softmax(") or end in ("softmax", "lambda", "own layer", "the ViT, softmax"):
            assert activation(model) is not None
    if single and "subclass" not in end and "float16" not in str(model.outputs[0].dtype):
        plan = Plan.of(model)
        assert plan.kind == (kind or "outputs")
        if len(model.output_shape) == 2 and (kind in (L, P)):
            found = plan.outputs(ops.convert_to_tensor(np.zeros((2, 32, 32, 3), "float32")))
            assert tuple(found["features"].shape) == (2, 8 if "representation" in end else 32)


@pytest.mark.core
def test_an_end_that_changes_is_known_anew():
    model = scrambled(tiny())
    assert output_kind(model) == L
    model.get_layer("head").activation = keras.activations.softmax
    assert output_kind(model) == P
    model.get_layer("head").activation = keras.activations.relu
    assert output_kind(model) is None
    scaled = behind(D(3, "softmax"), scale := K.Rescaling(1.0))
    assert output_kind(scaled) == P
    scale.scale = 100.0
    assert output_kind(scaled) is None
    grown = behind(D(3))
    assert output_kind(grown) == L
    grown.add(K.Softmax())
    assert output_kind(grown) == P


@pytest.mark.core
def test_a_question_can_be_asked_while_a_function_is_traced():
    model, said = scrambled(behind(D(3, "softmax"))), []

    def traced(x):
        said.append(output_kind(model))
        return x

    x = np.zeros((1, 4), "float32")
    if keras.backend.backend() == "tensorflow":
        tf.function(traced)(x)
    elif keras.backend.backend() == "jax":
        jax.jit(traced)(x)
    else:
        traced(x)
    assert said == [P]


def test_what_was_asked_keeps_no_model_alive_and_stays_out_of_files(tmp_path):
    model = before(K.Rescaling(1 / 255))
    assert (output_kind(model), input_range(model)) == (L, "pixels")
    paths = [weight.path for weight in model.weights]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in again.weights] == paths
    references = [weakref.ref(model), weakref.ref(find_vit(model))]
    del model, again
    keras.backend.clear_session()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("n", [0, 2])
def test_a_model_without_a_vit_has_an_honest_answer(n):
    plain = keras.Sequential([keras.Input((32, 32, 3)), K.Conv2D(2, 3), K.GlobalAveragePooling2D(), D(3)][: 2 + n])
    assert output_kind(plain) == L
    numbers = keras.Sequential([keras.Input((4,)), D(3, "softmax")])
    assert output_kind(numbers) == P
    with pytest.raises(ValueError, match="found 0"):
        input_range(plain)

    class Opaque(keras.Model):
        def call(self, x):
            return x

    assert output_kind(Opaque()) is None
    with pytest.raises(ValueError, match=r"is not built.*Pass loss="):
        training.losses.loss_and_accuracy(Opaque(), None)


# --- what is before the ViT ---------------------------------------------------------------------------------------


def masked(times):
    image, mask = keras.Input((32, 32, 3)), keras.Input((32, 32, 1) if times is None else (3,))
    return keras.Model([image, mask], tiny()(image * (mask if times is None else times(mask))))


def two_images():
    images = [keras.Input((32, 32, 3)) for _ in range(2)]
    return keras.Model(images, D(3)(features(channels=6)(K.Concatenate()(images))))


def with_depth():
    image, depth = keras.Input((32, 32, 3)), keras.Input((32, 32, 1))
    return keras.Model([image, depth], tiny(channels=4)(K.Concatenate()([image / 127.5 - 1, depth])))


def sharpened(x):
    return 21 * x - 20 * ops.depthwise_conv(x, np.full((9, 9, 3, 1), 1 / 81, "float32"), padding="same")


def fast():
    """A model as a zero-shot classifier is one, whose own call is compiled."""
    image = keras.Input((32, 32, 3))
    return VisionTransformer(image, D(3)(K.UnitNormalization()(features()(image))))


N, PX, U = "normalized", "pixels", "unit"
FRONTS = {
    "none": (N, tiny),
    "flip": (N, lambda: before(K.RandomFlip())),
    "x / 127.5 - 1": (PX, lambda: before(K.Rescaling(1 / 127.5, -1))),
    "x / 255": (PX, lambda: before(K.Rescaling(1 / 255))),
    "2x - 1": (U, lambda: before(K.Rescaling(2.0, -1))),
    "Normalization of pixels": (PX, lambda: before(K.Normalization(mean=[123.0] * 3, variance=[3400.0] * 3))),
    "Normalization of [0, 1]": (U, lambda: before(K.Normalization(mean=[0.5] * 3, variance=[0.05] * 3))),
    "operations": (PX, lambda: before(lambda x: x / 127.5 - 1)),
    "zero padding": (N, lambda: before(K.ZeroPadding2D(2), (28, 28, 3))),
    "letterbox": (N, lambda: before(K.Resizing(32, 32, pad_to_aspect_ratio=True), (32, 48, 3))),
    "padded pixels": (PX, lambda: before(lambda x: K.ZeroPadding2D(2)(x / 127.5 - 1), (28, 28, 3))),
    "padded 2x - 1": (U, lambda: before(lambda x: K.ZeroPadding2D(2)(2 * x - 1), (28, 28, 3))),
    "clip(-1, 1)": (N, lambda: before(lambda x: ops.clip(x, -1, 1))),
    "clip(0, 1) * 2 - 1": (U, lambda: before(lambda x: ops.clip(x, 0, 1) * 2 - 1)),
    "sharpened, its edges most of all": (N, lambda: before(sharpened)),
    "-x": (N, lambda: before(lambda x: -x)),
    "x - 0.1": (N, lambda: before(lambda x: x - 0.1)),
    "x + 1000": (N, lambda: before(K.Rescaling(1, 1000))),
    "a small image in much padding": (PX, lambda: before(lambda x: K.ZeroPadding2D(12)(x / 127.5 - 1), (8, 8, 3))),
    "an image and its depth": (PX, with_depth),
    "a flat image": (PX, lambda: before(lambda x: K.Reshape((32, 32, 3))(x / 127.5 - 1), (3072,))),
    "integers": (PX, lambda: before(lambda x: ops.cast(x, "float32"), dtype="uint8")),
    "image * mask": (N, lambda: masked(None)),
    "image * vector": (N, lambda: masked(K.Reshape((1, 1, 3)))),
    "two images": (N, two_images),
    "learned adapter": (N, lambda: before(K.Conv2D(3, 1), (32, 32, 6))),
    "any channels": (PX, lambda: before(lambda x: x / 127.5 - 1, (32, 32, None))),
    "preprocessing": (
        PX,
        lambda: keras.Sequential([keras.Input((None, None, 3)), vit_keras.preprocessing_layer(t := tiny()), t]),
    ),
    "frames": (N, frames),
    "frames of pixels": (
        PX,
        lambda: keras.Sequential([keras.Input((2, 32, 32, 3)), K.Rescaling(1 / 127.5, -1), K.TimeDistributed(tiny())]),
    ),
    "any size": (N, lambda: vit.build_model(None, 8, 1, 32, 2, "any", 64, classes=3, position_grid=(4, 4))),
    "a Sequential that was not built": (
        PX,
        lambda: keras.Sequential([K.Resizing(32, 32), K.Rescaling(1 / 255), tiny()]),
    ),
    "behind": (N, lambda: keras.Sequential([tiny(), K.Rescaling(0.5)])),
    "nested": (PX, lambda: keras.Sequential([before(K.Rescaling(1 / 255)), K.Softmax()])),
    "a CNN beside the ViT": (N, branch),
    "a fast model": (N, fast),
    **{
        f"subclass {' '.join(order)}": (PX, functools.partial(subclass, order))
        for order in itertools.permutations(("vit", "scale", "mine"))
    },
}


EXACT = (
    "none",
    "flip",
    "x / 127.5 - 1",
    "operations",
    "preprocessing",
    "letterbox",
    "a CNN beside the ViT",
    "a fast model",
)


@pytest.mark.core
@pytest.mark.parametrize("front", FRONTS)
def test_a_front_takes_pixels_of_one_range(front):
    expected, make = FRONTS[front]
    model = make()
    assert input_range(model) == expected
    assert preprocessing_of(model).std[0] == {N: 0.5, PX: pytest.approx(1 / 255), U: 1.0}[expected]
    if front not in EXACT and "subclass" not in front:
        return
    images = np.random.default_rng(0).uniform(-1, 1, (4, *(n or 32 for n in anatomy.inputs.image_shape(model)[1:])))
    right, wrong = (images, 127.5 * (images + 1)) if expected == N else (127.5 * (images + 1), (images + 1) / 2)

    def warned(images):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check(model, images.astype("float32"))
        return any("The pixels that reach" in str(each.message) for each in caught)

    assert [warned(each) for each in (right, wrong, right, wrong)] == [False, True] * 2


def test_a_front_that_changes_is_known_anew():
    model = before(scale := K.Rescaling(1.0))
    assert input_range(model) == N
    scale.scale = 1 / 255
    assert input_range(model) == PX


# --- ways to put something around a ViT ---------------------------------------------------------------------------


def cut():
    base = features()
    tokens = base.get_layer("Transformer_encoderblock_0").output
    return keras.Model(base.input, D(3, name="mine")(K.GlobalAveragePooling1D()(tokens)))


def hidden(x):
    return D(3, name="mine")(K.BatchNormalization(name="bn")(D(8, name="hidden")(x)))


def own_block():
    """A block of this package's behind frames: it is the user's, not the ViT's."""
    parts = [K.TimeDistributed(features()), layers.TransformerBlock(num_heads=2, mlp_dim=16, name="temporal")]
    return keras.Sequential([keras.Input((2, 32, 32, 3)), *parts, K.GlobalAveragePooling1D(), D(3, name="mine")])


WAYS = {  # how to build it, and the layers that are around the ViT
    "on its tensors": (lambda: on(D(3, name="mine"), features()), ["mine"]),
    "three layers on its tensors": (lambda: on(hidden, features()), ["hidden", "bn", "mine"]),
    "nested": (lambda: behind(D(3, name="mine")), ["mine"]),
    "nested, three layers": (
        lambda: before(lambda x: x, base=lambda: on(hidden, features())),
        ["hidden", "bn", "mine"],
    ),
    "its own head": (tiny, ["head"]),
    "pre_logits": (lambda: tiny(representation_size=8), ["pre_logits", "head"]),
    "DeiT": (lambda: tiny(pooling="token+dist", distillation_token=True), ["head", "head_dist"]),
    "MAP": (lambda: tiny(pooling="map", class_token=False), ["head"]),
    "cut": (cut, ["mine"]),
    "a clone": (lambda: keras.models.clone_model(on(D(3, name="mine"), features())), ["mine"]),
    "frames": (frames, ["mine"]),
    "frames and a block": (own_block, None),
    "a layer that holds it": (lambda: holding(), ["mine"]),
    "a subclass": (subclass, ["mine"]),
    "an adapter before it": (
        lambda: before(K.Conv2D(3, 1, name="stem"), (32, 32, 6), lambda: on(D(3, name="mine"), features())),
        ["stem", "mine"],
    ),
    "an output by its name": (lambda: on(lambda x: {"class": D(3, name="mine")(x)}, features()), ["mine"]),
    "two heads": (lambda: on(lambda x: [D(3, name="one")(x), D(2, name="two")(x)], features()), ["one", "two"]),
    "an image and numbers": (with_numbers, None),
    "a CNN beside it": (branch, None),
    "a hybrid": (
        lambda: on(
            D(3, name="mine"), vit.build_model(32, 1, 1, 32, 2, "hybrid", 64, 3, resnet=(1, 1), include_top=False)
        ),
        ["mine"],
    ),
    "tokens": (lambda: behind(K.GlobalAveragePooling1D(), D(3, name="mine"), pooling=None), ["mine"]),
    "a user's attention pooling": (
        lambda: on(lambda t: D(3, name="mine")(layers.AttentionPooling(2, 16, name="own")(t)), features(pooling=None)),
        None,
    ),
}


def holding():
    image = keras.Input((32, 32, 3))
    return keras.Model(image, D(3, name="mine")(Holder(features())(image)))


def inside_of(model):
    """The variables of the ViT itself, and all others."""
    held = {id(v) for layer in around(model) for v in layer.weights}
    return [v for v in model.weights if id(v) not in held], [v for v in model.weights if id(v) in held]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_around_a_vit_is_what_is_trained(way):
    make, names = WAYS[way]
    model = make()
    own, others = inside_of(model)
    paths = {v.path for v in own}
    assert all(
        "Transformer" in p or "embedding" in p or "cls" in p or "unit" in p or "MAP" in p or "root" in p for p in paths
    )
    if names is not None:
        assert [layer.name for layer in head_layers(model)] == (names if way != "a subclass" else head_layers_of(model))
    expected = {id(v) for v in others if "moving" not in v.path and "seed" not in v.path}

    def trained():
        return {id(v) for v in model.trainable_variables}

    train_only(model, "head")
    assert trained() == expected
    train_only(model, 1)
    last = {id(v) for v in anatomy.blocks(find_vit(model))[-1].weights if "seed" not in v.path}
    assert expected | last <= trained() and len(trained()) < len(model.weights)
    train_only(model, "all")
    assert trained() >= expected | {id(v) for v in own if "seed" not in v.path and "moving" not in v.path}
    training.recipe("probe", augmentation=None).compile(model, loss="mse")
    assert trained() == expected
    if way != "a hybrid":
        training.add_lora(model, rank=2)
        lora = {id(v) for v in model.trainable_variables if "lora" in v.path}
        assert lora and trained() - lora == expected


def head_layers_of(model):
    return [layer.name for layer in model.layers if isinstance(layer, D)]


@pytest.mark.parametrize("way", [way for way in WAYS if WAYS[way][1] and way not in ("DeiT", "cut", "two heads")])
def test_features_are_the_ones_of_the_vit(way):
    model = scrambled(WAYS[way][0]())
    images = noise(2, 32, 32, 6 if "adapter" in way else 3).astype("float32") / 127.5 - 1
    found = training.embed(model, images, progress=False)
    if "adapter" in way:
        images = ops.convert_to_numpy(model.get_layer("stem")(images))
    base = find_vit(model)
    taken = {"pre_logits": "pre_logits", "MAP": "MAPHead_0", "tokens": "Transformer_encoder_norm"}.get(
        way, "ExtractToken"
    )
    expected = keras.Model(base.input, base.get_layer(taken).output).predict(images, verbose=0)
    expected = expected.mean(axis=1) if way == "tokens" else expected
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)  # the same operations in float32


ASKING = {  # each returns what it computes with the model and its inputs, and what is right; or says what to pass
    "resize": lambda model, x: (vit_keras.resize(model, 32)(x), model(x)),
    "merge_tokens": lambda model, x: (vit_keras.merge_tokens(model, 0)(x), model(x)),
    "export": lambda model, x: ((plan := Plan.of(model)).outputs(x)[plan.output_names[0]], model(x)),
    "attention_map": lambda model, x: (np.shape(visualize.attention_map(model, x)), (2, 32, 32, 3)),
    "embed": lambda model, x: (np.ndim(training.embed(model, x, progress=False)), 2),
    "save_weights": lambda model, x: (tokens(saved(model)), tokens(find_vit(model))),
}


def tokens(model):
    return training.embed(model, noise(2, 32, 32, 3), layer="tokens", progress=False)


def saved(model):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Only the ViT")
        vit_keras.save_weights(model, f"{folder}/all.safetensors")
        return vit_keras.from_checkpoint(f"{folder}/all.safetensors")


SOME = [
    pytest.param(way, how, marks=[pytest.mark.slow] if how != "resize" and (n + m) % 3 else [])
    for n, how in enumerate(ASKING)
    for m, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("way", "how"), SOME)
def test_each_function_is_right_or_says_what_to_pass(way, how):
    model = scrambled(WAYS[way][0]())
    random = np.random.default_rng(0)
    shapes = [x.shape[1:] for x in getattr(model, "inputs", None) or [keras.Input((32, 32, 3))]]
    inputs = [random.uniform(-1, 1, (2, *shape)).astype("float32") for shape in shapes]
    try:
        found, expected = ASKING[how](model, inputs[0] if len(inputs) == 1 else inputs)
    except (TypeError, ValueError) as error:
        assert re.search("Pass|Map the dataset|These formats can hold", str(error)), error
        return
    for pair in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(*map(ops.convert_to_numpy, pair), rtol=0, atol=1e-4)  # the same in float32


def test_a_model_of_several_images_or_without_a_graph_says_what_to_pass():
    for model in (masked(None), frames(), subclass()):
        with pytest.raises(ValueError, match=r"Pass the Vision Transformer: anatomy.find_vit"):
            vit_keras.feature_maps(model)
    with pytest.raises(ValueError, match=r"from 2 inputs. Pass the Vision Transformer: anatomy.find_vit"):
        training.embed(masked(None), noise(2, 32, 32, 3), progress=False)


def test_a_siamese_model_runs_its_vit_twice():
    base, images = features(), [keras.Input((32, 32, 3)) for _ in range(2)]
    siamese = keras.Model(images, D(1)(K.Subtract()([base(image) for image in images])))
    assert [runs(model) for model in (base, behind(D(3)), siamese)] == [1, 1, 2]


def test_the_last_layers_are_the_ones_that_the_output_comes_from():
    def heads(model):
        return [layer.name for layer in ending(model).heads]

    assert heads(tiny(pooling="token+dist", distillation_token=True)) == ["head", "head_dist"]
    assert heads(on(hidden, features())) == ["mine"]
    assert heads(features()) == []
    assert [layer.name for layer in ending(behind(D(3), K.BatchNormalization(name="bn"))).behind] == ["bn"]
    assert ending(part(1)).width == 4 and ending(part(0)).width == 3


def test_each_output_has_the_names_of_its_own_head():
    base, image = features(), keras.Input((32, 32, 3))
    outputs = {"a": D(3, name="one")(base.output), "b": D(4, name="two")(base.output)}
    for built, keys in ((outputs, ("a", "b")), (list(outputs.values()), (0, 1))):
        both = keras.Model(base.input, built)(image)
        first, second = (keras.Model(image, both[key]) for key in keys)
        assert anatomy.name_classes(first, tuple("abc")) and anatomy.name_classes(second, tuple("wxyz"), "multi")
        assert (anatomy.class_names(first), anatomy.task(first)) == (tuple("abc"), "single")
        assert (anatomy.class_names(second), anatomy.task(second)) == (tuple("wxyz"), "multi")


# --- how much each token counts -----------------------------------------------------------------------------------


def pooled(make, **options):
    tokens = features(pooling=None, **options)
    return keras.Model(tokens.input, make(tokens.output))


def nested_tokens():
    image = keras.Input((32, 32, 3))
    return keras.Model(image, D(2)(features(pooling=None)(image)[:, 0]))


def siamese_tokens():
    base, images = features(pooling=None), [keras.Input((32, 32, 3)) for _ in range(2)]
    apart = K.Subtract()([K.GlobalAveragePooling1D()(base(image)[:, 1:]) for image in images])
    return keras.Model(images, D(1)(apart))


DIST = {"distillation_token": True, "pooling": "token+dist"}
CLS, PATCHES = [(slice(0, 1), 1)], [(slice(1, None), 1)]
BOTH = [(slice(0, 1), 0.5), (slice(1, None), 0.5)]
READ = {
    "token": (CLS, features),
    "token, head": (CLS, tiny),
    "token+dist": ([(slice(0, 2), 1)], lambda: tiny(**DIST)),
    "registers": (CLS, lambda: tiny(registers=2)),
    "gap": ([(slice(None), 1)], lambda: tiny(pooling="gap", class_token=False)),
    "gap behind a class token": (PATCHES, lambda: tiny(pooling="gap", class_token=True)),
    "all": ([(slice(None), 1)], lambda: tiny(pooling="all", registers=1)),
    "token+gap": ([(slice(0, 1), 0.5), (slice(2, None), 0.5)], lambda: tiny(pooling="token+gap", registers=1)),
    "map": ([(slice(None), 1)], lambda: tiny(pooling="map", class_token=False, registers=3)),
    "t[:, 0]": (CLS, lambda: pooled(lambda t: t[:, 0])),
    "Lambda": (CLS, lambda: pooled(lambda t: K.Lambda(lambda z: z[:, 0])(t))),
    "Cropping1D": (CLS, lambda: pooled(lambda t: K.Flatten()(K.Cropping1D((0, 16))(t)))),
    "mean of patches": (PATCHES, lambda: pooled(lambda t: K.GlobalAveragePooling1D()(t[:, 1:]))),
    "mean of all": ([(slice(None), 1)], lambda: pooled(K.GlobalAveragePooling1D())),
    "largest": ([(slice(None), 1)], lambda: pooled(lambda t: K.GlobalMaxPooling1D()(K.LayerNormalization()(t)))),
    "smallest": ([(slice(None), 1)], lambda: pooled(lambda t: ops.min(t, axis=1))),
    "some": ([(slice(2, 5), 1)], lambda: pooled(lambda t: ops.mean(K.Dropout(0.1)(t)[:, 2:5], axis=1))),
    "side by side": (BOTH, lambda: pooled(lambda t: K.Concatenate()([t[:, 0], K.GlobalAveragePooling1D()(t[:, 1:])]))),
    "mean of both": (BOTH, lambda: pooled(lambda t: (t[:, 0] + ops.mean(t[:, 1:], axis=1)) / 2)),
    "class token + patch 3": ([(slice(0, 1), 0.5), (slice(4, 5), 0.5)], lambda: pooled(lambda t: t[:, 0] + t[:, 4])),
    "behind registers": (
        [(slice(5, None), 1)],
        lambda: pooled(lambda t: K.GlobalAveragePooling1D()(t[:, 5:]), registers=4),
    ),
    "last": ([(slice(-1, None), 1)], lambda: pooled(lambda t: t[:, -1])),
    "a row of numbers for each": ([(slice(1, 2), 1)], lambda: pooled(lambda t: D(3)(t)[:, 1])),
    "nested": (CLS, nested_tokens),
    "siamese": (PATCHES, siamese_tokens),
    "with hidden layers": (CLS, lambda: on(hidden, features())),
    "feature maps": (
        PATCHES,
        lambda: (lambda t: keras.Model(t.input, vit_keras.feature_maps(t, [0, 1])(t.input)))(tiny()),
    ),
    "next to numbers": (CLS, with_numbers),
    "next to a CNN": (CLS, branch),
    "the second of three outputs": (CLS, lambda: part(1)),
    "none": (CLS, lambda: pooled(lambda t: t[:, 0] * 0.0)),
}


@pytest.mark.core
@pytest.mark.parametrize("how", READ)
def test_how_much_each_token_counts(how):
    where, make = READ[how]
    found = readout(model := scrambled(make()))
    expected = np.zeros(len(found))
    for part_, share in where:
        expected[part_] += share / len(expected[part_])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)  # a difference of float32, of 16 patches
    assert readout(model, len(found) + 9).sum() == pytest.approx(1)


def test_an_average_of_what_cannot_be_copied_is_refused():
    model = Subclass()
    model(np.zeros((1, 32, 32, 3), "float32"))
    with pytest.raises(ValueError, match="cannot be copied"):
        vit_keras.average([model, model])


@pytest.mark.core
def test_a_model_of_two_outputs_trains_with_a_loss_alone():
    model, recipe = on(lambda x: [D(3)(x), D(2)(x)], features()), training.recipe("probe")
    recipe.compile(model, loss="mse")
    labels = [np.zeros((2, 3)), np.zeros((2, 2))]
    assert np.isfinite(model.fit(noise(2, 32, 32, 3), labels, callbacks=recipe.callbacks).history["loss"]).all()
