"""`fedloom.rounds`: train one run of a study in this process, round by round."""

import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from fedloom.backbones.backbone import weights_digest
from fedloom.cli.run.bundled_studies import find_study_file
from fedloom.cli.run.from_python import changes_as_text, check_study, write_study
from fedloom.cli.run.prepare import THREADS, prepare_run
from fedloom.common.errors import FedLoomError, check_known
from fedloom.config.kind_plugins import plugins_of_type
from fedloom.config.protocols import job_ends
from fedloom.federated import training_job
from fedloom.federated.build_task import build_task
from fedloom.federated.round import attacking_clients, initial_state
from fedloom.federated.rows import Rows
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.federated.training_job import RoundResult, StartingPoint
from fedloom.hooks.manifest import discover_methods
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine.device import prepare_torch
from fedloom.planning import choices, paths, provenance
from fedloom.planning.job_specs import TrainJob
from fedloom.planning.load_plan import CHANGES_KEY, load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run, Wildcards

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Round:
    """Holds what a round left: the state, and the rows that a job would write."""

    # the number of the round, from 1
    number: int
    # the server's state, and what the clients keep
    state: State
    _result: RoundResult

    @property
    def loss(self) -> float:
        """Return the mean training loss of the round's clients."""
        return self._result.row.train_loss

    @property
    def accuracy(self) -> float | None:
        """Return the mean test accuracy of participating clients in %; None without evaluation."""
        if not self._result.evaluated:
            return None
        return training_job.mean_accuracy(self._result.evaluated)

    @property
    def evaluation(self) -> "pd.DataFrame":
        """Return the rows of evaluation.parquet: none if the study does not evaluate the round."""
        return self._rows.evaluation.to_pandas()

    @property
    def totals(self) -> "pd.DataFrame":
        """Return the row of rounds.parquet: bytes, loss and time of the whole round."""
        return self._rows.rounds.to_pandas()

    @property
    def clients(self) -> "pd.DataFrame":
        """Return the rows of clients.parquet: what each of the round's clients did."""
        return self._rows.clients.to_pandas()

    @cached_property
    def _rows(self) -> Rows:
        """Return all rows of the round, as Arrow tables."""
        result = self._result
        return Rows.from_round(result.row, result.evaluated, result.counts)

    def __repr__(self) -> str:
        numbers = [f"round {self.number}", f"loss {self.loss:.3f}"]
        if self.accuracy is not None:
            numbers.append(f"accuracy {self.accuracy:.1f} %")
        return f"<{', '.join(numbers)}>"


class Rounds(Iterator[Round]):
    """Train a round when the next one is asked for, and return what the round left.

    Attributes:
        run: the labels of the run.
        task: the run's data, backbone and options, as hooks get them; `task.at(3)` is that of
            round 3.
        hooks: the method's hooks, with its wrappers.
    """

    def __init__(self, run: Run, task: Task, hooks: Hooks, jobs: list[TrainJob]) -> None:
        """Prepare to train the rounds of a run's jobs, which follow each other."""
        self.run = run
        self.task = task
        self.hooks = hooks
        self._last = jobs[-1].last
        self._left = self._last
        self._results = _results_of_jobs(task, hooks, jobs)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Round:
        """Train a round.

        Raises:
            FedLoomError: a round before was not finished, so there is no state to begin with.
            StopIteration: all rounds are done.
        """
        result = next(self._results, None)
        if result is None and self._left:
            number = self._last - self._left + 1
            raise FedLoomError(
                f"{self.run.path}: round {number} of {self._last} was not finished, so none can "
                "follow; call fedloom.rounds again to begin with round 1"
            )
        if result is None:
            raise StopIteration
        self._left -= 1
        return Round(result.row.round, result.state, result)

    def __len__(self) -> int:
        """Return the number of rounds that are left."""
        return self._left


