"""Where every result lies, relative to the working directory: stated here and nowhere else.

A path is a pattern with wildcards, as Snakemake takes it; `at` fills the wildcards in.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedloom.common.receipts import receipt_of
from fedloom.study.runs import NAME, Run

RESULTS = "results"
STORE = "results/datasets/{dataset}/images.arrow"
PARTITION = "results/partitions/{dataset}/{partition}/seed{seed}.parquet"
PARTITION_CHART = "results/partitions/{dataset}/{partition}/seed{seed}.png"
CACHE = "results/{cache}/{dataset}/{backbone}.safetensors"
PROTOTYPES = "results/prototypes/{dataset}/{partition}/{backbone}/seed{seed}.safetensors"
BLOCK_ACCURACY = "results/block_accuracy/{dataset}/{backbone}.parquet"
WEIGHTS = "results/weights/{backbone}.json"  # the digest of a hub's weights
BACKBONE_SIZES = "results/backbone_sizes.json"  # of those that do not ship
RUN = f"results/runs/{NAME}"
STATE = RUN + "/rounds/{end}.safetensors"
EVALUATION = RUN + "/evaluation.parquet"
ROUNDS = RUN + "/rounds.parquet"
CLIENTS = RUN + "/clients.parquet"
CONFUSION = RUN + "/confusion.parquet"
# by name: the tables of a run, and those of its jobs, which are joined to them
RUN_TABLES = {
    "evaluation": EVALUATION,
    "rounds": ROUNDS,
    "clients": CLIENTS,
    "confusion": CONFUSION,
}
JOB_TABLES = {name: f"{RUN}/rounds/{{end}}.{name}.parquet" for name in RUN_TABLES}
TRIALS = "results/choices/{dataset}/{partition}/{backbone}/{method}/trials.parquet"
CHOICE = "results/choices/{dataset}/{partition}/{backbone}/{method}/chosen.parquet"
ARTEFACT = RUN + "/artefacts/{artefact}.parquet"
TABLE = "results/tables/{study}/{label}.md"
FIGURE = "results/figures/{study}/{label}.pdf"
REPORT = "results/report/{study}.html"
LOGS = "results/logs"

# where a job keeps its progress between rounds, beside the states of its run
CHECKPOINT = "checkpoint.safetensors"


def at(pattern: str, run: Run | None = None, /, **wildcards: Any) -> Path:
    """Fill in a pattern's wildcards, from a run's labels and by name."""
    values = wildcards if run is None else vars(run) | wildcards
    return Path(pattern.format(**values))


def run_inputs(run: Run, needs: Collection[str]) -> dict[str, Path]:
    """Return the data files that a run reads, by name: `store`, `partition` and what it `needs`.

    They are the inputs of rules `train` and `artefact`, and what a task is built from.

    Args:
        needs: the caches that the run's method reads: features, patches, prototypes.
    """
    files = {"store": at(STORE, run), "partition": at(PARTITION, run)}
    files |= {kind: at(CACHE, run, cache=kind) for kind in ("features", "patches") if kind in needs}
    if "prototypes" in needs:
        files["prototypes"] = at(PROTOTYPES, run)
    return files


def end(number: int) -> str:
    """Write the last round of a job as the wildcard `end` has it."""
    return f"{number:04}"


def receipt(pattern: str) -> str:
    """Return the pattern of the receipt of a file, see fedloom.common.receipts."""
    return str(receipt_of(Path(pattern)))


def log(rule: str, pattern: str) -> str:
    """Return the log of the rule that makes `pattern`: its name, with the rule for its folder."""
    _, _, name = pattern.split("/", 2)
    stem = name.rsplit(".", 1)[0] if "." in name.rsplit("/", 1)[-1] else name
    return f"{LOGS}/{rule}/{stem}.log"
