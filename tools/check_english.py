"""Find phrases in README and the guides over which a native reader stumbles, and print where each is.

python tools/check_english.py [PAGE …]

Code, tables and HTML are left out. Docstrings and messages of the package are searched for "is no …" alone. The exit
status is 1 if a phrase was found.
"""

import ast
import bisect
import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IS_NO = r"(?<!\b[Tt]here )\b(?:is|are|was|were) no (?!(?:more|less|(?:long|larg|small|fast|slow)er)\b)\w+"
TICS = {
    IS_NO: "is not a …, there is no …",
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
    r"\bbeside\b": "next to, with, alongside",
    r"\bcannot hurt\b": "is safe",
    r"\bstands? in (?:\[|a\b|the\b)": "is listed in, is in",
    r"\b[Bb]egin it with\b": "launch it with",
    r"(?:^|[.;:] )Of (?:CLIP|a (?:model|table|published))\b": "with CLIP, for a model",
    r"\bin the very\b": "at that, exactly",
    r"\b(?:is|are) that of\b": "is the one of, or name the thing",
    r"\banew\b": "again, new",
    r"\bmends?\b": "fixes, repairs",
    r"\b[Ll]ikewise\b": "also",
    r"\b[Pp]ictures?\b": "image",
}
DRAWN = ("gallery.md", "paper.md", "migration.md", "explain.md")
"""Pages on drawn maps and figures, which are pictures."""
CODE = re.compile(
    r"^```.*?^```|^    .*?$|`[^`\n]*`|^:.*?$|^<.*?$|^\|.*?$|\]\([^)]*\)|PICTURES", re.DOTALL | re.MULTILINE
)


def pages():
    """README and the guides, without those that a build of the site writes."""
    guides = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "coming_from").glob("*.md")]
    return [ROOT / "README.md", *sorted(page for page in guides if page.name != "changes.md")]


def found_in(text, pictures=False):
    """The tics in the prose of a page: `(line, words, better)`; `pictures` are allowed where they are meant."""
    prose = CODE.sub(lambda code: "\n" * code[0].count("\n") or " ", text)
    words = [(line, word) for line, words in enumerate(prose.split("\n"), 1) for word in words.split()]
    starts = [0, *itertools.accumulate(len(word) + 1 for _, word in words)]
    prose = " ".join(word for _, word in words)
    for tic, better in TICS.items():
        if pictures and better == "image":
            continue
        for match in re.finditer(tic, prose):
            line, _ = words[bisect.bisect_right(starts, match.start()) - 1]
            yield line, match[0], better


def modules():
    """The modules of the package whose docstrings and messages are searched."""
    return sorted((ROOT / "vit_keras").rglob("*.py"))


def found_in_strings(source):
    """The same as `found_in`, of the one phrase that docstrings and messages are searched for."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in re.finditer(IS_NO, node.value):
                yield node.lineno + node.value.count("\n", 0, match.start()), match[0], TICS[IS_NO]


def main(arguments=None):
    """Print what is found in the named pages and modules, or in all, and return whether something was."""
    count = 0
    for page in map(Path, arguments or [*pages(), *modules()]):
        text = page.read_text(encoding="utf-8")
        found = found_in_strings(text) if page.suffix == ".py" else found_in(text, page.name in DRAWN)
        for line, words, better in found:
            print(f"{page}:{line}: {words!r}. Better: {better}")
            count += 1
    return count > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
