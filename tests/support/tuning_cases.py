"""Studies that tune options on a few letters."""

import os
from copy import deepcopy
from pathlib import Path

from default_config import default_config
from fedloom.planning import paths
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run, Wildcards
from one_process import run

DEFAULT = default_config()


RATES = {"training.lr": [0.1, 0.3]}


def settings_of(tune, methods=("head_tuning", "fedvpt"), **study):
    config = deepcopy(DEFAULT)
    config["study"] |= {"seeds": [0, 1], "rounds": 3, "report": {"last_evaluations": 1}} | study
    config["study"]["tune"] = {"trials": 2, "values": RATES, "rounds": 2} | tune
    config["datasets"]["letters"] = {"source": "glyphs", "classes": 4, "draws": 1}
    config["partitions"]["two"] = {"scheme": "iid", "clients": 2}
    config["study"]["clients_per_round"] = 2
    config["select"] |= {
        "datasets": ["letters"],
        "partitions": ["two"],
        "methods": list(methods),
        "tables": ["main"],
        "figures": [],
    }
    return resolve(config)


def labels_of(method, seed=0, **more):
    labels = {"dataset": "letters", "partition": "two", "backbone": "micro_vit"}
    return Wildcards(**labels | {"method": method, "seed": seed} | more)


def make_letters(tmp_path_factory):
    """Return a folder with the dataset, the partitions and the features of `settings_of`."""
    folder = tmp_path_factory.mktemp("letters")
    here = Path.cwd()
    os.chdir(folder)
    plan = Plan(settings_of({}))
    run("dataset", plan.job("dataset", labels_of("fedvpt")))
    run("cache", plan.job("cache", labels_of("fedvpt", cache="features")))
    run("partition", plan.job("partition", labels_of("fedvpt", 0)))
    of_trials = labels_of("fedvpt", 1000, partition="two.validation")
    run("partition", plan.job("partition", of_trials))
    os.chdir(here)
    return folder


def tune_study(folder, method, monkeypatch):
    """Train a method's trials in the folder, choose, and return states and choice as bytes."""
    monkeypatch.chdir(folder)
    plan = Plan(settings_of({}, [method]))
    states = []
    if "prototypes" in plan.settings.methods[method].needs:
        of_trials = labels_of(method, 1000, partition="two.validation")
        run("prototypes", plan.job("prototypes", of_trials))
    for trial in plan.settings.trials[method]:
        labels = labels_of(trial.label, 1000, partition="two.validation", end="0002")
        run("train", plan.job("train", labels))
        run("evaluate", plan.job("evaluate", labels))
        state = paths.path_for(paths.STATE, Run.from_labels(labels), end="0002")
        states.append(state.read_bytes())
    run("choose", plan.job("choose", labels_of(method)))
    return plan, states, paths.path_for(paths.CHOICE, **vars(labels_of(method))).read_bytes()
