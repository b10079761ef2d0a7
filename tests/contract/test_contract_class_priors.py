"""Every method that takes class priors keeps the contract with them."""

import pytest

import three_blocks
from fedloom.contract import checks
from fedloom.hooks import manifest
from fedloom.hooks.wrapper_rules import refused_wrappers

pytestmark = pytest.mark.slow

PLUGINS = manifest.discover_methods()
WRAPPER = PLUGINS["class_priors"]
# servers that take 100 and more steps, and methods whose clients train every block
QUICK = {
    "fedic": {"server_steps": 3},
    "creff": {"matching_steps": 3, "retraining_epochs": 5},
    **{key: {"train": r"^blocks\.2\."} for key in ("fedbabu", "fedem", "fedrep", "per_fedavg")},
}
# test_contract.py says why two ways of training FEDIC differ after few steps, and that SGPT's
# learning is not checked
STACKED_FEDIC = {"server_steps": 30, "server_lr": 1e-4}
TAKE_THEM = [
    name
    for name, plugin in PLUGINS.items()
    if plugin.kind == "method"
    and refused_wrappers(plugin, plugin.complete_options({}), [WRAPPER]) is None
]


@pytest.mark.parametrize(
    "check", [checks.keeps_rules, checks.resumes, checks.stacks], ids=lambda check: check.__name__
)
@pytest.mark.parametrize("name", TAKE_THEM)
def test_a_method_with_class_priors_keeps_the_contract(name, check, tmp_path, monkeypatch):
    three_blocks.check_on(monkeypatch, name)
    options = QUICK.get(name, {})
    if check is checks.stacks and name in QUICK:
        options = STACKED_FEDIC if name == "fedic" else {}
    check(PLUGINS[name].with_defaults(options), tmp_path, WRAPPER)
