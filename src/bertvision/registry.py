"""A name becomes a thing: the decorator in the thing's own file is its only registration."""

from collections.abc import Callable
from typing import TypeVar

from bertvision.errors import UserError, suggest

T = TypeVar("T")


class Registry(dict[str, T]):
    """Name → thing, in the order of registration: that of the files' names, since packages import theirs so."""

    def __init__(self, noun: str) -> None:
        super().__init__()
        self.noun = noun

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files the thing under `name`; a taken name is our own mistake, so it raises at import."""

        def add(thing: T) -> T:
            if name in self:
                raise RuntimeError(f"two {self.noun}s are called '{name}'")
            self[name] = thing
            return thing

        return add

    def __missing__(self, name: str) -> T:
        raise UserError(f"there is no {self.noun} '{name}': {suggest(name, self)}")
