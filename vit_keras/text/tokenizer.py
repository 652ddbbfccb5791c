"""From sentences to the numbers of tokens, by the libraries `tokenizers` and `sentencepiece`, offline.

Both are in the extra `text`, and are imported when the first text is tokenized.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checkpoints.hints import neighbor
from ..validate import positive_integer

__all__ = ["FILES", "Tokenizer"]

_START, _END = "<|startoftext|>", "<|endoftext|>"
_WORDS = rf"{re.escape(_START)}|{re.escape(_END)}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+"
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLEANED = {  # by the class that transformers has for a vocabulary
    "SiglipTokenizer": "canonicalize",
    **dict.fromkeys(("Siglip2Tokenizer", "GemmaTokenizer", "GemmaTokenizerFast"), "lower"),
}


class _Engine(NamedTuple):
    """A tokenizer of a library.

    Attributes:
        encode: From texts and a number of tokens to lists of at most so many, the end of the text included.
        pad: What follows the end.
    """

    encode: Callable[[list[str], int], list[list[int]]]
    pad: int


class Tokenizer:
    """A tokenizer from the files beside a model's weights.

    The files are, the first that is there: `spiece.model` (SigLIP), `tokenizer.json`, `vocab.json` with `merges.txt`
    (CLIP), `bpe_simple_vocab_16e6.txt.gz` (CLIP's in its authors' repository), `tokenizer.model` (SigLIP 2). They are
    read when the first text is tokenized. Texts are lowered and cleaned as transformers does it for the class in
    `tokenizer_config.json`, or as `open_clip_config.json` says.

    Args:
        folder: The folder with the files, or a file in it.
        context_length: Tokens of a text. A longer one is cut, its end stays; a shorter one is padded on the right.

    Raises:
        ValueError: `context_length` is no positive integer.

    Example:
        >>> tokenizer = Tokenizer("clip-vit-base-patch32", 77)
        >>> tokenizer("a photo of a cat").shape  # doctest: +SKIP
        (1, 77)
    """

    def __init__(self, folder: str | os.PathLike[str], context_length: int = 77):
        path = Path(folder).expanduser()
        self.folder = path.parent if path.is_file() else path
        self.context_length = positive_integer(context_length, "context_length", least=2)
        self._engine: _Engine | None = None

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the tokens of texts.

        Args:
            texts: One text or several.

        Returns:
            int32 `(texts, context_length)`

        Raises:
            FileNotFoundError: There is no tokenizer in the folder.
            ImportError: The library that reads it is not installed.
            TypeError: A text is no string.
            ValueError: The files are damaged, or ask for what is not understood.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"A text is a string. Received: {text!r}")
        if self._engine is None:
            self._engine = _open(self.folder)
        ids = np.full((len(texts), self.context_length), self._engine.pad, "int32")
        for row, tokens in zip(ids, self._engine.encode(texts, self.context_length)):
            row[: len(tokens)] = tokens
        return ids


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
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ImportError(f'Texts need the library {name}, not installed: pip install "vit-keras[text]".') from None


# --- tokenizers ---------------------------------------------------------------------------------------------------


def _from_json(folder: Path) -> _Engine:
    tokenizers = _library("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(os.fspath(folder / "tokenizer.json"))
    return _by_tokenizers(tokenizer, folder, _cleaning(folder))


def _from_vocabulary(folder: Path) -> _Engine:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    return _by_tokenizers(_clip(vocabulary, _merges(lines), (_START, _END)), folder, None)


def _from_gzip(folder: Path) -> _Engine:
    """Read OpenAI's file, which has the merges alone: the vocabulary follows from them."""
    ByteLevel = _library("tokenizers").pre_tokenizers.ByteLevel
    with gzip.open(folder / "bpe_simple_vocab_16e6.txt.gz", "rt", encoding="utf-8") as file:
        lines = file.read(1 << 24).split("\n")
    merges = _merges(lines[: 49152 - 256 - 2 + 1])
    letters = sorted(ByteLevel.alphabet())
    words = (*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), _START, _END)
    vocabulary = {word: number for number, word in enumerate(words)}
    return _by_tokenizers(_clip(vocabulary, merges, (_START, _END)), folder, _OPEN_CLIP["lower"])


def _merges(lines: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of a list of merges, whose first line is a comment."""
    pairs = [tuple(line.split()) for line in lines[1:] if line.strip()]
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        raise ValueError(f"a merge is of two parts, and {wrong[0]} is not.")
    return pairs


def _clip(vocabulary: dict[str, int], merges: list[tuple[str, str]], special: tuple[str, str]) -> Any:
    """Return CLIP's byte-pair encoding: words in lower case, each with a mark at its end."""
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


def _by_tokenizers(tokenizer: Any, folder: Path, cleaning: Callable[[str], str] | str | None) -> _Engine:
    library = _library("tokenizers")
    if cleaning == "lower":
        before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = library.normalizers.Sequence([library.normalizers.Lowercase(), *before])
    described = neighbor(folder, "tokenizer_config.json")
    names = {role: _token(folder, role) for role in ("bos", "eos", "pad")}
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
        cleaned = [cleaning(text) for text in texts] if callable(cleaning) else texts
        return [encoding.ids for encoding in tokenizer.encode_batch(cleaned)]

    return _Engine(encode, pad)


def _token(folder: Path, role: str) -> str | None:
    """Return the token of a role (`"pad"`) that the files beside a tokenizer name."""
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
    clean = _cleaning(folder)
    clean = clean if callable(clean) else _canonicalize
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


def _cleaning(folder: Path) -> Callable[[str], str] | str | None:
    """Return what is done to a text before a tokenizer sees it, by what stands beside the tokenizer."""
    model = neighbor(folder, "open_clip_config.json").get("model_cfg") or {}
    options = dict((model.get("text_cfg") or {}).get("tokenizer_kwargs") or {})
    if options:
        kind = options.pop("clean", "whitespace")
        if options or kind not in _OPEN_CLIP:
            raise ValueError(f"tokenizer_kwargs has {options or kind!r}, whose effect is not known.")
        return _OPEN_CLIP[kind]
    kind = _CLEANED.get(neighbor(folder, "tokenizer_config.json").get("tokenizer_class"))
    return _canonicalize if kind == "canonicalize" else kind


def _canonicalize(text: str) -> str:
    """Return a text in lower case, without punctuation, and with single spaces."""
    return re.sub(r"\s+", " ", text.lower().translate(_NO_PUNCTUATION)).strip()


_OPEN_CLIP = {
    "canonicalize": lambda text: _canonicalize(text.replace("_", " ")),
    "lower": lambda text: " ".join(text.split()).lower(),
    "whitespace": lambda text: " ".join(text.split()),
}

FILES: dict[tuple[str, ...], Callable[[Path], _Engine]] = {
    ("spiece.model",): _from_siglip,
    ("tokenizer.json",): _from_json,
    ("vocab.json", "merges.txt"): _from_vocabulary,
    ("bpe_simple_vocab_16e6.txt.gz",): _from_gzip,
    ("tokenizer.model",): _from_gemma,
}
"""The files of a tokenizer and what reads them, in the order in which they are looked for."""
