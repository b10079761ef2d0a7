"""A plugin that misbehaves, in any of its hooks, gets one line that says where and how."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom import contract
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.federated import evaluate, round, training_job
from fedloom.hooks import hookspecs, loader, manifest
from fedloom.toolbox import SERVER_MODEL, Update

NAN, HOOKS, NUMBERS = torch.nan, loader.HOOKS, count()
QUANTISED = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


class Fickle:
    """A run of tests/fickle.py: two rounds, each evaluated, and an artefact.

    If it is about a hook of wrappers, tests/fickle_wrapper.py is around it.
    """

    def __init__(self, folder, hook=None):
        own = folder / "plugins" / "fickle"
        own.mkdir(parents=True)
        toml = (ROOT / "plugins/head_tuning/method.toml").read_text()
        toml = toml.replace('name = "head_tuning"', 'name = "fickle"')
        (own / "method.toml").write_text(
            f"{toml}\n[artefacts.norms]\ndescription = 'of the head'\n"
        )
        shutil.copy(ROOT / "tests/fickle.py", own / "plugin.py")
        self.folder, name, around = folder, "fickle", []
        if hook in hookspecs.UNPACKING:
            name = "around"
            outside = folder / "plugins" / name
            outside.mkdir()
            toml = "kind = 'wrapper'\nname = 'around'\ntitle = 'A'\n[paper]\ncitation = 'C'\n"
            (outside / "method.toml").write_text(toml)
            shutil.copy(ROOT / "tests/fickle_wrapper.py", outside / "plugin.py")
            around = [manifest.discover(folder / "plugins")[name]]
        self.file = folder / "plugins" / name / "plugin.py"
        self.method = manifest.discover(folder / "plugins")["fickle"]
        self.hooks = loader.load_hooks(self.method, wrappers=around)
        self.task = contract.tiny_task(self.method, folder, tuple(around))
        self.change = sys.modules[f"fedloom_plugins.{name}.plugin"].CHANGE

    def run(self):
        two = replace(contract.tiny_job(self.method, last=2), evaluate=(1, 2))
        outputs = contract.tiny_outputs(self.folder, 2)
        training_job.train(self.task, self.hooks, two, None, outputs, "same")
        current = round.initial_state(self.task, self.hooks)
        return evaluate.artefact(self.task.at(2), self.hooks, current, "norms")

    def complaint(self):
        with pytest.raises(FedLoomError) as error:
            self.run()
        line = str(error.value)
        assert "\n" not in line
        return line


@pytest.fixture
def fickle(tmp_path, request):
    """Fickle, with the wrapper around it where the test's parameter `hook` is one of wrappers."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return Fickle(tmp_path, parameters.get("hook"))


def test_what_behaves_is_let_through(fickle):
    assert set(fickle.run()) == {"norm"}


def in_round_two(change):
    return lambda task, value: change(value) if task.round == 2 else value


def call(hook):
    """How a line begins that is about a hook's first call, of whatever clients."""
    names, clients = "fickle|around|fickle with around", r"(, clients? [-\d, ]+(\.\.\.)?)?"
    return rf"^({names}): {hook}(, round 1|, round 2)?{clients}: "


def raising(error):
    def change(task, value):
        raise error

    return change


class UnspeakableError(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("two\nlines"), "ValueError: two lines$"),
        (AssertionError(), "AssertionError$"),
        (KeyError("heads"), "KeyError: 'heads'$"),
        (torch.OutOfMemoryError("x" * 1000), r"OutOfMemoryError: x{300} \.\.\.$"),
        (SystemExit(3), "it ends the process with SystemExit: 3$"),
        (KeyboardInterrupt(), "KeyboardInterrupt$"),
        (GeneratorExit(), "GeneratorExit$"),
        (UnspeakableError(), "UnspeakableError: its text raises ValueError$"),
    ],
)
def test_an_exception_is_one_line_with_file_and_line(fickle, hook, error, words):
    fickle.change[hook] = raising(error)
    line = fickle.complaint()
    file, number = re.search(r": ([^ ]+/plugin.py):(\d+): ", line).groups()
    assert Path(file) == fickle.file
    assert (
        "return CHANGE[name](task, value)" in fickle.file.read_text().splitlines()[int(number) - 1]
    )
    assert re.search(call(hook), line)
    assert re.search(words, line)


