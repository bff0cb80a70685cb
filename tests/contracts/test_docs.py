"""The commands, options and settings that the docs name exist, and so do the heads that replace the original's."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bertvision.cli import app
from bertvision.config import RunConfig
from bertvision.heads import HEADS, list_presets
from bertvision.papers.published import load_papers
from bertvision.settings import list_settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "paper/README.md", *sorted(ROOT.glob("docs/*.md"))]
FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
SETTINGS = {key for key, *_ in list_settings(RunConfig)}
SECTIONS = {key.split(".")[0] for key in SETTINGS if "." in key}
SETTING = re.compile(rf"(?<![\w./{{-])((?:{'|'.join(sorted(SECTIONS))})\.[a-z_]+)(?![\w(./-])")
FILES = (".csv", ".db", ".json", ".jsonl", ".py", ".tsv", ".toml", ".txt")


def read_code(text: str) -> Iterator[str]:
    """Every code span, and every line of a code block; a line that ends with a backslash continues."""
    for block in FENCE.findall(text):
        yield from re.sub(r" *\\\n *", " ", block).splitlines()
    yield from SPAN.findall(FENCE.sub("", text))


def unknown_commands(code: str) -> Iterator[str]:
    found = re.match(r"(?:\$ |python -m )?bertvision ([a-z].*)", code)
    if not found:
        return
    command: Any = typer.main.get_command(app)
    words = re.sub(r" {2,}.*| #.*", "", found[1]).split()
    while hasattr(command, "commands") and words:
        name = words.pop(0)
        if name not in command.commands:
            yield f"bertvision … {name}"
            return
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    yield from (f"{command.name} {word}" for word in words if word.startswith("--") and word not in known)


def unknown_settings(code: str) -> Iterator[str]:
    for key in SETTING.findall(code):
        if not key.endswith(FILES) and key not in SETTINGS:
            yield key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_settings_on_a_page_exist(page: Path) -> None:
    code = list(read_code(page.read_text(encoding="utf-8")))
    assert [unknown for line in code for unknown in unknown_commands(line)] == []
    assert [unknown for line in code for unknown in unknown_settings(line)] == []


def test_unknown_names_are_found() -> None:
    text = "`bertvision walk RUN` `finetune.lr` `finetune.speed` `train.csv`\n```\n$ bertvision run \\\n  --fast\n```\n"
    code = list(read_code(text))
    assert [unknown for line in code for unknown in unknown_commands(line)] == ["run --fast", "bertvision … walk"]
    assert [unknown for line in code for unknown in unknown_settings(line)] == ["finetune.speed"]


def test_heads_in_place_of_the_originals_exist() -> None:
    page = (ROOT / "docs" / "from_the_original.md").read_text(encoding="utf-8")
    table = page.split("## Heads\n")[1].split("\n## ")[0]
    given = [name for row in table.strip().splitlines()[2:] for name in SPAN.findall(row.split("|")[2])]
    entries = [tomllib.loads(f"entry = {name}")["entry"] for name in given if name.startswith("{")]
    names = [name for name in given if not name.startswith("{") and name != "encoder"]
    assert len(names) > 10
    assert not set(names) - set(list_presets())
    for entry in entries:
        settings = {key for key, *_ in list_settings(HEADS[entry.pop("head")].Config)}
        assert not set(entry) - settings


def test_blocks_and_tables_that_replace_the_papers_exist() -> None:
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    cells = [
        cell for row in page.splitlines() if row.startswith("|") for part in row.split("|") for cell in part.split(";")
    ]
    named: dict[str, set[str]] = {"report": set(), "reproduce": set()}
    for cell in cells:
        start = cell.strip().partition(":")[0]
        if start in named:
            named[start] |= set(re.findall('"([^"]+)"', cell))
    blocks = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("src/bertvision/report/analyses/*.py"))
    titles = [table.title for paper in load_papers().values() for table in paper.tables]
    assert len(named["report"]) > 8 and len(named["reproduce"]) > 3
    assert [title for title in named["report"] if f'"{title}"' not in blocks] == []
    assert [title for title in named["reproduce"] if not any(known.startswith(title) for known in titles)] == []
