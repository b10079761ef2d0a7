"""fedloom.load: the model of a finished run, its predictions, and what it refuses."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedloom
from fedloom.common.files import read_table
from fedloom.common.receipts import read_sealed, write_sealed
from fedloom.config.settings import Wrapper
from fedloom.data.store import ImageStore
from fedloom.machine.install import ROOT
from fedloom.models.content import ModelContent
from fedloom.models.images import Preparation
from fedloom.models.model import Model
from fedloom.models.published import write_content
from refusals import refused

RUN = "digits/few/micro_vit/{}/seed0"
DIVISION = Path("results/partitions/digits/few/seed0.parquet")


@pytest.fixture(autouse=True)
def in_study(study, monkeypatch):
    """Let each test run in the study's folder."""
    monkeypatch.chdir(study)


def images_of(client: int | None) -> tuple[list[np.ndarray], list[str]]:
    """Return a client's test images and the names of their classes; None: of all clients."""
    store = ImageStore(Path("results/datasets/digits/images.arrow"))
    division = read_table(DIVISION).to_pandas()
    chosen = division["test"] & (division["client_id"] >= 0)
    if client is not None:
        chosen &= division["client_id"] == client
    rows = np.flatnonzero(chosen)
    return list(store.images(rows)), [str(label) for label in store.labels[rows]]


def trained() -> list[int]:
    """Return the ids of the clients that trained."""
    division = read_table(DIVISION).to_pandas()
    return sorted(division["client_id"][division["participating"]].unique())


def evaluated(method: str, round_number: int, client: int) -> int:
    """Return how many of its test images a client, or the server (-1), got right in the study."""
    table = f"rounds/{round_number:04}.evaluation.parquet"
    rows = read_table(Path("results/runs", RUN.format(method), table)).to_pandas()
    (row,) = rows[rows["client_id"] == client].to_dict("records")
    return row["num_correct"]


def correct(model: Model, client: int | None) -> int:
    """Return how many test images of a client, or of all, a model gets right."""
    images, labels = images_of(client)
    return int((model.predict(images)["class"].to_numpy() == np.array(labels)).sum())


@pytest.mark.parametrize("method", ["fedvpt", "pep_fedpt"])
@pytest.mark.parametrize("round_number", [1, 2])
def test_the_servers_model_answers_as_in_the_global_test(method, round_number):
    model = fedloom.load(RUN.format(method), round=round_number)
    assert correct(model, None) == evaluated(method, round_number, -1)


@pytest.mark.parametrize("client", range(5))
def test_a_clients_model_answers_as_in_the_evaluation(client):
    """PEP-FedPT mixes prompts by a client's class priors, which a held-out client has too."""
    model = fedloom.load(RUN.format("pep_fedpt"), client=client)
    assert correct(model, client) == evaluated("pep_fedpt", 2, client)


def test_a_client_that_trained_has_its_own_prompts():
    first, second, *_ = trained()
    model = fedloom.load(RUN.format("p_pt"), client=first)
    other = fedloom.load(RUN.format("p_pt"), client=second)
    prompts, others = (each.content.tensors["state"]["prompts"] for each in (model, other))
    assert not torch.equal(prompts, others)
    assert correct(model, first) == evaluated("p_pt", 2, first)


def test_a_client_that_never_trained_has_no_prompts_of_its_own():
    (held_out,) = set(range(5)) - set(trained())
    says = f"client {held_out} never trained, .* choose one of those that did"
    with pytest.raises(fedloom.FedLoomError, match=says):
        fedloom.load(RUN.format("p_pt"), client=held_out)


def test_predictions_are_a_row_for_each_image_and_rank():
    model = fedloom.load(RUN.format("fedvpt"))
    images, _ = images_of(1)
    table = model.predict(images[:3], top_k=2)
    assert list(table.columns) == ["image", "rank", "class", "probability"]
    assert list(table["image"]) == ["0", "0", "1", "1", "2", "2"]
    assert list(table["rank"]) == [1, 2] * 3

    # the probabilities are those of the module's logits
    pixels = torch.stack([model.transform(Image.fromarray(each[..., 0])) for each in images[:3]])
    expected, order = model.module(pixels).double().softmax(-1).topk(2)
    assert np.allclose(table["probability"], expected.flatten(), atol=1e-12)
    assert list(table["class"]) == [model.classes[k] for k in order.flatten().tolist()]


