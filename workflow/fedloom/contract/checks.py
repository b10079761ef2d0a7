"""Train tiny runs of a method, and raise a FedLoomError where it breaks a rule.

The rules in RULES look at one shared run, `keeps_rules`; the other checks train their own.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from fedloom.backbones.base import Backbone
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.io import read_table
from fedloom.common.tensors import Tree, leaves, tensor_map
from fedloom.contract.tiny import (
    ALIKE,
    DIFFERENT,
    ODD,
    tiny_backbone,
    tiny_job,
    tiny_outputs,
    tiny_task,
)
from fedloom.federated import training_job
from fedloom.federated.evaluate import artefact, evaluate, evaluate_globally
from fedloom.federated.round import collect_updates, initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Task, Update
from fedloom.hooks import loader
from fedloom.hooks.hook_caller import Hooks, describe
from fedloom.hooks.manifest import Plugin

CLOSE = 1e-4  # float32, after two rounds
CLOSE_IN_SUM = 1e-3  # with wrappers that preserve the sum of the updates alone
LAST_BITS, DRAWS, AMPLIFIED = 1e-7, 8, 10  # noise as float32 rounds numbers near 1
SHIFT = 30.0  # standard deviation of the noise that cancels in the updates' sum


def differences(a: Tree, b: Tree) -> dict[str, float]:
    """Return the largest absolute difference by leaf, infinite where the trees do not match."""
    left, right = dict(leaves(a)), dict(leaves(b))
    return {path: _difference(left.get(path), right.get(path)) for path in left | right}


def _difference(a: object, b: object) -> float:
    if not isinstance(a, Tensor | int | float) or not isinstance(b, Tensor | int | float):
        return 0.0 if a == b else float("inf")
    x, y = (torch.as_tensor(value, dtype=torch.float64) for value in (a, b))
    if x.shape != y.shape:
        return float("inf")
    return float((x - y).abs().max()) if x.numel() else 0.0


def require_equal(run: "TinyRun", a: Tree, b: Tree, what: str, tolerance: float = 0.0) -> None:
    for path, difference in differences(a, b).items():
        if not difference <= tolerance:
            raise FedLoomError(f"{run.says(what)}: '{path}' differs by {difference:.3g}")


class NotLearningError(FedLoomError):
    """The loss of the global test does not fall."""


def upload(
    task: Task, hooks: Hooks, number: int, current: State, ids: list[int]
) -> tuple[Task, list[Update]]:
    """Return round `number`'s task and what its clients send, or the first alone if not stacked."""
    ids = ids if task.stacked else ids[:1]
    task = replace(task.at(number), selected=tuple(ids))
    return task, collect_updates(task, hooks, current, dict.fromkeys(ids, 1.0))[0]


class TinyRun:
    """A run of a method on the tiny task, whose files are in `folder`."""

    def __init__(
        self,
        method: Plugin,
        folder: Path,
        *wrappers: Plugin,
        partition: dict = DIFFERENT,
        epochs: int = 1,
        backbone: Backbone | None = None,
        seed: int = 0,
    ):
        self.method, self.folder, self.wrappers = method, folder, wrappers
        backbone = backbone or tiny_backbone(method.family)
        self.task = tiny_task(method, folder, wrappers, partition, seed, backbone)
        vars(self.task.training).update(epochs=epochs)
        self.hooks = loader.load_hooks(method, wrappers=wrappers)
        self.tolerance = CLOSE_IN_SUM if any(w.preserves for w in wrappers) else CLOSE

    @cached_property
    def start(self) -> State:
        """Return the state before round 1."""
        return initial_state(self.task, self.hooks)

    @cached_property
    def first(self) -> State:
        """Return the state after round 1."""
        return self.after(1)

    @cached_property
    def uploads(self) -> tuple[Task, list[Update]]:
        """Return the task of round 1 and what its clients send."""
        return upload(self.task, self.hooks, 1, self.start, self.task.data.participating[:3])

    def says(self, what: str) -> str:
        """Return how an error about the run begins: "fedopt_pt with top_k: <what>"."""
        return describe([self.method.name, *(wrapper.name for wrapper in self.wrappers)], what)

    def after(self, count: int, **changes: object) -> State:
        task, current = replace(self.task, **changes), self.start
        for number in range(1, count + 1):
            current, _ = train_round(task.at(number), self.hooks, current)
        return current

    def aggregate(
        self, updates: list[Update], change: Callable[[Tensor], Tensor] | None = None
    ) -> Tree:
        """Return the server's state of round 1 from what its clients sent, in this order.

        `change` is applied to every tensor in the payloads that the method's aggregate receives.
        """
        given: dict[str, Any] = {"task": self.uploads[0], "server": self.start.server}
        accepted = self.hooks.receive(**given, updates=updates)
        if change is not None:
            accepted = [replace(u, payload=tensor_map(change, u.payload)) for u in accepted]
        return self.hooks.aggregate(**given, updates=accepted)

    def require_same_aggregate(self, others: list[Update], what: str, tolerance: float) -> None:
        """Require that other updates lead to the server's state of round 1."""
        before, after = (self.aggregate(sent) for sent in (self.uploads[1], others))
        require_equal(self, before, after, what, tolerance)


