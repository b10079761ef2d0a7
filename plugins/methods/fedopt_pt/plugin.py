"""FedOpt-PT: shallow prompts and a linear head; the server takes a step of an optimiser, Adam.

Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2 with Adam. It is a baseline
of Weng et al. (PFPT, NeurIPS 2024). They cite another work with the same name (Asad et al., 2020),
but their released code uses Adam. The pseudo-gradient is the server's parameters minus the mean of
the clients' parameters. With the option `selection` it is FedOpt-PT+ of PFPT's Tables 6-7. Choices
where the papers leave one open:

- The optimiser is torch's Adam, with its bias correction, which Reddi et al. do not have by
  default. `server_optimizer` also offers their Yogi and Adagrad, and SGD with momentum. Adagrad
  takes beta1 from `server_betas`. This is 0.9 by default, where Reddi et al. have 0.
- `variant: released`: the clients go on from their plain mean, as in FedAvg, and never receive the
  result of Adam. This result is the server's own model `adapted`, which follows the mean by steps
  of `server_lr`. The global test evaluates `adapted`. Clients' own test images are evaluated with
  the plain mean.
- betas and eps are those of the paper's clients, as in the released code. The server's learning
  rate is not reported. 0.001 is our choice, and the released code has 5e-5.
- Clients are weighted by their training images. With `weighted: false`, all have equal weights.
- Prompts are selected as in fedavg_pt. The pseudo-gradient of a prompt is taken over the clients
  that picked it. For a prompt that no client picked it is zero, and Adam goes on with its momentum.
  With `variant: released` it then points to the prompt that the clients hold.
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
    moments = init_moments(task.options, params)
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

    before = server.get("moments", {})  # plain SGD has none
    own, moments = server_step(options, own, pseudo_gradient, before, task.round)
    if options.variant == "released":
        return {"params": mean, "moments": moments, "adapted": own}
    return {"params": own, "moments": moments}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.predict_picked(task, received, clients, batch)  # [K, B, C]
