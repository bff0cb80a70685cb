"""A block of a report: plain sentences, a table and a picture, all computed from the same numbers."""

from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    heading: str
    digits: int | None = None
    """Decimals that people are shown of a number; files keep all of them. None: text, or a whole number."""
    note: str = ""
    """What the heading means, where that is not plain."""


@dataclass(frozen=True)
class Frame:
    """A table of raw values: numbers stay numbers, so that they sort and can be read by programs."""

    columns: list[Column]
    rows: list[list[Cell]]

    def records(self) -> list[dict[str, Cell]]:
        """One object a row, by heading."""
        headings = [column.heading for column in self.columns]
        return [dict(zip(headings, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Block:
    key: str
    """Its anchor on the page and the stem of its files; unique in a report."""
    title: str
    sentences: list[str] = field(default_factory=list)
    """What the numbers say, in plain words."""
    frame: Frame | None = None
    picture: dict[str, Any] | None = None
    """A Vega-Lite chart with its data, as `altair.Chart.to_dict` gives it; without colours of the page."""
    alt: str = ""
    """The picture in words, for those who can't see it."""
    note: str = ""
    """How it was computed, chosen or sampled, in smaller print."""
    folded: bool = False
    """Whether the table is folded away until asked for: long ones, and those the picture shows already."""


@dataclass(frozen=True)
class Section:
    title: str
    blocks: list[Block]


@dataclass(frozen=True)
class Report:
    title: str
    facts: list[str]
    """What was trained on what, in a few short lines under the title."""
    summary: list[str]
    """The answer first, in plain sentences."""
    sections: list[Section]
    settings: str = ""
    """TOML that repeats the run."""

    def blocks(self) -> list[Block]:
        return [block for section in self.sections for block in section.blocks]
