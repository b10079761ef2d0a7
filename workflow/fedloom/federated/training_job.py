"""The rounds of a training job.

A run has one checkpoint (`checkpoint.py`), which is written after every round and belongs to a job.
A job that was killed resumes after the last round in the checkpoint.
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
from fedloom.common.locks import file_lock
from fedloom.common.receipts import digest, sha256
from fedloom.common.seeds import torch_generator
from fedloom.federated.answer_counts import AnswerCounts
from fedloom.federated.checkpoint import Checkpoint, Saved, read_checkpoint
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import attacking_clients, initial_state, train_round
from fedloom.federated.rows import EvaluationRow, RoundRow, Rows
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine import packages
from fedloom.machine.process_log import progress
from fedloom.planning.job_specs import TrainJob

log = logging.getLogger(__name__)

# a scheduler sends one of these signals at a job's time limit, or some minutes before
STOPPING = (signal.SIGTERM, signal.SIGUSR1)
# for a process that is not a job: its signals do what its owner has set
NO_SIGNALS: tuple[signal.Signals, ...] = ()


@contextmanager
def exclusive_run_folder(folder: Path) -> Iterator[None]:
    """Hold the run's folder, so that two jobs do not write to it at the same time.

    A job may outlive its Snakemake process. Its rerun then waits until that job has ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = f"{folder}: another job is at work here; waiting for it"
    with file_lock(folder / ".lock", waiting, log.info):
        yield


@dataclass(frozen=True)
class Outputs:
    """The files that a job writes, and its checkpoint.

    `confusion` and `calibration` are written only if the job asks for them (`confusion`).
    """

    state: Path
    checkpoint: Path
    evaluation: Path
    rounds: Path
    clients: Path
    confusion: Path
    calibration: Path


def job_fingerprint(job: TrainJob, files: list[Path], device: torch.device) -> str:
    """Return the digest of everything that the numbers of the job's rounds depend on.

    This is the job's spec and sources, the receipts `files` of its inputs, the versions of packages
    and the kind of GPU (different GPUs sum in different orders). The job's last round, and which
    rounds and clients it evaluates, are not part of the digest.
    """
    varying = ("last", "evaluated_rounds", "sampled_rounds", "clients_per_sample")
    fixed = {key: value for key, value in asdict(job).items() if key not in varying}
    inputs = [sha256(file) for file in files]
    hardware = device.type
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    return digest([fixed, inputs, packages.versions(), hardware])


def clients_to_evaluate(
    task: Task, job: TrainJob, attacking: Collection[int] = ()
) -> Sequence[int]:
    """Return the ids of the clients that are evaluated after round `task.round`, ascending.

    These are all clients with test images but the attackers. After a round of `job.sampled_rounds`,
    only `job.clients_per_sample` of them are drawn. The draw has participating and held-out clients
    in proportion, and at least one participating client.
    """
    everyone = [client for client in task.data.tested if client not in attacking]
    count = job.clients_per_sample
    if task.round not in job.sampled_rounds or count is None or count >= len(everyone):
        return everyone

    # how many participating clients, and how many others
    participating = [client for client in everyone if client in task.data.position]
    held_out = [client for client in everyone if client not in task.data.position]
    first = max(1, round(count * len(participating) / len(everyone)))

    # draw them
    generator = torch_generator(task.seed, "evaluate", task.round)
    chosen: list[int] = []
    for group, drawn_count in ((participating, first), (held_out, count - first)):
        order = torch.randperm(len(group), generator=generator)
        chosen += [group[position] for position in order[:drawn_count].tolist()]
    return sorted(chosen)


@contextmanager
def _remembered_signals(stopping: Collection[signal.Signals]) -> Iterator[list[str]]:
    """Remember the names of signals that ask the process to stop, and do nothing else on them.

    Python lets only the main thread do this; any thread may pass NO_SIGNALS.
    """
    names: list[str] = []
    before = {
        number: signal.signal(number, lambda n, _: names.append(signal.Signals(n).name))
        for number in stopping
    }
    try:
        yield names
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def mean_accuracy(rows: Sequence[EvaluationRow]) -> float:
    """Return the mean accuracy, in percent, of the participating clients.

    If the method personalises, it is that of the personalised models.
    """
    personal = any(row.personalized for row in rows)
    shown = [row for row in rows if row.participating and row.personalized == personal]
    return 100 * fmean(row.num_correct / row.num_test for row in shown)


