"""`with_classes`: a model on a CLIP chooses among the names that it is given."""

import re

import pytest
import torch

from fedloom.common.errors import FedLoomError
from fedloom.contract import tiny
from fedloom.contract.tiny_run import TinyRun
from fedloom.hooks.manifest import TEST_SETS, discover_methods, find_method
from fedloom.models.classifier import Classifier
from fedloom.models.content import content_of
from fedloom.models.images import Preparation
from fedloom.models.model import Model
from fedloom.models.prepared import prepare_model

SIDE = tiny.TINY_SIDE
NAMING = [
    name
    for name, plugin in discover_methods().items()
    if TEST_SETS in plugin.all_artefacts(plugin.complete_options({}))
]
PIXELS = torch.randint(
    256, (5, 1, SIDE, SIDE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def model_of(method: str, folder, *wrappers: str, client: int | None = None) -> Model:
    """Return the server's model, or that of a client, after two rounds of a tiny run."""
    plugin = find_method(method)
    make = {"vit": tiny.tiny_vit, "clip": tiny.tiny_clip}[plugin.family]
    run = TinyRun(plugin, folder, *map(find_method, wrappers), backbone=make())
    received, clients = prepare_model(run.task.at(2), run.hooks, run.after(2), client)
    module = Classifier(run.task.at(2), run.hooks, received, clients, (SIDE, SIDE, 1))
    prepare = Preparation(SIDE, SIDE, 1)
    return Model(content_of(module, tiny.tiny_job(plugin).spec, prepare, None), prepare, module)


@pytest.mark.parametrize("method", NAMING)
def test_the_order_of_names_is_the_order_of_logits(method, tmp_path):
    """Each name has the logit that it has among the classes of the training."""
    try:
        model = model_of(method, tmp_path)
        before = model.module(PIXELS)
    except FedLoomError:
        # without a server's model
        model = model_of(method, tmp_path, client=3)
        before = model.module(PIXELS)
    turned = model.with_classes(model.classes[::-1])
    assert turned.classes == model.classes[::-1]
    torch.testing.assert_close(turned.module(PIXELS).flip(-1), before, rtol=1e-5, atol=1e-5)

    # fewer and other names
    other = model.with_classes(["owl", "long delta"])
    assert other.module(PIXELS).shape == (5, 2)
    assert set(other.predict(PIXELS[0, 0].numpy(), 2)["class"]) == {"owl", "long delta"}
    assert torch.equal(model.module(PIXELS), before), "the first model stays as it was"


def test_logits_are_those_of_the_texts(tmp_path):
    """PromptFL puts its context in front of each name."""
    model = model_of("promptfl", tmp_path)
    names = ["owl", "newt", "bee"]
    clip = model.module.task.backbone
    context = model.content.tensors["received"]["params"]["context"]
    with torch.no_grad():
        images, _ = clip.image_features(PIXELS.movedim(1, -1))
        expected = clip.logits(images, clip.text_features(context, names))
    answers = model.with_classes(names).module(PIXELS)
    torch.testing.assert_close(answers, expected, rtol=1e-6, atol=1e-6)


def test_a_head_has_the_classes_of_its_training(tmp_path):
    says = "with_classes: the head of fedvpt has an output for each class"
    with pytest.raises(FedLoomError, match=says):
        model_of("fedvpt", tmp_path).with_classes(["owl"])


def test_a_wrapper_that_adds_to_a_clients_logits_is_refused(tmp_path):
    model = model_of("promptfl", tmp_path, "class_priors", client=1)
    with pytest.raises(FedLoomError, match="a wrapper adds to the client's logits"):
        model.with_classes(["owl"])


@pytest.mark.parametrize("names", [[], ["owl", "owl"], ["owl", ""]])
def test_names_must_be_names_and_differ(tmp_path, names):
    with pytest.raises(FedLoomError, match=re.escape(f"each of them once, got {names}")):
        model_of("promptfl", tmp_path).with_classes(names)


def test_a_name_must_fit_into_the_text_tower(tmp_path):
    with pytest.raises(FedLoomError, match=r"the longest text, .* has 99 tokens"):
        model_of("promptfl", tmp_path).with_classes(["owl", "very " * 80])
