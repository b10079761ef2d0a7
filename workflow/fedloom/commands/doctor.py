"""`fedloom doctor`: whether this machine and this folder are well, and what to do where not."""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fedloom.common.errors import FedLoomError


class Finding(NamedTuple):
    """A line of `fedloom doctor`.

    Attributes:
        text: what is so and, where that needs a hand, what to do.
    """

    text: str
    well: bool = True


def add_to(commands: argparse._SubParsersAction) -> None:
    """Add `doctor` to the commands of `fedloom`."""
    about = "look at this machine and this folder, and say what needs a hand"
    command = commands.add_parser("doctor", help=about, description=run.__doc__)
    command.set_defaults(function=run)


def run(_: argparse.Namespace) -> None:
    """Print a line per finding, with what to do where something needs a hand; status 1 if any."""
    # imports Snakemake, which other commands do not need
    from fedloom.commands.diagnosis import environment, leftovers

    looks = (
        *(environment.versions, environment.computing, environment.graphics, environment.disk),
        *(leftovers.runs, leftovers.jobs, leftovers.half_written, leftovers.slurm),
    )
    # two looks may end with the same error
    findings = dict.fromkeys(finding for look in looks for finding in _findings(look))
    for finding in findings:
        print("ok   " if finding.well else "MEND ", finding.text)
    needs = sum(not finding.well for finding in findings)
    if not needs:
        print("all is well")
        return
    print(f"{needs} {'line needs' if needs == 1 else 'lines need'} a hand")
    sys.stdout.flush()
    sys.exit(1)


def _findings(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a look finds; an error that a person can mend is the last of it."""
    try:
        yield from look()
    except FedLoomError as error:
        yield Finding(str(error), well=False)
