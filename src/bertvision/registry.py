"""A name becomes a thing: the decorator in the thing's own file is its only registration."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from bertvision.errors import UserError, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files the thing under `name`; a taken name is our own mistake, so it raises at import."""

        def add(thing: T) -> T:
            if name in self._things:
                raise RuntimeError(f"two {self.noun}s are called '{name}'")
            self._things[name] = thing
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise UserError(f"there is no {self.noun} '{name}': {suggest(name, self._things)}")
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def values(self) -> list[T]:
        """All things, in the order of their names."""
        return [self._things[name] for name in self]

    def __len__(self) -> int:
        return len(self._things)
