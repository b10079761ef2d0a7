"""Compute what the authors' code of PFPT does differently from their paper (`variant: released`).

Clients:

- Queries pass a learned d x d layer. Prompts are chosen for a whole batch: those that most of its
  images rank high. This also holds for test batches. The prediction for a test image therefore
  depends on the other images of its batch, which leaks test data. (A batch has at most `batch_size`
  images in the order of the dataset, which is often sorted by class.) The loss *adds* 0.01 times
  the similarity.
- The head has two layers and dropout. In the code it reads ImageNet's 1,000 logits, here the class
  token.
- From round 2 on, the server and all clients of a round share one pool in memory, because
  aggregation gives each of them the same tensor. The clients therefore train this pool one after
  another, by ascending id and each with a new optimiser, and all upload the pool as the last client
  leaves it. In round 1, every client has a copy. Heads and query layers are copies in every round.
  `shared_pool: false` gives every client its own copy of the pool.
- A client uploads its copies of all prompts that any client chose, whether it trained them or not.
  We count the upload as the whole pool and a mask, since no client knows what the others chose.

Server:

- At the start of a round, Phi is all uploads, z is random, and g and alpha are initialised again.
  Then, 50 times, each client in turn takes one Adam step on its own L1 + L2, and is matched by the
  costs from before this step.
- alpha is a standard deviation. The cost has log Bernoulli(c_i) for Eq. 27's logit, and L2 leaves
  out unassigned prompts. Both count the Bernoulli term n_t times: the code evaluates it on a vector
  of n_t equal entries c_i and sums them.

Three things of the code are not reproduced. (1) The union of chosen prompts also holds those that
test images chose in the previous round; our hooks cannot know them, since nothing that `predict`
sees is kept. (2) The reported accuracy is that of the round with the smallest *test* loss. (3) On
the 4-dataset, the model is told which of the four datasets a test image is from.

The options `separation`, `unused_prompts`, `iterations` and `steps` have no meaning here, and
`shared_pool` has none for the paper's variant.
"""

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .matching import log_density
from .networks import init_layers, init_nets, network
from .options import Options

Task = fl.ViTTask[Options]

TURNS = 50
HEAD_UNITS = 512
PULL = 0.01  # weight of the similarity of queries and prompts


def init_state(task: Task, params: Tree) -> Tree:
    """Return the server's parameters, and the layer [d, d] that queries pass."""
    width = task.backbone.width
    query = 2 * torch.rand(width, width, generator=task.generator("query")) - 1
    return {"params": params | {"query": query.to(task.backbone.device)}}


def init_head(task: Task) -> Tree:
    """Draw a head of two layers."""
    return init_layers(task, "head", task.backbone.width, HEAD_UNITS, task.num_classes)


def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train the clients; from round 2 on, one after another on a pool that they share.

    All clients of the round must be in one cohort, as the runtime hands them over.
    """
    if task.round == 1 or not task.options.shared_pool:
        return train(task, received, clients)
    updates: list[Update] = []
    pool = received["params"]["shared_prompts"][:1]  # [1, n, d]
    for k in range(len(clients)):
        own = fl.tensor_map(lambda value, k=k: value[k : k + 1], received)
        own["params"] = own["params"] | {"shared_prompts": pool}
        updates += train(task, own, clients.subset([k]))
        pool = updates[-1].payload["params"]["shared_prompts"][None]
    for update in updates:
        update.payload["params"]["shared_prompts"] = pool[0]
    return updates


def train(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train the pool, the query layer and the head, and return the updates.

    Clients also upload `picked`, bool [n]: the prompts of the pool that their batches picked.
    """
    params = received["params"] | clients.state  # a personal head is the client's own
    pool = params["shared_prompts"]  # [K, n, d]
    count = {"picked": torch.zeros_like(pool[..., 0])}
    trained = fl.train_locally(task, loss, received, clients, params=params, counters=count)
    picked = trained.counters["picked"] > 0  # [K, n]
    return fl.make_updates(trained, clients, kept=clients.state, picked=picked)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Return the cross-entropy plus 0.01 times the similarity [K, B], and report the first.

    The similarity is the sum of cosines between an image's query and the prompts that its batch
    picked. The counter `picked` gets 1 for each of these prompts, [K, B, n].
    """
    places, cosine = pick(task, params, batch.features, batch.mask)
    prompts = fl.gather_prompts(params["shared_prompts"], places)
    head = params["head"]
    features = features_with(task, batch, prompts)
    hidden = fl.apply_linear(features, head["inner"])  # [K, B, HEAD_UNITS]

    # dropout of half of the hidden units; the others are doubled
    seen = zip(clients.ids, batch.seen, strict=True)
    streams = [task.generator("dropout", client, images) for client, images in seen]
    draws = [torch.rand(task.training.batch_size, HEAD_UNITS, generator=s) for s in streams]
    keep = torch.stack(draws)[:, : hidden.shape[1]].to(hidden.device, non_blocking=True) < 0.5
    scores = fl.apply_linear(2 * keep * hidden, head["outer"])

    # the picked prompts, the same for all images of a batch
    shape = (*cosine.shape[:2], -1)
    chosen = torch.zeros_like(cosine).scatter_(-1, places[:, None].expand(shape), 1)
    entropy = fl.cross_entropy(scores, batch.labels)
    values = entropy + PULL * (cosine * chosen).sum(-1)
    return values, {"reported_loss": entropy, "picked": chosen}


def pick(task: Task, params: Tree, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Pick prompts for a batch: those with the most votes of its images.

    An image votes for the `count` prompts with the highest cosine to its query.

    Args:
        features: final class tokens [K, B, d], which become queries.
        mask: bool [K, B], false for images that only fill up the batch; they have no vote.

    Returns:
        The positions of the picked prompts in the pool [K, count], and all cosines [K, B, n].
    """
    cosine = fl.cosine_similarity(features @ params["query"].mT, params["shared_prompts"])
    count = min(task.options.prompts, cosine.shape[-1])
    votes = torch.zeros_like(cosine).scatter_(-1, cosine.topk(count).indices, 1)
    votes = (votes * mask[..., None]).sum(1)
    return votes.argsort(dim=1, descending=True, stable=True)[:, :count], cosine


