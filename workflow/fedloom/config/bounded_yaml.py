"""Parse untrusted YAML: without tags, of bounded size, and without aliases that form a circle.

A short text can be dangerous in three ways: aliases of aliases can stand for billions of values, an
alias can make a mapping contain itself, and a tag can name a Python object. All three are refused
while the text is read.
"""

import warnings
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import ReusedAnchorWarning
from ruamel.yaml.events import AliasEvent, Event

# The most values that a text may have. So many take some ten seconds to read. The values behind an
# alias count each time that the alias is used.
MOST_VALUES = 100_000
# how deeply mappings and lists may be nested in each other
DEEPEST = 100


def parse_bounded(text: str) -> Any:
    """Parse YAML text into values that carry their line numbers, or raise a YAMLError."""
    yaml = YAML(typ="rt")
    yaml.Composer = _BoundedComposer
    with warnings.catch_warnings():
        # YAML allows a second value for an anchor: from there on, aliases stand for that value
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        return yaml.load(text)


class _BoundedComposer(Composer):
    """Build the nodes of a document, and count them."""

    def __init__(self, loader: object = None) -> None:
        """Begin with no value counted."""
        super().__init__(loader)
        self.values = 0
        # the number of values behind each anchor; it is entered once the anchor's value is whole
        self.sizes: dict[str, int] = {}

    def compose_node(self, parent: object, index: object) -> Any:
        """Build the next node, or raise a ComposerError at its place."""
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            self._count_alias(event)
            return super().compose_node(parent, index)

        before = self.values
        self._count(1, event)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            _refuse(f"the tag {tag} cannot be used; write the value without it", event)
        if self.depth >= DEEPEST:
            _refuse(f"more than {DEEPEST} mappings and lists in each other; use fewer", event)
        # while the value is built, its anchor has no size, not even the size of an earlier value
        self.sizes.pop(event.anchor, None)
        node = super().compose_node(parent, index)
        if event.anchor is not None:
            self.sizes[event.anchor] = self.values - before
        return node

    def _count_alias(self, event: AliasEvent) -> None:
        """Count the values behind an alias; refuse an alias inside its own value."""
        if event.anchor in self.sizes:
            self._count(self.sizes[event.anchor], event)
        elif event.anchor in self.anchors:
            _refuse(f"the alias *{event.anchor} refers to itself; write the value out", event)
        # else there is no such anchor, and ruamel raises the error

    def _count(self, values: int, event: Event) -> None:
        """Add to the number of values; refuse more than MOST_VALUES."""
        self.values += values
        if self.values > MOST_VALUES:
            most = f"more than {MOST_VALUES} values, those behind each alias (*) counted"
            _refuse(f"{most}; use fewer of them", event)


def _refuse(problem: str, event: Event) -> NoReturn:
    """Raise a ComposerError at an event's line and column."""
    raise ComposerError(None, None, problem, event.start_mark)
