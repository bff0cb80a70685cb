"""The report as one page that opens offline: text, tables, charts and the code that draws them, in one file."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.report.block import Block, Report, Section
from bertvision.report.pictures import chart_spec, page_themes, plotting_bundle
from bertvision.report.wording import typeset
from bertvision.tables import Cell, Column, Table, is_missing, plain, show

HERE = Path(__file__).parent
SHORT_TEXT = 32
"""Characters up to which a cell stays on one line."""
LONG_TEXT = 180
"""Characters from which a cell is folded to a few lines."""
LONG_TABLE = 20
"""Rows from which a table scrolls under its headings."""


def render_page(report: Report) -> str:
    environment = _environment()
    environment.filters["words"] = to_words
    environment.filters["typeset"] = typeset
    template = environment.get_template("page.html")
    scripts = [(HERE / "page.js").read_text(encoding="utf-8")]
    if any(block.picture is not None for block in report.blocks()):
        scripts.append(plotting_bundle())
    scripts = [inline_script(script) for script in scripts]
    return template.render(
        report=report,
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        policy=policy(scripts),
        themes=script_json(page_themes()),
        spec=lambda block: script_json(chart_spec(block.picture)),
        table=build_table,
        endings=file_endings,
        opening=next((section for section in report.sections if not section.is_picked), None),
        by_group=by_group,
    )


def _environment() -> Any:
    try:
        import jinja2
    except ImportError:
        raise UserError("a report's page needs jinja2: pip install 'bertvision[report]'.") from None
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def to_words(text: str) -> str:
    """A sentence as the page shows it: true minus signs, and no line break inside "95 %" and "p = 0.347"."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=\bp.[=<]) (?=\d)", "\N{NO-BREAK SPACE}", typeset(text))


def inline_script(code: str) -> str:
    """Code for a script tag: nothing in it ends the tag, and it has the line ends that a browser hashes."""
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"<(?=/script|!--)", r"\\x3c", code, flags=re.IGNORECASE)


def policy(scripts: list[str]) -> str:
    """The content security policy: these scripts and no requests. Vega sets styles, so styles are allowed."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: Any) -> str:
    """JSON for a script tag: no text of a user can end the tag."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def by_group(section: Section) -> list[tuple[str, list[Block]]]:
    """Blocks to pick from under the headings of their list."""
    groups: dict[str, list[Block]] = {}
    for block in section.blocks:
        groups.setdefault(block.shown.group if block.shown else "", []).append(block)
    return list(groups.items())


def file_endings(block: Block) -> list[str]:
    table = ["csv", "json"] if block.table is not None else []
    return table + (["svg", "png"] if block.picture is not None else [])


def build_table(table: Table) -> dict[str, Any]:
    """A table for the template: headings, cells as shown with the value they sort by, notes."""
    parts = list(zip(table.columns, table.is_numeric(), strict=True))
    return {
        "headings": [{"text": column.heading, "note": column.note, "numeric": numeric} for column, numeric in parts],
        "rows": [[_cell(cell, *part) for cell, part in zip(row, parts, strict=True)] for row in table.rows],
        "notes": table.legend(),
        "long": len(table.rows) > LONG_TABLE,
    }


def _cell(cell: Cell, column: Column, numeric: bool) -> dict[str, Any]:
    text, missing = show(cell, column), is_missing(cell)
    return {
        "text": text,
        "value": "" if missing else repr(cell) if numeric else None,
        "numeric": numeric,
        "missing": missing,
        "short": len(text) <= SHORT_TEXT,
        "long": len(text) > LONG_TEXT,
    }
