"""The contract between FedLoom and a method: nine functions.

Shapes: K clients in a cohort, B batch, T tokens, P prompts, d width, C classes.

A state is a nested dict of tensors and plain scalars. In the server's state, `params` are trained
and `constants` are sent but not trained; anything else is the server's own. The engine owns all
state: hooks return new state, and a plugin keeps none. Every hook is `firstresult`.

A wrapper (kind = "wrapper" in method.toml) implements hooks with `@hookimpl(wrapper=True)`: it
yields for what the method gives, and returns it changed. `private`, in an update and in what
`init_server` returns, is what a method tells wrappers beyond its state and payload.
"""

import pluggy

hookspec = pluggy.HookspecMarker("fedloom")
hookimpl = pluggy.HookimplMarker("fedloom")

REQUIRED = ("init_server", "client_update", "aggregate", "predict")
NOBODY = -1  # the client id of the server's model: of no client in particular


@hookspec(firstresult=True)
def init_server(task):
    """The server's state before round 1."""


@hookspec(firstresult=True)
def init_client(task, client):
    """What client number `client` keeps to itself, made at its first participation. Default: {}."""


@hookspec(firstresult=True)
def newcomer(task, client, states):
    """What a client works with that never trained (held out, not sampled yet, or NOBODY).

    For evaluation alone: `states`, those of the clients that did train, by id, are nothing that a
    server or a client of a real federation would see. Default: what `init_client` gives.
    """


@hookspec(firstresult=True)
def select_clients(task):
    """Ids of the clients of round `task.round`. Default: uniform without replacement."""


@hookspec(firstresult=True)
def download(task, server, client):
    """What the server sends to `client`, maybe NOBODY; counted as bytes down.

    Default: `params` and `constants`. Every client must get the same keys and shapes. The engine
    stacks it over the cohort: a hook that takes `received` sees a leading [K, ...] axis.
    """


@hookspec(firstresult=True)
def client_update(task, received, clients):
    """Train the cohort; one `fedloom.engine.Update` per client, in the order of `clients.ids`."""


@hookspec(firstresult=True)
def aggregate(task, server, updates):
    """The server's next state, from updates sorted by client id."""


@hookspec(firstresult=True)
def predict(task, received, clients, batch):
    """Logits [K, B, C].

    A client that never trained comes with the state that `newcomer` gives. On the global test set
    the server's model is asked as a single client NOBODY (`clients.nobody`), all of whose priors
    are alike; None says that there is no such model, and the clients' own are averaged.
    """


@hookspec(firstresult=True)
def artefact(task, server, cohorts, name):
    """The table `name` of those that method.toml lists in `artefacts`, as lists by column.

    `cohorts` yields (received, clients, batch) over all clients' test images, after the last round.
    """
