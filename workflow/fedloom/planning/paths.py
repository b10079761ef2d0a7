"""Where every result lies: patterns with Snakemake's wildcards, which `path_for` fills in."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedloom.common.receipts import receipt_of
from fedloom.planning.run_labels import NAME, Run

RESULTS = "results"
STORE = "results/datasets/{dataset}/images.arrow"
PARTITION = "results/partitions/{dataset}/{partition}/seed{seed}.parquet"
PARTITION_CHART = "results/partitions/{dataset}/{partition}/seed{seed}.png"
CACHE = "results/{cache}/{dataset}/{backbone}.safetensors"
FEATURES = CACHE.replace("{cache}", "features")
PATCHES = CACHE.replace("{cache}", "patches")
PROTOTYPES = "results/prototypes/{dataset}/{partition}/{backbone}/seed{seed}.safetensors"
BLOCK_ACCURACY = "results/block_accuracy/{dataset}/{backbone}.parquet"
WEIGHTS = "results/weights/{backbone}.json"  # the digest of a hub's weights
BACKBONE_SIZES = "results/backbone_sizes.json"  # of those that do not ship
RUN = f"results/runs/{NAME}"
STATE = RUN + "/rounds/{end}.safetensors"
CHECKPOINT = "checkpoint.safetensors"  # beside the states: progress between two of them
EVALUATION = RUN + "/evaluation.parquet"
ROUNDS = RUN + "/rounds.parquet"
# by name: the tables of a run, and those of its jobs, which are joined to them
TABLES = ("evaluation", "rounds", "clients", "confusion")
RUN_TABLES = {name: f"{RUN}/{name}.parquet" for name in TABLES}
JOB_TABLES = {name: f"{RUN}/rounds/{{end}}.{name}.parquet" for name in TABLES}
TRIALS = "results/choices/{dataset}/{partition}/{backbone}/{method}/trials.parquet"
CHOICE = "results/choices/{dataset}/{partition}/{backbone}/{method}/chosen.parquet"
ARTEFACT = RUN + "/artefacts/{artefact}.parquet"
TABLE = "results/tables/{study}/{label}.md"
TABLE_FORMATS = ("md", "csv", "tex", "html", "parquet")  # the endings of a table's files
FIGURE = "results/figures/{study}/{label}.pdf"
REPORT = "results/report/{study}.html"
RECORD = "results/studies/{study}.parquet"  # of its runs, once it has finished
GIVEN = "results/studies/{study}.yaml"  # its keys, if Python gave them
EXPORT = "results/export/{study}"  # a folder for a paper's supplement
TRACKED = "results/tracked/{tracker}"  # a folder that a tracker writes to
LOGS = "results/logs"
RECEIPTS = "results/receipts"  # of jobs: what their results were made from

# the files that jobs read of a dataset and its partition, and which of them rules before runs read
DATA = {
    "store": STORE,
    "partition": PARTITION,
    "features": FEATURES,
    "patches": PATCHES,
    "prototypes": PROTOTYPES,
}
INPUTS = {
    "partition": ("store",),
    "partition_chart": ("partition",),
    "cache": ("store",),
    "prototypes": ("store", "partition", "features"),
    "block_accuracy": ("store", "features"),
}


def path_for(pattern: str, run: Run | None = None, /, **wildcards: Any) -> Path:
    """Fill in a pattern's wildcards, from a run's labels and by name."""
    return Path(pattern.format(**(vars(run) if run else {}) | wildcards))


def inputs(rule: str, **wildcards: Any) -> dict[str, Path]:
    """Return the data files that a job of this rule reads, by name."""
    return {name: path_for(DATA[name], **wildcards) for name in INPUTS[rule]}


def run_inputs(run: Run, needs: Collection[str]) -> dict[str, Path]:
    """Return the data files that a run reads: `store`, `partition` and those it `needs`."""
    return {
        name: path_for(DATA[name], run) for name in DATA if name in ("store", "partition", *needs)
    }


def other_inputs(dataset: str, run: Run, needs: Collection[str]) -> dict[str, Path]:
    """Return the files of another dataset that a run is tested on: `store` and the caches."""
    names = ["store", *(name for name in needs if name in ("features", "patches"))]
    return {name: path_for(DATA[name], run, dataset=dataset) for name in names}


def end(number: int) -> str:
    """Write the last round of a job as the wildcard `end` has it."""
    return f"{number:04}"


def receipt(pattern: str) -> str:
    """Return the pattern of the receipt of a file, see fedloom.common.receipts."""
    return str(receipt_of(Path(pattern)))


def log(rule: str, pattern: str) -> str:
    """Return the log of the rule that makes `pattern`: its name, with the rule for its folder."""
    _, _, name = pattern.split("/", 2)
    return f"{LOGS}/{rule}/{Path(name).with_suffix('.log')}"


def job_receipt(file: Path) -> Path:
    """Return the receipt of the job that makes a result: its path and ".json" below RECEIPTS."""
    below = file.relative_to(RESULTS)
    return Path(RECEIPTS, below.with_name(f"{below.name}.json"))
