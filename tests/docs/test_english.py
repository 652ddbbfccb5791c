"""README and the guides in plain English: `tools/check_english.py` finds what a native reader stumbles over."""

import pytest
from support import ROOT, script

english = script(ROOT / "tools" / "check_english.py")
pytestmark = pytest.mark.any_backend


def test_the_pages_and_the_package_are_in_plain_english(capsys):
    assert len(english.pages()) > 25 and len(english.modules()) > 150
    assert not english.main(), capsys.readouterr().out


def test_tics_are_found_in_prose_alone_with_their_line(tmp_path, capsys):
    text = "A mixer\nis no transformer.\n\n```text\nin place of\n```\nIt is no longer so. Use `in place of` here.\n"
    assert [*english.found_in(text)] == [(2, "is no transformer", "is not a …, there is no …")]
    assert not [*english.found_in("A picture.", pictures=True)]
    page = tmp_path / "page.md"
    page.write_text(text)
    assert english.main([str(page)])
    assert capsys.readouterr().out == f"{page}:2: 'is no transformer'. Better: is not a …, there is no …\n"


def test_messages_and_docstrings_are_searched_but_code_is_not(tmp_path, capsys):
    module = tmp_path / "module.py"
    code = 'x = f"{x} are no larger, but {x} is no file"  # is no code'
    module.write_text(f'"""A mixer.\n\nIt is no transformer.\n"""\n{code}\n')
    assert english.main([str(module)])
    assert [line.split(". Better")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{module}:3: 'is no transformer'",
        f"{module}:5: 'is no file'",
    ]
