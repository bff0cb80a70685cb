"""Per-example results reproduce the official scores at any threshold, and can be saved and loaded."""

from pathlib import Path

import numpy as np
import pytest
from tiny_reports import span_results
from tiny_spans import threshold_free

from bertvision.data.examples import Answer, Example
from bertvision.evaluation.spans import official as squad
from bertvision.evaluation.spans.answers import NO_SPAN, Candidate, SpanAnswer
from bertvision.evaluation.spans.decode import answers_at
from bertvision.kinds import LABEL, SCORE, SPAN, load_results, save_results
from bertvision.kinds.label import LabelResults
from bertvision.kinds.score import ScoreResults
from bertvision.kinds.span import SpanPredictions, SpanResults

EXAMPLES = [
    Example("right", "q", "the red fox", answers=(Answer("red fox", 4), Answer("fox", 8))),
    Example("partly", "q", "the red fox", answers=(Answer("red fox", 4),)),
    Example("none", "q", "the red fox", answers=()),
    Example("silent", "q", "the red fox", answers=(Answer("the", 0), Answer("fox", 8))),
    # By the official definition, an answer that consists of an article counts as none.
    Example("article", "q", "the red fox", answers=(Answer("the", 0),)),
]


def answer(name: str, text: str, score: float, null_score: float, *more: tuple[str, float]) -> SpanAnswer:
    n_best = [Candidate(words, 0, len(words), value, 0.1) for words, value in [(text, score), *more]]
    return SpanAnswer(name, text, 0, len(text), score, null_score, 0.1, n_best)


ANSWERS = [
    answer("right", "the fox", -1.0, -5.0, ("red", -2.0)),
    answer("partly", "red", -1.0, -0.5, ("red fox", -1.5)),
    answer("none", "fox", -3.0, -1.0),
    answer("silent", "red", -3.0, -1.0, ("fox", -4.0)),
    answer("article", "fox", -1.0, -2.0, ("the", -9.0)),
]


@pytest.fixture(scope="module")
def spans() -> SpanResults:
    results = SPAN.example_results(SpanPredictions([e.id for e in EXAMPLES], ANSWERS), EXAMPLES)
    assert isinstance(results, SpanResults)
    return results


def test_results_of_spans_equal_values_computed_by_hand(spans: SpanResults) -> None:
    assert spans.exact.tolist() == [1, 0, 0, 0, 0]
    np.testing.assert_allclose(spans.f1, [1, 2 / 3, 0, 0, 0])
    assert spans.silent.tolist() == [0, 0, 1, 0, 1]
    assert spans.has_answer.tolist() == [True, True, False, True, True]
    assert spans.second_exact.tolist() == [0, 1, 0, 1, 1]
    assert spans.second_score[2] == NO_SPAN and spans.second_score[0] == -2.0
    assert spans.lead.tolist() == [-4.0, 0.5, 2.0, 2.0, -1.0]


@pytest.mark.parametrize("threshold", [-10.0, -1.0, 0.0, 0.5, 1.0, 2.0, 10.0])
def test_results_average_to_the_official_scores_at_any_threshold(spans: SpanResults, threshold: float) -> None:
    gold = {example.id: [known.text for known in example.answers or ()] for example in EXAMPLES}
    official = squad.score_answers(gold, answers_at(ANSWERS, threshold))
    assert 100 * spans.exact_at(threshold).mean() == pytest.approx(official["exact"])
    assert 100 * spans.f1_at(threshold).mean() == pytest.approx(official["f1"])
    assert 100 * spans.f1_at(threshold)[spans.has_answer].mean() == pytest.approx(official["HasAns_f1"])
    assert 100 * spans.f1_at(threshold)[~spans.has_answer].mean() == pytest.approx(official["NoAns_f1"])
    assert spans.right(threshold).sum() == round(official["exact"] * len(EXAMPLES) / 100)


def test_the_threshold_is_chosen_for_the_expected_share_of_unanswerable_questions() -> None:
    # Answering everything gets 3 of 4 right, answering only the first question 2: its own and the unanswerable one.
    results = span_results([1, 1, 1, 0], [True, True, True, False], [-1, 3, 4, 2])
    assert SPAN.pick_threshold(results) == SPAN.pick_threshold(results, 0.25) == 4.0
    # Weights of 2/3 and 2: the same choices get 2 and 2 2/3.
    assert SPAN.pick_threshold(results, 0.5) == 0.0
    only_answerable = span_results([1, 1], [True, True], [3, 1])
    assert SPAN.pick_threshold(only_answerable, 0.5) == SPAN.pick_threshold(only_answerable) == 3.0


def test_results_average_to_the_answerable_only_scores(spans: SpanResults) -> None:
    gold = {example.id: [known.text for known in example.answers or ()] for example in EXAMPLES}
    forced = threshold_free(ANSWERS, gold)
    assert 100 * spans.exact[spans.has_answer].mean() == pytest.approx(forced["forced_exact"])
    assert 100 * spans.f1[spans.has_answer].mean() == pytest.approx(forced["forced_f1"])


def test_results_of_all_kinds_can_be_saved_and_loaded(spans: SpanResults, tmp_path: Path) -> None:
    labels = LabelResults(np.array([1, 0]), np.array([[0.2, 0.8], [0.4, 0.6]]))
    scores = ScoreResults(np.array([1.0, 2.5]), np.array([1.5, 2.0]))
    kinds = {SPAN: spans, LABEL: labels, SCORE: scores}
    for kind, results in kinds.items():
        (tmp_path / str(kind)).mkdir()
        save_results(tmp_path / str(kind), results)
        found = load_results(tmp_path / str(kind), kind)
        assert type(found) is type(results)
        for name, values in vars(results).items():
            np.testing.assert_array_equal(getattr(found, name), values)
            assert getattr(found, name).dtype == values.dtype
    assert labels.predicted.tolist() == [1, 1] and labels.right().tolist() == [True, False]


def test_results_of_earlier_versions_are_read_under_their_former_name(tmp_path: Path) -> None:
    save_results(tmp_path, ScoreResults(np.array([1.0, 2.5]), np.array([1.5, 2.0])))
    (tmp_path / "results.safetensors").rename(tmp_path / "marks.safetensors")
    found = load_results(tmp_path, SCORE)
    assert isinstance(found, ScoreResults) and found.target.tolist() == [1.0, 2.5]
