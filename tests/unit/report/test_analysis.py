"""An analysis is asked where its needs are met, and stands where its decorator says."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_reports import build_tiny_run

from bertvision.errors import UserError
from bertvision.kinds import KINDS, LABEL, SPAN
from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.report import analyses  # noqa: F401, they register themselves
from bertvision.report.analysis import ANALYSES, SECTIONS, analysis, build_sections, gives, several_snapshots
from bertvision.report.block import Block
from bertvision.report.certainty import Certainty


class Listener(Reporter):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, text: str) -> None:
        self.heard.append(text)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(ANALYSES)
    yield
    ANALYSES.clear()
    ANALYSES.update(before)


def sections_of(run: FinishedRun) -> dict[str, list[str]]:
    found = build_sections(run, [Certainty(run, run.last, split) for split in run.splits], Reporter(), False)
    return {section.title: [block.key for block in section.blocks] for section in found}


@pytest.mark.parametrize("kind", [KINDS[name] for name in ("label", "score", "span")])
def test_sections_and_blocks_come_in_the_order_that_is_declared(kind: object, tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, kind, seeds=2, snapshots=(0.5, 1.0), head_snapshots=(0.5, 1.0))  # type: ignore[arg-type]
    found = sections_of(run)
    assert list(found) == [title for title in SECTIONS if title in found] and len(found) >= 3
    assert found["Scores"] == [
        "scores_dev_1", "comparisons_dev_1", "across_snapshots_dev", "pairs_dev_1", "scores_dev_0_5",
        "comparisons_dev_0_5", "choices",
    ]  # fmt: skip


def test_needs_that_are_not_met_leave_an_analysis_out(tmp_path: Path) -> None:
    @analysis("Mine", 10, "Mine", [gives(SpanResults), several_snapshots])
    def mine(run: FinishedRun, split: str) -> Block:
        return Block(sentences=[split])

    spans = build_tiny_run(tmp_path / "spans", SPAN, snapshots=(0.5, 1.0), head_snapshots=(0.5, 1.0))
    assert mine(spans, "dev") == Block("mine_dev", "Mine", ["dev"])
    assert sections_of(spans)["Mine"] == ["mine_dev"], "a section of its own comes last"
    assert mine(build_tiny_run(tmp_path / "one", SPAN), "dev") is None, "one snapshot"
    assert mine(build_tiny_run(tmp_path / "labels", LABEL, snapshots=(0.5, 1.0)), "dev") is None


def test_what_needs_the_encoder_is_left_out_with_a_word_where_it_is_gone(tmp_path: Path) -> None:
    @analysis("Mine", 10, "Deep look", subject="states")
    def deep_look(run: FinishedRun, split: str, reporter: Reporter) -> Block:
        raise UserError("the encoder is gone.")

    listener, run = Listener(), build_tiny_run(tmp_path, LABEL)
    assert deep_look(run, "dev", listener) is None
    assert listener.heard == ["“Deep look” is left out: the encoder is gone."]
    assert "Mine" not in sections_of(run), "it is not asked without the encoder"


def test_two_analyses_of_one_name_are_refused() -> None:
    with pytest.raises(RuntimeError, match="two report blocks are named 'choices'"):
        analysis("Mine", 10)(ANALYSES["choices"].build)
