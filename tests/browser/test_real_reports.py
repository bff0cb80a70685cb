"""Reports of complete (tiny) runs of every kind in a real browser: everything is drawn, without console messages."""

from pathlib import Path
from typing import Any

import pytest
from tiny_reports import build_tiny_run

from bertvision.kinds import KINDS, Kind
from bertvision.progress import Reporter
from tests.reliability.hostile import HTML, write_page

HEADS = ["learned_pooling", {"head": "adapter_64", "data_fraction": [0.5, 1.0]}]


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("kind", KINDS.values())
def test_a_report_is_drawn_completely_without_console_messages(
    kind: Kind, seeds: int, open_page: Any, tmp_path: Path
) -> None:
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    from bertvision.report.build import build_report
    from bertvision.report.page import render_page

    ensemble, shots = ("both", (0.5, 1.0)) if seeds > 1 else (None, (1.0,))
    run = build_tiny_run(tmp_path / "run", kind, (0.5, 1.0), shots, seeds, HEADS, ensemble=ensemble)
    report = build_report(run, Reporter(), with_encoder=False)
    (tmp_path / "report.html").write_text(render_page(report), encoding="utf-8")
    opened = open_page(tmp_path / "report.html", width=360)

    assert opened.messages == []
    assert {address for address in opened.requests if not address.startswith("data:")} == {opened.address}
    charts = sum(block.picture is not None for block in report.blocks())
    assert opened.page.locator("figure .drawing svg").count() == charts > 8
    assert opened.page.locator(".instead:visible").count() == 0
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("first", range(0, len(HTML), 3))
def test_hostile_text_runs_nothing_and_asks_for_nothing(first: int, open_page: Any, tmp_path: Path) -> None:
    """Labels, texts and settings of a stranger's run that would be HTML: it sets window.bad, opens dialogs, asks for
    other pages or hides the page."""
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    labels = [HTML[(first + number) % len(HTML)] for number in range(3)]
    page = write_page(tmp_path / "run", labels, HTML[(first + 3) % len(HTML)], HTML[(first + 4) % len(HTML)])
    opened = open_page(page)
    dialogs: list[str] = []
    opened.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    opened.page.evaluate(
        """document.querySelectorAll('body *').forEach(one => ['mouseover', 'click'].forEach(
            event => one.tagName === 'A' || one.dispatchEvent(new MouseEvent(event, { bubbles: true }))))"""
    )

    assert opened.page.evaluate("window.bad") is None and dialogs == []
    assert {address for address in opened.requests if not address.startswith(("data:", "blob:"))} == {opened.address}
    assert opened.page.locator("h1:visible").count() == 1
