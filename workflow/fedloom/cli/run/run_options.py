"""Hold what `fedloom run`, or another command that runs a study, was asked to do."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# options of Snakemake that name a study or change it
STUDY_OPTIONS = ("--configfile", "--configfiles", "--config", "-C")


@dataclass(frozen=True)
class RunOptions:
    """The study that a command runs, and how it runs it."""

    # the study's files; default: config.yaml
    files: Sequence[Path] = ()
    # changes of single keys, such as "study.rounds=4"
    changes: Sequence[str] = ()
    # labels and seeds to which the study is narrowed, such as "methods=sgpt,pfedpg"
    only: Sequence[str] = ()
    # the most CPU cores that jobs use at a time; default: as the profile says
    cores: int | None = None
    # only show what would run
    dry: bool = False
    # further arguments of Snakemake, which may name the study in the place of `files`
    snakemake_options: Sequence[str] = ()
    # also write the study's report
    reporting: bool = False
    # the words of the command line before `--`, as they were typed
    words: Sequence[str] = ()

    @property
    def naming_option(self) -> str | None:
        """The first option of Snakemake that names or changes the study; None without one."""
        for word in self.snakemake_options:
            if word.partition("=")[0] in STUDY_OPTIONS:
                return word
        return None

    @property
    def report_command(self) -> str:
        """The command that writes the report of this study, for a shell."""
        words = ["fedloom", "report", *self.words]
        # without a study there, other options such as --forceall only say how jobs run
        if self.naming_option:
            words += ["--", *self.snakemake_options]
        return shlex.join(words)