def ignores_order(run: TinyRun) -> None:
    """Check that the order of the updates changes the aggregate by rounding at most.

    A server may amplify rounding: for an entry that no client changed, Adam divides the rounding of
    the mean by its own size. So a number passes if noise in the uploads' last bits moves it as far.
    """
    tolerance = CLOSE_IN_SUM if any(w.preserves for w in run.wrappers) else 1e-5
    before, after = (run.aggregate(run.uploads[1][::step]) for step in (1, -1))
    if tolerance < max(differences(before, after).values(), default=0.0) < math.inf:
        after = _but_for_rounding(run, before, after)
    require_equal(run, before, after, "the order of updates changes the aggregate", tolerance)


def _but_for_rounding(run: TinyRun, before: Tree, after: Tree) -> Tree:
    """Return `after`, with the numbers of `before` that noise in the last bits moves as far."""
    generator = run.task.generator("rounding")

    def noisy(value: Tensor) -> Tensor:
        noise = LAST_BITS * torch.randn(value.shape, generator=generator)
        return value + noise if value.is_floating_point() else value

    def settled(b: Tensor, a: Tensor, *moved: Tensor) -> Tensor:
        reach = torch.stack([(m.double() - a).abs() for m in moved]).amax(0)
        return torch.where((b.double() - a).abs() <= AMPLIFIED * reach, a, b)

    moved = [run.aggregate(run.uploads[1], noisy) for _ in range(DRAWS)]
    alike = [each for each in moved if math.inf not in differences(before, each).values()]
    return tensor_map(settled, after, before, before, *alike)


def aggregates_as_declared(run: TinyRun) -> None:
    """Check that the server uses nothing of the updates but the mean that method.toml declares.

    Its next state stays the same when numbers are added to the payloads that cancel in the sum.
    """
    for number, method in enumerate([] if run.wrappers else _declarations(run.method)):
        folder = run.folder / f"declared {number}"
        folder.mkdir()
        one = TinyRun(method, folder)
        task, updates = one.uploads
        shifted = _shift(task, updates, task.aggregation == "weighted")
        what = f"aggregation is {task.aggregation}, but aggregate uses more of the updates"
        one.require_same_aggregate(shifted, what, CLOSE_IN_SUM)


def _declarations(method: Plugin) -> Iterator[Plugin]:
    """Yield the method with defaults for which it declares a mean, in each way that it does.

    Every option that a declaration names is given each of the values that it is named with.
    """
    named: dict[str, set] = {}
    conditions = method.aggregation.values() if isinstance(method.aggregation, dict) else ()
    for condition in conditions:
        for option, value in condition.items() if isinstance(condition, dict) else ():
            named.setdefault(option, {method.option_schemas[option]["default"]}).add(value)
    for values in itertools.product(*(sorted(values, key=str) for values in named.values())):
        one = method.with_defaults(dict(zip(named, values, strict=True)))
        if one.aggregation_with(one.options({}, one.name)) is not None:
            yield one


def _shift(task: Task, updates: list[Update], weighted: bool) -> list[Update]:
    """Add noise to each payload that cancels in the updates' sum, plain or weighted by images."""
    weights = torch.tensor([float(u.num_examples if weighted else 1) for u in updates])
    shares, generator = weights / weights.sum(), task.generator("sum")

    def draw(value: Tensor) -> Tensor:  # [K, ...], of weighted mean 0 over clients
        noise = SHIFT * torch.randn(len(updates), *value.shape, generator=generator)
        return noise - torch.einsum("k,k...->...", shares, noise)

    def add(update: Update, k: int) -> Update:
        def moved(value: Tensor, noise: Tensor) -> Tensor:
            return value + noise[k] if value.is_floating_point() else value

        return replace(update, payload=tensor_map(moved, update.payload, drawn))

    drawn = tensor_map(draw, updates[0].payload)
    return [add(update, k) for k, update in enumerate(updates)]


def reads_nothing_private(run: TinyRun) -> None:
    """Check that a method's aggregate does not read the updates' side channel, as wrappers may."""
    if not run.wrappers:
        bare = [replace(update, side_channel={}) for update in run.uploads[1]]
        run.require_same_aggregate(bare, "the aggregate reads the side channel", 0.0)


def keeps_secrets(run: TinyRun) -> None:
    """Check that a client uploads nothing of its personal state.

    In its second round: in its first, a state that starts at zero is all that has changed of it.
    """
    ids = sorted(run.first.clients)
    for update in upload(run.task, run.hooks, 2, run.first, ids)[1]:
        sent = [(p, v) for p, v in leaves(update.payload) if isinstance(v, Tensor)]
        for path, kept in leaves(update.client_state | update.wrapper_state):
            for name, value in sent:
                if isinstance(kept, Tensor) and torch.equal(kept, value):
                    raise FedLoomError(run.says(f"personal '{path}' is uploaded as '{name}'"))


