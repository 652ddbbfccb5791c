"""What a model costs, against models that are built, products that are counted, and memory that is measured."""

import json
import re

import keras
import pytest
from support import ROOT, script

import vit_keras
from vit_keras import vit
from vit_keras.backend.sharding import MIN_SIZE
from vit_keras.cli import main
from vit_keras.config import ViTConfig
from vit_keras.cost import cost
from vit_keras.cost.step import SIZES, config_of
from vit_keras.cost.weights import weights_of
from vit_keras.variants import CIFAR10, VARIANTS

SMALL = ViTConfig(image_size=(32, 48), patch_size=8, num_layers=3, hidden_size=32, num_heads=4, mlp_dim=64, classes=7)
MIXER = {"tokens_mlp_dim": 24, "pooling": "gap", "position": None}
ROPE = {"position": None, "rope_theta": 100.0}
FIELDS = {
    "plain": {},
    "gated": {"gated_mlp": True, "mlp_activation": "silu", "mlp_norm": True},
    "layer scale": {"layer_scale": 1e-5, "post_norm": True, "attention_norm": True},
    "registers": {"registers": 4, "register_positions": True},
    "no biases": {"qkv_bias": False, "out_bias": False, "head_bias": False, "patch_bias": False},
    "no key bias": {"key_bias": False, "dim_head": 16},
    "MAP head": {"pooling": "map", "map_mlp_dim": 48, "map_heads": 2},
    "means": {"pooling": "token+gap", "final_norm": "pooled", "mlp_activation": "gelu"},
    "distilled": {"pooling": "token+dist", "distillation_token": True},
    "features": {"include_top": False, "mlp_activation": "quick_gelu"},
    "dropped patches": {"include_top": False, "pooling": None, "patch_dropout": 0.5},
    "representation": {"representation_size": 24, "pre_norm": True, "patch_norm": True},
    "relative": {"relative_positions": True, "position": None},
    "rope": {**ROPE, "rope_kind": "mixed"},
    "dropout": {"dropout": 0.1, "emb_dropout": 0.0, "stochastic_depth": 0.1},
    "attention dropout": {"attention_dropout": 0.1, "emb_dropout": 0.1},
    "mixer": MIXER,
    "hybrid": {"resnet": (), "patch_size": 2},
    "ResNet": {"resnet": (1, 2), "patch_size": 2, "image_size": 64, "num_layers": 1},
}


def tiny(name):
    return SMALL.replace(**FIELDS[name])


@pytest.fixture(scope="module")
def check():
    """The tool that measures."""
    pytest.importorskip("torch")
    return script(ROOT / "benchmarks" / "lab" / "cost.py")


@pytest.mark.any_backend
@pytest.mark.few_cases(3)
@pytest.mark.parametrize("variant", [*VARIANTS.values(), CIFAR10], ids=lambda config: config.name)
def test_parameters_of_published_sizes(variant):
    two = variant.replace(num_layers=2)
    counted = vit.build(two).count_params()
    assert cost(two).parameters == counted
    block = sum(w.size for w in weights_of(two, False) if "encoderblock_1/" in w.path)
    assert cost(variant).parameters == counted + (variant.num_layers - 2) * block


@pytest.mark.any_backend
@pytest.mark.parametrize("name", FIELDS)
def test_variables_operations_and_memory_are_those_of_the_model(name, request):
    config = tiny(name)
    model = vit.build(config)
    built = sorted((weight.path, tuple(weight.shape)) for weight in model.weights)
    assert sorted((weight.path, weight.shape) for weight in weights_of(config, False)) == built
    assert cost(config).parameters == model.count_params()
    if keras.backend.backend() != "torch":
        return  # PyTorch counts and measures
    import torch

    check, images = request.getfixturevalue("check"), torch.zeros(2, *config.image_size, 3)
    assert check.flops(lambda: model(images)) == cost(config, batch_size=2).flops
    step = cost(config, batch_size=2, training=True)
    if config.resnet is not None:
        with torch.no_grad():
            peak = check.peak(lambda: model(images, training=False), model, images)
        assert cost(config, batch_size=2).memory_bytes == pytest.approx(peak, rel=0.3)
    estimated = config.resnet is not None or config.pooling == "map" or config.position is None
    assert check.kept(model, images) == pytest.approx(step.activation_bytes, rel=0.1 if estimated else 0.004)


