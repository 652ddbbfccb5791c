"""What Keras' copies, ours and files keep of a model, whatever was changed in it or put around it."""

import warnings

import keras
import numpy as np
import pytest

import vit_keras
from vit_keras import anatomy, preprocess, vit
from vit_keras.anatomy.parts import keeper

K, ops = keras.layers, keras.ops
NAMES = ("ant", "bee", "cat")

pytestmark = pytest.mark.filterwarnings("ignore:The pixels (are between|that reach)")


def tiny(**options):
    model = vit.build_model(16, 8, 2, 16, 2, "tiny", 32, **{"classes": 3, "dropout": 0.1, **options})
    random = np.random.default_rng(1)
    for weight in model.weights:
        if "float" in weight.dtype:
            weight.assign(random.normal(0, 0.3, weight.shape))
    return model


def changed(path, **values):
    """A change of attributes of the layer at a path inside the model."""

    def change(model):
        at = model
        for name in path.split("."):
            at = at[int(name)] if name.isdecimal() else model.get_layer(name) if at is model else getattr(at, name)
        for name, value in values.items():
            setattr(at, name, value)

    return change


def epsilons(model):
    for layer in model._flatten_layers():
        if isinstance(layer, K.LayerNormalization):
            layer.epsilon = 0.1


B = "Transformer_encoderblock_1"
CHANGES = {
    "nothing": lambda model: None,
    "several labels": lambda model: anatomy.name_classes(model, NAMES, "multi"),
    "preprocessing": lambda model: setattr(model, "preprocessing", preprocess.CLIP.replace(crop=0.9)),
    "one epsilon": changed(f"{B}.layernorm2", epsilon=0.5),
    "an activation inside of an MLP": changed(f"{B}.mlpblock.layers.2", activation=keras.activations.tanh),
    "one rate": changed(f"{B}.dropout_layer", rate=0.5),
    "another token": changed("ExtractToken", index=2),
    "a function of the head that has no name": changed("head", activation=lambda x: x / 2),
    "numbers": lambda model: anatomy.name_classes(model, NAMES, "regression"),
    "softmax of the head": changed("head", activation=keras.activations.softmax),
    "all epsilons": epsilons,
    "the last epsilon": changed("Transformer_encoder_norm", epsilon=0.5),
    "the activation of one MLP": changed(f"{B}.mlpblock", activation="relu"),
    "an activation inside of an attention": changed(f"{B}.att.value_dense", activation=keras.activations.tanh),
    "rates": lambda model: anatomy.parts.set_rates(model, dropout=0.3, stochastic_depth=0.2),
    "a rate in an MLP": changed(f"{B}.mlpblock.layers.1", rate=0.4),
    "a rate after the positions": changed("Transformer_posembed_input.dropout_layer", rate=0.0),
    "normalization behind": changed(B, post_norm=True),
}


def saved(suffix, opening):
    def copy(model, folder):
        model.save(folder / f"model{suffix}")
        return opening(folder / f"model{suffix}")

    return copy


def cloned(model, _):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def weights(suffix):
    def copy(model, folder):
        vit_keras.save_weights(model, folder / f"weights{suffix}")
        told = {} if suffix == ".safetensors" else {"num_heads": 2, "image_size": 16}
        return vit_keras.from_checkpoint(folder / f"weights{suffix}", **told)

    return copy


COPIES = {
    "functional": lambda model, _: keras.Model(*(x if x[1:] else x[0] for x in (model.inputs, model.outputs))),
    "around": lambda model, _: keras.Sequential([model, K.Dropout(0.1)]),
    "clone": cloned,
    ".keras": saved(".keras", lambda path: keras.saving.load_model(path, compile=False)),
    "our .keras": saved(".keras", vit_keras.load_model),
    ".h5": saved(".h5", lambda path: keras.saving.load_model(path, compile=False)),
    "resize": lambda model, _: vit_keras.resize(model, 16),
    "merge_tokens": lambda model, _: vit_keras.merge_tokens(model, 0),
    "average": lambda model, _: vit_keras.average([model, model]),
    ".safetensors": weights(".safetensors"),
    ".npz": weights(".npz"),
}
FILES = (".safetensors", ".npz")
"""Copies of the ViT alone; the second holds arrays alone."""


def images(model):
    random = np.random.default_rng(0)
    return [random.uniform(-1, 1, (2, *x.shape[1:])).astype("float32") for x in model.inputs]


def outputs(model):
    given = images(model)
    if isinstance(getattr(model, "input", None) if type(model) is not keras.Sequential else None, dict):
        given = {x.name: image for x, image in zip(model.inputs, given)}
    found = model(given if len(given) > 1 else given[0], training=False)
    return [ops.convert_to_numpy(x) for x in keras.tree.flatten(found)]


def rates(model):
    inside = [layer for layer in anatomy.find_vit(model)._flatten_layers() if isinstance(layer, K.Dropout)]
    return [round(layer.rate, 9) for layer in inside]


def compare(model, copy, how):
    """Expect a copy to be what its model is."""
    for found, expected in zip(outputs(copy), outputs(model), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=how)
    if how == ".npz":
        return
    assert anatomy.task(copy) == anatomy.task(model), how
    assert anatomy.outputs.output_names(copy) == anatomy.outputs.output_names(model), how
    assert keeper(copy).preprocessing.replace(image_size=16) == keeper(model).preprocessing.replace(image_size=16), how
    assert how in FILES or rates(copy) == rates(model), how