def _resume(
    head: Path, fingerprint: str, task: Task, job: TrainJob, attacking: Collection[int]
) -> Saved | None:
    """Return the content of the checkpoint if this job can resume from it.

    Otherwise, log the reason and return None.
    """
    saved = read_checkpoint(head, fingerprint, job.after)
    if saved is None:
        return None

    # a text is the reason why no job can resume; a checkpoint may still not fit this job
    if isinstance(saved, Saved):
        reason = _why_no_resume(saved, task, job, attacking)
        if reason is None:
            return saved
    else:
        reason = saved
    log.info("%s %s; starting after round %d", head, reason, job.after)
    return None


def _why_no_resume(
    saved: Saved, task: Task, job: TrainJob, attacking: Collection[int]
) -> str | None:
    """Return why the job cannot resume from a checkpoint; None if it can.

    The checkpoint has the job's fingerprint.
    """
    if saved.round > job.last:
        return f"is of round {saved.round}, after the job's last"

    # an evaluation that is missing cannot be done now: the states of earlier rounds are gone
    for round_number in job.evaluated_rounds:
        if round_number > saved.round:
            continue
        due = clients_to_evaluate(task.at(round_number), job, attacking)
        if saved.rows.clients_evaluated_in(round_number) != set(due):
            return f"holds no evaluation, or one of other clients, after round {round_number}"
    return None


@dataclass(frozen=True)
class StartingPoint:
    """Where a job begins.

    Attributes:
        state: the state to train on from.
        done: the last round that is done.
        diverged: True for a trial that had diverged before the job's first round.
        saved: the content of the checkpoint; None if the job does not resume.
    """

    state: State
    done: int
    diverged: bool = False
    saved: Saved | None = None


def _find_starting_point(
    task: Task,
    hooks: Hooks,
    job: TrainJob,
    start: Path | None,
    checkpoint: Path,
    fingerprint: str,
    attacking: Collection[int],
) -> StartingPoint:
    """Return where the job begins: after the checkpoint's last round, or else before its first.

    `start` is the file with the state that the run's previous job left; None for the first job.
    """
    # the state before the job's first round; for a run's first job it is made below, if needed
    device = task.data.device
    before = State({}, device=device)
    diverged = False
    if start is not None:
        tree, facts = tensor_files.load(start)
        before = State.from_tree(tree, device)
        diverged = facts["diverged"]

    saved = _resume(checkpoint, fingerprint, task, job, attacking)
    if saved is not None:
        log.info("%s: resumed after round %d", job.spec.run.path, saved.round)
        return StartingPoint(before.after(saved.changes), saved.round, saved=saved)
    if start is None:
        before = initial_state(task, hooks)
    return StartingPoint(before, job.after, diverged)


@dataclass(frozen=True)
class RoundResult:
    """The result of a round: the next state, and the rows for the job's tables."""

    state: State
    row: RoundRow
    evaluated: list[EvaluationRow]
    counts: AnswerCounts


def _train_and_evaluate(
    task: Task, hooks: Hooks, job: TrainJob, state: State, attacking: Collection[int]
) -> RoundResult:
    """Train round `task.round`, and evaluate the new state if the job asks for it."""
    after, row = train_round(task, hooks, state)
    counts = AnswerCounts()
    if task.round not in job.evaluated_rounds:
        return RoundResult(after, row, [], counts)

    counted: AnswerCounts | None = None
    if job.confusion:
        counted = counts
    evaluated = evaluate(
        task,
        hooks,
        after,
        clients_to_evaluate(task, job, attacking),
        global_test=job.global_test,
        counts=counted,
    )
    return RoundResult(after, row, evaluated, counts)


