"""`fedloom publish`: what the folder holds, what its card says, and what is not published."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import safetensors.torch
import torch
import yaml

import fedloom
from command_line import invoked
from fedloom.common.files import read_table
from fedloom.common.receipts import read_sealed, write_sealed
from fedloom.config.settings import BackboneSettings
from fedloom.machine.install import ROOT
from fedloom.models.published import CARD
from fedloom.models.weights import without_folders

RUN = "digits/few/micro_vit/{}/seed0"
DIVISION = Path("results/partitions/digits/few/seed0.parquet")
IMAGE = np.random.default_rng(0).integers(256, size=(8, 8), dtype=np.uint8)


@pytest.fixture(autouse=True)
def in_study(study, monkeypatch):
    """Let each test run in the study's folder."""
    monkeypatch.chdir(study)


def publish(method: str, folder: Path, *words: str) -> None:
    assert invoked("publish", RUN.format(method), str(folder), *words) == 0


def test_a_folder_takes_the_place_of_its_run(tmp_path, monkeypatch, capsys):
    expected = fedloom.load(RUN.format("pep_fedpt")).predict(IMAGE, 10)
    publish("pep_fedpt", tmp_path / "model")
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "README.md", "config.json", "model.safetensors"
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert all(name in said for name in ("model.safetensors", "config.json", "README.md"))

    # in a folder without a study
    monkeypatch.chdir(tmp_path)
    pd.testing.assert_frame_equal(fedloom.load("model").predict(IMAGE, 10), expected)


def test_the_servers_model_holds_what_the_server_sends(study, tmp_path):
    """The tensors of FedVPT are its prompts, its head and the class shares of nobody."""
    publish("fedvpt", tmp_path / "model")
    tensors = safetensors.torch.load_file(tmp_path / "model/model.safetensors")
    assert set(tensors) == {"received/params/head", "received/params/shared_prompts", "priors"}
    assert torch.equal(tensors["priors"], torch.full((10,), 0.1))
    file = study / "results/runs" / RUN.format("fedvpt") / "rounds/0002.safetensors"
    head = safetensors.torch.load_file(file)["server/params/head"]
    assert torch.equal(tensors["received/params/head"], head)


def test_a_client_is_published_only_by_name_and_with_a_warning(tmp_path, caplog):
    publish("pep_fedpt", tmp_path / "server")
    assert "client" not in caplog.text
    publish("pep_fedpt", tmp_path / "client", "--client", "1")
    assert "note: the model of client 1 is published" in caplog.text
    said = ["class shares" in (tmp_path / name / CARD).read_text() for name in ("server", "client")]
    assert said == [False, True]
    expected = fedloom.load(RUN.format("pep_fedpt"), client=1).predict(IMAGE, 10)
    pd.testing.assert_frame_equal(fedloom.load(tmp_path / "client").predict(IMAGE, 10), expected)


@pytest.fixture
def own_weights(study, tmp_path, monkeypatch) -> Path:
    """Return a file of weights, whose absolute path the config of the study names, a copy."""
    weights = tmp_path / "home/alice/own.safetensors"
    weights.parent.mkdir(parents=True)
    shutil.copy(ROOT / "workflow/resources/micro_vit.safetensors", weights)
    copy = shutil.copytree(study, tmp_path / "copy")
    monkeypatch.chdir(copy)
    receipt = Path("results/runs", RUN.format("fedvpt"), "rounds/0002.json")
    facts = read_sealed(receipt)
    facts["spec"]["backbone"]["settings"]["weights"] = str(weights)
    write_sealed(receipt, facts)
    return weights


def test_no_file_names_a_folder_of_the_publisher(own_weights, tmp_path, monkeypatch, caplog):
    """Neither the model's own folder, nor that of the weights: it may have a user's name."""
    folder = tmp_path / "home/alice/model"
    publish("fedvpt", folder)
    texts = [(folder / name).read_text() for name in ("README.md", "config.json")]
    assert [text for text in texts if "alice" in text or str(tmp_path) in text] == []
    assert 'fedloom.load("model")' in texts[0] and "`own.safetensors`" in texts[0]
    assert "'own.safetensors' lies beside them" in caplog.text

    # people find the weights by their name beside the model
    expected = fedloom.load(RUN.format("fedvpt")).predict(IMAGE, 10)
    own_weights.rename(folder / "own.safetensors")
    monkeypatch.chdir(tmp_path)
    pd.testing.assert_frame_equal(fedloom.load(folder).predict(IMAGE, 10), expected)


def test_weights_that_ship_with_fedloom_keep_their_path(tmp_path, caplog):
    publish("fedvpt", tmp_path / "model")
    facts = json.loads((tmp_path / "model/config.json").read_text())
    assert facts["spec"]["backbone"]["settings"]["weights"] == (
        "workflow/resources/micro_vit.safetensors"
    )
    assert "lies beside" not in caplog.text


