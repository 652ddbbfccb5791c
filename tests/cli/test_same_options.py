"""Each command passes its options on: all arguments of its function, with the defaults that these have in Python."""

import inspect

import numpy as np
import pytest
from PIL import Image

from vit_keras.cli import main
from vit_keras.cli import training as commands

pytestmark = pytest.mark.any_backend

CALLS = {
    "finetune data": ("finetuning.finetune", {"folder", "image_size", "mistakes"}),
    "evaluate m.keras data": ("evaluation.evaluate", set()),
    "predict-table t.csv --models m.keras -o o.csv": ("submission.predict_table", set()),
    "average a.keras b.keras -o o.keras": ("averaging.average", {"weights"}),
    "embed data -o o.npz": ("embeddings.embed", {"image_size", "return_labels"}),
}
"""The function of a command, and the arguments that have no option, or that it passes only if they are given."""

OWN = {"command", "progress"}
"""What a command decides itself."""


class Called(BaseException):
    """Ends a command at the call of its function, with the arguments."""


@pytest.mark.parametrize("line", CALLS)
def test_the_defaults_of_a_command_are_those_of_its_function(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(tmp_path / "data" / "image.png")
    (module, _, name), absent = CALLS[line][0].partition("."), CALLS[line][1]
    signature = inspect.signature(getattr(getattr(commands, module), name))

    def watched(*args, **kwargs):
        raise Called(signature.bind(*args, **kwargs).arguments)

    monkeypatch.setattr(getattr(commands, module), name, watched)
    monkeypatch.setattr(commands, "open_model", lambda path: path)
    monkeypatch.setattr(commands, "open_with_options", lambda options: options.model)
    with pytest.raises(Called) as called:
        main(line.split())
    (passed,) = called.value.args
    optional = {p.name: p.default for p in signature.parameters.values() if p.default is not p.empty}
    assert optional.keys() - passed.keys() - OWN == absent
    given = {name: getattr(passed[name], "name", passed[name]) for name in optional.keys() & passed.keys() - OWN}
    assert given.pop("errors", "skip") == "skip"  # where a function raises
    different = {name for name, value in given.items() if value != optional[name]}
    assert different <= {"model", "output"}  # which the line has
