"""The rules of a family alone: names and layouts in both directions, and which family a file belongs to."""

import numpy as np
import pytest

from vit_keras.checkpoints.families import rules
from vit_keras.checkpoints.families.rules import Family, array, bind, conv, detect, joined, linear, norm

pytestmark = pytest.mark.any_backend


def family(*parts, **options):
    given = {"name": "small", "title": "Small", "detect": ("cls",)} | options
    return Family(rules=tuple(rule for part in parts for rule in part), **given)


class Weights(dict):
    """Weights by their canonical names, with their shapes, as `Arrays` takes them."""

    @property
    def shapes(self):
        return {name: value.shape for name, value in self.items()}


def bound(of, **shapes):
    return bind(of, shapes, shapes.__getitem__)


def named(shapes, of):
    return bind(of, shapes, shapes.__getitem__)


def numbered(*shape):
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


# --- layouts ----------------------------------------------------------------------------------------------------


def test_a_linear_layer_has_the_layout_of_torch():
    torch = pytest.importorskip("torch")
    layer, inputs = torch.nn.Linear(3, 5), numbered(2, 3)
    kernel, bias = (rules.LINEAR.read(a.detach().numpy(), 1)[0] for a in (layer.weight, layer.bias))
    # One product of three terms in float32: rounding of the order of 1e-7.
    np.testing.assert_allclose(inputs @ kernel + bias, layer(torch.tensor(inputs)).detach().numpy(), atol=1e-5)


def test_queries_keys_and_values_have_the_layout_of_torch():
    torch = pytest.importorskip("torch")
    attention = torch.nn.MultiheadAttention(4, 2)
    parts = rules.LINEAR.read(attention.in_proj_weight.detach().numpy(), 3)
    for part, theirs in zip(parts, attention.in_proj_weight.detach().chunk(3)):
        np.testing.assert_array_equal(part, theirs.numpy().T)


def test_a_convolution_has_the_layout_of_torch():
    torch = pytest.importorskip("torch")
    layer, image = torch.nn.Conv2d(3, 5, (2, 4)), numbered(2, 4, 3)
    (kernel,) = rules.CONV.read(layer.weight.detach().numpy(), 1)
    assert kernel.shape == (2, 4, 3, 5)
    theirs = layer(torch.tensor(image.transpose(2, 0, 1)[None])) - layer.bias[:, None, None]
    # A sum of 24 terms up to 23 in size in float32.
    np.testing.assert_allclose(np.einsum("dai,daio->o", image, kernel), theirs.detach().numpy()[0, :, 0, 0], atol=1e-4)


@pytest.mark.parametrize(
    ("op", "ours", "theirs"),
    [
        (rules.AS_IS, (2, 3), (2, 3)),
        (rules.TRANSPOSED, (2, 3), (3, 2)),
        (rules.LINEAR, (2, 3), (3, 2)),
        (rules.LINEAR, (3,), (3,)),
        (rules.CONV, (2, 4, 3, 5), (5, 3, 2, 4)),
        (rules.HEADS, (5, 6), (5, 2, 3)),
        (rules.HEADS, (6,), (2, 3)),
        (rules.FROM_HEADS, (6, 5), (2, 3, 5)),
        (rules.CHANNELS, (3,), (1, 1, 1, 3)),
        (rules.TOKENS, (1, 4, 3), (1, 4, 3)),
        (rules.TABLE, (1, 4, 3), (4, 3)),
        (rules.VECTOR, (1, 1, 3), (3,)),
    ],
)
def test_a_layout_is_written_and_read_back(op, ours, theirs):
    weight = numbered(*ours)
    written = op.write([weight], 2)
    assert written.shape == theirs
    (read,) = op.read(written, 1)
    np.testing.assert_array_equal(read, weight)


def test_several_layers_in_one_array_are_written_and_read_back():
    weights = [numbered(2, 3) + n for n in range(3)]
    written = rules.LINEAR.write(weights, 2)
    np.testing.assert_array_equal(written, np.concatenate([weight.T for weight in weights]))
    np.testing.assert_array_equal(rules.LINEAR.read(written, 3), weights)


# --- rules ------------------------------------------------------------------------------------------------------


def by_name(parts):
    return {rule.source: (rule.targets, rule.op) for rule in parts}


