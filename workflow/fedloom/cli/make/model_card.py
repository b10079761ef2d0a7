"""Describe a published model on a card: a README.md with the header that model hubs read."""

from pathlib import Path

import yaml
from tabulate import tabulate

from fedloom.cli.make import origins
from fedloom.common.files import read_table
from fedloom.common.receipts import read_receipt
from fedloom.config.kind_plugins import plugins_of_type
from fedloom.hooks.discovery import PluginManifest
from fedloom.hooks.manifest import find_method
from fedloom.machine import packages
from fedloom.models.model import Model
from fedloom.planning import paths, records
from fedloom.planning.run_labels import Run
from fedloom.report import metrics

# the metric of a round with which a wrapper states differential privacy
EPSILON = "epsilon"
CARD = """\
---
{header}---

# {title} on {dataset}

{whose}, trained by federated learning with FedLoom {version}: {title} on the backbone {backbone}.
The file `model.safetensors` holds {floats:,} numbers; the backbone's weights are not among them.

## How to load it

```python
import fedloom

model = fedloom.load("{folder}")
print(model.predict("image.png", top_k=3))
```

{plugins} {weights}

## Data

- Images: dataset `{dataset}` with {images:,} images of {classes} classes ({provenance}), {tests:,}
  of them for tests ({test_split}).
- Division: the partition `{partition}` divides them over {clients} clients, and {participating} of
  these took part in training.{scheme}
- Classes: {names}.

## Training

{training}

## Accuracy

{accuracy}

## Privacy

{privacy}{client}

## What it is not for

It knows the classes above and no others: every image gets one of them. It was tested on images of
the same data alone. Accuracies of single clients and domains may be far below the mean.

## Licence

{licences}

## Papers

{papers}
"""


def model_card(root: Path, run: Run, model: Model, folder: str) -> str:
    """Return the card of a model.

    Args:
        root: the folder of the study.
        run: the model's run.
        model: the model.
        folder: the folder or the hub's name from which people load it.
    """
    facts = model.content.facts
    spec = facts.spec
    plugin = find_method(spec.method.plugin, role="method")
    wrappers = [find_method(each.plugin, role="wrapper") for each in spec.method.wrappers]
    needed: list[PluginManifest] = [plugin, *wrappers]
    of_backbone = plugins_of_type("backbone").get(spec.backbone.library)
    if of_backbone is not None:
        needed.append(of_backbone)
    store = read_receipt(root / paths.path_for(paths.STORE, run))

    header = {
        "library_name": "fedloom",
        "pipeline_tag": "image-classification",
        "tags": ["federated-learning", "prompt-tuning", spec.method.plugin],
    }
    client = ""
    if facts.client is not None:
        client = (
            "\n\nIt holds the client's class shares and its personal state, from which others may "
            "learn about its data."
        )
    config = records.find_config(run, root)
    leaves = (value.numel() for value in model.tensors().values())

    version = packages.versions()["fedloom"]

    return CARD.format(
        header=yaml.safe_dump(header, sort_keys=False),
        title=plugin.title,
        whose=facts.whose.capitalize(),
        version=version,
        backbone=f"`{spec.backbone.settings['name']}` of {spec.backbone.library}",
        floats=sum(leaves),
        folder=folder,
        plugins=origins.plugins(needed, version),
        weights=_weights(model),
        dataset=run.dataset,
        images=store["images"],
        classes=len(facts.classes),
        provenance=store["provenance"],
        tests=store["test_images"],
        test_split=store["test_split"],
        partition=run.partition,
        clients=facts.clients,
        participating=len(facts.participating),
        scheme=origins.scheme(config, run),
        names=", ".join(facts.classes),
        training=_training(model),
        accuracy=_accuracy(root, run, model),
        privacy=_privacy(root, run, model),
        client=client,
        licences=origins.licences(config, run, spec.backbone),
        papers="\n".join(f"- {each.title}: {each.paper.citation}" for each in [plugin, *wrappers]),
    )


def _weights(model: Model) -> str:
    """Say where the weights of the backbone come from."""
    backbone = model.content.facts.spec.backbone
    weights = backbone.settings["weights"]
    if weights == "none":
        return "The backbone is untrained: its weights are drawn anew with a fixed seed."
    digest = model.content.facts.weights
    if backbone.sha256 is None:
        return f"The backbone's weights `{weights}` are downloaded; their sha256 is `{digest}`."
    return (
        f"The backbone's weights are the file `{weights}` (sha256 `{digest}`). Unless it ships "
        f"with FedLoom, put a file `{Path(weights).name}` beside this one."
    )


def _training(model: Model) -> str:
    """Return a table of how the model was trained."""
    facts = model.content.facts
    spec = facts.spec
    rows: dict[str, object] = {"rounds": facts.round, "clients in a round": spec.clients_per_round}
    rows |= {"seed": spec.run.seed, "method": spec.method.plugin}
    rows |= {f"option {name}": value for name, value in spec.method.options.items()}
    rows |= {f"training.{name}": value for name, value in spec.method.training.items()}
    for wrapper in spec.method.wrappers:
        rows[f"wrapper {wrapper.plugin}"] = wrapper.options
    lines = [[name, str(value)] for name, value in rows.items()]
    return tabulate(lines, ["setting", "value"], tablefmt="github", disable_numparse=True)


def _accuracy(root: Path, run: Run, model: Model) -> str:
    """Return the accuracies of the run after the model's round.

    They are those of the client whose model it is, of groups of clients, and by domain.
    """
    last = model.content.facts.round
    end = paths.four_digits(last)
    file = root / paths.path_for(paths.JOB_TABLES["evaluation"], run, end=end)
    rows = metrics.evaluation(file)
    rows = rows[rows["round"] == last]
    if rows.empty:
        return "The study did not evaluate this round."

    # of the client whose model it is, if it was among those that the round evaluated
    lines: list[list[str]] = []
    client = model.content.facts.client
    if client is not None:
        own = metrics.percent(rows[rows["client_id"] == client])
        lines += [[f"client {client}", f"{value:.2f}"] for value in own]

    # of groups of clients, and of the server's model on all images
    numbers = metrics.curves(rows).loc[last].dropna()
    lines += [[str(name).replace("_", " "), f"{value:.2f}"] for name, value in numbers.items()]

    # by domain, over the clients that took part in training
    trained = rows[rows["participating"]]
    if trained["domain"].nunique() > 1:
        means = metrics.percent(trained).groupby(trained["domain"]).mean()
        lines += [[f"domain {name}", f"{value:.2f}"] for name, value in means.items()]
    table = tabulate(lines, ["group", "accuracy in %"], tablefmt="github", disable_numparse=True)
    return (
        f"Of clients on their own test images after round {last}, personalised where the method "
        f"does that; `global` is the server's model on all test images.\n\n{table}"
    )


def _privacy(root: Path, run: Run, model: Model) -> str:
    """Say what is known about the privacy of the clients' data."""
    last = model.content.facts.round
    end = paths.four_digits(last)
    rounds = read_table(root / paths.path_for(paths.JOB_TABLES["rounds"], run, end=end)).to_pandas()
    if EPSILON in rounds:
        value = rounds.set_index("round")[EPSILON].loc[last]
        names = ", ".join(each.plugin for each in model.content.facts.spec.method.wrappers)
        return f"Differential privacy by {names}: epsilon is {value:.3g} after round {last}."
    return (
        "The model gives no guarantee of privacy: the clients' images stayed with the clients, but "
        "a model may reveal its training images."
    )
