"""A study that has run, for all tests of models that are loaded from a run's folder."""

from pathlib import Path

import pytest

import one_process
from default_config import default_config
from fedloom.planning import records
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Wildcards

METHODS = ["fedvpt", "p_pt", "pep_fedpt", "pooled"]


@pytest.fixture(scope="session")
def study(tmp_path_factory) -> Path:
    """Return the folder of a study of digits: four methods, and a state after rounds 1 and 2.

    One of five clients is held out; all others train in both rounds.
    """
    config = default_config()
    config["study"] |= {"name": "mine", "rounds": 2, "rounds_per_job": 1, "seeds": [0]}
    config["study"] |= {"evaluate_every": 1, "clients_per_round": 4, "global_test": True}
    config["study"]["report"] = {"last_evaluations": 1}
    config["datasets"]["digits"] |= {"max_train": 150, "max_test": 60}
    config["partitions"]["few"] = {
        "scheme": "pathological", "clients": 5, "classes_per_client": 3, "held_out": 0.2
    }  # fmt: skip
    config["methods"]["pooled"] = {"plugin": "fedavg_pt", "options": {"selection": True}}
    config["select"] |= {"datasets": ["digits"], "partitions": ["few"], "methods": METHODS}
    config["select"] |= {"tables": ["main"], "figures": []}

    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        plan = Plan(resolve(config), config)
        _run_jobs(plan)
        records.write_record(plan)
    return folder


def _run_jobs(plan: Plan) -> None:
    """Run the jobs of the data, and those of all methods."""
    data = Wildcards(dataset="digits", partition="few", backbone="micro_vit", seed=0)
    one_process.run("dataset", plan.job("dataset", data))
    one_process.run("cache", plan.job("cache", Wildcards(**vars(data), cache="features")))
    one_process.run("partition", plan.job("partition", data))
    one_process.run("prototypes", plan.job("prototypes", data))
    for method in METHODS:
        one_process.train(plan, data, method, set())