def test_an_exception_of_the_loss_is_client_updates(fickle):
    fickle.change["loss"] = raising(ZeroDivisionError("division by zero"))
    assert re.search(
        r"^fickle: client_update, round 1, clients [\d, ]+: [^ ]+/plugin.py:\d+: ZeroDivisionError",
        fickle.complaint(),
    )


def test_the_line_is_the_plugins_own_where_it_calls_the_toolbox_wrongly(fickle):
    fickle.change["loss"] = lambda task, value: torch.ones(2) @ torch.ones(3)
    line = fickle.complaint()
    number = int(re.search(r"/plugin.py:(\d+): RuntimeError", line)[1])
    assert "CHANGE[name]" in fickle.file.read_text().splitlines()[number - 1]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((x for x in "ab"), "not generator"),
        ("text", "not 'text'"),
        (3, "not 3"),
        ([1.5], r"not list|not 1.5|one is 1.5"),
        (np.zeros(2), "not ndarray"),
    ],
    ids=["generator", "text", "number", "list", "array"],
)
def test_a_result_of_another_type(fickle, hook, value, words):
    fickle.change[hook] = lambda task, _: value
    line = fickle.complaint()
    assert re.search(call(hook), line)
    assert re.search(words, line)
    assert re.search("must (be|return)", line)


@pytest.mark.parametrize(
    "hook", ["init_server", "client_update", "aggregate", "predict", "artefact"]
)
def test_none_of_a_hook_without_default(fickle, hook):
    fickle.change[hook] = lambda task, value: None
    line = fickle.complaint()
    assert re.search(call(hook), line)
    assert "None" in line or line.endswith("gives no 'norms' with these options")


def test_no_prediction_of_a_client(fickle):
    """Of the server's model alone there may be none: then clients' own are evaluated."""
    clients = fickle.task.data.num_clients
    asked = []

    def change(task, logits):
        asked.append(len(logits))
        return None if len(asked) == 3 else logits  # first the clients, then the server's model

    fickle.change["predict"] = change
    fickle.run()
    assert asked[:3] == [clients, clients, 1]  # without and with personalisation


def with_head(value):
    """A change of a state's head; `value` is a tensor, or a function of the head."""

    def change(task, state):
        head = value(state["params"]["head"]) if callable(value) else value
        return {**state, "params": {"head": head}}

    return change


def with_update(k=0, **fields):
    """A change of one client's Update; fields are values, or functions of what was there."""

    def change(task, updates):
        for name, value in fields.items():
            before = getattr(updates[k], name)
            setattr(updates[k], name, value(before) if callable(value) else value)
        return updates

    return change


def with_leaf(value):
    """A change of every client's upload: one more leaf."""
    return lambda task, updates: [
        replace(update, payload=update.payload | {"more": value}) for update in updates
    ]


def holding_itself(task, updates):
    updates[0].payload["me"] = updates[0].payload
    return updates


def first_call(value):
    """A change of one call alone: of one client among several."""
    left = [value]
    return lambda task, before: left.pop()(before) if left else before


def numbered(task, state):
    """A change that gives every client another plain number, of which a cohort has one."""
    return state | {"n": next(NUMBERS)}


