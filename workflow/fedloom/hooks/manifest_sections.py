"""The keys of the sections of method.toml, such as [paper] and [cost]."""

from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import Field

from fedloom.common.json_types import JsonDict
from fedloom.common.schema import Identifier, Keys

Item = TypeVar("Item")
# true, false, or the values that options must have
Condition = bool | JsonDict
# how the server averages updates
Mean = Literal["plain", "weighted"]
# not strict, since TOML has lists and no tuples
Items: TypeAlias = Annotated[tuple[Item, ...], Field(strict=False)]


class Paper(Keys):
    """Where a method was published."""

    citation: str
    """Authors, title, place and year of the publication."""
    link: str | None = None
    """DOI, arXiv number or web address of the paper."""
    equations: str | None = None
    """Equations and algorithms of the paper that the plugin computes."""

    @property
    def address(self) -> str | None:
        """The web address of the paper, made from its DOI or arXiv number; None without a link."""
        if not self.link or self.link.startswith("http"):
            return self.link
        if self.link.startswith("10."):
            return f"https://doi.org/{self.link}"
        return f"https://arxiv.org/abs/{self.link.removeprefix('arXiv:')}"


class Artefact(Keys):
    """A table that the hook `artefact` of a method, or `audit_table` of a wrapper, returns."""

    description: str
    """Says what the table holds."""
    options: JsonDict = Field({})
    """Values of options with which the hook returns the table. Default: it returns the table with
    any values."""


class Look(Keys):
    """How figures show a method, in matplotlib's terms."""

    colour: Annotated[str, Field(pattern="^#[0-9A-Fa-f]{6}$")] | None = None
    """Colour, as #RRGGBB."""
    marker: Literal["o", "s", "^", "D", "v", "P", "X", "*"] | None = None
    """Marker, as matplotlib writes it."""


class Cost(Keys):
    """The memory and the time that a method adds to those of a job.

    The images, the backbone and the number of clients are known without these facts.
    """

    prompts: Items[Identifier | int] = ()
    """Numbers whose sum is how many prompts each block of a ViT has. An entry may also name an
    option that holds a number. If `trains_weights` names an option, there are prompts only where
    that option is `prompts`."""
    trains_weights: str | None = None
    """Name of an option with a regular expression. Clients train the weights of the backbone that
    it matches. An empty expression matches all weights. With the values `prompts` and `head`,
    clients train none of them."""
    keeps_weights: bool = False
    """True if each client keeps its trained weights of the backbone from round to round."""
    passes: str | int = 1
    """How often a step encodes its images, and the texts of all classes: a number, or the name of
    an option that holds the number. `image`: a step encodes the texts once for every image."""
    personalize_epochs: str | int = 0
    """Number of epochs that the hook `personalize` trains before an evaluation, or the name of an
    option that holds the number."""
    no_server_model: Condition = False
    """Condition with which `predict` returns None for the server's model. In the global test, every
    client's model then answers in its place."""


def holds(condition: Condition, options: dict) -> bool:
    """Return True if a condition is true, or if the options have the values that it names."""
    if isinstance(condition, bool):
        return condition
    return condition.items() <= options.items()
