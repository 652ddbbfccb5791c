"""Contrastive training: the losses in NumPy, what a frozen tower does, and that it learns."""

import keras
import numpy as np
import pytest

from vit_keras import vit
from vit_keras.anatomy.parts import set_rates
from vit_keras.text import ImageText, TextConfig, build_text
from vit_keras.text.model import contrastive_loss
from vit_keras.training import add_lora, recipe

COLORS = {"red": (1, -1, -1), "green": (-1, 1, -1), "blue": (-1, -1, 1), "white": (1, 1, 1)}


def towers(seed=0):
    keras.utils.set_random_seed(seed)
    image = vit.build_model(16, 8, 1, 16, 2, "image", 32, classes=8, head_bias=False)
    image.get_layer("head").set_weights([np.random.default_rng(seed).normal(size=(16, 8))])
    config = TextConfig(
        vocab_size=8, context_length=4, num_layers=1, hidden_size=16, num_heads=2, mlp_dim=32, output_size=8
    )
    return image, build_text(config)


def batch(count=8, seed=0):
    """Pictures of one color, in turn, and its number as a text that ends in 7."""
    random = np.random.default_rng(seed)
    numbers = np.arange(count) % len(COLORS)
    color = np.array(list(COLORS.values()), "float32")[numbers][:, None, None]
    images = color + random.normal(0, 0.2, (count, 16, 16, 3))
    ids = np.stack([np.full(count, 6), 1 + numbers, np.full(count, 7), np.zeros(count)], axis=1)
    return {"image": np.clip(images, -1, 1).astype("float32"), "text": ids.astype("int32")}


def compiled(model, rate=1e-2):
    model.compile(keras.optimizers.Adam(rate), run_eagerly=keras.backend.backend() != "jax")
    return model


def by_hand(logits, kind):
    """The loss, pair by pair."""
    logits, count = np.asarray(logits, "float64"), len(logits)
    if kind == "sigmoid":
        signs = 2 * np.eye(count) - 1
        return np.sum(np.log(1 + np.exp(-signs * logits))) / count
    by_image = [-np.log(np.exp(logits[n, n]) / np.exp(logits[n]).sum()) for n in range(count)]
    by_text = [-np.log(np.exp(logits[n, n]) / np.exp(logits[:, n]).sum()) for n in range(count)]
    return (np.mean(by_image) + np.mean(by_text)) / 2


@pytest.mark.core
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_loss_is_that_of_the_paper(kind):
    logits = np.random.default_rng(0).normal(0, 3, (5, 5)).astype("float32")
    found = float(keras.ops.convert_to_numpy(contrastive_loss(logits, kind)))
    assert abs(found - by_hand(logits, kind)) <= 1e-5


@pytest.mark.compiles_long
@pytest.mark.core
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_step_changes_the_tower_that_is_not_frozen(kind):
    model = ImageText(*towers(), loss=kind)
    model.image.trainable = False
    compiled(model)
    before = [[keras.ops.convert_to_numpy(w) for w in t.weights] for t in (model.image, model.text)]
    scale = float(keras.ops.convert_to_numpy(model.logit_scale))
    data = batch(4)
    loss = model.train_on_batch(data)
    for tower, weights, frozen in zip((model.image, model.text), before, (True, False)):
        same = [np.array_equal(keras.ops.convert_to_numpy(w), old) for w, old in zip(tower.weights, weights)]
        assert all(same) if frozen else not all(same)
    assert float(keras.ops.convert_to_numpy(model.logit_scale)) != scale
    first = ImageText(*towers(), loss=kind)
    logits = keras.ops.convert_to_numpy(first(data))
    assert abs(float(np.ravel(loss)[0]) - by_hand(logits, kind)) <= 1e-4


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_text_tower_learns_the_words_for_what_a_frozen_image_tower_sees(kind):
    model = ImageText(*towers(), loss=kind)
    model.image.trainable = False
    compiled(model)
    data = batch(4)
    for _ in range(60):
        model.train_on_batch(data)
    new = batch(32, seed=1)
    logits = keras.ops.convert_to_numpy(model({"image": new["image"], "text": data["text"]}))
    assert (logits.argmax(axis=1) == np.arange(32) % 4).mean() >= 0.9


@pytest.mark.slow
def test_fit_takes_a_dataset_without_labels_and_the_model_is_saved(tmp_path):
    model = compiled(ImageText(*towers(), loss="sigmoid"))
    history = model.fit(batch(8), batch_size=4, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    data = batch(4)
    found, expected = (keras.ops.convert_to_numpy(each(data)) for each in (again, model))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert again.loss_kind == "sigmoid"


def test_towers_of_different_widths_are_refused():
    image, _ = towers()
    config = TextConfig(vocab_size=8, context_length=4, num_layers=1, hidden_size=16, num_heads=2, mlp_dim=32)
    with pytest.raises(ValueError, match=r"\(None, 8\) and \(None, 512\)"):
        ImageText(image, build_text(config))


@pytest.mark.parametrize("name", ["deit", "lora"])
def test_a_recipe_for_the_blocks_says_how_a_tower_gets_them(name):
    model = ImageText(*towers())
    with pytest.raises(ValueError, match=r"=None.*model\.image"):
        recipe(name).compile(model)
    if name == "lora":
        add_lora(model.image)
        recipe("lora", lora=None).compile(model)
        assert any("lora" in each.path for each in model.trainable_variables)
    else:
        for tower in (model.image, model.text):
            set_rates(tower, dropout=0.0, stochastic_depth=0.1)
        recipe("deit", dropout=None, stochastic_depth=None).compile(model)
