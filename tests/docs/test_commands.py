"""Each command that the documentation shows can be parsed."""

import re
import shlex

from support import ROOT

from vit_keras.cli.parser import COMMANDS, build_parser

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").iterdir())]
SHOWN = re.compile(r"`(vit-keras [^`]+)`|^ *(?:\$ )?(?:[A-Z_]+=\S+ )?(vit-keras (?:.*\\\n)*.*)$", re.MULTILINE)


def shown_commands(page):
    for found in SHOWN.finditer(page.read_text(encoding="utf-8")):
        words = shlex.split((found[1] or found[2]).replace("\\\n", " "), comments=True)[1:]
        if len(words) > 1 and words[0] in COMMANDS and "…" not in words:
            yield words


def test_each_command_that_a_page_shows_can_be_parsed(capsys):
    commands = [words for page in PAGES if page.is_file() for words in shown_commands(page)]
    assert len(commands) > 30
    for words in commands:
        try:
            build_parser(words[0]).parse_args(words)
        except SystemExit:
            error = capsys.readouterr().err
            assert "arguments are required" in error, f"{shlex.join(words)}: {error}"  # a text may show a part
