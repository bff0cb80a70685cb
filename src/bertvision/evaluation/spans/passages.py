"""The distinct passages of a split, joined end to end, so that one array can hold a value for every character. One
extra position follows each passage, for its end."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Passages:
    texts: list[str]
    """The passage of each question."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Passage → its first position in the joined text."""
        places: dict[str, int] = {}
        size = 0
        for text in self.texts:
            if text not in places:
                places[text] = size
                size += len(text) + 1
        return places

    @cached_property
    def first(self) -> Int64:
        """(question,) first position of its passage in the joined text"""
        return np.array([self.places[text] for text in self.texts], dtype=np.int64)

    @cached_property
    def codes(self) -> npt.NDArray[np.uint32]:
        """(character,) code points; a blank follows each passage"""
        joined = "".join(f"{text} " for text in self.places)
        return np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
