"""Write a model's content into a folder, and read it from there.

The folder holds `model.safetensors`, the tensors, and `config.json`, the facts. The file of tensors
has a digest of itself and one of the facts, so that damaged or changed files are refused.
"""

import json
from dataclasses import asdict
from pathlib import Path

import cattrs

from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_text
from fedloom.common.folders import read_text
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import digest
from fedloom.machine import packages
from fedloom.models.content import ModelContent, ModelFacts
from fedloom.models.needed_plugins import check_plugins
from fedloom.models.run_folder import CONFIG, TENSORS

CARD = "README.md"
# the value of the key `format` of config.json
FORMAT = "fedloom model 1"
ANEW = "get the folder anew, or publish the run into another folder"


def write_content(content: ModelContent, folder: Path) -> None:
    """Write the tensors and the facts of a model into a folder, which is made."""
    facts = {"format": FORMAT, "versions": packages.versions()} | asdict(content.facts)
    # JSON has lists in place of tuples
    facts = json.loads(json.dumps(facts))
    tensor_files.save(folder / TENSORS, content.tensors, config=digest(facts))
    write_text(folder / CONFIG, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def read_content(folder: Path, advice: str = ANEW) -> ModelContent:
    """Read what `write_content` wrote.

    Args:
        folder: the folder.
        advice: what to do if its files are refused, with which the error ends.

    Raises:
        FedLoomError: a file is missing, damaged or of another version, or was changed; or a plugin
            is missing or of another version.
    """
    config = folder / CONFIG
    facts = read_facts(config, advice)
    if not (folder / TENSORS).is_file():
        raise FedLoomError(f"{folder / TENSORS}: missing; {advice}")
    tensors, sealed = tensor_files.load(folder / TENSORS, advice=advice)
    if sealed.get("config") != digest(facts):
        raise FedLoomError(
            f"{config}: changed since it was published, or not of the {TENSORS} beside it; {advice}"
        )
    try:
        content = ModelContent(cattrs.structure(facts, ModelFacts), tensors)
    except (KeyError, ValueError, TypeError, cattrs.BaseValidationError) as error:
        reason = "; ".join(cattrs.transform_error(error))
        raise FedLoomError(f"{config}: not the facts of a model ({reason}); {advice}") from None
    version = facts.get("versions", {}).get("fedloom", "?")
    made_with = f"published with FedLoom {version}"
    check_plugins(config, content.facts.spec, made_with, "install that version")
    return content


def read_facts(config: Path, advice: str = ANEW) -> JsonDict:
    """Return the facts in a config.json, of which only the format is checked.

    Raises:
        FedLoomError: the file is missing, damaged or of another version.
    """
    try:
        facts = {**json.loads(read_text(config))}
    except (ValueError, TypeError, RecursionError) as error:
        raise FedLoomError(f"{config}: damaged or incomplete ({error}); {advice}") from None
    found = facts.get("format")
    if found != FORMAT:
        raise FedLoomError(f"{config}: its format must be '{FORMAT}', got {found!r}; {advice}")
    return facts
