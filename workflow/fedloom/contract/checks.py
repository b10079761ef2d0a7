"""Train tiny runs of a method, and raise a FedLoomError if the method breaks a rule.

`keeps_rules` checks all RULES on one shared run. Each other check trains runs of its own.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.common.json_types import JsonDict
from fedloom.common.trees import leaves, tensor_map, unstack
from fedloom.contract import tiny
from fedloom.contract.deterministic import DeterministicOnly
from fedloom.contract.tiny_run import (
    CLOSE_IN_SUM,
    TinyRun,
    differences_of_trees,
    require_close,
    require_equal,
    upload,
)
from fedloom.federated import training_job
from fedloom.federated.evaluate import compute_artefact, evaluate, evaluate_globally
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import MethodFacts, Task, Update
from fedloom.hooks import loader
from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.manifest_sections import Condition

# For `ignores_order`: noise as large as the rounding of float32 near 1, the number of draws of it,
# and how many times as far as this noise the order of the updates may move a tensor.
LAST_BITS = 1e-7
ROUNDING_DRAWS = 8
AMPLIFIED = 10
# standard deviation of noise that cancels in the sum of the updates
SHIFT = 30.0


def ignores_order(run: TinyRun) -> None:
    """Check that the order of the updates changes the server's next state by rounding at most.

    A server may amplify rounding errors. For example, Adam divides the mean of an entry by its own
    size. If no client changed the entry, its mean is only a rounding error. So a tensor passes if
    random noise in the last bits of the uploads moves it about as far.
    """
    tolerance = 1e-5
    if any(w.preserves for w in run.wrappers):
        tolerance = CLOSE_IN_SUM

    # how far the reverse order moves each tensor
    sent = run.uploads[1]
    forward = run.aggregate(sent)
    backward = run.aggregate(sent[::-1])
    moved = differences_of_trees(forward, backward)

    if tolerance < max(moved.values(), default=0.0) < math.inf:
        generator = run.task.generator("rounding")

        def noisy(value: Tensor) -> Tensor:
            """Return the tensor with noise in its last bits."""
            noise = LAST_BITS * torch.randn(value.shape, generator=generator)
            if not value.is_floating_point():
                return value
            return value + noise

        # how far noise in the last bits moves each tensor, without draws that change a tensor's
        # shape
        draws = [
            differences_of_trees(forward, run.aggregate(sent, noisy)) for _ in range(ROUNDING_DRAWS)
        ]
        draws = [far for far in draws if math.inf not in far.values()]
        reach: dict[str, float] = {}
        for path in moved:
            reach[path] = max(far[path] for far in draws)
        moved = {path: far for path, far in moved.items() if far > AMPLIFIED * reach[path]}

    require_close(run, moved, "the order of updates changes the aggregate", tolerance)


def aggregates_as_declared(run: TinyRun) -> None:
    """Check that the server uses only the mean of the updates that method.toml declares.

    Noise that cancels in the mean is added to the payloads. The server's next state must stay the
    same.
    """
    if run.wrappers:
        return

    # the conditions with which method.toml declares a mean
    conditions: list[Condition] = []
    if isinstance(run.method.aggregation, str):
        conditions = [True]
    elif run.method.aggregation is not None:
        conditions = [*run.method.aggregation.values()]

    for number, condition in enumerate(conditions):
        # a run with the options of this condition
        options: JsonDict = {}
        if isinstance(condition, dict):
            options = condition
        folder = run.folder / f"declared {number}"
        folder.mkdir()
        one = TinyRun(run.method.with_defaults(options), folder)

        task, updates = one.uploads
        if task.aggregation is not None:
            shifted = _shift(task, updates)
            what = f"aggregation is {task.aggregation}, but aggregate uses more of the updates"
            one.require_same_aggregate(shifted, what, CLOSE_IN_SUM)


def _shift(task: Task, updates: list[Update]) -> list[Update]:
    """Return the updates with noise in their payloads that cancels in the sum.

    It cancels in the plain sum, or in the sum weighted by images, as `task.aggregation` says.
    """
    weighted = task.aggregation == "weighted"
    generator = task.generator("sum")
    weights = torch.ones(len(updates))
    if weighted:
        weights = torch.tensor([float(update.num_examples) for update in updates])

    def move(*values: Tensor) -> Tensor:
        """Return the clients' tensors [K, ...] plus noise whose weighted mean over clients is 0."""
        stacked = torch.stack(values)
        if not stacked.is_floating_point():
            return stacked
        noise = SHIFT * torch.randn(stacked.shape, generator=generator)
        return stacked + noise - torch.einsum("k,k...->...", weights / weights.sum(), noise)

    moved = tensor_map(move, *(update.payload for update in updates))
    return [replace(update, payload=unstack(moved, k)) for k, update in enumerate(updates)]


