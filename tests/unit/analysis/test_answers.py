from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_reports import TinyRun, build_tiny_run, label_marks, span_marks

from bertvision.analysis import answers
from bertvision.analysis.block import Block, Cell
from bertvision.analysis.evidence import Evidence
from bertvision.evaluation.marks import SpanMarks
from bertvision.job import HELD_OUT
from bertvision.tasks.base import Example, TargetKind

ANALYSES = [
    answers.has_and_no_answer,
    answers.wrong_predictions,
    answers.second_answer,
    answers.passage_lengths,
    answers.threshold_curve,
]
HAS = [True] * 5 + [False] * 3
# At threshold 0: right, overlapping, wrong span, silent, right; silent, answered, silent. At -2: all silent.
MIXED = span_marks([1, 0.5, 0, 1, 1, 0, 0, 0], HAS, [-1, -1, -1, 1, -1, 1, -1, 1])


def run_of(folder: Path, *models: tuple[str, SpanMarks, float | None], **facts: Any) -> Evidence:
    """Models with their marks and, where held-out questions had chosen one, their threshold."""
    run = TinyRun(folder, TargetKind.SPAN)
    for name, marks, threshold in models:
        splits = {"dev": marks} if threshold is None else {"dev": marks, HELD_OUT: marks}
        run.add(name, marks=splits, threshold=threshold, **(facts if name != "encoder" else {}))
    return run.write()


def rows_of(block: Block | None) -> dict[str, dict[str, Cell]]:
    assert block is not None and block.frame is not None
    return {str(row["model"]): row for row in block.frame.records()}


def drawn(block: Block | None) -> list[dict[str, Any]]:
    """All rows of a picture's data."""
    assert block is not None and block.picture is not None
    found = [block.picture, *block.picture.get("layer", [])]
    return [row for part in found for row in part.get("data", {}).get("values", [])]


