"""`fedloom check` beyond the defaults: other options, cohorts, backbones; no raw exception."""

import shutil

import pytest

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.contract import checks, driver
from fedloom.hooks import manifest

pytestmark = pytest.mark.slow

OLD = "    return fl.cross_entropy(fl.linear(batch.features"


@pytest.fixture
def changed(tmp_path):
    """changed(old, new, toml=""): Head-Tuning with other text in plugin.py, and more options."""

    def make(old, new, toml=""):
        folder = tmp_path / "plugins" / "head_tuning"
        shutil.copytree(ROOT / "plugins/head_tuning", folder)
        text = (folder / "plugin.py").read_text()
        assert old in text
        (folder / "plugin.py").write_text(text.replace(old, new))
        with (folder / "method.toml").open("a") as file:
            file.write(toml)
        manifest.discover.cache_clear()
        return manifest.discover(tmp_path / "plugins")["head_tuning"]

    return make


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"enum": ["a", "b", "c"], "default": "b"}, ["a", "c"]),
        ({"type": "boolean", "default": True}, [False]),
        ({"type": "integer", "default": 4}, [5, 3]),
        ({"type": "number", "default": 0.5}, [0.25, 0.75]),
        ({"type": "string", "default": "x"}, []),
    ],
)
def test_other_values_of_an_option(schema, values):
    assert driver.other_values(schema) == values


def test_an_option_that_breaks_the_method_is_named(changed, tmp_path):
    method = changed(OLD, "    assert not task.options.weighted\n" + OLD)
    checks.leaves_inputs_alone(checks.TinyRun(method, tmp_path))
    line = r"AssertionError \(on cohorts of \d clients, with head_tuning's option weighted: True\)$"
    with pytest.raises(FedLoomError, match=line):
        driver.other_options(method, tmp_path)


def test_a_value_that_the_method_refuses_is_passed_over(changed, tmp_path):
    line = "    if task.options.weighted: raise FedLoomError('not with this head')\n"
    imports = "from fedloom.toolbox import FedLoomError\n"
    driver.other_options(changed(OLD, f"    {imports}{line}{OLD}"), tmp_path)


def test_a_refusal_that_is_a_wrong_result_is_none(changed, tmp_path):
    """train_locally complains of the loss, not the plugin."""
    method = changed(OLD, "    if task.options.weighted: return batch.labels\n" + OLD)
    with pytest.raises(FedLoomError, match=r"one number|gradient.*option weighted: True"):
        driver.other_options(method, tmp_path)


def test_a_cohort_of_another_size_that_breaks_the_method_is_named(changed, tmp_path):
    """The other checks have three clients in a round."""
    method = changed(OLD, "    assert len(clients) <= 3\n" + OLD)
    with pytest.raises(FedLoomError, match=r"AssertionError \(on cohorts of \d clients\)$"):
        driver.other_options(method, tmp_path)


def test_a_width_that_is_the_tiny_backbones_own_is_found_out(changed, tmp_path):
    method = changed(
        'return {"params": {"head": task.backbone.init_head(task.num_classes)}}',
        'import torch\n    return {"params": {"head": torch.zeros(task.num_classes, 16)}}',
    )
    checks.stacks(method, tmp_path)
    line = r"head_tuning: client_update, round 1, .*RuntimeError: .*\(on the backbone micro_vit\)$"
    with pytest.raises(FedLoomError, match=line):
        driver.shipped_backbone(method, tmp_path)


def test_whatever_a_check_raises_is_one_line(changed, monkeypatch):
    method = changed(OLD, OLD)

    def broken(method, folder, *wrappers):
        raise TypeError("neither\nhere nor there")

    monkeypatch.setattr("fedloom.contract.driver.CHECKS", (broken,))
    line = "^head_tuning: check broken: TypeError: neither here nor there$"
    with pytest.raises(FedLoomError, match=line):
        driver.check(method, [method])
