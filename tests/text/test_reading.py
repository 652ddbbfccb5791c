"""What is read of a text tower, and what is refused."""

import json

import numpy as np
import pytest
from family_files import write_safetensors
from text_files import arrays_of, write

from vit_keras import from_checkpoint, open_image_text
from vit_keras.checkpoints import open_clip_json
from vit_keras.text import open_text
from vit_keras.text.reading import TextWeights


def changed(folder, name="hf_clip", file="config.json", **changes):
    """A golden checkpoint with another `text_config` or `text_cfg`."""
    path = write(name, folder)
    config = json.loads((folder / file).read_text())
    (config["text_config"] if file == "config.json" else config["model_cfg"]["text_cfg"]).update(changes)
    (folder / file).write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("hf_clip", {"model_type": "blip_text_model"}, "'blip_text_model' .*clip"),
        ("hf_clip", {"model_type": "siglip_text_model"}, "contradicts .*Hugging Face's CLIP"),
        ("hf_clip", {"hidden_act": "mish"}, "hidden_act must be one of"),
        ("hf_clip", {"hidden_size": 64}, "hidden_size=64 contradicts.* 32"),
        ("hf_clip", {"num_attention_heads": 5}, "not divisible by num_heads=5"),
        ("hf_clip", {"eos_token_id": [1, 2]}, "eos_id must be"),
        ("hf_clip", {"quantization_config": {"bits": 4}}, "quantization_config must be None"),
        ("open_clip", {"pool_type": "first"}, "pool_type .*'argmax', 'eos', 'last'"),
        ("open_clip", {"embed_cls": True}, "embed_cls must be False"),
        ("open_clip", {"qk_norm": True}, "qk_norm must be False"),
        ("open_clip", {"rope": True}, "rope=True, whose effect is not known"),
        ("open_clip", {"hf_model_name": "roberta-base"}, "'roberta-base' cannot be built"),
    ],
)
def test_what_is_not_understood_is_refused(name, changes, message, tmp_path):
    file = "config.json" if name.startswith("hf") else "open_clip_config.json"
    with pytest.raises(ValueError, match=message):
        TextWeights(changed(tmp_path / "model", name, file, **changes))


def test_the_end_of_texts_that_the_first_files_of_clip_state_is_not_used(tmp_path):
    assert TextWeights(changed(tmp_path / "model", eos_token_id=2)).config.pooling == "argmax"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ("text.cls_emb", "CoCa's text tower has a class token"),
        ("text.transformer.resblocks.0.attn.ln_q.weight", "resblocks.0.attn.ln_q.weight'.*strict"),
    ],
)
def test_arrays_that_are_not_known_are_refused(array, message, tmp_path):
    path = write("open_clip_not_causal", tmp_path / "model", **{array: np.zeros(64, "float32")})
    with pytest.raises(ValueError, match=message):
        open_text(path)


def test_a_tower_like_bert_is_refused(tmp_path):
    names = ("embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight")
    path = write_safetensors(
        tmp_path / "a.safetensors", {f"text_model.{n}": np.zeros((4, 4), "float32") for n in names}
    )
    with pytest.raises(ValueError, match="tower"):
        open_text(path)


def test_an_image_tower_alone_is_no_text_tower(google_npz):
    with pytest.raises(ValueError, match="none of these text towers"):
        open_text(google_npz())


def test_a_text_tower_alone_is_no_pair(tmp_path):
    write("hf_clip", tmp_path)
    arrays = {name: array for name, array in arrays_of("hf_clip").items() if name.startswith("text")}
    path = write_safetensors(tmp_path / "model.safetensors", arrays)
    assert open_text(path).config.num_layers == 2
    with pytest.raises(ValueError, match="no logit_scale"):
        open_image_text(path)


def test_without_a_json_file_the_caller_says_what_the_arrays_do_not_show(tmp_path):
    path = write("open_clip_not_causal", tmp_path / "model", files=False)
    with pytest.raises(ValueError, match="infer mlp_activation"):
        open_text(path)
    with pytest.raises(ValueError, match="Cannot infer pooling"):
        open_text(path, mlp_activation="gelu")
    with pytest.raises(ValueError, match="Cannot infer causal"):
        open_text(path, mlp_activation="gelu", pooling="argmax")
    config = open_text(path, mlp_activation="gelu", pooling="argmax", causal=False).config
    assert (config.pooling, config.causal, config.num_heads) == ("argmax", False, 1)


def test_the_usual_vocabulary_tells_where_the_features_are(tmp_path):
    table = {"token_embedding.weight": np.zeros((49408, 64), "float32")}
    path = write("open_clip", tmp_path / "model", files=False, **table)
    config = TextWeights(path, mlp_activation="quick_gelu").config
    assert (config.pooling, config.causal) == ("argmax", True)


