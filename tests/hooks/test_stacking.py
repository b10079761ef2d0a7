"""Wrappers that would destroy a model together are refused, by what they declare."""

import shutil

import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.contract import checks
from fedloom.contract.tiny_run import TinyRun
from fedloom.hooks import manifest
from fedloom.hooks.wrapper_rules import refused_wrappers
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import resolve

PLUGINS = manifest.discover_methods()
WRAPPER = PLUGINS["dropout"]
MASK = WRAPPER.model_copy(update={"name": "mask", "preserves": "sum", "updates": "read"})
SECOND = MASK.model_copy(update={"name": "second"})
DROPS, READS, UNREAD = (
    WRAPPER.model_copy(update={"name": name, "updates": updates})
    for name, updates in (("drops", "dropped"), ("reads", "read"), ("unread", "unread"))
)
BEFORE = "mask preserves the sum of the updates alone, and drops, which comes before it, drops some"
EACH = "mask preserves the sum of the updates alone, and {} reads or changes each; remove one"


@pytest.mark.parametrize(
    ("wrappers", "line"),
    [
        ([], None),
        ([MASK], None),
        ([DROPS, READS], None),
        ([MASK, DROPS], None),
        ([UNREAD, MASK, DROPS, UNREAD], None),
        ([DROPS, MASK], BEFORE),
        ([DROPS, UNREAD, MASK], BEFORE),
        ([MASK, READS], EACH.format("reads")),
        ([READS, MASK], EACH.format("reads")),
        ([MASK, SECOND], EACH.format("second")),
    ],
)
def test_around_what_keeps_the_sum_alone(wrappers, line):
    told = refused_wrappers(PLUGINS["head_tuning"], {"weighted": False}, wrappers)
    assert told is None if line is None else told.startswith(line)


def test_the_method_must_use_that_sum_alone_with_the_options_that_it_has():
    pep = PLUGINS["pep_fedpt"]
    assert refused_wrappers(pep, {"ccmp": False}, [MASK]) is None
    assert refused_wrappers(pep, {"ccmp": True}, [MASK]) == (
        "mask preserves the sum of the updates alone, but with these options pep_fedpt declares no "
        "aggregation in its method.toml: it may use each update; remove mask"
    )
    assert refused_wrappers(pep, {"ccmp": True}, [READS, DROPS]) is None


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return study(*wrappers), which makes the default study with a label of these wrappers.

    The example `masks` is one of the plugins.
    """
    shutil.copytree(ROOT / "examples/methods/masks", tmp_path / "plugins/masks")
    monkeypatch.chdir(tmp_path)

    def make(*wrappers, **entry):
        config = default_config()
        config["methods"]["secret"] = entry | {"wrappers": [{"plugin": name} for name in wrappers]}
        return resolve(config)

    return make


def test_a_study_is_told_the_order_before_anything_runs(study):
    study("masks", "dropout", plugin="head_tuning")
    with pytest.raises(FedLoomError) as error:
        study("dropout", "masks", plugin="head_tuning")
    assert str(error.value) == (
        "config key methods.secret.wrappers: masks preserves the sum of the updates alone, and "
        "dropout, which comes before it, drops some of them afterwards; list masks before dropout"
    )


def test_one_member_of_a_grid_is_enough(study):
    with pytest.raises(FedLoomError, match=r"secret.wrappers: masks .* fedavg_pt declares no"):
        study("masks", plugin="fedavg_pt", grid={"selection": [False, True]})


@pytest.mark.parametrize(
    ("name", "declared", "options"),
    [
        ("gmm_pt", "weighted", {}),
        ("centralised", "weighted", {}),
        ("fedavg_pt", {"plain": {"weighted": True}}, {"weighted": True}),
        ("pfedpg", "plain", {}),
        ("fedavg_pt", {"weighted": {"weighted": True}}, {"selection": True, "pool": 12}),
    ],
)
def test_a_sum_that_is_declared_and_not_all_that_is_used_is_told(name, declared, options, tmp_path):
    """Every case has another reason: a matching, weights, no weights, a generator, a selection."""
    method = PLUGINS[name].model_copy(update={"aggregation": declared}).with_defaults(options)
    line = f"{name}: aggregation is .*, but aggregate uses more of the updates"
    with pytest.raises(FedLoomError, match=line):
        checks.aggregates_as_declared(TinyRun(method, tmp_path))


@pytest.mark.parametrize(
    ("name", "line", "told"),
    [
        ("head_tuning", "cost = {keeps_weight = true}", "cost.keeps_weight: unknown key; did you"),
        ("head_tuning", 'folder = "x"', "folder: unknown key"),
        (
            "head_tuning",
            "enters_image_tower = true",
            "enters_image_tower: is a key of methods on a CLIP",
        ),
        (
            "promptfl",
            'needs_class_token = "it reads it"',
            "needs_class_token: is a key of methods on a ViT",
        ),
        (
            "head_tuning",
            "aggregation = {plain = {wieghted = true}}",
            "aggregation.plain: no option 'wieghted'; did you mean 'weighted'?",
        ),
        ("fedic", "smoke_options = {steps = 2}", "smoke_options: no option 'steps'; known: "),
        ("sgpt", 'artefacts.answers = {description = "x"}', "artefacts.answers: must have another"),
        (
            "secure_mask",
            'artefacts.test_sets = {description = "x"}',
            "artefacts.test_sets: must have another name, got that of a table of FedLoom's own; ",
        ),
    ],
)
def test_a_declaration_that_cannot_be_is_told_by_its_key(name, line, told, tmp_path):
    folder = tmp_path / name
    shutil.copytree(manifest.find_method(name).folder, folder)
    toml = folder / "method.toml"
    kept = [k for k in toml.read_text().splitlines() if not k.startswith(line.split(" ")[0])]
    toml.write_text("\n".join([line, *kept]))
    with pytest.raises(FedLoomError) as error:
        manifest.discover_methods(tmp_path)[name]
    assert str(error.value).startswith(f"{toml}: {told}")
