"""The contract tries other options, cohorts and backbones."""

import pytest

from changed_plugin import plugin_with
from fedloom.common.errors import FedLoomError
from fedloom.contract import checks, driver
from fedloom.contract.tiny_run import TinyRun

pytestmark = pytest.mark.slow


OLD = "    return fl.cross_entropy(fl.linear(batch.features"


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


def test_an_option_that_breaks_the_method_is_named(tmp_path):
    method = plugin_with(tmp_path, OLD, "    assert not task.options.weighted\n" + OLD)
    checks.leaves_inputs_alone(TinyRun(method, tmp_path))
    line = r"AssertionError \(on cohorts of \d clients, with head_tuning's option weighted: True\)$"
    with pytest.raises(FedLoomError, match=line):
        driver.other_options(method, tmp_path)


def test_a_value_that_the_method_refuses_is_passed_over(tmp_path):
    line = "    if task.options.weighted: raise FedLoomError('not with this head')\n"
    imports = "from fedloom.toolbox import FedLoomError\n"
    driver.other_options(plugin_with(tmp_path, OLD, f"    {imports}{line}{OLD}"), tmp_path)


def test_a_refusal_that_is_a_wrong_result_is_none(tmp_path):
    """The plugin refuses no option here: `train_locally` refuses the loss that it returns."""
    method = plugin_with(tmp_path, OLD, "    if task.options.weighted: return batch.labels\n" + OLD)
    with pytest.raises(FedLoomError, match=r"train_locally.*its loss.*option weighted: True"):
        driver.other_options(method, tmp_path)


def test_a_cohort_of_another_size_that_breaks_the_method_is_named(tmp_path):
    """All other checks have three clients in a round, with which this method works."""
    method = plugin_with(tmp_path, OLD, "    assert len(clients) <= 3\n" + OLD)
    with pytest.raises(FedLoomError, match=r"AssertionError \(on cohorts of \d clients\)$"):
        driver.other_options(method, tmp_path)


def test_a_width_that_is_the_tiny_backbones_own_is_found_out(tmp_path):
    method = plugin_with(
        tmp_path,
        'return {"params": {"head": task.backbone.init_head(task.num_classes)}}',
        'import torch\n    return {"params": {"head": torch.zeros(task.num_classes, 16)}}',
    )
    checks.stacks(method, tmp_path)
    (tmp_path / "other").mkdir()
    line = r"head_tuning: client_update, round 1, .*RuntimeError: "
    with pytest.raises(FedLoomError, match=line):
        checks.resumes(method, tmp_path / "other")


def test_whatever_a_check_raises_is_one_line(tmp_path, monkeypatch):
    method = plugin_with(tmp_path, OLD, OLD)

    def broken(method, folder, *wrappers):
        raise TypeError("neither\nhere nor there")

    monkeypatch.setattr("fedloom.contract.driver.CHECKS", (broken,))
    line = "^head_tuning: check broken: TypeError: neither here nor there$"
    with pytest.raises(FedLoomError, match=line):
        driver.check(method, [method])
