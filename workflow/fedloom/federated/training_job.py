"""A job's rounds: resumed from the last finished one, written whole or not at all.

A run has one checkpoint, overwritten after every round and never deleted. It belongs to a run's
configuration and to the job it was written in; any other is left alone until overwritten.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import torch
from filelock import FileLock, Timeout

from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError, NotFiniteError
from fedloom.common.io import write_table
from fedloom.common.logs import progress
from fedloom.common.receipts import digest, sha256
from fedloom.federated import stopping
from fedloom.federated.confusion import Confusion
from fedloom.federated.evaluate import evaluate_clients, evaluate_globally
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.shared_model import SharedModel
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.methods.calls import Hooks
from fedloom.plan.jobs import TrainJob

log = logging.getLogger(__name__)

# whose version bears on a run's numbers: those of the runtime and those that plugins may import
LIBRARIES = (
    "numpy", "opacus", "open_clip_torch", "scikit-learn", "scipy", "timm", "torch", "torchvision",
)  # fmt: skip
EVALUATION = pa.schema(
    [
        ("round", pa.int32()),
        ("client_id", pa.int32()),
        ("domain", pa.string()),
        ("participating", pa.bool_()),
        ("personalized", pa.bool_()),
        ("num_test", pa.int32()),
        ("num_correct", pa.int32()),
        ("loss", pa.float64()),
    ]
)
ROUNDS = pa.schema(
    [
        ("round", pa.int32()),
        ("seconds", pa.float64()),
        ("processor_seconds", pa.float64()),
        ("threads", pa.int32()),
        ("cores", pa.int32()),
        ("bytes_up", pa.int64()),
        ("bytes_up_used", pa.int64()),
        ("bytes_down", pa.int64()),
        ("train_loss", pa.float64()),
        ("clients", pa.int32()),
    ]
)


CLIENTS = pa.schema(
    [
        ("round", pa.int32()),
        ("client_id", pa.int32()),
        ("num_examples", pa.int64()),
        ("work", pa.float64()),
        ("received", pa.bool_()),
        ("bytes_up", pa.int64()),
        ("bytes_down", pa.int64()),
    ]
)


def clients_table(rows: list[dict]) -> pa.Table:
    """Return a row per round and client: the columns of CLIENTS, then every metric by name.

    A metric that a client did not report is null.
    """
    return _with_metrics(rows, CLIENTS)


def rounds_table(rows: list[dict]) -> pa.Table:
    """Return a row per round: the columns of ROUNDS, then the server's metrics by name."""
    return _with_metrics(rows, ROUNDS)


def _with_metrics(rows: list[dict], schema: pa.Schema) -> pa.Table:
    """Return a table of rows: the columns of a schema, then what else there is, as numbers."""
    names = sorted({name for row in rows for name in row} - set(schema.names))
    full = pa.schema([*schema, *((name, pa.float64()) for name in names)])
    return pa.Table.from_pylist(rows, schema=full)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the run's folder: a job that outlived its Snakemake and its rerun take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        log.info("%s: another job is at work here; waiting for it", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Outputs:
    """The files that a job writes, and the checkpoint that it overwrites after every round.

    Attributes:
        confusion: written only if the job asks for it.
    """

    state: Path
    evaluation: Path
    rounds: Path
    confusion: Path
    clients: Path
    checkpoint: Path


def fingerprint_of(job: TrainJob, files: list[Path], device: torch.device) -> str:
    """Digest all that the numbers after the job's first round depend on.

    That is its spec with its weights and sources (else a job that is rerun because a plugin was
    edited would resume from what the plugin computed before), its inputs, the software, and the
    kind of GPU, whose kernels add in an order of their own; where the job ends and what it
    evaluates does not matter.

    Args:
        files: receipts of the inputs.
    """
    fixed = {key: value for key, value in asdict(job).items() if key not in ("last", "evaluate")}
    libraries = [version(name) for name in LIBRARIES]
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    software = [*libraries, hardware]
    return digest([fixed, [sha256(file) for file in files], software])


