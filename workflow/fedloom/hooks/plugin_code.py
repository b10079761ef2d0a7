"""Run code of plugins, and turn an exception in it into one line that says where it arose."""

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.ids import SERVER_MODEL
from fedloom.hooks.discovery import PluginManifest

log = logging.getLogger(__name__)

# the largest number of clients that an error names
MOST_CLIENTS = 6
Result = TypeVar("Result")


def run_plugin_code(
    call: Callable[[], Result],
    plugins: Sequence[PluginManifest],
    hook: str,
    arguments: dict[str, Any] | None = None,
) -> Result:
    """Return what `call` returns.

    An exception in a plugin becomes a FedLoomError of one line. The line names the plugin, the
    hook, the round, the clients, the file and the line number. The traceback goes to the log file.
    A FedLoomError and KeyboardInterrupt pass unchanged.

    Args:
        plugins: the plugins whose code `call` may run, the method first.
        hook: what the error names as the call: a hook, or words such as "import of plugin.py".
        arguments: the hook's arguments by name, from which the round and the clients are read.
    """
    try:
        return call()
    except (FedLoomError, KeyboardInterrupt):
        raise
    # a plugin may raise SystemExit or GeneratorExit too
    except BaseException as error:
        log.debug("an exception in a plugin:", exc_info=error)
        names, where = _origin(error, plugins, _plugins_reached(arguments or {}))
        round_number, ids = _round_and_clients(arguments or {})
        what = describe_call(names, hook, round_number, ids)
        raise FedLoomError(f"{what}: {where}{in_words(error)}") from error


def _plugins_reached(arguments: dict[str, Any]) -> list[PluginManifest]:
    """Return the plugins that a hook reaches by its arguments: its backbone's, if that has one."""
    backbone = getattr(arguments.get("task"), "backbone", None)
    plugin = getattr(backbone, "plugin", None)
    if plugin is None:
        return []
    return [plugin]


def _origin(
    error: BaseException, plugins: Sequence[PluginManifest], reached: Sequence[PluginManifest]
) -> tuple[list[str], str]:
    """Return the names of the plugins that may have caused an error, and its place "file:line: ".

    The place is the innermost line of code in the folder of a plugin, called or reached, and that
    plugin is the only name. If no plugin's folder holds such a line, the place is empty, and the
    function returns the names of all `plugins`.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))

    # the last frame is the innermost
    for file, line in reversed(frames):
        for plugin in (*plugins, *reached):
            folder = f"{os.path.realpath(plugin.folder)}{os.sep}"
            if os.path.realpath(file).startswith(folder):
                return [plugin.name], f"{file}:{line or 0}: "
    return [plugin.name for plugin in plugins], ""


def _round_and_clients(arguments: dict[str, Any]) -> tuple[int, list[int]]:
    """Return the round and the client ids in a hook's arguments; 0 and [] if they hold none."""
    round_number = 0
    if "task" in arguments:
        round_number = arguments["task"].round

    if "clients" in arguments:
        return round_number, list(arguments["clients"].ids)
    if "client" in arguments:
        return round_number, [arguments["client"]]
    return round_number, []


def describe_call(
    names: Sequence[str], hook: str, round_number: int = 0, ids: Sequence[int] = ()
) -> str:
    """Return how an error names a call, such as "method with wrapper: aggregate, round 3".

    Args:
        names: the method's name, then the wrappers' names.
        hook: the name of the hook.
        round_number: the round, from 1; 0 if there is none.
        ids: the ids of the clients.
    """
    # the plugins that were called
    method, *wrappers = names
    who = method
    if wrappers:
        who = f"{method} with {', '.join(wrappers)}"

    # the hook and the round
    words = [hook]
    if round_number:
        words.append(f"round {round_number}")

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
