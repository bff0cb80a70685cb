"""Reports of complete (tiny) runs of every kind in a real browser: everything is drawn, without console messages."""

from pathlib import Path
from typing import Any

import pytest
from tiny_reports import build_tiny_run

from bertvision.kinds import KINDS, Kind
from bertvision.progress import Reporter

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