def reads_nothing_private(run: TinyRun) -> None:
    """Check that a method's aggregate does not read the side channel of the updates.

    Only wrappers may read it.
    """
    if not run.wrappers:
        bare = [replace(update, side_channel={}) for update in run.uploads[1]]
        run.require_same_aggregate(bare, "the aggregate reads the side channel", 0.0)


def keeps_secrets(run: TinyRun) -> None:
    """Check that a client uploads no tensor of its personal state.

    The second round is checked. In the first round, a state that starts at zero equals its own
    change, which a method may upload.
    """
    ids = sorted(run.first.clients)
    _, updates = upload(run.task, run.hooks, 2, run.first, ids)
    for update in updates:
        # compare every tensor that is sent with every tensor that is kept
        sent = [(p, v) for p, v in leaves(update.payload) if isinstance(v, Tensor)]
        for path, kept in leaves(update.client_state | update.wrapper_state):
            for name, value in sent:
                if isinstance(kept, Tensor) and torch.equal(kept, value):
                    raise FedLoomError(run.says(f"personal '{path}' is uploaded as '{name}'"))


def leaves_inputs_alone(run: TinyRun) -> None:
    """Check that neither a round nor an evaluation changes the server's state in place."""
    # a round
    start = initial_state(run.task, run.hooks)
    before = deepcopy(start.server)
    trained, _ = train_round(run.task.at(1), run.hooks, start)
    require_equal(run, before, start.server, "a round changes the server's state")

    # an evaluation
    before = deepcopy(trained.server)
    evaluate(run.task.at(1), run.hooks, trained)
    require_equal(run, before, trained.server, "an evaluation changes the server's state")


def answers_as_declared(run: TinyRun) -> None:
    """Check that `predict` answers for the server's model just if method.toml says so."""
    row = evaluate_globally(run.task.at(1), run.hooks, run.first)
    answered = row.num_test == sum(map(len, run.task.data.test))
    if not run.wrappers and answered != run.method.has_server_model(vars(run.task.options)):
        does = "returns None"
        declared = "false"
        if answered:
            does = "answers"
            declared = "true"
        raise FedLoomError(
            f"{run.method.name}: predict {does} for the server's model, but cost.no_server_model "
            f"in method.toml is {declared}; change one of them"
        )


def gives_its_tables(run: TinyRun) -> None:
    """Check that the artefact hook returns every table that method.toml lists for these options."""
    for name in run.method.artefacts_with(vars(run.task.options)):
        compute_artefact(run.task.at(1), run.hooks, run.first, name)


def trains_on_a_gpu(run: TinyRun) -> None:
    """Check that a round and an evaluation use only operations that are deterministic on a GPU."""
    with DeterministicOnly():
        state, _ = train_round(run.task.at(1), run.hooks, initial_state(run.task, run.hooks))
        evaluate(run.task.at(1), run.hooks, state, global_test=True)


# `leaves_inputs_alone` comes first, because the rules after it share the states of the run
RULES: tuple[Callable[[TinyRun], None], ...] = (
    leaves_inputs_alone,
    ignores_order,
    aggregates_as_declared,
    reads_nothing_private,
    keeps_secrets,
    answers_as_declared,
    gives_its_tables,
    trains_on_a_gpu,
)