def features_with(task: Task, batch: Batch, prompts: Tensor) -> Tensor:
    """Return the final class tokens [K, B, d] with prompts [K, P, d] or [K, B, P, d]."""
    vit = task.backbone
    return vit.pool(vit.blocks(fl.insert(vit.embed(batch.images), prompts), read="pooled"))


def logits(task: Task, params: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return logits [K, B, C]; batches of test images, as large as in training, pick prompts."""
    size = task.training.batch_size
    prompts = []
    parts = zip(batch.features.split(size, 1), batch.mask.split(size, 1), strict=True)
    for features, mask in parts:
        picked = fl.gather_prompts(params["shared_prompts"], pick(task, params, features, mask)[0])
        prompts.append(picked[:, None].expand(-1, features.shape[1], -1, -1))
    prompted = features_with(task, batch, torch.cat(prompts, 1))
    hidden = fl.apply_linear(prompted, params["head"]["inner"])
    return fl.apply_linear(hidden, params["head"]["outer"])


def next_pool(task: Task, server: Tree, updates: list[Update]) -> tuple[Tensor, Tree]:
    """Return the next pool [n', d], made from the prompts that any client picked.

    The second result, what the server keeps besides, is empty.
    """
    uploaded = torch.stack([update.payload["params"]["shared_prompts"] for update in updates])
    union = torch.stack([update.payload["picked"] for update in updates]).any(0)  # [n]
    return summarise(task, uploaded[:, union], init_nets(task), TURNS), {}


def summarise(task: Task, uploaded: Tensor, nets: Tree, turns: int) -> Tensor:
    """Return the next pool [n', d]: the candidates that prompts are assigned to in the end.

    Args:
        uploaded: the clients' prompts [m, n_t, d], which are also the first candidates.
        nets: new networks of g and alpha.
        turns: number of turns; in each, every client makes one step and is assigned anew.
    """
    clients, each = uploaded.shape[:2]

    # what is trained: the candidates and the networks
    tree = {"phi": uploaded.flatten(0, 1), "nets": nets}
    tree = fl.tensor_map(lambda v: v.clone().requires_grad_(), tree)
    phi = tree["phi"]
    nets = tree["nets"]
    optimizer = torch.optim.Adam([v for _, v in fl.leaves(tree)], task.options.server_lr)

    # random assignments z [m, n_t] at the start
    generator = task.generator("assignment")
    z = torch.stack([torch.randperm(len(phi), generator=generator)[:each] for _ in range(clients)])
    z = z.to(phi.device)

    # in each turn, for each client: a gradient step, then a new assignment
    for _ in range(turns):
        for t, w in enumerate(uploaded):
            with torch.no_grad():
                g = network(phi, nets["g"])[:, 0]
                cost = log_density(w, phi, network(phi, nets["alpha"]).sigmoid().square())
                # c_i of each candidate [n]: true if it is assigned to this client
                taken = torch.zeros_like(g).index_fill(0, z[t], 1) > 0
                cost += each * torch.where(taken, F.logsigmoid(g), F.logsigmoid(-g))

            own = phi[z[t]]
            spread = network(own, nets["alpha"]).sigmoid()
            # no validation of the arguments, for which the host would wait three times
            around = torch.distributions.Normal(own, spread, validate_args=False)
            value = around.log_prob(w).sum() + each * F.logsigmoid(network(own, nets["g"])).sum()

            optimizer.zero_grad()
            (-value).backward()
            optimizer.step()
            found = linear_sum_assignment(cost.cpu().numpy(), maximize=True)[1]
            z[t] = torch.from_numpy(found)
    return phi.detach()[z.unique()]