def leaves_inputs_alone(run: TinyRun) -> None:
    """Check that neither a round nor an evaluation changes the server's state in place."""
    start = initial_state(run.task, run.hooks)
    before = deepcopy(start.server)
    trained, _ = train_round(run.task.at(1), run.hooks, start)
    require_equal(run, before, start.server, "a round changes the server's state")
    before = deepcopy(trained.server)
    evaluate(run.task.at(1), run.hooks, trained)
    require_equal(run, before, trained.server, "an evaluation changes the server's state")


def answers_as_declared(run: TinyRun) -> None:
    """Check that `predict` answers for the server's model as method.toml declares."""
    row = evaluate_globally(run.task.at(1), run.hooks, run.first)
    answered = row["num_test"] == sum(map(len, run.task.data.test))
    if not run.wrappers and answered != run.method.has_server_model(vars(run.task.options)):
        does, declared = ("answers", "true") if answered else ("returns None", "false")
        raise FedLoomError(
            f"{run.method.name}: predict {does} for the server's model, but cost.no_server_model "
            f"in method.toml is {declared}"
        )


def gives_its_tables(run: TinyRun) -> None:
    """Check that the artefact hook gives every table that method.toml lists for these options."""
    for name in run.method.artefacts_with(vars(run.task.options)):
        artefact(run.task.at(1), run.hooks, run.first, name)


RULES: tuple[Callable[[TinyRun], None], ...] = (
    leaves_inputs_alone,  # before the others, which share the states of the run
    ignores_order,
    aggregates_as_declared,
    reads_nothing_private,
    keeps_secrets,
    answers_as_declared,
    gives_its_tables,
)


def keeps_rules(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check RULES on one run."""
    run = TinyRun(method, folder, *wrappers)
    for rule in RULES:
        rule(run)


def resumes(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that three rounds in one job equal a job of two and one of the third, bit for bit.

    Each job imports the plugins anew, as its process would: what they hold beside the state is
    lost. The backbone's width is odd, since kernels round the rest of a vector in other ways.
    """
    run = TinyRun(method, folder, *wrappers, backbone=tiny_backbone(method.family, ODD))
    states, tables = [], []
    for name, ends in (("whole", [3]), ("parts", [2, 3])):
        (folder / name).mkdir()
        start, first, evaluations = None, 0, []
        for last in ends:
            outputs = tiny_outputs(folder / name, last)
            hooks = loader.load_hooks(method, wrappers=wrappers)
            job = tiny_job(method, first, last)
            training_job.train(run.task, hooks, job, start, outputs, f"{last}")
            evaluations.append(read_table(outputs.evaluation))
            start, first = outputs.state, last
        assert start is not None
        states.append(tensor_files.load(start)[0])
        tables.append(pa.concat_tables(evaluations))
    require_equal(run, states[0], states[1], "3 rounds are not 2 + 1 rounds")
    if not tables[0].equals(tables[1]):
        raise FedLoomError(run.says("3 rounds do not evaluate as 2 + 1 rounds"))


def stacks(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that clients trained, and evaluated, as one batch equal clients one by one."""
    run = TinyRun(method, folder, *wrappers)
    if not run.task.stacked:
        return
    whole, split = (run.after(2, stacked=stacked) for stacked in (True, False))
    what = "stacked clients are not single ones"
    require_equal(run, whole.tree(), split.tree(), what, run.tolerance)

    def losses(stacked: bool) -> dict[str, float]:
        rows = evaluate(replace(run.task.at(2), stacked=stacked), run.hooks, whole)
        kinds = ("client", "personalized client")
        return {f"{kinds[row['personalized']]} {row['client_id']}": row["loss"] for row in rows}

    what = "stacked clients do not predict as single ones"
    require_equal(run, losses(True), losses(False), what, run.tolerance)


def learns(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that training lowers the loss of the global test.

    On clients that are alike: one of two classes is soon good at them, whatever the others did.
    """
    if not method.trained:
        return
    run = TinyRun(method, folder, *wrappers, partition=ALIKE, epochs=2)
    current, losses = run.start, []
    for number in range(1, 9):
        task = run.task.at(number)
        current, _ = train_round(task, run.hooks, current)
        if number not in (4, 5):
            losses.append(evaluate_globally(task, run.hooks, current)["loss"])
    if not sum(losses[3:]) < sum(losses[:3]):
        line = run.says(f"the loss of the global test does not fall: {losses}")
        raise NotLearningError(line)


Check = Callable[..., None]
CHECKS: tuple[Check, ...] = (keeps_rules, resumes, stacks, learns)
