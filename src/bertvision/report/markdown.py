"""The report as Markdown, in GitHub's dialect: the same sentences and tables, and links to the pictures beside it."""

import re

from bertvision.report.block import Block, Report
from bertvision.tables import Table, counted

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
        parts.append(f"![{escape(block.in_words())}]({folder}/{block.key}.svg)")
    if block.table is not None:
        legend = [f"**{escape(headings)}**: {escape(note)}" for headings, note in block.table.legend()]
        table = [_grid(block.table, most), "<br>".join(legend)]
        table.append(_cut_note(block.table, f"{folder}/{block.key}.csv", most))
        if block.folded:
            rows = counted(len(block.table.rows), "row")
            table = [f"<details><summary>Table, {rows}</summary>", *table, "</details>"]
        parts += table
    if block.note:
        parts.append(f"<sub>{escape(block.note)}</sub>")
    return parts


def _grid(table: Table, most: int) -> str:
    results = ["---:" if numeric else "---" for numeric in table.is_numeric()]
    rows = [[escape(_short(cell)) for cell in row] for row in table.texts()[:most]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [list(map(escape, table.headings)), results, *rows])


def _short(text: str) -> str:
    return text if len(text) <= CELL else text[:CELL].rstrip() + "…"


def _cut_note(table: Table, place: str, most: int) -> str:
    left_out = len(table.rows) > most
    shortened = any(isinstance(cell, str) and len(cell) > CELL for row in table.rows[:most] for cell in row)
    if not left_out and not shortened:
        return ""
    what = f"The first {most} of {len(table.rows):,} rows" if left_out else "Long texts are cut"
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
