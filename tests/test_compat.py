"""Functions of vit-keras 0.x."""

import functools
import warnings

import keras
import numpy as np
import pytest
from support import tiny_model

from vit_keras import checkpoints, layers, utils, vit

tiny = functools.partial(tiny_model, patch_size=16, num_layers=2, hidden_size=64, mlp_dim=128, classes=10)


def positions(model):
    return model.get_layer("Transformer_posembed_input")


def test_apply_embedding_weights_resamples_as_load_weights_does(google_npz):
    path = google_npz()  # 4 × 4 patches
    table = np.load(path)["Transformer/posembed_input/pos_embedding"]
    loaded, applied = tiny((32, 128)), tiny((32, 128))
    checkpoints.load_weights(loaded, path, source_grid=(4, 4))
    with pytest.warns(UserWarning, match="from 4, 4 to 8, 2"):
        utils.apply_embedding_weights(positions(applied), table, num_x_patches=8, num_y_patches=2)
    np.testing.assert_array_equal(positions(applied).get_weights()[0], positions(loaded).get_weights()[0])


@pytest.mark.filterwarnings("ignore:Resizing position embeddings")
def test_apply_embedding_weights_refuses_a_source_that_is_no_square():
    model = tiny(64)
    before = positions(model).get_weights()[0]
    with pytest.raises(ValueError, match="not a square grid"):
        utils.apply_embedding_weights(positions(model), np.zeros((1, 1 + 15, 64), "float32"), 4, 4)
    np.testing.assert_array_equal(positions(model).get_weights()[0], before)


@pytest.mark.parametrize("pretrained_top", [True, False])
def test_load_weights_numpy_is_load_weights(google_npz, pretrained_top):
    path = google_npz()
    old, new = tiny((32, 128)), tiny((32, 128))
    expected = checkpoints.load_weights(new, path, include_head=pretrained_top, source_grid=(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        report = utils.load_weights_numpy(old, str(path), pretrained_top, num_x_patches=8, num_y_patches=2)
    assert report == expected
    for ours, theirs in zip(old.get_weights(), new.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    assert np.any(old.get_layer("head").get_weights()[0]) == pretrained_top  # a fresh head is zero


def test_the_module_vit_has_the_modules_layers_and_utils():
    assert vit.layers is layers and vit.utils is utils


@pytest.mark.parametrize(
    "name", ["Transformer/encoderblock_1", "Transformer/posembed_input", "Transformer/encoder_norm"]
)
def test_get_layer_takes_the_names_of_vit_keras_0_1(name):
    model = tiny(32)
    assert model.get_layer(name) is model.get_layer(name.replace("/", "_"))
    assert model.get_layer(index=1) is model.layers[1]


def test_a_subclass_may_return_the_pair_of_vit_keras():
    class Attention(layers.MultiHeadSelfAttention):
        def call(self, inputs):
            dense = (self.query_dense, self.key_dense, self.value_dense)
            output, scores = self.attention(*(self.separate_heads(each(inputs), None) for each in dense))
            output = keras.ops.reshape(keras.ops.transpose(output, (0, 2, 1, 3)), keras.ops.shape(inputs))
            return self.combine_heads(output), scores

    class Block(layers.TransformerBlock):
        def call(self, inputs, training=False):
            return super().call(inputs, training=training, return_attention_scores=True)

    tokens, x = keras.Input((5, 8)), np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    for layer in (Attention(num_heads=2), Block(num_heads=2, mlp_dim=8, dropout=0.1)):
        output, scores = layer(tokens)
        assert (output.shape, scores.shape) == ((None, 5, 8), (None, 2, 5, 5))
        outputs, scores = keras.Model(tokens, [output, scores]).predict(x, verbose=0)
        np.testing.assert_allclose(scores.sum(axis=-1), 1, rtol=1e-5)  # five float32 probabilities
        np.testing.assert_allclose(outputs, keras.ops.convert_to_numpy(layer(x)[0]), atol=1e-6)  # float32


def test_without_a_head_any_activation_works_as_it_is_not_used():
    def unregistered(x):
        return x

    headless = [tiny(32, include_top=False, activation=each) for each in ("softmax", keras.activations.softmax)]
    assert [model.config.activation for model in headless] == ["softmax", "softmax"]  # of a head that `resize` may add
    assert tiny(32, include_top=False, activation=unregistered).config.activation == "linear"
    with pytest.raises(ValueError, match="activation"):
        tiny(32, activation=unregistered)