def test_the_image_tower_follows_the_json_file_of_open_clip(tmp_path):
    path = write("open_clip", tmp_path / "model")
    model = from_checkpoint(path)
    assert (model.config.mlp_activation, model.config.num_heads) == ("quick_gelu", 2)
    file = tmp_path / "model" / "open_clip_config.json"
    described = json.loads(file.read_text()) | {"preprocess_cfg": {"mean": [0.5] * 3, "resize_mode": "squash"}}
    file.write_text(json.dumps(described))
    preprocessing = from_checkpoint(path).preprocessing
    assert (preprocessing.mean, preprocessing.crop) == ((0.5, 0.5, 0.5), None)


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({}, "token"),
        ({"pool_type": "tok", "final_ln_after_pool": True}, "token"),
        ({"pool_type": "avg"}, "gap"),
        ({"pool_type": "none"}, "pool_type must be one of 'tok', 'avg'"),
        ({"pool_type": "avg", "final_ln_after_pool": True}, "mean of the patches"),
        ({"attentional_pool": True}, "attentional_pool must be False"),
        ({"qk_norm": True}, "qk_norm must be False"),
        ({"rope": True}, "rope=True, whose effect is not known"),
    ],
)
def test_the_pooling_of_images_is_the_one_that_open_clip_states(changes, pooling, tmp_path):
    path = write("open_clip", tmp_path / "model")
    file = path.parent / "open_clip_config.json"
    described = json.loads(file.read_text())
    described["model_cfg"]["vision_cfg"] |= changes
    file.write_text(json.dumps(described))
    if pooling in ("token", "gap"):
        assert from_checkpoint(path).config.pooling == pooling
    else:
        with pytest.raises(ValueError, match=pooling):
            from_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({}, "gap"),
        ({"timm_pool": "avg", "timm_proj": ""}, "gap"),
        ({"timm_pool": "token"}, "token"),
        ({"timm_pool": ""}, "token"),
        ({"timm_pool": "", "timm_proj": ""}, "projects every token"),
        ({"timm_pool": "avgmax"}, "timm_pool must be one of 'token', 'avg', 'map'"),
        ({"timm_pool": "rot_attn"}, "timm_pool must be one of 'token', 'avg', 'map'"),
    ],
)
def test_the_pooling_of_timm_towers_is_the_one_that_open_clip_states(changes, pooling):
    model = {"vision_cfg": {"timm_model_name": "vit_tiny_patch16_224", **changes}}
    inferred = {"pooling": "token", "hidden_size": 192}
    if pooling in ("token", "gap"):
        assert open_clip_json.image_fields(model, inferred)["pooling"] == pooling
    else:
        with pytest.raises(ValueError, match=pooling):
            open_clip_json.image_fields(model, inferred)


@pytest.mark.parametrize("prefix", ["params/", ""])
@pytest.mark.parametrize("stacked", [True, False])
def test_a_file_of_big_vision_holds_the_same_tower(prefix, stacked, tmp_path):
    expected = TextWeights(write("hf_siglip", tmp_path / "model"))
    path = tmp_path / "siglip.npz"
    np.savez(path, **{f"{prefix}{name}": array for name, array in of_big_vision(expected, stacked).items()})
    found = TextWeights(path)
    assert found.config == expected.config
    assert set(found) == set(expected)
    for name in found:
        np.testing.assert_array_equal(found[name].reshape(-1), expected[name].reshape(-1), err_msg=name)


def of_big_vision(weights, stacked):
    """The arrays of a text tower as Flax has them: the heads apart, and the blocks in one array or in many."""
    flax = {"t": weights["logit_scale"], "b": weights["logit_bias"], "txt/Embed_0/embedding": weights[EMBEDDING]}
    flax["txt/pos_embedding"] = weights["Transformer/posembed_input/pos_embedding"]
    blocks = {}
    for name in weights:
        if name.startswith("head/"):
            flax[f"txt/{name}"] = weights[name]
        elif "encoder_norm" in name:
            flax[f"txt/Encoder_0/encoder_norm/{name.rpartition('/')[2]}"] = weights[name]
        elif "encoderblock" in name:
            _, block, *inner = name.split("/")
            array = weights[name]
            if inner[0].startswith("Multi"):
                shape = {"bias": (2, -1), "kernel": (-1, 2, 16)}[inner[2]]
                shape = {"bias": (-1,), "kernel": (2, 16, 32)}[inner[2]] if inner[1] == "out" else shape
                array = array.reshape(shape)
            blocks.setdefault("/".join(LINEN.get(part, part) for part in inner), {})[block] = array
    for inner, each in blocks.items():
        if stacked:
            flax[f"txt/Encoder_0/encoderblock/{inner}"] = np.stack([each[block] for block in sorted(each)])
        else:
            flax |= {f"txt/Encoder_0/{block}/{inner}": array for block, array in each.items()}
    return flax


EMBEDDING = "embedding/embeddings"
LINEN = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}


@pytest.mark.parametrize("name", ["embedding/embeddings", "head/kernel"])
def test_an_array_of_another_shape_is_an_error_that_names_the_file(name, tmp_path, monkeypatch):
    path = write("hf_clip", tmp_path / "model")
    source = TextWeights(path)
    wrong = source._parts["Transformer/encoder_norm/scale"]._replace(rule=source._parts[name].rule, index=7)
    source._parts[name] = wrong
    with pytest.raises(ValueError, match="shape") as caught:
        source[name]
    assert str(caught.value).count(str(path)) == 1
