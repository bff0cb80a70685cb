"""Errors a user can act on: what was expected, what came, what to do. The command line prints no traceback for them."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input or a missing part. The message is written for the user."""


class ConfigError(UserError):
    """One or more mistakes in a config, all shown at once."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes = list(dict.fromkeys(mistakes))
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(f"{count} in the config:\n" + "\n".join(f"  - {mistake}" for mistake in mistakes))


def suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """'did you mean …? It can be …', for the end of an error about an unknown name; `prefix` is its section."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    choices = f"can be {', '.join(names)}."
    return f"did you mean '{prefix}{near[0]}'? It {choices}" if near else f"it {choices}"
