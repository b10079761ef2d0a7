"""Where every result lies: patterns with Snakemake's wildcards, which `path_for` fills in."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedloom.common.receipts import receipt_of
from fedloom.planning.run_labels import RUN_NAME, Run

RESULTS = "results"
STORE = "results/datasets/{dataset}/images.arrow"
PARTITION = "results/partitions/{dataset}/{partition}/seed{seed}.parquet"
PARTITION_CHART = "results/partitions/{dataset}/{partition}/seed{seed}.png"
CACHE = "results/{cache}/{dataset}/{backbone}.safetensors"
FEATURES = CACHE.replace("{cache}", "features")
PATCHES = CACHE.replace("{cache}", "patches")
PROTOTYPES = "results/prototypes/{dataset}/{partition}/{backbone}/seed{seed}.safetensors"
BLOCK_ACCURACY = "results/block_accuracy/{dataset}/{backbone}.parquet"
# the digest of a hub's weights
WEIGHTS = "results/weights/{backbone}.json"
# the sizes of backbones that do not ship
BACKBONE_SIZES = "results/backbone_sizes.json"

# a run: its states after the rounds of its jobs, and its progress between two of them beside them
RUN = f"results/runs/{RUN_NAME}"
STATE = RUN + "/rounds/{end}.safetensors"
CHECKPOINT = "checkpoint.safetensors"
EVALUATION = RUN + "/evaluation.parquet"
ROUNDS = RUN + "/rounds.parquet"
# by name: the tables of a run, and those of its jobs, which are joined to them
RUN_TABLE_NAMES = ("evaluation", "rounds", "clients", "confusion")
RUN_TABLES = {name: f"{RUN}/{name}.parquet" for name in RUN_TABLE_NAMES}
JOB_TABLES = {name: f"{RUN}/rounds/{{end}}.{name}.parquet" for name in RUN_TABLE_NAMES}
TRIALS = "results/choices/{dataset}/{partition}/{backbone}/{method}/trials.parquet"
CHOICE = "results/choices/{dataset}/{partition}/{backbone}/{method}/chosen.parquet"
ARTEFACT = RUN + "/artefacts/{artefact}.parquet"
TABLE = "results/tables/{study}/{label}.md"
# the endings of a table's files
TABLE_FORMATS = ("md", "csv", "tex", "html", "parquet")
FIGURE = "results/figures/{study}/{label}.pdf"
REPORT = "results/report/{study}.html"
# the record of a study's runs, once it has finished
RECORD = "results/studies/{study}.parquet"
# the keys of a study that Python gave
GIVEN = "results/studies/{study}.yaml"
# a folder for a paper's supplement
EXPORT = "results/export/{study}"
# a folder that a tracker writes to
TRACKED = "results/tracked/{tracker}"
LOGS = "results/logs"
# the receipts of jobs: what their results were made from
RECEIPTS = "results/receipts"

# the files that jobs read of a dataset and its partition, and which of them rules before runs read
DATA_OF_A_RUN = {
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
    labels = dict[str, Any]()
    if run is not None:
        labels.update(vars(run))
    labels.update(wildcards)
    return Path(pattern.format(**labels))


def inputs(rule: str, **wildcards: Any) -> dict[str, Path]:
    """Return the data files that a job of this rule reads, by name."""
    return {name: path_for(DATA_OF_A_RUN[name], **wildcards) for name in INPUTS[rule]}


def run_inputs(run: Run, needs: Collection[str]) -> dict[str, Path]:
    """Return the data files that a run reads: `store`, `partition` and those it `needs`."""
    read = ("store", "partition", *needs)
    return {name: path_for(DATA_OF_A_RUN[name], run) for name in DATA_OF_A_RUN if name in read}


def other_inputs(dataset: str, run: Run, needs: Collection[str]) -> dict[str, Path]:
    """Return the files of another dataset that a run is tested on: `store` and the caches."""
    names = ["store", *(name for name in needs if name in ("features", "patches"))]
    return {name: path_for(DATA_OF_A_RUN[name], run, dataset=dataset) for name in names}


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
