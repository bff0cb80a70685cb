"""The report as Markdown, in GitHub's dialect: the same sentences and tables, and links to the pictures beside it."""

import re

from bertvision.report.block import Block, Cell, Column, Frame, Report
from bertvision.report.cells import group_notes, numeric_columns, show

ROWS = 40
CELL = 240
"""Characters of a cell; whole texts are in the CSV."""


def render_markdown(report: Report, folder: str = "report", most: int = ROWS) -> str:
    """`folder` is where the files of its blocks lie; tables are cut after `most` rows."""
    parts = [f"# {escape(report.title)}", "\n".join(f"- {escape(fact)}" for fact in report.facts)]
    if report.summary:
        parts += ["## Summary", *[paragraph(sentence) for sentence in report.summary]]
    for section in report.sections:
        parts.append(f"## {escape(section.title)}")
        for block in section.blocks:
            parts += _block_parts(block, folder, most)
    if report.settings:
        parts += ["## Settings", _fenced(report.settings)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block_parts(block: Block, folder: str, most: int) -> list[str]:
    parts = [f"### {escape(block.title)}", *[paragraph(sentence) for sentence in block.sentences]]
    if block.picture is not None:
        parts.append(f"![{escape(block.alt or block.title)}]({folder}/{block.key}.svg)")
    if block.frame is not None:
        place = f"{folder}/{block.key}.csv"
        table = [_table(block.frame, most), _legend(block.frame), _cut_note(block.frame, place, most)]
        if block.folded:
            rows = f"{len(block.frame.rows):,} row" + ("" if len(block.frame.rows) == 1 else "s")
            table = [f"<details><summary>Table, {rows}</summary>", *table, "</details>"]
        parts += table
    if block.note:
        parts.append(f"<sub>{escape(block.note)}</sub>")
    return parts


def _table(frame: Frame, most: int) -> str:
    numeric = numeric_columns(frame)
    lines = [
        _row([escape(column.heading) for column in frame.columns]),
        _row(["---:" if number else "---" for number in numeric]),
    ]
    for row in frame.rows[:most]:
        lines.append(_row([escape(_short(cell, column)) for cell, column in zip(row, frame.columns, strict=True)]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(cell: Cell, column: Column) -> str:
    text = show(cell, column)
    return text if len(text) <= CELL else text[:CELL].rstrip() + "…"


def _legend(frame: Frame) -> str:
    return "<br>".join(f"**{escape(headings)}**: {escape(note)}" for headings, note in group_notes(frame))


def _cut_note(frame: Frame, place: str, most: int) -> str:
    left_out = len(frame.rows) > most
    shortened = any(isinstance(cell, str) and len(cell) > CELL for row in frame.rows[:most] for cell in row)
    if not left_out and not shortened:
        return ""
    what = f"The first {most} of {len(frame.rows):,} rows" if left_out else "Long texts are cut"
    return f"{what}; all is in [{place}]({place})."


def escape(text: str) -> str:
    """Text of users as one line that means nothing to Markdown, HTML or a table."""
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]|~$])", r"\\\1", line)
    # Between letters and figures GitHub leaves an underscore alone: adapter_64 stays readable.
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", line)


def paragraph(text: str) -> str:
    """Text that stands at a line's start, where some signs would make a heading, a list or a rule."""
    return re.sub(r"^(\d*)([#+=-]|(?<=\d)[.)](?=\s))", r"\1\\\2", escape(text))


def _fenced(text: str) -> str:
    """A fence longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}toml\n{text.strip()}\n{fence}"