@pytest.mark.parametrize(
    ("hook", "change", "words"),
    [
        # init_server
        ("init_server", with_head(NAN * torch.ones(4, 16)), "state 'params/head' is not finite"),
        ("init_server", with_head(float("inf")), "'params/head' is not finite"),
        ("init_server", with_head([1.0]), "'head' must be a tensor or a plain number, not list"),
        ("init_server", with_head(np.ones(3)), "'head' must be a tensor .* not ndarray"),
        ("init_server", with_head(lambda h: h.to_sparse()), "'head' is sparse"),
        ("init_server", lambda t, s: {**s, "a/b": 1}, "has the key 'a/b'"),
        ("init_server", lambda t, s: {**s, 3: 1}, "has the key 3"),
        # init_client, unseen_client_state
        (
            "init_client",
            lambda t, s: {"bias": NAN * s["bias"]},
            r"client 1: .*'bias' is not finite",
        ),
        ("init_client", first_call(lambda s: {}), r"client 2: .*'bias' is new, compared with the"),
        (
            "init_client",
            first_call(lambda s: {"bias": torch.ones(9)}),
            r"\[4\], but .* has .*\[9\]",
        ),
        ("init_client", first_call(lambda s: s | {"n": 1}), "'n' is missing"),
        ("init_client", numbered, r"'n' is \d+, but .* client \d.* has \d+$"),
        (
            "unseen_client_state",
            lambda t, s: {"bias": NAN * s["bias"]},
            r"round 1, client \d: the client's state 'bias' is not finite",
        ),
        ("unseen_client_state", lambda t, s: {}, "client's state 'bias' is missing, compared with"),
        # select_clients
        ("select_clients", lambda t, ids: [], "must return at least one client"),
        ("select_clients", lambda t, ids: [ids[0], *ids], r"but gave \d twice"),
        ("select_clients", lambda t, ids: [99], "available clients .* but gave 99"),
        ("select_clients", lambda t, ids: [5], "available clients .* but gave 5"),
        ("select_clients", lambda t, ids: [SERVER_MODEL], "but gave -1"),
        ("select_clients", lambda t, ids: [True], "list of client ids"),
        ("select_clients", lambda t, ids: torch.tensor(ids), r"not a tensor \[3\]"),
        # available_clients, local_work
        ("available_clients", lambda t, ids: [], "must return at least one client"),
        ("available_clients", lambda t, ids: [0], "participating clients .* but gave 0"),
        ("local_work", lambda t, share: 0, r"client 1: .* above 0 and at most 1, not 0$"),
        ("local_work", lambda t, share: 1.5, "not 1.5"),
        ("local_work", lambda t, share: NAN, "not nan"),
        ("local_work", lambda t, share: True, "not True"),
        # download
        ("download", first_call(lambda s: {}), r"'params/head' is new, compared with what client"),
        ("download", first_call(lambda s: s | {"n": 1}), "'n' is missing, compared"),
        ("download", numbered, r"'n' is \d+, but .* client \d.* has \d+$"),
        (
            "download",
            with_head(lambda h: h * NAN),
            r"client \d: what is sent 'params/head' is not f",
        ),
        ("download", first_call(lambda s: {"params": {"head": torch.ones(2)}}), r"\[4, 16\], but"),
        # client_update
        ("client_update", lambda t, u: u[:-1], "one Update per client, but gave 2 for 3 clients"),
        ("client_update", lambda t, u: [*u, u[0]], "but gave 4 for 3 clients"),
        ("client_update", lambda t, u: [x.payload for x in u], "of Updates, but one is dict"),
        ("client_update", with_update(payload=None), "upload must be a dict of tensors, not None"),
        ("client_update", with_leaf(None), "'more' must be a tensor or a plain number, not None"),
        ("client_update", with_leaf("a"), "'more' must be a tensor or a plain number, not 'a'"),
        ("client_update", with_leaf(True), "'more' must be a tensor or a plain number, not True"),
        ("client_update", with_leaf(QUANTISED), "'more' is of torch.qint8; send its int_repr"),
        ("client_update", with_leaf(torch.ones(2, device="meta")), "'more' is on the device meta"),
        ("client_update", holding_itself, "'me' .* dicts in each other, or one that holds itself"),
        ("init_server", with_head(lambda h: h.to("meta")), "'head' is on the device meta"),
        ("init_client", lambda t, s: {"bias": s["bias"].to("meta")}, "'bias' is on the device me"),
        ("client_update", with_update(1, payload={}), "upload 'params/head' is missing, compared"),
        (
            "client_update",
            with_update(1, payload={"params": {"head": torch.ones(4, 16).double()}}),
            r"upload 'params/head' is torch.float64 \[4, 16\], but the upload of client \d has",
        ),
        (
            "client_update",
            with_update(1, payload=lambda p: {"params": {"head": p["params"]["head"][:1]}}),
            r"upload 'params/head' is torch.float32 \[1, 16\], but",
        ),
        (
            "client_update",
            with_update(2, payload=lambda p: {"params": {"head": p["params"]["head"] / 0}}),
            r"round 1, client \d: upload 'params/head' is not finite .* lower training.lr",
        ),
        ("client_update", with_update(client_state=None), "client_state must be a dict"),
        ("client_update", with_update(client_state={}), "client_state 'bias' is missing"),
        (
            "client_update",
            with_update(client_state=lambda s: s | {"more": 1}),
            "client_state 'more' is new, compared with the client's state before",
        ),
        (
            "client_update",
            with_update(client_state=lambda s: {"bias": s["bias"][:2]}),
            r"client_state 'bias' is torch.float32 \[2\], but the client's state before has",
        ),
        (
            "client_update",
            with_update(client_state=lambda s: {"bias": NAN * s["bias"]}),
            r"client \d: client_state 'bias' is not finite",
        ),
        ("client_update", with_update(num_examples=None), "num_examples must be a positive int"),
        (
            "client_update",
            with_update(num_examples=0),
            "num_examples must be a positive int, not 0",
        ),
        ("client_update", with_update(metrics={}), "metrics must be .* the number 'train_loss'"),
        ("client_update", with_update(metrics=None), "metrics must be .* the number 'train_loss'"),
        (
            "client_update",
            with_update(metrics={"train_loss": torch.ones(())}),
            r"metrics\['train_loss'\] must be a plain number, not a tensor",
        ),
        ("client_update", with_update(metrics={"train_loss": NAN}), "'train_loss' is not finite"),
        ("client_update", with_update(metrics={"train_loss": 1.0, "n": 2**60}), "beyond 2.53"),
        (
            "client_update",
            with_update(metrics={"train_loss": 1.0, "round": 3}),
            "metrics has the key 'round'; a metric is a column of clients.parquet and may have any",
        ),
        ("client_update", with_update(metrics={"train_loss": 1.0, 3: 3}), "has the key 3"),
        ("client_update", with_update(side_channel=None), "side_channel must be a dict"),
        # deliver
        ("deliver", first_call(lambda s: {}), r"client \d: .*'params/head' is new, compared with"),
        ("deliver", with_head(lambda h: h * NAN), r"what is delivered 'params/head' is not finite"),
        ("deliver", with_head(lambda h: h.to_sparse()), "'head' is sparse"),
        ("deliver", lambda t, s: None, "what is delivered must be a dict of tensors, not None"),
        # receive
        ("receive", lambda t, u: [], "must return at least one Update"),
        ("receive", lambda t, u: None, "must return a list of Updates, not None"),
        ("receive", lambda t, u: [x.payload for x in u], "of Updates, but one is dict"),
        ("receive", lambda t, u: [*u, u[0]], r"one Update per client, but gave two of client \d"),
        ("receive", with_update(client=-1), "one is of client -1; make new ones with dataclasses"),
        ("receive", with_update(1, payload={}), "upload 'params/head' is missing, compared"),
        ("receive", with_update(payload=None), "upload must be a dict of tensors, not None"),
        (
            "receive",
            with_update(2, payload=lambda p: {"params": {"head": p["params"]["head"] * NAN}}),
            r"round 1, client \d: upload 'params/head' is not finite",
        ),
        ("receive", with_update(num_examples=0), "num_examples must be a positive int, not 0"),
        # aggregate
        (
            "aggregate",
            with_head(lambda h: h.T),
            r"'params/head' is .* \[16, 4\], but the state that",
        ),
        ("aggregate", with_head(lambda h: h[None]), r"is .* \[1, 4, 16\], but .* \[4, 16\]"),
        (
            "aggregate",
            lambda t, s: s | {"steps": s["steps"].sum()},
            r"'steps' is .* \[\], but .* \[1\]",
        ),
        ("aggregate", with_head(lambda h: h.double()), "is torch.float64"),
        ("aggregate", with_head(3.0), "'params/head' is 3.0, but the state that it was given has"),
        ("aggregate", with_head(lambda h: NAN * h), "state 'params/head' is not finite"),
        ("aggregate", lambda t, s: {"params": s["params"]}, "state 'steps' is missing, compared"),
        ("aggregate", lambda t, s: s | {"heads": torch.ones(1)}, "'heads' is new, compared with"),
        ("aggregate", in_round_two(lambda s: {}), "aggregate, round 2: .* is missing"),
        # personalize
        (
            "personalize",
            lambda t, s: {"bias": s["bias"][0]},
            r"must lead with the 6 clients, but is",
        ),
        ("personalize", lambda t, s: {"bias": NAN * s["bias"]}, "state 'bias' is not finite"),
        ("personalize", lambda t, s: {"bias": s["bias"].to_sparse()}, "'bias' is sparse"),
        # predict
        ("predict", lambda t, x: x[0], r"logits \[6, \d+, 4\] .* not a tensor \[\d+, 4\]"),
        ("predict", lambda t, x: x[..., :3], r"logits \[6, \d+, 4\].*not a tensor \[6, \d+, 3\]"),
        ("predict", lambda t, x: torch.cat([x, x[..., :1]], -1), r"not a tensor \[6, \d+, 5\]"),
        ("predict", lambda t, x: x.mT, r"not a tensor \[6, 4, \d+\]"),
        ("predict", lambda t, x: x.argmax(-1), r"not a tensor \[6, \d+\]"),
        ("predict", lambda t, x: x.long(), "floating-point logits on cpu, not torch.int64"),
        ("predict", lambda t, x: x.to("meta"), "logits on cpu, not torch.float32 on meta"),
        ("predict", lambda t, x: x / 0, r"round 1, client \d: predictions are not finite"),
        ("predict", lambda t, x: 3e38 * x.sign(), "predictions are too large for a finite loss"),
        ("predict", in_round_two(lambda x: x[..., :3]), "predict, round 2, clients 0, 1"),
        # artefact
        ("artefact", lambda t, a: {"x": [1], "y": [1, 2]}, "differ in length: {'x': 1, 'y': 2}"),
        ("artefact", lambda t, a: {"x": 1}, "column 'x' of 'norms' must be a list, not 1"),
        ("artefact", lambda t, a: {3: [1]}, "column 3 of 'norms' must be"),
        ("artefact", lambda t, a: {}, "must return 'norms' as a dict of lists"),
        ("artefact", lambda t, a: {"x": [1, "a"]}, "column 'x' of 'norms' cannot be written"),
    ],
)
def test_a_result_that_is_malformed_or_not_finite(fickle, hook, change, words):
    fickle.change[hook] = change
    line = fickle.complaint()
    assert re.search(call(hook), line)
    assert re.search(words, line)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, x: x.mean(), r"a tensor \[3, 4\], not a tensor \[\]"),
        (lambda t, x: x.mean(1), r"a tensor \[3, 4\], not a tensor \[3\]"),
        (lambda t, x: x[..., None], r"not a tensor \[3, 4, 1\]"),
        (lambda t, x: None, "not None"),
        (lambda t, x: [x], "not list"),
        (lambda t, x: x.detach(), "must depend on the parameters"),
        (lambda t, x: x.detach() > 0, "must depend on the parameters"),
        (lambda t, x: (x, x), "dict of counters as the second of two, not a tensor"),
        (lambda t, x: (x, {}, {}), "not tuple"),
        (lambda t, x: (x, {"reported_loss": x.mean()}), r"'reported_loss' per client and image"),
        (lambda t, x: (x, {"seen": 1}), "'seen' per client and image, .* not 1"),
        (lambda t, x: x / 0, r"client \d: upload 'params/head' is not finite"),
    ],
)
def test_a_loss_that_is_not_one_number_per_client_and_image(fickle, change, words):
    fickle.change["loss"] = change
    line = fickle.complaint()
    assert re.search(call("(train_locally|client_update)"), line)
    assert re.search(words, line)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 +", r"plugin.py:1: SyntaxError: "),
        ("\nimport nothing_of_the_kind", "plugin.py:2: ModuleNotFoundError: No module named"),
        ("\n\nraise SystemExit('no')", "plugin.py:3: it ends the process with SystemExit: no"),
        ("from . import missing", "plugin.py:1: ImportError"),
    ],
)
def test_a_plugin_that_cannot_be_imported(tmp_path, source, words):
    file = Fickle(tmp_path).file
    file.write_text(source + " " * len(file.read_text()))  # of another size: no cached bytecode
    with pytest.raises(FedLoomError, match=f"^fickle: import of plugin.py: .*{words}") as error:
        loader.load_hooks(manifest.discover(tmp_path / "plugins")["fickle"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('    return changed("predict"', '    yield changed("predict"', "must return, not yield"),
        ("@hookimpl\ndef predict", "@hookimpl(trylast=True)\ndef predict", "needs plain @hookimpl"),
        ("@hookimpl\ndef predict", "@hookimpl(hookwrapper=True)\ndef predict", "needs plain @hook"),
    ],
)
def test_a_hook_that_is_no_plain_function(tmp_path, old, new, words):
    file = Fickle(tmp_path).file
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(FedLoomError, match=f"plugin.py: 'predict' of a method {words}"):
        loader.load_hooks(manifest.discover(tmp_path / "plugins")["fickle"])


