"""Layer-wise rates, decay of weights, unfreezing and the schedule, on variables alone: no model is needed."""

import contextlib

import keras
import numpy as np
import pytest

from vit_keras.training.optimizers import LayerwiseAdamW, LayerwiseLamb, LayerwiseSGD, WarmupDecay, depths, is_decayed
from vit_keras.training.recipes import recipe

pytestmark = pytest.mark.core(first=("test_adamw_is_adamw_with_these_rates",))

# Path: depth in a ViT of two blocks, whether its weights decay.
PATHS = {
    "embedding/kernel": (0, True),
    "class_token/cls": (0, False),
    "Transformer_posembed_input/pos_embedding": (0, False),
    "Transformer_encoderblock_0/MlpBlock_3/Dense_0/kernel": (1, True),
    "Transformer_encoderblock_0/MlpBlock_3/Dense_0/bias": (1, False),
    "Transformer_encoderblock_1/LayerScale_0/gamma": (2, False),
    "Transformer_encoderblock_1/MultiHeadDotProductAttention_1/query/kernel": (2, True),
    "Transformer_encoder_norm/gamma": (2, False),
    "head/kernel": (3, True),
    "my_dense/bias": (3, False),
}


def variables(paths=PATHS):
    """Variables of these paths, all ones; three-dimensional where the ViT's are."""
    made = []
    for path in paths:
        *scopes, name = path.split("/")
        shape = {"cls": (1, 1, 2), "pos_embedding": (1, 3, 2), "kernel": (3, 2), "embeddings": (3, 2)}.get(name, (2,))
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            made.append(keras.Variable(np.ones(shape, "float32"), name=name))
    return made


def first_values(tensors):
    return [float(keras.ops.convert_to_numpy(tensor).ravel()[0]) for tensor in tensors]


def ones(like):
    return [keras.ops.ones(variable.shape) for variable in like]


def test_depth_and_decay_of_every_kind_of_variable():
    made = variables()
    assert [variable.path for variable in made] == list(PATHS)
    assert depths(made) == [depth for depth, _ in PATHS.values()]
    assert [is_decayed(variable) for variable in made] == [decayed for _, decayed in PATHS.values()]


@pytest.mark.parametrize("prefix", ["", "text/"])
def test_each_tower_is_counted_down_from_its_head(prefix):
    ends = ["Transformer_encoder_norm/gamma", "head/kernel"]
    image = ["embedding/kernel", "class_token/cls", *(f"encoderblock_{n}/kernel" for n in range(4)), *ends]
    table = ["embedding/embeddings", "Transformer_posembed_input/pos_embedding"]
    text = [prefix + path for path in [*table, *(f"encoderblock_{n}/kernel" for n in range(2)), *ends]]
    deep, shallow = [0, 0, 1, 2, 3, 4, 4, 5], [2, 2, 3, 4, 4, 5]
    for paths, expected in (([*image, *text], [*deep, *shallow]), ([*text, *image], [*shallow, *deep])):
        assert depths(variables(["logit_scale", *paths])) == [5, *expected]
    last_block = ["encoderblock_3/kernel", *ends]
    assert depths(variables([*last_block, *text])) == [4, 4, 5, *shallow]  # blocks 0 to 2 are frozen


def test_adamw_is_adamw_with_these_rates():
    made, steps = variables(), 3
    rng = np.random.default_rng(0)
    gradients = [[rng.normal(size=tuple(v.shape)).astype("float32") for v in made] for _ in range(steps)]
    optimizer = LayerwiseAdamW(0.01, layer_decay=0.7, weight_decay=0.1, epsilon=1e-8)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradient], made)
    for n, (variable, (depth, decayed)) in enumerate(zip(made, PATHS.values())):
        rate, m, v, x = 0.01 * 0.7 ** (3 - depth), 0, 0, np.ones(tuple(variable.shape))
        for step in range(1, steps + 1):
            g = gradients[step - 1][n].astype("float64")
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            x = x * (1 - rate * 0.1 * decayed)
            x = x - rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        # float32; Keras adds epsilon at another place, which changes 1e-6 of a step
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), x, atol=2e-6)


