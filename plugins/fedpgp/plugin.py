"""FedPGP: a shared context plus a personal one of low rank, with a contrast between the two.

Cui et al., "Harmonizing Generalization and Personalization in Federated Prompt Learning", ICML
2024. A client's context is sigma + U V; sigma is averaged by training images, U [L, r] and V [r, d]
never leave it. Decisions:

- All three start at N(0, 0.02), U and V alike on all clients.
- The contrast is that of the released code, between embedded tokens: sigma is to be near to the
  hand-written prompt "X X ... X" (positive) and far from sigma + U V (negative), by the mean cosine
  over the context's tokens, in a two-way cross-entropy.
- A client that never trained uses the U and V that all begin with; the server's model is sigma.
"""

import torch
import torch.nn.functional as F

from fedloom.engine import first_context, hookimpl, local_sgd, mean, uploads


@hookimpl
def init_server(task):
    return {
        "params": {"sigma": first_context(task, task.options.length, "", task.generator("sigma"))}
    }


@hookimpl
def init_client(task, client):
    clip, options, generator = task.backbone, task.options, task.generator("low rank")
    draw = clip.context(options.rank, generator)  # [r, d]
    left = 0.02 * torch.randn(options.length, options.rank, generator=generator)
    return {"u": left.to(clip.device), "v": draw}


def personal(params):
    """The client's own context [K, L, d]."""
    return params["sigma"] + params["u"] @ params["v"]


def logits(task, context, batch):
    clip = task.backbone
    return clip.logits(batch.features, clip.text_features(context, task.data.classes))


def contrast(task, params):
    """The two-way cross-entropy of every client [K]."""
    written = task.backbone.words(" ".join("X" * task.options.length))  # [L, d]
    sigma = params["sigma"]
    near = F.cosine_similarity(written, sigma, dim=-1).mean(-1)
    far = F.cosine_similarity(personal(params), sigma, dim=-1).mean(-1)
    pair = torch.stack([near, far], -1) / task.options.temperature
    return -pair.log_softmax(-1)[..., 0]


def loss(task, params, received, clients, batch):
    scores = logits(task, personal(params), batch)
    losses = F.cross_entropy(scores.mT, batch.labels, reduction="none")
    return losses + task.options.mu * contrast(task, params)[:, None]


@hookimpl
def client_update(task, received, clients):
    start = received["params"] | clients.state
    trained = local_sgd(task, loss, received, clients, params=start)
    return uploads(trained, clients, kept=clients.state)


@hookimpl
def aggregate(task, server, updates):
    return {"params": mean(updates, weighted=True)}


@hookimpl
def predict(task, received, clients, batch):
    params = received["params"]
    context = params["sigma"] if clients.nobody else personal(params | clients.state)
    return logits(task, context, batch)
