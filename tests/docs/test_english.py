"""README and the guides in plain English: phrases that a native reader stumbles over, each with a better one."""

import re

import pytest
from support import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "coming_from").glob("*.md"))
PAGES = [ROOT / "README.md", *(page for page in PAGES if page.name != "changes.md")]  # which a build writes
TICS = {
    r"(?<!\b[Tt]here )\b(?:is|are) no (?!longer\b|more\b|less\b)\w+": "is not a …, there is no …",
    r"\bin place of\b": "instead of",
    r"\bso many\b": "this many, or the number",
    r"\bby one word\b": "with a single argument",
    r"\b[Oo]f which both\b": "which both",
    r"\bmakes? of (?:its|any|a)\b": "turns … into, converts … to",
    r"\bgoes on where it\b": "resumes where it",
    r"\btook the place of\b": "replaced",
    r"\bas (?:any|an)other\b": "like any other",
    r"\bwill do\b": "works, is enough",
    r"(?:^|[.;:] )That of (?:a|an|the)\b": "the … of",
    r"\bwhat they stand for\b": "what they mean",
    r"\bnobody needs\b": "(leave it out)",
    r"\bhas its day\b": "pays off",
    r"\b(?:are|is) beside it\b": "is also available",
    r"\bcannot hurt\b": "is safe",
    r"\bstands? in \[": "is listed in",
    r"\b[Bb]egin it with\b": "launch it with",
    r"(?:^|[.;:] )Of (?:CLIP|a (?:model|table|published))\b": "with CLIP, for a model",
}
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`|^:::.*?$|^<.*?$|^\|.*?$", re.DOTALL | re.MULTILINE)


def found_in(text):
    """The tics in the prose of a page: `(words, better)`. Code, tables and HTML are left out."""
    prose = " ".join(CODE.sub(" ", text).split())
    return [(match[0], better) for tic, better in TICS.items() for match in re.finditer(tic, prose)]


@pytest.mark.any_backend
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_in_plain_english(page):
    assert not found_in(page.read_text(encoding="utf-8"))


@pytest.mark.any_backend
def test_tics_are_found_in_prose_alone():
    assert found_in("A mixer is no transformer.") == [("is no transformer", "is not a …, there is no …")]
    assert not found_in("It is no longer so.\n\n```text\nin place of\n```\nUse `in place of` here.")
