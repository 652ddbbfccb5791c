"""Only what the outputs need is computed."""

import numpy as np
import pytest
from export_cases import POOLINGS, POSITIONS, TOKENS, arranged, tiny
from support import one_at_a_time

from vit_keras.export import Plan
from vit_keras.export.onnx import graph_of


def operators(model, **options):
    return graph_of(Plan.of(model, preprocessing=False, **options)).order()


def test_the_last_block_computes_the_class_token_alone():
    gelus = [node.shape for node in operators(tiny()) if node.operator == "Gelu"]
    assert gelus == [("batch", 5, 32), ("batch", 1, 32)]
    softmaxes = [node.shape for node in operators(tiny()) if node.operator == "Softmax"][:2]
    assert softmaxes == [("batch", 2, 5, 5), ("batch", 2, 1, 5)]


def test_the_last_block_computes_what_is_asked_for():
    gelus = [node.shape[1] for node in operators(tiny(pooling="gap")) if node.operator == "Gelu"]
    assert gelus == [4, 4]
    softmaxes = [node for node in operators(tiny(), attention=True) if node.operator == "Softmax"][:2]
    assert [node.shape for node in softmaxes] == [("batch", 2, 5, 5)] * 2


def test_queries_are_scaled_in_the_weights():
    assert not [node for node in operators(tiny()) if node.operator == "Mul"]


def test_the_exact_gelu_is_one_operator():
    found = [node for node in operators(tiny(mlp_activation="gelu")) if node.operator in ("Gelu", "Erf")]
    assert [node.attributes["approximate"] for node in found] == ["none", "none"]


@pytest.mark.parametrize(("tokens", "pooling", "positions"), one_at_a_time([*TOKENS], POOLINGS, [*POSITIONS]))
def test_no_part_without_a_token_is_joined(tokens, pooling, positions):
    joins = [node for node in operators(arranged(tokens, pooling, positions)) if node.operator == "Concat"]
    assert all(0 not in part.shape for node in joins for part in node.inputs)


def test_tokens_stay_tokens():
    reshapes = [node.shape for node in operators(tiny()) if node.operator == "Reshape"]
    assert all(np.ndim(shape) and len(shape) != 2 for shape in reshapes)
