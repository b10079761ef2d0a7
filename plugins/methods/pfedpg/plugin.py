"""pFedPG: the server generates every client's prompts, and learns from how the clients change them.

Yang et al., "Efficient Model Personalization in Federated Learning via Client-Specific Prompt
Generation" (ICCV 2023). Equation numbers are the paper's. P_n are the prompts that are generated
for client n, and P~_n are these prompts after training. There is no official code. Choices where
the paper leaves one open:

- Eq. 5 as printed subtracts the direction of Delta P_n = P~_n - P_n. This moves P_n *away* from the
  P~_n that the client trained. Delta P_n stands for the *negative* gradient (Eq. 4), so our server
  adds it: it descends sum_n <P_n(phi), -Delta P_n>.
- Eq. 5 is for one client n. Here the sum over the round's clients is taken at the same phi. If
  clients pull the generator in opposite directions, the sum decides.
- A descriptor is a single query, so Eq. 3 adds the same vector to all tokens of a client.
- The initialisation is not reported. The basis starts as VPT's prompts do, projections are
  Xavier-uniform, and descriptors are from N(0, 1), as in an embedding table. l_k = l_v = 512
  (option `key_dim`), but at most d.
- `generator: mlp` (after Shamsian et al., "Personalized Federated Learning using Hypernetworks")
  has one hidden layer (option `hidden_dim`), a linear layer for each token, and no basis. Its
  output layer is scaled so that the first prompts are about as large as VPT's.
- `generator: adain` gives each token of the basis the mean and the deviation of the descriptor,
  over the width. Therefore the descriptor starts like a prompt.
- `generator: basis` trains only P_base and sends it to all clients. ("P_base" in Table 4 may also
  mean a generator that is trained but not used.)
- The text of Section 3.3 predicts with P_n, but Algorithm 1 trains P~_n last. Ours predicts with
  P~_n (option `inference`). A client that is not in a round keeps the P~_n and the head of its last
  round, because they were trained together. With `inference: generated`, it combines this head with
  the current P_n.
- The head starts at zero, has no bias, and never leaves the client. With `head: shared`, clients
  send it too, and the server averages it, weighted by training images. The reason is SGPT (Table
  1), which prints 81 % on all test images for clients with ten of a hundred classes, which personal
  heads cannot reach.
- The accuracy on all test images is that of one model (`common_model`, as in PFPT), or the mean
  over the participants' own models (SGPT, Section 5.2.1).
- A held-out client gets prompts from the mean of the participants' descriptors. The server's model
  gets the basis (PFPT's "common model"). Without a basis, it gets the prompts of the mean
  descriptor.
- These two, and a participant before its first round, have the mean of the trained heads, or an
  untrained head drawn as torch.nn.Linear draws its weights. The zero head with which training
  starts would call every image the first class.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, PersonalStates, Tree, Update

from .generators import GENERATORS, init_phi
from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    head = task.backbone.init_head(task.num_classes)
    return {"params": init_phi(task) | ({"head": head} if shares_head(task) else {})}


def shares_head(task: Task) -> bool:
    """Return True if the server averages the heads, and clients start from the averaged head."""
    return task.options.head == "shared"


def generate(task: Task, phi: Tree, clients: list[int]) -> Tensor:
    """Generate the prompts P_n [K, P, d] of participating clients with these ids."""
    rows = [task.data.position[client] for client in clients]
    return GENERATORS[task.options.generator](phi, phi["descriptors"][rows])


@fl.hookimpl
def download(task: Task, server: Tree, client: int) -> Tree:
    phi = server["params"]
    if client in task.data.position:
        prompts = generate(task, phi, [client])[0]
    elif client == fl.SERVER_MODEL and "basis" in phi:
        prompts = phi["basis"]
    else:
        middle = phi["descriptors"].mean(0, keepdim=True)  # [1, d]
        prompts = GENERATORS[task.options.generator](phi, middle)[0]
    head = {"head": phi["head"]} if shares_head(task) else {}  # [C, d]
    return {"params": {"prompts": prompts} | head}  # [P, d]


def personal_state(task: Task, head: Tensor, prompts: Tensor | None = None) -> Tree:
    """Return what a client keeps between rounds.

    A client keeps `head`, unless heads are shared. If it predicts with trained prompts, it also
    keeps `prompts`, and `adapted`, which is true if it has trained them.

    Args:
        head: [C, d].
        prompts: the trained prompts P~_n [P, d]; None for a client that never trained.
    """
    kept = {} if shares_head(task) else {"head": head}
    if task.options.inference == "generated":
        return kept
    adapted = torch.tensor(prompts is not None, device=head.device)
    if prompts is None:
        prompts = torch.zeros(task.options.prompts, task.backbone.width, device=head.device)
    return kept | {"adapted": adapted, "prompts": prompts}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return personal_state(task, task.backbone.init_head(task.num_classes))


@fl.hookimpl
def unseen_client_state(task: Task, client: int, states: PersonalStates) -> Tree:
    if shares_head(task):
        return init_client(task, client)
    if task.options.newcomer_head == "mean":
        return personal_state(task, states.mean("head"))
    return personal_state(task, fl.random_head(task, client, purpose="untrained head"))


def heads(received: Tree, clients: Cohort) -> Tensor:
    """Return the heads [K, C, d] that clients start from: the shared head, or their own heads."""
    return received["params"].get("head", clients.state.get("head"))


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with prompts [K, P, d] and heads [K, C, d] (Eq. 1: [c, P_n, z])."""
    return task.backbone.forward_prompted(batch.images, params["prompts"], params["head"])


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] (Eq. 2)."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    prompts = received["params"]["prompts"]  # P_n [K, P, d]
    start = {"head": heads(received, clients), "prompts": prompts}
    trained = fl.train_locally(task, loss, received, clients, params=start)
    updates = []
    for k, examples in enumerate(clients.num_examples):
        own = fl.unstack(trained.params, k)  # head [C, d], prompts P~_n [P, d]
        payload = {"delta": own["prompts"] - prompts[k]}
        payload |= {"params": {"head": own["head"]}} if shares_head(task) else {}
        metrics = {"train_loss": trained.loss[k]}
        updates.append(Update(payload, personal_state(task, **own), examples, metrics))
    return updates


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    phi = {name: value for name, value in server["params"].items() if name != "head"}
    clients = [update.client for update in updates]
    delta = torch.stack([update.payload["delta"] for update in updates])  # [K, P, d]
    pull_back = torch.func.vjp(lambda phi: generate(task, phi, clients), phi)[1]
    (gradient,) = pull_back(-delta)  # the gradient of sum_n <P_n(phi), -Delta P_n> (Eq. 4)
    phi = fl.tensor_map(lambda x, g: x - task.options.server_lr * g, phi, gradient)
    return {"params": phi | (fl.mean(updates, weighted=True) if shares_head(task) else {})}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model and not task.options.common_model:
        return None
    state = clients.state
    prompts = received["params"]["prompts"]
    if task.options.inference == "adapted":
        prompts = torch.where(state["adapted"][:, None, None], state["prompts"], prompts)
    return logits(task, {"head": heads(received, clients), "prompts": prompts}, batch)