def test_rules_of_the_layers_of_torch():
    assert by_name(linear("fc", "dense", None)) == {
        "fc.weight": (("dense/kernel", None), rules.LINEAR),
        "fc.bias": (("dense/bias", None), rules.LINEAR),
    }
    assert by_name(joined("attn", "q", "k", "v")) == {
        "attn.in_proj_weight": (("q/kernel", "k/kernel", "v/kernel"), rules.LINEAR),
        "attn.in_proj_bias": (("q/bias", "k/bias", "v/bias"), rules.LINEAR),
    }
    assert by_name(conv("patch", "embedding")) == {
        "patch.weight": (("embedding/kernel",), rules.CONV),
        "patch.bias": (("embedding/bias",), rules.AS_IS),
    }
    assert by_name(norm("norm1", "ln")) == {
        "norm1.weight": (("ln/scale",), rules.AS_IS),
        "norm1.bias": (("ln/bias",), rules.AS_IS),
    }
    assert by_name(array("cls", "cls", op=rules.TOKENS)) == {"cls": (("cls",), rules.TOKENS)}


def test_a_packed_gated_mlp_is_recognized_by_its_shapes():
    is_packed = rules.packed("wide", "narrow")
    for wide, narrow, expected in [
        ((16, 4), (4, 8), True),
        ((8, 4), (4, 8), False),
        ((17, 4), (4, 8), False),
        (None, (4, 8), False),
        ((16, 4), None, False),
        (None, None, False),
    ]:
        assert is_packed({"wide": wide, "narrow": narrow}.get) is expected


# --- the prefix and the family of a file --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cls", "pos"], ""),
        (["module.cls", "module.pos"], "module."),
        (["model/cls", "model/pos"], "model/"),
        (["b.cls", "b.pos", "a.x.cls", "a.x.pos"], "b."),
        (["module.cls", "module.pos", "net.cls", "net.pos"], "net."),
        (["b.cls", "b.pos", "a.cls", "a.pos"], "a."),
        (["long.cls", "long.pos", "cls", "pos"], ""),
        (["mycls", "mypos"], None),
        (["module.cls", "pos"], None),
        (["cls"], None),
        (["module.cls", "module.pos", "module.dist"], None),
        (["module.cls", "module.pos", "dist"], "module."),
        ([], None),
    ],
)
def test_prefix_of_the_names_of_a_file(names, expected):
    assert family(detect=("cls", "pos"), absent=("dist",)).prefix(names) == expected


def test_family_of_a_file():
    few = family(array("cls", "cls"), name="few")
    many = family(array("cls", "cls"), array("pos", "pos"), name="many")
    marked = family(array("cls", "cls"), array("pos", "pos"), name="marked", marks=("pos",))
    hidden = family(array("cls", "cls"), array("pos", "pos"), name="hidden", marks=("pos",), by_name_only=True)
    other = family(name="other", detect=("token",))
    every = (few, many, hidden, other)

    def found(families, *names):
        chosen = detect(families, iter(names), lambda name: (1,))
        return chosen and chosen.name

    assert found(every, "cls", "pos") == "many", "it knows more of the names"
    assert found((*every, marked), "cls", "pos") == "marked", "it knows as many, and has a mark"
    assert found((marked, *every), "cls") == "few", "the mark is missing; of equal ones the first"
    assert found((hidden, other), "cls", "pos") is None
    assert found((hidden, other), "token") == "other"
    assert found((), "cls") is None


# --- reading ----------------------------------------------------------------------------------------------------


def test_numbers_in_names():
    blocks = family(array("cls", "cls"), linear("layers.{i+1}.heads.{s}", "block_{i}/head_{s}"))
    found = bound(blocks, **{"m.cls": (1,), "m.layers.1.heads.0.weight": (2, 3), "m.layers.12.heads.3.bias": (2,)})
    assert {target: (part.source, part.block) for target, part in found.parts.items()} == {
        "cls": ("m.cls", None),
        "block_0/head_0/kernel": ("m.layers.1.heads.0.weight", None),
        "block_11/head_3/bias": ("m.layers.12.heads.3.bias", None),
    }
    assert (found.unknown, found.ignored, found.doubled, found.told) == ((), (), (), {})


