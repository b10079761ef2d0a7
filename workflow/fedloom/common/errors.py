"""The exceptions that people are meant to read."""

import difflib
from collections.abc import Collection

# the most characters of an exception's text, and of a name, that an error quotes
MAX_REASON_CHARACTERS = 300
MAX_NAME_CHARACTERS = 100
# Characters that are kept of a line that is too long, which is cut in the middle: the place of the
# error is at its beginning, the advice at its end.
BEGINNING_CHARACTERS = 1400
END_CHARACTERS = 500


class FedLoomError(Exception):
    """An error that the user can fix: one line with its file, key or client, and what to do."""

    # the exit status of the command, which prints no traceback
    status = 2

    def __init__(self, line: object) -> None:
        """Keep the line as a terminal can show it, whatever names it quotes."""
        super().__init__(_bounded(legible(str(line))))


def legible(text: str) -> str:
    """Return a text as one line, in which a character that is not printable is its escape.

    So no name that an error quotes can move a terminal's cursor or change its colours.
    """
    line = " ".join(part.strip() for part in text.splitlines())
    return "".join(_escaped(letter) for letter in line)


def _escaped(letter: str) -> str:
    """Return a letter, or its escape such as \\x1b if it is not printable."""
    if letter.isprintable():
        return letter
    return ascii(letter)[1:-1]


def _bounded(line: str) -> str:
    """Return a line that a person can read, without the middle of a very long one."""
    if len(line) <= BEGINNING_CHARACTERS + END_CHARACTERS:
        return line
    return f"{line[:BEGINNING_CHARACTERS]} ... {line[-END_CHARACTERS:]}"


def in_words(error: BaseException) -> str:
    """Return type and text of any exception in one line."""
    name = type(error).__name__
    text = shortened(one_line(error))
    if not text:
        return name
    return f"{name}: {text}"


def one_line(text: object) -> str:
    """Return a text, or that of an exception, with single spaces for ends of lines."""
    return " ".join(str(text).split())


def shortened(text: str, longest: int = MAX_REASON_CHARACTERS) -> str:
    """Return a text that fits into a line of an error, by default, or into `longest` characters."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]} ..."


def check_known(name: str, known: Collection[str], where: str) -> None:
    """Refuse an unknown name; `where` begins the error, as "keep_classes: no class"."""
    if name not in known:
        raise FedLoomError(f"{where} {unknown_name(name, known)}")


def unknown_name(name: str, known: Collection[str]) -> str:
    """Return how an error quotes a name that is not among the known ones, and what to write."""
    return f"'{shortened(str(name), MAX_NAME_CHARACTERS)}'; {suggestion(name, known)}"


def suggestion(word: str, known: Collection[str]) -> str:
    """Return "did you mean ...?", or the list of known words.

    Case and dashes do not count, so that FedVPT, as tables have it, finds fedvpt.
    """
    plain = {_plain(each): each for each in sorted(known, reverse=True)}
    close = difflib.get_close_matches(_plain(word), plain, n=1)
    if close:
        return f"did you mean '{plain[close[0]]}'?"
    return f"known: {', '.join(sorted(known)) or 'none'}"


def _plain(word: str) -> str:
    """Return a name in small letters, with underscores for dashes and blanks."""
    return word.lower().replace("-", "_").replace(" ", "_")


class NotFiniteError(FedLoomError):
    """Training has diverged: a number is NaN or infinite."""


class StoppedError(FedLoomError):
    """A scheduler asked the job to stop before its work was done; the next attempt goes on."""

    # EX_TEMPFAIL of sysexits.h: try again
    status = 75