def test_a_step_of_training():
    one, two = (cost("vit_b16", batch_size=n, training=True) for n in (1, 2))
    forward, size = cost("vit_b16", batch_size=2), 4 * one.parameters
    embedding = 2 * 196 * 16 * 16 * 3 * 768
    assert two.flops == 3 * forward.flops - 2 * embedding == 2 * one.flops
    assert (one.weight_bytes, one.gradient_bytes, one.optimizer_bytes) == (size, size, 2 * size)
    assert one.update_bytes == 0  # by one kernel
    assert one.memory_bytes == 4 * size + one.activation_bytes
    by_keras = cost("vit_b16", training=True, optimizer="lion")
    assert by_keras.activation_bytes < by_keras.update_bytes == 2 * size  # so the peak is the update
    assert by_keras.memory_bytes == (3 + 2) * size
    assert cost("vit_b16", training=True, dtype="bfloat16").update_bytes == 3 * size / 2
    assert cost("vit_b16", training=True, optimizer="sgd").optimizer_bytes == size
    halved = cost("vit_b16", training=True, dtype="bfloat16")
    assert halved.weight_bytes == size / 2 and halved.activation_bytes == pytest.approx(
        one.activation_bytes / 2, rel=0.01
    )
    again = cost("vit_b16", batch_size=2, training=True, remat=True)
    assert again.activation_bytes < two.activation_bytes / 4 and 1.3 < again.flops / two.flops < 4 / 3


def test_data_parallel():
    alone, shared = cost("vit_s16", training=True), cost("vit_s16", batch_size=8, devices=8, training=True)
    assert shared.memory_bytes == alone.memory_bytes and shared.flops == 8 * alone.flops
    assert (alone.sent_bytes, shared.sent_bytes) == (0, 2 * 7 / 8 * 4 * alone.parameters)
    assert cost("vit_s16", batch_size=8, devices=8).sent_bytes == 0


def test_fully_sharded():
    whole = cost("vit_h14", training=True)
    step, predicting = (cost("vit_h14", devices=8, strategy="fsdp", training=trains) for trains in (True, False))
    small = sum(w.size for w in weights_of(SIZES["vit_h14"], True) if w.size < MIN_SIZE)
    assert step.weight_bytes == 4 * (small + (whole.parameters - small) / 8)
    assert step.weight_bytes + step.optimizer_bytes <= 1.05 / 8 * (whole.weight_bytes + whole.optimizer_bytes)
    assert predicting.sent_bytes == 7 / 8 * 4 * (whole.parameters - small)
    assert step.sent_bytes == 7 / 8 * 4 * (3 * (whole.parameters - small) + 2 * small)


def test_tensor_parallel():
    options = {"strategy": "tensor", "training": True, "devices": 8, "batch_size": 4}
    step, alone = cost("vit_l16", image_size=224, model_devices=4, **options), cost("vit_l16", image_size=224)
    block = 4 * 1024**2 + 3 * 1024 + 2 * 1024 * 4096 + 4096  # what is cut: kernels, and biases of the columns
    cut = 24 * block + 1024 * 1000
    assert step.weight_bytes == 4 * (alone.parameters - cut + cut / 4)
    tokens = 2 * 197 * 1024 * 4  # of a group of four devices
    gradients = 2 * 1 / 2 * (alone.parameters - cut + cut / 4) * 4
    assert step.sent_bytes == 24 * (2 + 4) * 2 * 3 / 4 * tokens + gradients
    assert step.activation_bytes < cost("vit_l16", image_size=224, batch_size=2, training=True).activation_bytes


