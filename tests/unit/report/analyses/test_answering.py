from pathlib import Path

import numpy as np
import pytest
from tiny_blocks import answers_run, drawn, rows_of
from tiny_reports import TinyRun, build_tiny_run, label_results, span_results

from bertvision.kinds import SPAN
from bertvision.report.analyses import answering as answers
from bertvision.report.analyses.passage_lengths import passage_lengths
from bertvision.report.analyses.thresholds import threshold_curve

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
    assert block and block.sentences == [
        'The encoder alone is wrong on 4 of 8 questions (50.0 %). Its most common errors are predicting "no answer" '
        "for a question that has an answer, predicting a span that shares words with the gold answer, predicting a "
        "span that shares no words with the gold answer and answering a question that has no answer (25.0 % of the "
        "errors each).",
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
    assert row["F1 of second"] == pytest.approx(100 * (1 + 0 + 1 + 1 + 0 + 0.5) / 6)
    assert (row["% first right"], row["% first or second right"]) == (25.0, 62.5)
    assert [row["count"] for row in drawn(block)] == [2.0, 3.0, 3.0]
    assert block and block.sentences == [
        "The most likely answer of the encoder alone is wrong for 6 of 8 questions. In 50.0 % of these cases the "
        "second most likely answer is right. The first answer is right for 25.0 % of all questions, the first or the "
        "second for 62.5 %."
    ]


def test_without_a_second_span_no_answer_is_second(tmp_path: Path) -> None:
    run = answers_run(tmp_path, ("encoder", span_results([0.0, 0.0], [False, True], [-9.0, -9.0]), None))
    assert rows_of(answers.second_answer(run, "dev"))["encoder alone"]["second right"] == 1


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_complete_run_has_every_analysis(tmp_path: Path, seeds: int) -> None:
    run = build_tiny_run(tmp_path, SPAN, seeds=seeds, ensemble="both")
    for analysis in ANALYSES:
        block = analysis(run, "dev")
        assert block and block.table and block.picture and block.in_words() and len(block.sentences) == 2
        assert ("the first that" in block.note or "mean" in block.note) == (seeds > 1)
