from pathlib import Path

import numpy as np
import pytest
from tiny_blocks import answers_run, drawn, rows_of
from tiny_reports import TinyRun, span_results

from bertvision.kinds import SPAN
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.analyses.thresholds import POINTS, best_threshold, threshold_curve


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_beats_the_best_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    leads = draw.normal(size=40).round(1)  # some alike
    results = span_results(draw.choice([0, 0.3, 1], 40), draw.random(40) < 0.6, leads)
    best = results.f1_at(best_threshold(results)).mean()
    tried = [results.f1_at(lead + step).mean() for lead in leads for step in (-0.05, 0.05)]
    assert best == pytest.approx(max(tried))


def test_the_best_of_equal_thresholds_is_the_closest_to_0() -> None:
    assert best_threshold(span_results([1, 1], [True, True], [-2, -1])) == 0.0
    assert best_threshold(span_results([1, 1], [True, True], [3, 1])) == 3.0


def test_the_curve_goes_through_the_chosen_threshold_and_0(tmp_path: Path) -> None:
    free = {"no_answer_auc": 61.0, "forced_exact": 62.0, "forced_f1": 63.0}
    run = TinyRun(tmp_path, SPAN)
    # Answering all is right 3 of 4 times; at 0 two are answered.
    results = span_results([1, 1, 1, 0], [True, True, True, False], [-1, -0.5, 1, 2])
    for name, threshold in (("encoder", -0.75), ("last_linear", 0.0), ("adapter_64", 1.5)):
        run.add(name, results={"dev": results, HELD_OUT: results}, threshold=threshold, scores={"dev": free})
    block = threshold_curve(run.write(), "dev")
    rows = rows_of(block)
    assert list(rows) == ["encoder alone", "last_linear (control)", "adapter_64"]
    assert list(rows["encoder alone"].values())[1:] == [-0.75, 50.0, 50.0, 75.0, 75.0, 1.0, 100.0, 61.0, 62.0, 63.0]
    points = [(row["threshold"], row["score"]) for row in drawn(block) if row.get("model") == "encoder alone"]
    assert {(-0.75, 50.0), (0.0, 75.0), (1.5, 100.0)} <= set(points)
    assert len(points) <= 2 * (POINTS + 6)
    assert block and block.sentences == [
        "Compared with the thresholds chosen on held-out questions, the best thresholds on this split would add 50.00 "
        "points of F1 for the encoder alone, 25.00 for the control (last_linear) and 0.00 for adapter_64.",
        "Best thresholds are for diagnosis only and were not used. Compared with threshold 0, the chosen thresholds "
        "changed F1 by −25.00 for the encoder alone, +0.00 for the control (last_linear) and +25.00 for adapter_64.",
    ]


def test_without_a_chosen_threshold_0_is_used(tmp_path: Path) -> None:
    block = threshold_curve(
        answers_run(tmp_path, ("encoder", span_results([1, 0], [True, False], [-1, 1]), None)), "dev"
    )
    assert block and block.sentences[0].startswith(
        "Compared with the threshold in use, the best threshold on this split"
    )
    assert block.sentences[1].endswith("No threshold was chosen on held-out questions, so 0 is used.")
    assert rows_of(block)["encoder alone"]["threshold"] is None


def test_a_question_without_any_span_does_not_stretch_the_curve(tmp_path: Path) -> None:
    results = span_results([1, 0, 0], [True, True, False], [-1, -2, 0])
    results.score[2] = -1e6
    block = threshold_curve(answers_run(tmp_path, ("encoder", results, None)), "dev")
    assert max(abs(row["threshold"]) for row in drawn(block)) <= 2