def test_a_path_a_picture_and_an_array_of_an_image_give_the_same(tmp_path):
    model = fedloom.load(RUN.format("fedvpt"))
    array = images_of(1)[0][0]
    picture = Image.fromarray(array[..., 0])
    file = tmp_path / "digit.png"
    picture.save(file)
    colour = np.repeat(array, 3, axis=2)
    for image in (file, str(file), picture, array, array[..., 0], colour):
        table = model.predict(image)
        assert table["probability"].item() == model.predict([array])["probability"].item()
    assert model.predict(file)["image"].item() == str(file)


def test_no_images_are_an_empty_table():
    table = fedloom.load(RUN.format("fedvpt")).predict([])
    assert len(table) == 0
    assert list(table.columns) == ["image", "rank", "class", "probability"]


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (np.zeros((8, 8)), "image 0: an array must be uint8 [H, W]"),
        (np.zeros((8, 8, 2), np.uint8), "image 0: an array must be uint8 [H, W]"),
        (7, "image 0: must be a path, a PIL image or an array, got int"),
    ],
)
def test_what_is_no_image_is_refused(image, says):
    with pytest.raises(fedloom.FedLoomError, match=re.escape(says)):
        fedloom.load(RUN.format("fedvpt")).predict([image])


@pytest.mark.parametrize("nothing", [None, 5])
def test_what_is_no_list_of_images_is_refused(nothing):
    with refused("images: must be a path", type(nothing).__name__):
        fedloom.load(RUN.format("fedvpt")).predict(nothing)


@pytest.mark.parametrize("top_k", ["2", 1.5, 0, 11])
def test_the_number_of_classes_must_be_one_of_theirs(top_k):
    with refused(f"top_k: must be from 1 to 10, the number of classes, got {top_k!r}"):
        fedloom.load(RUN.format("fedvpt")).predict([], top_k)


def test_an_image_that_cannot_be_read_is_named_as_people_gave_it(tmp_path):
    """A file has its path, and anything else its position, with the reason in words."""
    model = fedloom.load(RUN.format("fedvpt"))
    missing = tmp_path / "gone.png"
    with refused(f"{missing}: ", "No such file or directory") as error:
        model.predict(missing)
    assert "Errno" not in str(error.value)

    # a picture whose file is cut off is opened, but cannot be decoded
    file = tmp_path / "cut.png"
    noise = np.random.default_rng(0).integers(256, size=(64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:2000])
    with refused("image 1: unreadable image ("):
        model.predict([np.zeros((8, 8), np.uint8), Image.open(file)])


def test_a_folder_names_a_run_from_anywhere(study, tmp_path, monkeypatch):
    here = fedloom.load(RUN.format("fedvpt"))
    monkeypatch.chdir(tmp_path)
    folder = study / "results/runs" / RUN.format("fedvpt")
    for name in (folder, f"{folder}/"):
        there = fedloom.load(name)
        image = np.arange(64, dtype=np.uint8).reshape(8, 8)
        pd.testing.assert_frame_equal(there.predict(image, 10), here.predict(image, 10))


def test_a_studys_name_may_stand_before_the_labels():
    assert str(fedloom.load(f"mine/{RUN.format('fedvpt')}")) == (
        "Model('digits/few/micro_vit/fedvpt/seed0', server, round 2, 10 classes)"
    )


REFUSED = {
    "a word": (dict(run="fedvpt"), "must be the folder of a run below results/runs"),
    "a folder elsewhere": (
        dict(run=f"/tmp/runs/{RUN.format('fedvpt')}"),
        "must be the folder of a run below results",
    ),
    "a typo": (dict(run=RUN.format("fedvptt")), "did you mean 'digits/few/micro_vit/fedvpt/seed0'"),
    "a round": (dict(run=RUN.format("fedvpt"), round=3), "after which a job ended (1, 2), got 3"),
    "no own models": (dict(run=RUN.format("fedvpt"), client=1), "fedvpt has no model of a client"),
    "no server's model": (dict(run=RUN.format("p_pt")), "p_pt: the server has no model of its own"),
    "a client": (dict(run=RUN.format("pep_fedpt"), client=5), "client: must be from 0 to 4, got 5"),
    "a precision": (dict(run=RUN.format("fedvpt"), precision="f16"), "precision: must be one of"),
    "a device": (dict(run=RUN.format("fedvpt"), device="abacus"), "device: torch cannot use"),
}


