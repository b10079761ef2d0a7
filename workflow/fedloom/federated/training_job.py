"""A job's rounds: resumed from the last finished one, written whole or not at all.

A run has one checkpoint (`checkpoint.py`), written after every round, which belongs to a job.
"""

import logging
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch

from fedloom.common import tensor_files
from fedloom.common.errors import NotFiniteError, StoppedError
from fedloom.common.files import write_table
from fedloom.common.locks import held
from fedloom.common.receipts import digest, sha256
from fedloom.common.seeds import torch_generator
from fedloom.federated.checkpoint import Checkpoint, Saved, read_checkpoint
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import attackers, initial_state, train_round
from fedloom.federated.rows import Confusion, Rows
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine import packages
from fedloom.machine.process_log import progress
from fedloom.planning.job_specs import TrainJob

log = logging.getLogger(__name__)

STOPPING = (signal.SIGTERM, signal.SIGUSR1)  # at the end, or minutes before a time limit


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the run's folder: a job that outlived its Snakemake and its rerun take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = f"{folder}: another job is at work here; waiting for it"
    with held(folder / ".lock", waiting, log.info):
        yield


@dataclass(frozen=True)
class Outputs:
    """The files that a job writes (`confusion` if the job asks for it), and its checkpoint."""

    state: Path
    checkpoint: Path
    evaluation: Path
    rounds: Path
    clients: Path
    confusion: Path


def fingerprint_of(job: TrainJob, files: list[Path], device: torch.device) -> str:
    """Digest everything that the numbers after the job's first round depend on.

    That is its spec and sources, the receipts `files` of its inputs, the versions of packages, and
    the kind of GPU, whose kernels differ in the order of sums; neither its end nor evaluations.
    """
    varying = ("last", "evaluate", "sampled", "evaluate_clients")
    fixed = {key: value for key, value in asdict(job).items() if key not in varying}
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return digest([fixed, [sha256(file) for file in files], packages.versions(), hardware])


def evaluated_clients(task: Task, job: TrainJob, attacking: Collection[int] = ()) -> Sequence[int]:
    """Return the ids of the clients that are evaluated after round `task.round`, ascending.

    All but the attackers, or in a round of `job.sampled` `job.evaluate_clients` of them, drawn in
    proportion among participating (at least one) and held-out ones.
    """
    everyone = [client for client in task.data.tested if client not in attacking]
    count = job.evaluate_clients
    if task.round not in job.sampled or count is None or count >= len(everyone):
        return everyone
    participating = [client for client in everyone if client in task.data.position]
    held_out = [client for client in everyone if client not in task.data.position]
    first = max(1, round(count * len(participating) / len(everyone)))
    generator = torch_generator(task.seed, "evaluate", task.round)
    chosen: list[int] = []
    for group, number in ((participating, first), (held_out, count - first)):
        order = torch.randperm(len(group), generator=generator)
        chosen += [group[position] for position in order[:number].tolist()]
    return sorted(chosen)


@contextmanager
def _remembered_signals() -> Iterator[list[str]]:
    """Only remember the names of signals with which a scheduler ends a process."""
    names: list[str] = []
    before = {
        number: signal.signal(number, lambda n, _: names.append(signal.Signals(n).name))
        for number in STOPPING
    }
    try:
        yield names
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _mean_accuracy(rows: Sequence[dict]) -> float:
    """Return the mean accuracy in percent of participating clients, with their personal models."""
    personal = any(row["personalized"] for row in rows)
    shown = [r for r in rows if r["participating"] and r["personalized"] == personal]
    return 100 * fmean(row["num_correct"] / row["num_test"] for row in shown)


def _resume(
    head: Path, fingerprint: str, task: Task, job: TrainJob, attacking: Collection[int]
) -> Saved | None:
    """Return what the checkpoint holds, if this job can resume from it; else log why it cannot."""
    saved = read_checkpoint(head, fingerprint, job.first)
    if isinstance(saved, Saved):
        rows, done = saved.rows, [number for number in job.evaluate if number <= saved.round]
        due = {n: {*evaluated_clients(task.at(n), job, attacking)} for n in done}
        others = [n for n in done if rows.evaluated_clients(n) != due[n]]
        if saved.round > job.last:
            saved = f"is of round {saved.round}, after the job's last"
        elif others:
            saved = f"holds no evaluation, or one of other clients, after round {others[0]}"
    if isinstance(saved, str):
        log.info("%s %s; starting after round %d", head, saved, job.first)
        return None
    return saved


def train(
    task: Task, hooks: Hooks, job: TrainJob, start: Path | None, outputs: Outputs, fingerprint: str
) -> None:
    """Train the job's rounds, from the state file `start` or an initial one; write its outputs.

    A trial that diverges ends before that round, without the evaluations that were due. Where a
    signal asks the job to stop, it raises StoppedError; its last round is in the checkpoint.
    """
    name, device = job.spec.run.path, task.data.device
    before, diverged = State({}, device=device), False
    if start is not None:
        tree, facts = tensor_files.load(start)
        before, diverged = State.of(tree, device), facts["diverged"]
    attacking = attackers(task, hooks)
    saved = _resume(outputs.checkpoint, fingerprint, task, job, attacking)
    checkpoint = Checkpoint(outputs.checkpoint, fingerprint, saved)
    if saved is not None:
        current, done, diverged = before.after(saved.changes), saved.round, False
        log.info("%s: resumed after round %d", name, done)
    else:
        current, done = initial_state(task, hooks) if start is None else before, job.first
    ahead = [] if diverged else range(done + 1, job.last + 1)
    shown: dict[str, str] = {}  # behind the number of rounds
    with progress(total=job.last, initial=done, what=name) as bar, _remembered_signals() as signals:
        for number in ahead:
            log.debug("%s: round %d", name, number)
            now = task.at(number)
            try:
                after, row = train_round(now, hooks, current)
                evaluated, confusion = list[dict](), Confusion()
                if number in job.evaluate:
                    ids = evaluated_clients(now, job, attacking)
                    counts = confusion if job.confusion else None
                    evaluated = evaluate(
                        now, hooks, after, ids, global_test=job.global_test, confusion=counts
                    )
            except NotFiniteError as error:
                if not job.trial:
                    raise
                log.info("%s: diverged, and ranks last among its trials: %s", name, error)
                diverged = True
                break
            current = after
            selected = [update["client_id"] for update in row["updates"]]
            checkpoint.write(number, current, selected, Rows.of(row, evaluated, confusion.table()))
            shown["loss"] = f"{row['train_loss']:.3f}"
            if evaluated:
                shown["accuracy"] = f"{_mean_accuracy(evaluated):.1f}"
            bar.set_postfix(shown, refresh=False)
            bar.update()
            if signals and number < job.last:
                raise StoppedError(
                    f"{name}: stopped by {signals[-1]} after round {number} of {job.last}; start "
                    "the job again to resume from there"
                )
    # a checkpoint of a job that was to end elsewhere may hold rounds that this one does not report
    rows = checkpoint.rows.evaluated(job.evaluate)
    for table in ("evaluation", "rounds", "clients", *(["confusion"] if job.confusion else [])):
        write_table(getattr(outputs, table), getattr(rows, table))
    facts = {"run": name, "round": job.last, "diverged": diverged}
    tensor_files.save(outputs.state, current.tree(), **facts)
