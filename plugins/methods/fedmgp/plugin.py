"""FedMGP: groups of text and image prompts, and clients share the nearest groups.

Bo et al., "FedMGP: Personalized Federated Learning with Multi-Group Text-Visual Prompts" (NeurIPS
2025). A client has G groups. Each group is a context before the class names, and prompts beside an
image's patches. The logits are the mean over groups. The loss is the mean of the groups'
cross-entropies plus a diversity term between groups.

1. After training, a client draws s groups and sends them. A group is more likely to be drawn if it
   has a higher cosine with a shared group.
2. The server has s shared groups. The first is the mean of the groups that clients drew first, and
   so on.
3. The shared groups replace the groups that a client sent. Its other groups stay with it.

Logits and losses are those of Section 3.2.1. The draw is that of Section 3.2.2 and Algorithm 1. We
read a text version of the paper without its formulas, and took from the released code:

- The distance of two groups is the mean absolute difference of their text features over classes,
  and of their image features over images. Both are averaged over pairs of groups, and halved.
  Section 3.2.1 minimises the cosine of two groups instead. The numbers of Table 1 are with the
  difference, which Table 16 calls L1. Here the distance is subtracted from the loss, so that groups
  become different, as Section 3.2.1 wants. `variant: released` adds it. The code takes the absolute
  value of what should be subtracted, and so pulls groups together.
- The text prompts and the image prompts of a group are drawn separately, each by their largest
  cosine with a shared one, without replacement. Both draws use the same random stream, so that
  pairs mostly stay together.
- All clients have equal weights. Section 3.2.2 weights them by their images. Image prompts are
  beside the patches from the start, and pass the norm before the image tower's first block.
- Contexts start from the embedding of the first words plus noise of standard deviation 0.01, which
  differs between groups. Words that do not fit into the context stay before every class's name.
  Image prompts start from N(0, 0.02²). All clients start with the same groups.
- A client that comes back gets the shared groups of the last round. In the released code it gets
  those of the last round that it took part in. A client that never trained has the shared groups in
  turn. The server's model has each of them once.
- Every client starts a round with a fresh optimiser. The optimiser of the released code goes on
  through all clients and rounds, including its momentum.
"""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]

KINDS = ("text", "image")
NOISE = 0.01  # standard deviation of contexts around the embedded words


def fresh_groups(task: Task) -> Tree:
    """Draw G contexts [G, L, d] and G sets of image prompts [G, L, d_image]."""
    clip = task.backbone
    options = task.options
    behind = replace(task.data, classes=tuple(texts_after_context(task)))
    fl.check_lengths(replace(task, data=behind), [options.length], "")
    generator = task.generator("groups")
    drawn = [clip.init_context(options.length, generator) for _ in range(options.groups)]
    text = torch.stack(drawn)  # [G, L, d], of standard deviation 0.02
    known = clip.embed_text(options.words)[: options.length] if options.words else text[0, :0]
    text[:, : len(known)] *= NOISE / 0.02
    text[:, : len(known)] += known
    shape = options.groups, options.length, clip.image_width
    return {"text": text, "image": (0.02 * torch.randn(shape, generator=generator)).to(clip.device)}


@fl.hookimpl
def init_server(task: Task) -> Tree:
    options = task.options
    if options.shared > options.groups:
        raise fl.FedLoomError(
            f"fedmgp: options.shared must be at most options.groups, {options.groups}, got "
            f"{options.shared}; lower it"
        )
    return {"params": {kind: value[: options.shared] for kind, value in fresh_groups(task).items()}}


def client_state(task: Task, groups: Tree) -> Tree:
    """Return the state of a client that has these groups and has not sent a group yet.

    It has `text` [G, L, d] and `image` [G, L, d_image]. In `text_sent` and `image_sent` [s, G],
    row i has a one at the group that the client last sent as the i-th of its s groups.
    """
    sent = torch.zeros(task.options.shared, task.options.groups, device=task.backbone.device)
    return groups | {f"{kind}_sent": sent.clone() for kind in KINDS}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return client_state(task, fresh_groups(task))


@fl.hookimpl
def unseen_client_state(task: Task, client: int, received: Tree) -> Tree:
    turns = torch.arange(task.options.groups) % task.options.shared
    return client_state(task, {kind: value[turns] for kind, value in received["params"].items()})


def merge(received: Tree, state: Tree) -> Tree:
    """Return the clients' groups {kind: [K, G, L, d]}.

    The received shared groups take the place of the groups that a client sent last.
    """
    groups = {}
    for kind in KINDS:
        own = state[kind]  # [K, G, L, d]
        sent = state[f"{kind}_sent"]  # [K, s, G]
        shared = torch.einsum("ksg,ksld->kgld", sent, received["params"][kind])
        groups[kind] = torch.where(sent.any(1)[..., None, None], shared, own)
    return groups


