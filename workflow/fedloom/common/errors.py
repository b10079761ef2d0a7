"""Define the exceptions that people are meant to read, and helpers for their texts."""

import difflib
from collections.abc import Collection

# the most characters that an error quotes: of another exception's text, and of a name
MAX_REASON_CHARACTERS = 300
MAX_NAME_CHARACTERS = 100
# A line that is too long is cut in the middle. So many characters are kept of its beginning, which
# says where the error is, and of its end, which gives the advice.
BEGINNING_CHARACTERS = 1400
END_CHARACTERS = 500


class FedLoomError(Exception):
    """An error that the user can fix: one line with its file, key or client, and what to do."""

    # the exit status of the command, which prints no traceback
    status = 2

    def __init__(self, line: object) -> None:
        """Keep the line in a form that a terminal can show, whatever names the line quotes."""
        super().__init__(_bounded(escape_unprintable(str(line))))


def escape_unprintable(text: str) -> str:
    """Return a text as one line, with an escape for every unprintable character.

    A name that an error quotes can then not move a terminal's cursor or change its colours.
    """
    line = " ".join(part.strip() for part in text.splitlines())
    return "".join(_escaped(letter) for letter in line)


def _escaped(letter: str) -> str:
    """Return a letter, or its escape such as \\x1b if it is not printable."""
    if letter.isprintable():
        return letter
    return ascii(letter)[1:-1]


def _bounded(line: str) -> str:
    """Return a line; if it is too long for a person to read, without its middle."""
    if len(line) <= BEGINNING_CHARACTERS + END_CHARACTERS:
        return line
    return f"{line[:BEGINNING_CHARACTERS]} ... {line[-END_CHARACTERS:]}"


def in_words(error: BaseException) -> str:
    """Return the type and the text of any exception as one line."""
    name = type(error).__name__
    text = shorten(one_line(error))
    if not text:
        return name
    return f"{name}: {text}"


def one_line(text: object) -> str:
    """Return a text, or an exception's text, with one space for every stretch of white space."""
    return " ".join(str(text).split())


def shorten(text: str, longest: int = MAX_REASON_CHARACTERS) -> str:
    """Return a text; if it has more than `longest` characters, leave out the rest.

    The default length fits into the line of an error.
    """
    if len(text) <= longest:
        return text
    return f"{text[:longest]} ..."


def check_known(name: str, known: Collection[str], where: str) -> None:
    """Raise a FedLoomError if a name is unknown.

    The error begins with `where`, such as "keep_classes: no class".
    """
    if name not in known:
        raise FedLoomError(f"{where} {unknown_name(name, known)}")


def unknown_name(name: str, known: Collection[str]) -> str:
    """Return an error's words about an unknown name: the quoted name, and what to write instead."""
    return f"'{shorten(str(name), MAX_NAME_CHARACTERS)}'; {suggestion(name, known)}"


def suggestion(word: str, known: Collection[str]) -> str:
    """Return "did you mean ...?" if a known word is close; else return the list of known words.

    Case does not count, and dashes and blanks count as underscores. So the title FedVPT, which
    tables show, finds the name fedvpt.
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
    """A scheduler asked the job to stop before its work was done; the next attempt resumes it."""

    # EX_TEMPFAIL of sysexits.h: try again
    status = 75
