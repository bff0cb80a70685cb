"""The passages of a set's questions, each different one once, with its characters counted through: what is known of
every character then lies in one array. Behind each passage one place is left for its end."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Passages:
    texts: list[str]
    """Of each question."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each different passage begins."""
        places: dict[str, int] = {}
        size = 0
        for text in self.texts:
            if text not in places:
                places[text] = size
                size += len(text) + 1
        return places

    @cached_property
    def first(self) -> Int64:
        """(question,) where its passage begins"""
        return np.array([self.places[text] for text in self.texts], dtype=np.int64)

    @cached_property
    def codes(self) -> npt.NDArray[np.uint32]:
        """(character,) code points; a blank is behind each passage"""
        joined = "".join(f"{text} " for text in self.places)
        return np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
