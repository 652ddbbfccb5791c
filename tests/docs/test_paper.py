"""The story of the paper: its code runs, its figures are there, its numbers are those of the studies."""

import re

import pytest
from support import ROOT

PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_is_one_program():
    names = {}
    for block in BLOCKS:
        exec(compile(block, "paper.md", "exec"), names)
