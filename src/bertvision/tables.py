"""A table for people: on the terminal, in Markdown files and on cards."""

from collections.abc import Iterable
from dataclasses import dataclass

# What the headings mean; only those that are shown are explained.
NOTES = {
    "EM": "EM, F1: official definition, threshold 0.",
    "F1 has": "F1 has, F1 no: on questions with and without an answer.",
    "EM*": "EM*, F1*: at the no-answer threshold chosen on held-out training questions.",
    "forced F1": "forced: on answerable questions, when the model must answer.",
    "AUC": "AUC: of the no-answer score.",
    "seconds": "seconds: the encoder's fine-tuning so far; a head's pass, which all heads share.",
}


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    first_to_go: tuple[str, ...] = ()
    """Columns left out, in this order, where the terminal is too narrow."""


def explain(columns: Iterable[str]) -> str:
    """What the headings mean, in a line."""
    shown = set(columns)
    return " ".join(note for heading, note in NOTES.items() if heading in shown)


def to_markdown(table: Table) -> str:
    lines = [f"## {table.title}", "", "| " + " | ".join(table.columns) + " |"]
    lines.append("|" + "|".join(["---"] + ["---:"] * (len(table.columns) - 1)) + "|")
    for row in table.rows:
        cells = row + [""] * (len(table.columns) - len(row))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", " ".join(filter(None, [table.note, explain(table.columns)])), ""])
