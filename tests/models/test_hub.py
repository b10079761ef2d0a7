"""A published model from Hugging Face's hub: `owner/name`, and what the hub may answer."""

import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedloom
from command_line import invoked
from refusals import refused
from servers import ModelHub, serving, use_hub

RUN = "digits/few/micro_vit/pep_fedpt/seed0"
IMAGE = np.random.default_rng(0).integers(256, size=(8, 8), dtype=np.uint8)
NAMES = ["README.md", "config.json", "model.safetensors"]


@pytest.fixture(scope="module")
def published(study, tmp_path_factory):
    """Return the bytes of the files of a published model, by their names."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(study)
        assert invoked("publish", RUN, str(folder / "model")) == 0
    return {name: (folder / "model" / name).read_bytes() for name in NAMES}


@pytest.fixture
def hub(published, tmp_path, monkeypatch):
    """Yield a hub that has the model `me/letters` and other files; run the test elsewhere."""
    monkeypatch.chdir(tmp_path)
    with serving(ModelHub, {**published, "big.bin": bytes(1000)}) as running:
        use_hub(monkeypatch, running.address, tmp_path / "cache")
        yield running


@pytest.mark.parametrize("name", ["me/letters", "me/letters@main", f"me/letters@{ModelHub.commit}"])
def test_a_name_on_a_hub_takes_the_place_of_a_folder(name, hub, published, study, monkeypatch):
    model = fedloom.load(name)
    assert {*hub.given} == {*NAMES}, "nothing but the files of a model is downloaded"
    monkeypatch.chdir(study)
    expected = fedloom.load(RUN).predict(IMAGE, 10)
    pd.testing.assert_frame_equal(model.predict(IMAGE, 10), expected)


def test_predict_takes_a_name_on_a_hub(hub, tmp_path, capsys):
    Image.fromarray(IMAGE).save("image.png")
    assert invoked("predict", "me/letters", "image.png") == 0
    assert "image.png" in capsys.readouterr().out


def test_a_model_that_was_downloaded_needs_no_hub(hub, monkeypatch):
    fedloom.load("me/letters")
    asked = len(hub.asked)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert len(fedloom.load("me/letters").predict(IMAGE)) == 1
    assert len(hub.asked) == asked


def test_a_folder_comes_before_the_hub(hub, tmp_path):
    (tmp_path / "me/letters").mkdir(parents=True)
    with refused("me/letters", "must be the folder of a run"):
        fedloom.load("me/letters")
    assert not hub.asked


@pytest.mark.parametrize(
    "name", ["letters", "./me/letters", "me/letters/", "a/b/c/d/seed0", "a/b/c/d/e", "~/letters"]
)
def test_other_names_ask_no_hub(name, hub):
    with refused(name.removesuffix("/")):
        fedloom.load(name)
    assert not hub.asked


def test_a_model_that_the_hub_lacks_is_one_line(hub):
    with refused("you/letters: no such folder here", hub.address, "no such model", "HF_TOKEN"):
        fedloom.load("you/letters")
    with refused("me/letters@first: no such folder here", "no revision 'first'"):
        fedloom.load("me/letters@first")


def test_a_gated_model_is_one_line(hub):
    hub.gated = True
    with refused("me/letters", "terms", f"{hub.address}/me/letters", "HF_TOKEN"):
        fedloom.load("me/letters")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_model_without_one_of_its_files_is_one_line(file, hub):
    del hub.files[file]
    with refused("me/letters", f"no file '{file}'", "fedloom publish"):
        fedloom.load("me/letters")


def test_of_another_librarys_model_only_the_config_is_downloaded(hub):
    hub.files["config.json"] = b'{"model_type": "vit"}'
    with refused("config.json", "fedloom model", "None"):
        fedloom.load("me/letters")
    assert {*hub.given} == {"config.json"}


def test_a_damaged_file_is_one_line_and_can_be_loaded_anew(hub, tmp_path):
    hub.lies = {"model.safetensors"}
    cached = tmp_path / "cache/models--me--letters"
    with refused("model.safetensors", f"delete {cached} and load it again"):
        fedloom.load("me/letters")

    hub.lies = set()
    shutil.rmtree(cached)
    assert len(fedloom.load("me/letters").predict(IMAGE)) == 1


@pytest.mark.parametrize("offline", [False, True])
def test_a_hub_that_cannot_be_reached_is_one_line(offline, hub, tmp_path, monkeypatch):
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client sleeps between tries
    with refused("me/letters", "http://127.0.0.1:9", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        fedloom.load("me/letters")
