"""What a report is made of: blocks of plain sentences, a table and a picture, all computed from the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertvision.tables import Table, is_missing, show

TOLD = 24  # rows of a table that are told as a picture's words


@dataclass(frozen=True)
class Block:
    key: str = ""
    """Its anchor on the page and the stem of its files; unique in a report. An analysis may leave it to its name."""
    title: str = ""
    sentences: list[str] = field(default_factory=list)
    """What the numbers say, in plain words."""
    table: Table | None = None
    picture: dict[str, Any] | None = None
    """A Vega-Lite chart with its data, as `altair.Chart.to_dict` gives it; without colours of the page."""
    alt: str = ""
    """What the picture shows, in words; absent: the title."""
    note: str = ""
    """How it was computed, chosen or sampled, in smaller print."""
    folded: bool = False
    """Whether the table is folded away until asked for: long ones, and those the picture shows already."""
    drawn: Sequence[str] = ()
    """Headings of those figures of the table that the picture shows: its words go on with them, row by row."""
    drawn_rows: Table | None = None
    """What its words go through instead of the whole table: the rows that are drawn, or those of them that matter."""

    def in_words(self) -> str:
        """The picture for those who can't see it: what it is of, and what it shows of each row of the table."""
        lead = self.alt or self.title
        table = self.drawn_rows or self.table
        if table is None or not self.drawn:
            return lead
        columns = zip(table.columns, table.is_numeric(), strict=True)
        texts = [column for column, is_numeric in columns if not is_numeric]
        figures = [column for column in table.columns if column.heading in self.drawn]
        told = []
        for row in table.records():
            known = [column for column in figures if not is_missing(row[column.heading])]
            values = ", ".join(f"{column.heading} {show(row[column.heading], column)}" for column in known)
            cells = [(row[column.heading], column) for column in texts]
            names = ", ".join(show(cell, column) for cell, column in cells if not is_missing(cell))
            told += [f"{names}: {values}"] if known else []
        more = f"; the table has {len(told) - TOLD:,} more" if len(told) > TOLD else ""
        return f"{lead}{'' if lead.endswith('?') else '.'} {'; '.join(told[:TOLD])}{more}."


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
