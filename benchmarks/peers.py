"""FedLoom against other tools and a plain loop: the same training, timed in turn.

    make bench
    peers.py --backbone vit_small --methods fedvpt --batches 16 --images 500 --rounds 4

Ten clients of the digits train a linear head, or prompts and a head, on a ViT: one epoch a round,
all with the same batches and first parameters. The ViT is the micro ViT, or a ViT-S/14 of random
weights at 98 pixels; with it, FedLoom and the plain loop also train in bfloat16. Every arm is a
separate process, and all are bound to the same core with one thread. They take turns round by
round, so that what else the machine does meets all of them. After every round the parameters of all
arms are compared. The script prints medians over the rounds after the first: processor seconds of
an arm's process and its children, the ratio to FedLoom's in the same round, and the largest memory.

Flower and pfl-research need an environment of their own (`make peers`); without it they are left
out, and the script says so.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import timm
import torch
from peer_arms.world import Case, World, result_file
from prepared import PARTITION, SGD, make_files, prepared
from safetensors.torch import load_file, save_file

from fedloom.backbones.vit import FrozenViT
from fedloom.data.batch import shuffled_batches
from fedloom.federated.round import initial_state
from fedloom.machine.install import ROOT
from fedloom.planning.plan import Plan

TOLERANCE = 1e-5  # after the first round
# after later ones, as a share of how far parameters moved: arms add in other orders, and what they
# differ by grows with every step
LATER = 0.05
HALF = 0.3  # of arms in bfloat16, after any round: a coarse check that they train the same
PATIENCE = 300  # seconds: Flower's server waits for an hour if Ray has died
METHODS, BATCHES = ("head_tuning", "fedvpt"), (4, 16, 64)
PEERS = ROOT / "build/peers/bin/python"
OURS = "fedloom"
# Okabe and Ito's
COLOURS = ("#0072B2", "#56B4E9", "#999999", "#D55E00", "#E69F00", "#009E73", "#CC79A7")
VIT_SMALL = {"library": "timm", "name": "vit_small_patch14_dinov2", "image_size": 98}
BACKBONES = ("micro_vit", "vit_small")


@dataclass(eq=False)
class Arm:
    """A process that trains all cases, and what its rounds took.

    Attributes:
        name: of its files.
        title: of its rows.
        module: of `peer_arms`, which the process runs.
        package: the one that it needs in the environment of peers, if any.
        begun: "wall" and "processor" seconds until it was ready for its first round.
        taken: the same of its rounds, by case.
    """

    name: str
    title: str
    module: str
    package: str | None = None
    begun: dict[str, float] = field(default_factory=dict, init=False)
    taken: dict[Case, list[dict[str, float]]] = field(default_factory=dict, init=False)
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def start(self, folder: Path) -> None:
        """Start the process, and wait until it is ready for its first round."""
        python = sys.executable if self.package is None else str(PEERS)
        command = [python, "-m", f"peer_arms.{self.module}", str(folder), self.name]
        started = time.perf_counter()
        with _log(folder, self.name).open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT / 'benchmarks'}"},
            )
        self.begun = self._answer(folder)
        self.begun["wall"] = time.perf_counter() - started

    def train(self, world: World, case: Case, number: int) -> None:
        """Let it train a round, and wait until it is ready for the next, if there is one."""
        requests, _ = self._pipes()
        requests.write("go\n")
        requests.flush()
        self.taken.setdefault(case, []).append(self._answer(world.folder))
        if (case, number) != (world.cases[-1], world.rounds):
            self._answer(world.folder)

    def end(self) -> None:
        """End the process, if it was started, and wait for it."""
        if self._process is None:
            return
        for pipe in self._pipes():
            pipe.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self, folder: Path) -> dict[str, float]:
        """Read an answer; if the process died instead, end with the tail of its log."""
        _, answers = self._pipes()
        assert self._process is not None
        patience = threading.Timer(PATIENCE, self._process.kill)
        patience.start()
        line = answers.readline()
        patience.cancel()
        if not line:
            tail = _log(folder, self.name).read_text().splitlines()[-30:]
            end = f"error: the arm {self.name} died, or was silent for {PATIENCE} s; see above"
            sys.exit("\n".join([*tail, end]))
        return json.loads(line)

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        """Return the process's standard input and output."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        return process.stdin, process.stdout

    def version(self) -> str | None:
        """Return the version of the arm's package, None if it cannot be imported."""
        assert self.package is not None
        module = {"flwr": "flwr.simulation, ray"}.get(self.package, self.package)
        code = f"import {module}; from importlib.metadata import version as v"
        command = [str(PEERS), "-c", f"{code}; print(v('{self.package}'))"]
        if not PEERS.exists():
            return None
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return done.stdout.strip() if done.returncode == 0 else None


def _log(folder: Path, arm: str) -> Path:
    """Return the file of what an arm prints."""
    return folder / f"{arm}.log"