@pytest.mark.parametrize(("given", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_loaded_is_refused_in_one_line(given, says):
    with pytest.raises(fedloom.FedLoomError, match=re.escape(says)) as error:
        fedloom.load(**given)
    assert "\n" not in str(error.value)


def copied(study: Path, folder: Path) -> Path:
    """Return a copy of the study, which a test may damage."""
    shutil.copytree(study, folder / "copy")
    return folder / "copy"


def test_a_run_without_a_finished_job_is_refused(study, tmp_path):
    folder = copied(study, tmp_path) / "results/runs" / RUN.format("fedvpt")
    for state in (folder / "rounds").glob("*.safetensors"):
        state.unlink()
    with pytest.raises(fedloom.FedLoomError, match="no finished round"):
        fedloom.load(folder)


@pytest.mark.parametrize(
    ("file", "key"),
    [(f"results/runs/{RUN.format('fedvpt')}/rounds/0002.json", "spec"),
     ("results/datasets/digits/images.json", "preparation")],
)  # fmt: skip
def test_results_of_earlier_versions_are_refused(study, tmp_path, file, key):
    folder = copied(study, tmp_path)
    facts = read_sealed(folder / file)
    del facts[key]
    write_sealed(folder / file, facts)
    with pytest.raises(fedloom.FedLoomError, match="by a version that did not keep"):
        fedloom.load(folder / "results/runs" / RUN.format("fedvpt"))


@pytest.mark.parametrize("options", [{}, {"prompts": 1, "weighted": False, "old": 2}])
def test_a_run_whose_plugin_had_other_options_is_refused(study, tmp_path, options):
    """An earlier FedLoom may have trained it; plugins gain and lose options."""
    folder = copied(study, tmp_path) / "results/runs" / RUN.format("fedvpt")
    receipt = folder / "rounds/0002.json"
    facts = read_sealed(receipt)
    facts["spec"]["method"]["options"] = options
    write_sealed(receipt, facts)
    with refused("0002.safetensors: ", "plugin 'fedvpt' has other options (", "run its study"):
        fedloom.load(folder)


def test_other_weights_of_the_backbone_are_refused(study, tmp_path):
    folder = copied(study, tmp_path)
    weights = "workflow/resources/micro_vit.safetensors"
    (folder / weights).parent.mkdir(parents=True)
    content = bytearray((ROOT / weights).read_bytes())
    content[-1] ^= 1
    (folder / weights).write_bytes(content)
    with pytest.raises(fedloom.FedLoomError, match="must be those that the model was trained with"):
        fedloom.load(folder / "results/runs" / RUN.format("fedvpt"))


def test_a_damaged_state_is_refused(study, tmp_path):
    folder = copied(study, tmp_path) / "results/runs" / RUN.format("fedvpt")
    file = folder / "rounds/0002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(fedloom.FedLoomError, match=r"0002\.safetensors: not what its receipt"):
        fedloom.load(folder)


def test_the_module_is_for_predictions_alone():
    module = fedloom.load(RUN.format("fedvpt")).module
    logits = module(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert logits.shape == (2, 10) and logits.is_inference()
    assert not module.train().backbone.training
    assert sum(p.numel() for p in module.parameters()) > 1000
    with pytest.raises(fedloom.FedLoomError, match="stays on its device"):
        module.half()
    for wrong in (torch.zeros(2, 1, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8)):
        with pytest.raises(fedloom.FedLoomError, match=r"pixels must be uint8 \[images, 1, 8, 8\]"):
            module(wrong)


def test_another_precision_changes_little():
    images = images_of(1)[0]
    exact = fedloom.load(RUN.format("fedvpt")).predict(images)["probability"]
    rough = fedloom.load(RUN.format("fedvpt"), precision="bf16").predict(images)["probability"]
    assert not exact.equals(rough)
    assert np.allclose(exact, rough, atol=0.05)


def test_only_square_images_are_resized():
    wide = Image.new("L", (30, 20))
    assert Preparation(8, 8, 1)(wide).shape == (1, 8, 8)
    assert Preparation(20, 30, 3)(wide).shape == (3, 20, 30)
    with pytest.raises(ValueError, match="must be 30 x 20 pixels"):
        Preparation(20, 30, 1)(Image.new("L", (30, 21)))


def test_new_images_are_prepared_as_the_studys_were():
    """A squashed image shows all of it, a cropped one its centre."""
    ramp = Image.fromarray(np.tile(np.arange(0, 240, 4, dtype=np.uint8), (20, 1)))  # 60 x 20
    squashed = Preparation(20, 20, 1, resize="squash")(ramp)[0, 0]
    cropped = Preparation(20, 20, 1)(ramp)[0, 0]
    assert squashed[0] < 10 and squashed[-1] > 225
    assert 75 <= cropped[0] <= 85 and 150 <= cropped[-1] <= 160


def test_a_published_model_needs_no_study(tmp_path, monkeypatch):
    model = fedloom.load(RUN.format("pep_fedpt"))
    image = images_of(1)[0][0]
    expected = model.predict(image, 10)
    write_content(model.content, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    again = fedloom.load("model")
    pd.testing.assert_frame_equal(again.predict(image, 10), expected)
    assert str(again) == str(model)
    with pytest.raises(
        fedloom.FedLoomError, match="holds the server's model, not that of client 3"
    ):
        fedloom.load("model", client=3)


def changed_content(**spec) -> ModelContent:
    """Return the content of FedVPT's model, with other values in its spec."""
    content = fedloom.load(RUN.format("fedvpt")).content
    return replace(content, facts=replace(content.facts, spec=replace(content.facts.spec, **spec)))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"plugin": "mine"}, "config.json: needs the plugin 'mine', which is not here; install"),
        ({"options": {}}, "plugin 'fedvpt' has other options (prompts"),
        ({"options": {"prompts": 1, "old": 2}}, "old"),
        ({"wrappers": (Wrapper("mine", {}),)}, "needs the plugin 'mine'"),
        ({"wrappers": (Wrapper("quantize", {"old": 2}),)}, "whose plugin 'quantize' has other opt"),
    ],
)
def test_a_published_model_of_other_plugins_is_refused(changed, says, tmp_path):
    """A reader may lack the package of its plugin, or have another version of FedLoom."""
    method = fedloom.load(RUN.format("fedvpt")).content.facts.spec.method
    write_content(changed_content(method=replace(method, **changed)), tmp_path)
    with pytest.raises(fedloom.FedLoomError, match=re.escape(says)):
        fedloom.load(tmp_path)


