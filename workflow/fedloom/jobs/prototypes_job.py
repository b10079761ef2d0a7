"""Compute the warm start of class prototypes from one round's sample of clients."""

import torch

from fedloom.common import tensor_files
from fedloom.common.receipts import check_receipt, read_receipt, write_receipt
from fedloom.data import loading
from fedloom.data.store import ImageStore
from fedloom.hooks.defaults import sample_clients
from fedloom.machine.device import prepare_cpu
from fedloom.planning import paths
from fedloom.planning.job_specs import PrototypesJob
from fedloom.toolbox.prototypes import warm_start


def run_job(job: PrototypesJob, threads: int) -> None:
    """Write the tensors `mean`, `spread`, `count` (see fedloom.toolbox.prototypes.warm_start)."""
    files = paths.data_inputs("prototypes", **vars(job))
    check_receipt(files["partition"])
    check_receipt(files["features"])

    # the training images of every client before the first round
    prepare_cpu(threads)
    facts = read_receipt(files["store"])
    images = ImageStore(files["store"], facts)
    cpu = torch.device("cpu")
    data = loading.load_partition(images, files["partition"], facts["classes"], cpu)
    data = data.for_round(1)

    # clients are drawn as if there were a round 0
    seed = job.seed if job.sampling is None else job.sampling
    holders = [client for client in data.participating if len(data.train[client])]
    chosen = sample_clients(holders, job.clients_per_round, seed, 0)
    rows = [torch.from_numpy(data.train[k]) for k in chosen]

    # class tokens at the inputs of all blocks
    inputs = tensor_files.tensor(files["features"], "inputs")  # [N, M, d]
    out = paths.path_for(paths.PROTOTYPES, **vars(job))
    tensor_files.save(out, warm_start(inputs, data.labels, rows, data.num_classes))
    write_receipt(out, clients=chosen)