def arms_at_hand(half: bool = False) -> list[Arm]:
    """Return the arms that can run here, those in bfloat16 if asked; name those that cannot."""
    arms = [
        Arm(OURS, "FedLoom", "ours"),
        Arm("one_by_one", "FedLoom, a cohort for each client", "ours"),
        Arm("plain", "plain loop", "plain"),
        Arm("flower", "Flower's simulation", "flower", "flwr"),
        Arm("pfl", "pfl-research", "pfl_research", "pfl"),
    ]
    for arm in [arm for arm in arms if arm.package is not None]:
        version = arm.version()
        if version is None:
            print(f"Left out: {arm.title}, since {PEERS} cannot import {arm.package}.")
            arms.remove(arm)
        else:
            arm.title += f" {version}"
    if half:
        arms.append(Arm("fedloom_bf16", "FedLoom, bf16", "ours"))
        arms.append(Arm("plain_bf16", "plain loop, bf16", "plain"))
    return arms


def write_small(file: Path) -> None:
    """Write random weights of VIT_SMALL, with layer scales of 1 (new ones hide the blocks)."""
    torch.manual_seed(0)
    model = timm.create_model(VIT_SMALL["name"], num_classes=0, img_size=VIT_SMALL["image_size"])
    tensors = model.state_dict()
    save_file({k: v.fill_(1) if ".ls" in k else v for k, v in tensors.items()}, file)


def write_world(
    folder: Path, backbone: str, cases: tuple[Case, ...], rounds: int, images: int | None
) -> World:
    """Prepare FedLoom's runs of all cases, and write what the other arms need of them.

    Args:
        backbone: one of BACKBONES.
        images: how many training images there are; None: all digits.
    """
    labels = {
        case.name: {"plugin": case.method, "training": {"batch_size": case.batch}} for case in cases
    }
    digits = {"source": "sklearn_digits", "max_train": images}
    digits = {key: value for key, value in digits.items() if value is not None}
    more = {}
    if backbone == "vit_small":
        write_small(folder / "vit_small.safetensors")
        more = {"vit_small": VIT_SMALL | {"weights": str(folder / "vit_small.safetensors")}}
    plan = make_files(labels, rounds, digits, backbone, more)
    tensors: dict[str, torch.Tensor] = {}
    for case in cases:
        tensors |= _tensors_of(plan, case, rounds)
    settings = plan.settings.backbones[backbone].settings
    world = World(
        folder=folder,
        cases=cases,
        rounds=rounds,
        clients=PARTITION["clients"],
        lr=SGD["lr"],
        momentum=SGD["momentum"],
        clip=SGD["clip"],
        backbone=settings["name"],
        image_size=settings["image_size"],
        weights=str(ROOT / settings["weights"]),
    )
    world.write(tensors)
    return world