def keeps_rules(method: MethodManifest, folder: Path, *wrappers: MethodManifest) -> None:
    """Check all RULES on one run."""
    run = TinyRun(method, folder, *wrappers)
    for rule in RULES:
        rule(run)


def resumes(method: MethodManifest, folder: Path, *wrappers: MethodManifest) -> None:
    """Check that one job of three rounds equals a job of two rounds and one of the third.

    The results must be equal bit for bit. Each job imports the plugins anew, as a new process
    would, so that plugins lose whatever they hold besides the state. The backbone's width is odd,
    because kernels may round the last part of a row differently.
    """
    run = TinyRun(method, folder, *wrappers, backbone=tiny.tiny_backbone(method.family, tiny.ODD))
    states = []
    tables = []
    for name, ends in (("whole", [3]), ("parts", [2, 3])):
        (folder / name).mkdir()
        start = None
        first = 0
        evaluations = []

        # run jobs that end after these rounds, each from the state that the previous one left
        for last in ends:
            outputs = tiny.tiny_outputs(folder / name, last)
            hooks = loader.load_hooks(method, wrappers=wrappers)
            job = tiny.tiny_job(method, first, last)
            training_job.train_rounds(run.task, hooks, job, start, outputs, f"{last}")

            evaluations.append(read_table(outputs.evaluation))
            start = outputs.state
            first = last

        assert start is not None
        states.append(tensor_files.load(start)[0])
        tables.append(pa.concat_tables(evaluations))

    what = "a job of 3 rounds ends in another state than jobs of 2 rounds and of 1 round"
    require_equal(run, states[0], states[1], what)
    if not tables[0].equals(tables[1]):
        raise FedLoomError(
            run.says("a job of 3 rounds has other evaluations than jobs of 2 rounds and of 1 round")
        )


def stacks(method: MethodManifest, folder: Path, *wrappers: MethodManifest) -> None:
    """Check that clients trained and evaluated as one batch give the same results as one by one."""
    run = TinyRun(method, folder, *wrappers)
    if not run.task.declared.stacked:
        return

    # train both ways; both ways of a round start from the same state, since a server that takes
    # many steps of its own makes rounding errors of an earlier round a hundred times larger
    apart = replace(run.task.declared, stacked=False)
    what = "clients that train as one batch end in other states than clients that train one by one"
    current = run.start
    for round_number in (1, 2):
        task = run.task.at(round_number)
        whole, _ = train_round(task, run.hooks, current)
        split, _ = train_round(replace(task, declared=apart), run.hooks, current)
        require_equal(run, whole.tree(), split.tree(), what, run.tolerance)
        current = whole

    def losses(declared: MethodFacts) -> dict[str, float]:
        """Return the loss of each client, without and with personalisation."""
        rows = evaluate(replace(run.task.at(2), declared=declared), run.hooks, current)
        roles = ("client", "personalized client")
        return {f"{roles[row.personalized]} {row.client_id}": row.loss for row in rows}

    # evaluate both ways
    what = "clients that are evaluated as one batch have other losses than one by one"
    require_equal(run, losses(run.task.declared), losses(apart), what, run.tolerance)


class NotLearningError(FedLoomError):
    """The loss of the global test does not fall in training."""


def learns(method: MethodManifest, folder: Path, *wrappers: MethodManifest) -> None:
    """Check that training lowers the loss of the global test.

    All clients have similar data here (ALIKE). A client with two classes would soon be good at
    them, whatever the other clients did.
    """
    if not method.trained:
        return

    # collect the losses after rounds 1 to 3 and 6 to 8
    run = TinyRun(method, folder, *wrappers, partition=tiny.ALIKE, epochs=2)
    current = run.start
    losses = []
    for round_number in range(1, 9):
        task = run.task.at(round_number)
        current, _ = train_round(task, run.hooks, current)
        if round_number not in (4, 5):
            losses.append(evaluate_globally(task, run.hooks, current).loss)

    if not sum(losses[3:]) < sum(losses[:3]):
        raise NotLearningError(run.says(f"the loss of the global test does not fall: {losses}"))


CHECKS: tuple[Callable[..., None], ...] = (keeps_rules, resumes, stacks, learns)
