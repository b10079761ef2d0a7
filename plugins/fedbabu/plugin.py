"""FedBABU: clients train the body under a head that nobody trains, and fine-tune before a test.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification" (ICLR 2022),
Algorithm 1: the head is drawn once and the same for all, so that it is never sent; the server
averages the bodies by numbers of images. For a test, each client fine-tunes the model for a few
epochs. Choices where the papers leave one open:

- pFedPG's rows train the whole ViT; option `train` freezes all but some weights, or trains prompts
  before a frozen ViT.
- The head is drawn as torch.nn.Linear draws it, without bias.
- Fine-tuning takes five epochs, as the released code does (the paper tries one to twenty), of the
  whole model, or of the head (`tuned`). Its learning rate is `tuning_lr` times the first one of
  training: 0.01 by default, since the released code trains from 0.1 to 0.001 and fine-tunes at
  0.001.
- Momentum, weight decay and clipping are those of fedavg, see there. The released code averages
  clients alike, which have as many images each.
"""

from torch import Tensor

from fedloom.toolbox import (
    Batch,
    Cohort,
    FedLoomError,
    Tree,
    Update,
    ViTTask,
    hookimpl,
    init_body,
    make_updates,
    mean,
    model_logits,
    model_loss,
    random_head,
    train_locally,
)


@hookimpl
def init_server(task: ViTTask) -> Tree:
    body = init_body(task)
    if not body:
        raise FedLoomError("fedbabu: option train: a head alone has no body to train")
    return {"params": body}


def model(task: ViTTask, received: Tree, clients: Cohort) -> Tree:
    """Return the received body and the fixed head, or what the client was fine-tuned to."""
    head = random_head(task).expand(len(clients), -1, -1)  # [K, C, d]
    return received["params"] | {"head": head} | clients.state


@hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    start, body = model(task, received, clients), tuple(received["params"])
    trained = train_locally(task, model_loss, received, clients, params=start, train=body)
    del trained.params["head"]
    return make_updates(trained, clients)


@hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    return {"params": mean(updates, task.options.weighted)}


@hookimpl
def personalize(task: ViTTask, received: Tree, clients: Cohort) -> Tree:
    start = model(task, received, clients)
    names = ("head",) if task.options.tuned == "head" else tuple(start)
    trained = train_locally(
        task,
        model_loss,
        received,
        clients,
        params=start,
        train=names,
        epochs=task.options.tuning_epochs,
        lr=task.options.tuning_lr * task.training.lr,
        phase=1,
    )
    return {name: trained.params[name] for name in names}


@hookimpl
def predict(task: ViTTask, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return model_logits(task, model(task, received, clients), batch)  # [K, B, C]
