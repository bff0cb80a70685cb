"""The report as Markdown: nothing a user wrote changes its form."""

import re

import pytest
from sample_reports import HOSTILE

from bertvision.report.block import Block, Report, Section, Shown
from bertvision.report.markdown import paragraph, render_markdown
from bertvision.tables import Column, Table


def rendered(block: Block, settings: str = "") -> str:
    return render_markdown(Report("Title", ["a fact"], ["The answer."], [Section("Part", [block])], settings))


def cells(line: str) -> list[str]:
    """The cells of a table's line, split as GitHub does: at pipes without a backslash."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_page_s_order_is_kept() -> None:
    text = rendered(Block("key", "Block", ["A sentence."], picture={"mark": "bar"}, alt="Bars."), 'run = "r"')
    places = [
        text.index(part)
        for part in ("# Title", "- a fact", "## Summary", "The answer.", "## Part", "### Block", "A sentence.",
                     "![Bars.](report/key.svg)", '```toml\nrun = "r"\n```')
    ]  # fmt: skip
    assert places == sorted(places)


def test_blocks_to_pick_from_are_folded_but_for_the_first() -> None:
    blocks = [
        Block(f"map{at}", f"Map {at}", ["Off by -1.5."], picture={"mark": "bar"}, alt="Down by -2.", note="At -3.",
              shown=Shown(f"text {at}", "Both", [[("so ", ""), ("it *is*", "said"), (" or", "gold")]]),
              after=["Strong by -4."])
        for at in (1, 2)
    ]  # fmt: skip
    text = render_markdown(Report("Title", [], [], [Section("Maps", blocks, "Read it.", True)], finding="Up by -5."))
    assert "**Up by −5.**\n\n## Maps\n\nRead it.\n\n### Map 1" in text
    assert "\n> so **it \\*is\\***<ins> or</ins>\n" in text
    assert text.count("<details>") == 1 and "<details><summary>Both: text 2</summary>\n\n### Map 2" in text
    for part in ("Off by −1.5.", "![Down by −2.](report/map1.svg)\n\nStrong by −4.", "<sub>At −3.</sub>"):
        assert part in text


def test_columns_for_files_are_not_shown() -> None:
    table = Table([Column("a"), Column("b")], [[1, 2]])
    assert "| a |\n| ---: |\n| 1 |" in rendered(Block("key", "Block", table=table, only_in_files=["b"]))


def test_a_table_s_cells_stay_apart_whatever_they_hold() -> None:
    frame = Table([Column("a | b"), Column("n", 1)], [[HOSTILE + "\n|\r\n|", 1234.56], ["x", None]])
    lines = [line for line in rendered(Block("key", "Block", table=frame)).splitlines() if line.startswith("|")]
    assert [len(cells(line)) for line in lines] == [2, 2, 2, 2]
    assert cells(lines[1]) == ["---", "---:"] and cells(lines[2])[1] == "1,234.6" and cells(lines[3])[1] == "–"


@pytest.mark.parametrize("rows", [40, 41, 300])
def test_a_table_of_more_than_forty_rows_is_cut_and_says_where_the_rest_is(rows: int) -> None:
    frame = Table([Column("n")], [[number] for number in range(rows)])
    text = rendered(Block("key", "Block", table=frame))
    assert sum(line.startswith("|") for line in text.splitlines()) == 2 + min(rows, 40)
    assert (f"These are the first 40 of {rows} rows" in text) == ("report/key.csv" in text) == (rows > 40)


def test_a_long_text_is_cut_and_says_where_the_rest_is() -> None:
    text = rendered(Block("key", "Block", table=Table([Column("t")], [["word " * 200]])))
    assert "…" in text and "report/key.csv" in text and len(text) < 1000


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("adapter_64", "adapter_64"),
        ("_under_ *star*", r"\_under\_ \*star\*"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("# heading", r"\# heading"),
        ("12. item", r"12\. item"),
        ("1) item", r"1\) item"),
        ("62.1 % right", "62.1 % right"),
        ("- item\n- other", r"\- item - other"),
        ("costs $5 or $6", r"costs \$5 or \$6"),
        ("[a](javascript:x)", r"\[a\](javascript:x)"),
    ],
)
def test_text_means_nothing_to_markdown(text: str, escaped: str) -> None:
    assert paragraph(text) == escaped


def test_settings_that_hold_a_fence_do_not_end_it() -> None:
    text = rendered(Block("key", "Block"), 'a = "```"')
    assert '````toml\na = "```"\n````' in text


def test_a_folded_table_is_folded() -> None:
    text = rendered(Block("key", "Block", table=Table([Column("n")], [[1]]), folded=True))
    assert "<details><summary>Table, 1 row</summary>\n\n| n |" in text and "|\n\n</details>" in text
