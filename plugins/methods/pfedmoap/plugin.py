"""pFedMoAP: a personal gating network mixes a client's prompt with those of others.

Luo et al., "Mixture of Experts Made Personalized: Federated Prompt Learning for Vision-Language
Models" (ICLR 2025).

1. The server keeps the last prompt of every client.
2. A client downloads the mean of the prompts, from which its own prompt starts. It also downloads K
   - 1 fixed experts: the prompts of other clients that are nearest to its own last prompt.
3. Let x be the feature of an image, and t_e,c that of class c under expert e, both reduced to g
   entries. A multi-head attention of x over t_1,c ... t_K,c gives a feature h_c(x). The logits are
   scale * (x . h_c(x)) + lambda * (the logits of the client's own prompt).
4. The prompt and the gating network are trained together. The gating network stays on the client.

Choices, which follow the released code where the paper leaves one open:

- A client that takes part for the first time trains only its prompt. Until its gating network has
  been trained, it is evaluated with only its prompt. A client that never trained has the mean of
  the prompts, as the server's model does.
- Distances are Euclidean. Clients that never took part are not experts. The released code can take
  the nearest experts, but its calls leave that option out: experts are drawn at random.
- The mean is over the round's clients, weighted by training images.
- The reduction takes every (d / g)-th entry. The scores of the attention are multiplied by `scale`,
  and not divided by sqrt(g). There is no dropout: the released code sets 0.1, but applies none.
- The prompt and the gating network have the same learning rate. In the released code, the network
  has 0.01, and the prompt has 0.001 with a cosine schedule.
- Every client starts a round with a fresh optimiser. The optimiser of the released code goes on
  through all clients and rounds, including its momentum.
- All clients are tested after the server's step, with the experts that the server then sends. The
  released code tests the clients of the round before this step, with the experts that they trained
  with.
- For a test, a client gets its own last prompt back from the server. It does not keep it.
- If there are fewer than K - 1 other clients, the missing experts are zeros. They are sent, and
  counted as bytes.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .gate import init_gate, mix, pool_entries
from .options import Options

Task = fl.CLIPTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    options = task.options
    generator = task.generator("context")
    context = fl.init_context(task, options.length, options.words, generator)  # [L, d]
    pool = torch.zeros(task.data.num_clients, *context.shape, device=context.device)
    known = torch.zeros(len(pool), dtype=torch.bool, device=context.device)
    return {"params": {"context": context}, "pool": pool, "known": known}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    width = pool_entries(task, task.backbone.encode(["a"])).shape[1]
    trained = torch.zeros((), dtype=torch.bool, device=task.backbone.device)
    return {"gate": init_gate(task, width), "gate_trained": trained}


def nearest_experts(server: Tree, client: int, count: int) -> tuple[Tensor, Tensor]:
    """Return a client's experts: the other clients' prompts that are nearest to its own last one.

    Returns:
        The prompts [count, L, d], nearest first, and a mask [count], true where there is one. Other
        prompts are zero. A client that has never taken part has no experts, and neither has the
        server's model.
    """
    pool = server["pool"]
    known = server["known"]
    prompts = torch.zeros(count, *pool.shape[1:], device=pool.device)
    present = torch.zeros(count, dtype=torch.bool, device=pool.device)
    if client < 0:
        return prompts, present
    distance = (pool - pool[client]).flatten(1).norm(dim=1)  # [N]
    distances, has_prompt = torch.stack([distance, known]).tolist()  # the only wait for the device
    if has_prompt[client]:
        others = [k for k in range(len(pool)) if has_prompt[k] and k != client]
        chosen = sorted(others, key=lambda k: (distances[k], k))[:count]
        prompts[: len(chosen)] = pool[chosen]
        present[: len(chosen)] = True
    return prompts, present


@fl.hookimpl
def download(task: Task, server: Tree, client: int) -> Tree:
    experts, present = nearest_experts(server, client, task.options.experts - 1)
    context = server["params"]["context"]
    sent = {"params": {"context": context}, "constants": {"experts": experts, "present": present}}
    if task.round and not task.selected:  # an evaluation
        own = context  # the mean of the prompts
        if client >= 0:
            own = torch.where(server["known"][client], server["pool"][client], context)
        sent["constants"]["own"] = own
    return sent


@torch.no_grad()
def expert_features(task: Task, received: Tree) -> Tensor:
    """Compute the pooled text features [K, E, C, g] of the classes under the received experts."""
    prompts = received["constants"]["experts"]  # [K, E, L, d]
    return pool_entries(task, task.backbone.text_features(prompts, task.data.classes))


def logits(
    task: Task, context: Tensor, gate: Tree, experts: Tensor, present: Tensor, batch: Batch
) -> Tensor:
    """Compute logits scale * (x . h_c(x)) + lambda * (logits of the own prompt) [K, B, C].

    Args:
        context: the clients' own prompts [K, L, d].
        gate: the layers of the gating networks [K, ...].
        experts: pooled text features under the experts [K, E, C, g].
        present: bool [K, E], which experts there are. A client without any gets the logits of its
            own prompt.
    """
    clip = task.backbone
    text = clip.text_features(context, task.data.classes)  # [K, C, d']
    local = clip.logits(batch.features, text)
    images = pool_entries(task, batch.features)
    # the own prompt is the first expert
    everyone = torch.cat([pool_entries(task, text)[:, None], experts], 1)  # [K, 1 + E, C, g]
    here = torch.cat([present.new_ones(len(present), 1), present], 1)
    mixed = mix(task, gate, images, everyone, here)  # [K, B, C, g]
    own = (images[:, :, None] * mixed).sum(-1)
    gated = task.options.local * local + clip.logit_scale * own
    return torch.where(present.any(1)[:, None, None], gated, local)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    present = received["constants"]["present"]
    scores = logits(task, params["context"], params["gate"], received["text"], present, batch)
    return fl.cross_entropy(scores, batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    known = {**received, "text": expert_features(task, received)}
    start = {**received["params"], "gate": clients.state["gate"]}
    trained = fl.train_locally(task, loss, known, clients, params=start)
    gated = received["constants"]["present"].any(1)  # [K]

    # a network that was not used stays as it was, although weight decay has changed it
    def keep_if_unused(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(gated.view(-1, *[1] * (new.dim() - 1)), new, old)

    trained.params["gate"] = fl.tensor_map(
        keep_if_unused, trained.params["gate"], clients.state["gate"]
    )
    ever = {"gate_trained": clients.state["gate_trained"] | gated}
    return fl.make_updates(trained, clients, kept=["gate"], state=ever)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    pool = server["pool"].clone()
    known = server["known"].clone()
    for update in updates:
        pool[update.client] = update.payload["params"]["context"]
        known[update.client] = True
    return {"params": fl.mean(updates, weighted=True), "pool": pool, "known": known}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    constants = received["constants"]
    gate = clients.state["gate"]
    experts = expert_features(task, received)
    present = constants["present"] & clients.state["gate_trained"][:, None]
    return logits(task, constants["own"], gate, experts, present, batch)
