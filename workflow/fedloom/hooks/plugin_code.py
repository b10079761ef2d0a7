"""Run code of plugins: an exception in it becomes one line that says where it arose."""

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.ids import SERVER_MODEL
from fedloom.hooks.discovery import PluginManifest

log = logging.getLogger(__name__)

# how many clients an error names at most
MOST_CLIENTS = 6
Result = TypeVar("Result")


def run_plugin_code(
    call: Callable[[], Result],
    plugins: Sequence[PluginManifest],
    hook: str,
    arguments: dict[str, Any] | None = None,
) -> Result:
    """Return what `call` returns; an exception of a plugin leaves as a one-line FedLoomError.

    The line names the plugin, the hook, round, clients, file and line; the traceback goes to the
    log file.

    Args:
        plugins: those whose code `call` may run, the method first.
        arguments: those of the hook.
    """
    try:
        return call()
    except (FedLoomError, KeyboardInterrupt):
        raise
    # a plugin may raise SystemExit or GeneratorExit too
    except BaseException as error:
        log.debug("an exception in a plugin:", exc_info=error)
        names, where = _origin(error, plugins)
        number, ids = _round_and_clients(arguments or {})
        what = describe_call(names, hook, number, ids)
        raise FedLoomError(f"{what}: {where}{in_words(error)}") from error


def _origin(error: BaseException, plugins: Sequence[PluginManifest]) -> tuple[list[str], str]:
    """Return the names of the plugins that an error may be of, and its place as "file:line: ".

    The place is the innermost one in a plugin's folder; it is empty if the error arose elsewhere.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))

    # the innermost frame comes last
    for file, line in reversed(frames):
        for plugin in plugins:
            folder = f"{os.path.realpath(plugin.folder)}{os.sep}"
            if os.path.realpath(file).startswith(folder):
                return [plugin.name], f"{file}:{line or 0}: "
    return [plugin.name for plugin in plugins], ""


def _round_and_clients(arguments: dict[str, Any]) -> tuple[int, list[int]]:
    """Return the round and the clients that a hook's arguments are of; 0 and [] without."""
    number = 0
    if "task" in arguments:
        number = arguments["task"].round

    if "clients" in arguments:
        return number, list(arguments["clients"].ids)
    if "client" in arguments:
        return number, [arguments["client"]]
    return number, []


def describe_call(names: Sequence[str], hook: str, number: int = 0, ids: Sequence[int] = ()) -> str:
    """Return how an error names a call, as "method with wrapper: aggregate, round 3".

    Args:
        names: of the method and its wrappers.
        number: the round; 0: none.
        ids: of the clients.
    """
    # who was called
    method, *wrappers = names
    who = method
    if wrappers:
        who = f"{method} with {', '.join(wrappers)}"

    # the hook and the round
    words = [hook]
    if number:
        words.append(f"round {number}")

    # the clients, the first few by their ids
    if list(ids) == [SERVER_MODEL]:
        words.append("the server's model")
    elif len(ids) == 1:
        words.append(f"client {ids[0]}")
    elif ids:
        shown = ", ".join(str(client) for client in ids[:MOST_CLIENTS])
        if len(ids) > MOST_CLIENTS:
            shown += ", ..."
        words.append(f"clients {shown}")
    return f"{who}: {', '.join(words)}"
