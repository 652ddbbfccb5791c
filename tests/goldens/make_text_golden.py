#!/usr/bin/env python3
"""Write the golden files of tests/data/text and tests/data/encoded: what transformers and open_clip compute.

Run by hand, in an environment that holds both; no test needs them. The files that are committed came from

    torch 2.13.0 (CPU), transformers 5.23.0, open_clip_torch 3.3.0

Every model is tiny and has seeded weights (`family_files.value`), and computes in float64. A file holds the names and
shapes of the checkpoint, the JSON files beside it, tokens, and what came out.
"""

import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path

import encoded_files
import numpy as np
import torch
from family_files import SEED, state_dict
from make_google_npz import image
from text_files import DIRECTORY, IMAGE_SIZE, LENGTH, VOCABULARY, tokens

# torchvision's compiled operators need CUDA; its Python part, and so open_clip, only their declarations.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "bos_token_id": 1, "pad_token_id": 0, **SIZES}
VISION = {"image_size": IMAGE_SIZE, "patch_size": 8, **SIZES}
CFG = {"context_length": LENGTH, "vocab_size": VOCABULARY, "width": 64, "heads": 1, "layers": 2}
VISION_CFG = {"image_size": IMAGE_SIZE, "patch_size": 8, "width": 64, "head_width": 32, "layers": 2}
SIGLIP_CFG = {**CFG, "no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}


def of_transformers(kind, eos, vision=VISION):
    """A model of transformers, its forward pass, and its `config.json`."""
    import transformers

    config = {"text_config": {**TEXT, "eos_token_id": eos}, "vision_config": vision}
    if kind in ("CLIP", "MetaClip2"):
        config["projection_dim"] = 24
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config))

    def forward(pixels, ids):
        inputs = {"pixel_values": pixels}
        if kind == "Siglip2":  # rows of flattened patches
            n, side = len(pixels), IMAGE_SIZE // 8
            rows = pixels.unflatten(2, (side, 8)).unflatten(4, (side, 8)).permute(0, 2, 4, 3, 5, 1)
            shapes, mask = torch.tensor([[side, side]] * n), torch.ones(n, side**2, dtype=torch.int64)
            inputs = {
                "pixel_values": rows.reshape(n, side**2, -1),
                "pixel_attention_mask": mask,
                "spatial_shapes": shapes,
            }
        losing = model(**inputs, input_ids=ids[: len(pixels)], return_loss=True)
        out = model(**inputs, input_ids=ids)
        return (
            out.text_model_output.pooler_output,
            out.vision_model_output.pooler_output,
            out.logits_per_image,
            losing.loss,
        )

    return model, forward, {"config.json": json.loads(model.config.to_json_string())}


def of_open_clip(text, custom=False, **options):
    """The same of a model of open_clip."""
    import open_clip

    config = {"embed_dim": 64, "vision_cfg": VISION_CFG, "text_cfg": text, **options}
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)

    def forward(pixels, ids):
        logits, few = (model.get_logits(pixels, some)[0] for some in (ids, ids[: len(pixels)]))
        if model.logit_bias is None:
            loss = open_clip.ClipLoss()(
                model.encode_image(pixels, True), model.encode_text(ids[: len(pixels)], True), 1.0
            )
            same = torch.arange(len(few))
            loss = (torch.nn.functional.cross_entropy(few, same) + torch.nn.functional.cross_entropy(few.T, same)) / 2
        else:
            same = 2 * torch.eye(len(few), dtype=few.dtype) - 1
            loss = -torch.nn.functional.logsigmoid(same * few).sum() / len(few)
        return model.encode_text(ids), model.encode_image(pixels), logits, loss

    return model, forward, {"open_clip_config.json": {"model_cfg": {**config, "custom_text": custom}}}


