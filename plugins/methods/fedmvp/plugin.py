"""FedMVP: prompts for an image, made from its patches and from texts that describe the classes.

Singha et al., "FedMVP: Federated Multimodal Visual Prompt Tuning for Vision-Language Models" (ICCV
2025). Clients share a network, the PromptFormer. In it, every patch of an image reads the features
of all attributes of all classes by cross-attention. The results are pooled to P prompts, which
enter the frozen image tower beside the patches. An image is compared with the mean features of each
class's attributes. A consistency term, weighted by alpha, keeps the image's features near those
without prompts. We could read only the abstract and the released code, and follow the code:

- The features of attributes have unit length. A linear layer maps them to the width d of the image
  tower. They are the values of the attention, and after a layer norm its keys. Patches with their
  positions, before the tower's first norm, are the queries after another layer norm. The attention
  has no skip connection. An MLP follows, as in FedTPG.
- Pooling takes the means of P runs of consecutive patches. Prompts pass the tower's first norm.
- A client trains among its own classes, with their attributes. To predict among other classes, the
  network gets the attributes of those classes.
- All clients have equal weights in the server's mean.

Choices that differ from the code:

- Every batch is a step. In the code, a client makes one step a round, with its last batch.
- The consistency term compares an image with itself. The code flips the whole batch half of the
  time.
- When a client's loss falls below 0.5, the code goes over to training low-rank additions around the
  attention. The server never uses them in tests, so they are left out here.
- In the paper, attributes come from a language model. Give them as the option `attributes`. Classes
  without attributes are described by hand-written `templates`.
- A client starts each round with a fresh optimiser.
"""

import math
from functools import partial

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


def descriptions(task: Task) -> tuple[Tensor, Tensor]:
    """Return the features [M, d'] of all M attributes, and their shares [C, M] in the classes.

    If a class has n attributes, the share of each of them in the class is 1 / n. All other shares
    are zero. So shares @ features is the mean feature of each class.


    Raises:
        FedLoomError: the attributes of a class are not a list of texts.
    """
    # the texts of every class
    texts = list[str]()
    counts = list[int]()
    for name in task.data.classes:
        own = task.options.attributes.get(name)
        if own is None:
            words = name.replace("_", " ")
            own = [template.replace("{}", words) for template in task.options.templates]
        if not isinstance(own, list) or not own or not all(isinstance(t, str) for t in own):
            raise fl.FedLoomError(
                f"fedmvp: options.attributes.{name} must be a list of texts, got {own!r}"
            )
        texts += own
        counts.append(len(own))

    # their features, all of a class with the same share
    features = task.backbone.encode(texts)
    rows = [torch.full((1, n), 1 / n) for n in counts]
    return features, torch.block_diag(*rows).to(features)


@fl.hookimpl
def init_server(task: Task) -> Tree:
    clip = task.backbone
    options = task.options
    generator = task.generator("network")
    d = clip.image_width
    d_text = clip.encode(["a"]).shape[1]
    if d % options.heads:
        raise fl.FedLoomError(
            f"fedmvp: options.heads: {options.heads} does not divide the image tower's width {d}"
        )

    draw = partial(fl.init_linear, d_text, generator=generator, device=clip.device)
    widen = {"weight": draw(d, d_text), "bias": draw(d)}
    return {"params": {"widen": widen, **fl.init_cross_attention(d, d, generator, clip.device)}}


def make_prompts(task: Task, params: Tree, features: Tensor, given: Tensor, batch: Batch) -> Tensor:
    """Return the prompts [K, B, P, d] that each client's network makes for images.

    Args:
        features: the features of all attributes [M, d'].
        given: bool [K, M], the attributes that a client's network reads.
    """
    patches = task.backbone.patch_embeddings(batch.images)  # [K, B, T, d]
    text = fl.apply_linear(features.expand(len(given), -1, -1), params["widen"])  # [K, M, d]
    # patches of all images of a client are the queries, [K, B T, d]
    read = fl.read_tokens(
        params, patches.flatten(1, 2), text, given, task.options.heads, values=text
    )
    shares = shares_of_patches(task.options.prompts, patches.shape[2]).to(read)
    return shares @ read.unflatten(1, patches.shape[1:3])


def shares_of_patches(prompts: int, patches: int) -> Tensor:
    """Return the shares [P, T] with which T patches enter the means of P consecutive runs.

    Run p begins at patch floor(p T / P) and ends before patch ceil((p + 1) T / P), so that two
    neighbours share a patch if P does not divide T. torch's `adaptive_avg_pool1d` computes the same
    means, but its backward pass has no deterministic form on a GPU.
    """
    shares = torch.zeros(prompts, patches)
    for p in range(prompts):
        begin = p * patches // prompts
        end = math.ceil((p + 1) * patches / prompts)
        shares[p, begin:end] = 1 / (end - begin)
    return shares


def features_and_logits(
    task: Task, params: Tree, described: tuple[Tensor, Tensor], own: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Return the features [K, B, d'] of images with prompts, and their logits [K, B, C].

    Args:
        described: features [M, d'] and shares [C, M], as `descriptions` returns them.
        own: bool [K, C], the classes whose attributes each client's network reads.
    """
    clip = task.backbone
    features, shares = described
    given = (own.to(shares) @ shares) > 0  # [K, M]
    prompts = make_prompts(task, params, features, given, batch)
    places = {1: {"input": lambda given, out: fl.insert(out, clip.first_norm(prompts))}}
    images, _ = clip.image_features(batch.images, inserts=places)
    return images, clip.logits(images, shares @ features)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy among the client's classes plus alpha (1 - cosine) [K, B].

    The cosine is between an image's features with prompts and without. Only the cross-entropy is
    reported.
    """
    own = clients.priors > 0  # [K, C]
    described = received["features"][0], received["shares"][0]
    images, scores = features_and_logits(task, params, described, own, batch)
    entropy = fl.cross_entropy_among(scores, batch.labels, own)
    distance = 1 - (images * batch.features).sum(-1)
    return entropy + task.options.weight * distance, {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    features, shares = (x.expand(len(clients), -1, -1) for x in descriptions(task))
    known = {**received, "features": features, "shares": shares}
    trained = fl.train_locally(task, loss, known, clients)
    guesses = fl.guessing_losses(clients.priors > 0)
    return fl.make_updates(trained, clients, metrics={"guessing_loss": guesses})


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    shape = len(batch.rows), task.num_classes
    everything = torch.ones(shape, dtype=torch.bool, device=batch.rows.device)
    return features_and_logits(task, received["params"], descriptions(task), everything, batch)[1]
