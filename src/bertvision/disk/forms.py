"""Types for the forms of our files: numbers and names with the bounds above which they can't be ours.

    class LengthsFile(TypedDict):
        windows: list[Count]

A number that decides how much memory is taken or how often a loop runs always has a bound: files may come from
strangers.
"""

from typing import Annotated, Any

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=10**15)]
"""How many of something there are, or were: parameters, tokens, bytes, examples."""
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Share = Annotated[float, Meta(ge=0, le=1e6)]
Layer = Annotated[int, Meta(ge=-1000, le=1000)]
Layers = Annotated[int, Meta(ge=1, le=1000)]
Width = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Values per token, or outputs."""
Tokens = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Of one window."""
Few = Annotated[int, Meta(ge=1, le=10_000)]
"""How many candidates, folds, members."""
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Epochs = Annotated[float, Meta(ge=0, le=1e9)]
EpochsName = Annotated[str, Meta(pattern=r"^\d{1,9}(\.\d{1,9})?(e[+-]?0?[1-9])?$")]
"""Epochs as a key, written with six digits: 0.333333, 1e-05."""
Name = Annotated[str, Meta(min_length=1, max_length=300)]
"""Of a model, task, kind, head, metric."""
Figures = dict[str, int | float | None | dict[str, int | float | None]]
"""The scores of a model on a split."""
Facts = dict[str, Any]
"""What is only shown or written on."""