def test_the_first_rule_that_fits_is_used():
    small = family(
        array("cls", "cls"),
        array("wide", "gate", "value", op=rules.LINEAR, when=rules.packed("wide", "narrow")),
        array("wide", "dense"),
        array("narrow", "out"),
    )
    assert {*named({"m.cls": (1,), "m.wide": (8, 4), "m.narrow": (3, 4)}, small).parts} == {
        "cls",
        "gate",
        "value",
        "out",
    }
    assert {*named({"m.cls": (1,), "m.wide": (4, 4), "m.narrow": (3, 4)}, small).parts} == {"cls", "dense", "out"}
    assert {*named({"m.cls": (1,), "m.wide": (8, 4), "narrow": (3, 4)}, small).parts} == {"cls", "dense"}, "outside"


def test_names_outside_of_the_prefix_are_for_the_outer_rules():
    small = family(array("cls", "cls"), array("scale", "inner"), outer=array("scale", "outer") + array("fc", "fc"))
    found = named({"m.cls": (1,), "m.scale": (1,), "scale": (2,), "cls": (1,)}, small)
    assert found.parts["cls"].source == "cls", "the shortest prefix is none"
    found = named({"m.cls": (1,), "m.scale": (1,), "scale": (2,), "pos": (1,), "m.fc": (3,)}, small)
    assert {target: part.source for target, part in found.parts.items()} == {
        "cls": "m.cls",
        "inner": "m.scale",
        "outer": "scale",
        "fc": "m.fc",
    }
    assert found.unknown == ("pos",)


def test_ignored_unknown_and_empty_arrays():
    small = family(array("cls", "cls"), array("mask"), array("registers", "registers"), ignored=("*.num_batches", "t"))
    shapes = {
        "cls": (1,),
        "mask": (4,),
        "registers": (1, 0, 4),
        "bn.num_batches": (),
        "t": (1,),
        "nothing": (0,),
        "tt": (1,),
        "bnxnum_batches": (1,),
    }
    found = named(shapes, small)
    assert {*found.parts} == {"cls"}
    assert found.ignored == ("mask", "registers", "bn.num_batches", "t", "nothing")
    assert found.unknown == ("tt", "bnxnum_batches")


def test_two_arrays_for_one_weight_are_reported():
    small = family(array("cls", "cls"), array("token", "cls"), array("pos", "pos", None, None))
    found = named({"cls": (1,), "token": (1,), "pos": (3,)}, small)
    assert found.doubled == ("cls",), "parts that are left out are not weights"
    assert found.parts["cls"].source == "token"
    assert found.parts["pos"].index == 0


def test_stacked_arrays_hold_a_weight_of_each_block():
    small = family(
        array("cls", "cls"),
        linear("blocks.qkv", *(f"{rules.BLOCK}/{part}" for part in "qkv"), stacked=True),
        array("blocks.skip", None, stacked=True),
    )
    weight = numbered(2, 6, 3)
    found = named({"m.cls": (1,), "m.blocks.qkv.weight": weight.shape, "m.blocks.skip": (2, 3)}, small)
    assert {*found.parts} == {"cls"} | {f"{rules.BLOCK.format(i=i)}/{part}/kernel" for i in (0, 1) for part in "qkv"}
    for block in (0, 1):
        for place, name in enumerate("qkv"):
            part = found.parts[f"{rules.BLOCK.format(i=block)}/{name}/kernel"]
            assert (part.source, part.block) == ("m.blocks.qkv.weight", block)
            np.testing.assert_array_equal(rules.read(part, weight), weight[block, 2 * place : 2 * place + 2].T)
            assert rules.shape(part, weight.shape) == (3, 2)


def test_shared_arrays_are_in_each_block():
    small = family(
        array("cls", "cls"),
        array("scale", f"{rules.BLOCK}/a", f"{rules.BLOCK}/b", op=rules.LINEAR, shared=True),
        array("blocks.{i}.norm", f"{rules.BLOCK}/ln"),
        array("other.{i}", "Other/encoderblock_{i}/ln"),
    )
    shapes = {"cls": (1,), "scale": (2, 3), "blocks.0.norm": (3,), "blocks.10.norm": (3,), "other.5": (3,)}
    found = named(shapes, small)
    scale = numbered(2, 3)
    for block in (0, 10):
        for place, name in enumerate("ab"):
            part = found.parts[f"{rules.BLOCK.format(i=block)}/{name}"]
            assert (part.source, part.block) == ("scale", None)
            np.testing.assert_array_equal(rules.read(part, scale), scale[place : place + 1].T)
    assert len(found.parts) == 8
    assert not found.unknown


