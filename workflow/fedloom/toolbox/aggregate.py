"""Build the uploads of a cohort."""

from collections.abc import Collection, Mapping

from torch import Tensor

from fedloom.common.tensors import Tree, unstack
from fedloom.federated.local_training import Trained
from fedloom.federated.task import Cohort, Update


def make_updates(
    trained: Trained,
    clients: Cohort,
    *,
    kept: Collection[str] = (),
    state: Tree | None = None,
    metrics: Mapping[str, Tensor] | None = None,
    **extras: Tensor,
) -> list[Update]:
    """Return one update per client that uploads its trained parameters.

    Args:
        kept: names of the parameters that the client keeps to itself instead of uploading them.
        state: tensors [K, ...] that the client keeps beside them.
        metrics: a number per client [K], by name, for clients.parquet.
        extras: tensors [K, ...] that are uploaded beside the parameters.
    """
    uploaded = {name: value for name, value in trained.params.items() if name not in kept}
    personal = {name: trained.params[name] for name in kept} | (state or {})
    numbers = {name: values.tolist() for name, values in (metrics or {}).items()}
    return [
        Update(
            payload=unstack({"params": uploaded, **extras}, k),
            client_state=unstack(personal, k),
            num_examples=examples,
            metrics={"train_loss": trained.loss[k]}
            | {name: values[k] for name, values in numbers.items()},
        )
        for k, examples in enumerate(clients.num_examples)
    ]