def test_the_card_has_the_accuracies_of_the_run(tmp_path):
    publish("fedvpt", tmp_path / "model")
    card = (tmp_path / "model/README.md").read_text()
    _, header, text = card.split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "image-classification"
    file = Path("results/runs", RUN.format("fedvpt"), "evaluation.parquet")
    rows = read_table(file).to_pandas().query("round == 2 and participating")
    shares = 100 * rows["num_correct"] / rows["num_test"]
    found = dict(re.findall(r"\| ([\w ]+?) +\| ([\d.]+) +\|", text))
    assert float(found["participating mean"]) == pytest.approx(shares.mean(), abs=0.005)
    assert float(found["participating worst"]) == pytest.approx(shares.min(), abs=0.005)
    assert found["rounds"] == "2"
    assert "It needs the plugin `fedvpt`, which ships with FedLoom" in text
    assert "no guarantee of privacy" in text


def test_the_card_of_a_clients_model_has_the_clients_accuracy(tmp_path):
    file = Path("results/runs", RUN.format("pep_fedpt"), "evaluation.parquet")
    rows = read_table(file).to_pandas().query("round == 2")
    expected = (100 * rows["num_correct"] / rows["num_test"]).set_axis(rows["client_id"])
    publish("pep_fedpt", tmp_path / "server")
    assert "| client " not in (tmp_path / "server/README.md").read_text()
    for client in (0, 1):
        publish("pep_fedpt", tmp_path / "model", "--client", str(client))
        card = (tmp_path / "model/README.md").read_text()
        ((named, accuracy),) = re.findall(r"\| client (\d+) +\| +([\d.]+) +\|", card)
        assert (int(named), float(accuracy)) == (client, pytest.approx(expected[client], abs=0.005))


def test_the_card_has_the_division_as_the_record_of_the_study_states_it(tmp_path, study):
    scheme = "`pathological`, with clients 5, classes_per_client 3, held_out 0.2"
    publish("fedvpt", tmp_path / "model")
    assert f"The scheme is {scheme}." in (tmp_path / "model/README.md").read_text()

    # a record of another run with the same labels does not count
    record = read_table(study / "results/studies/mine.parquet")
    with pytest.MonkeyPatch.context() as patch:
        other = record.set_column(
            record.schema.get_field_index("data"), "data", pa.array(["other"] * len(record))
        )
        patch.setattr("fedloom.planning.records.read_table", lambda file: other)
        publish("fedvpt", tmp_path / "other")
    assert "The scheme is" not in (tmp_path / "other/README.md").read_text()


def test_an_earlier_round_can_be_published(tmp_path):
    publish("fedvpt", tmp_path / "model", "--round", "1")
    assert json.loads((tmp_path / "model/config.json").read_text())["round"] == 1
    assert "rounds" in (tmp_path / "model/README.md").read_text()


def test_other_files_are_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(fedloom.FedLoomError, match="must be empty, or hold a model that"):
        publish("fedvpt", tmp_path)
    publish("fedvpt", tmp_path / "model")
    publish("pep_fedpt", tmp_path / "model")
    assert fedloom.load(tmp_path / "model").module.task.method == "pep_fedpt"


def test_a_model_of_another_library_is_not_overwritten(tmp_path):
    """A folder of another library may have files of the same three names."""
    files = {"config.json": '{"model_type": "vit"}', "README.md": "theirs", "model.safetensors": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(fedloom.FedLoomError, match="a model that `fedloom publish` wrote"):
        publish("fedvpt", tmp_path)
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(fedloom.FedLoomError, match=r"model: must be a folder, got a file"):
        fedloom.publish(RUN.format("fedvpt"), tmp_path / "model")


def test_a_model_that_reads_a_clients_images_is_not_published(tmp_path):
    """With a pool, a client picks prompts by its training images, also when it predicts."""
    publish("pooled", tmp_path / "server")
    client = read_table(DIVISION).to_pandas().query("participating")["client_id"].iloc[0]
    says = f"fedavg_pt: the model of client {client} cannot be published: .* training images"
    with pytest.raises(fedloom.FedLoomError, match=says):
        publish("pooled", tmp_path / "model", "--client", str(client))
    assert not (tmp_path / "model").exists()
    assert len(fedloom.load(RUN.format("pooled"), client=client).predict(IMAGE)) == 1


def test_a_published_backbone_names_no_folder_of_the_publishers():
    """Weights and the tokenizer of one's own are called by their names alone."""
    own = {"weights": "/home/ada/siglip.safetensors", "tokenizer": "/home/ada/siglip_tokens"}
    backbone = BackboneSettings("b", "open_clip", {"name": "ViT-B-16-SigLIP"} | own)
    shown = without_folders(backbone).settings
    assert (shown["weights"], shown["tokenizer"]) == ("siglip.safetensors", "siglip_tokens")
