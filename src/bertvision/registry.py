"""Registries of named objects. The decorator at an object's definition is its only registration."""

from collections.abc import Callable
from typing import TypeVar

from bertvision.errors import UserError, suggest

T = TypeVar("T")


class Registry(dict[str, T]):
    """Name → object, in order of registration: alphabetical by file name, as the packages import their files."""

    def __init__(self, noun: str) -> None:
        super().__init__()
        self.noun = noun

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers an object under `name`. A duplicate is a bug, so it raises at import."""

        def add(thing: T) -> T:
            if name in self:
                raise RuntimeError(f"two {self.noun}s are named '{name}'")
            self[name] = thing
            return thing

        return add

    def __missing__(self, name: str) -> T:
        short = name[:100]
        raise UserError(f"there is no {self.noun} '{short}': {suggest(short, self)}")
