"""What a trained model is, apart from its run: facts that JSON can hold, and tensors.

A folder with these is all that a prediction needs beside the backbone's weights: no study, no data
and no client. So a method's `predict` finds no training images in such a task.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedloom.backbones.backbone import Backbone
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.trees import Tree, on_device, stack, tensor_map
from fedloom.data.federation import Arrived, Federation
from fedloom.federated.build_task import method_facts
from fedloom.federated.task import Cohort, Task, TrainingOptions
from fedloom.hooks import loader
from fedloom.hooks.manifest import find_method
from fedloom.models.classifier import Classifier, ImagesInMemory
from fedloom.models.images import Preparation
from fedloom.planning.job_specs import RunSpec


@dataclass(frozen=True)
class ArrivedParts:
    """The parts of a stream that had arrived in a round (see `fedloom.data.federation.Arrived`)."""

    part: int
    parts: int
    training: tuple[bool, ...]
    seen: tuple[bool, ...]


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model.

    Attributes:
        spec: what the numbers of its run depend on.
        round: the round after which it was read.
        client: the id of the client whose model it is; None: the server's model.
        classes: the names of the classes, in the order of the logits.
        preparation: how images become pixels.
        weights: the sha256 of the backbone's weights; None if they are untrained.
        clients: number of clients of the run.
        participating: ids of the clients that took part in training.
        examples: number of the client's training images; 0 for the server's model.
        arrived: the parts of a stream; None without a stream.
    """

    spec: RunSpec
    round: int
    client: int | None
    classes: tuple[str, ...]
    preparation: Preparation
    weights: str | None
    clients: int
    participating: tuple[int, ...]
    examples: int = 0
    arrived: ArrivedParts | None = None

    @property
    def whose(self) -> str:
        """Return whose model it is, as the words of a sentence."""
        if self.client is None:
            return "the server's model"
        return f"the model of client {self.client}"


@dataclass(frozen=True)
class ModelContent:
    """All of a model but the backbone's weights.

    Attributes:
        tensors: a tree without a client axis. `received` is what the model received from the
            server, `state` its personal state, and `priors` [C] its class priors. `offsets` [C],
            which wrappers add to its logits, are there only with such wrappers.
    """

    facts: ModelFacts
    tensors: Tree


def content_of(
    module: Classifier, spec: RunSpec, preparation: Preparation, weights: str | None
) -> ModelContent:
    """Return the content of a model that was read from a run.

    Args:
        module: the model.
        spec: what the numbers of its run depend on.
        preparation: how images become its pixels.
        weights: the sha256 of the backbone's weights; None if they are untrained.
    """
    task = module.task
    own = module.clients
    client = None
    if not own.is_server_model:
        (client,) = own.ids

    arrived = None
    if task.data.arrived is not None:
        now = task.data.arrived
        arrived = ArrivedParts(
            now.part, now.parts, tuple(now.training.tolist()), tuple(now.seen.tolist())
        )

    # the model alone, without the axis of clients
    tree: Tree = {"received": module.received, "state": own.state, "priors": own.priors}
    if own.logit_offsets is not None:
        tree["offsets"] = own.logit_offsets
    tensors = tensor_map(lambda value: value[0], tree)

    facts = ModelFacts(
        spec=spec,
        round=task.round,
        client=client,
        classes=task.data.classes,
        preparation=preparation,
        weights=weights,
        clients=task.data.num_clients,
        participating=tuple(task.data.participating),
        examples=own.num_examples[0],
        arrived=arrived,
    )
    return ModelContent(facts, tensors)


def build_classifier(content: ModelContent, backbone: Backbone) -> Classifier:
    """Return the module of a model, on the device of the backbone."""
    facts = content.facts
    spec = facts.spec
    method = find_method(spec.method.plugin, role="method")
    wrappers = [find_method(each.plugin, role="wrapper") for each in spec.method.wrappers]
    task: Task[Any] = Task(
        seed=spec.run.seed,
        fixed_seeds=spec.fixed_seeds,
        options=SimpleNamespace(**spec.method.options),
        training=TrainingOptions(**spec.method.training, schedule_rounds=spec.schedule_rounds),
        backbone=backbone,
        data=_data_of_nobody(facts, backbone.device),
        clients_per_round=spec.clients_per_round,
        declared=method_facts(method, spec.method.options, wrappers, stacked=spec.stacked),
        wrappers={each.plugin: SimpleNamespace(**each.options) for each in spec.method.wrappers},
        round=facts.round,
    )

    # the cohort of the model alone
    tensors = stack([on_device(content.tensors, backbone.device)])
    client = SERVER_MODEL
    if facts.client is not None:
        client = facts.client
    clients = Cohort(
        ids=(client,),
        state=tensors.get("state", {}),
        priors=tensors["priors"],
        num_examples=(facts.examples,),
        work=(1.0,),
        logit_offsets=tensors.get("offsets"),
    )
    return Classifier(
        task,
        loader.load_hooks(method, wrappers=wrappers),
        tensors.get("received", {}),
        clients,
        facts.preparation.shape,
        spec.backbone.settings.get("cache_format", "float32"),
    )


class _NoImages(list):
    """The clients' rows of images, of which there are none: reading a client's is an error."""

    def __getitem__(self, client: Any) -> Any:
        """Refuse to give a client's rows.

        Raises:
            FedLoomError: always.
        """
        raise FedLoomError(
            "the method reads a client's training images when it predicts, and a published model "
            "has none; load it from the folder of its run"
        )


def _data_of_nobody(facts: ModelFacts, device: torch.device) -> Federation:
    """Return the data of a run's clients as a task has them, but without any image."""
    prepare = facts.preparation
    none = torch.zeros(0, *prepare.shape, dtype=torch.uint8)
    nothing = _NoImages([np.zeros(0, np.int64)] * facts.clients)
    count = len(facts.classes)

    arrived = None
    if facts.arrived is not None:
        now = facts.arrived
        arrived = Arrived(
            now.part,
            now.parts,
            torch.tensor(now.training, device=device),
            torch.tensor(now.seen, device=device),
        )

    return Federation(
        store=ImagesInMemory(none),
        train=nothing,
        test=nothing,
        participating=list(facts.participating),
        labels=torch.zeros(0, dtype=torch.int64, device=device),
        priors=torch.full((facts.clients, count), 1 / count, device=device),
        domains=[""] * facts.clients,
        classes=facts.classes,
        device=device,
        arrived=arrived,
    )
