"""Errors as a person meets them: one line that names a file, a key or a value."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedloom.common.errors import FedLoomError


@contextmanager
def refused(*words: object, kind: type[Exception] = FedLoomError) -> Iterator[pytest.ExceptionInfo]:
    """Require an error of one printable line in which all `words` occur, and hand it out."""
    with pytest.raises(kind) as error:
        yield error
    line = str(error.value)
    assert line.isprintable(), "one line, of characters that a log can show"
    missing = [word for word in map(str, words) if word not in line]
    assert not missing, f"{missing} not in: {line}"
