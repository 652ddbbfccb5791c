"""Tokenize sentences with the libraries `tokenizers`, `sentencepiece` and `ftfy`, offline.

The extra `text` installs them. They are imported when the first text is tokenized.
"""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._internal.imports import extra
from .._internal.validate import expanded, one_of, path_text, positive_integer
from ..checkpoints.hints import neighbor
from .published import TOKENIZERS, has_tokenizer, tokenizer_folder

__all__ = ["FILES", "Tokenizer"]

_START, _END = "<|startoftext|>", "<|endoftext|>"
_WORDS = rf"{re.escape(_START)}|{re.escape(_END)}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+"
_SPACES = str.maketrans("\t\n\r", "   ")
_OPENAI = TOKENIZERS[3]
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLEANED = {  # by the class that transformers has for a vocabulary
    "SiglipTokenizer": "canonicalize",
    **dict.fromkeys(("Siglip2Tokenizer", "GemmaTokenizer", "GemmaTokenizerFast"), "lower"),
}


class _Engine(NamedTuple):
    """A tokenizer of a library."""

    # from texts and a maximum number of tokens to lists of tokens, including the end of the text
    encode: Callable[[list[str], int], list[list[int]]]
    pad: int  # the token for padding
    separator: int | None = None  # the token that separates texts, such as BERT's [SEP]


class Tokenizer:
    """A tokenizer that is read from the files next to a model's weights.

    The files are, the first that is there: `spiece.model` (SigLIP), `tokenizer.json`, `vocab.json` with `merges.txt`
    (CLIP), `bpe_simple_vocab_16e6.txt.gz` (CLIP's in its authors' repository), `tokenizer.model` (SigLIP 2). They are
    read when the first text is tokenized. Texts are cleaned and padded as transformers does it for the class in
    `tokenizer_config.json`; or, for a model of open_clip or OpenAI, as their code does it.

    Args:
        folder: The folder with the files, or a file in it; or the published name of a model, whose tokenizer is
            downloaded when the first text is tokenized.
        context_length: Tokens of a text. A longer text is cut but keeps its end token; a shorter one is padded on the
            right.
        open_clip: The `text_cfg` of an open_clip model, which sets how texts are cleaned and padded. `{}`: as OpenAI's
            CLIP, padded with 0. `None`: as transformers. `"auto"`: by `open_clip_config.json` in the folder.

    Raises:
        TypeError: `folder` is not a path.
        ValueError: `context_length` is not an integer of at least 2.

    Example:
        >>> tokenizer = Tokenizer("openai/clip-vit-base-patch32", 77)
        >>> tokenizer("a photo of a cat").shape  # doctest: +SKIP
        (1, 77)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        context_length: int = 77,
        *,
        open_clip: Mapping[str, Any] | str | None = "auto",
    ):
        path = expanded(path_text(folder, "folder"))
        self.folder = path.parent if path.is_file() else path
        self.context_length: int = positive_integer(context_length, "context_length", least=2)
        if isinstance(open_clip, str):
            one_of(open_clip, "open_clip", ("auto",))
        self.open_clip = open_clip
        self._engine: _Engine | None = None

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the tokens of texts.

        Args:
            texts: One text or several.

        Returns:
            int32 `(texts, context_length)`

        Raises:
            FileNotFoundError: There is no tokenizer in the folder.
            ImportError: The library that reads it, or the one that repairs Unicode for open_clip, is not installed.
            TypeError: A text is not a string.
            ValueError: The files are damaged, or have an unknown setting.
        """
        texts = strings(texts, "texts")
        if self._engine is None:
            if not has_tokenizer(self.folder):
                self.folder: Path = tokenizer_folder(self.folder.as_posix()) or self.folder
            engine = _open(self.folder)
            self._engine = engine if (text_cfg := self._text_cfg()) is None else _as_open_clip(engine, text_cfg)
        ids = np.full((len(texts), self.context_length), self._engine.pad, "int32")
        for row, tokens in zip(ids, self._engine.encode(texts, self.context_length)):
            row[: len(tokens)] = tokens
        return ids

    def _text_cfg(self) -> Mapping[str, Any] | None:
        if not isinstance(self.open_clip, str):
            return self.open_clip
        if model := neighbor(self.folder, "open_clip_config.json").get("model_cfg"):
            return model.get("text_cfg") or {}
        found = next(names for names in FILES if all((self.folder / name).is_file() for name in names))
        return {} if found == _OPENAI else None


