"""Class priors are refused where they mean nothing, in one line, before anything runs."""

import pytest

from default_config import default_config
from fedloom.hooks import manifest
from fedloom.hooks.wrapper_rules import refused_wrappers
from fedloom.planning.load_plan import resolve
from refusals import refused

PLUGINS = manifest.discover_methods()
NOT_IN_TRAINING = {
    "centralised",
    "fedclip",
    "fedmix",
    "fedmvp",
    "fedrod",
    "fedtpg",
    "fppl",
    "zero_shot_clip",
}


def study(plugin, partition=None, method_options=None, **options):
    """Resolve the default study with a label of this method with class priors."""
    config = default_config()
    config["methods"]["told"] = {
        "plugin": plugin,
        "options": method_options or {},
        "wrappers": [{"plugin": "class_priors", "options": options}],
    }
    config["select"] |= {"methods": ["told"], "tables": ["main"], "figures": []}
    if PLUGINS[plugin].family == "clip":
        config["select"]["backbones"] = ["micro_clip"]
    if partition is not None:
        config["partitions"]["other"] = partition
        config["select"]["partitions"] = ["other"]
    return resolve(config)


@pytest.mark.parametrize("plugin", sorted(NOT_IN_TRAINING))
def test_a_method_that_does_not_train_by_a_softmax_of_all_classes_is_refused(plugin):
    with refused("methods.told.wrappers", "class_priors with train: true", plugin):
        study(plugin)


@pytest.mark.parametrize("plugin", sorted(NOT_IN_TRAINING))
def test_it_may_still_answer_with_the_shares(plugin):
    study(plugin, train=False)


def test_all_other_methods_take_class_priors():
    wrapper = PLUGINS["class_priors"]
    methods = [plugin for plugin in PLUGINS.values() if plugin.kind == "method"]
    reasons = {m.name: refused_wrappers(m, m.complete_options({}), [wrapper]) for m in methods}
    assert {name for name, reason in reasons.items() if reason is not None} == NOT_IN_TRAINING


@pytest.mark.parametrize(
    ("plugin", "options"), [("fedclip", {"loss": "classes"}), ("fedrod", {"gamma": 0.0})]
)
def test_options_with_which_a_method_trains_by_a_plain_softmax_are_known(plugin, options):
    study(plugin, method_options=options)


NOVEL = {"scheme": "iid", "clients": 20, "novel_classes": 0.5}
TRANSFER = {"scheme": "iid", "clients": 20, "transfer_to": ["digits"]}


@pytest.mark.parametrize(
    ("key", "partition"), [("novel_classes", NOVEL), ("transfer_to", TRANSFER)]
)
def test_a_test_on_other_classes_has_no_shares(key, partition):
    with refused("methods.told", f"partitions.other.{key}", 'class_priors with test: "own"'):
        study("promptfl", partition)


def test_a_test_on_other_classes_may_follow_training_with_shares():
    study("promptfl", NOVEL, test="none")
