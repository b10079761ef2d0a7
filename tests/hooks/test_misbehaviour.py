"""A plugin that misbehaves, in any of its hooks, gets one line that says where and how."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from changed_task import with_facts
from fickle_run import HOOKS, NAN, NUMBERS, fickle_of, fickle_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the run alone, and the run inside a wrapper."""
    return fickle_runs(tmp_path_factory)


@pytest.fixture
def fickle(runs, request):
    """Return a run, in a wrapper if the parameter `hook` is a wrapper's; it behaves at first."""
    return fickle_of(runs, request)


QUANTISED = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def test_what_behaves_is_let_through(fickle):
    assert set(fickle.run()) == {"norm"}


def in_round_two(change):
    return lambda task, value: change(value) if task.round == 2 else value


def call(hook):
    """Return a pattern for the beginning of an error on a hook's first call, of any clients."""
    names = "fickle|around|fickle with around"
    clients = r"(, clients? [\d, ]+(\.\.\.)?|, the server's model)?"
    return rf"^({names}): {hook}(, round 1|, round 2)?{clients}: "


def raising(error):
    def change(task, value):
        raise error

    return change


ERRORS = [
    (ValueError("two\nlines"), "ValueError: two lines$"),
    (AssertionError(), "AssertionError$"),
    (KeyError("heads"), "KeyError: 'heads'$"),
    (torch.OutOfMemoryError("x" * 1000), r"OutOfMemoryError: x{300} \.\.\.$"),
    (SystemExit(3), "SystemExit: 3$"),
    (GeneratorExit(), "GeneratorExit$"),
]


@pytest.mark.parametrize(
    ("hook", "error", "words"),
    [("predict", *each) for each in ERRORS] + [(hook, *ERRORS[0]) for hook in HOOKS],
)
def test_an_exception_is_one_line_with_file_and_line(fickle, hook, error, words):
    fickle.change[hook] = raising(error)
    line = fickle.complaint()
    file, number = re.search(r": ([^ ]+/plugin.py):(\d+): ", line).groups()
    assert Path(file) == fickle.file
    source = fickle.file.read_text().splitlines()[int(number) - 1]
    assert "return CHANGE[name](task, value)" in source
    assert re.search(call(hook), line) and re.search(words, line)


@pytest.mark.parametrize("hook", ["client_update", "predict", "receive"])
def test_who_interrupts_a_hook_interrupts_the_job(fickle, hook):
    """Ctrl-C while a plugin computes is not the plugin's error: the command ends with 130."""
    fickle.change[hook] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        fickle.run()


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
    ("value", "name"), [((x for x in "ab"), "generator"), ([1.5], "list|1.5|got float")]
)
def test_a_result_of_another_type(fickle, hook, value, name):
    fickle.change[hook] = lambda task, _: value
    line = fickle.complaint()
    assert re.search(call(hook), line)
    assert re.search(rf"must (be|return) .*({name})", line)


@pytest.mark.parametrize(
    "hook", ["init_server", "client_update", "aggregate", "predict", "artefact"]
)
def test_none_of_a_hook_without_default(fickle, hook):
    fickle.change[hook] = lambda task, value: None
    line = fickle.complaint()
    assert re.search(call(hook), line)
    assert "None" in line or line.endswith("gives no 'norms' with these options")


def test_no_prediction_of_a_client(fickle):
    """Only the server's model may have no prediction; clients' own models are then evaluated."""
    clients = fickle.task.data.num_clients
    asked = []

    def change(task, logits):
        asked.append(len(logits))
        return None if len(asked) == 3 else logits  # the server's model comes last

    fickle.change["predict"] = change
    fickle.run()
    assert asked[:3] == [clients, clients, 1]  # without and with personalisation


def with_head(value):
    """Return a change of a state's head to `value`, which is a tensor or a function of the head."""

    def change(task, state):
        head = value(state["params"]["head"]) if callable(value) else value
        return {**state, "params": {"head": head}}

    return change


def with_update(k=0, **fields):
    """Return a change of the k-th Update; fields are new values, or functions of the old ones."""

    def change(task, updates):
        for name, value in fields.items():
            before = getattr(updates[k], name)
            setattr(updates[k], name, value(before) if callable(value) else value)
        return updates

    return change


def of_head(value):
    """Return a change of an upload's head by the function `value`."""
    return lambda payload: {"params": {"head": value(payload["params"]["head"])}}


def with_leaf(value):
    """Return a change that adds the leaf `value` to every client's upload."""
    return lambda task, updates: [
        replace(update, payload=update.payload | {"more": value}) for update in updates
    ]


def first_call(value):
    """Return a change of the first call's result alone, which is of one client among several."""
    left = [value]
    return lambda task, before: left.pop()(before) if left else before


def numbered(task, state):
    """Give every client another plain number, although a cohort must have equal ones."""
    return state | {"n": next(NUMBERS)}


def with_bias(value):
    """Return a change of a personal state's bias by the function `value`."""
    return lambda task, state: {"bias": value(state["bias"])}


