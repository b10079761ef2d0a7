"""Every plugin keeps the contract, and a plugin that breaks it is told how."""

import pytest

import three_blocks
from changed_plugin import plugin_with
from fedloom.cli.make.templates import new_method
from fedloom.contract import checks, driver
from fedloom.hooks import hookspecs, loader, manifest
from fedloom.machine.install import ROOT
from refusals import refused

pytestmark = pytest.mark.slow


PLUGINS = manifest.discover_methods()


METHODS = {name: m for name, m in PLUGINS.items() if m.kind == "method"}


WRAPPERS = {name: m for name, m in PLUGINS.items() if m.kind == "wrapper"}


AROUND = {  # the methods around which a wrapper is checked, if not Head-Tuning
    "dp_laplace": ("scaffold_pt", "pep_fedpt"),
    "dropout": ("scaffold_pt",),
    "quantize": ("scaffold_pt",),
    "top_k": ("scaffold_pt",),
}


# methods whose server needs more than the mean of all uploads, and the wrappers that refuse
# some of them; the other wrappers accept any method
NOT_MEANS = {"scaffold_pt", "pep_fedpt", "pfpt", "sgpt", "singleset_vpt", "zero_shot_clip"}


REFUSED = {
    "dp_gaussian": NOT_MEANS,
    "dp_laplace": NOT_MEANS - {"pep_fedpt"},  # pep_fedpt uploads prototypes
    "secure_mask": NOT_MEANS,
    "trimmed_mean": NOT_MEANS,
}


# with the defaults, checks of these methods take minutes: their servers take 100 and more steps
QUICK = {
    "fedic": {"server_steps": 3},
    "creff": {"matching_steps": 3, "retraining_epochs": 5},
}


# The loss does not depend on the bias of attention's keys, so its gradient is rounding error. Adam
# divides by the gradient's size: such an error moves the bias by the whole rate in every step. At
# FEDIC's rate of 1e-3, the bias differs by more than `stacks` allows after 25 steps, and by 0.9 of
# it after 30. At 1e-4 it does not, and 30 steps can still move a weight by 30 times the tolerance.
STACKED_FEDIC = {"server_steps": 30, "server_lr": 1e-4}


LAST_BLOCK = {"train": r"^blocks\.2\."}


OF_LAST_BLOCK = ("fedbabu", "fedem", "fedmix", "fedrep", "per_fedavg")


def quick(name, check):
    """Return options that shorten a check of a method, if the check passes with them."""
    if (name, check) == ("fedic", checks.stacks):
        return STACKED_FEDIC
    if name in OF_LAST_BLOCK and check is not checks.stacks:
        return LAST_BLOCK
    return {} if (name, check) == ("creff", checks.learns) else QUICK.get(name, {})


@pytest.mark.parametrize("check", driver.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_contract(name, check, tmp_path, monkeypatch):
    three_blocks.check_on(monkeypatch, name)
    check(METHODS[name].with_defaults(quick(name, check)), tmp_path)


PICKING = {"selection": True, "prompts": 3, "pool": 6}


POOL = {"prompts": 3, "pool": 6}


VARIANTS = [  # options that run other code than the defaults do
    ("fedavg", {"mu": 0.1, "train": "bias$"}),
    ("fedavg_adapter", {"mu": 0.1, "form": "adaptformer"}),
    ("fedlora", {"shared": "a", "ranks": [2, 4], "targets": ["proj", "k"]}),
    ("per_fedavg", {"variant": "hf"} | LAST_BLOCK),
    ("singleset_full", LAST_BLOCK),
    ("fedavg_pt", PICKING),
    ("fedprox_pt", PICKING | {"variant": "released"}),
    ("fedopt_pt", PICKING),
    ("fedopt_pt", {"variant": "released"}),
    ("gmm_pt", PICKING),
    ("gmm_pt", {"variant": "released", "prompts": 2}),
    ("pfpt", POOL | {"variant": "released"}),
    ("pfpt", POOL | {"head": "personal"}),
    ("pfpt", POOL | {"unused_prompts": "penalised"}),
    ("sgpt", {"variant": "released"}),
]


# 500 Adam steps a round magnify the last bit, and 0.05 is too high a rate for two layers;
# in SGPT's released code, a client's training depends on the clients that trained before it
EXCEPT = {
    "pfpt": (checks.stacks, checks.learns),
    "sgpt": (checks.stacks,),
}


VARIANT_CASES = [
    pytest.param(name, options, check, id=f"{name}-{number}-{check.__name__}")
    for number, (name, options) in enumerate(VARIANTS)
    for check in checks.CHECKS
    if options.get("variant") != "released" or check not in EXCEPT.get(name, ())
]


@pytest.mark.parametrize(("name", "options", "check"), VARIANT_CASES)
def test_contract_of_variants(name, options, check, tmp_path, monkeypatch):
    three_blocks.check_on(monkeypatch, name)
    check(METHODS[name].with_defaults(options), tmp_path)


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_keep_the_contract_around_methods_and_refuse_others_by_name(name, monkeypatch):
    around = AROUND.get(name, ("head_tuning",))
    with monkeypatch.context() as patch:
        three_blocks.check_on(patch, *around)
        assert "around" in driver.check(WRAPPERS[name], [METHODS[m] for m in around])
    lines = {m: driver.refusal(WRAPPERS[name], METHODS[m]) for m in NOT_MEANS}
    refused = {method: line for method, line in lines.items() if line is not None}
    assert set(refused) == REFUSED.get(name, set())
    for method, line in refused.items():
        assert name in line and method in line


def test_a_new_method_is_made_of_the_template_and_keeps_the_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_method("my_method")
    method = manifest.discover_methods(tmp_path / "plugins")["my_method"]
    assert method.title == "My method"
    assert driver.check(method, [method]) == "12 checks"
    for taken in ("my_method", "fedvpt"):
        with refused(f"'{taken}' already exists"):
            new_method(taken)
    for name in ("My_method", "1st", "a/b"):
        with refused(f"begin with a letter, got '{name}'"):
            new_method(name)


@pytest.mark.parametrize("check", [checks.resumes, checks.keeps_rules])
def test_a_method_that_cannot_be_stacked_gets_one_client_at_a_time(check, tmp_path):
    old = "    return fl.cross_entropy("
    method = plugin_with(tmp_path, old, "    assert len(batch.index) == 1\n" + old)
    toml = method.folder / "method.toml"
    toml.write_text(toml.read_text().replace('family = "vit"', 'family = "vit"\nstacked = false'))
    manifest.discover_methods.cache_clear()
    check(manifest.discover_methods(tmp_path)["head_tuning"], tmp_path)


def test_every_hook_is_documented():
    text = (ROOT / "docs/writing-a-method.md").read_text()
    for name in loader.HOOKS:
        assert f"### {name}" in text
        assert getattr(hookspecs, name).__doc__
