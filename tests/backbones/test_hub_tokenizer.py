"""Tokenizers of a hub's repository are read as open_clip reads them, from a folder or the hub."""

import json

import huggingface_hub
import pytest

from clip_families import folder_of_families
from fedloom.backbones.clip import loading
from fedloom.backbones.clip.hub_tokenizer import HubTokenizer, hub_tokenizer
from fedloom.config.backbones import TOKENIZER_FILES, tokenizer_digest
from fedloom.config.settings import BackboneSettings
from fedloom.models.weights import with_files_below
from hub_tokenizers import LETTERS, WORDS, write_siglip, write_siglip2
from refusals import refused

CONFIG = {"hf_tokenizer_name": "tiny/siglip", "tokenizer_kwargs": {"clean": "canonicalize"}}


def _read(folder):
    tokenizer = HubTokenizer("tiny", "tiny/siglip", "canonicalize", folder)
    tokenizer.read()
    return tokenizer


def _siglip_token(word):
    """Return the token of a word in SigLIP's files: they stand behind 4 others and the letters."""
    return 4 + len(LETTERS) + WORDS.index(word)


def test_siglips_words_are_cleaned_and_end_with_eos(tmp_path):
    tokenizer = _read(write_siglip(tmp_path))
    expected = [_siglip_token(word) for word in ("a", "photo", "of", "a", "great", "shark")]
    assert tokenizer.encode("A photo of a GREAT_shark!") == expected
    assert (tokenizer.eot_token_id, tokenizer.pad_token_id) == (1, 1)
    assert tokenizer.encode(" great shark.") == expected[-2:], "the same words behind others"


def test_siglip_2s_words_differ_behind_others(tmp_path):
    """Only a word behind a space begins with the mark of a space."""
    tokenizer = _read(write_siglip2(tmp_path))
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert tokenizer.encode("cat") == [vocabulary["cat"]]
    assert tokenizer.encode(" cat.") == [vocabulary["▁cat"]]
    assert tokenizer.encode("Great cat") == [vocabulary["great"], vocabulary["▁cat"]]
    assert (tokenizer.eot_token_id, tokenizer.pad_token_id) == (1, 0)


def test_the_digest_is_that_of_both_files(tmp_path):
    one = _read(write_siglip(tmp_path / "a"))
    assert one.digest == _read(write_siglip(tmp_path / "b")).digest
    file = tmp_path / "b/tokenizer_config.json"
    file.write_text(file.read_text() + "\n")
    assert one.digest != _read(tmp_path / "b").digest


def test_files_come_from_the_hubs_repository(tmp_path, monkeypatch):
    folder = write_siglip(tmp_path)
    asked = []

    def downloaded(repository, file):
        asked.append((repository, file))
        return str(folder / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", downloaded)
    tokenizer = hub_tokenizer("tiny", CONFIG, None)
    tokenizer.read()
    assert asked == [("tiny/siglip", f"tokenizer{end}.json") for end in ("", "_config")]
    assert tokenizer.encode("a cat") == [_siglip_token("a"), _siglip_token("cat")]


def test_without_the_hub_the_error_says_what_to_get(monkeypatch):
    def offline(*arguments):
        raise OSError("We couldn't connect to the hub\nand more lines")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with refused("tiny", "connect", "tokenizer.json", "tiny/siglip", "backbones.<label>.tokenizer"):
        hub_tokenizer("tiny", CONFIG, None).read()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"add_bos_token": True}, ["add_bos_token"]),
        ({"padding_side": "left"}, ["padding_side"]),
        ({"eos_token": None}, ["eos_token", "None"]),
        ({"pad_token": "<nowhere>"}, ["pad_token", "<nowhere>"]),
    ],
)
def test_settings_that_are_not_siglips_are_refused(change, words, tmp_path):
    write_siglip(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with refused("backbone tiny", "tokenizer_config.json", *words):
        _read(tmp_path)


def test_a_damaged_or_a_missing_file_is_named(tmp_path):
    write_siglip(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with refused("backbone tiny", tmp_path, "damaged"):
        _read(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with refused("backbone tiny", tmp_path, "tokenizer.json", "tiny/siglip"):
        _read(tmp_path)


def test_a_tokenizer_of_another_kind_is_refused():
    for more in ({"tokenizer_kwargs": {"strip_sep_token": True}}, {"tokenizer_mode": "clips"}):
        with refused("ViT-H-14-CLIPA", "tokenizer"):
            hub_tokenizer("ViT-H-14-CLIPA", CONFIG | more, None)


def test_clips_own_tokenizer_has_no_folder():
    folder = folder_of_families()
    spec = {"name": "tiny-convnext", "weights": "none", "tokenizer": str(folder / "siglip")}
    with refused("tiny-convnext", "leave out tokenizer"):
        loading.load(spec)


def test_files_other_than_those_of_the_plan_are_refused(tmp_path):
    folder_of_families()
    folder = write_siglip(tmp_path / "tokens")
    planned = tokenizer_digest(folder / name for name in TOKENIZER_FILES)
    spec = {"name": "tiny-siglip", "weights": "none", "tokenizer": str(folder)}
    assert loading.load(spec | {"tokenizer_sha256": planned}).tokenizer_digest == planned
    write_siglip2(folder)
    with refused("tiny-siglip", folder, planned[:12], "put those back"):
        loading.load(spec | {"tokenizer_sha256": planned})


@pytest.mark.parametrize("at", ["files/tokens", "tokens"])
def test_a_models_folder_may_hold_the_tokenizer(at, tmp_path):
    """A run names it by a path in the study's folder; a published model has it by its name."""
    settings = BackboneSettings("b", "open_clip", {"name": "x", "tokenizer": "files/tokens"})
    assert with_files_below(settings, tmp_path) == settings
    write_siglip(tmp_path / at)
    assert with_files_below(settings, tmp_path).settings["tokenizer"] == str(tmp_path / at)
    without = BackboneSettings("b", "open_clip", {"name": "x"})
    assert with_files_below(without, tmp_path) == without
