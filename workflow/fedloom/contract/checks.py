"""The checks, one function per rule: each trains a tiny run and raises if the rule is broken."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from fedloom.backbones.base import Backbone
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.io import read_table
from fedloom.common.tensors import Tree, leaves, stack
from fedloom.contract import sums
from fedloom.contract.tiny import (
    ALIKE,
    CLASSES,
    DIFFERENT,
    ODD,
    tiny_clip,
    tiny_job,
    tiny_outputs,
    tiny_task,
    tiny_vit,
)
from fedloom.federated import training_job
from fedloom.federated.evaluate import artefact, cohorts, evaluate, evaluate_globally
from fedloom.federated.groups import iterate_examples
from fedloom.federated.round import download_to, initial_state, personal_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Task, Update, cohort
from fedloom.hooks import loader
from fedloom.hooks.manifest import Plugin

CLOSE = 1e-4  # float32, after two rounds
CLOSE_IN_SUM = 1e-3  # with wrappers that preserve the sum of the updates alone


def differences(a: Tree, b: Tree) -> dict[str, float]:
    """Return the largest absolute difference by leaf, infinite where the trees do not match."""
    left, right = dict(leaves(a)), dict(leaves(b))
    paths = left.keys() | right.keys()
    return {path: _difference(left.get(path), right.get(path)) for path in paths}


def _difference(a: object, b: object) -> float:
    if not isinstance(a, Tensor | int | float) or not isinstance(b, Tensor | int | float):
        return 0.0 if a == b else float("inf")
    x, y = (torch.as_tensor(value, dtype=torch.float64) for value in (a, b))
    if x.shape != y.shape:
        return float("inf")
    return float((x - y).abs().max()) if x.numel() else 0.0


def require_equal(method: Plugin, a: Tree, b: Tree, what: str, tolerance: float = 0.0) -> None:
    for path, difference in differences(a, b).items():
        if not difference <= tolerance:
            raise FedLoomError(f"{method.name}: {what}: '{path}' differs by {difference:.3g}")


class NotLearningError(FedLoomError):
    """The loss of the global test does not fall."""


class TinyRun:
    """Hold a tiny run of a method, in a folder of its own."""

    def __init__(
        self,
        method: Plugin,
        folder: Path,
        wrappers: tuple[Plugin, ...] = (),
        partition: dict = DIFFERENT,
        epochs: int = 1,
        backbone: Backbone | None = None,
    ):
        self.task = tiny_task(method, folder, wrappers, partition, backbone=backbone)
        vars(self.task.training).update(epochs=epochs)
        self.hooks = loader.load_hooks(method, wrappers=wrappers)

    def start(self) -> State:
        return initial_state(self.task, self.hooks)

    def after(self, count: int, **changes: object) -> State:
        task, current = replace(self.task, **changes), self.start()
        for number in range(1, count + 1):
            current, _ = train_round(task.at(number), self.hooks, current)
        return current

    def upload(self, number: int, current: State, ids: list[int]) -> tuple[Task, list[Update]]:
        """Return round `number`'s task and what its clients send, as one cohort if allowed."""
        ids = ids if self.task.stacked else ids[:1]
        task = replace(self.task.at(number), selected=tuple(ids))
        delivered = download_to(task, self.hooks, current, ids)[1]
        states = [personal_state(task, self.hooks, current, k) for k in ids]
        kept = [current.wrappers.get(k, {}) for k in ids]
        clients = cohort(task, ids, states, wrapper_states=kept)
        updates = self.hooks.client_update(task=task, received=stack(delivered), clients=clients)
        for update, client, received in zip(updates, ids, delivered, strict=True):
            update.client, update.received = client, received
        return task, updates

    def aggregate(self, task: Task, server: Tree, updates: list[Update]) -> Tree:
        """Return the server's next state from what its clients sent, in this order."""
        accepted = self.hooks.receive(task=task, server=server, updates=updates)
        return self.hooks.aggregate(task=task, server=server, updates=accepted)