def texts_after_context(task: Task) -> list[str]:
    """Return the text after the context, for each class: words that do not fit, and the name."""
    words = task.options.words.split()
    clip = task.backbone
    while words and len(clip.embed_text(" ".join(words))) > task.options.length:
        words.pop()
    rest = task.options.words.split()[len(words) :]
    return [" ".join([*rest, name]) for name in task.data.classes]


def features(task: Task, groups: Tree, batch: Batch, classes: list[str]) -> tuple[Tensor, Tensor]:
    """Compute the features of images [K, G, B, d_joint] and texts [K, G, C, d_joint] in each group.

    `classes` are the texts after the context, as `texts_after_context` returns them.
    """
    clip = task.backbone
    prompts = clip.first_norm(groups["image"])  # [K, G, L, d_image]
    images = [
        clip.image_features(
            batch.images, inserts={1: {"input": fl.deep_prompts(prompts[:, g], first=True)}}
        )[0]
        for g in range(prompts.shape[1])
    ]
    return torch.stack(images, 1), clip.text_features(groups["text"], classes)


def distance(x: Tensor) -> Tensor:
    """Compute the distance [K, N] between G > 1 groups, for each of N texts or images.

    It is the mean absolute difference of their features x [K, G, N, d], over entries and over pairs
    of groups.
    """
    count = x.shape[1]
    differences = (x[:, :, None] - x[:, None]).abs().mean(-1)  # [K, G, G, N]
    return differences.sum((1, 2)) / (count * (count - 1))


def loss(
    task: Task,
    params: Tree,
    received: Tree,
    clients: Cohort,
    batch: Batch,
    classes: list[str],
) -> Tensor | tuple[Tensor, Tree]:
    """Compute the groups' mean cross-entropy minus the weighted distance of groups [K, B].

    The distance is the mean of those of the text features and of the image features.
    `variant: released` adds it. Only the cross-entropy is reported. A single group has no
    distance.
    """
    options = task.options
    images, texts = features(task, params, batch, classes)
    by_group = task.backbone.logits(images, texts)  # [K, G, B, C]
    losses = [fl.cross_entropy(logits, batch.labels) for logits in by_group.unbind(1)]
    entropy = torch.stack(losses).mean(0)
    if options.groups == 1:
        return entropy
    diversity = (distance(texts).mean(1)[:, None] + distance(images)) / 2  # [K, B]
    sign = 1 if options.variant == "released" else -1
    return entropy + sign * options.weight * diversity, {"reported_loss": entropy}


def cosines(groups: Tensor, shared: Tensor) -> Tensor:
    """Return the largest cosine [K, G] of each group with a shared group.

    Args:
        groups: the clients' groups [K, G, L, d].
        shared: the received shared groups [K, s, L, d].
    """
    own = F.normalize(groups.flatten(2), dim=-1)
    others = F.normalize(shared.flatten(2), dim=-1)
    return (own @ others.mT).amax(-1)


def draw(task: Task, client: int, similar: Tensor) -> Tensor:
    """Draw s of G groups without replacement, with odds exp(cosine / temperature).

    In round 1, all groups have equal odds.

    Args:
        similar: the groups' largest cosines with a shared group [G].

    Returns:
        [s, G], where row i has a one at the i-th group that was drawn.
    """
    options = task.options
    if task.round == 1:
        similar = torch.zeros_like(similar)
    likely = (similar / options.temperature).softmax(-1).cpu()
    drawn = torch.multinomial(likely, options.shared, generator=task.generator("draw", client))
    return F.one_hot(drawn, options.groups).to(similar)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = merge(received, clients.state)
    # the names are made only once, since a GPU would wait for them in every step
    by_names = partial(loss, classes=texts_after_context(task))
    trained = fl.train_locally(task, by_names, received, clients, params=start)
    uploaded = {}
    kept = dict(trained.params)
    for kind in KINDS:
        groups = trained.params[kind]  # [K, G, L, d]
        similar = cosines(groups, received["params"][kind])
        drawn = [draw(task, k, own) for k, own in zip(clients.ids, similar, strict=True)]
        kept[f"{kind}_sent"] = torch.stack(drawn)  # [K, s, G]
        uploaded[kind] = torch.einsum("ksg,kgld->ksld", kept[f"{kind}_sent"], groups)
    return fl.make_updates(replace(trained, params=uploaded), clients, state=kept)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    groups = received["params"]
    if not clients.is_server_model:
        groups = merge(received, clients.state)
    images, texts = features(task, groups, batch, texts_after_context(task))
    return task.backbone.logits(images, texts).mean(1)  # the mean over groups [K, B, C]
