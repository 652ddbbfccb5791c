"""Functions of vit-keras 0.x."""

import warnings

import numpy as np
import pytest

from vit_keras import checkpoints, utils, vit


def tiny(image_size, **options):
    return vit.build_model(image_size, 16, 2, 64, 2, "tiny", 128, **{"classes": 10, **options})


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


def test_apply_embedding_weights_says_nothing_where_the_size_is_the_same(google_npz):
    table = np.load(google_npz())["Transformer/posembed_input/pos_embedding"]
    model = tiny(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        utils.apply_embedding_weights(positions(model), table, 4, 4)
    np.testing.assert_array_equal(positions(model).get_weights()[0], table)


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


def test_load_weights_numpy_with_a_head_of_another_size(google_npz):
    with pytest.raises(ValueError, match=r"head of 10.*head of 7"):
        utils.load_weights_numpy(tiny(64, classes=7), google_npz(), True, 4, 4)
