"""FedBABU: clients train the body under a head that nobody trains, and fine-tune before a test.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification" (ICLR 2022),
Algorithm 1. The head is drawn once and is the same for all clients, so it is never sent. The server
averages the bodies, weighted by training images. Before a test, each client fine-tunes the model
for a few epochs. Choices where the papers leave one open:

- pFedPG's rows train the whole ViT. The option `train` freezes all weights but some, or trains
  prompts before a frozen ViT.
- The head is drawn as torch.nn.Linear draws its weights. It has no bias.
- Fine-tuning takes five epochs, as in the released code (the paper tries one to twenty). The option
  `tuned` says whether it trains the whole model or only the head. Its learning rate is `tuning_lr`
  times the learning rate of round 1. The default of `tuning_lr` is 0.01, because the released code
  trains at learning rates from 0.1 down to 0.001, and fine-tunes at 0.001.
- Momentum, weight decay and clipping are those of the method fedavg. The released code gives all
  clients equal weights, but its clients all have the same number of images.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    body = fl.init_body(task)
    if not body:
        raise fl.FedLoomError("fedbabu: option train: a head alone has no body to train")
    return {"params": body}


def client_models(task: Task, received: Tree, clients: Cohort) -> Tree:
    """Return each client's model [K, ...]: the received body and the fixed head.

    After `personalize`, the fine-tuned parameters replace those parts of the model.
    """
    head = fl.random_head(task).expand(len(clients), -1, -1)  # [K, C, d]
    return received["params"] | {"head": head} | clients.state


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = client_models(task, received, clients)
    body = tuple(received["params"])
    trained = fl.train_locally(task, fl.model_loss, received, clients, params=start, train=body)
    del trained.params["head"]
    return fl.make_updates(trained, clients)


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    start = client_models(task, received, clients)
    names = ("head",) if task.options.tuned == "head" else tuple(start)
    trained = fl.train_locally(
        task,
        fl.model_loss,
        received,
        clients,
        params=start,
        train=names,
        epochs=task.options.tuning_epochs,
        lr=task.options.tuning_lr * task.training.lr,
        phase=1,
    )
    return {name: trained.params[name] for name in names}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.model_logits(task, client_models(task, received, clients), batch)  # [K, B, C]