def test_a_wrapper_must_yield(tmp_path):
    folder = tmp_path / "plugins" / "dp_laplace"
    shutil.copytree(ROOT / "plugins/dp_laplace", folder)
    text = (folder / "plugin.py").read_text()
    (folder / "plugin.py").write_text(text.replace("result = yield", "result = updates"))
    wrapper = manifest.discover(tmp_path / "plugins")["dp_laplace"]
    method = manifest.find("pep_fedpt")
    with pytest.raises(FedLoomError, match="'aggregate' of a wrapper must yield once"):
        loader.load_hooks(method, wrappers=[wrapper])


def test_wrapper_and_method_are_told_apart(tmp_path):
    """Of an exception its own plugin is named; of a wrong result, both."""
    method = manifest.find("pep_fedpt")
    wrapper = manifest.find("dp_laplace")
    task = contract.tiny_task(method, tmp_path, (wrapper,))
    hooks = loader.load_hooks(method, wrappers=[wrapper])
    current = round.initial_state(task, hooks)
    task.wrappers["dp_laplace"].eps = torch.nan
    with pytest.raises(
        FedLoomError, match=r"^pep_fedpt with dp_laplace: aggregate, round 1: .*fin"
    ):
        round.train_round(task.at(1), hooks, current)
    task.wrappers["dp_laplace"].eps = "much"
    with pytest.raises(FedLoomError, match=r"^dp_laplace: aggregate, round 1: .*laplace/plugin.py"):
        round.train_round(task.at(1), hooks, current)


SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fedloom.common.logs import log_to
from fedloom.common.errors import FedLoomError
from test_misbehaviour import Fickle
log_to(Path({folder!r}) / "job.log")
run = Fickle(Path({folder!r}))
def change(task, value):
    {statement}
run.change["predict"] = change
try:
    run.run()
except FedLoomError as error:
    sys.exit(f"error: {{error}}")
"""


def _process(folder, statement):
    script = SCRIPT.format(tests=str(ROOT / "tests"), folder=str(folder), statement=statement)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    return done.returncode, done.stderr, (folder / "job.log").read_text()


def test_a_traceback_is_in_the_log_file_alone(tmp_path):
    status, terminal, log = _process(tmp_path, "value[99]")
    assert status == 1
    assert "Traceback" not in terminal
    assert terminal.splitlines()[-1].startswith("error: fickle: predict, round 1, clients 0, 1")
    assert "Traceback (most recent call last)" in log and "\nIndexError: index 99" in log


@pytest.mark.parametrize("statement", ["os._exit(7)", "os.abort()"])
def test_the_log_of_a_process_that_was_ended_says_where(tmp_path, statement):
    status, _, log = _process(tmp_path, statement)
    assert status not in (0, 1)
    lines = log.splitlines()
    last = max(k for k, line in enumerate(lines) if line.startswith("fickle: "))
    assert lines[last].startswith("fickle: predict, round 1, clients 0, 1")
    assert ("Fatal Python error: Aborted" in log) == (statement == "os.abort()")


def test_an_update_may_say_more_in_plain_numbers(fickle):
    def change(task, updates):
        return [
            Update(u.payload, u.client_state, u.num_examples, u.metrics | {"steps": 3})
            for u in updates
        ]

    fickle.change["client_update"] = change
    fickle.run()
