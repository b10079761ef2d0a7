"""Define kinds of commands.

- groups whose help has headings
- commands that take settings of a study (`--set`, `--only`)
- commands that run a study
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fedloom.cli.run.bundled_studies import find_study_file
from fedloom.cli.run.run_options import RunOptions

POSITIVE = click.IntRange(min=1)
SET_OPTION = click.Option(
    ["--set", "changes"],
    multiple=True,
    metavar="KEY=VALUE ...",
    help="Change keys of the config, such as study.rounds=4; `study.` may be left out.",
)
ONLY_OPTION = click.Option(
    ["--only", "only"],
    multiple=True,
    metavar="KEY=LABEL,... ...",
    help=(
        "Narrow the study to some of its labels, such as methods=fedvpt,sgpt seeds=0. Keys: "
        "scenarios, datasets, partitions, backbones, methods, seeds, tables, figures."
    ),
)
# the words of a LaunchCommand
LAUNCH_PARAMETERS = [
    click.Argument(
        ["study"], required=False, type=find_study_file, metavar="[STUDY] [-- SNAKEMAKE OPTIONS]"
    ),
    click.Option(
        ["--cores"],
        type=POSITIVE,
        help="Most CPU cores that jobs use at a time; default: all of this machine.",
    ),
    click.Option(
        ["-n", "--dry-run", "dry"], is_flag=True, help="Show which jobs would run, and run none."
    ),
    SET_OPTION,
    click.Option(
        ["--smoke"],
        is_flag=False,
        flag_value="micro",
        type=click.Choice(["micro", "real"]),
        help="Run the whole study shrunk, on made-up images, into results/smoke/<study>. With "
        "--smoke=real, backbones keep their size, and each client takes one step.",
    ),
    ONLY_OPTION,
]


class GroupWithHeadings(click.Group):
    """A group whose help lists its commands below headings, each with its whole summary.

    Args:
        headings: the names of the commands below each heading; default: all below "Commands".
        settings: those of every group of click.
    """

    def __init__(
        self, *words: Any, headings: Mapping[str, Sequence[str]] | None = None, **settings: Any
    ) -> None:
        super().__init__(*words, **settings)
        self.headings = headings

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands; equally wide names let the summaries begin in one column."""
        headings = self.headings or {"Commands": self.list_commands(ctx)}
        width = max(map(len, self.commands))
        for heading, names in headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), self._summary(name)) for name in names])

    def _summary(self, name: str) -> str:
        """Return what a command does; its docstring is not cut, however long its summary is."""
        command = self.commands[name]
        return command.get_short_help_str(limit=len(command.help or ""))


class CommandWithSettings(click.Command):
    """A command whose options `--set` and `--only` take several settings each.

    If a key is set several times, the last value counts.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, with `--set` or `--only` before every KEY=VALUE.

        A KEY=VALUE belongs to that of the two options which stands last before it, or to `--set`.
        """
        words = list[str]()
        option = "--set"
        for word in args:
            # a word with = is a setting, unless it is the name of a file
            is_setting = "=" in word and not word.startswith("-") and not Path(word).exists()
            if is_setting and words[-1:] != [option]:
                words.append(option)
            words.append(word)

            name = word.partition("=")[0]
            if name in ("--set", "--only"):
                option = name
        return super().parse_args(ctx, words)


class LaunchCommand(CommandWithSettings):
    """A command that runs a study; words for Snakemake stand after `--`.

    Its function gets the words as RunOptions, and the value of `--smoke`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`, and keep those after it for Snakemake."""
        own_words = [*args]
        snakemake_options = list[str]()
        if "--" in args:
            cut = args.index("--")
            own_words = args[:cut]
            snakemake_options = args[cut + 1 :]
        ctx.obj = own_words, snakemake_options

        # a bare --smoke must not take the next word for its value
        own_words = ["--smoke=micro" if word == "--smoke" else word for word in own_words]
        return super().parse_args(ctx, own_words)

    def invoke(self, ctx: click.Context) -> int:
        """Call the command's function."""
        words = ctx.params
        typed, snakemake_options = ctx.obj
        files = [] if words["study"] is None else [words["study"]]
        options = RunOptions(
            files=files,
            changes=words["changes"],
            only=words["only"],
            cores=words["cores"],
            dry=words["dry"],
            snakemake_options=snakemake_options,
            words=typed,
        )
        ctx.params = {"options": options, "smoke": words["smoke"]}
        return super().invoke(ctx)