def strings(value: Any, name: str) -> list[str]:
    """Return one string or several as a list, or raise a TypeError."""
    found = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"{name} must be a string, or several. A text is a string. Received: {each!r:.100}")
    return found


def _open(folder: Path) -> _Engine:
    for names, read in FILES.items():
        if all(os.path.isfile(folder / name) for name in names):
            try:
                return read(folder)
            except ImportError:
                raise
            except Exception as error:  # the libraries raise nothing more special
                raise ValueError(f"{folder / names[0]} cannot be read as a tokenizer: {error}") from None
    wanted = ", ".join(" with ".join(names) for names in FILES)
    raise FileNotFoundError(
        f"There is no tokenizer in {folder}. Put one of these files of the model there: {wanted}; or pass "
        "tokenizer=FOLDER."
    )


def _library(name: str) -> Any:
    return extra(name, f"Texts need the library {name}")


# --- tokenizers ---------------------------------------------------------------------------------------------------


def _from_json(folder: Path) -> _Engine:
    tokenizers = _library("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(os.fspath(folder / "tokenizer.json"))
    return _by_tokenizers(tokenizer, folder, _CLEANED.get(_class(folder)))


def _from_vocabulary(folder: Path) -> _Engine:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    return _by_tokenizers(_clip(vocabulary, _merges(lines), (_START, _END)), folder, None)


def _from_gzip(folder: Path) -> _Engine:
    """Read OpenAI's file, which has only the merges: the vocabulary follows from them."""
    ByteLevel = _library("tokenizers").pre_tokenizers.ByteLevel
    with gzip.open(folder / _OPENAI[0], "rt", encoding="utf-8") as file:
        lines = file.read(1 << 24).split("\n")
    merges = _merges(lines[: 49152 - 256 - 2 + 1])
    letters = sorted(ByteLevel.alphabet())
    words = (*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), _START, _END)
    vocabulary = {word: number for number, word in enumerate(words)}
    return _by_tokenizers(_clip(vocabulary, merges, (_START, _END)), folder, None)


