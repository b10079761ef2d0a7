"""FedTPG: the context before the class names is generated from the class names.

Qiu et al., "Federated Text-driven Prompt Generation for Vision-Language Models" (ICLR 2024).
Clients share a network that makes a context of m tokens from the text features T [n, d'] of n class
names: m learned queries read T by cross-attention, and an MLP follows (Section 3.2). A client
trains it on the task of its own classes, with their names and among them; the server averages the
networks (Algorithm 1). To predict among other classes, the network is given those classes' names.
Choices, by the released code where the paper leaves one open:

- Queries and T go through layer norms; keys, values and queries have biases; the output of the
  attention, which has no skip connection, goes through x + MLP(x), where the MLP is a layer norm,
  a linear layer to 8 d, a gate (one half times the GELU of the other) and a linear layer to d.
  Self-attention behind it, of which the released configuration has none, is left out.
- T are the features of the bare names, of unit length.
- Projections of the attention are drawn as torch's MultiheadAttention draws them (Glorot's uniform,
  of the three as one matrix where d' = d), its output and the MLP as torch draws linear layers,
  queries from N(0, 0.02^2).
- Every round starts with a fresh optimiser; a client of the released code keeps its own, momentum
  included, and its cosine counts the rounds that it took part in.
- With `names: all`, clients train among all classes, with the context of all names.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, CLIPTask, Cohort, Tree, Update


def name_features(task: CLIPTask) -> Tensor:
    """Compute the features T [C, d'] of the bare class names."""
    return task.backbone.zero_shot(task.data.classes, ["{}"])


@fl.hookimpl
def init_server(task: CLIPTask) -> Tree:
    clip, options = task.backbone, task.options
    fl.check_lengths(task, [options.length], "")
    d, d_text = clip.width, name_features(task).shape[1]
    if d % options.heads:
        raise fl.FedLoomError(
            f"fedtpg: options.heads: {options.heads} does not divide the text tower's width {d}"
        )
    generator = task.generator("network")

    def uniform(bound: float, *shape: int) -> Tensor:
        return (bound * (2 * torch.rand(shape, generator=generator) - 1)).to(clip.device)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, device=clip.device)

    def norm(width: int) -> Tree:
        return {"scale": torch.ones(width, device=clip.device), "shift": zeros(width)}

    # rows and columns drawn at once: queries, and keys or values
    fan_q, fan = (4 * d, 4 * d) if d_text == d else (2 * d, d + d_text)
    params = {
        "queries": clip.init_context(options.length, generator),  # [m, d]
        "norm_queries": norm(d),
        "norm_names": norm(d_text),
        "norm_mlp": norm(d),
        "q": {"weight": uniform((6 / fan_q) ** 0.5, d, d), "bias": zeros(d)},
        "k": {"weight": uniform((6 / fan) ** 0.5, d, d_text), "bias": zeros(d)},
        "v": {"weight": uniform((6 / fan) ** 0.5, d, d_text), "bias": zeros(d)},
        "out": {"weight": uniform(d**-0.5, d, d), "bias": zeros(d)},
        "up": {"weight": uniform(d**-0.5, 8 * d, d), "bias": uniform(d**-0.5, 8 * d)},
        "down": {
            "weight": uniform((4 * d) ** -0.5, d, 4 * d),
            "bias": uniform((4 * d) ** -0.5, d),
        },
    }
    return {"params": params}


def apply_linear(x: Tensor, layer: Tree) -> Tensor:
    """Return W x + b [K, n, o] of x [K, n, i], W [K, o, i] and b [K, o]."""
    return x @ layer["weight"].mT + layer["bias"][:, None]


def apply_norm(x: Tensor, norm: Tree) -> Tensor:
    """Return the layer norm [K, n, d] of x [K, n, d] with scale and shift [K, d]."""
    return F.layer_norm(x, x.shape[-1:]) * norm["scale"][:, None] + norm["shift"][:, None]


def generate(params: Tree, names: Tensor, given: Tensor, heads: int) -> Tensor:
    """Return the context [K, m, d] that the clients' networks make of class names.

    Args:
        names: text features T [C, d'].
        given: which names a client's network reads [K, C].
    """
    p = SimpleNamespace(**params)
    text = apply_norm(names.expand(len(given), -1, -1), p.norm_names)  # [K, C, d']
    asked = apply_norm(p.queries, p.norm_queries)  # [K, m, d]
    q, k, v = (
        apply_linear(x, layer).unflatten(-1, (heads, -1)).transpose(1, 2)  # [K, heads, ., d / h]
        for x, layer in ((asked, p.q), (text, p.k), (text, p.v))
    )
    read = F.scaled_dot_product_attention(q, k, v, attn_mask=given[:, None, None])
    x = apply_linear(read.transpose(1, 2).flatten(2), p.out)  # [K, m, d]
    value, gate = apply_linear(apply_norm(x, p.norm_mlp), p.up).chunk(2, -1)
    return x + apply_linear(value * F.gelu(gate), p.down)


def logits(task: CLIPTask, params: Tree, names: Tensor, given: Tensor, batch: Batch) -> Tensor:
    """Compute the logits [K, B, C] of images for all classes, under the generated contexts."""
    context = generate(params, names, given, task.options.heads)
    text = task.backbone.text_features(context, task.data.classes)  # [K, C, d']
    return task.backbone.logits(batch.features, text)


def loss(task: CLIPTask, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] among the classes that the client trains with."""
    given = torch.ones_like(clients.priors, dtype=torch.bool)
    if task.options.names == "own":
        given = clients.priors > 0  # [K, C]
    scores = logits(task, params, received["names"][0], given, batch)
    return fl.cross_entropy(scores.masked_fill(~given[:, None], float("-inf")), batch.labels)


@fl.hookimpl
def client_update(task: CLIPTask, received: Tree, clients: Cohort) -> list[Update]:
    known = {**received, "names": name_features(task).expand(len(clients), -1, -1)}
    return fl.make_updates(fl.train_locally(task, loss, known, clients), clients)


@fl.hookimpl
def predict(task: CLIPTask, received: Tree, batch: Batch) -> Tensor:
    shape = len(batch.rows), task.num_classes
    everything = torch.ones(shape, dtype=torch.bool, device=batch.rows.device)
    return logits(task, received["params"], name_features(task), everything, batch)