def _tensors_of(plan: Plan, case: Case, rounds: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a case, see `World`: its images, orders and first parameters."""
    task, hooks = prepared(plan, case.name)
    data, backbone = task.data, task.backbone
    assert isinstance(backbone, FrozenViT)
    images = torch.from_numpy(data.store.images(torch.arange(len(data.store)).numpy()).copy())
    tensors = {"pixels": backbone.pixels(images), "labels": data.labels}
    if case.method == "head_tuning":
        tensors["features"] = data.tokens(None).float().contiguous()
    for number in range(1, rounds + 1):
        for client in data.participating:
            draw = partial(shuffled_batches, data.train[client], case.batch, 1, task.seed)
            rows = torch.cat([torch.from_numpy(part) for part in draw(number, client, 0)])
            tensors[f"order/{number}/{client}"] = rows
    params = initial_state(task, hooks).server["params"]
    return tensors | {f"{case.method}/{name}": value for name, value in params.items()}


def check_alike(world: World, arms: list[Arm], case: Case, number: int) -> float:
    """Return by how much the arms' parameters differ at most after a round.

    Raises:
        SystemExit: by more than TOLERANCE (LATER, after later rounds), an arm gives other
            parameters, or hardly any training moved them.
    """
    results = {arm.name: load_file(result_file(world, arm.name, case, number)) for arm in arms}
    reference, largest = results[OURS], 0.0
    moved = max((reference[k] - v).abs().max().item() for k, v in world.first(case.method).items())
    allowed = TOLERANCE if number == 1 else LATER * moved
    for name, params in results.items():
        if params.keys() != reference.keys():
            sys.exit(f"error: {name}, {case.name}: {sorted(params)}, not {sorted(reference)}")
        differ = max((params[key] - reference[key]).abs().max().item() for key in reference)
        half = name.endswith("bf16")
        if not differ <= (HALF * moved if half else allowed):
            sys.exit(f"error: {name}, {case.name}, round {number}: differs by {differ:.1e}")
        largest = largest if half else max(largest, differ)
    if moved < 1e3 * TOLERANCE:
        sys.exit(f"error: {case.name}: nothing was trained, so that the comparison says nothing")
    return largest


def measure(world: World, arms: list[Arm]) -> tuple[float, float]:
    """Let the arms train all cases in turn.

    Returns:
        The largest difference between them after a first round, and after a later one.
    """
    largest = [0.0, 0.0]
    for arm in arms:
        arm.start(world.folder)
    for case in world.cases:
        for number in range(1, world.rounds + 1):
            first = number % len(arms)
            for arm in arms[first:] + arms[:first]:
                arm.train(world, case, number)
            later = number > 1
            largest[later] = max(largest[later], check_alike(world, arms, case, number))
    return largest[0], largest[1]


def ratios(arm: Arm, ours: Arm, case: Case, clock: str) -> list[float]:
    """Return how many times as long as FedLoom's the arm's rounds took, without the first."""
    pairs = zip(arm.taken[case][1:], ours.taken[case][1:], strict=True)
    return [theirs[clock] / own[clock] for theirs, own in pairs]


def table(world: World, arms: list[Arm]) -> str:
    """Return the rounds as a Markdown table."""
    lines = [
        "| method | batch | arm | first round, CPU ms | round, CPU ms | of FedLoom's | wall ms "
        "| most memory, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in world.cases:
        for arm in arms:
            first, *later = arm.taken[case]
            processor, wall = (
                1e3 * statistics.median(taken[clock] for taken in later)
                for clock in ("processor", "wall")
            )
            ratio = statistics.median(ratios(arm, arms[0], case, "processor"))
            lines.append(
                f"| {case.method} | {case.batch} | {arm.title} | {1e3 * first['processor']:.0f} "
                f"| {processor:.0f} | {ratio:.2f} | {wall:.0f} | {later[-1]['megabytes']:.0f} |"
            )
    return "\n".join(lines)


def begun(arms: list[Arm]) -> str:
    """Return what the arms took to be ready for their first round, as a Markdown table."""
    lines = ["| arm | until its first round, CPU s | wall s |", "|---|---|---|"]
    for arm in arms:
        lines.append(f"| {arm.title} | {arm.begun['processor']:.1f} | {arm.begun['wall']:.1f} |")
    return "\n".join(lines)


def draw(world: World, arms: list[Arm], file: Path) -> None:
    """Draw the medians of the ratios to FedLoom's rounds, and their range, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = list(dict.fromkeys(case.method for case in world.cases))
    figure, axes = plt.subplots(1, len(methods), figsize=(4.2 * len(methods), 3), squeeze=False)
    for axis, method in zip(axes[0], methods, strict=True):
        cases = [case for case in world.cases if case.method == method]
        for position, arm in enumerate(arms[1:]):
            spread = [sorted(ratios(arm, arms[0], case, "processor")) for case in cases]
            middle = [statistics.median(values) for values in spread]
            at = [k + 0.2 * (position - (len(arms) - 2) / 2) for k in range(len(cases))]
            errors: Any = [
                [m - values[0] for m, values in zip(middle, spread, strict=True)],
                [values[-1] - m for m, values in zip(middle, spread, strict=True)],
            ]
            colour = COLOURS[position + 1]
            axis.bar(at, middle, 0.18, yerr=errors, color=colour, label=arm.title)
        axis.axhline(1, color=COLOURS[0], linewidth=1.5)
        axis.set_xticks(range(len(cases)), [f"batch {case.batch}" for case in cases])
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_title(method)
        axis.tick_params(labelsize=8)
    axes[0][0].set_ylabel("CPU time of a round,\ntimes that of FedLoom")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="lower center", ncols=len(arms) - 1, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(file, dpi=110)


def main() -> None:
    """Print two Markdown tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="of every case, the first included")
    parser.add_argument("--backbone", default="micro_vit", choices=BACKBONES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--images", type=int, help="fewer training images, for a look")
    parser.add_argument("--core", type=int, help="that all are bound to; default: the last")
    parser.add_argument("--figure", type=Path, help="PNG to draw the ratios into")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds: at least 2, since the first is not counted")
    figure = given.figure and given.figure.resolve()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores) if given.core is None else given.core})
    cases = tuple(Case(method, batch) for method in given.methods for batch in given.batches)
    arms = arms_at_hand(half=given.backbone == "vit_small")
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        world = write_world(Path(name), given.backbone, cases, given.rounds, given.images)
        try:
            first, later = measure(world, arms)
        finally:
            for arm in arms:
                arm.end()
        os.chdir(ROOT)
    print(
        f"\nParameters in float32 differ by at most {first:.0e} after the first round, and by "
        f"{later:.0e} after later ones.\n"
    )
    print(table(world, arms), begun(arms), sep="\n\n")
    if figure:
        draw(world, arms, figure)


if __name__ == "__main__":
    main()
