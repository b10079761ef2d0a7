"""GMM-PT: the server returns the centroids of a Gaussian mixture over all clients' prompts.

It is a baseline of Weng et al., "Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced
Data" (PFPT, NeurIPS 2024), Tables 1-4. The head is averaged as in FedAvg. With the option
`selection` it is GMM-PT+ of Tables 6-7. Choices where the paper leaves one open:

- Covariances are diagonal, like PFPT's Gaussians (Eq. 4). A full covariance of d x d cannot be
  estimated from the hundred prompts of a round.
- `variant: released` is scikit-learn's Bayesian mixture with full covariances. Its prior counts as
  one more prompt in every cluster, at the mean of all prompts. So prompts move closer together from
  round to round.
- Both variants start from k-means as many times as there are components, and keep the best fit.
- There are as many components as prompts. With selection (as in fedavg_pt), there are as many as
  prompts of the pool that were picked. Prompts that no client picked stay as they are.
- A ViT does not depend on the order of prompts. The centroids are assigned to the old prompts so
  that the total distance is smallest (linear assignment). So a prompt can be followed over rounds.
- The samples of a mixture have no weights, so `weighted` concerns only the head.
"""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    params = fl.init_params(task)
    return {"params": params, "history": fl.start_history(params["shared_prompts"])}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.train_picked(task, received, clients)


def centroids(task: Task, uploaded: Tensor, old: Tensor) -> Tensor:
    """Fit a Gaussian mixture to uploaded prompts [N, d], and return its P centroids [P, d].

    P is the number of `old` prompts [P, d]. A centroid has the row of the old prompt to which it is
    assigned, so that the sum of the distances is smallest.
    """
    points = uploaded.double().cpu().numpy()
    count = len(old)
    seed = int(torch.randint(2**31, (1,), generator=task.generator("mixture")))
    if task.options.variant == "released":
        mixture = BayesianGaussianMixture(n_components=count, n_init=count, random_state=seed)
    else:
        mixture = GaussianMixture(count, covariance_type="diag", n_init=count, random_state=seed)
    means = np.asarray(mixture.fit(points).means_)  # [P, d]
    _, order = linear_sum_assignment(cdist(old.double().cpu().numpy(), means))
    return torch.from_numpy(means[order]).to(old)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    updates = sorted(updates, key=lambda update: update.client)  # k-means depends on their order
    params = fl.mean_of_picked(server["params"], updates, task.options.weighted)
    prompts = server["params"]["shared_prompts"].clone()
    uploaded = torch.cat([u.payload["params"]["shared_prompts"] for u in updates])  # [N, d]
    picked = torch.arange(len(prompts))
    if "indices" in updates[0].payload:
        picked = torch.cat([u.payload["indices"] for u in updates]).unique()
    prompts[picked] = centroids(task, uploaded, prompts[picked])
    history = fl.extend_history(task, server["history"], prompts)
    return {"params": params | {"shared_prompts": prompts}, "history": history}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.predict_picked(task, received, clients, batch)  # [K, B, C]


@fl.hookimpl
def artefact(server: Tree) -> dict[str, list]:
    return fl.history_rows(server["history"])
