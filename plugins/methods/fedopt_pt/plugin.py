"""FedOpt-PT: shallow prompts and a linear head; the server takes a step of an optimiser, Adam.

Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2 with Adam, as a baseline of
Weng et al. (PFPT, NeurIPS 2024), who cite another work of the same name (Asad et al., 2020) but
whose released code steps Adam. The pseudo-gradient is the server's parameters minus the mean of the
clients'. With option `selection` it is FedOpt-PT+ of PFPT's Tables 6-7. Choices where the papers
leave one open:

- torch's Adam, with its bias correction (Reddi et al. have none by default). `server_optimizer` has
  their Yogi and Adagrad, and SGD with momentum, as well. Adagrad takes beta1 of `server_betas`, 0.9
  by default, where they have 0.
- `variant: released`: the clients continue from their plain mean, which is FedAvg, and never
  receive the result of Adam. That is the server's own model `adapted`, which follows the mean by
  steps of `server_lr` and is evaluated on the global test; clients' own test images are evaluated
  with the plain mean.
- betas and eps are those of the paper's clients, as in the released code. The server's learning
  rate is not reported: 0.001 is ours, 5e-5 that of the released code.
- Clients are weighed by their training images; option `weighted` turns that off.
- Selection is that of fedavg_pt, and the pseudo-gradient of a prompt is taken over the clients that
  picked it. For a prompt that no client picked it is zero, and Adam continues with its momentum;
  with `released`, it points to the prompt that the clients hold.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options
from .server_step import init_moments, server_step

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    params = fl.init_params(task)
    options = task.options
    moments = init_moments(
        options.server_optimizer, params, options.server_momentum, options.server_eps
    )
    adapted = {"adapted": params} if task.options.variant == "released" else {}
    return {"params": params, "moments": moments} | adapted


@fl.hookimpl
def download(task: Task, server: Tree, client: int) -> Tree:
    if client == fl.SERVER_MODEL and task.options.variant == "released":
        return {"params": server["adapted"]}
    return {"params": server["params"]}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.train_picked(task, received, clients)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    options = task.options
    mean = fl.mean_of_picked(server["params"], updates, options.weighted)
    own = server.get("adapted", server["params"])
    pseudo_gradient = fl.tensor_map(torch.sub, own, mean)

    # the server's step along it
    own, moments = server_step(
        options.server_optimizer,
        own,
        pseudo_gradient,
        server.get("moments", {}),  # an empty tree is not kept
        lr=options.server_lr,
        number=task.round,
        momentum=options.server_momentum,
        betas=(options.server_betas[0], options.server_betas[1]),
        eps=options.server_eps,
    )
    if options.variant == "released":
        return {"params": mean, "moments": moments, "adapted": own}
    return {"params": own, "moments": moments}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.predict_picked(task, received, clients, batch)  # [K, B, C]
