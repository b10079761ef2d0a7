"""pfl-research's simulation in one process, with its FederatedAveraging and its own SGD."""

from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from peer_arms.model import model_of
from peer_arms.world import Case, Pace, World, begin


class Learner(nn.Module):
    """A model with the loss that pfl-research asks of it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Compute the mean loss of a batch."""
        return F.cross_entropy(self.model(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """Count images; pfl-research evaluates the first round, and the others do not."""
        return {"images": Weighted(len(labels), 1)}


class KeepPace(TrainingProcessCallback):
    """Wait for one's turn between the rounds."""

    def __init__(self, pace: Pace, case: Case, learner: Learner):
        self.pace, self.case, self.learner = pace, case, learner

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start round 1."""
        self.pace.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """End a round, and start the next if there is one."""
        self.pace.stop(self.case, central_iteration + 1, self.learner.model.state_dict())
        if central_iteration + 1 < self.pace.world.rounds:
            self.pace.start()
        return False, Metrics()


def _data(world: World, case: Case) -> FederatedDataset:
    """Return a dataset whose users are the clients of the rounds, in turn."""
    inputs, labels = world.inputs(case.method), world.tensors["labels"]

    def user(key: tuple[int, int]) -> PyTorchTensorDataset:
        rows = world.order(*key)
        return PyTorchTensorDataset((inputs[rows], labels[rows]), user_id=str(key))

    users = product(range(1, world.rounds + 1), range(world.clients))
    return FederatedDataset(user, users.__next__)


def _train(pace: Pace, case: Case) -> None:
    """Train one case."""
    world = pace.world
    learner = Learner(model_of(world, case.method, world.first(case.method)))
    model = PyTorchModel(
        learner,
        local_optimizer_create=partial(torch.optim.SGD, momentum=world.momentum),
        central_optimizer=torch.optim.SGD(learner.parameters(), lr=1.0),
    )
    data = _data(world, case)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=world.rounds,
            evaluation_frequency=world.rounds,
            train_cohort_size=world.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByUser()]),
        model,
        NNTrainHyperParams(
            local_batch_size=case.batch,
            local_num_epochs=1,
            local_learning_rate=world.lr,
            local_max_grad_norm=world.clip,
        ),
        callbacks=[KeepPace(pace, case, learner)],
    )


def main() -> None:
    """Train all cases."""
    pace = begin("pfl")
    for case in pace.world.cases:
        _train(pace, case)


if __name__ == "__main__":
    main()
