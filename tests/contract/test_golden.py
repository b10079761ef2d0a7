"""Golden numbers: two rounds of every method on the contract's tiny task, to six digits.

Equations are tested elsewhere; these numbers notice any change at all, intended or not. If a change
is intended, write tests/support/golden.json again, for some methods or for all, and look at what
differs:

    PYTHONPATH=workflow .venv/bin/python tests/contract/test_golden.py fedpha pfpt
    PYTHONPATH=workflow .venv/bin/python tests/contract/test_golden.py
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from fedloom.common.trees import leaves
from fedloom.contract.tiny import tiny_backbone, tiny_task
from fedloom.federated.evaluate import evaluate, evaluate_globally
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT

pytestmark = pytest.mark.slow

FILE = ROOT / "tests/support/golden.json"
ROUNDS = 2
# Other CPUs sum in another order: with SSE, AVX2 and AVX-512 kernels on one machine these numbers
# differ by 4e-5 at most.
TOLERANCE = 1e-4
# A value beside a ReLU's kink falls on either side of it by rounding alone: over the kernels of
# three instruction sets the states of this case differ by 3e-4.
TOLERANCES = {"fedavg_adapter form=adaptformer mu=0.5": 1e-3}
ROUNDING = 1e-8  # nothing but rounding is so small: the gradient of a key's bias, which is zero
# PFPT's server opens and closes prompts, one more or less in round 2 by the last bit of a cost: its
# state is that of round 1.
STATE_OF_ROUND_1 = ("pfpt",)
# The gradient of this bias is rounding alone, but a step of Adam has its full size.
NOISE = {"fedic": "attn.qkv.bias"}

FEWER = {"fedic": {"server_steps": 10}}  # 100 steps in each of three phases take long

FEDPHA = ("paper", "algorithm_1", "released")
SELECTION = {"selection": True, "prompts": 3, "pool": 6}
BESIDE = [  # cases besides the defaults and every `variant`: method, options
    *((name, SELECTION) for name in ("fedavg_pt", "fedopt_pt", "fedprox_pt", "gmm_pt")),
    *(("pfedpg", {"generator": name}) for name in ("mlp", "adain", "basis")),
    ("pfedpg", {"head": "shared", "common_model": False}),
    ("promptfl", {"mu": 0.5}),
    ("kgcoop", {"averaged": False, "weight": 0.0}),
    ("fedclip", {"loss": "classes"}),
    ("fedtpg", {"names": "all"}),
    ("ifca", {"clusters": 3, "share_prompts": True}),
    ("fedavg", {"mu": 0.5, "train": "blocks.1.*bias"}),
    ("fedavg_adapter", {"form": "adaptformer", "mu": 0.5}),
    ("fedlora", {"shared": "b"}),
    ("fedlora", {"shared": "a", "ranks": [2, 4, 8]}),
    ("fedbabu", {"tuned": "head", "train": "prompts"}),
    ("fedem", {"train": "prompts"}),
    ("fedmix", {"train": "prompts", "means": 2}),
    ("fedrod", {"train": "prompts", "gamma": 0.0}),
    *(("fedopt_pt", {"server_optimizer": name}) for name in ("yogi", "adagrad")),
    ("fedopt_pt", {"server_optimizer": "sgd", "server_momentum": 0.9}),
    ("fedotp", {"balanced": True, "mass": 1.0}),
    *(("fedpha", {"variant": name, "lengths": [4, 8], "global_length": 6}) for name in FEDPHA),
]
AROUND = {"dp_laplace": "pep_fedpt", "dropout": "pep_fedpt"}  # others: around Head-Tuning


def every_case() -> dict[str, tuple]:
    """Return method, options and wrappers of every golden run, by its label."""
    plugins = [
        p for p in manifest.discover_methods().values() if p.module is None
    ]  # leave out installed plugins
    methods = [plugin for plugin in plugins if plugin.kind == "method"]
    runs = [(method.name, FEWER.get(method.name, {}), ()) for method in methods]
    for method in methods:
        variant = method.option_schemas.get("variant", {"enum": [], "default": None})
        others = [value for value in variant["enum"] if value != variant["default"]]
        runs += [(method.name, {"variant": value}, ()) for value in others]
    runs += [(name, options, ()) for name, options in BESIDE]
    wrappers = [plugin.name for plugin in plugins if plugin.kind == "wrapper"]
    runs += [(AROUND.get(name, "head_tuning"), {}, (name,)) for name in wrappers]
    labels = [
        " ".join([name, *(f"{key}={value}" for key, value in options.items()), *wrappers])
        for name, options, wrappers in runs
    ]
    return dict(zip(labels, runs, strict=True))


def measure(name: str, options: dict, wrappers: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Run a case, and return each statistic with the scale that its error is relative to."""
    method = manifest.find_method(name, role="method")
    around = tuple(manifest.find_method(wrapper, role="wrapper") for wrapper in wrappers)
    torch.set_num_threads(1)
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        backbone = tiny_backbone(method.family)
        task = tiny_task(method, Path(folder), around, backbone=backbone, **options)
        hooks = loader.load_hooks(method, wrappers=around)
        state = initial_state(task, hooks)
        server = state.server
        for number in range(1, ROUNDS + 1):
            state, row = train_round(task.at(number), hooks, state)
            numbers[f"train_loss of round {number}"] = row.train_loss
            if number == 1 or name not in STATE_OF_ROUND_1:
                server = state.server
        rows = evaluate(task.at(ROUNDS), hooks, state)
        numbers["loss of clients"] = sum(row.loss for row in rows) / len(rows)
        numbers["loss of global test"] = evaluate_globally(task.at(ROUNDS), hooks, state).loss
    numbers = {key: (value, abs(value)) for key, value in numbers.items()}
    for path, leaf in leaves(server):
        if NOISE.get(name) and path.endswith(NOISE[name]):
            continue
        tensor = torch.as_tensor(leaf).double()
        norm = tensor.square().sum().sqrt().item()
        named = f"{path} {list(tensor.shape)}"
        numbers[f"norm of {named}"] = norm, norm
        # entries of either sign cancel: the error of their sum does not scale with it
        numbers[f"sum of {named}"] = tensor.sum().item(), norm * tensor.numel() ** 0.5
    return numbers