# What timm 1.0.31 gives the same variables of a ViT of three blocks, as lr_scale and weight_decay of
# param_groups_layer_decay(model, weight_decay=0.1, layer_decay=0.75, no_weight_decay_list=model.no_weight_decay()).
TIMM = {
    "class_token/cls": (0.31640625, 0.0),
    "register_tokens/registers": (0.31640625, 0.0),
    "Transformer_posembed_input/pos_embedding": (0.31640625, 0.0),
    "embedding/bias": (0.31640625, 0.0),
    "embedding/kernel": (0.31640625, 0.1),
    "Transformer_encoderblock_0/LayerNorm_0/gamma": (0.421875, 0.0),
    "Transformer_encoderblock_0/LayerScale_0/gamma": (0.421875, 0.0),
    "Transformer_encoderblock_0/MlpBlock_3/Dense_0/kernel": (0.421875, 0.1),
    "Transformer_encoderblock_2/MlpBlock_3/Dense_1/bias": (0.75, 0.0),
    "Transformer_encoderblock_2/MultiHeadDotProductAttention_1/out/kernel": (0.75, 0.1),
    "Transformer_encoder_norm/gamma": (0.75, 0.0),
    "head/kernel": (1.0, 0.1),
    "head/bias": (1.0, 0.0),
}


def test_rates_and_decays_are_those_of_timm():
    made = variables(TIMM)
    optimizer = LayerwiseSGD(1.0, layer_decay=0.75, weight_decay=0.1)
    optimizer.apply([0 * gradient for gradient in ones(made)], made)
    decayed = first_values(made)
    np.testing.assert_allclose(decayed, [1 - rate * decay for rate, decay in TIMM.values()], rtol=1e-6)  # float32
    optimizer = LayerwiseSGD(1.0, layer_decay=0.75)
    optimizer.apply(ones(made), made)
    np.testing.assert_allclose(first_values(made), np.subtract(decayed, [rate for rate, _ in TIMM.values()]), atol=1e-6)


@pytest.mark.parametrize(
    "optimizer", [LayerwiseAdamW, pytest.param(LayerwiseLamb, marks=pytest.mark.slow), LayerwiseSGD]
)
def test_layers_are_unfrozen_from_above(optimizer):
    made = variables()
    optimizer = optimizer(WarmupDecay(0.1, decay="constant", steps=4), unfreeze_at=(0.25, 0.5, 0.75))
    moved = []
    for _ in range(4):
        before = first_values(made)
        optimizer.apply(ones(made), made)
        moved.append([a != b for a, b in zip(before, first_values(made))])
    starts = {3: 0, 2: 1, 1: 2, 0: 3}  # depth: step
    assert moved == [[step >= starts[depth] for depth, _ in PATHS.values()] for step in range(4)]


# optax 0.2.8: warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=2, decay_steps=10); timm 1.0's CosineLRScheduler with
# t_initial=8, warmup_t=2, warmup_prefix=True has the same numbers.
OPTAX = (0.0, 0.5, 1.0, 0.9619398, 0.8535534, 0.6913417, 0.5, 0.3086583, 0.1464466, 0.0380602, 0.0)


def test_the_schedule_is_that_of_optax_with_a_warm_up_one_step_earlier():
    ours = WarmupDecay(1.0, warmup=0.2, steps=10)
    expected = [*OPTAX[1:3], *OPTAX[2:]]  # warm-up: the rate of the next step
    np.testing.assert_allclose([float(ours(step)) for step in range(11)], expected, atol=1e-6)  # float32
    assert [round(float(WarmupDecay(1.0, decay="linear", steps=4)(s)), 6) for s in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert [float(WarmupDecay(1.0, 0.5, "constant", steps=4)(s)) for s in (0, 1, 2, 4)] == [0.5, 1, 1, 1]


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("steps", [*range(2, 12), 1000])
def test_the_schedule_is_that_of_keras_in_every_budget(steps, final):
    for warmup in range(1, min(steps, 12)):
        decay = keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, final, "", 0.3, warmup)
        ours = WarmupDecay(0.3, warmup / steps, final=final, steps=steps)
        tried = sorted({*range(min(steps, 14)), steps - 1})
        expected = [float(decay(step + 1 if step < warmup else step)) for step in tried]
        np.testing.assert_allclose([float(ours(step)) for step in tried], expected, atol=1e-6)  # float32


@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulated_batches_have_the_rates_of_as_many_steps(accumulate):
    schedule = WarmupDecay(1.0, 0.4)
    plain, parts = LayerwiseSGD(schedule), LayerwiseSGD(schedule, gradient_accumulation_steps=accumulate)
    rates = []
    for optimizer, together in ((plain, 1), (parts, accumulate)):
        made, seen = variables(["head/kernel"]), []
        optimizer.begin(5 * together)
        for _ in range(5):
            for _ in range(together):
                seen.append(float(optimizer.learning_rate))
                optimizer.apply(ones(made), made)
        rates.append(seen[together - 1 :: together])
    np.testing.assert_allclose(*rates, rtol=1e-6)


