"""What arrays do not show: what stands beside a file decides; without it, what is assumed is reported, or refused."""

import json
import warnings

import numpy as np
import pytest
from family_files import load, run, write

from vit_keras import checkpoints, from_checkpoint
from vit_keras.checkpoints import assumptions, timm_models
from vit_keras.checkpoints.families import FAMILIES
from vit_keras.checkpoints.weights import Weights

BASE = {
    "hidden_size": 768,
    "mlp_dim": 3072,
    "patch_size": (16, 16),
    "num_layers": 12,
    "pooling": "token",
    "position": "learned",
    "position_prefix": True,
}
TINY = {"architecture": "vit_tiny_patch16_224", "model_args": {"embed_dim": 64, "num_heads": 2, "depth": 2}}


def beside(tmp_path, case, config, **changes):
    path = write(load(case), tmp_path, config=False)
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


def assert_exact(model, golden):
    difference = np.abs(run(model, golden.inputs) - golden.output).max()
    assert difference < 1e-5 * max(1, np.abs(golden.output).max())


# --- timm's config.json -------------------------------------------------------------------------------------------


def test_the_architecture_beside_a_file_decides(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = from_checkpoint(beside(tmp_path, "timm_vit", TINY))
    assert_exact(model, load("timm_vit"))
    assert model.load_report.assumed == {}


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ({**TINY, "global_pool": "avg"}, "pooling", "gap"),
        ({**TINY, "global_pool": "token"}, "pooling", "token"),
        ({**TINY, "architecture": "vit_base_patch16_siglip_gap_512"}, "num_heads", 2),
        ({**TINY, "model_args": {**TINY["model_args"], "act_layer": "quick_gelu"}}, "mlp_activation", "quick_gelu"),
        ({**TINY, "architecture": "vit_base_patch32_clip_quickgelu_224"}, "mlp_activation", "quick_gelu"),
    ],
)
def test_what_timms_config_json_says(config, field, value, tmp_path):
    found = Weights(beside(tmp_path, "timm_vit", config)).architecture
    assert found[field] == value
    assert found.get("class_token", True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "vit_dwee_patch16_reg1_gap_256"}, "cannot be built: .*lambda_q1 has no place"),
        ({"architecture": "vit_of_tomorrow"}, "'vit_of_tomorrow' is none of timm's"),
        ({"model_args": {"qk_norm": True}}, "model_args has qk_norm=True, whose effect"),
        ({"global_pool": "max"}, "global_pool must be one of 'token', 'avg'.* Received: 'max'"),
        ({"model_args": {}}, "hidden_size=192 contradicts the arrays, which have hidden_size=64"),
    ],
)
def test_what_is_not_understood_is_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}"):
        Weights(beside(tmp_path, "timm_vit", TINY, **changes))


def test_what_timm_computes_otherwise_than_the_authors(tmp_path):
    clip = {"architecture": "vit_base_patch16_clip_224", "model_args": TINY["model_args"]}
    path = beside(tmp_path / "theirs", "timm_clip", clip, pretrained_cfg={"tag": "openai"})
    with pytest.warns(UserWarning, match="mlp_activation='gelu' .*'quick_gelu'"):
        assert from_checkpoint(path).config.mlp_activation == "gelu"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_checkpoint(path, mlp_activation="quick_gelu").config.mlp_activation == "quick_gelu"
        for name, tag in (("vit_base_patch16_clip_quickgelu_224", "openai"), ("vit_base_patch16_clip_224", "laion2b")):
            config = {**clip, "architecture": name}
            from_checkpoint(beside(tmp_path / name, "timm_clip", config, pretrained_cfg={"tag": tag}))


# --- the config.json of transformers ------------------------------------------------------------------------------


def test_what_config_json_leaves_out_is_what_transformers_takes(tmp_path):
    path = beside(tmp_path, "hf_clip_vision", {"model_type": "clip_vision_model", "num_attention_heads": 2})
    found = Weights(path).architecture
    assert (found["mlp_activation"], found["epsilon"]) == ("quick_gelu", 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "altclip"}, "model_type 'altclip' is none"),
        ({"pooler_act": "relu"}, "pooler_act must be 'tanh'"),
        ({"hidden_act": "leaky_relu"}, "hidden_act must be one of"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be 'default'"),
    ],
)
def test_a_value_of_transformers_that_is_not_understood(changes, message, tmp_path):
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}"):
        Weights(beside(tmp_path, "hf_vit", load("hf_vit").meta["config"], **changes))


def test_a_field_that_is_not_known(tmp_path):
    path = beside(tmp_path, "hf_vit", load("hf_vit").meta["config"], window_size=7)
    with pytest.warns(UserWarning, match="not used: window_size"):
        Weights(path)


@pytest.mark.parametrize("case", ["hf_siglip_classifier", "hf_clip_classifier"])
def test_a_classifier_tells_the_pooling(case, tmp_path):
    golden = load(case)
    activation = golden.meta["config"]["vision_config"]["hidden_act"]
    options = {"num_heads": 2, **({"mlp_activation": activation} if "clip" in case else {})}
    assert_exact(from_checkpoint(write(golden, tmp_path, config=False), **options), golden)


