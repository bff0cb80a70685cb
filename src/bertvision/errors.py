"""Errors that users can fix. Messages state what was expected, what was found and what to do.

The command line prints them without a traceback.
"""

import difflib
from collections.abc import Iterable, Sequence

MOST_SHOWN, MOST_CHOICES = 80, 600
"""Characters of a value, and of a list of names, that a message repeats."""
MOST_LINE = 750
"""Characters of a line of a message."""


class UserError(ValueError):
    """Invalid input, or something missing. The message is written for users."""

    def __init__(self, message: str = "") -> None:
        super().__init__("\n".join(map(_cut, str(message).split("\n"))))


class NoDataError(UserError):
    """A folder has no file of a task."""


class ConfigError(UserError):
    """One or more mistakes in a config, all reported at once."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes = list(dict.fromkeys(map(_cut, mistakes)))
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(f"{count} in the config:\n" + "\n".join(f"  - {mistake}" for mistake in mistakes))


def _cut(line: str) -> str:
    """A line without the middle of what it repeats from a file or a command, if that is very long."""
    return line if len(line) <= MOST_LINE else f"{line[: MOST_LINE - 250]} … {line[-200:]}"


def suggest(name: object, known: Iterable[str], prefix: str = "") -> str:
    """'did you mean …? Choose from …', the end of an error about an unknown name. `prefix` is its section."""
    names = sorted(map(str, known))
    is_short = len(str(name)) <= MOST_SHOWN and sum(map(len, names)) <= 100_000  # comparing takes time
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6) if is_short else []
    choices = list_names(names)
    return f"did you mean '{prefix}{near[0]}'? Choose from {choices}." if near else f"choose from {choices}."


def shorten(value: object, most: int = MOST_SHOWN) -> str:
    """A value as Python writes it, cut to the length that a message can have."""
    if isinstance(value, str):
        return repr(value if len(value) <= most else value[:most] + "…")
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # too deep, or thousands of digits
        return f"a {type(value).__name__}"
    if "<" in text and " at 0x" in text or text.startswith("<"):  # an object without a form of its own
        return f"a {type(value).__name__}"
    return text if len(text) <= most else text[:most] + "…"


def list_names(names: Sequence[str], most: int = MOST_CHOICES) -> str:
    """Names separated by commas; of very many, the first."""
    shown: list[str] = []
    for name in names:
        name = name if len(name) <= MOST_SHOWN else name[:MOST_SHOWN] + "…"
        if (most := most - len(name) - 2) < 0:
            break
        shown.append(name)
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return ", ".join(shown) + more