def test_only_spans_have_answers(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    for name in ("encoder", "adapter_64"):
        run.add(name, marks=label_marks([0, 1], [0.2, 0.8]))
    evidence = run.write()
    assert [analysis(evidence, "dev") for analysis in ANALYSES] == [None] * len(ANALYSES)


def test_models_are_right_with_and_without_an_answer_at_their_own_threshold(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, ("encoder", MIXED, 0.0), ("adapter_64", MIXED, -2.0))
    block = answers.has_and_no_answer(evidence, "dev")
    rows = rows_of(block)
    assert list(rows["baseline"].values()) == ["baseline", 0.0, 100.0, 100.0]
    assert list(rows["encoder itself"].values())[1:] == pytest.approx([40.0, 200 / 3, 37.5])
    assert list(rows["adapter_64"].values())[1:] == [0.0, 100.0, 100.0]
    assert block and block.sentences == [
        "Of 8 questions 37.5 % have no answer; adapter_64 said so most often, of 100.0 %, and the encoder itself least "
        "often, of 37.5 %.",
        "Of the 5 with an answer the encoder itself got 40.0 % right and adapter_64 0.0 %; of the 3 without an answer "
        "66.7 % and 100.0 %.",
    ]
    assert "own no-answer threshold" in block.note


def test_models_that_are_silent_alike_are_not_ranked(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, ("encoder", MIXED, None), ("adapter_64", MIXED, None), ("last_linear", MIXED, None))
    block = answers.has_and_no_answer(evidence, "dev")
    assert block and block.sentences[0].endswith("have no answer; all 3 models said so of 37.5 %.")
    assert "At no-answer threshold 0" in block.note


def test_a_run_of_the_encoder_alone_is_told_of_too(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, ("encoder", MIXED, None))
    block = answers.has_and_no_answer(evidence, "dev")
    assert block and block.sentences[0].endswith("the encoder itself said so of 37.5 %.")
    assert block.sentences[1] == (
        "Of the 5 with an answer the encoder itself got 40.0 % right; of the 3 without an answer 66.7 %."
    )
    assert answers.passage_lengths(evidence, "dev") is None


def test_a_set_without_unanswerable_questions_has_no_column_for_them(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, ("encoder", span_marks([1, 0], [True, True], [-1, -1]), None))
    block = answers.has_and_no_answer(evidence, "dev")
    assert rows_of(block)["encoder itself"] == {"model": "encoder itself", "EM with an answer": 50.0, "silent": 0.0}
    assert block and block.sentences[1] == "Of the 2 with an answer the encoder itself got 50.0 % right."
    assert {row["questions"] for row in drawn(block)} == {"with an answer"}


def test_seeds_are_one_row_with_mean_and_deviation(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, TargetKind.SPAN)
    run.add("encoder", marks=MIXED)
    for seed, f1 in enumerate([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]):
        marks = span_marks(f1, [True] * 4, [-1] * 4)
        run.add(f"adapter_seed{seed}", marks=marks, group="adapter", head="adapter", failed=seed == 2)
    evidence = run.write()
    row = rows_of(answers.has_and_no_answer(evidence, "dev"))["adapter, 3 seeds"]
    assert (row["EM with an answer"], row["± EM with an answer"]) == pytest.approx((75.0, 50 / np.sqrt(2)))
    wrong = rows_of(answers.wrong_predictions(evidence, "dev"))["adapter, 3 seeds"]
    assert wrong["wrong"] == 1 and wrong["wrong span"] == 1  # 0 and 2 of them; the third seed failed


def test_wrong_predictions_fall_into_four_kinds(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, ("encoder", MIXED, 0.0), ("adapter_64", MIXED, -2.0))
    block = answers.wrong_predictions(evidence, "dev")
    rows = rows_of(block)
    kinds = ["said nothing", "overlapping span", "wrong span", "answered anyway"]
    assert [rows["encoder itself"][kind] for kind in kinds] == [1, 1, 1, 1]
    assert [rows["encoder itself"][f"% {kind}"] for kind in kinds] == [25.0] * 4
    assert [rows["adapter_64"][kind] for kind in kinds] == [5, 0, 0, 0]
    assert rows["adapter_64"]["% wrong"] == 62.5
    assert block and block.sentences[1] == (
        "adapter_64 was wrong on 5 of 8 questions (62.5 %): each time it said nothing where there is an answer."
    )
    assert sum(row["count"] for row in drawn(block)) == 9


def test_a_model_that_is_never_wrong_has_no_shares_of_errors(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, ("encoder", span_marks([1, 0], [True, False], [-1, 1]), None))
    wrong, second = answers.wrong_predictions(evidence, "dev"), answers.second_answer(evidence, "dev")
    assert wrong and wrong.sentences == ["The encoder itself was never wrong."]
    assert second and second.sentences == ["The most likely answer of the encoder itself is never wrong."]
    assert "% wrong span" not in rows_of(wrong)["encoder itself"]


def test_the_second_answer_is_the_next_of_spans_and_silence(tmp_path: Path) -> None:
    cases = [  # F1 of the best span, has an answer, lead of silence, F1 of the second span (1 below the best)
        (1.0, True, 1.0, 0.0),  # silent; the best span is next, and right
        (0.0, True, -0.5, 0.5),  # silence is next, and wrong
        (0.0, True, -3.0, 1.0),  # the second span is next, and right
        (0.0, False, -0.5, 0.0),  # silence is next, and right
        (0.0, False, -3.0, 0.0),  # the second span is next, and wrong
        (0.0, True, -3.0, 0.5),  # the second span is next, and half right
        (1.0, True, -3.0, 1.0),  # the first is right
        (0.0, False, 1.0, 0.0),  # the first, silence, is right
    ]
    evidence = run_of(tmp_path, ("encoder", span_marks(*zip(*cases, strict=True)), -5.0))
    block = answers.second_answer(evidence, "dev")
    row = rows_of(block)["encoder itself"]
    assert (row["first wrong"], row["second right"], row["% second right"]) == (6, 3, 50.0)
    assert row["F1 of second"] == pytest.approx(100 * (1 + 0 + 1 + 1 + 0 + 0.5) / 6)
    assert (row["% first right"], row["% first or second right"]) == (25.0, 62.5)
    assert [row["count"] for row in drawn(block)] == [2.0, 3.0, 3.0]
    assert block and block.sentences == [
        "When the most likely answer of the encoder itself is wrong (6 of 8 questions), the second is right 50.0 % of "
        "the time: one of the two is right for 62.5 % of all questions, the first alone for 25.0 %."
    ]


def test_where_there_is_no_second_span_silence_is_second(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, ("encoder", span_marks([0.0, 0.0], [False, True], [-9.0, -9.0]), None))
    assert rows_of(answers.second_answer(evidence, "dev"))["encoder itself"]["second right"] == 1


# ---------------------------------------------------------------------- passage lengths


def lengths_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: int) -> Block | None:
    """So many questions that only the encoder gets right, with passages of 1, 2, 3 … words; then as many that only the
    head does, with longer ones; then one that both do, of 50 words."""
    words = [*range(1, 2 * alone + 1), 50]
    encoder, head = [1] * alone + [0] * alone + [1], [0] * alone + [1] * alone + [1]
    has, leads = [True] * len(words), [-1] * len(words)
    evidence = run_of(
        tmp_path, ("encoder", span_marks(encoder, has, leads), None), ("adapter_64", span_marks(head, has, leads), None)
    )
    examples = [Example(str(count), "Who?", "word " * count, answers=()) for count in words]
    monkeypatch.setattr(Evidence, "examples", lambda self, split: examples)
    return answers.passage_lengths(evidence, "dev")


