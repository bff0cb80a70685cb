from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_blocks import answers_curve, answers_run, drawn, layers_of, rows_of
from tiny_reports import TinyRun, build_tiny_run, label_results, span_results

from bertvision.kinds import SPAN
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analyses import answering as answers
from bertvision.report.analyses.passage_lengths import passage_lengths
from bertvision.report.analyses.thresholds import threshold_curve
from bertvision.report.block import Block

ANALYSES = [
    answers.has_and_no_answer,
    answers.wrong_predictions,
    answers.second_answer,
    passage_lengths,
    threshold_curve,
]
HAS = [True] * 5 + [False] * 3
# At threshold 0: right, overlapping, wrong span, silent, right; silent, answered, silent. At -2: all silent.
MIXED = span_results([1, 0.5, 0, 1, 1, 0, 0, 0], HAS, [-1, -1, -1, 1, -1, 1, -1, 1])


def test_only_spans_have_answers(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    for name in ("encoder", "adapter_64"):
        run.add(name, results=label_results([0, 1], [0.2, 0.8]))
    finished = run.write()
    assert [analysis(finished, "dev") for analysis in ANALYSES] == [None] * len(ANALYSES)


def test_models_are_right_with_and_without_an_answer_at_their_own_threshold(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", MIXED, 0.0), ("adapter_64", MIXED, -2.0))
    block = answers.has_and_no_answer(run, "dev")
    rows = rows_of(block)
    assert list(rows["baseline"].values()) == ["baseline", 0.0, 100.0, 100.0]
    assert list(rows["encoder alone"].values())[1:] == pytest.approx([40.0, 200 / 3, 37.5])
    assert list(rows["adapter_64"].values())[1:] == [0.0, 100.0, 100.0]
    assert block and block.sentences == [
        '37.5 % of 8 questions have no answer. adapter_64 predicts "no answer" most often (100.0 %), the encoder alone '
        "least often (37.5 %).",
        "EM on the 5 questions with an answer is 40.0 for the encoder alone and 0.0 for adapter_64; on the 3 questions "
        "without an answer it is 66.7 for the encoder alone and 100.0 for adapter_64.",
    ]
    assert "own no-answer threshold" in block.note


def test_models_that_abstain_equally_often_are_not_ranked(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", MIXED, None), ("adapter_64", MIXED, None), ("last_linear", MIXED, None))
    block = answers.has_and_no_answer(run, "dev")
    assert block and block.sentences[0].endswith('have no answer. All 3 models predict "no answer" for 37.5 %.')
    assert "At no-answer threshold 0" in block.note


def test_a_run_without_heads_is_described(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", MIXED, None))
    block = answers.has_and_no_answer(run, "dev")
    assert block and block.sentences[0].endswith('The encoder alone predicts "no answer" for 37.5 %.')
    assert block.sentences[1] == (
        "EM on the 5 questions with an answer is 40.0 for the encoder alone; on the 3 questions without an answer it "
        "is 66.7 for the encoder alone."
    )
    assert passage_lengths(run, "dev") is None


def test_a_set_without_unanswerable_questions_has_no_column_for_them(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", span_results([1, 0], [True, True], [-1, -1]), None))
    block = answers.has_and_no_answer(run, "dev")
    assert rows_of(block)["encoder alone"] == {
        "model": "encoder alone",
        "EM with an answer": 50.0,
        "no answer (%)": 0.0,
    }
    assert block and block.sentences[1] == "EM on the 2 questions with an answer is 50.0 for the encoder alone."
    assert {row["questions"] for row in drawn(block)} == {"with an answer"}


def test_seeds_are_one_row_with_mean_and_deviation(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SPAN)
    run.add("encoder", results=MIXED)
    for seed, f1 in enumerate([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]):
        results = span_results(f1, [True] * 4, [-1] * 4)
        run.add(f"adapter_seed{seed}", results=results, group="adapter", head="adapter", failed=seed == 2)
    finished = run.write()
    row = rows_of(answers.has_and_no_answer(finished, "dev"))["adapter, 3 seeds, 1 stopped"]
    assert (row["EM with an answer"], row["± EM with an answer"]) == pytest.approx((75.0, 50 / np.sqrt(2)))
    wrong = rows_of(answers.wrong_predictions(finished, "dev"))["adapter, 3 seeds, 1 stopped"]
    assert wrong["wrong"] == 1 and wrong["wrong span"] == 1  # 0 and 2 of them; the third seed failed


def test_errors_have_four_types(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", MIXED, 0.0), ("adapter_64", MIXED, -2.0))
    block = answers.wrong_predictions(run, "dev")
    rows = rows_of(block)
    kinds = ["missed answer", "overlapping span", "wrong span", "false answer"]
    assert [rows["encoder alone"][kind] for kind in kinds] == [1, 1, 1, 1]
    assert [rows["encoder alone"][f"% {kind}"] for kind in kinds] == [25.0] * 4
    assert [rows["adapter_64"][kind] for kind in kinds] == [5, 0, 0, 0]
    assert rows["adapter_64"]["% wrong"] == 62.5
    shares = ["missed, % of errors with an answer", "missed, % at threshold 0"]
    assert [rows["encoder alone"][share] for share in shares] == pytest.approx([100 / 3, 100 / 3])
    assert [rows["adapter_64"][share] for share in shares] == pytest.approx([100.0, 100 / 3])
    assert block and block.sentences == [
        'The encoder alone is wrong on 4 of 8 questions (50.0 %). Its most common errors are predicting "no answer" '
        "for a question that has an answer, predicting a span that shares words with the gold answer, predicting a "
        "span that shares no words with the gold answer and answering a question that has no answer (25.0 % of the "
        'errors each). Of its wrong predictions on questions with an answer, 33.3 % are "no answer".',
        'adapter_64 is wrong on 5 of 8 questions (62.5 %). Its only type of error is predicting "no answer" for a '
        "question that has an answer.",
    ]
    assert sum(row["count"] for row in drawn(block)) == 9


def test_a_model_that_is_never_wrong_has_no_error_percentages(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", span_results([1, 0], [True, False], [-1, 1]), None))
    wrong, second = answers.wrong_predictions(run, "dev"), answers.second_answer(run, "dev")
    assert wrong and wrong.sentences == ["The encoder alone is never wrong."]
    assert second and second.sentences == ["The most likely answer of the encoder alone is never wrong."]
    assert "% wrong span" not in rows_of(wrong)["encoder alone"]


def test_the_second_answer_is_the_next_span_or_no_answer(tmp_path: Path) -> None:
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
    run = answers_run(tmp_path, ("encoder", span_results(*zip(*cases, strict=True)), -5.0))
    block = answers.second_answer(run, "dev")
    row = rows_of(block)["encoder alone"]
    assert (row["first wrong"], row["second right"], row["% second right"]) == (6, 3, 50.0)
    assert row["% with an answer"] == pytest.approx(200 / 3)
    assert row["F1 of second"] == pytest.approx(100 * (1 + 0 + 1 + 1 + 0 + 0.5) / 6)
    assert (row["% first right"], row["% first or second right"]) == (25.0, 62.5)
    assert [row["count"] for row in drawn(block)] == [2.0, 3.0, 3.0]
    assert block and block.sentences == [
        "The most likely answer of the encoder alone is wrong for 6 of 8 questions. In 50.0 % of these cases the "
        "second most likely answer is right; 66.7 % of these questions have an answer. The first answer is right for "
        "25.0 % of all questions, the first or the second for 62.5 %."
    ]


def test_errors_on_questions_without_an_answer_miss_nothing(tmp_path: Path) -> None:
    """One false answer, and a question with an answer that is right; or no question with an answer at all."""
    for place, has in (("one", [True, False]), ("none", [False, False])):
        run = answers_run(tmp_path / place, ("encoder", span_results([1, 0], has, [-1, -1]), 0.0))
        block = answers.wrong_predictions(run, "dev")
        assert not any("missed, %" in heading for heading in rows_of(block)["encoder alone"])
        assert block and not any('are "no answer"' in sentence for sentence in block.sentences)


def test_a_second_answer_that_is_never_right_is_right_for_no_kind_of_question(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", span_results([0], [True], [-3.0], [0.5]), None))
    block = answers.second_answer(run, "dev")
    assert rows_of(block)["encoder alone"]["% second right"] == 0.0
    assert "% with an answer" not in rows_of(block)["encoder alone"]
    assert block and "is right. The first answer" in block.sentences[0]


def test_without_a_second_span_no_answer_is_second(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", span_results([0.0, 0.0], [False, True], [-9.0, -9.0]), None))
    assert rows_of(answers.second_answer(run, "dev"))["encoder alone"]["second right"] == 1


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("snapshots", [(1.0,), (0.5, 1.0)])
def test_a_complete_run_has_every_analysis(tmp_path: Path, seeds: int, snapshots: tuple[float, ...]) -> None:
    run = build_tiny_run(tmp_path, SPAN, snapshots, snapshots, seeds=seeds, ensemble="both")
    for analysis in ANALYSES:
        block = analysis(run, "dev")
        assert block and block.table and block.picture and block.in_words() and len(block.sentences) in (2, 3)
        assert all("tooltip" in layer["encoding"] for layer in layers_of(block.picture))
        assert ("the first that" in block.note or "mean" in block.note) == (seeds > 1)


# ---------------------------------------------------------------------- several snapshots

# At threshold 0 a question with an answer is missed and one is right; of those without, one is right.
LATE = span_results([1, 0, 0, 0], [True, True, False, False], [-1, 1, 1, -1])
EARLY = span_results([0, 0.5, 0, 0], [True, True, False, False], [1, -1, -1, -1])


def two_snapshots(folder: Path) -> FinishedRun:
    return answers_curve(
        folder,
        {
            0.3: [("encoder", EARLY, None), ("last_linear", EARLY, None), ("adapter_64", LATE, None)],
            1.0: [("encoder", LATE, None), ("last_linear", LATE, None), ("adapter_64", EARLY, None)],
        },
    )


def cells(block: Block | None, *headings: str) -> dict[tuple[Any, Any], list[Any]]:
    """(epochs, model) → cells of a row."""
    assert block and block.table
    return {(row["epochs"], row["model"]): [row[name] for name in headings] for row in block.table.records()}


def test_every_snapshot_has_its_rows(tmp_path: Path) -> None:
    run = two_snapshots(tmp_path)
    found = cells(answers.has_and_no_answer(run, "dev"), "EM with an answer", "EM without an answer", "no answer (%)")
    early, late = [0.0, 0.0, 25.0], [50.0, 50.0, 50.0]
    assert found == {
        (None, "baseline"): [0.0, 100.0, 100.0],
        (0.3, "encoder alone"): early,
        (0.3, "last_linear (control)"): early,
        (0.3, "adapter_64"): late,
        (1.0, "encoder alone"): late,
        (1.0, "last_linear (control)"): late,
        (1.0, "adapter_64"): early,
    }
    wrong = cells(answers.wrong_predictions(run, "dev"), "wrong", "missed, % of errors with an answer")
    assert wrong[0.3, "encoder alone"] == [4, 50.0] and wrong[1.0, "encoder alone"] == [2, 100.0]
    second = cells(answers.second_answer(run, "dev"), "first wrong", "second right", "% with an answer")
    # Without a second span, "no answer" is second: right where there is none. After "no answer" comes a wrong span.
    assert second[0.3, "encoder alone"] == [4, 2, 0.0] and second[1.0, "encoder alone"] == [2, 1, 0.0]


def test_every_snapshot_is_described_briefly(tmp_path: Path) -> None:
    run = two_snapshots(tmp_path)
    has, wrong, second = (
        block.sentences
        for analysis in (answers.has_and_no_answer, answers.wrong_predictions, answers.second_answer)
        if (block := analysis(run, "dev"))
    )
    assert has == [
        "50.0 % of 4 questions have no answer.",
        'After 0.3 epochs of fine-tuning, adapter_64 predicts "no answer" most often (50.0 %), the encoder alone and '
        "the control (last_linear) least often (25.0 %). EM on the questions with an answer is 0.0 for the encoder "
        "alone and 50.0 for adapter_64; on the questions without an answer it is 0.0 for the encoder alone and 50.0 "
        "for adapter_64.",
        'After 1 epoch of fine-tuning, the encoder alone and the control (last_linear) predict "no answer" most often '
        "(50.0 %), adapter_64 least often (25.0 %). EM on the questions with an answer is 50.0 for the encoder alone "
        "and 0.0 for adapter_64; on the questions without an answer it is 50.0 for the encoder alone and 0.0 for "
        "adapter_64.",
    ]
    assert wrong[0] == (
        "After 0.3 epochs of fine-tuning, the encoder alone is wrong on 100.0 % of the questions and adapter_64 on "
        "50.0 %. Of the wrong predictions on questions with an answer, 50.0 % for the encoder alone and 100.0 % for "
        'adapter_64 are "no answer".'
    )
    assert second[1] == (
        "After 1 epoch of fine-tuning, where the most likely answer is wrong, the second is right in 50.0 % of the "
        "cases for the encoder alone (0.0 % of these questions have an answer) and in 50.0 % of the cases for "
        "adapter_64 (0.0 % of these questions have an answer)."
    )
    assert len(wrong) == len(second) == 2


def test_pictures_show_snapshots_side_by_side_and_one_snapshot_as_before(tmp_path: Path) -> None:
    run = two_snapshots(tmp_path / "two")
    bars = [row for row in drawn(answers.has_and_no_answer(run, "dev")) if "label" not in row]
    assert len(bars) == 3 * 2 * 2  # model, snapshot, kind of question; no baseline
    assert {(bar["epochs"], bar["right"]) for bar in bars if bar["model"] == "encoder alone"} == {
        (0.3, 0.0),
        (1.0, 50.0),
    }
    block = answers.wrong_predictions(run, "dev")
    assert block and "epochs" in block.drawn and "encoder alone: epochs 0.3, missed answer 1" in block.in_words()
    ends = {(row["model"], row["label"]): row["end"] for row in drawn(block) if "label" in row}
    assert ends["encoder alone", "0.3"] == 4 and ends["encoder alone", "1"] == 2
    alone = answers_run(tmp_path / "one", ("encoder", LATE, None), ("adapter_64", EARLY, None))
    for analysis in (answers.has_and_no_answer, answers.wrong_predictions, answers.second_answer):
        block = analysis(alone, "dev")
        assert block and block.table and "epochs" not in block.table.headings and "epochs" not in block.drawn
        assert not any("label" in row for row in drawn(block)) and not any("fine-tuning" in s for s in block.sentences)


def test_the_picture_of_several_snapshots_has_the_best_heads_of_each(tmp_path: Path) -> None:
    """Head 1 is best at 0.3 epochs, head 2 at 1 epoch; others are only in the table."""
    right, wrong = span_results([1, 1], [True, True], [-1, -1]), span_results([0, 0], [True, True], [-1, -1])
    half = span_results([1, 0], [True, True], [-1, -1])
    names = ["encoder", "last_linear", *(f"head{number}" for number in range(8))]
    run = answers_curve(
        tmp_path,
        {
            0.3: [(name, right if name == "head1" else wrong, None) for name in names],
            1.0: [(name, right if name == "head2" else half if name == "head1" else wrong, None) for name in names],
        },
    )
    block = answers.wrong_predictions(run, "dev")
    assert block and list(dict.fromkeys(row["model"] for row in drawn(block))) == [
        "encoder alone", "last_linear (control)", "head2", "head1",
    ]  # fmt: skip
    assert block.note.endswith("The picture leaves out 6 models; the table has all.")
    assert block.table and len(block.table.rows) == 20


def test_of_many_snapshots_the_first_and_the_last_are_described(tmp_path: Path) -> None:
    models = [("encoder", LATE, None), ("adapter_64", EARLY, None)]
    run = answers_curve(tmp_path, dict.fromkeys((0.0, 0.3, 1.0, 2.0), models))
    for analysis, count in ((answers.has_and_no_answer, 3), (answers.wrong_predictions, 2), (answers.second_answer, 2)):
        block = analysis(run, "dev")
        assert block and len(block.sentences) == count
        assert block.sentences[-2].startswith("Without fine-tuning, ")
        assert block.sentences[-1].startswith("After 2 epochs of fine-tuning, ")
        assert {epochs for epochs, _ in cells(block)} - {None} == {0.0, 0.3, 1.0, 2.0}


def test_seeds_that_failed_at_one_snapshot_count_at_the_others(tmp_path: Path) -> None:
    """Seed 0 is wrong on one of two questions, seed 1 on both; seed 1 failed at 0.3 epochs."""
    half, none = span_results([1, 0], [True, True], [-1, -1]), span_results([0, 0], [True, True], [-1, -1])
    run = TinyRun(tmp_path, SPAN)
    for epochs in (0.3, 1.0):
        run.add("encoder", epochs, results=half)
        for seed, results in enumerate((half, none)):
            failed = seed == 1 and epochs == 0.3
            run.add(f"adapter_seed{seed}", epochs, results=results, group="adapter", head="adapter", failed=failed)
    block = answers.wrong_predictions(run.write(), "dev")
    found = cells(block, "wrong", "± % wrong")
    assert found[0.3, "adapter, 2 seeds, 1 stopped"] == [1, None]
    assert found[1.0, "adapter, 2 seeds"] == [1.5, pytest.approx(25 * np.sqrt(2))]
    assert {row["model"] for row in drawn(block)} == {"encoder alone", "adapter"}


def test_a_snapshot_without_a_best_head_is_described_by_its_control(tmp_path: Path) -> None:
    run = answers_curve(
        tmp_path,
        {
            0.3: [("encoder", EARLY, None), ("last_linear", LATE, None)],
            1.0: [("encoder", LATE, None), ("adapter_64", EARLY, None)],
        },
    )
    block = answers.wrong_predictions(run, "dev")
    assert block and "and the control (last_linear) on 50.0 %" in block.sentences[0]
    assert {(row["model"], row["epochs"]) for row in drawn(block)} == {
        ("encoder alone", 0.3), ("encoder alone", 1.0), ("last_linear (control)", 0.3), ("adapter_64", 1.0),
    }  # fmt: skip


def test_a_model_that_is_never_wrong_at_any_snapshot(tmp_path: Path) -> None:
    right = span_results([1, 0], [True, False], [-1, 1])
    run = answers_curve(tmp_path, dict.fromkeys((0.3, 1.0), [("encoder", right, 0.0), ("adapter_64", right, 0.0)]))
    wrong, second = answers.wrong_predictions(run, "dev"), answers.second_answer(run, "dev")
    assert wrong and wrong.sentences[0] == (
        "After 0.3 epochs of fine-tuning, the encoder alone is wrong on 0.0 % of the questions and adapter_64 on 0.0 %."
    )
    assert second and second.sentences[1] == "After 1 epoch of fine-tuning, no most likely answer is wrong."
    has = answers.has_and_no_answer(run, "dev")
    assert has and 'After 1 epoch of fine-tuning, all 2 models predict "no answer" for 50.0 %.' in has.sentences[2]