def _merges(lines: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of a list of merges, whose first line is a comment."""
    pairs = [tuple(line.split()) for line in lines[1:] if line.strip()]
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        raise ValueError(f"a merge is of two parts, and {wrong[0]} is not.")
    return [(first, second) for first, second in pairs]


def _clip(vocabulary: dict[str, int], merges: list[tuple[str, str]], special: tuple[str, str]) -> Any:
    """Return CLIP's byte-pair encoding, in which each lower-case word ends with a mark."""
    library = _library("tokenizers")
    normalizers, splitters = library.normalizers, library.pre_tokenizers
    start, end = special
    model = library.models.BPE(vocabulary, merges, unk_token=end, end_of_word_suffix="</w>")
    tokenizer = library.Tokenizer(model)
    spaces = normalizers.Replace(library.Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = splitters.Split(library.Regex(_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = splitters.Sequence([words, splitters.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens([start, end])
    ends = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = library.processors.TemplateProcessing(f"{start} $A {end}", special_tokens=ends)
    return tokenizer


def _by_tokenizers(tokenizer: Any, folder: Path, cleaning: str | None) -> _Engine:
    library = _library("tokenizers")
    if cleaning == "lower":
        before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = library.normalizers.Sequence([library.normalizers.Lowercase(), *before])
    described = neighbor(folder, "tokenizer_config.json")
    names = {role: _token(folder, role) for role in ("bos", "eos", "pad", "sep")}
    if "add_bos_token" in described or "add_eos_token" in described:
        first, last = (names[role] if described.get(f"add_{role}_token") else None for role in ("bos", "eos"))
        ends = [(name, tokenizer.token_to_id(name)) for name in (first, last) if name]
        template = " ".join(filter(None, (first, "$A", last)))
        tokenizer.post_processor = library.processors.TemplateProcessing(template, special_tokens=ends)
    padding = tokenizer.padding or {}
    pad = next((tokenizer.token_to_id(name) for name in (names["pad"], names["eos"], _END) if name), None)
    pad = padding.get("pad_id", 0) if pad is None else pad
    tokenizer.no_padding()

    def encode(texts: list[str], length: int) -> list[list[int]]:
        tokenizer.enable_truncation(length)
        cleaned = map(_canonicalize, texts) if cleaning == "canonicalize" else texts
        return [encoding.ids for encoding in tokenizer.encode_batch(list(cleaned))]

    return _Engine(encode, pad, tokenizer.token_to_id(names["sep"]) if names["sep"] else None)


def _token(folder: Path, role: str) -> str | None:
    """Return the token with a role such as `"pad"`, from the files next to a tokenizer."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        name = neighbor(folder, file).get(f"{role}_token")
        name = name.get("content") if isinstance(name, dict) else name
        if isinstance(name, str):
            return name
    return None


# --- sentencepiece ------------------------------------------------------------------------------------------------


def _from_siglip(folder: Path) -> _Engine:
    """Read SigLIP's vocabulary. Transformers encodes a text behind the unknown token, and takes that away again."""
    model = _sentencepiece(folder / "spiece.model")
    clean = str if _class(folder).startswith("T5") else _canonicalize
    before = "<unk>"
    skip = len(model.encode(before))

    def encode(texts: list[str], length: int) -> list[list[int]]:
        cleaned = (clean("▁" + text.replace("▁", " ")) for text in texts)
        return _ended((model.encode(before + text)[skip:] for text in cleaned), length, model.eos_id())

    return _Engine(encode, model.eos_id())


def _from_gemma(folder: Path) -> _Engine:
    """Read SigLIP 2's vocabulary."""
    model = _sentencepiece(folder / "tokenizer.model")

    def encode(texts: list[str], length: int) -> list[list[int]]:
        lowered = ("".join(letter.lower() for letter in text) for text in texts)  # letter by letter, as `tokenizers`
        return _ended((model.encode(text) for text in lowered), length, model.eos_id())

    return _Engine(encode, max(model.pad_id(), 0))


def _sentencepiece(path: Path) -> Any:
    return _library("sentencepiece").SentencePieceProcessor(model_file=os.fspath(path))


def _ended(texts: Any, length: int, end: int) -> list[list[int]]:
    return [[*tokens[: length - 1], end] for tokens in texts]


# --- cleaning -----------------------------------------------------------------------------------------------------


def _class(folder: Path) -> str:
    """Return transformers' class of a tokenizer, or an empty string if no file names it."""
    return neighbor(folder, "tokenizer_config.json").get("tokenizer_class") or ""


def _canonicalize(text: str) -> str:
    """Return a text in lower case, without punctuation, and with single spaces."""
    return re.sub(r"\s+", " ", text.lower().translate(_NO_PUNCTUATION)).strip()


def _as_open_clip(engine: _Engine, text_cfg: Mapping[str, Any]) -> _Engine:
    """Return a tokenizer that cleans and pads as open_clip does."""
    # Without `hf_tokenizer_name`, open_clip's own tokenizer pads with 0.
    of_transformers = bool(text_cfg.get("hf_tokenizer_name"))
    options = dict(text_cfg.get("tokenizer_kwargs") or {})
    kind = options.pop("clean", "whitespace" if of_transformers else "lower")
    strip = options.pop("strip_sep_token", False) if of_transformers else False
    if mode := text_cfg.get("tokenizer_mode"):
        options["tokenizer_mode"] = mode
    if options or kind not in _OPEN_CLIP:
        raise ValueError(f"text_cfg asks for {options or kind!r} of the tokenizer, whose effect is not known.")
    clean = _OPEN_CLIP[kind]

    def encode(texts: list[str], length: int) -> list[list[int]]:
        rows = engine.encode([clean(_repaired(text)) for text in texts], length)
        return [[0 if token == engine.separator else token for token in row] for row in rows] if strip else rows

    return _Engine(encode, engine.pad if of_transformers else 0)


def _repaired(text: str) -> str:
    """Return a text with repaired Unicode and resolved HTML entities, as OpenAI's CLIP and open_clip do."""
    if not (text.isascii() and text.translate(_SPACES).isprintable()):  # nothing else can be broken
        text = _library("ftfy").fix_text(text)
    return html.unescape(html.unescape(text)).strip()


_OPEN_CLIP = {
    "canonicalize": lambda text: _canonicalize(text.replace("_", " ")),
    "lower": lambda text: " ".join(text.split()).lower(),
    "whitespace": lambda text: " ".join(text.split()),
}

_READERS = (_from_siglip, _from_json, _from_vocabulary, _from_gzip, _from_gemma)
FILES: dict[tuple[str, ...], Callable[[Path], _Engine]] = dict(zip(TOKENIZERS, _READERS))
"""The files of a tokenizer and their readers, in the order of the search."""
