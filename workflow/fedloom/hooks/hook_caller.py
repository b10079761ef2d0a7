"""Calls of a run's hooks: an exception in a plugin becomes one line that says where it arose."""

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pluggy

from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.ids import SERVER_MODEL
from fedloom.hooks.discovery import Located
from fedloom.hooks.hookspecs import UNPACKING

log = logging.getLogger(__name__)

MOST = 6  # clients that are named

Result = TypeVar("Result")


class Hooks:
    """The hooks of one run, its method's and its wrappers', as functions of keyword arguments.

    `hooks.predict(task=..., received=..., clients=..., batch=...)` returns what the plugins return.
    What they raise leaves as a FedLoomError that names the plugin, the hook, the round, the
    clients, and the file and line; the traceback goes to the job's log file.
    """

    def __init__(
        self, relay: pluggy.HookRelay, unpacking: pluggy.HookRelay, plugins: Sequence[Located]
    ):
        """Call the hooks of `relay`, but those that unpack in the order of `unpacking`."""
        self._relay = relay
        self._unpacking = unpacking
        self._plugins = tuple(plugins)
        self._called: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        relay = self._unpacking if name in UNPACKING else self._relay
        return partial(self._call, getattr(relay, name), name)

    def takes(self, hook: str, argument: str) -> bool:
        """Return True if a plugin's `hook` has this argument; hooks may leave arguments out."""
        implementations = getattr(self._relay, hook).get_hookimpls()
        return any(argument in one.argnames for one in implementations)

    def _call(self, caller: pluggy.HookCaller, hook: str, /, **arguments: Any) -> Any:
        if hook not in self._called:
            self._called.add(hook)
            names = [plugin.name for plugin in self._plugins]
            log.debug("%s", describe(names, hook, **_round_and_clients(arguments)))
        about = partial(_round_and_clients, arguments)
        return guarded(lambda: caller(**arguments), self._plugins, hook, about)


def _round_and_clients(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the round and the client ids that a hook was called with, if any."""
    ids = [arguments["client"]] if "client" in arguments else []
    if "clients" in arguments:
        ids = list(arguments["clients"].ids)
    return {"number": arguments["task"].round, "ids": ids}


def describe(names: Sequence[str], hook: str, number: int = 0, ids: Sequence[int] = ()) -> str:
    """Return how an error names a call: "fedavg_pt with dp_laplace: aggregate, round 3".

    Args:
        names: the method's, then its wrappers'.
        number: the round; 0 before training.
    """
    words = [hook] + ([f"round {number}"] if number else [])
    if list(ids) == [SERVER_MODEL]:
        words.append("the server's model")
    elif ids:
        shown = ", ".join(str(k) for k in ids[:MOST]) + (", ..." if len(ids) > MOST else "")
        words.append(f"client {shown}" if len(ids) == 1 else f"clients {shown}")
    method, *wrappers = names
    return f"{method}{' with ' if wrappers else ''}{', '.join(wrappers)}: {', '.join(words)}"


def guarded(
    call: Callable[[], Result],
    plugins: Sequence[Located],
    hook: str,
    about: Callable[[], dict[str, Any]] = dict,
) -> Result:
    """Return what `call` returns; an exception of a plugin leaves as a one-line FedLoomError.

    The plugin and the line that it names are those of the innermost frame that is a plugin's: what
    a plugin calls in the wrong way raises elsewhere. The traceback goes to the log file.

    Args:
        plugins: those that may be at fault, the method first.
        about: gives the arguments of `describe` beyond `plugins` and `hook`.
    """
    try:
        return call()
    except (FedLoomError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a plugin may raise SystemExit or GeneratorExit too
        where, names = "", [plugin.name for plugin in plugins]
        for plugin, file, line in _frames(plugins, error):
            where, names = f"{file}:{line}: ", [plugin.name]
        reason = in_words(error)
        if isinstance(error, SystemExit):
            reason = f"it ends the process with {reason}"
        log.debug("an exception in a plugin:", exc_info=error)
        line = f"{describe(names, hook, **about())}: {where}{reason}"
        raise FedLoomError(line) from error


def _frames(plugins: Sequence[Located], error: BaseException) -> list[tuple[Located, str, int]]:
    """Return plugin, file and line of every frame of a plugin's, the innermost last."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    return [
        (plugin, file, line)
        for file, line in frames
        for plugin in plugins
        if os.path.realpath(file).startswith(f"{os.path.realpath(plugin.folder)}{os.sep}")
    ]
