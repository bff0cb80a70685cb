"""The files of a report: the page, Markdown, and every table and picture as a file.

report.html                       the page, in one file
report.md report.json             the same text and tables for people and for programs
report/<key>.json .csv            a block's table, all digits
report/<key>.svg .png             its picture
"""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any, TypedDict

from bertvision.disk import clear_disk_errors, inside, read_json, write_bytes, write_text
from bertvision.errors import UserError
from bertvision.report.block import Block, Report
from bertvision.report.markdown import render_markdown
from bertvision.report.page import render_page
from bertvision.report.pictures import draw_svg, svg_to_png
from bertvision.tables import Table, is_missing, plain

FOLDER = "report"
ENDINGS = (".json", ".csv", ".svg", ".png")
KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def write_report(report: Report, folder: Path) -> Path:
    """Write all files, the page last, and return its path. Files of an earlier report that this one did not write are
    removed; other files stay."""
    check_keys(report)
    page = render_page(report)
    with clear_disk_errors(folder, "--to"):
        folder.mkdir(parents=True, exist_ok=True)
    parts, earlier = inside(folder, FOLDER), _files_of_earlier(folder)
    written: set[Path] = set()
    for block in report.blocks():
        for ending, data in block_files(block).items():
            path = parts / f"{block.key}{ending}"
            write_bytes(path, data, "--to")
            written.add(path)
    write_text(folder / "report.md", render_markdown(report), "--to")
    write_text(folder / "report.json", to_json(report_values(report)), "--to")
    write_text(folder / "report.html", page, "--to")
    for path in earlier - written:
        path.unlink(missing_ok=True)
    return folder / "report.html"


class SavedBlock(TypedDict):
    key: str


class SavedSection(TypedDict):
    blocks: list[SavedBlock]


class ReportFile(TypedDict):
    """The part of report.json that is read again."""

    sections: list[SavedSection]


def _files_of_earlier(folder: Path) -> set[Path]:
    """The files of the report that is already there."""
    try:
        found = read_json(folder / "report.json", ReportFile)
    except UserError:  # not one of ours
        return set()
    keys = [block["key"] for section in found["sections"] for block in section["blocks"]] if found else []
    return {inside(folder, FOLDER) / f"{key}{ending}" for key in keys if KEY.fullmatch(key) for ending in ENDINGS}


def check_keys(report: Report) -> None:
    """Check that keys can be anchors and file names, and that headings are unique."""
    keys = [block.key for block in report.blocks()]
    assert len(set(keys)) == len(keys), f"two blocks share a key: {sorted(keys)}"
    for block in report.blocks():
        assert KEY.fullmatch(block.key), f"'{block.key}' is no anchor and file name"
        if block.table is not None:
            headings = block.table.headings
            assert len(set(headings)) == len(headings), f"two columns of '{block.key}' share a heading: {headings}"


def block_files(block: Block) -> dict[str, bytes]:
    """Ending → content of each file of a block."""
    files: dict[str, bytes] = {}
    if block.table is not None:
        files[".json"] = to_json(block.table.records()).encode()
        files[".csv"] = to_csv(block.table).encode()
    if block.picture is not None:
        svg = draw_svg(block.picture)
        files[".svg"] = svg.encode()
        files[".png"] = svg_to_png(svg)
    return files


def to_json(value: Any) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(table: Table) -> str:
    """Raw values under their headings; missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.headings)
    writer.writerows([["" if is_missing(cell) else cell for cell in row] for row in table.rows])
    return text.getvalue()


def report_values(report: Report) -> dict[str, Any]:
    """The report for programs: text, tables with all digits, and paths of the pictures."""
    return {
        "title": report.title,
        "facts": report.facts,
        "finding": report.finding,
        "summary": report.summary,
        "sections": [
            {"title": section.title, "blocks": [_block_values(block) for block in section.blocks]}
            for section in report.sections
        ],
        "settings": report.settings,
    }


def _block_values(block: Block) -> dict[str, Any]:
    sentences = [*block.sentences, *block.after]
    values: dict[str, Any] = {"key": block.key, "title": block.title, "sentences": sentences, "note": block.note}
    if block.shown is not None:
        texts = ["".join(piece for piece, _ in passage) for passage in block.shown.passages]
        values["example"] = {"label": block.shown.label, "group": block.shown.group, "texts": texts}
    if block.table is not None:
        values["columns"] = [{"heading": column.heading, "note": column.note} for column in block.table.columns]
        values["rows"] = block.table.records()
    if block.picture is not None:
        values["picture"] = f"{FOLDER}/{block.key}.svg"
        values["alt"] = block.in_words()
    return values
