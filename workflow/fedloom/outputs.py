"""What a study makes of its results: of which files, and with which settings.

A specification is what a rule hands to `fedloom table` or `fedloom figure`, as one JSON. It names
runs by their folders alone, because a command line takes 128 KiB and a study may have hundreds.
Imports no torch and no pandas: every job parses the Snakefile again.
"""

from fedloom.config import ALL_SEEDS, ARTEFACTS, reported_rounds, runs

LABELS = ("dataset", "partition", "backbone", "method")


def table_spec(config: dict, label: str) -> dict:
    """A table's settings, the study's name, the rounds to average, and its runs."""
    study = config["study"]
    return {
        "label": label,
        "table": config["tables"][label],
        "study": {"name": study["name"]},
        "rounds": reported_rounds(study),
        **_runs(config, config["tables"][label], study["seeds"]),
    }


def figure_spec(config: dict, label: str) -> dict:
    """A figure's settings, and its runs, or the data sets and backbones that it is of."""
    entry, chosen = config["figures"][label], config["run"]
    if entry["kind"] == "block_accuracy":
        pairs = [f"{d}/{b}" for d in chosen["datasets"] for b in chosen["backbones"]]
        return {"figure": entry, "features": pairs}
    seeds = config["study"]["seeds"]
    # a mean of t-SNE maps over seeds has no meaning
    single = entry["kind"] in ARTEFACTS and entry["kind"] not in ALL_SEEDS
    shown = seeds[:1] if single else seeds
    return {"figure": entry, **_runs(config, entry, shown)}


def _runs(config: dict, entry: dict, seeds: list[int]) -> dict:
    """Folders of the runs of the entry's methods, in the config's order, and about the methods.

    A method's place among the config's labels decides its colour.
    """
    places = {method: place for place, method in enumerate(config["methods"])}
    return {
        "methods": {
            method: {"title": config["methods"][method]["title"], "style": places[method]}
            for method in entry["methods"]
        },
        "runs": [r.path for r in runs(config) if r.method in entry["methods"] and r.seed in seeds],
    }


def series(spec: dict) -> list[dict]:
    """What a table or figure shows, an item per run: its labels, and the paths of its files.

    An item has LABELS, its method's `title` and `style`, and the Parquet files `evaluation` and
    `rounds`, or `artefact`; for block accuracy `dataset`, `backbone` and the file `accuracy`.
    """
    if "features" in spec:
        pairs = [pair.split("/") for pair in spec["features"]]
        return [
            {"dataset": d, "backbone": b, "accuracy": f"results/block_accuracy/{d}/{b}.parquet"}
            for d, b in pairs
        ]
    kind = spec.get("figure", spec.get("table"))["kind"]
    if kind in ARTEFACTS:
        names = {"artefact": f"artefacts/{ARTEFACTS[kind]}"}
    else:
        names = {"evaluation": "evaluation", "rounds": "rounds"}
    items = []
    for folder in spec["runs"]:
        labels = dict(zip(LABELS, folder.split("/"), strict=False))  # the seed is left out
        paths = {key: f"results/runs/{folder}/{name}.parquet" for key, name in names.items()}
        items.append(labels | spec["methods"][labels["method"]] | paths)
    return items


def files(spec: dict) -> list[str]:
    """The Parquet files that a table or figure is made of."""
    paths = ("evaluation", "rounds", "accuracy", "artefact")
    return [item[path] for item in series(spec) for path in paths if path in item]