def test_passages_of_what_only_one_got_right_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = lengths_block(tmp_path, monkeypatch, 8)
    assert block and block.frame
    assert block.frame.rows == [
        ["only encoder itself", 8, 4.5, 2.75, 6.25, 1, 8],
        ["only adapter_64", 8, 12.5, 10.75, 14.25, 9, 16],
        ["both", 1, 50.0, 50.0, 50.0, 50, 50],
        ["neither", 0, None, None, None, None, None],
    ]
    assert block.sentences[0] == (
        "Passages of what only the encoder itself got right (8 questions): 4.5 words in the median; of what only "
        "adapter_64 got right (8 questions): 12.5 words in the median."
    )
    # Of the 12,870 ways to mix 8 and 8 lengths two are as far apart: p = 0.00016.
    assert block.sentences[1].endswith("chance would seldom give (Mann-Whitney: p < 0.001).")
    assert "neither" not in block.alt


def test_too_few_passages_are_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = lengths_block(tmp_path, monkeypatch, 7)
    assert block and block.sentences[1] == "That is too few to test: it takes 8 questions on each side."


def test_nothing_that_only_one_got_right_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = lengths_block(tmp_path, monkeypatch, 0)
    assert block and "only the encoder itself got right (0 questions): none" in block.sentences[0]


def test_passages_of_one_length_differ_by_nothing() -> None:
    assert answers._told_of_chance(np.full(8, 5), np.full(9, 5)).endswith(
        "than chance gives (Mann-Whitney: p = 1.000)."
    )


# ---------------------------------------------------------------------- the no-answer threshold


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_beats_the_best_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    leads = draw.normal(size=40).round(1)  # some alike
    marks = span_marks(draw.choice([0, 0.3, 1], 40), draw.random(40) < 0.6, leads)
    best = marks.f1_at(answers.best_threshold(marks)).mean()
    tried = [marks.f1_at(lead + step).mean() for lead in leads for step in (-0.05, 0.05)]
    assert best == pytest.approx(max(tried))


def test_of_equal_thresholds_the_best_is_the_one_nearest_0() -> None:
    assert answers.best_threshold(span_marks([1, 1], [True, True], [-2, -1])) == 0.0
    assert answers.best_threshold(span_marks([1, 1], [True, True], [3, 1])) == 3.0


def test_the_curve_goes_through_the_chosen_threshold_and_0(tmp_path: Path) -> None:
    free = {"no_answer_auc": 61.0, "forced_exact": 62.0, "forced_f1": 63.0}
    run = TinyRun(tmp_path, TargetKind.SPAN)
    # Answering all is right 3 of 4 times; at 0 two are answered.
    marks = span_marks([1, 1, 1, 0], [True, True, True, False], [-1, -0.5, 1, 2])
    for name, threshold in (("encoder", -0.75), ("last_linear", 0.0), ("adapter_64", 1.5)):
        run.add(name, marks={"dev": marks, HELD_OUT: marks}, threshold=threshold, scores={"dev": free})
    block = answers.threshold_curve(run.write(), "dev")
    rows = rows_of(block)
    assert list(rows) == ["encoder itself", "last_linear (control)", "adapter_64"]
    assert list(rows["encoder itself"].values())[1:] == [-0.75, 50.0, 50.0, 75.0, 75.0, 1.0, 100.0, 61.0, 62.0, 63.0]
    points = [(row["threshold"], row["score"]) for row in drawn(block) if row.get("model") == "encoder itself"]
    assert {(-0.75, 50.0), (0.0, 75.0), (1.5, 100.0)} <= set(points)
    assert len(points) <= 2 * (answers.POINTS + 6)
    assert block and block.sentences == [
        "Over those chosen on held-out questions, the best threshold on this split would add 50.00 points of F1 to the "
        "encoder itself, 25.00 to last_linear (control) and 0.00 to adapter_64.",
        "It is for diagnosis only and was not used; against threshold 0 the chosen ones changed F1 by −25.00 for the "
        "encoder itself, +0.00 for last_linear (control) and +25.00 for adapter_64.",
    ]


def test_without_a_chosen_threshold_0_stands(tmp_path: Path) -> None:
    block = answers.threshold_curve(run_of(tmp_path, ("encoder", MIXED, None)), "dev")
    assert block and block.sentences[1].endswith("no threshold was chosen on held-out questions, so 0 stands.")
    assert rows_of(block)["encoder itself"]["threshold"] is None


def test_a_question_without_any_span_does_not_stretch_the_curve(tmp_path: Path) -> None:
    marks = span_marks([1, 0, 0], [True, True, False], [-1, -2, 0])
    marks.score[2] = -1e6
    block = answers.threshold_curve(run_of(tmp_path, ("encoder", marks, None)), "dev")
    assert max(abs(row["threshold"]) for row in drawn(block)) <= 2


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_whole_run_gives_every_analysis(tmp_path: Path, seeds: int) -> None:
    evidence = build_tiny_run(tmp_path, TargetKind.SPAN, seeds=seeds, ensemble="both")
    for analysis in ANALYSES:
        block = analysis(evidence, "dev")
        assert block and block.frame and block.picture and block.alt and len(block.sentences) == 2
        assert ("stands for all" in block.note or "mean" in block.note) == (seeds > 1)
