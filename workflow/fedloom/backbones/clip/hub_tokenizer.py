"""Tokenizers that a hub's repository holds, such as SigLIP's, read without `transformers`.

open_clip ships CLIP's own tokenizer. For other models it names a repository of the hub. This module
reads two files of it: `tokenizer.json`, in the format of the library `tokenizers`, and
`tokenizer_config.json`, which says what ends a text and what fills it up. It cleans texts as
open_clip does.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
from open_clip.tokenizer import get_clean_fn

from fedloom.common.errors import FedLoomError, one_line, shorten
from fedloom.common.json_types import JsonDict
from fedloom.config.backbones import TOKENIZER_FILES, tokenizer_digest
from fedloom.machine.extras import require_extra

TOKENS_FILE, SETTINGS_FILE = TOKENIZER_FILES


class HubTokenizer:
    """A tokenizer of a hub's repository, whose texts end with an EOS and start with no SOS.

    Its files are read by `read`, and nothing else may be called before.

    Attributes:
        sot_token_id: None, since texts start with no token of their own.
        eot_token_id: the token at the end of a text.
        pad_token_id: the token that fills up a text to the full length.
        digest: a digest of the files.
    """

    sot_token_id = None
    eot_token_id: int
    pad_token_id: int
    digest: str

    def __init__(self, name: str, repository: str, clean: str, folder: Path | None = None):
        """Take the tokenizer of the model `name`.

        Args:
            name: the backbone, for errors.
            repository: the hub's repository that open_clip names.
            clean: how open_clip cleans texts for this model, such as "canonicalize".
            folder: a folder with the files. By default, they are downloaded, and kept.
        """
        self._name = name
        self._repository = repository
        self._clean = get_clean_fn(clean)
        self._folder = folder
        self._tokenizer: Any = None

    def read(self) -> None:
        """Read the files.

        Raises:
            FedLoomError: `tokenizers` is not installed, a file cannot be had, or its content is not
                what it must be.
        """
        require_extra("tokenizers")
        import tokenizers

        paths = [self._file(file) for file in (TOKENS_FILE, SETTINGS_FILE)]
        contents = [path.read_bytes() for path in paths]
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(contents[0])
            settings = json.loads(contents[1])
        # the library raises Exception itself
        except Exception as error:
            raise FedLoomError(
                f"backbone {self._name}: tokenizer '{paths[0].parent}' is damaged "
                f"({shorten(one_line(error))}); get its files anew"
            ) from error

        # a text longer or shorter than others is left as it is
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if settings.get("add_bos_token") or settings.get("padding_side", "right") != "right":
            raise FedLoomError(
                f"backbone {self._name}: tokenizer '{paths[1]}' must put no token before a text, "
                "got add_bos_token or another padding_side than right; take the files of "
                f"{self._repository}"
            )
        self.eot_token_id = self._special(settings, "eos_token", paths[1])
        self.pad_token_id = self._special(settings, "pad_token", paths[1])
        self.digest = tokenizer_digest(paths)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without EOS.

        A text that begins with a space is the rest of a text: its first word gets the token that it
        has behind other words.
        """
        cleaned = self._clean(text)
        if text.startswith(" "):
            cleaned = f" {cleaned}"
        return self._tokenizer.encode(cleaned, add_special_tokens=False).ids

    def _file(self, file: str) -> Path:
        """Return the path of a file of the repository; raise a FedLoomError if it cannot be had."""
        if self._folder is not None:
            path = self._folder / file
            if not path.is_file():
                raise FedLoomError(
                    f"backbone {self._name}: tokenizer '{self._folder}' must be a folder with "
                    f"{TOKENS_FILE} and {SETTINGS_FILE} of the hub's repository "
                    f"{self._repository}, got none with {file}; put it there"
                )
            return path

        try:
            return Path(huggingface_hub.hf_hub_download(self._repository, file))
        # the hub's library may raise any exception
        except Exception as error:
            raise FedLoomError(
                f"backbone {self._name}: its tokenizer cannot be downloaded "
                f"({shorten(one_line(error))}); get {TOKENS_FILE} and {SETTINGS_FILE} of the hub's "
                f"repository {self._repository} on another machine, and set "
                "backbones.<label>.tokenizer to their folder"
            ) from error

    def _special(self, settings: JsonDict, key: str, path: Path) -> int:
        """Return the token that the settings name; it is a text, or a mapping with `content`."""
        token = settings.get(key)
        if isinstance(token, Mapping):
            token = token.get("content")
        number = None
        if isinstance(token, str):
            number = self._tokenizer.token_to_id(token)
        if number is None:
            raise FedLoomError(
                f"backbone {self._name}: tokenizer '{path}' must name a token of {TOKENS_FILE} as "
                f"{key}, got {token!r}; get both files from one repository"
            )
        return number


def hub_tokenizer(name: str, text_config: JsonDict, folder: Path | None) -> HubTokenizer:
    """Return the tokenizer that open_clip's config of the text tower of model `name` names.

    Raises:
        FedLoomError: it is of a kind that FedLoom does not read.
    """
    ways = text_config.get("tokenizer_kwargs") or {}
    if ways.keys() - {"clean"} or text_config.get("tokenizer_mode"):
        raise FedLoomError(
            f"backbone {name}: its tokenizer is of another kind than SigLIP's, and is not read; "
            "choose another name (backbones.<label>.name)"
        )
    return HubTokenizer(
        name, text_config["hf_tokenizer_name"], ways.get("clean", "whitespace"), folder
    )
