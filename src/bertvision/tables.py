"""A table for people: on the terminal, in Markdown files and on cards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    first_to_go: tuple[str, ...] = ()
    """Columns left out, in this order, where the terminal is too narrow."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """By heading, a sentence on what it means; several headings may share one."""

    def explain(self, shown: Iterable[str]) -> str:
        """What these headings mean, in a line."""
        return " ".join(dict.fromkeys(self.meanings[heading] for heading in shown if heading in self.meanings))


def to_markdown(table: Table) -> str:
    lines = [f"## {table.title}", "", "| " + " | ".join(table.columns) + " |"]
    lines.append("|" + "|".join(["---"] + ["---:"] * (len(table.columns) - 1)) + "|")
    for row in table.rows:
        cells = row + [""] * (len(table.columns) - len(row))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", " ".join(filter(None, [table.note, table.explain(table.columns)])), ""])
