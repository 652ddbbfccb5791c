"""The guide runs from top to bottom."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import ROOT
from text_files import LENGTH, write

from vit_keras import text


def tokens(tokenizer, texts):
    """Each text as its length, and then the end."""
    texts = [texts] if isinstance(texts, str) else texts
    return np.array([[6 + len(each) % 50, *[5] * (LENGTH - 1)] for each in texts], "int32")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The pixels")
def test_the_guide_to_zero_shot_runs_from_top_to_bottom(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(text.Tokenizer, "__call__", tokens)
    write("hf_clip", Path("clip-vit-base-patch32"))
    random = np.random.default_rng(0)
    for name in ("cat.jpg", "dog.jpg"):
        Image.fromarray(random.integers(0, 255, (40, 50, 3), "uint8")).save(name)
    page = (ROOT / "docs" / "zero_shot.md").read_text(encoding="utf-8")
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(snippet, "zero_shot.md", "exec"), names)
    assert names["heat"].shape == (4, 4)
    assert names["texts"].shape == (2, 2)
    assert Path("pets.html").is_file()