CASES = {
    "hf_clip": lambda: of_transformers("CLIP", 5),
    "hf_clip_argmax": lambda: of_transformers("CLIP", 2),
    "hf_metaclip2": lambda: of_transformers("MetaClip2", 2),
    "hf_siglip": lambda: of_transformers("Siglip", 5),
    "hf_siglip2": lambda: of_transformers(
        "Siglip2", 5, {"num_patches": (IMAGE_SIZE // 8) ** 2, "patch_size": 8, **SIZES}
    ),
    "open_clip": lambda: of_open_clip(CFG, quick_gelu=True),
    "open_clip_gelu": lambda: of_open_clip(CFG),
    "open_clip_eos": lambda: of_open_clip({**CFG, "pool_type": "eos", "eos_id": 5}),
    "open_clip_not_causal": lambda: of_open_clip({**CFG, "no_causal_mask": True}, custom=True),
    "open_clip_siglip": lambda: of_open_clip(SIGLIP_CFG, custom=True, init_logit_bias=-10),
    "open_clip_siglip2": lambda: of_open_clip(
        {**SIGLIP_CFG, "act_kwargs": {"approximate": "tanh"}}, custom=True, init_logit_bias=-10
    ),
}


def make(name):
    """Write one golden file."""
    model, forward, files = CASES[name]()
    names = {key: list(value.shape) for key, value in model.state_dict().items() if "position_ids" not in key}
    weights = state_dict(SEED, names, {})
    model.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in weights.items()}, strict=False)
    model.double().eval()
    pixels = (image(SEED, n=2, size=(IMAGE_SIZE, IMAGE_SIZE)).astype("float64") - 127.5) / 127.5
    with torch.no_grad():
        found = forward(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(tokens()).long())
    outputs = dict(zip(("text", "image", "logits", "loss"), (np.asarray(x, "float32") for x in found)))
    DIRECTORY.mkdir(exist_ok=True)
    np.savez_compressed(DIRECTORY / f"{name}.npz", meta=json.dumps({"names": names, "files": files}), **outputs)


# From a text to its features: tokenizers of a few hundred tokens.

START, END = "<|startoftext|>", "<|endoftext|>"
CORPUS = [*encoded_files.ASCII, "a photo of a cat dog seal letter", "it s fine", "cafe schön strasse cats dogs"]


def write_clip(folder):
    """Write CLIP's vocabulary in three forms: OpenAI's file, and both of transformers."""
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel

    letters = list(open_clip_letters())
    assert sorted(letters) == sorted(ByteLevel.alphabet())
    merges = [("a", "t</w>"), ("c", "at</w>"), ("o", "f</w>"), ("l", "e"), ("le", "t"), ("e", "r</w>"), ("s", "e"),
              ("d", "o"), ("do", "g</w>"), ("p", "h"), ("i", "t</w>"), ("'", "s</w>"), ("f", "i")]  # fmt: skip
    words = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), START, END]
    lines = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)])
    for name in ("clip_gzip", "clip_vocabulary"):
        (folder / name).mkdir()
    with gzip.GzipFile(folder / "clip_gzip" / "bpe_simple_vocab_16e6.txt.gz", "wb", mtime=0) as file:
        file.write(lines.encode())
    numbers = {word: n for n, word in enumerate(words)}
    (folder / "clip_vocabulary" / "vocab.json").write_text(json.dumps(numbers), encoding="utf-8")
    (folder / "clip_vocabulary" / "merges.txt").write_text(lines, encoding="utf-8")
    transformers.CLIPTokenizer(numbers, merges).save_pretrained(folder / "clip_json")
    return len(words)


def open_clip_letters():
    from open_clip.tokenizer import bytes_to_unicode

    return bytes_to_unicode().values()