def _resume(
    checkpoint: Path, fingerprint: str, job: TrainJob, device: torch.device
) -> tuple[State, int, dict, Confusion] | None:
    """Return state, round, rows and answers of the checkpoint, if this job can go on from it.

    Raises:
        FedLoomError: the checkpoint is truncated or damaged.
    """
    if not checkpoint.exists():
        return None
    try:
        tree, facts = tensor_files.load(checkpoint, device)
    except FedLoomError as error:
        line = f"{error} (training then starts again after round {job.first})"
        raise FedLoomError(line) from None
    done, rows = facts["round"], facts["rows"]
    due = {number for number in job.evaluate if number <= done}
    evaluated = {row["round"] for row in rows["evaluation"]}
    if facts["fingerprint"] != fingerprint or done > job.last or not due <= evaluated:
        log.info("%s is of another configuration; starting after round %d", checkpoint, job.first)
        return None
    return State.of(tree), done, rows, Confusion(tree["confusion"].cpu())


def train(
    task: Task,
    hooks: Hooks,
    job: TrainJob,
    start: Path | None,
    outputs: Outputs,
    fingerprint: str,
) -> None:
    """Train the job's rounds and write its outputs.

    A trial that diverges ends before that round, without the evaluations that were due.

    Args:
        start: the state after round `job.first`; None for the first job, which makes its own.
        fingerprint: see `fingerprint_of`; a checkpoint of another one is not resumed.

    Raises:
        FedLoomError: an unusable checkpoint, a start that is missing, or numbers that are not
            finite in a run that is no trial.
        StoppedError: a signal asked the job to stop; its last round is in the checkpoint.
    """
    name, diverged = job.spec.run.path, False
    resumed = _resume(outputs.checkpoint, fingerprint, job, task.data.device)
    if resumed is not None:
        current, done, rows, confusion = resumed
        log.info("%s: resumed after round %d", name, done)
    else:
        done, confusion = job.first, Confusion()
        rows = {"evaluation": [], "rounds": [], "clients": []}
        if start is None:
            current = initial_state(task, hooks)
        else:
            tree, facts = tensor_files.load(start, task.data.device)
            current, diverged = State.of(tree), facts["diverged"]
    ahead = [] if diverged else range(done + 1, job.last + 1)
    with (
        progress(total=job.last - job.first, initial=done - job.first, what=name) as bar,
        stopping.after_round() as stop,
    ):
        for number in ahead:
            log.debug("%s: round %d", name, number)
            now = task.at(number)
            try:
                after, row = train_round(now, hooks, current)
                evaluated = _evaluate(now, hooks, job, after, confusion)
            except NotFiniteError as error:
                if not job.trial:
                    raise
                log.info("%s: diverged, and ranks last among its trials: %s", name, error)
                diverged = True
                break
            current = after
            rows["clients"] += row.pop("updates")
            rows["rounds"].append(row)
            rows["evaluation"] += evaluated
            tree = current.tree() | {"confusion": confusion.rows}
            tensor_files.save(
                outputs.checkpoint, tree, fingerprint=fingerprint, round=number, rows=rows
            )
            bar.set_postfix(loss=f"{row['train_loss']:.3f}", refresh=False)
            bar.update()
            stop.check(name, number, job.last)
    if task.augmentation_timer.images:
        log.info("%s: training.augment: %s in this job", name, task.augmentation_timer)
    # a checkpoint of a job that was to end elsewhere may hold rounds that this one does not report
    evaluation = [row for row in rows["evaluation"] if row["round"] in job.evaluate]
    write_table(outputs.evaluation, pa.Table.from_pylist(evaluation, schema=EVALUATION))
    if job.confusion:
        write_table(outputs.confusion, confusion.table(job.evaluate))
    write_table(outputs.rounds, rounds_table(rows["rounds"]))
    write_table(outputs.clients, clients_table(rows["clients"]))
    facts = {"run": name, "round": job.last, "diverged": diverged}
    tensor_files.save(outputs.state, current.tree(), **facts)


def _evaluate(
    task: Task, hooks: Hooks, job: TrainJob, state: State, confusion: Confusion
) -> list[dict]:
    """Return the rows of what the job evaluates after this round; none after most.

    Args:
        confusion: answers are added to it if the job asks for them.
    """
    if task.round not in job.evaluate:
        return []
    counted = confusion if job.confusion else None
    shared = SharedModel() if job.global_test else None
    rows = evaluate_clients(task, hooks, state, counted, shared)
    if job.global_test:
        rows.append(evaluate_globally(task, hooks, state, counted, shared))
    return rows
