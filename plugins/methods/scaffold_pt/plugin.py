"""SCAFFOLD-PT: shallow prompts and a linear head; control variates correct every local step.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020),
Algorithm 1, as a baseline of Weng et al. (PFPT, NeurIPS 2024). x are the server's parameters, y_k
those of client k after training, and c and c_k their control variates. Choices where the papers
leave one open:

- New control variates are those of option II of Eq. 4: c_k+ = c_k - c + (x - y_k) / (K_k lr), where
  K_k is the client's own number of steps. With plain SGD, c_k+ is the mean of the client's
  gradients. Any other optimiser, momentum, weight decay and clipping are refused.
- All control variates start at zero. c is the mean of c_k over all N clients that may take part. So
  the server moves c by |S|/N times the mean change of the round's clients S. Held-out clients have
  no control variate.
- The correction c - c_k enters the gradient through a linear term of the loss.
- Clients have equal weights (Algorithm 1, line 16).
- Parameters and control variates travel both ways, which is twice the floats of fedavg_pt.
- In PFPT's released code, a client that takes part again does not start from the server's current
  weights. It starts from the weights that it got at the end of its last participation, and its
  change is added to the current weights. Here every client starts from the server's x (Algorithm 1,
  line 6).
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    t = task.training
    if t.optimizer != "sgd" or t.momentum or t.weight_decay or t.clip is not None:
        raise fl.FedLoomError(
            "scaffold_pt: its control variates need plain SGD; set training.optimizer: sgd, "
            "momentum: 0, weight_decay: 0 and clip: null"
        )
    params = fl.shallow_params(task, task.options.prompts)
    return {"params": params, "constants": {"control": fl.tensor_map(torch.zeros_like, params)}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {
        "control": fl.tensor_map(torch.zeros_like, fl.shallow_params(task, task.options.prompts))
    }


def correction(params: Tree, control: Tree, own: Tree) -> Tensor:
    """Compute the term <c - c_k, y_k> [K] of each client, whose gradient is c - c_k.

    Args:
        params: y_k, {name: [K, ...]}.
        control: c, the server's control variate, of the same shapes.
        own: c_k, the clients' control variates, of the same shapes.
    """
    terms = [((control[name] - own[name]) * params[name]).flatten(1).sum(1) for name in params]
    return sum(terms, start=torch.zeros(()))


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy plus the correction [K, B], and report the cross-entropy."""
    entropy = fl.shallow_loss(task, params, received, clients, batch)  # [K, B]
    term = correction(params, received["constants"]["control"], clients.state["control"])  # [K]
    return entropy + term[:, None], {"reported_loss": entropy}


def control_change(received: Tree, params: Tree, span: float) -> Tree:
    """Compute c_k+ - c_k = (x - y_k) / (K_k lr) - c for one client (option II of Eq. 4).

    Args:
        received: has x in `params` and c in `constants`.
        params: y_k, the client's parameters after training.
        span: K_k lr, the number of local steps times the learning rate.
    """
    control = received["constants"]["control"]
    return fl.tensor_map(lambda x, y, c: (x - y) / span - c, received["params"], params, control)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    trained = fl.train_locally(task, loss, received, clients)
    lr = fl.learning_rate(task)
    updates = []
    for k, examples in enumerate(clients.num_examples):
        params = fl.unstack(trained.params, k)
        change = control_change(fl.unstack(received, k), params, trained.steps[k] * lr)
        control = fl.tensor_map(torch.add, fl.unstack(clients.state["control"], k), change)
        payload = {"params": params, "control": change}
        metrics = {"train_loss": trained.loss[k]}
        updates.append(Update(payload, {"control": control}, examples, metrics))
    return updates


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    # c moves by the sum of the clients' changes over N, x by a step towards the clients' mean
    share = 1 / len(task.data.participating)  # 1/N
    control = fl.tensor_map(
        lambda c, *changes: c + share * sum(changes),
        server["constants"]["control"],
        *(update.payload["control"] for update in updates),
    )
    gradient = fl.tensor_map(torch.sub, server["params"], fl.mean(updates))
    lr = task.options.server_lr
    params = fl.tensor_map(lambda x, g: x - lr * g, server["params"], gradient)
    return {"params": params, "constants": {"control": control}}


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return fl.shallow_logits(task, received["params"], batch)  # [K, B, C]
