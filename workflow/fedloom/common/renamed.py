"""Tell the author of a plugin for an earlier FedLoom the new names of what the plugin uses."""

from collections.abc import Callable, Mapping


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for a module that raises an error with the new name for an old one.

    `names` maps each old name to its new name. The error is an ImportError, since Python also shows
    the message of that for `from module import name`.
    """

    def new_name(name: str) -> object:
        if name in names:
            raise ImportError(f"{module}.{name} is now {names[name]}; use that")
        raise AttributeError(f"{module} has no '{name}'")

    return new_name