def train_until_diverged(
    task: Task, hooks: Hooks, job: TrainJob, begin: StartingPoint, attacking: Collection[int]
) -> Iterator[RoundResult]:
    """Yield the result of every round that is left; a trial ends before the round that diverges.

    A trial that had diverged before the job's first round has no round left.

    Raises:
        NotFiniteError: a run that is not a trial diverged.
    """
    if begin.diverged:
        return
    name = job.spec.run.path
    state = begin.state
    for round_number in range(begin.done + 1, job.last + 1):
        log.debug("%s: round %d", name, round_number)
        try:
            result = _train_and_evaluate(task.at(round_number), hooks, job, state, attacking)
        except NotFiniteError as error:
            if not job.trial:
                raise
            log.info("%s: diverged, and ranks last among its trials: %s", name, error)
            return
        state = result.state
        yield result


def _progress_numbers(result: RoundResult) -> dict[str, str]:
    """Return what a progress bar shows of a round: the loss, and the accuracy if there is one."""
    numbers = {"loss": f"{result.row.train_loss:.3f}"}
    if result.evaluated:
        numbers["accuracy"] = f"{mean_accuracy(result.evaluated):.1f}"
    return numbers


def train_rounds(
    task: Task,
    hooks: Hooks,
    job: TrainJob,
    start: Path | None,
    outputs: Outputs,
    fingerprint: str,
    stopping: Collection[signal.Signals] = STOPPING,
) -> None:
    """Train the rounds of a job, and write its outputs.

    The job begins after the last round in its checkpoint, or else with the state in file `start`,
    or else with an initial state. A trial ends before the round in which it diverges, and leaves
    out later evaluations. A signal of `stopping` ends the job after the round that it is in.

    Raises:
        StoppedError: a signal asked the job to stop. The last finished round is in the checkpoint.
        NotFiniteError: a run that is not a trial diverged.
    """
    # begin where the checkpoint ends, or else where the previous job ended
    name = job.spec.run.path
    attacking = attacking_clients(task, hooks)
    begin = _find_starting_point(
        task, hooks, job, start, outputs.checkpoint, fingerprint, attacking
    )
    checkpoint = Checkpoint(outputs.checkpoint, fingerprint, begin.saved)
    state = begin.state
    done = begin.done

    # the bar shows the loss of the last round, and the accuracy of the last evaluation
    shown: dict[str, str] = {}
    with (
        progress(total=job.last, initial=begin.done, what=name) as bar,
        _remembered_signals(stopping) as signals,
    ):
        for result in train_until_diverged(task, hooks, job, begin, attacking):
            # write the round to the checkpoint, so that a killed job can resume after it
            done = result.row.round
            state = result.state
            selected = [update.client_id for update in result.row.updates]
            rows = Rows.from_round(result.row, result.evaluated, result.counts)
            checkpoint.write(done, state, selected, rows)

            # show it
            shown |= _progress_numbers(result)
            bar.set_postfix(shown, refresh=False)
            bar.update()

            # stop on a signal only here, where the round is in the checkpoint
            if signals and done < job.last:
                raise StoppedError(
                    f"{name}: stopped by {signals[-1]} after round {done} of {job.last}; "
                    "start the job again to resume from there"
                )

    # only a trial that diverged has rounds left
    diverged = begin.diverged or done < job.last
    _write_outputs(job, outputs, checkpoint, state, diverged)


def _write_outputs(
    job: TrainJob, outputs: Outputs, checkpoint: Checkpoint, state: State, diverged: bool
) -> None:
    """Write the job's tables and its last state."""
    # a checkpoint that another job began may hold evaluations that this job does not report
    rows = checkpoint.rows.with_evaluations_of(job.evaluated_rounds)
    write_table(outputs.evaluation, rows.evaluation)
    write_table(outputs.rounds, rows.rounds)
    write_table(outputs.clients, rows.clients)
    if job.confusion:
        write_table(outputs.confusion, rows.confusion)
        write_table(outputs.calibration, rows.calibration)

    # write the state, from which the run's next job starts
    facts = {"run": job.spec.run.path, "round": job.last, "diverged": diverged}
    tensor_files.save(outputs.state, state.tree(), **facts)