def test_what_a_model_may_be():
    assert config_of(SMALL) is SMALL
    assert config_of(vit.build(SMALL)) == SMALL
    assert config_of("vit-b16") is config_of("vit_b16") is VARIANTS["B_16"]
    published = config_of("B_16/augreg-imagenet21k")
    assert published.classes == 21843 and published.image_size == (224, 224)
    assert cost("vit_g14").parameters == 1_012_611_432
    any_size = SMALL.replace(image_size=None, position_grid=(3, 5))
    assert cost(vit.build(any_size), image_size=64).parameters == vit.build(any_size).count_params()
    square = vit.build(any_size.replace(position_grid=(4, 4))).count_params()
    assert cost(vit.build(any_size), image_size=64, position_grid=4).parameters == square
    assert cost(vit.build(SMALL), position_grid=(5, 5)).parameters == vit.build(SMALL).count_params()
    with pytest.raises(ValueError, match="has no ViTConfig"):
        cost(keras.models.clone_model(vit.build(SMALL)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: keras.Sequential([model, keras.layers.Dense(3)]), "out the layers around it"),
        (lambda model: model.quantize("int8"), "weights are int8"),
        (lambda model: vit_keras.training.add_lora(model), "out its low-rank adapters"),
    ],
    ids=["around", "int8", "LoRA"],
)
def test_what_the_config_of_a_model_does_not_say(change, words):
    model = vit.build(SMALL)
    changed = change(model)
    with pytest.warns(UserWarning, match=words):
        assert config_of(changed if isinstance(changed, keras.Model) else model) == SMALL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "zero"}, "strategy"),
        ({"devices": 0}, "devices"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"dtype": "int8"}, "dtype"),
        ({"optimizer": "adamwx"}, "optimizer"),
        ({"image_size": 30}, "30"),
        ({"hidden": 3}, "Unknown option hidden"),
        ({"model_devices": 2}, 'model_devices is for strategy="tensor"'),
        ({"strategy": "tensor", "devices": 8}, "must divide the devices"),
        ({"merge_tokens": 2}, "Pass merge_tokens=0"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        cost(SMALL, **options)


def test_any_size_needs_a_size():
    config = SMALL.replace(image_size=None, position_grid=(4, 4))
    with pytest.raises(ValueError, match="pass image_size"):
        cost(config)
    assert cost(config, image_size=32).tokens == 17


def test_on_the_command_line(capsys):
    arguments = ["cost", "vit_l16", "--image-size", "224", "--batch-size", "64", "--training", "--devices", "8"]
    arguments += ["--strategy", "fsdp", "--set", "remat=true", "--set", "dropout=0"]
    assert main([*arguments, "--json"]) == 0
    options = {"image_size": 224, "batch_size": 64, "training": True, "devices": 8, "strategy": "fsdp"}
    expected = cost("vit_l16", **options, remat=True, dropout=0)
    assert json.loads(capsys.readouterr().out) == expected.to_dict()
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"{expected.parameters:,}" in printed and "on 8 devices (fsdp)" in printed and "on each device" in printed
    assert main(["cost", "vit_s16", "--training", "--optimizer", "lion"]) == 0
    printed = capsys.readouterr().out
    assert "sends" not in printed and "update of the weights" in printed and "activations" not in printed


def test_the_page_runs_and_has_the_tables(check, capsys):
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(snippet, "cost.md", "exec"), {})
    assert capsys.readouterr().out == "86 TFLOP, 14 GB\n"
    assert "\n".join(check.computed()) in page
    measured = page.split("<!-- measured -->")[1].split("<!-- end")[0]
    sent = page.split("<!-- sent -->")[1].split("<!-- end")[0]
    ratios = [float(ratio) for ratio in re.findall(r"\((\d\.\d+)\)", measured + sent)]
    assert len(ratios) == 3 * 2 * 3 * len(check.QUANTITIES) + 3 * 2 * 3
    assert all(0.85 <= ratio <= 1.15 for ratio in ratios)
