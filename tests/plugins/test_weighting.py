"""How each method weighs its clients: by their training images or all alike, as its paper says."""

import pytest
import torch

from fedloom.common.trees import leaves, stack
from fedloom.federated.round import initial_state
from fedloom.federated.task import cohort
from fedloom.hooks import manifest

BY_IMAGES = [
    *("cocoop", "fedmaple", "fedotp", "fedpgp", "fedpha", "fppl", "kgcoop"),
    *("pfedmma", "pfedmoap", "pfpt", "promptfl", "promptfolio", "sgpt", "trip"),
]
ALIKE = ["centralised", "dp_fpl", "fedmgp", "fedmvp", "pep_fedpt", "scaffold_pt"]
# FEDIC trains the mean further, IFCA has means within clusters, pFedPG steps along the sum of
# the clients' deltas, three methods send nothing, and one does not train
NO_MEAN = [
    *("fedic", "ifca", "pfedpg"),
    *("singleset_full", "singleset_head", "singleset_vpt", "zero_shot_clip"),
]
# methods whose server needs more than the mean of all uploads
UNDECLARED = {
    *("centralised", "creff", "fedmix", "gmm_pt"),
    *("fppl", "pep_fedpt", "pfedmoap", "pfpt", "sgpt"),
}
AVERAGED = {  # parameters whose values on the server are means in round 1; default: all
    "creff": ["head"],  # norms hardly move without momentum
    "fedlora": ["head", "b/q", "b/v"],  # while B is near 0, A hardly moves
    "fppl": ["prompts"],  # the server trains the head, and one part's key has no gradient
    "gmm_pt": ["head"],
    "pfpt": ["head"],
    "sgpt": ["head", "shared_prompts"],
}
# what the clients get is the plain mean in this variant; test_baselines.py has Adam's
OPTIONS = {"fedopt_pt": {"variant": "released"}}
OPTIONAL = sorted(
    name
    for name, p in manifest.discover_methods().items()
    if p.kind == "method" and "weighted" in p.option_schemas
)
ALL_CASES = [
    *((name, {"weighted": weighted}, weighted) for name in OPTIONAL for weighted in (True, False)),
    *((name, {}, True) for name in BY_IMAGES),
    *((name, {}, False) for name in ALIKE),
]
# two of the methods without an aggregate stand for all: the hook is the same
BY_DEFAULT = {
    name
    for name, p in manifest.discover_methods().items()
    if p.kind == "method" and "def aggregate" not in p.file.read_text()
}
CASES = [case for case in ALL_CASES if case[0] not in BY_DEFAULT or case[0] in ("fedvpt", "fedpgp")]


@pytest.mark.parametrize(("name", "options", "weighted"), ALL_CASES)
def test_the_declared_mean_is_the_one_that_the_default_hook_takes(name, options, weighted):
    plugin = manifest.find_method(name)
    declared = plugin.aggregation_with(plugin.complete_options(options))
    mean = "weighted" if weighted else "plain"
    assert declared == (None if name in UNDECLARED else mean)


def test_every_method_is_here():
    methods = [p.name for p in manifest.discover_methods().values() if p.kind == "method"]
    assert sorted([*OPTIONAL, *BY_IMAGES, *ALIKE, *NO_MEAN]) == sorted(methods)


@pytest.mark.parametrize(("name", "options", "weighted"), CASES)
def test_the_server_averages_what_clients_of_unequal_size_trained(tiny, name, options, weighted):
    """The means are computed in float64, parameter by parameter."""
    task, hooks = tiny(name, **OPTIONS.get(name, {}), **options)
    task, start = task.at(1), initial_state(task, hooks)
    by_size = sorted(task.data.participating, key=lambda k: len(task.data.train[k]))
    ids = sorted(by_size[::2])
    received = stack([hooks.download(task=task, server=start.server, client=k) for k in ids])
    clients = cohort(task, ids, [hooks.init_client(task=task.at(0), client=k) for k in ids])
    updates = hooks.client_update(task=task, received=received, clients=clients)
    for client, update in zip(ids, updates, strict=True):
        update.client = client
    sizes = torch.tensor([float(len(task.data.train[k])) for k in ids], dtype=torch.float64)
    after = hooks.aggregate(task=task, server=start.server, updates=updates)["params"]
    after = dict(leaves(after))  # paths name backbone weights, too
    uploaded = [dict(leaves(update.payload["params"])) for update in updates]
    for parameter in AVERAGED.get(name, list(uploaded[0])):
        values = torch.stack([params[parameter].double() for params in uploaded])
        by_images = torch.einsum("k,k...->...", sizes / sizes.sum(), values)
        expected = by_images
        other = values.mean(0)
        if not weighted:
            expected, other = other, expected
        error = (after[parameter] - expected).norm()
        assert error < 1e-5 * expected.norm(), parameter
        assert (other - expected).norm() > 100 * error, "both means are the same here"