def test_a_published_model_without_the_plugin_of_its_backbone_is_refused(tmp_path):
    backbone = fedloom.load(RUN.format("fedvpt")).content.facts.spec.backbone
    write_content(changed_content(backbone=replace(backbone, library="theirs")), tmp_path)
    with refused("config.json: needs the plugin 'theirs', which is not here; install"):
        fedloom.load(tmp_path)


def test_a_published_model_says_where_its_weights_are_to_be_put(tmp_path):
    """Weights that do not ship with FedLoom are looked for beside the model."""
    backbone = fedloom.load(RUN.format("fedvpt")).content.facts.spec.backbone
    own = backbone.settings | {"weights": "mine/own.safetensors"}
    write_content(changed_content(backbone=replace(backbone, settings=own)), tmp_path)
    beside = tmp_path / "own.safetensors"
    says = f"is not here (sha256 {backbone.sha256}); put it at {beside} or"
    with pytest.raises(fedloom.FedLoomError, match=re.escape(says)):
        fedloom.load(tmp_path)
    shutil.copy(ROOT / "workflow/resources/micro_vit.safetensors", beside)
    assert len(fedloom.load(tmp_path).classes) == 10


def test_a_published_model_without_its_tensors_is_refused(tmp_path):
    write_content(fedloom.load(RUN.format("fedvpt")).content, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(fedloom.FedLoomError, match=r"model\.safetensors: missing; get the folder"):
        fedloom.load(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(fedloom.FedLoomError, match=r"config\.json: damaged or incomplete"):
        fedloom.load(tmp_path)
    (tmp_path / "config.json").unlink()
    with refused(tmp_path, "a run", "holds rounds", "holds config.json and model.safetensors"):
        fedloom.load(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_changed_file_of_a_published_model_is_refused(tmp_path, file):
    write_content(fedloom.load(RUN.format("fedvpt")).content, tmp_path)
    content = (tmp_path / file).read_bytes()

    # a truncated file, and one with another number
    (tmp_path / file).write_bytes(content[:-9])
    with pytest.raises(fedloom.FedLoomError, match=f"{file}: .*damaged or incomplete"):
        fedloom.load(tmp_path)
    changed = bytearray(content)
    where = content.index(b'"round": 2') + 9 if file == "config.json" else len(content) - 1
    changed[where] ^= 1
    (tmp_path / file).write_bytes(changed)
    with pytest.raises(fedloom.FedLoomError, match=r"changed since it was|sha256"):
        fedloom.load(tmp_path)