def resumes(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that three rounds in one job equal a job of two and one of the third, bit for bit.

    A job is a process of its own, so each imports the plugins anew: what they hold beside the state
    is lost. The backbone's width is odd, since kernels round the rest of a vector in other ways.
    """
    backbone = tiny_vit(ODD) if method.family == "vit" else tiny_clip(ODD)
    run = TinyRun(method, folder, wrappers, backbone=backbone)
    jobs = (("whole", [3]), ("parts", [2, 3]))
    for name, ends in jobs:
        (folder / name).mkdir()
        start, first = None, 0
        for last in ends:
            outputs = tiny_outputs(folder / name, last)
            hooks = loader.load_hooks(method, wrappers=wrappers)
            training_job.train(
                run.task, hooks, tiny_job(method, first, last), start, outputs, f"{last}"
            )
            start, first = outputs.state, last
    whole, parts = (tensor_files.load(folder / name / "3.state")[0] for name in ("whole", "parts"))
    require_equal(method, whole, parts, "3 rounds are not 2 + 1 rounds")
    tables = [
        pa.concat_tables(read_table(folder / name / f"{last}.evaluation") for last in ends)
        for name, ends in jobs
    ]
    if not tables[0].equals(tables[1]):
        raise FedLoomError(f"{method.name}: 3 rounds do not evaluate as 2 + 1 rounds")
    if run.start().server.keys() != State.of(whole).server.keys():
        raise FedLoomError(f"{method.name}: aggregate returns other keys than init_server")


def stacks(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that clients trained, and evaluated, as one batch equal clients one by one."""
    run = TinyRun(method, folder, wrappers)
    if not run.task.stacked:
        return
    whole, split = (run.after(2, stacked=stacked) for stacked in (True, False))
    tolerance = CLOSE_IN_SUM if any(w.preserves for w in wrappers) else CLOSE
    what = "stacked clients are not single ones"
    require_equal(method, whole.tree(), split.tree(), what, tolerance)
    losses = []
    for stacked in (True, False):
        task = replace(run.task.at(2), stacked=stacked)
        rows = evaluate(task, run.hooks, whole)
        losses.append({_named(row): row["loss"] for row in rows})
    together, alone = losses
    what = "stacked clients do not predict as single ones"
    require_equal(method, together, alone, what, tolerance)


def _named(row: dict) -> str:
    """Name a row of evaluation.parquet."""
    return f"client {row['client_id']}" + (", personalized" if row["personalized"] else "")


def ignores_order(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the order of the updates does not matter to the aggregate."""
    run = TinyRun(method, folder, wrappers)
    current = run.start()
    task, updates = run.upload(1, current, run.task.data.participating[:3])
    orders = (updates, updates[::-1])
    one, other = (run.aggregate(task, current.server, order) for order in orders)
    tolerance = CLOSE_IN_SUM if any(w.preserves for w in wrappers) else 1e-5
    require_equal(method, one, other, "the order of updates changes the aggregate", tolerance)


def aggregates_as_declared(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the server uses nothing of the updates but the mean that method.toml declares.

    Its next state stays the same when numbers are added to the payloads that cancel in the sum.
    """
    for number, one in enumerate(sums.declarations(method)):
        (folder / str(number)).mkdir()
        run = TinyRun(one, folder / str(number))
        current, declared = run.start(), run.task.aggregation
        task, updates = run.upload(1, current, run.task.data.participating[:3])
        shifted = sums.shift(task, updates, declared == "weighted")
        before, after = (run.aggregate(task, current.server, sent) for sent in (updates, shifted))
        what = f"aggregation is {declared}, but aggregate uses more of the updates"
        require_equal(method, before, after, what, CLOSE_IN_SUM)


def reads_nothing_private(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that a method's aggregate does not read the side channel of the updates.

    Without wrappers, for which the side channel is.
    """
    run = TinyRun(method, folder)
    current = run.start()
    task, updates = run.upload(1, current, run.task.data.participating[:3])
    bare = [replace(update, side_channel={}) for update in updates]
    one, other = (run.aggregate(task, current.server, sent) for sent in (updates, bare))
    require_equal(method, one, other, "the aggregate reads the side channel")


def keeps_secrets(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that a client uploads nothing of its personal state.

    In its second round: in its first, a state that starts at zero is all that has changed of it.
    """
    run = TinyRun(method, folder, wrappers)
    current = run.after(1)
    for update in run.upload(2, current, sorted(current.clients))[1]:
        sent = [(p, v) for p, v in leaves(update.payload) if isinstance(v, Tensor)]
        for path, kept in leaves(update.client_state | update.wrapper_state):
            for name, value in sent:
                if isinstance(kept, Tensor) and torch.equal(kept, value):
                    raise FedLoomError(f"{method.name}: personal '{path}' is uploaded as '{name}'")


def leaves_inputs_alone(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that neither a round nor an evaluation changes the server's state in place."""
    run = TinyRun(method, folder, wrappers)
    start = run.start()
    before = deepcopy(start.server)
    trained, _ = train_round(run.task.at(1), run.hooks, start)
    require_equal(method, before, start.server, "a round changes the server's state")
    before = deepcopy(trained.server)
    evaluate(run.task.at(1), run.hooks, trained)
    require_equal(method, before, trained.server, "an evaluation changes the server's state")


def evaluates_strangers(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that all clients can be evaluated, also those that never trained, and the server's."""
    run = TinyRun(method, folder, wrappers)
    current, task = run.after(1), run.task.at(1)
    for received, clients in cohorts(task, run.hooks, current):
        rows = [task.data.test[k] for k in clients.ids]
        batch = next(iterate_examples(task, rows))
        with torch.no_grad():
            logits = run.hooks.predict(task=task, received=received, clients=clients, batch=batch)
        expected = (*batch.labels.shape, CLASSES)
        if logits is None or logits.shape != expected or not logits.isfinite().all():
            found = None if logits is None else tuple(logits.shape)
            raise FedLoomError(
                f"{method.name}: predict must give finite logits {expected}, gave {found}"
            )
    row = evaluate_globally(task, run.hooks, current)
    answered = row["num_test"] == sum(map(len, task.data.test))
    if not wrappers and answered != method.has_server_model(vars(task.options)):
        does, declared = ("answers", "true") if answered else ("returns None", "false")
        raise FedLoomError(
            f"{method.name}: predict {does} for the server's model, but cost.no_server_model in "
            f"method.toml is {declared}"
        )


def learns(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that training lowers the loss of the global test.

    On clients that are alike: one of two classes is soon good at them, whatever the others did.
    """
    if not method.trained:
        return
    run = TinyRun(method, folder, wrappers, ALIKE, epochs=2)
    current, losses = run.start(), []
    for number in range(1, 9):
        task = run.task.at(number)
        current, _ = train_round(task, run.hooks, current)
        if number not in (4, 5):
            losses.append(evaluate_globally(task, run.hooks, current)["loss"])
    if not sum(losses[3:]) < sum(losses[:3]):
        line = f"{method.name}: the loss of the global test does not fall: {losses}"
        raise NotLearningError(line)


def gives_its_tables(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the artefact hook gives every table that method.toml lists for these options."""
    run = TinyRun(method, folder, wrappers)
    current, task = run.after(1), run.task.at(1)
    for name in method.artefacts_with(vars(task.options)):
        artefact(task, run.hooks, current, name)


Check = Callable[..., None]
CHECKS: tuple[Check, ...] = (
    resumes,
    stacks,
    ignores_order,
    aggregates_as_declared,
    reads_nothing_private,
    keeps_secrets,
    leaves_inputs_alone,
    evaluates_strangers,
    gives_its_tables,
    learns,
)