# --- a file alone -------------------------------------------------------------------------------------------------


def assumed(family="timm", known=(), **changes):
    return assumptions.assume(FAMILIES[family], {**BASE, **changes}, dict(known))


OPEN = ("num_heads", "mlp_activation", "epsilon", "pooling")


def test_models_that_agree_are_believed():
    found = assumed(hidden_size=192, mlp_dim=768)
    assert found.fields["num_heads"] == 3
    assert (dict(found.doubts), found.others) == (dict.fromkeys(OPEN, ""), None)
    assert found.open == OPEN


def test_models_that_disagree_are_named():
    found = assumed(pooling="gap")
    assert found.fields["num_heads"] == 12
    assert "16 in vit_base_patch16_gap_224" in found.doubts["num_heads"]


def family_and_shown(model):
    """The family of an architecture's file, and its pooling as far as the arrays show it."""
    facts = model.arrays.split()[3:]
    family = FAMILIES[model.family]
    if "map=True" in facts:
        return family, "map"
    if "distillation_token=True" in facts:
        return family, "token+dist"
    return family, "gap" if {"class_token=False", "final_norm=pooled"} & set(facts) else "token"


@pytest.mark.parametrize("cut", [False, True])
def test_every_architecture_is_read_right_asked_doubted_or_refused(cut, monkeypatch):
    for model in timm_models.models().values():
        if not model.arrays:  # refused, as they fit no model of this package
            assert model.refused
            continue
        monkeypatch.setattr(timm_models, "signature", lambda inferred, model=model: model.arrays)
        family, pooling = family_and_shown(model)
        token = "class_token=False" not in model.arrays
        inferred = {"num_layers": 2 if cut else model.num_layers, "pooling": pooling, "class_token": token}
        same = [m for m in timm_models.models().values() if m.arrays == model.arrays]
        try:
            found = assumptions.assume(family, inferred, {})
        except ValueError as error:
            assert model.refused and model.refused in str(error)
            continue
        if model.refused:
            assert model.name in found.others or found.others.endswith(" …"), model.name
            continue
        for field, value in model.fields.items():
            if pooling == {"pooling": "token", "map_prefix": "map"}.get(field, pooling) and (
                token or "prefix" not in field
            ):
                asked = field in family.choices and field not in found.fields
                doubted = field in found.doubts and any(m.name in found.doubts[field] for m in same)
                assert asked or doubted or found.fields[field] == value, (model.name, field)


@pytest.fixture
def two_models(tmp_path, monkeypatch):
    """A file that fits two models, of 2 heads and of 4, and one that cannot be built."""
    path = write(load("timm_vit"), tmp_path)
    arrays = timm_models.signature(Weights(path).architecture)

    def model(name, files, heads, refused="", family="timm"):
        fields = {"num_heads": heads, "mlp_activation": "gelu", "epsilon": 1e-6, "pooling": "token"}
        return timm_models.Model(name, files, 64, 2, arrays, fields, refused, family)

    found = [model("often", 3, 2), model("seldom", 1, 4), model("never", 9, 8, "it is odd")]
    found.append(model("named otherwise", 9, 8, "it is odd", "deit3"))
    table = {m.name: m for m in found}
    monkeypatch.setattr(timm_models, "models", lambda: table)
    return path


def test_a_doubt_is_a_warning(two_models):
    with pytest.warns(UserWarning, match="num_heads=2 .*often; 4 in seldom.*never") as caught:
        model = from_checkpoint(two_models)
    assert [warning.filename for warning in caught] == [__file__]
    assert "named otherwise" not in str(caught[0].message)
    assert_exact(model, load("timm_vit"))
    expected = {"num_heads": 2, "mlp_activation": "gelu", "epsilon": 1e-6, "pooling": "token"}
    assert model.load_report.assumed == expected
    assert "num_heads=2" in str(model.load_report)


def test_no_assumption_of_what_the_caller_says(two_models):
    with pytest.warns(UserWarning) as caught:
        model = from_checkpoint(two_models, num_heads=4)
    report = checkpoints.load_weights(model, two_models)  # whose heads the file does not contradict
    assert (report.fresh, report.assumed) == ((), {})
    report = model.load_report
    assert "num_heads" not in str(caught[0].message)  # but the model that cannot be built is still named
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_checkpoint(
            two_models, num_heads=4, pooling="token", family="timm"
        )  # until the caller says that it is another
    assert set(report.assumed) == {"mlp_activation", "epsilon", "pooling"}


def test_what_is_assumed_of_hugging_faces_file(tmp_path):
    model = from_checkpoint(write(load("hf_vit"), tmp_path, config=False), num_heads=2)
    assert model.load_report.assumed == {"mlp_activation": "gelu", "epsilon": 1e-12}
    assert from_checkpoint(write(load("hf_vit"), tmp_path / "folder")).load_report.assumed == {}


# --- rows of registers in the table of positions ------------------------------------------------------------------