def rounds(
    study: str | PathLike | Mapping[str, object] | None = None,
    changes: Mapping[str, object] | None = None,
    *,
    method: str | None = None,
    seed: int | None = None,
    dataset: str | None = None,
    partition: str | None = None,
    backbone: str | None = None,
    reuse: bool = False,
) -> Rounds:
    """Train one run of a study in this process, round by round, and write no results.

    The states and evaluations are those of `fedloom run`, to the bit on a CPU. As the workflow's
    jobs do, the call sets torch to one thread and to deterministic algorithms.

    The images, their partition and the backbone's features are made before the first round, in a
    temporary folder, which is removed when they are no longer used.

    Args:
        study: as in `fedloom.run`: a file, a name that `fedloom studies` prints, or a mapping of
            keys of the config; default: config.yaml. Paths under a mapping's key `include` begin in
            the current folder.
        changes: values of single keys, such as {"training.lr": 0.1}.
        method, dataset, partition, backbone: labels of the study that pick the run. A label may be
            left out if the study has only one.
        seed: one of the study's seeds; default: the first.
        reuse: read images, partitions, features and tuned options from `results`, where `fedloom
            run` has made them and they are still what the study asks for.

    Raises:
        FedLoomError: the study is wrong, or it has no such run, or several.
    """
    # a notebook may have written a plugin since the last call
    discover_methods.cache_clear()
    plugins_of_type.cache_clear()

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fedloom-")))
        plan = _read_plan(study, changes, folder)
        labels = {"dataset": dataset, "partition": partition, "backbone": backbone}
        run = _pick_run(plan, labels | {"method": method, "seed": seed})
        prepare_run(plan, run, folder, reuse)
        with paths.results_below(folder):
            training = _prepare_training(plan, run)

        # features are read when they are first used, so the folder stays as long as the images
        weakref.finalize(training.task.data.store, stack.pop_all().close)
    return training


def _read_plan(
    study: str | PathLike | Mapping[str, object] | None,
    changes: Mapping[str, object] | None,
    folder: Path,
) -> Plan:
    """Return the plan of a study; the keys of a mapping are written to a file in `folder`."""
    check_study(study)
    overrides = {CHANGES_KEY: changes_as_text(changes)}
    if study is None:
        return load_plan([], overrides)
    if not isinstance(study, Mapping):
        return load_plan([find_study_file(str(study))], overrides)

    file = folder / "study.yaml"
    write_study(study, file, Path())
    try:
        return load_plan([file], overrides)
    except FedLoomError as error:
        raise FedLoomError(_without_place(str(error), file)) from None


def _without_place(line: str, file: Path) -> str:
    """Return the line of an error without a place in a file that is gone when people read it."""
    line = re.sub(rf" \({re.escape(str(file))}, line \d+\)", "", line)
    return line.replace(str(file), "the study's mapping")


def _pick_run(plan: Plan, labels: Mapping[str, str | int | None]) -> Run:
    """Return the only run of a study that has these labels; a label that is None is left open.

    Of runs that differ by their seeds alone, return that of the first seed.

    Raises:
        FedLoomError: the study has no such run, or several.
    """
    select = plan.settings.select
    seeds = plan.settings.study.seeds
    runs = [
        Run(scenario.dataset, scenario.partition, backbone, method, seed)
        for scenario, backbone, method, seed in product(
            select.scenarios, select.backbones, select.methods, seeds
        )
    ]

    # narrow the runs down, label by label
    for key, label in labels.items():
        if label is not None:
            known = _values(runs, key)
            check_known(str(label), known, f"{key}: the study's runs have no")
            runs = [run for run in runs if str(getattr(run, key)) == str(label)]

    # a label that the arguments leave open must be the same for all runs
    for key in labels:
        known = _values(runs, key)
        if len(known) > 1 and key != "seed":
            raise FedLoomError(f"{key}: must be named, got none; name one of {', '.join(known)}")
    return runs[0]


def _values(runs: list[Run], key: str) -> list[str]:
    """Return the different labels that runs have at a key, as text."""
    return [*dict.fromkeys(str(getattr(run, key)) for run in runs)]


def _prepare_training(plan: Plan, run: Run) -> Rounds:
    """Return a run, ready to be trained."""
    spec = choices.with_choice(plan.run_spec(run))
    device = prepare_torch(THREADS, spec.backbone.precision)
    task, hooks = build_task(spec, paths.run_inputs(run, spec.method.needs), device)

    # a hub's weights must be those with which the data were made
    loaded = partial(weights_digest, task.backbone)
    provenance.digest_of_weights(run.path, spec.backbone, loaded)

    jobs = list[TrainJob]()
    for end in job_ends(plan.study(run)):
        job = plan.job("train", Wildcards(**vars(run), end=paths.four_digits(end)))
        assert isinstance(job, TrainJob)
        jobs.append(job)
    return Rounds(run, task, hooks, jobs)


def _results_of_jobs(task: Task, hooks: Hooks, jobs: list[TrainJob]) -> Iterator[RoundResult]:
    """Yield the result of every round of jobs that follow each other, from an initial state."""
    attacking = attacking_clients(task, hooks)
    state = initial_state(task, hooks)
    for job in jobs:
        begin = StartingPoint(state, job.after)
        for result in training_job.train_until_diverged(task, hooks, job, begin, attacking):
            state = result.state
            yield result
