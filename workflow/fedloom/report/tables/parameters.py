"""How many numbers a client sends and receives in a round (SGPT, Table 5; pFedPG, Table 1)."""

from fedloom.config.output_kinds import RunsTable
from fedloom.report.metrics import frame
from fedloom.report.tables.communication import NUMBER
from fedloom.report.tables.layout import Column
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

COLUMNS = {
    "params_up": Column("Sent by a client", higher_is_better=False, decimals=0),
    "params_down": Column("Sent to a client", higher_is_better=False, decimals=0),
}


class Parameters(RunsTable):
    """Numbers that a client sends and receives in a round (SGPT Table 5)."""

    caption = (
        "Numbers of four bytes that a client sends and receives in a round, mean over rounds "
        "and clients. What a wrapper packs counts by its bytes."
    )


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return the numbers of four bytes sent by and to a client, the mean over rounds and clients.

    What a wrapper packs counts by its bytes: a number of one byte is a quarter.
    """
    rounds = frame(run.rounds)
    return {
        "params_up": float((rounds["bytes_up"] / rounds["clients"]).mean()) / NUMBER,
        "params_down": float((rounds["bytes_down"] / rounds["clients"]).mean()) / NUMBER,
    }


def column(metric: str) -> Column:
    """Return how the numbers of one direction are shown."""
    return COLUMNS[metric]


def describe(job: TableJob, runs: list[ShownRun]) -> str:
    """Say what is counted."""
    return (
        "numbers of four bytes that a client sends and receives in a round, mean over rounds and "
        "clients; of a frozen backbone nothing is sent"
    )
