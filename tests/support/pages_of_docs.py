"""The pages of the documentation."""

import re
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A code block of a page."""

    page: Path
    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(page, language, text) for language, text in BLOCK.findall(page.read_text())]
