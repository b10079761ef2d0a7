"""What all arms share: the images, the order of batches, the first parameters, and the pace.

An arm is a process that trains the cases of a plan, round by round: it waits for a line on its
standard input before each, and answers with what the round took. So the driver lets arms take
turns. `benchmarks/peers.py` writes the plan, as JSON, and the tensors, as safetensors.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A workload: a method, with this number of images in a batch."""

    method: str
    batch: int

    @property
    def name(self) -> str:
        """The case's name in files."""
        return f"{self.method}_{self.batch}"


@dataclass(frozen=True)
class World:
    """The plan of all arms, and its tensors.

    Attributes:
        folder: where its files are, and arms write theirs to.
        cases: in the order in which they are trained.
        rounds, clients: how many there are; all clients take part in every round.
        lr, momentum, clip: of the clients' SGD, with the gradient's norm clipped.
        backbone, image_size, weights: timm's name of the backbone, and the file of its weights.
    """

    folder: Path
    cases: tuple[Case, ...]
    rounds: int
    clients: int
    lr: float
    momentum: float
    clip: float
    backbone: str
    image_size: int
    weights: str

    @classmethod
    def read(cls, folder: Path) -> "World":
        """Read the plan that `write` has written."""
        plan = json.loads((folder / "plan.json").read_text())
        cases = tuple(Case(**case) for case in plan.pop("cases"))
        return cls(folder=folder, cases=cases, **plan)

    def write(self, tensors: Params) -> None:
        """Write the plan and its tensors."""
        save_file(tensors, self.folder / "world.safetensors")
        plan = {k: v for k, v in asdict(self).items() if k != "folder"}
        (self.folder / "plan.json").write_text(json.dumps(plan))

    @cached_property
    def tensors(self) -> Params:
        """Return all tensors by name: those that the following methods name, and `labels` [N]."""
        return load_file(self.folder / "world.safetensors")

    def inputs(self, method: str) -> Tensor:
        """Return what a method's model reads of all images.

        Returns:
            The backbone's final class tokens [N, d], or its normalised input [N, channels, H, W].
        """
        return self.tensors["features" if method == "head_tuning" else "pixels"]

    def first(self, method: str) -> Params:
        """Return a copy of a method's parameters before round 1, by name."""
        start = f"{method}/"
        named = {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}
        return {name: value.clone() for name, value in named.items()}

    def order(self, number: int, client: int) -> Tensor:
        """Return a client's rows in the order of its only epoch in round `number`, from 1."""
        return self.tensors[f"order/{number}/{client}"]

    def batches(self, case: Case, number: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a client's batches of a round: inputs [B, ...] and labels [B]."""
        inputs = self.inputs(case.method)
        for rows in self.order(number, client).split(case.batch):
            yield inputs[rows], self.tensors["labels"][rows]


def processor_seconds() -> float:
    """Return the seconds of all processors in this process and those that it has started."""
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in children)


def peak_megabytes() -> float:
    """Return the sum of the largest memory that this process and each that it started has held."""
    process = psutil.Process()
    held = 0
    for each in (process, *process.children(recursive=True)):
        status = Path(f"/proc/{each.pid}/status").read_text()
        held += int(status.split("VmHWM:")[1].split()[0])  # KiB
    return held / 1024


@dataclass
class Pace:
    """One arm's side of taking turns.

    What the arm and its tools print to standard output goes to standard error.
    """

    world: World
    arm: str
    _started: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    def __post_init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def start(self) -> None:
        """Say that one is ready and what it took so far, wait for one's turn, start the clocks."""
        self._say({"processor": processor_seconds()})
        if not sys.stdin.readline():
            raise EOFError("the driver has ended")
        self._started = time.perf_counter(), processor_seconds()

    def stop(self, case: Case, number: int, params: Params) -> None:
        """Answer with what a round took, after writing the parameters that it ended in."""
        wall, processor = time.perf_counter(), processor_seconds()
        tensors = {name: value.detach().contiguous() for name, value in params.items()}
        save_file(tensors, result_file(self.world, self.arm, case, number))
        took = {"wall": wall - self._started[0], "processor": processor - self._started[1]}
        self._say(took | {"megabytes": peak_megabytes()})

    def _say(self, answer: dict) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def result_file(world: World, arm: str, case: Case, number: int) -> Path:
    """Return the file of the parameters after an arm's round."""
    return world.folder / f"{arm}_{case.name}_{number}.safetensors"


def begin(arm: str) -> Pace:
    """Read the plan that the command line names; one thread, as all arms have."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # or tiny gradients take several times as long
    return Pace(World.read(Path(sys.argv[1])), arm)
