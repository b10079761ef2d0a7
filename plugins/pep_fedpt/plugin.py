"""PEP-FedPT: class prompts mixed per image, by prototypes and the client's class priors.

Yashwanth et al., "Prompt Estimation from Prototypes for Federated Prompt Tuning of Vision
Transformers". Equation numbers are the paper's. Where the paper leaves a choice open:

- A class without prototype (mu = 0) has cosine 0; a class the client does not hold has weight 0.
- At the later blocks the mixed prompt takes the slot of the earlier one (Eq. 7 carries one m).
- The warm start divides by |S_0|, classes that nobody held counting as zeros (Eq. 19).
- Prototypes are taken over the client's whole training set under the round's global parameters,
  before training (Algorithm 1, line 32), and are constants while training; gradients do flow
  through the class token into the shared prompts.
- Prototypes are updated at the *end* of each window of R rounds, as the text of Section 4.2 has
  it; Algorithm 1 tests t mod R = 0.
- The head has no bias and starts at zero; decay of the learning rate, batch size, weight decay,
  rho and R are not reported (see method.toml).
- A held-out client uses the global state and its own class priors, without training; the server
  model alone (clients = None) takes all classes alike.
"""

import torch
import torch.nn.functional as F

from fedloom.engine import class_means, hookimpl, insert, local_sgd, mean, replace, uploads
from fedloom.errors import FedLoomError


@hookimpl
def init_server(task):
    vit, options = task.backbone, task.options
    if max(options.blocks) > vit.depth:
        raise FedLoomError(f"pep_fedpt: option blocks {options.blocks}: the ViT has {vit.depth}")
    params = {
        "head": vit.head(task.num_classes),
        "shared_prompts": vit.prompts(options.shared_prompts, task.generator("shared prompts")),
    }
    if not options.ccmp:
        return {"params": params}
    params["class_prompts"] = vit.prompts(task.num_classes, task.generator("class prompts"))
    chosen = [j - 1 for j in sorted(options.blocks)]
    prototypes = task.prototypes[chosen]  # [S, C, d], of cls_{j-1} for the S blocks j
    return {
        "params": params,
        "constants": {"prototypes": prototypes},
        "window": _window(prototypes),
    }


def _window(prototypes):
    """Sum and number D_c of the uploads since the last update (Eq. 11)."""
    return {"sum": torch.zeros_like(prototypes), "count": torch.zeros_like(prototypes[..., :1])}


def mixing_weights(cls, prototypes, priors, tau):
    """Eq. 13-15: [K, B, C] from class tokens [K, B, d], prototypes [K, C, d], priors [K, C]."""
    cosine = F.normalize(cls, dim=-1) @ F.normalize(prototypes, dim=-1).mT
    return torch.softmax(cosine / tau + priors.log()[:, None], -1)


def prompted(task, params, received, clients, batch, until):
    """Tokens at the input of block `until`, and the class tokens at those of `blocks` till then.

    Shapes: [K, B, T, d], and a list of [K, B, d]. Block M + 1 stands for the classifier.
    """
    vit, options = task.backbone, task.options
    uniform = clients is None or not options.class_priors
    priors = torch.ones(1, task.num_classes).to(vit.device) if uniform else clients.priors
    tokens = insert(vit.embed(batch.images), params["shared_prompts"])  # Eq. 5
    seen = []
    for j in range(1, until + 1):
        if options.ccmp and j in options.blocks:
            cls, mu = tokens[..., 0, :], received["constants"]["prototypes"][:, len(seen)]
            weights = mixing_weights(cls, mu, priors, options.tau)
            mixed = (weights @ params["class_prompts"]).unsqueeze(-2)  # Eq. 6: [K, B, 1, d]
            tokens = replace(tokens, mixed) if seen else insert(tokens, mixed)  # Eq. 7
            seen.append(cls)
        if j < until:
            tokens = vit.block(j, tokens)
    return tokens, seen


def logits(task, params, received, clients, batch):
    tokens, _ = prompted(task, params, received, clients, batch, task.backbone.depth + 1)
    return task.backbone.classify(tokens, params["head"])  # Eq. 8


def loss(task, params, received, clients, batch):
    scores = logits(task, params, received, clients, batch)
    return F.cross_entropy(scores.mT, batch.labels, reduction="none")


@hookimpl
def client_update(task, received, clients):
    def class_tokens(clients, batch):
        until = max(task.options.blocks)
        _, seen = prompted(task, received["params"], received, clients, batch, until)
        return torch.stack(seen, -2)

    prototypes = class_means(task, clients, class_tokens) if task.options.ccmp else None  # Eq. 10
    updates = uploads(local_sgd(task, loss, received, clients), clients)
    if task.options.ccmp:
        for k, update in enumerate(updates):
            update.payload["prototypes"] = prototypes[k].clone()
    return updates


@hookimpl
def aggregate(task, server, updates):
    params = mean(updates)
    if not task.options.ccmp:
        return {"params": params}
    sent = torch.stack([u.payload["prototypes"] for u in updates])  # [K, S, C, d]
    present = (sent != 0).any(-1, keepdim=True)
    total = server["window"]["sum"] + sent.sum(0)
    count = server["window"]["count"] + present.sum(0)  # D_c
    old, window = server["constants"]["prototypes"], {"sum": total, "count": count}
    if task.round % task.options.period == 0:
        rho = torch.where(count > 0, task.options.momentum, 1.0)
        old = rho * old + (1 - rho) * total / count.clamp(min=1)  # Eq. 11-12
        window = _window(old)
    return {"params": params, "constants": {"prototypes": old}, "window": window}


@hookimpl
def predict(task, received, clients, batch):
    return logits(task, received["params"], received, clients, batch)
