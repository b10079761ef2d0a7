"""The commands of `fedloom`, read in this process as a terminal's words."""

import click

from fedloom.cli.main import fedloom


def parsed(*words: str) -> click.Context:
    """Return the command that the words name, with its arguments; `invoke` runs it."""
    command: click.Command | None = fedloom
    rest = list(words)
    while isinstance(command, click.Group):
        _, command, rest = command.resolve_command(click.Context(command), rest)
    assert command is not None, words
    return command.make_context(" ".join(words), rest)


def invoked(*words: str) -> int:
    """Run a command and return its exit status."""
    context = parsed(*words)
    return context.command.invoke(context) or 0
