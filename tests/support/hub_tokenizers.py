"""Tiny tokenizers in the files of the hub's repositories that open_clip names for SigLIP.

`tokenizer.json` has the parts of the real ones: SigLIP's is a Unigram model, in which each word
begins with "▁", and SigLIP 2's (Gemma's) is a BPE model, in which only words behind a space do.
"""

import json
from pathlib import Path

# the words that are one token each; any other text is split into letters
WORDS = ("a", "photo", "of", "cat", "dog", "great", "white", "shark", "x")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PLACES = 64
# how many tokens there are at most
VOCABULARY = 128


def write_siglip(folder: Path) -> Path:
    """Write a tokenizer of SigLIP's kind: EOS is token 1, which also fills up a text."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [(letter, -5.0) for letter in LETTERS]
    pieces += [(f"▁{word}", -3.0) for word in WORDS]
    specials = [_special(number, name) for number, (name, _) in enumerate(pieces[:3])]
    space = {"replacement": "▁", "prepend_scheme": "always", "split": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", **space},
        "post_processor": _template("</s>"),
        "decoder": {"type": "Metaspace", **space},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": False},
    }
    settings = {"eos_token": "</s>", "pad_token": "</s>", "tokenizer_class": "T5Tokenizer"}
    return _write(folder, content, settings)


def write_siglip2(folder: Path) -> Path:
    """Write a tokenizer of SigLIP 2's kind: EOS is token 1, and token 0 fills up a text."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", *LETTERS]
    merges = list[list[str]]()
    behind_a_space = [f"▁{word}" for word in WORDS]
    for word in (*behind_a_space, *WORDS):
        # join the letters from the left, so that "▁cat" becomes ▁c, ▁ca, ▁cat
        for end in range(2, len(word) + 1):
            merge = [word[: end - 1], word[end - 1]]
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append(merge)
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(number, tokens[number]) for number in range(4)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": _template("<eos>"),
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    settings = {
        "add_bos_token": False,
        "add_eos_token": True,
        "padding_side": "right",
        "eos_token": {"__type": "AddedToken", "content": "<eos>", "special": True},
        "pad_token": {"__type": "AddedToken", "content": "<pad>", "special": True},
        "tokenizer_class": "GemmaTokenizer",
    }
    return _write(folder, content, settings)


WRITERS = {"siglip": write_siglip, "siglip2": write_siglip2}


def _special(number: int, content: str) -> dict:
    """Return an entry of a token that no text is split into."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": True}


def _template(end: str) -> dict:
    """Return the part that puts the token `end` behind a text."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    token = {"SpecialToken": {"id": end, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [text, token],
        "pair": [text, token],
        "special_tokens": {end: {"id": end, "ids": [1], "tokens": [end]}},
    }


def _write(folder: Path, content: dict, settings: dict) -> Path:
    """Write both files into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