MALFORMED = {
    # changes of a hook's result, each with the words of its error
    "init_server": [
        (with_head(lambda h: h * NAN), "params/head' is not finite"),
        (with_head([1.0]), "'params/head' must be .* got list"),
        (with_head(lambda h: h.to_sparse()), "'params/head' must be a dense tensor"),
        (with_head(lambda h: h.to("meta")), "'params/head' must be a dense tensor .* on meta"),
        (lambda t, s: {**s, "a/b": 1}, "key 'a/b'"),
        (lambda t, s: {**s, 3: 1}, "key 3"),
        (lambda t, s: s | {"metrics": 1}, "'metrics' must be a dict .* got 1"),
        (lambda t, s: s | {"metrics": {"train_loss": 1}}, r"\['train_loss'\] .* column of rounds"),
        (lambda t, s: s | {"metrics": {"x": torch.ones(())}}, r"'x'\] .* got a tensor"),
    ],
    "init_client": [
        (with_bias(lambda b: NAN * b), "client 1: .*'bias' is not finite"),
        (first_call(lambda s: {}), "client 2: .*'bias' is new"),
        (first_call(lambda s: {"bias": torch.ones(9)}), r"'bias' .*\[4\] .*\[9\]"),
        (numbered, r"'n' is \d+, but .* client \d.* has \d+$"),
    ],
    "unseen_client_state": [
        (with_bias(lambda b: NAN * b), "'bias' is not finite"),
        (lambda t, s: {}, "'bias' is missing"),
    ],
    "available_clients": [
        (lambda t, ids: [], "at least one client"),
        (lambda t, ids: [0], "participating clients, got 0"),
    ],
    "select_clients": [
        (lambda t, ids: [], "at least one client"),
        (lambda t, ids: [ids[0], *ids], "none twice"),
        (lambda t, ids: [5], "available clients, got 5"),
        (lambda t, ids: [True], "list of client ids"),
        (lambda t, ids: torch.tensor(ids), r"got a tensor \[3\]"),
    ],
    "local_work": [
        (lambda t, share: 0, "client 1: .* above 0 and at most 1, got 0$"),
        (lambda t, share: 1.5, "got 1.5"),
        (lambda t, share: NAN, "got nan"),
        (lambda t, share: True, "got True"),
    ],
    "download": [
        (first_call(lambda s: {}), "'params/head' is new, compared with the download of client"),
        (numbered, r"'n' is \d+, but .* client \d.* has \d+$"),
        (with_head(lambda h: h * NAN), r"client \d: .*'params/head' is not finite"),
        (first_call(lambda s: {"params": {"head": torch.ones(2)}}), r"'params/head' .*\[4, 16\]"),
    ],
    "deliver": [
        (first_call(lambda s: {}), r"client \d: .*'params/head' is new"),
        (with_head(lambda h: h * NAN), "delivery 'params/head' is not finite"),
        (with_head(lambda h: h.to_sparse()), "'params/head' must be a dense tensor"),
    ],
    "client_update": [
        (lambda t, u: u[:-1], "one Update per client, got 2 for 3"),
        (lambda t, u: [x.payload for x in u], "list that holds only Updates, got dict"),
        (with_update(payload=None), "upload must be a dict .* got None"),
        (with_leaf("a"), "'more' must be .* got 'a'"),
        (with_leaf(True), "'more' must be .* got True"),
        (with_leaf(QUANTISED), "'more' must be a dense tensor .* torch.qint8"),
        (with_update(1, payload={}), "upload 'params/head' is missing"),
        (with_update(1, payload=of_head(torch.Tensor.double)), "float64 .* but the upload of"),
        (with_update(1, payload=of_head(lambda h: h[:1])), r"'params/head' .*\[1, 16\]"),
        (with_update(2, payload=of_head(lambda h: h / 0)), "is not finite .* training.lr"),
        (with_update(client_state=None), "client_state must be a dict"),
        (with_update(client_state={}), "client_state 'bias' is missing"),
        (with_update(client_state=lambda s: {"bias": s["bias"][:2]}), r"_state 'bias' .*\[2\]"),
        (with_update(client_state=lambda s: {"bias": NAN * s["bias"]}), "_state 'bias' is not"),
        (with_update(side_channel=None), "side_channel must be a dict"),
        (with_update(wrapper_state=None), "wrapper_state must be a dict"),
        (with_update(num_examples=0), "num_examples must be a positive int, got 0"),
        (with_update(num_examples=True), "num_examples must be a positive int, got True"),
        (with_update(metrics={}), "metrics must be .*'train_loss'"),
        (with_update(metrics={"train_loss": torch.ones(())}), "'train_loss'.* got a tensor"),
        (with_update(metrics={"train_loss": NAN}), "'train_loss' is not finite"),
        (with_update(metrics={"train_loss": 1.0, "round": 3}), r"\['round'\] .* column of clients"),
        (with_update(metrics={"train_loss": 1.0, 3: 3}), r"metrics\[3\] must be"),
    ],
    "receive": [
        (lambda t, u: [], "at least one Update"),
        (lambda t, u: [x.payload for x in u], "list that holds only Updates, got dict"),
        (lambda t, u: [*u, u[0]], "at most one of each client"),
        (with_update(client=-1), r"each client of the round, got .*-1"),
        (with_update(1, payload={}), "upload 'params/head' is missing"),
        (with_update(payload=None), "upload must be a dict .* got None"),
        (with_update(2, payload=of_head(lambda h: NAN * h)), r"client \d: upload .* is not finite"),
        (with_update(num_examples=0), "num_examples must be a positive int"),
    ],
    "aggregate": [
        (with_head(lambda h: h.T), r"'params/head' .*\[16, 4\].* given"),
        (with_head(lambda h: h[None]), r"'params/head' .*\[1, 4, 16\]"),
        (lambda t, s: s | {"steps": s["steps"].sum()}, r"'steps' .*\[\] .*\[1\]"),
        (with_head(lambda h: h.double()), "torch.float64"),
        (with_head(3.0), "'params/head' is 3.0"),
        (with_head(lambda h: NAN * h), "'params/head' is not finite"),
        (lambda t, s: {"params": s["params"]}, "'steps' is missing"),
        (lambda t, s: s | {"heads": torch.ones(1)}, "'heads' is new"),
        (in_round_two(lambda s: {}), "aggregate, round 2: .* is missing"),
    ],
    "personalize": [
        (with_bias(lambda b: b[0]), "'bias' must have the 6 clients as its first axis"),
        (with_bias(lambda b: NAN * b), "'bias' is not finite"),
        (with_bias(lambda b: b.to_sparse()), "'bias' must be a dense tensor"),
    ],
    "predict": [
        (lambda t, x: x[..., :3], r"logits \[6, \d+, 4\] .* got a tensor \[6, \d+, 3\]"),
        (lambda t, x: x.argmax(-1), r"got a tensor \[6, \d+\]"),
        (lambda t, x: x.long(), "floating-point on cpu, got .* torch.int64"),
        (lambda t, x: x.to("meta"), "on cpu, got .* of torch.float32 on meta"),
        (lambda t, x: x / 0, r"round 1, client \d: the loss .* is not finite"),
        (lambda t, x: 3e38 * x.sign(), "the loss of its predictions is not finite"),
        (in_round_two(lambda x: x[..., :3]), "predict, round 2, clients 0, 1"),
    ],
    "artefact": [
        (lambda t, a: {"x": [1], "y": [1, 2]}, "'norms' .*length 2"),
        (lambda t, a: {"x": 1}, "'norms' as a dict of equally long lists"),
        (lambda t, a: {3: [1]}, "'norms' as a dict of equally long lists"),
        (lambda t, a: {"x": [1, "a"]}, "'norms' as a dict of equally long lists"),
    ],
}


