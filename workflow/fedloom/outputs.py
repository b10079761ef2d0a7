"""What a study makes of its results: of which files, and with which settings.

A specification is what a rule hands to `fedloom table` or `fedloom figure`, as one JSON. Imports
no torch and no pandas: every job parses the Snakefile again.
"""

from fedloom.config import ARTEFACTS, Run, reported_rounds, runs


def table_spec(config: dict, label: str) -> dict:
    """A table's settings, the study's name and title, the rounds to average, and its runs."""
    study = config["study"]
    return {
        "label": label,
        "table": config["tables"][label],
        "study": {key: study[key] for key in ("name", "title") if key in study},
        "rounds": reported_rounds(study),
        "runs": _series(config, config["tables"][label]),
    }


def figure_spec(config: dict, label: str) -> dict:
    """A figure's settings, and its series: a run each, or a dataset and backbone each."""
    entry, chosen = config["figures"][label], config["run"]
    if entry["kind"] == "block_accuracy":
        series = [
            {"dataset": d, "backbone": b, "accuracy": f"results/block_accuracy/{d}/{b}.parquet"}
            for d in chosen["datasets"]
            for b in chosen["backbones"]
        ]
    else:
        series = _series(config, entry)
    return {"figure": entry, "series": series}


def files(spec: dict) -> list[str]:
    """The Parquet files that a table or figure is made of."""
    paths = ("evaluation", "rounds", "accuracy", "artefact")
    items = spec.get("runs", spec.get("series"))
    return [item[path] for item in items for path in paths if path in item]


def _series(config: dict, entry: dict) -> list[dict]:
    """The runs of the entry's methods, in the config's order.

    Artefacts are shown for the first seed alone: a mean of t-SNE maps over seeds has no meaning.
    """
    artefact = ARTEFACTS.get(entry["kind"])
    seeds = config["study"]["seeds"][:1] if artefact else config["study"]["seeds"]
    chosen = [run for run in runs(config) if run.method in entry["methods"] and run.seed in seeds]
    return [_labels(config, run) | _paths(run, artefact) for run in chosen]


def _labels(config: dict, run: Run) -> dict:
    """What a run is called, and its method's place in the config, which decides its colour."""
    return {
        "dataset": run.dataset,
        "partition": run.partition,
        "backbone": run.backbone,
        "method": run.method,
        "title": config["methods"][run.method]["title"],
        "style": list(config["methods"]).index(run.method),
    }


def _paths(run: Run, artefact: str | None) -> dict:
    folder = f"results/runs/{run.path}"
    if artefact:
        return {"artefact": f"{folder}/artefacts/{artefact}.parquet"}
    return {name: f"{folder}/{name}.parquet" for name in ("evaluation", "rounds")}
