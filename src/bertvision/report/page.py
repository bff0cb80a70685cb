"""The report as one page that opens offline: words, tables and charts, and the code that draws them, in one file."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.report.block import Block, Report
from bertvision.report.pictures import chart_spec, page_themes, plotting_bundle
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
    environment.filters["bound"] = bind_percent
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


def bind_percent(text: str) -> str:
    """No line ends between a number and its per cent sign."""
    return re.sub(r"(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", text)


def inline_script(code: str) -> str:
    """Code that can stand in a script tag: nothing in it ends the tag, and its line ends are those a browser hashes."""
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"<(?=/script|!--)", r"\\x3c", code, flags=re.IGNORECASE)


def policy(scripts: list[str]) -> str:
    """What the page may do: run these very scripts, and ask for nothing. Vega sets styles, so these are free."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: Any) -> str:
    """JSON for a script tag: no text inside can end the tag, whatever users wrote."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def file_endings(block: Block) -> list[str]:
    table = ["csv", "json"] if block.table is not None else []
    return table + (["svg", "png"] if block.picture is not None else [])


def build_table(table: Table) -> dict[str, Any]:
    """What the template needs of a table: headings, cells as shown with the value they sort by, notes."""
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
