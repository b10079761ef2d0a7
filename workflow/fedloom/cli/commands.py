"""Define the commands that take settings of a study (`--set`, `--only`), and those that run one."""

from pathlib import Path

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
        own_words = args
        ctx.obj = list[str]()
        if "--" in args:
            cut = args.index("--")
            own_words = args[:cut]
            ctx.obj = args[cut + 1 :]

        # a bare --smoke must not take the next word for its value
        own_words = ["--smoke=micro" if word == "--smoke" else word for word in own_words]
        return super().parse_args(ctx, own_words)

    def invoke(self, ctx: click.Context) -> int:
        """Call the command's function."""
        words = ctx.params
        files = [] if words["study"] is None else [words["study"]]
        options = RunOptions(
            files=files,
            changes=words["changes"],
            only=words["only"],
            cores=words["cores"],
            dry=words["dry"],
            snakemake_options=ctx.obj,
        )
        ctx.params = {"options": options, "smoke": words["smoke"]}
        return super().invoke(ctx)