def each_copy(model, folder, chosen):
    """Compare each copy with the model, or expect words that say what to do."""
    for how in chosen:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                copy = COPIES[how](model, folder)
            except ValueError as error:
                assert "Set them back, or save the whole model" in str(error), (how, error)
                continue
        if any("what is around" in str(each.message) or "does not store" in str(each.message) for each in said):
            assert how in FILES, how
            continue
        compare(model, copy, how)


@pytest.mark.few_cases(8)
@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_keeps_what_was_changed(change, tmp_path):
    model, before = tiny(), outputs(tiny())
    CHANGES[change](model)
    unnamed = "no name" in change
    chosen = [how for how in COPIES if not (unnamed and how in (".keras", "our .keras", ".h5", "clone", "average"))]
    each_copy(model, tmp_path, chosen)
    shown = ("nothing", "several labels", "numbers", "preprocessing")
    same = all(np.allclose(*pair, atol=1e-4) for pair in zip(outputs(model), before))
    assert same == (change in shown or "rate" in change)


def flat(behind):
    model = tiny()
    return keras.Model(model.input, behind(model.output))


def headless(*behind):
    return keras.Sequential([tiny(include_top=False), *behind])


def masked():
    image, mask = keras.Input((16, 16, 3)), keras.Input((16, 16, 1))
    return keras.Model([image, mask], K.Softmax()(tiny()(image * mask)))


def scaled():
    image, factor = keras.Input((16, 16, 3), name="image"), keras.Input((3,), name="factor")
    return keras.Model({"image": image, "factor": factor}, tiny()(image * ops.reshape(factor, (-1, 1, 1, 3))))


def with_numbers():
    model, number = tiny(), keras.Input((2,))
    return keras.Model([model.input, number], K.Dense(3)(K.Concatenate()([model.output, K.Dense(4)(number)])))


def pair():
    one, two, model = keras.Input((16, 16, 3)), keras.Input((16, 16, 3)), tiny()
    return keras.Model([one, two], ops.softmax(model((one + two) / 2)))


def frames():
    return keras.Sequential([keras.Input((2, 16, 16, 3)), K.TimeDistributed(tiny()), K.GlobalAveragePooling1D()])


def two_outputs():
    model = tiny()
    return keras.Model(model.input, {"first": K.Softmax()(model.output), "second": model.output / 3})


def test_a_grid_that_layers_around_depend_on_is_not_resized():
    model = tiny(include_top=False, pooling=None)
    grid = ops.reshape(model.output[:, 1:], (-1, 2, 2, 16))
    decoder = keras.Model(model.input, K.Conv2DTranspose(2, 8, 8)(grid))
    assert vit_keras.resize(decoder, 16).output_shape == (None, 16, 16, 2)
    for size in (24, 32):
        with pytest.raises(ValueError, match="the tokens of one grid.*Pass the ViT alone"):
            vit_keras.resize(decoder, size)


AROUND = {
    "Softmax": lambda: keras.Sequential([tiny(), K.Softmax()]),
    "own head": lambda: headless(K.Dense(3)),
    "images and numbers": with_numbers,
    "two images": pair,
    "frames": frames,
    "two outputs": two_outputs,
    "Resizing before": lambda: keras.Sequential([keras.Input((24, 24, 3)), K.Resizing(16, 16), tiny()]),
    "Softmax on its tensors": lambda: flat(K.Softmax()),
    "ops.softmax": lambda: flat(ops.softmax),
    "a temperature": lambda: flat(lambda x: x / 5),
    "Rescaling": lambda: keras.Sequential([tiny(), K.Rescaling(0.1)]),
    "UnitNormalization": lambda: headless(K.UnitNormalization()),
    "Rescaling before": lambda: keras.Sequential([keras.Input((16, 16, 3)), K.Rescaling(1 / 127.5, -1), tiny()]),
    "own hidden layers": lambda: flat(lambda x: K.Dense(3, "softmax")(K.Dense(8, "relu")(x))),
    "nested twice": lambda: keras.Sequential([keras.Sequential([tiny(), K.Dropout(0.1)]), K.Softmax()]),
    "pooling of tokens": lambda: keras.Sequential([tiny(include_top=False, pooling=None), K.GlobalAveragePooling1D()]),
    "a mask": masked,
    "a factor": scaled,
}


@pytest.mark.few_cases(7)
@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize("around", AROUND)
def test_a_copy_keeps_what_is_around(around, tmp_path):
    model = AROUND[around]()
    anatomy.name_classes(model, NAMES, "multi")
    assert anatomy.task(model) == ("multi" if model.output_shape[1:] == (3,) and around != "two outputs" else "single")
    single = len(model.outputs) == len(model.inputs) == 1
    chosen = [how for how in COPIES if how != ".h5" and (how != "around" or single)]  # Keras' .h5 holds no operations
    each_copy(model, tmp_path, chosen)
    before = model.get_weights()
    larger = vit_keras.resize(model, (24, 32))
    assert [x.shape[1:3] for x in anatomy.find_vit(larger).inputs if len(x.shape) == 4] == [(24, 32)]
    assert [x.shape[1:] for x in larger.outputs] == [x.shape[1:] for x in model.outputs]
    for weight in larger.weights:
        weight.assign(np.zeros(weight.shape, weight.dtype))
    assert all(np.array_equal(*pair) for pair in zip(model.get_weights(), before))  # nothing is shared
