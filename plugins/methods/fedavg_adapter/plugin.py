"""FedAvg-Adapter: bottleneck adapters in every block and a linear head, averaged by the server.

The adapters are those of Houlsby et al., "Parameter-Efficient Transfer Learning for NLP" (ICML
2019), Section 2.1. They are trained by FedAvg, or with `mu` > 0 by FedProx (Li et al., MLSys 2020,
Eq. 2). These are FedAvg-Adapter and FedProx-Adapter in PFPT's Table 8. Choices where PFPT leaves
one open:

- PFPT does not say which form its adapters have. `houlsby` is y + W_up relu(W_down y + b) + b',
  behind the attention and the MLP of every block, before the skip connection. `adaptformer` (Chen
  et al., NeurIPS 2022, Eq. 4-6) adds 0.1 (W_up relu(W_down LN(x) + b) + b') to the output of the
  MLP only.
- The width of the bottleneck is not reported either. It is 64 here, as in AdaptFormer. W_up and
  both biases start at zero, so that the first round starts with the pretrained model. Houlsby et
  al. also train the layer norms, which stay frozen here.
- mu is not reported. FedProx-Adapter is a label of this method with `mu` set.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]

FORMS = {
    "houlsby": (("attention", "mlp"), fl.adapter),
    "adaptformer": (("mlp",), fl.parallel_adapter),
}


@fl.hookimpl
def init_server(task: Task) -> Tree:
    places, _ = FORMS[task.options.form]
    adapters = {
        place: fl.init_adapters(task, task.options.hidden, task.generator("adapters", number))
        for number, place in enumerate(places)
    }
    return {"params": {"head": task.backbone.init_head(task.num_classes), "adapters": adapters}}


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C]; `adapters` are {place: {name: [K, M, ...]}} for M blocks."""
    _, form = FORMS[task.options.form]
    inserts = {
        j: {place: form(fl.at_block(own, j - 1)) for place, own in params["adapters"].items()}
        for j in range(1, task.backbone.depth + 1)
    }
    return task.backbone.forward(batch.images, params["head"], inserts=inserts)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy plus mu/2 ||w - w_received||^2 [K, B]. Report the first."""
    entropy = fl.cross_entropy(logits(task, params, batch), batch.labels)  # [K, B]
    if not task.options.mu:
        return entropy, {}
    penalty = task.options.mu / 2 * fl.squared_distance(params, received["params"])  # [K]
    return entropy + penalty[:, None], {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return logits(task, received["params"], batch)
