"""Every relative link in the Markdown files leads to an existing file and, with an anchor, to an existing heading."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *(`{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^\s)]+)\)|(?:href|src)=\"([^\"]+)\"")
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def anchors(text: str) -> set[str]:
    """GitHub's anchors: lower case, punctuation removed, blanks as hyphens; repeated headings are numbered."""
    found, seen = set(), Counter[str]()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", text), re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken_links(page: Path) -> list[str]:
    found = []
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in map("".join, LINK.findall(prose)):
        if EXTERNAL.match(link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path) if path else page
        if not target.exists():
            found.append(f"{link}: there is no such file")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text(encoding="utf-8"))):
            found.append(f"{link}: there is no such heading")
    return found


def pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines()]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `b`: c?\n\n# Twice\n\n# Twice\n\n```\n# code\n```\n", encoding="utf-8")
    text = "[](other.md#a-b-c) [](other.md#twice-1) [](https://x.y) `[](code.md)` [](no.md) [](other.md#code) [](#no)"
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    assert [line.partition(":")[0] for line in broken_links(tmp_path / "page.md")] == ["no.md", "other.md#code", "#no"]