@pytest.mark.parametrize(
    ("hook", "change", "words"),
    [(hook, *case) for hook, cases in MALFORMED.items() for case in cases],
)
def test_a_result_that_is_malformed_or_not_finite(fickle, hook, change, words):
    fickle.change[hook] = change
    line = fickle.complaint()
    assert re.search(call(hook), line)
    assert re.search(words, line)


def test_a_wrapper_that_rejects_what_is_not_finite_must_leave_it_out(fickle, monkeypatch):
    monkeypatch.setattr(fickle, "task", with_facts(fickle.task, rejects_non_finite=True))
    fickle.change["client_update"] = with_update(2, payload=of_head(lambda h: h / 0))
    line = fickle.complaint()
    assert re.search(call("client_update"), line)
    assert re.search("is not finite .*declares rejects_non_finite; leave such an update out", line)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, x: x.mean(), r"a tensor \[3, 4\], got a tensor \[\]"),
        (lambda t, x: x.mean(1), r"a tensor \[3, 4\], got a tensor \[3\]"),
        (lambda t, x: x[..., None], r"got a tensor \[3, 4, 1\]"),
        (lambda t, x: None, "got None"),
        (lambda t, x: [x], "got list"),
        (lambda t, x: x.detach(), "must depend on the parameters"),
        (lambda t, x: x.detach() > 0, "must depend on the parameters"),
        (lambda t, x: (x, x), "the losses and a dict of counters, got a tensor"),
        (lambda t, x: (x, {}, {}), "got tuple"),
        (
            lambda t, x: (x, {"reported_loss": x.mean()}),
            r"'reported_loss' for each client and image",
        ),
        (lambda t, x: (x, {"seen": 1}), "'seen' for each client and image, .* got 1"),
        (lambda t, x: x / 0, r"client \d: upload 'params/head' is not finite"),
    ],
)
def test_a_loss_that_is_not_one_number_per_client_and_image(fickle, change, words):
    fickle.change["loss"] = change
    line = fickle.complaint()
    assert re.search(call("(train_locally|client_update)"), line)
    assert re.search(words, line)