def test_an_array_of_another_shape_is_refused():
    small = family(array("cls", "cls"), linear("qkv", "q", "k", "v"), conv("patch", "embedding"))
    found = named({"cls": (1,), "qkv.weight": (6, 2), "patch.weight": (2, 3, 4, 4)}, small)
    with pytest.raises(ValueError, match=r"'qkv.weight' .*\(7, 2\) \(.*equal"):
        rules.read(found.parts["k/kernel"], np.zeros((7, 2), "float32"))
    with pytest.raises(ValueError, match=r"'patch.weight' .*\(2, 3\)"):
        rules.shape(found.parts["embedding/kernel"], (2, 3))
    with pytest.raises(ValueError, match=r"'cls' has the wrong shape"):
        rules.read(found.parts["cls"]._replace(index=1), np.zeros(1, "float32"))


# --- writing ----------------------------------------------------------------------------------------------------


def weights(**more):
    given = {"cls": numbered(1, 1, 4), "block_0/q": numbered(4, 4), "block_0/k": numbered(4, 4) + 1}
    given |= {"block_1/q": numbered(4, 4) + 2, "block_1/k": numbered(4, 4) + 3}
    return Weights(given | more)


WRITTEN = (
    array("cls", "cls", op=rules.TOKENS),
    array("blocks.{i+1}.qk", "block_{i}/q", "block_{i}/k", op=rules.LINEAR),
)


def test_what_is_written_is_read_back():
    small, given = family(*WRITTEN, outer=array("scale", "scale"), written_prefix="m."), weights(scale=numbered(1))
    file = rules.Arrays(small, given, 2)
    assert {*file} == {"m.cls", "m.blocks.1.qk", "m.blocks.2.qk", "scale"}
    assert len(file) == 4
    assert file.shapes == {name: file[name].shape for name in file}
    assert (file.unnamed, file.problem) == ((), None)
    found = named(file.shapes, small)
    assert {*found.parts} == {*given}
    for target, part in found.parts.items():
        np.testing.assert_array_equal(rules.read(part, file[part.source]), given[target])


def test_another_prefix_can_be_written():
    small = family(*WRITTEN, outer=array("scale", "scale"), written_prefix="m.")
    assert {*rules.Arrays(small, weights(scale=numbered(1)), 2, "vit.")} == {
        "vit.cls",
        "vit.blocks.1.qk",
        "vit.blocks.2.qk",
        "scale",
    }


def test_weights_without_a_name_are_listed():
    file = rules.Arrays(family(*WRITTEN), weights(pos=numbered(1), **{"block_2/q": numbered(4, 4)}), 2)
    assert file.unnamed == ("pos", "block_2/q")
    assert "blocks.3.qk" not in file


def test_the_first_rule_with_all_its_weights_is_written():
    small = family(*WRITTEN, array("q.{i}", "block_{i}/q"), array("blocks.{i+1}.qk", "other_{i}"))
    file = rules.Arrays(small, weights(**{"block_2/q": numbered(4, 4), "other_0": numbered(1)}), 2)
    assert {*file} == {"cls", "blocks.1.qk", "blocks.2.qk", "q.2"}
    assert file.unnamed == ("other_0",), "its name is taken"


@pytest.mark.parametrize(
    "rule",
    [
        array("a", "cls", None),
        array("a", None, "cls"),
        array("a"),
        array("a.{i}", "block_{i}/q", stacked=True),
        array("a.{i}", "block_{i}/q", shared=True),
    ],
)
def test_arrays_that_hold_more_than_the_weights_are_not_written(rule):
    assert not rules.Arrays(family(rule), weights(), 2)


def test_a_weight_without_a_form_in_the_file_is_reported():
    small = family(array("w", "w", op=rules.HEADS), array("v", "v"))
    file = rules.Arrays(small, Weights(w=numbered(4, 5), v=numbered(3)), 2)
    assert "cannot reshape" in file.problem
    assert file.shapes == {"v": (3,)}


def test_the_number_of_heads_is_that_of_the_model():
    small = family(array("w", "w", op=rules.HEADS), array("o", "o", op=rules.FROM_HEADS))
    file = rules.Arrays(small, Weights(w=numbered(4, 6), o=numbered(6, 4)), 3)
    assert file.shapes == {"w": (4, 3, 2), "o": (3, 2, 4)}
    assert file["w"].shape == (4, 3, 2)
