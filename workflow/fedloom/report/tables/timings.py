"""How long a method's own steps take beside training (FedPHA, Table 3)."""

from fedloom.config.output_kinds import RunsTable
from fedloom.report.metrics import artefact
from fedloom.report.tables.layout import Column
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

TRAINING = "training"  # stage that the others are shares of


class Timings(RunsTable):
    """Milliseconds of a method's own steps beside training (FedPHA Table 3)."""

    artefact_name = "timings"
    caption = (
        "Wall-clock time of a client's own steps in a round, on this machine, and their share "
        "of its local training."
    )


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return `<stage>_ms`, the mean over repetitions, and `<stage>_percent` of training's."""
    frame = artefact(run)
    means = frame.groupby("stage", sort=False)["milliseconds"].mean()
    numbers = {f"{stage}_ms": float(value) for stage, value in means.items()}
    others = [str(stage) for stage in means.index if stage != TRAINING]
    share = {f"{name}_percent": 100 * means[name] / means[TRAINING] for name in others}
    return numbers | {name: float(value) for name, value in share.items()}


def column(metric: str) -> Column:
    """Return how a time is shown; it is of one machine, so that none is best."""
    stage, _, unit = metric.rpartition("_")
    name = stage.replace("_", " ").capitalize()
    title = f"{name} (ms)" if unit == "ms" else f"{name} (% of training)"
    return Column(title, higher_is_better=None)


def describe(job: TableJob, runs: list[ShownRun]) -> str:
    """Say what is timed."""
    return (
        "time of a client's own steps in a round on the wall clock of this machine, mean over "
        "repetitions after the last round; training: the same client's local training, a cohort's "
        "divided by its clients"
    )
