"""FedMix: mixup with other clients' mean images, to first order.

Yoon et al., "FedMix: Approximation of Mixup under Mean Augmented Federated Learning" (ICLR 2021),
Algorithm 2. (SGPT's reference 58 is this paper, not a mixture of experts.) Clients send means of
their images and labels, and the server sends all of these means to every client. Let x_g be a mean
image and y_g its mean label. The loss of an image x with label y is that of mixup, expanded to
first order around x' = (1 - lambda) x:

    (1 - lambda) L(x', y) + lambda L(x', y_g) + lambda (1 - lambda) x_g . dL(x', y)/dx'

Choices where the papers leave one open:

- SGPT does not say what its row of FedMix trains. Here it is the whole ViT, as in the paper. The
  option `train` freezes all weights but some, or trains prompts before a frozen ViT. lambda is 0.1,
  the paper's value for CIFAR-100.
- Images are scaled and mixed as pixels, for which zero is black. The derivative is taken at the
  input of the first block. There, lambda x_g is replaced by the difference that it makes to the
  tokens. If patches are embedded linearly, this gives the derivative with respect to the pixels.
- A client sends its means, in pixels, in each round that it takes part in. They replace its old
  ones. The server sends the means that it has. In round 1 it has none, and training is that of
  FedAvg. In the paper, means are exchanged before training. Here they are counted in every round.
- A mean is over all images of a client, as in the paper's experiments. If the option `means` is n >
  1, a client sends n means, each over every n-th image. Each step of each client draws one of all
  means.
- The last factor (1 - lambda) comes from the algorithm, which differentiates its first term.
- Flower's public reimplementation differs: it differentiates the mean loss of a batch, and then
  takes the mean of the third term again. This makes the third term smaller by a factor of the batch
  size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    clients = task.data.num_clients
    count = task.options.means
    device = task.backbone.device
    means = {
        "images": torch.zeros(clients, count, *task.data.store.shape, device=device),
        "labels": torch.zeros(clients, count, task.num_classes, device=device),
        "known": torch.zeros(clients, dtype=torch.bool, device=device),
    }
    return {"params": fl.init_model(task), "means": means}


@fl.hookimpl
def download(task: Task, server: Tree, client: int) -> Tree:
    known = server["means"]["known"]
    means = {name: server["means"][name][known] for name in ("images", "labels")}  # [M, n, ...]
    return {"params": server["params"], "constants": {"means": means}}


def own_means(task: Task, client: int) -> Tree:
    """Return n means of a client's images [n, H, W, channels] and of its one-hot labels [n, C].

    Mean i is over the images i, i + n, i + 2 n, ... If a client has fewer images than n, the means
    without an image are those over all images of the client.
    """
    rows = task.data.train[client]
    count = task.options.means
    parts = [rows[i::count] if i < len(rows) else rows for i in range(count)]
    batches = [task.data.batch([part]) for part in parts]
    images = [batch.images[0].float().mean(0) for batch in batches]
    labels = [F.one_hot(batch.labels[0], task.num_classes).float().mean(0) for batch in batches]
    return {"images": torch.stack(images), "labels": torch.stack(labels)}


def draw(task: Task, means: Tree, clients: Cohort, batch: Batch) -> tuple[Tensor, Tensor]:
    """Draw a mean image [K, H, W, channels] and its mean label [K, C] for each client.

    Args:
        means: the received means of M > 0 clients, `images` [K, M, n, H, W, channels] and
            `labels` [K, M, n, C].
    """
    count = means["images"].shape[1]
    images = []
    labels = []
    for k, (client, seen) in enumerate(zip(clients.ids, batch.seen, strict=True)):
        stream = task.generator("mean image", client, seen)
        # the seed of the stream is itself random, so it serves as the draw
        number = stream.initial_seed() % (count * task.options.means)
        owner = number // task.options.means
        which = number % task.options.means
        images.append(means["images"][k, owner, which])
        labels.append(means["labels"][k, owner, which])
    return torch.stack(images), torch.stack(labels)


def logits_of_tokens(task: Task, params: Tree, tokens: Tensor) -> Tensor:
    """Compute logits [K, B, C] from the tokens [K, B, T, d] that enter the first block."""
    vit = task.backbone
    weights = params.get("weights")
    if "shared_prompts" in params:
        tokens = fl.insert(tokens, params["shared_prompts"])
    return fl.linear(
        vit.pool(vit.blocks(tokens, weights=weights, read="pooled"), weights), params["head"]
    )


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the loss [K, B] of the module's docstring, and report its first two terms.

    With x' = (1 - lambda) x, it is (1 - lambda) L(x', y) + lambda L(x', y_g)
    + lambda (1 - lambda) x_g . dL(x', y)/dx'.
    """
    image, label = draw(task, received["constants"]["means"], clients, batch)
    ratio = task.options.ratio
    weights = params.get("weights")
    with sdpa_kernel(SDPBackend.MATH):  # other kernels have no second derivative
        faded = (1 - ratio) * batch.images  # x': [K, B, H, W, channels]
        tokens = task.backbone.embed(faded, weights)  # [K, B, T, d]
        # what lambda x_g adds to the tokens
        change = task.backbone.embed(faded + ratio * image[:, None], weights) - tokens
        tokens = tokens if tokens.requires_grad else tokens.requires_grad_()
        chances = logits_of_tokens(task, params, tokens).log_softmax(-1)  # [K, B, C]
        # the three terms; `slope` is the gradient of the first with respect to the tokens
        own = (1 - ratio) * F.nll_loss(chances.mT, batch.labels, reduction="none")
        (slope,) = torch.autograd.grad(own.sum(), tokens, create_graph=True)
        mixed = own - ratio * (chances * label[:, None]).sum(-1)
        return mixed + (slope * change).sum((-2, -1)), {"reported_loss": mixed}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    first = received["constants"]["means"]["images"].shape[1] == 0  # nobody has sent means yet
    mixed = fl.model_loss if first else loss
    updates = fl.make_updates(fl.train_locally(task, mixed, received, clients), clients)
    for client, update in zip(clients.ids, updates, strict=True):
        update.payload["means"] = own_means(task, client)
    return updates


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    means = {name: value.clone() for name, value in server["means"].items()}
    for update in updates:
        means["images"][update.client] = update.payload["means"]["images"]
        means["labels"][update.client] = update.payload["means"]["labels"]
        means["known"][update.client] = True
    return {"params": fl.mean(updates, task.options.weighted), "means": means}


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return fl.model_logits(task, received["params"], batch)  # [K, B, C]
