"""Tokenizers: their files, and that they are not needed before the first text."""

import gzip
import itertools
import json
import sys

import numpy as np
import pytest
from scripts import sentences

from vit_keras.text import Tokenizer

START, END = "<|startoftext|>", "<|endoftext|>"


def clip_files(folder, count=300):
    """Write CLIP's two kinds of files for a small vocabulary: merges of letters that are next to each other."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    random = np.random.default_rng(0)
    common = [*"aeinorstl", "Ð", "°", "±", "Ø", "§"]
    merges = sorted({(a, b + end) for a in common for b in common for end in ("", "</w>")})
    merges = [merges[n] for n in random.permutation(len(merges))[:count]]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), START, END]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "hf").mkdir(parents=True)
    (folder / "hf" / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}), encoding="utf-8")
    (folder / "hf" / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "openai").mkdir()
    with gzip.open(folder / "openai" / "bpe_simple_vocab_16e6.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return words


def by_hand(text, words, length, pad):
    """CLIP's encoding of lower-case latin letters and spaces, merge by merge."""
    numbers = {word: n for n, word in enumerate(words)}
    ids = [numbers[START]]
    for word in text.split():
        parts = [*word[:-1], word[-1] + "</w>"]
        while True:
            pairs = [(numbers.get(a + b, 1e9), n) for n, (a, b) in enumerate(itertools.pairwise(parts))]
            rank, place = min(pairs, default=(1e9, 0))
            if rank == 1e9:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids += [numbers[part] for part in parts]
    ids = [*ids[: length - 1], numbers[END]]
    return [*ids, *[pad] * (length - len(ids))]


def test_clips_encoding_step_by_step(tmp_path):
    words = clip_files(tmp_path)
    texts = ["a letter", "the rose is in", "", "seal " * 12]
    for folder, pad in (("hf", words.index(END)), ("openai", 0)):
        found = Tokenizer(tmp_path / folder, 24)([text.upper() for text in texts])
        assert found.dtype == "int32"
        np.testing.assert_array_equal(found, [by_hand(text, words, 24, pad) for text in texts])
    settings = {"add_bos_token": False, "add_eos_token": True, "eos_token": END}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenize = Tokenizer(tmp_path / "hf", 24)
    np.testing.assert_array_equal(tokenize(texts), [by_hand(text, words, 25, words.index(END))[1:] for text in texts])
    np.testing.assert_array_equal(tokenize("  A\tCat\n"), tokenize("a cat"))
    (tmp_path / "hf" / "merges.txt").write_text("#version: 0.2\na e i")
    with pytest.raises(ValueError, match=r"two parts, and \('a', 'e', 'i'\) is not"):
        Tokenizer(tmp_path / "hf", 24)("a cat")


@pytest.mark.parametrize("count", [500, pytest.param(10000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["clip", "clip_json", "siglip2", "siglip"])
def test_tokens_are_those_of_transformers(kind, count, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder, length = FILES[kind](transformers, tmp_path)
    if kind == "siglip":
        theirs = transformers.SiglipTokenizer(str(folder / "spiece.model"))
    else:
        name = "Siglip2Tokenizer" if kind == "siglip2" else "CLIPTokenizer"
        theirs = getattr(transformers, name).from_pretrained(folder)
    texts = [*sentences(count), *(" ".join(sentences(8, seed)) for seed in range(20)), "", " ", "▁a ▁"]
    expected = theirs(texts, padding="max_length", truncation=True, max_length=length)["input_ids"]
    np.testing.assert_array_equal(Tokenizer(folder, length)(texts), expected)


def _clip(transformers, folder):
    clip_files(folder)
    return folder / "hf", 77


def _clip_json(transformers, folder):
    clip_files(folder)
    transformers.CLIPTokenizer.from_pretrained(folder / "hf").save_pretrained(folder / "json")
    assert (folder / "json" / "tokenizer.json").is_file()
    return folder / "json", 77


def _siglip2(transformers, folder):
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.BPE(fuse_unk=True, unk_token="<unk>", byte_fallback=True))
    made.normalizer = library.normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{n:02X}>" for n in range(256))]
    trainer = library.trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    made.train_from_iterator(sentences(1000, seed=5), trainer)
    model = json.loads(made.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    ends = {"add_eos_token": True, "add_bos_token": False, "padding_side": "right"}
    transformers.Siglip2Tokenizer(vocab=model["vocab"], merges=merges, **ends).save_pretrained(folder)
    return folder, 64


def _siglip(transformers, folder):
    library = pytest.importorskip("sentencepiece")
    numbers = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    lines = iter([text.lower().replace("\n", " ") for text in sentences(1000, seed=5)])
    library.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=str(folder / "spiece"), vocab_size=900, minloglevel=2, **numbers
    )
    return folder, 64


FILES = {"clip": _clip, "clip_json": _clip_json, "siglip2": _siglip2, "siglip": _siglip}


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    for name, library in (("tokenizer.json", "tokenizers"), ("spiece.model", "sentencepiece")):
        folder = tmp_path / library
        folder.mkdir()
        (folder / name).write_text("{}")
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=rf"{library}.*vit-keras\[all\]"):
            Tokenizer(folder)("a cat")


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "BPE"}}'])
def test_a_damaged_file_is_an_error_that_names_it(content, tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match="tokenizer.json"):
        Tokenizer(tmp_path)("a cat")
