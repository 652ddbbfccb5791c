"""Training scripts as people write them, who have not read our documentation: each runs, and learns."""

import keras
import numpy as np
import pytest

from vit_keras import vit
from vit_keras.training.recipes import recipe

CLASSES = 3


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(0)


def backbone(image_size=32, **options):
    return vit.build_model(image_size, 16, 2, 32, 2, "vit-b16", 64, classes=CLASSES, dropout=0.0, **options)


def pictures(count=24, size=32):
    """Pictures in [-1, 1] of which the brightness tells the class, and the classes."""
    labels = np.arange(count) % CLASSES
    noise = np.random.RandomState(0).normal(scale=0.1, size=(count, size, size, 3))
    return (noise + (labels - 1)[:, None, None, None] * 0.5).astype("float32"), labels


class Generator(keras.utils.PyDataset):
    """What took the place of `ImageDataGenerator`: batches of float64 pixels and one-hot labels."""

    def __init__(self, **options):
        super().__init__(**options)
        self.images, self.labels = pictures()

    def __len__(self):
        return 3

    def __getitem__(self, index):
        batch = slice(index * 8, index * 8 + 8)
        return self.images[batch].astype("float64"), np.eye(CLASSES)[self.labels[batch]]


def losses(model, *data, epochs=4, **options):
    return model.fit(*data, epochs=epochs, verbose=0, **options).history["loss"]


def learns(history):
    return np.isfinite(history).all() and history[-1] < 0.9 * history[0]


def eager(model):
    """Run the layers one by one, where compiling would take longer than training."""
    model.run_eagerly = keras.backend.backend() != "jax"


@pytest.mark.core
@pytest.mark.compiles_long
def test_flatten_batch_norm_and_a_dense_head_behind_a_nested_backbone():
    base = backbone(include_top=False)
    model = keras.Sequential(
        [
            base,
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(11, activation=keras.activations.gelu),
            keras.layers.Dense(CLASSES, "softmax"),
        ]
    )
    recipe("finetune", learning_rate=3e-3).compile(model)
    eager(model)
    assert learns(losses(model, *pictures(), batch_size=8, callbacks=recipe("finetune").callbacks))


@pytest.mark.slow
def test_a_generator_of_one_hot_labels():
    finetune = recipe("finetune", learning_rate=3e-3)
    model = backbone()
    finetune.compile(model, run_eagerly=True)
    assert learns(losses(model, Generator(workers=2), callbacks=finetune.callbacks))


@pytest.mark.slow
@pytest.mark.only_on("tensorflow", reason="others run it in the same way, and slower here")
@pytest.mark.parametrize("cardinality_is_known", [True, False])
def test_tf_data(cardinality_is_known):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(pictures()).batch(8)
    if not cardinality_is_known:
        data = data.filter(lambda images, labels: True)
    finetune = recipe("finetune", learning_rate=3e-3)
    model = backbone()
    finetune.compile(model, run_eagerly=True)
    if cardinality_is_known:
        assert learns(losses(model, data, callbacks=finetune.callbacks))
    else:
        with pytest.raises(ValueError, match="steps_per_epoch"):
            losses(model, data, callbacks=finetune.callbacks)
        assert learns(losses(model, data.repeat(), steps_per_epoch=3, callbacks=finetune.callbacks))


@pytest.mark.slow
def test_a_torch_data_loader():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(*map(torch.tensor, pictures()))
    finetune = recipe("finetune", learning_rate=3e-3)
    model = backbone()
    finetune.compile(model, run_eagerly=True)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    assert learns(losses(model, loader, callbacks=finetune.callbacks))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_by_the_global_policy(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        base = backbone(include_top=False)
        head = keras.layers.Dense(CLASSES, "softmax", dtype="float32")(keras.layers.Dropout(0.1)(base.output))
        model = keras.Model(base.input, head)
        finetune = recipe("finetune", learning_rate=3e-3)
        finetune.compile(model, run_eagerly=True)
        assert learns(losses(model, *pictures(), batch_size=8, callbacks=finetune.callbacks))
    finally:
        keras.config.set_dtype_policy(before)


def test_a_subclass_of_model_with_a_backbone_inside():
    class Classifier(keras.Model):
        def __init__(self):
            super().__init__()
            self.base, self.head = backbone(include_top=False), keras.layers.Dense(CLASSES)

        def call(self, images, training=None):
            return self.head(self.base(images, training=training))

    model = Classifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(3e-3), loss, run_eagerly=True)
    assert learns(losses(model, *pictures()))