def differences(
    golden: dict[str, float],
    measured: dict[str, tuple[float, float]],
    tolerance: float = TOLERANCE,
) -> list[str]:
    """Return a line for every statistic that is missing, new, or off by more than the tolerance."""
    if golden.keys() != measured.keys():
        return [f"{key}: in one of the two only" for key in golden.keys() ^ measured.keys()]
    return [
        f"{key}: {golden[key]} expected, {value:.6g} measured"
        for key, (value, scale) in measured.items()
        if not abs(value - golden[key]) <= tolerance * scale + ROUNDING
    ]


GOLDEN = json.loads(FILE.read_text()) if FILE.exists() else {}
CASES = every_case()


def test_every_method_and_variant_has_golden_numbers_and_no_other_has():
    assert sorted(GOLDEN) == sorted(CASES), "write them: the command is at the top of this file"


@pytest.mark.parametrize("case", sorted(CASES))
def test_two_rounds_give_the_golden_numbers(case):
    tolerance = TOLERANCES.get(case, TOLERANCE)
    assert not differences(GOLDEN[case], measure(*CASES[case]), tolerance)


def test_a_difference_beyond_the_tolerance_is_named():
    golden = {"loss": 2.0, "sum of head [4]": 0.0}
    measured = {"loss": (2.0, 2.0), "sum of head [4]": (0.0, 10.0)}
    assert not differences(golden, measured)
    off = 1.1 * TOLERANCE
    for key, change in (
        ("loss", {"loss": (2.0 + 2.0 * off, 2.0)}),
        ("loss", {"loss": (math.nan, math.nan)}),
        ("sum of head", {"sum of head [4]": (10.0 * off, 10.0)}),
        ("norm of head", {"norm of head [4]": (0.0, 1.0)}),
    ):
        (line,) = differences(golden, measured | change)
        assert line.startswith(key)


def write(names: list[str]) -> None:
    """Measure the cases of these methods, or all, and write the file again."""
    unknown = set(names) - {name for name, _, _ in CASES.values()}
    if unknown:
        sys.exit(f"error: no method {sorted(unknown)[0]}")
    numbers = {}
    for label, case in sorted(CASES.items()):
        if not names or case[0] in names:
            found = measure(*case)
            numbers[label] = {key: float(f"{value:.6g}") for key, (value, _) in found.items()}
        else:
            numbers[label] = GOLDEN[label]
    FILE.write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"{FILE}: {len(numbers)} cases")


if __name__ == "__main__":
    write(sys.argv[1:])
