"""The parts of a report: blocks of plain sentences, a table and a picture, all computed from the same numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertvision.tables import Table, is_missing, show

DESCRIBED = 24  # rows of a table that the text of a picture goes through


def block_key(*parts: object) -> str:
    """A block's key from its analysis, split and snapshot, whose names may have other characters."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", "_".join(map(str, parts)))


Passage = list[tuple[str, str]]
"""A text in pieces: (piece, role), where a role is "said" (predicted), "gold", "both" or empty."""


@dataclass(frozen=True)
class Shown:
    """The example that a block is about, in a section whose blocks are picked from a list."""

    label: str
    """Its entry in the list …"""
    group: str = ""
    """… and the heading of the entry."""
    passages: list[Passage] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    key: str = ""
    """Its anchor on the page and the stem of its files; unique in a report. Default: the name of the analysis."""
    title: str = ""
    sentences: list[str] = field(default_factory=list)
    """What the numbers say, in plain words."""
    table: Table | None = None
    picture: dict[str, Any] | None = None
    """A Vega-Lite chart with its data, as `altair.Chart.to_dict` returns it; without colours of the page."""
    alt: str = ""
    """What the picture shows, in words; default: the title."""
    note: str = ""
    """How it was computed, chosen or sampled, in smaller print."""
    folded: bool = False
    """Whether the table is folded: long ones, and those that the picture shows already."""
    drawn: Sequence[str] = ()
    """Headings of the table's columns that the picture shows: its text goes through them, row by row."""
    drawn_rows: Table | None = None
    """The rows that the text goes through; default: the whole table."""
    shown: Shown | None = None
    after: list[str] = field(default_factory=list)
    """Sentences under the picture."""
    only_in_files: Sequence[str] = ()
    """Headings of columns that are left out on the page, since they would make the table too wide to read."""

    def visible_table(self) -> Table | None:
        """The table as people see it; its files have every column."""
        if self.table is None or not self.only_in_files:
            return self.table
        kept = [at for at, column in enumerate(self.table.columns) if column.heading not in self.only_in_files]
        return Table([self.table.columns[at] for at in kept], [[row[at] for at in kept] for row in self.table.rows])

    def in_words(self) -> str:
        """The picture as text: its subject, and its values for each row of the table."""
        lead = self.alt or self.title
        table = self.drawn_rows or self.table
        if table is None or not self.drawn:
            return lead
        columns = zip(table.columns, table.is_numeric(), strict=True)
        texts = [column for column, is_numeric in columns if not is_numeric]
        figures = [column for column in table.columns if column.heading in self.drawn]
        described = []
        for row in table.records():
            known = [column for column in figures if not is_missing(row[column.heading])]
            values = ", ".join(f"{column.heading} {show(row[column.heading], column)}" for column in known)
            cells = [(row[column.heading], column) for column in texts]
            names = ", ".join(show(cell, column) for cell, column in cells if not is_missing(cell))
            described += [f"{names}: {values}"] if known else []
        more = f"; the table has {len(described) - DESCRIBED:,} more" if len(described) > DESCRIBED else ""
        return f"{lead}{'' if lead.endswith('?') else '.'} {'; '.join(described[:DESCRIBED])}{more}."


@dataclass(frozen=True)
class Section:
    title: str
    blocks: list[Block]
    intro: str = ""
    """How to read its blocks."""
    is_picked: bool = False
    """Whether one block is shown at a time, picked from a list; each has `shown`."""


@dataclass(frozen=True)
class Report:
    title: str
    facts: list[str]
    """Task, encoder, data and device, in a few short lines under the title."""
    summary: list[str]
    """The main results, one short paragraph each."""
    sections: list[Section]
    settings: str = ""
    """TOML that repeats the run."""
    finding: str = ""
    """The result in one sentence."""

    def blocks(self) -> list[Block]:
        return [block for section in self.sections for block in section.blocks]
