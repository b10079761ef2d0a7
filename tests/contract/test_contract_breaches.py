"""The contract finds what is wrong with a method, and names it."""

import sys
import textwrap

import pytest

from changed_plugin import copy_of, plugin_with
from fedloom.common.errors import FedLoomError
from fedloom.contract import checks, driver
from fedloom.contract.tiny_run import TinyRun
from fedloom.hooks import loader, manifest
from refusals import refused

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("@fl.hookimpl\ndef predict", "def predict", "'predict' has a hook's name but no"),
        ("def predict", "def predikt", "did you mean 'predict'?"),
        ("@fl.hookimpl\ndef predict", "def answer", "required hook 'predict' is missing"),
        ("predict(task: ViTTask, received:", "predict(task: ViTTask, recieved:",
         "has no argument 'recieved'; did you mean 'received'?"),
        ("@fl.hookimpl\ndef predict", "@fl.hookimpl(wrapper=True)\ndef predict",
         "'predict' of a method must have a plain @hookimpl, and return"),
        ("def init_server(task: ViTTask) -> Tree:", "def init_server(task=None):",
         "gives 'task' a default"),
        ("@fl.hookimpl\ndef predict", "@fl.hookimpl(trylast=True)\ndef predict",
         "'predict' of a method must have a plain @hookimpl, and return"),
        ("    return fl.linear(batch", "    yield fl.linear(batch",
         "'predict' of a method must have a plain @hookimpl, and return"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_named(tmp_path, old, new, line):
    with pytest.raises(FedLoomError, match=r"head_tuning/plugin.py: ") as error:
        loader.load_hooks(plugin_with(tmp_path, old, new))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_method_without_aggregate_declares_the_mean_that_its_server_takes(tmp_path):
    method = plugin_with(tmp_path, "predict", "predict")
    assert "aggregate" not in method.file.read_text()
    loader.load_hooks(method)
    with pytest.raises(FedLoomError, match=r"plugin.py: the hook 'aggregate' is .* aggregation ="):
        loader.load_hooks(method.model_copy(update={"aggregation": None}))


PREDICT = "@fl.hookimpl\ndef predict"


AGGREGATE = "@fl.hookimpl\ndef aggregate(task, server, updates):\n"


def test_what_a_plugin_holds_between_jobs_is_found(tmp_path):
    code = (
        f"ROUNDS = []\n\n\n{AGGREGATE}"
        "    ROUNDS.append(task.round)\n"
        '    return {"params": fl.mean(updates[: 1 + len(ROUNDS)])}\n\n\n'
    )
    method = plugin_with(tmp_path, PREDICT, code + PREDICT)
    (tmp_path / "x").mkdir()
    with pytest.raises(FedLoomError, match="a job of 3 rounds ends in another state"):
        checks.resumes(method, tmp_path / "x")


def test_a_resumed_state_lies_in_memory_as_the_uninterrupted_one(tmp_path):
    """Kernels may add in another order at another address; this method adds the addresses."""
    code = (
        f'{AGGREGATE}    params = fl.mean(updates)["head"]\n'
        '    known = server["params"]["head"], server["part"]\n'
        '    address = server["address"] + sum(value.data_ptr() % 64 for value in known)\n'
        "    part = params.flatten()[1:4]  # as `unflatten` gives it\n"
        '    return {"params": {"head": params}, "part": part, "address": address}\n\n\n'
    )
    method = plugin_with(tmp_path, PREDICT, code + PREDICT)
    plugin = method.folder / "plugin.py"
    old = '    return {"params"'
    part = "task.backbone.init_head(1)[0, 1:4]"
    new = f'    return {{"part": {part}, "address": 0, "params"'
    assert old in plugin.read_text()
    plugin.write_text(plugin.read_text().replace(old, new, 1))
    (tmp_path / "x").mkdir()
    checks.resumes(method, tmp_path / "x")


@pytest.mark.parametrize(
    "line", ["from ..fedvpt import plugin", "import fedloom_plugins.fedvpt.plugin"]
)
def test_a_plugin_that_imports_another_is_refused(tmp_path, line, monkeypatch):
    imported = [name for name in sys.modules if name.startswith("fedloom_plugins.")]
    for name in imported:
        monkeypatch.delitem(sys.modules, name)  # as in a job, which imports the run's plugins alone
    method = plugin_with(
        tmp_path, "from torch import Tensor\n", f"from torch import Tensor\n{line}\n"
    )
    with pytest.raises(FedLoomError, match=r"plugin.py:\d+: (ModuleNotFoundError|ImportError): "):
        loader.load_hooks(method)


def test_a_listed_table_that_the_hook_does_not_give_is_found(tmp_path):
    toml = copy_of("head_tuning", tmp_path / "head_tuning") / "method.toml"
    toml.write_text(toml.read_text() + '\n[artefacts.norms]\ndescription = "none"\n')
    method = manifest.discover_methods(tmp_path)["head_tuning"]
    with pytest.raises(FedLoomError, match="artefact"):
        checks.gives_its_tables(TinyRun(method, tmp_path))


# `predict` of Head-Tuning, and that of a method whose clients differ
SAME = """\
def predict(task: ViTTask, received: Tree, batch: Batch) -> Tensor:
    return fl.linear(batch"""


OWN = "def predict(task: ViTTask, received: Tree, clients: Cohort, batch: Batch) -> Tensor:\n"


SILENT = """\
    if clients.is_server_model:
        return None
    return fl.linear("""


@pytest.mark.parametrize(
    ("declared", "code", "line"),
    [
        ("false", SILENT, "predict returns None for the server's model, but cost.no_server_model"),
        ("true", "    return fl.linear(", "predict answers for the server's model, but cost."),
    ],
)
def test_whether_the_server_has_a_model_is_declared(tmp_path, declared, code, line):
    method = plugin_with(tmp_path, SAME, OWN + f"{code}batch")
    toml = method.folder / "method.toml"
    toml.write_text(f"{toml.read_text()}\n[cost]\nno_server_model = {declared}\n")
    manifest.discover_methods.cache_clear()
    method = manifest.discover_methods(tmp_path)["head_tuning"]
    with pytest.raises(FedLoomError, match=line):
        checks.answers_as_declared(TinyRun(method, tmp_path))


def test_a_method_that_reads_more_than_it_needs_is_told(tmp_path):
    toml = copy_of("head_tuning", tmp_path / "head_tuning") / "method.toml"
    toml.write_text(toml.read_text().replace('needs = ["features"]', ""))
    method = manifest.discover_methods(tmp_path)["head_tuning"]
    line = 'the method reads features, which its method.toml does not ask for; add "features"'
    with pytest.raises(FedLoomError, match=line):
        driver.check(method, [method])


@pytest.mark.parametrize(
    ("name", "needs", "family"),
    [("head_tuning", "patches", "vit"), ("promptfl", "prototypes", "clip")],
)
def test_what_a_family_has_not_cannot_be_needed(name, needs, family, tmp_path):
    toml = copy_of(name, tmp_path / name) / "method.toml"
    toml.write_text(toml.read_text().replace('["features"]', f'["features", "{needs}"]'))
    line = f"method.toml: needs: a {family} has no {needs}; remove it$"
    with pytest.raises(FedLoomError, match=line):
        manifest.discover_methods(tmp_path)[name]


@pytest.mark.parametrize("key", ['preserves = "sum"', 'updates = "unread"'])
def test_a_method_may_not_set_the_keys_of_wrappers(key, tmp_path):
    toml = copy_of("head_tuning", tmp_path / "head_tuning") / "method.toml"
    toml.write_text(f"{key}\n{toml.read_text()}")
    with refused("method.toml", key.split()[0], "wrappers"):
        manifest.discover_methods(tmp_path)["head_tuning"]


def test_a_pip_installed_method_is_found_without_being_imported(tmp_path, monkeypatch):
    package = copy_of("head_tuning", tmp_path / "site" / "their_method")
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    toml = package / "method.toml"
    toml.write_text(toml.read_text().replace('name = "head_tuning"', 'name = "theirs"'))
    about = tmp_path / "site" / "their_method-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-method\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        textwrap.dedent("""
            [fedloom.methods]
            theirs = their_method
        """)
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = manifest.find_method("theirs")
    assert found.folder == package
    files = {path.name for path in found.folder.iterdir()}
    assert files == {"method.toml", "plugin.py", "options.py", "__init__.py"}
    assert "their_method" not in sys.modules


def test_a_method_that_changes_state_in_place_fails_the_contract(tmp_path):
    code = f"{AGGREGATE}    server['params']['head'].add_(1)\n    return server\n\n\n"
    method = plugin_with(tmp_path, PREDICT, code + PREDICT)
    with pytest.raises(FedLoomError, match=r"a round changes the server's state: 'params/head'"):
        checks.leaves_inputs_alone(TinyRun(method, tmp_path))


def test_a_method_that_uploads_what_it_keeps_fails_the_contract(tmp_path):
    old = "    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)"
    new = (
        "    updates = fl.make_updates(fl.train_locally(task, loss, received, clients), clients)\n"
        "    for u in updates: u.client_state['head'] = u.payload['params']['head'] + 0\n"
        "    return updates\n\n\n"
        "@fl.hookimpl\n"
        "def init_client(task): return {'head': task.backbone.init_head(task.num_classes)}\n"
    )
    with pytest.raises(FedLoomError, match=r"personal 'head' is uploaded as 'params/head'"):
        checks.keeps_secrets(TinyRun(plugin_with(tmp_path, old, new), tmp_path))


def test_a_method_that_mixes_clients_fails_the_contract(tmp_path):
    old = "return fl.cross_entropy("
    method = plugin_with(tmp_path, old, 'return 0.1 * params["head"].sum() + fl.cross_entropy(')
    with pytest.raises(FedLoomError, match="clients that train as one batch end in other states"):
        checks.stacks(method, tmp_path)


def test_a_method_that_mixes_predictions_fails_the_contract(tmp_path):
    new = OWN + "    return len(clients) * fl.linear(batch"
    with pytest.raises(
        FedLoomError, match="clients that are evaluated as one batch have other losses"
    ):
        checks.stacks(plugin_with(tmp_path, SAME, new), tmp_path)
