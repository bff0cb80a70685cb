from pathlib import Path

import numpy as np
import pytest
from tiny_blocks import answers_curve, answers_run, drawn
from tiny_reports import span_results

from bertvision.data.examples import Example
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analyses import passage_lengths as passages
from bertvision.report.analyses.passage_lengths import passage_lengths
from bertvision.report.block import Block


def lengths_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: int) -> Block | None:
    """So many questions that only the encoder gets right, with passages of 1, 2, 3 … words; then as many that only the
    head does, with longer ones; then one that both do, of 50 words."""
    words = [*range(1, 2 * alone + 1), 50]
    encoder, head = [1] * alone + [0] * alone + [1], [0] * alone + [1] * alone + [1]
    has, leads = [True] * len(words), [-1] * len(words)
    run = answers_run(
        tmp_path,
        ("encoder", span_results(encoder, has, leads), None),
        ("adapter_64", span_results(head, has, leads), None),
    )
    examples = [Example(str(count), "Who?", "word " * count, answers=()) for count in words]
    monkeypatch.setattr(FinishedRun, "examples", lambda self, split: examples)
    return passage_lengths(run, "dev")


def test_lengths_are_measured_where_only_one_model_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = lengths_block(tmp_path, monkeypatch, 8)
    assert block and block.table
    assert block.table.rows == [
        ["only encoder alone", 8, 4.5, 2.75, 6.25, 1, 8],
        ["only adapter_64", 8, 12.5, 10.75, 14.25, 9, 16],
        ["both", 1, 50.0, 50.0, 50.0, 50, 50],
        ["neither", 0, None, None, None, None, None],
    ]
    assert block.sentences[0] == (
        "The median passage has 4.5 words where only the encoder alone is right (8 questions) and 12.5 words where "
        "only adapter_64 is right (8 questions)."
    )
    # Of the 12,870 ways to mix 8 and 8 lengths two are as far apart: p = 0.00016.
    assert block.sentences[1].endswith("is unlikely to be due to chance (Mann-Whitney U test: p < 0.001).")
    assert "neither" not in block.in_words()


def test_too_few_passages_are_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = lengths_block(tmp_path, monkeypatch, 7)
    assert (
        block and block.sentences[1] == "These are too few questions for a test, which needs at least 8 on each side."
    )


def test_sides_without_questions_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = lengths_block(tmp_path, monkeypatch, 0)
    assert block and block.sentences[0] == (
        "There are no questions that only the encoder alone gets right. There are no questions that only adapter_64 "
        "gets right."
    )


def test_every_snapshot_with_a_best_head_has_its_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passages of 1 to 4 words. The head is right on the long ones at 0.3 epochs, on all but one at 1 epoch; there is
    no head at 2 epochs."""
    has, leads = [True] * 4, [-1] * 4
    one, other, most = ([1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 0])
    short, long, many = (span_results(f1, has, leads) for f1 in (one, other, most))
    run = answers_curve(
        tmp_path,
        {
            0.3: [("encoder", short, None), ("adapter_64", long, None)],
            1.0: [("encoder", short, None), ("ladder_64", many, None)],
            2.0: [("encoder", short, None)],
        },
    )
    examples = [Example(str(count), "Who?", "word " * count, answers=()) for count in range(1, 5)]
    monkeypatch.setattr(FinishedRun, "examples", lambda self, split: examples)
    block = passage_lengths(run, "dev")
    assert block and block.table
    rows = [[row[name] for name in ("epochs", "right", "questions", "median")] for row in block.table.records()]
    assert rows == [
        [0.3, "only encoder alone", 2, 1.5],
        [0.3, "only adapter_64", 2, 3.5],
        [0.3, "both", 0, None],
        [0.3, "neither", 0, None],
        [1.0, "only encoder alone", 0, None],
        [1.0, "only ladder_64", 1, 3.0],
        [1.0, "both", 2, 1.5],
        [1.0, "neither", 1, 4.0],
    ]
    few = "These are too few questions for a test, which needs at least 8 on each side."
    assert block.sentences == [
        "After 0.3 epochs of fine-tuning, the median passage has 1.5 words where only the encoder alone is right (2 "
        f"questions) and 3.5 words where only adapter_64 is right (2 questions). {few}",
        "After 1 epoch of fine-tuning, the median passage has 3 words where only ladder_64 is right (1 question). "
        f"There are no questions that only the encoder alone gets right. {few}",
    ]
    bars = {(row["model"], row["epochs"], row["right"]) for row in drawn(block)}
    assert ("only the best head", 0.3, "only adapter_64") in bars and (
        "only the best head",
        1.0,
        "only ladder_64",
    ) in bars
    assert len(bars) == 5


def test_passages_of_one_length_differ_by_nothing() -> None:
    assert passages.describe_chance(np.full(8, 5), np.full(9, 5)).endswith(
        "could be due to chance (Mann-Whitney U test: p = 1.000)."
    )