def test_too_few_batches_to_accumulate_are_named():
    optimizer = LayerwiseSGD(WarmupDecay(0.1), gradient_accumulation_steps=4)
    with pytest.warns(UserWarning, match="3 batches.* 4 are accumulated"):
        optimizer.begin(3)


def test_a_schedule_without_an_end_says_what_to_do():
    made = variables()
    optimizer = LayerwiseSGD(WarmupDecay(0.1))
    with pytest.raises(ValueError, match=r"callbacks=recipe\.callbacks"):
        optimizer.apply(ones(made), made)
    with pytest.raises(ValueError, match=r"callbacks=recipe\.callbacks"):
        WarmupDecay(0.1)(3)
    optimizer.begin(10)
    assert float(optimizer.learning_rate) == pytest.approx(0.1)


def test_a_training_begins_anew_or_goes_on():
    made = variables()
    optimizer = LayerwiseSGD(WarmupDecay(1.0, decay="linear"))
    optimizer.begin(4)
    for _ in range(4):
        optimizer.apply(ones(made), made)
    assert float(optimizer.learning_rate) == 0
    optimizer.begin(2)
    assert float(optimizer.learning_rate) == 1
    optimizer.apply(ones(made), made)
    assert float(optimizer.learning_rate) == 0.5
    optimizer.begin(4, done=1)  # the same training, and two more steps after all
    assert float(optimizer.learning_rate) == 0.75


@pytest.mark.parametrize("kind", [LayerwiseAdamW, LayerwiseLamb, LayerwiseSGD])
def test_an_optimizer_is_made_again_from_its_config(kind):
    optimizer = kind(WarmupDecay(0.1, 0.2, final=0.3), layer_decay=0.5, unfreeze_at=(0.1, 0.2), global_clipnorm=1.0)
    config = keras.saving.serialize_keras_object(optimizer)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is kind
    assert again.get_config() == optimizer.get_config()


def test_the_end_of_a_training_is_saved():
    made = variables()
    optimizer, again = (LayerwiseSGD(WarmupDecay(1.0, decay="linear")) for _ in range(2))
    for one in (optimizer, again):
        one.build(made)
    optimizer.begin(4)
    optimizer.apply(ones(made), made)
    store = {}
    optimizer.save_own_variables(store)
    again.load_own_variables(store)
    assert again.has_horizon
    assert float(again.learning_rate) == 0.75


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerwiseSGD(layer_decay=0), "layer_decay must be above 0"),
        (lambda: LayerwiseSGD(WarmupDecay(0.1), unfreeze_at=(0.5, 0.2)), "increasing fractions"),
        (lambda: LayerwiseSGD(WarmupDecay(0.1), unfreeze_at=1.5), "increasing fractions"),
        (lambda: LayerwiseSGD(0.1, unfreeze_at=0.5), "a WarmupDecay"),
        (
            lambda: LayerwiseSGD(WarmupDecay(0.1), unfreeze_at=0.5).build(variables(["dense/kernel"])),
            "none of the variables",
        ),
        (lambda: WarmupDecay(0.1, steps=0), "positive integer"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rate_that_follows_a_schedule_cannot_be_set():
    scheduled, plain = LayerwiseSGD(WarmupDecay(0.1, steps=4)), LayerwiseSGD(0.1)
    for optimizer in (scheduled, keras.optimizers.LossScaleOptimizer(LayerwiseSGD(WarmupDecay(0.1, steps=4)))):
        with pytest.raises(TypeError, match="ReduceLROnPlateau"):
            optimizer.learning_rate = 0.05
    plain.learning_rate = 0.05
    assert float(plain.learning_rate) == pytest.approx(0.05)
    for optimizer in (scheduled, plain):
        optimizer.learning_rate = WarmupDecay(0.2, decay="linear", warmup=0, steps=100)
        optimizer.iterations.assign(50)
        assert float(optimizer.learning_rate) == pytest.approx(0.1)  # half of its steps are done


def test_an_h5_file_of_a_model_that_a_recipe_compiled_opens(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    finetune = recipe("finetune", epochs=1)
    finetune.compile(model)
    data = np.zeros((2, 4), "float32"), np.array([0, 1])
    model.fit(*data, verbose=0, callbacks=finetune.callbacks)
    model.save(tmp_path / "model.h5")
    opened = keras.models.load_model(tmp_path / "model.h5")
    np.testing.assert_array_equal(opened.get_weights()[0], model.get_weights()[0])
    opened.fit(*data, verbose=0, callbacks=finetune.callbacks)
    assert int(opened.optimizer.iterations) == 1  # the file has no state of the optimizer
