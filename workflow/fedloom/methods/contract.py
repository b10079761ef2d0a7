"""Checks that every method must pass, ours or a third party's: `fedloom check <name>`.

Each check trains the method for a few rounds on six tiny clients of random images and raises a
FedLoomError that names the method and what it broke.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from fedloom.backbones.vit import FrozenViT
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.io import read_table
from fedloom.common.tensors import Tree, leaves, stack
from fedloom.data import federation
from fedloom.data.partition import divide, write_partition
from fedloom.data.store import Example, ImageStore
from fedloom.data.store import write as write_store
from fedloom.federated import job
from fedloom.federated.evaluate import cohorts, evaluate_clients, evaluate_globally
from fedloom.federated.evaluation_batches import iterate_examples
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task, WarmStart, cohort
from fedloom.methods import defaults, loader
from fedloom.methods.manifest import Plugin
from fedloom.plan.jobs import MethodSpec, RunSpec, TrainJob
from fedloom.plan.runs import Run
from fedloom.plan.settings import Backbone
from fedloom.toolbox.prototypes import warm_start

CLASSES, CLIENTS, SIZE = 4, 6, 16
DIFFERENT = {"scheme": "pathological", "clients": CLIENTS, "classes_per_client": 2, "held_out": 0.2}
ALIKE = {"scheme": "iid", "clients": CLIENTS, "held_out": 0.2}


def _tiny_vit() -> FrozenViT:
    """Return a ViT of 12 blocks of width 16 with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FrozenViT(
            VisionTransformer(
                img_size=SIZE,
                patch_size=8,
                embed_dim=16,
                depth=12,
                num_heads=2,
                mlp_ratio=1,
                num_classes=0,
            )
        )


def _tiny_clip():
    """Return a CLIP of width 16, two blocks for images and one for text, with random weights."""
    import open_clip  # takes seconds, and no ViT method needs it
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg

    from fedloom.backbones.clip.model import FrozenCLIP

    vision = CLIPVisionCfg(layers=2, width=16, head_width=8, patch_size=8, image_size=SIZE)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.CLIP(16, vision, CLIPTextCfg(width=16, heads=2, layers=1))
    numbers = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bilinear"}
    open_clip.set_model_preprocess_cfg(model, numbers | {"size": SIZE})
    return FrozenCLIP(model, open_clip.SimpleTokenizer(), "tiny")


def _tiny_data(folder: Path, scheme: dict) -> tuple[ImageStore, Path]:
    """Write noisy images of four classes, divided over six clients, one of them held out."""
    rng = np.random.default_rng(0)
    means = rng.uniform(0, 255, (CLASSES, SIZE, SIZE, 1))
    labels = np.repeat(np.arange(CLASSES), (15, 25, 35, 45))
    images = np.clip(means[labels] + rng.normal(0, 40, (120, SIZE, SIZE, 1)), 0, 255)
    examples = (
        Example(image.astype(np.uint8), int(label), i % 5 < 2, "noise")
        for i, (image, label) in enumerate(zip(images, labels, strict=True))
    )
    path = folder / "images.arrow"
    write_store(path, examples, (SIZE, SIZE, 1), list("abcd"), "noise")
    store = ImageStore(path)
    table = divide(store.labels, store.test, store.domains, scheme, seed=0)
    write_partition(folder / "partition.parquet", table)
    return store, folder / "partition.parquet"


def tiny_task(
    method: Plugin,
    folder: Path,
    wrappers: tuple[Plugin, ...] = (),
    partition: dict = DIFFERENT,
    **options: object,
) -> Task:
    """Return a task on which a round takes milliseconds; write its files into `folder`.

    Args:
        partition: how the images are divided; by default clients are of unequal size.
        options: the method's, where they are not the defaults; its wrappers have theirs.
    """
    store, division = _tiny_data(folder, partition)
    images = torch.from_numpy(store.images(np.arange(len(store))).copy())
    if method.family == "vit":
        backbone = _tiny_vit()
        tokens, patches = backbone.class_tokens(images), torch.empty(0)  # [N, M + 1, d]
    else:
        backbone = _tiny_clip()
        final, patches = backbone.image_features(images)
        tokens = final[:, None]

    def cached(block: int | None) -> Tensor:
        return tokens[:, -1 if block is None else block - 1]

    names = ["alpha", "beta", "gamma", "long delta"]
    cpu = torch.device("cpu")
    needs = method.needs
    data = federation.load(
        store,
        division,
        names,
        cpu,
        tokens=cached if "features" in needs else None,
        patches=(lambda: patches) if "patches" in needs else None,
    )
    training = method.training({"epochs": 2, "batch_size": 4, "lr": 0.05})
    chosen = [torch.from_numpy(data.train[k]) for k in data.participating[:3]]
    prototypes = None
    if "prototypes" in needs:
        warm = warm_start(tokens[:, :-1], data.labels, chosen, CLASSES)
        prototypes = WarmStart(**warm)
    return Task(
        seed=0,
        options=SimpleNamespace(**method.options(options, method.name)),
        training=SimpleNamespace(**training, rounds=4),
        backbone=backbone,
        data=data,
        clients_per_round=3,
        stacked=method.stacked,
        features_only=method.features_only,
        method=method.name,
        wrappers={w.name: SimpleNamespace(**w.options({}, w.name)) for w in wrappers},
        warm_start=prototypes,
    )


