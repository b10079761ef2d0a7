"""Every method on a CLIP trains on each family of CLIPs, or declares what its image tower lacks."""

import pytest
import torch

from clip_families import FAMILIES, frozen
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import leaves
from fedloom.contract.tiny_run import TinyRun, differences_of_trees
from fedloom.federated.evaluate import evaluate
from fedloom.hooks.manifest import discover_methods

METHODS = [name for name, plugin in discover_methods().items() if plugin.family == "clip"]
# families whose image tower has transformer blocks
WITH_BLOCKS = ("siglip", "siglip2")


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request):
    """Return the name of a family, and a backbone of it."""
    return request.param, frozen(request.param)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_a_round_or_needs_another_image_tower(name, backbone, tmp_path):
    family, clip = backbone
    plugin = discover_methods()[name]
    if "patches" in plugin.needs:
        assert not clip.has_patches, "planning refuses it, see tests/planning"
        return
    run = TinyRun(plugin, tmp_path, backbone=clip)
    if plugin.enters_image_tower and family not in WITH_BLOCKS:
        with pytest.raises(FedLoomError):  # planning refuses it before that
            run.after(1)
        return

    after = run.after(1)
    moved = differences_of_trees(run.start.server, after.server)
    moved |= differences_of_trees(run.start.clients, after.clients)
    assert any(difference > 0 for difference in moved.values()) == plugin.trained
    for path, value in (*leaves(after.server), *leaves(after.clients)):
        finite = torch.as_tensor(value).double().isfinite().all()
        assert finite, path
    assert evaluate(run.task.at(1), run.hooks, after)