def write_siglip(folder):
    """Write SigLIP's two kinds of vocabularies."""
    import sentencepiece
    import tokenizers
    import transformers

    (folder / "siglip").mkdir()
    files = {"model_prefix": str(folder / "siglip" / "spiece"), "sentence_iterator": iter(CORPUS)}
    sentencepiece.SentencePieceTrainer.train(
        **files, vocab_size=40, minloglevel=2, hard_vocab_limit=False,
        normalization_rule_name="identity", pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    (folder / "siglip" / "spiece.vocab").unlink()
    made = tokenizers.Tokenizer(tokenizers.models.BPE(fuse_unk=True, unk_token="<unk>", byte_fallback=True))
    made.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{n:02X}>" for n in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    model = json.loads(made.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    ends = {"add_eos_token": True, "add_bos_token": False, "padding_side": "right"}
    transformers.Siglip2Tokenizer(vocab=model["vocab"], merges=merges, **ends).save_pretrained(folder / "siglip2")


def write_bert(folder):
    """Write the vocabulary of a BERT, whose tokenizer CLIPA has."""
    import transformers

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;:!'&<>_"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters), "cat", "##s", "dog"]
    vocabulary = {word: n for n, word in enumerate(dict.fromkeys(words))}
    transformers.BertTokenizer(vocabulary).save_pretrained(folder / "bert")


def encoders(folder):
    """Return for each case of `encoded_files` a model, and a function from texts to tokens."""
    import open_clip
    import transformers

    length = encoded_files.LENGTH
    words = write_clip(folder)
    write_siglip(folder)
    write_bert(folder)

    def of_hf(kind, tokenizer, vocabulary, **special):
        text = {**TEXT, **special, "vocab_size": vocabulary, "max_position_embeddings": length}
        config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=VISION, projection_dim=24)
        model = getattr(transformers, f"{kind}Model")(config)
        options = {"padding": "max_length", "truncation": True, "max_length": length, "return_tensors": "pt"}
        return model, lambda texts: tokenizer(texts, **options)["input_ids"], {"config.json": config.to_dict()}

    def of_clip(name, tokenizer, vocabulary, **text):
        text = {**CFG, "context_length": length, "vocab_size": vocabulary, **text}
        config = {"embed_dim": 64, "vision_cfg": VISION_CFG, "text_cfg": text}
        model = open_clip.CustomTextCLIP(**config)
        files = {"open_clip_config.json": {"model_cfg": {**config, "custom_text": True}}}
        if tokenizer is None:  # as `get_tokenizer` does with this configuration
            bpe = folder / "clip_gzip" / "bpe_simple_vocab_16e6.txt.gz"
            tokenizer = open_clip.tokenizer.SimpleTokenizer(str(bpe), context_length=length)
        else:
            there = folder / "open_clip" / name
            shutil.copytree(folder / tokenizer, there)
            (there / "open_clip_config.json").write_text(json.dumps(files["open_clip_config.json"]))
            tokenizer = open_clip.get_tokenizer(f"local-dir:{there}")
        return model, tokenizer, files

    clip = transformers.CLIPTokenizer.from_pretrained(folder / "clip_json")
    siglip = transformers.SiglipTokenizer(str(folder / "siglip" / "spiece.model"))
    siglip2 = transformers.Siglip2Tokenizer.from_pretrained(folder / "siglip2")
    named, free = {"hf_tokenizer_name": "there"}, {"no_causal_mask": True}
    canonical = {**named, "tokenizer_kwargs": {"clean": "canonicalize"}}
    last = {**free, "pool_type": "last"}
    return {
        "hf_clip": lambda: of_hf("CLIP", clip, words, eos_token_id=words - 1),
        "hf_siglip": lambda: of_hf("Siglip", siglip, 40),
        "hf_siglip2": lambda: of_hf("Siglip", siglip2, 300),
        "open_clip": lambda: of_clip("a", None, words),
        "open_clip_not_causal": lambda: of_clip("b", None, words, **free),
        "open_clip_last": lambda: of_clip("c", None, words, **last),
        "open_clip_named": lambda: of_clip("d", "clip_json", words, **free, **named),
        "open_clip_siglip2": lambda: of_clip("e", "siglip2", 300, **last, **canonical, proj_bias=True),
        "open_clip_bert": lambda: of_clip(
            "f", "bert", 120, **last, **named, tokenizer_kwargs={"strip_sep_token": True}
        ),
    }


def make_encoded():
    """Write the golden files of `encode_texts`."""
    directory = encoded_files.DIRECTORY
    directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cases = encoders(Path(folder))
        kinds = {kind for kinds in encoded_files.TOKENIZERS.values() for kind in kinds}
        files = {
            f"{kind}/{path.name}": np.frombuffer(path.read_bytes(), "uint8")
            for kind in sorted(kinds)
            for path in sorted((Path(folder) / kind).iterdir())
        }
        np.savez_compressed(directory / "tokenizers.npz", **files)
        for name, make_case in cases.items():
            model, tokenize, files = make_case()
            names = {key: list(value.shape) for key, value in model.state_dict().items() if "position_ids" not in key}
            weights = state_dict(SEED, names, {})
            model.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in weights.items()}, strict=False)
            model.double().eval()
            ids = torch.as_tensor(tokenize(list(encoded_files.TEXTS)))
            with torch.no_grad():
                found = model.get_text_features(ids) if name.startswith("hf") else model.encode_text(ids)
            found = getattr(found, "pooler_output", found)
            features = (found / found.norm(dim=-1, keepdim=True)).numpy().astype("float32")
            meta = json.dumps({"names": names, "files": files})
            np.savez_compressed(directory / f"{name}.npz", meta=meta, features=features)
            print(name, ids[0].tolist(), int(ids.max()))


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["encoded"]):
        make_encoded()
    for name in CASES:
        if not sys.argv[1:] or name.startswith(tuple(sys.argv[1:])):
            make(name)
            print(name)
