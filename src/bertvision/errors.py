"""Errors that users can fix. Messages state what was expected, what was found and what to do.

The command line prints them without a traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Invalid input, or something missing. The message is written for users."""


class NoDataError(UserError):
    """A folder has no file of a task."""


class ConfigError(UserError):
    """One or more mistakes in a config, all reported at once."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes = list(dict.fromkeys(mistakes))
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(f"{count} in the config:\n" + "\n".join(f"  - {mistake}" for mistake in mistakes))


def suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """'did you mean …? Choose from …', the end of an error about an unknown name. `prefix` is its section."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    choices = ", ".join(names)
    return f"did you mean '{prefix}{near[0]}'? Choose from {choices}." if near else f"choose from {choices}."
