"""Answers under label shift: class shares where test labels are unlike those of training.

Each client answers two sets of test images: its own, whose labels are like those of its training
images, and a balanced set with equally many images of each class. It answers each set three times:

- `none`: the method's logits as they are;
- `own`: with the shares of the client's training images, as `test: own` adds them;
- `estimated`: with shares that are estimated from the test images alone, without their labels, by
  expectation maximisation (Saerens et al., Neural Computation 2002, Eq. 2.9).

The estimate needs calibrated probabilities. So the logits are first divided by a temperature, and
get a bias for each class (bias-corrected temperature scaling: Alexandari et al., ICML 2020). Both
are fitted once, for all clients, on the training images of the held-out clients, on which nobody
trains. Without held-out clients, the logits stay as they are.
"""

from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.toolbox import Answers, Task

# the number of images of each class in the balanced set
IMAGES_OF_A_CLASS = 10
# steps of expectation maximisation
STEPS = 100
COLUMNS = ("client_id", "participating", "labels", "shares", "accuracy")


def fit_calibration(logits: Tensor, labels: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the temperature T and the biases b [C] that suit labelled images best.

    They minimise the mean cross-entropy of logits / T + b + offsets, plus (log² T + |b|²) / 2n,
    which keeps them finite where every image is classified correctly, or a class has no image.

    Args:
        logits: [n, C], float64.
        labels: [n].
        offsets: for each image, the log shares of the client that has it [n, C], float64.
    """
    log_temperature = torch.zeros((), dtype=torch.float64, requires_grad=True)
    biases = torch.zeros_like(logits[0], requires_grad=True)
    optimizer = torch.optim.LBFGS([log_temperature, biases], line_search_fn="strong_wolfe")

    def loss() -> float:
        """Compute the loss and its gradients."""
        optimizer.zero_grad()
        scores = logits / log_temperature.exp() + biases + offsets
        size = log_temperature.square() + biases.square().sum()
        value = F.cross_entropy(scores, labels) + size / (2 * len(labels))
        value.backward()
        return float(value.detach())

    with torch.enable_grad():
        # each call takes 20 steps
        for _ in range(10):
            optimizer.step(loss)
    return log_temperature.detach().exp(), biases.detach()


def calibrate(unused: dict[int, tuple[Tensor, Tensor]], offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the temperature and the biases [C] that suit images on which nobody trained.

    Without such images, return 1 and zeros.

    Args:
        unused: the logits [n, C] and labels [n] of each client's unused images.
        offsets: log shares of every client of the study [clients, C], float64.
    """
    logits = torch.cat([logits for logits, _ in unused.values()])
    labels = torch.cat([labels for _, labels in unused.values()])
    if not len(labels):
        return torch.ones((), dtype=torch.float64), torch.zeros_like(offsets[0])
    counts = torch.tensor([len(labels) for _, labels in unused.values()])
    return fit_calibration(logits, labels, offsets[[*unused]].repeat_interleave(counts, 0))


def estimated_shares(logits: Tensor) -> Tensor:
    """Return the class shares [C] that make unlabelled images most likely.

    Args:
        logits: [n, C], float64: their softmax is the posterior of an image under equal shares.
    """
    shares = torch.full_like(logits[0], 1 / logits.shape[1])
    for _ in range(STEPS):
        # a class whose share has become 0 keeps it
        posteriors = (logits + shares.log()).softmax(1)
        shares = posteriors.mean(0)
    return shares


def balanced_images(task: Task, client: int) -> np.ndarray:
    """Return rows of test images, IMAGES_OF_A_CLASS of each class, drawn for a client; sorted.

    A class with fewer test images gives all of them.
    """
    images = np.unique(np.concatenate(task.data.test))
    labels = task.data.labels.cpu().numpy()[images]
    order = torch.randperm(len(images), generator=task.generator("balanced test set", client))
    chosen = []
    for class_number in np.unique(labels):
        of_class = order[torch.from_numpy(labels[order] == class_number)]
        chosen.append(images[of_class[:IMAGES_OF_A_CLASS].numpy()])
    return np.sort(np.concatenate(chosen))


def mean_accuracy_of_classes(predicted: Tensor, labels: Tensor) -> float:
    """Return the accuracy of each class among the labels [n], averaged over these classes."""
    hits = (predicted == labels).double()
    of_classes = [hits[labels == class_number].mean() for class_number in labels.unique()]
    return float(torch.stack(of_classes).mean())


def gather(answers: Answers, images: list[np.ndarray]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the logits [n, C], without offsets and in float64, and labels [n] of each client."""
    logits_by_client: dict[int, list[Tensor]] = {}
    labels_by_client: dict[int, list[Tensor]] = {}
    for clients, batch, logits in answers(images):
        if clients.logit_offsets is not None:
            logits = logits - clients.logit_offsets[:, None]
        for k, client in enumerate(clients.ids):
            mask = batch.mask[k]
            logits_by_client.setdefault(client, []).append(logits[k][mask].double().cpu())
            labels_by_client.setdefault(client, []).append(batch.labels[k][mask].cpu())

    found = {}
    for client, parts in logits_by_client.items():
        found[client] = (torch.cat(parts), torch.cat(labels_by_client[client]))
    return found


def answers_under_label_shift(task: Task, answers: Answers, offsets: Tensor) -> dict[str, list]:
    """Return the columns of the artefact `label_shift`: a row per client, set and shares.

    Args:
        answers: the function that the hook `audit_table` gets.
        offsets: what `test: own` adds to the logits of every client of the study [clients, C].
    """
    data = task.data
    offsets = offsets.double().cpu()

    # each client answers its two sets, and a held-out client its training images, too
    nothing = np.array([], np.int64)
    images = []
    for client, own in enumerate(data.test):
        unused = nothing if client in data.position else data.train[client]
        images.append([own, balanced_images(task, client), unused])
    answered = gather(answers, [np.concatenate(parts) for parts in images])

    # the same by set, and by client: (logits, labels)
    by_set: dict[str, dict[int, tuple[Tensor, Tensor]]] = {"own": {}, "balanced": {}, "unused": {}}
    for client, (logits, labels) in sorted(answered.items()):
        lengths = [len(part) for part in images[client]]
        parts = zip(logits.split(lengths), labels.split(lengths), strict=True)
        for by_client, part in zip(by_set.values(), parts, strict=True):
            by_client[client] = part
    unused = by_set.pop("unused")
    temperature, biases = calibrate(unused, offsets)

    columns: dict[str, list] = {name: [] for name in COLUMNS}
    for client, name in product(sorted(answered), by_set):
        logits, labels = by_set[name][client]
        calibrated = logits / temperature + biases
        predicted = {
            "none": logits.argmax(1),
            "own": (logits + offsets[client]).argmax(1),
            "estimated": (calibrated + estimated_shares(calibrated).log()).argmax(1),
        }
        for shares, classes in predicted.items():
            # own test images count alike; in the balanced set, classes do
            accuracy = float((classes == labels).double().mean())
            if name == "balanced":
                accuracy = mean_accuracy_of_classes(classes, labels)
            row = (client, client in data.position, name, shares, accuracy)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    return columns
