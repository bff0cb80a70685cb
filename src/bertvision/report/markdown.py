"""The report as GitHub Markdown: the same sentences and tables, with links to the pictures."""

import re

from bertvision.report.block import Block, Passage, Report, Section
from bertvision.report.wording import typeset
from bertvision.tables import Table, counted

ROWS = 40
CELL = 240
"""Characters of a cell; the CSV has the full texts."""


def render_markdown(report: Report, folder: str = "report", most: int = ROWS) -> str:
    """`folder` contains the files of the blocks; tables are cut after `most` rows."""
    parts = [f"# {escape(report.title)}", "\n".join(f"- {escape(typeset(fact))}" for fact in report.facts)]
    parts.append(f"**{escape(typeset(report.finding))}**" if report.finding else "")
    if report.summary:
        parts += ["## Summary", *[paragraph(sentence) for sentence in report.summary]]
    for section in report.sections:
        parts += [f"## {escape(section.title)}", paragraph(section.intro), *_section_parts(section, folder, most)]
    if report.settings:
        parts += ["## Settings", _fenced(report.settings)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section_parts(section: Section, folder: str, most: int) -> list[str]:
    """Of blocks that are picked on the page, all but the first are folded."""
    found = [_block_parts(block, folder, most) for block in section.blocks]
    if section.is_picked:
        for parts, block in list(zip(found, section.blocks, strict=True))[1:]:
            label = f"{block.shown.group}: {block.shown.label}" if block.shown else block.title
            parts[:] = [f"<details><summary>{escape(label)}</summary>", *parts, "</details>"]
    return [part for parts in found for part in parts]


def _block_parts(block: Block, folder: str, most: int) -> list[str]:
    parts = [f"### {escape(block.title)}", *[paragraph(sentence) for sentence in block.sentences]]
    parts += [f"> {_marked(passage)}" for passage in (block.shown.passages if block.shown else [])]
    if block.picture is not None:
        parts.append(f"![{escape(typeset(block.in_words()))}]({folder}/{block.key}.svg)")
    parts += [paragraph(sentence) for sentence in block.after]
    visible = block.visible_table()
    if visible is not None:
        legend = [f"**{escape(headings)}**: {escape(typeset(note))}" for headings, note in visible.legend()]
        table = [_grid(visible, most), "<br>".join(legend)]
        table.append(_cut_note(visible, f"{folder}/{block.key}.csv", most))
        if block.folded:
            rows = counted(len(visible.rows), "row")
            table = [f"<details><summary>Table, {rows}</summary>", *table, "</details>"]
        parts += table
    if block.note:
        parts.append(f"<sub>{escape(typeset(block.note))}</sub>")
    return parts


def _marked(passage: Passage) -> str:
    """The prediction in bold, a gold answer that differs from it underlined."""
    found = "".join(f"\0{role}\0{piece}\0" if role else piece for piece, role in passage)
    line = escape(found)  # as one line, so that spaces between the pieces stay
    line = re.sub("\0gold\0(.*?)\0", r"<ins>\1</ins>", line)
    return re.sub("\0(?:said|both)\0(.*?)\0", r"**\1**", line)


def _grid(table: Table, most: int) -> str:
    alignments = ["---:" if numeric else "---" for numeric in table.is_numeric()]
    rows = [[escape(_short(cell)) for cell in row] for row in table.texts()[:most]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [list(map(escape, table.headings)), alignments, *rows])


def _short(text: str) -> str:
    return text if len(text) <= CELL else text[:CELL].rstrip() + "…"


def _cut_note(table: Table, place: str, most: int) -> str:
    left_out = len(table.rows) > most
    shortened = any(isinstance(cell, str) and len(cell) > CELL for row in table.rows[:most] for cell in row)
    if not left_out and not shortened:
        return ""
    what = f"These are the first {most} of {len(table.rows):,} rows" if left_out else "Long texts are cut"
    return f"{what}; the full table is in [{place}]({place})."


def escape(text: str) -> str:
    """Text as one line without meaning to Markdown, HTML or a table."""
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]|~$])", r"\\\1", line)
    # Between letters and digits GitHub leaves an underscore alone: adapter_64 stays readable.
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", line)


def paragraph(text: str) -> str:
    """A sentence at the start of a line, where some characters would begin a heading, a list or a rule."""
    return re.sub(r"^(\d*)([#+=-]|(?<=\d)[.)](?=\s))", r"\1\\\2", escape(typeset(text)))


def _fenced(text: str) -> str:
    """A fence longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}toml\n{text.strip()}\n{fence}"