def tiny_job(method: Plugin, first: int = 0, last: int = 4) -> TrainJob:
    """Return a job of the tiny task that evaluates after rounds 2 and 4 and at its end."""
    options, training = method.options({}, method.name), method.training()
    spec = RunSpec(
        run=Run("tiny", "tiny", "tiny", method.name, 0),
        backbone=Backbone("tiny", "timm", {}),
        method=MethodSpec(method.name, options, training, (), method.needs),
        clients_per_round=3,
        rounds_per_job=4,
        schedule_rounds=None,
    )
    evaluate = sorted({number for number in (2, 4) if first < number <= last} | {last})
    return TrainJob(spec, first, last, tuple(evaluate), global_test=True, sources="")


def tiny_outputs(folder: Path, last: int = 4) -> job.Outputs:
    """Return paths for the outputs of a tiny job."""
    return job.Outputs(
        state=folder / f"{last}.state",
        evaluation=folder / f"{last}.evaluation",
        rounds=folder / f"{last}.rounds",
        confusion=folder / f"{last}.confusion",
        checkpoint=folder / "checkpoint.safetensors",
    )


def _differences(a: Tree, b: Tree) -> dict[str, float]:
    """Return the largest absolute difference by leaf, infinite where the trees do not match."""
    left, right = dict(leaves(a)), dict(leaves(b))
    result = {path: float("inf") for path in left.keys() ^ right.keys()}
    for path in left.keys() & right.keys():
        x, y = (torch.as_tensor(tree[path], dtype=torch.float64) for tree in (left, right))
        same_shape = x.shape == y.shape
        result[path] = float((x - y).abs().max()) if same_shape and x.numel() else 0.0
        if not same_shape:
            result[path] = float("inf")
    return result


def _require_equal(method: Plugin, a: Tree, b: Tree, what: str, tolerance: float = 0.0) -> None:
    for path, difference in _differences(a, b).items():
        if not difference <= tolerance:
            raise FedLoomError(f"{method.name}: {what}: '{path}' differs by {difference:.3g}")


class _Fixture:
    """Hold a tiny run of a method, in a folder of its own."""

    def __init__(
        self,
        method: Plugin,
        folder: Path,
        wrappers: tuple[Plugin, ...] = (),
        partition: dict = DIFFERENT,
    ):
        self.task = tiny_task(method, folder, wrappers, partition)
        self.hooks = loader.load_hooks(method, defaults, wrappers=wrappers)

    def start(self) -> State:
        return initial_state(self.task, self.hooks)

    def after(self, count: int, **changes: object) -> State:
        task, current = replace(self.task, **changes), self.start()
        for number in range(1, count + 1):
            current, _ = train_round(task.at(number), self.hooks, current)
        return current

    def send(self, current: State, ids: list[int]) -> tuple[Tree, Cohort]:
        """Return what the clients receive [K, ...] and the clients, as one cohort if allowed."""
        ids = ids if self.task.stacked else ids[:1]
        task = self.task.at(1)
        sent = [self.hooks.download(task=task, server=current.server, client=k) for k in ids]
        personal = [
            current.clients[k]
            if k in current.clients
            else self.hooks.init_client(task=self.task, client=k)
            for k in ids
        ]
        return stack(sent), cohort(task, ids, personal)


