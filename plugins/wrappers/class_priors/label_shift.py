"""Answers under label shift: class shares where test labels are unlike those of training.

Each client answers two sets of test images: its own, whose labels are like those of its training
images, and a set in which all classes are alike. It answers each set three times:

- `none`: the method's logits as they are;
- `own`: with the shares of the client's training images, as `test: own` adds them;
- `estimated`: with shares that are estimated from the test images alone, without their labels, by
  expectation maximisation (Saerens et al., Neural Computation 2002, Eq. 2.9). This needs
  probabilities that are calibrated. So the logits are first divided by a temperature that fits the
  client's training images (Alexandari et al., ICML 2020; the biases by class, which they fit as
  well, are left out, since a client has too few images for them).
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.toolbox import Answers, Task

# the number of test images of each class in the set in which all classes are alike
IMAGES_OF_A_CLASS = 10
# steps of expectation maximisation
STEPS = 100
COLUMNS = ("client_id", "participating", "labels", "shares", "accuracy")
# ends of the temperatures that are tried
TEMPERATURES = (0.05, 20.0)


def fitted_temperature(logits: Tensor, labels: Tensor, offsets: Tensor) -> float:
    """Return the temperature T with the least mean cross-entropy of logits / T + offsets.

    Args:
        logits: [n, C], float64.
        labels: [n].
        offsets: log shares of the client [C], float64.
    """

    from scipy.optimize import minimize_scalar  # slow to import

    def loss(exponent: float) -> float:
        """Return the cross-entropy at the temperature exp(exponent)."""
        return float(F.cross_entropy(logits / math.exp(exponent) + offsets, labels))

    ends = tuple(math.log(end) for end in TEMPERATURES)
    return math.exp(minimize_scalar(loss, bounds=ends, method="bounded").x)


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
    everyone = range(len(data.test))
    balanced = [balanced_images(task, client) for client in everyone]

    # a client without training images answers its test images instead, and fits no temperature
    fitted = {client for client in everyone if len(data.train[client])}
    images = [data.train[client] if client in fitted else data.test[client] for client in everyone]
    of_training = gather(answers, images)
    by_labels = {"own": gather(answers, data.test), "equal": gather(answers, balanced)}

    columns: dict[str, list] = {name: [] for name in COLUMNS}
    for client in sorted(by_labels["own"]):
        log_shares = offsets[client].double().cpu()
        temperature = 1.0
        if client in fitted:
            temperature = fitted_temperature(*of_training[client], log_shares)
        for name, by_client in by_labels.items():
            logits, labels = by_client[client]
            calibrated = logits / temperature
            predicted = {
                "none": logits.argmax(1),
                "own": (logits + log_shares).argmax(1),
                "estimated": (calibrated + estimated_shares(calibrated).log()).argmax(1),
            }
            for shares, classes in predicted.items():
                # own test images count alike; of the other set, classes do
                accuracy = float((classes == labels).double().mean())
                if name == "equal":
                    accuracy = mean_accuracy_of_classes(classes, labels)
                row = (client, client in data.position, name, shares, accuracy)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
    return columns