def resumes(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that four rounds in one job equal two jobs of two, bit for bit."""
    run = _Fixture(method, folder, wrappers)
    jobs = (("whole", [4]), ("halves", [2, 4]))
    for name, ends in jobs:
        (folder / name).mkdir()
        start, first = None, 0
        for last in ends:
            outputs = tiny_outputs(folder / name, last)
            job.train(run.task, run.hooks, tiny_job(method, first, last), start, outputs, f"{last}")
            start, first = outputs.state, last
    whole, halves = (
        tensor_files.load(folder / name / "4.state")[0] for name in ("whole", "halves")
    )
    _require_equal(method, whole, halves, "4 rounds are not 2 + 2 rounds")
    tables = [
        pa.concat_tables(read_table(folder / name / f"{last}.evaluation") for last in ends)
        for name, ends in jobs
    ]
    if not tables[0].equals(tables[1]):
        raise FedLoomError(f"{method.name}: 4 rounds do not evaluate as 2 + 2 rounds")
    if run.start().server.keys() != State.of(whole).server.keys():
        raise FedLoomError(f"{method.name}: aggregate returns other keys than init_server")


def stacks(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that clients trained, and evaluated, as one batch equal clients one by one."""
    run = _Fixture(method, folder, wrappers)
    if not run.task.stacked:
        return
    whole, split = (run.after(2, stacked=stacked) for stacked in (True, False))
    _require_equal(method, whole.tree(), split.tree(), "stacked clients are not single ones", 1e-4)
    losses = []
    for stacked in (True, False):
        task = replace(run.task.at(2), stacked=stacked)
        rows = evaluate_clients(task, run.hooks, whole)
        losses.append({f"client {row['client_id']}": row["loss"] for row in rows})
    together, alone = losses
    what = "stacked clients do not predict as single ones"
    _require_equal(method, together, alone, what, 1e-4)


def ignores_order(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the order of the updates does not matter to the aggregate."""
    run = _Fixture(method, folder, wrappers)
    task, current = run.task.at(1), run.start()
    received, clients = run.send(current, task.data.participating[:3])
    updates = run.hooks.client_update(task=task, received=received, clients=clients)
    for update, client in zip(updates, clients.ids, strict=True):
        update.client = client
    orders = (updates, updates[::-1])
    one, other = (run.hooks.aggregate(task=task, server=current.server, updates=o) for o in orders)
    _require_equal(method, one, other, "the order of updates changes the aggregate", 1e-5)


def reads_nothing_private(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that a method's aggregate does not read the side channel of the updates.

    Without wrappers, for which the side channel is.
    """
    run = _Fixture(method, folder)
    task, current = run.task.at(1), run.start()
    received, clients = run.send(current, task.data.participating[:3])
    updates = run.hooks.client_update(task=task, received=received, clients=clients)
    for update, client in zip(updates, clients.ids, strict=True):
        update.client = client
    bare = [replace(update, side_channel={}) for update in updates]
    one, other = (
        run.hooks.aggregate(task=task, server=current.server, updates=u) for u in (updates, bare)
    )
    _require_equal(method, one, other, "the aggregate reads the side channel")


def keeps_secrets(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that a client uploads nothing of its personal state.

    In its second round: in its first, a state that starts at zero is all that has changed of it.
    """
    run = _Fixture(method, folder, wrappers)
    task, current = run.task.at(2), run.after(1)
    received, clients = run.send(current, sorted(current.clients))
    for update in run.hooks.client_update(task=task, received=received, clients=clients):
        sent = [(p, v) for p, v in leaves(update.payload) if isinstance(v, Tensor)]
        for path, kept in leaves(update.client_state):
            for name, value in sent:
                if isinstance(kept, Tensor) and torch.equal(kept, value):
                    raise FedLoomError(f"{method.name}: personal '{path}' is uploaded as '{name}'")


def leaves_inputs_alone(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that a round changes nothing of the server's state in place."""
    run = _Fixture(method, folder, wrappers)
    current = run.start()
    before = {path: torch.as_tensor(v).clone() for path, v in leaves(current.server)}
    train_round(run.task.at(1), run.hooks, current)
    after = dict(leaves(current.server))
    changed = [
        path for path, v in before.items() if not torch.equal(v, torch.as_tensor(after[path]))
    ]
    if changed:
        raise FedLoomError(f"{method.name}: a round changes the server's '{changed[0]}' in place")


def evaluates_strangers(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that all clients can be evaluated, also those that never trained, and the server's."""
    run = _Fixture(method, folder, wrappers)
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
    evaluate_globally(task, run.hooks, current)


def learns(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that training lowers the loss of the global test.

    On clients that are alike: one of two classes is soon good at them, whatever the others did.
    """
    if not method.trained:
        return
    run = _Fixture(method, folder, wrappers, ALIKE)
    current, losses = run.start(), []
    for number in range(1, 9):
        task = run.task.at(number)
        current, _ = train_round(task, run.hooks, current)
        losses.append(evaluate_globally(task, run.hooks, current)["loss"])
    if not sum(losses[-3:]) < sum(losses[:3]):
        raise FedLoomError(f"{method.name}: the loss of the global test does not fall: {losses}")


Check = Callable[..., None]
CHECKS: tuple[Check, ...] = (
    resumes,
    stacks,
    ignores_order,
    reads_nothing_private,
    keeps_secrets,
    leaves_inputs_alone,
    evaluates_strangers,
    learns,
)


def check(plugin: Plugin, known: list[Plugin]) -> str:
    """Run every check; for a wrapper around every known method that it does not refuse.

    Returns:
        What was done, in words.

    Raises:
        FedLoomError: the first check that fails, or a wrapper that refuses every method.
    """
    if plugin.kind == "method":
        _run_checks(plugin)
        return f"{len(CHECKS)} checks"
    around = [m for m in known if m.kind == "method" and not refusal(plugin, m)]
    if not around:
        raise FedLoomError(f"{plugin.name}: refuses every method there is")
    for method in around:
        _run_checks(method, plugin)
    return f"{len(CHECKS)} checks around {', '.join(m.name for m in around)}"


def refusal(wrapper: Plugin, method: Plugin) -> str | None:
    """Return what a wrapper says to a method that it refuses, or None if it accepts the method."""
    with tempfile.TemporaryDirectory() as folder:
        run = _Fixture(method, Path(folder), (wrapper,))  # what is broken is no refusal
        try:
            run.start()
        except FedLoomError as error:
            return str(error)
    return None


def _run_checks(method: Plugin, *wrappers: Plugin) -> None:
    for test in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            test(method, Path(folder), *wrappers)
