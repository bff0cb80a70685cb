"""Intervals and tests between models are those of the statistics, on the figures of scores.json."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from tiny_reports import TinyRun, build_tiny_run, label_results, score_results, span_results

from bertvision.kinds import KINDS, SCORE, SPAN, Kind
from bertvision.pipeline.finished import read_figure
from bertvision.report.analyses.scores_table import figure_columns
from bertvision.report.certainty import Certainty


@pytest.mark.parametrize("kind", KINDS.values())
def test_the_measure_of_each_figure_gives_the_figure_in_scores_json(kind: Kind, tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, kind, seeds=2, ensemble="both")
    for model in run.models(1.0)[1:]:
        results = model.results("dev")
        for one in figure_columns(run):
            found = kind.measure(one.key, results, model.threshold)(np.ones((1, len(results)), dtype=np.float32))
            assert found[0] == pytest.approx(read_figure(model.scores("dev"), one.key), abs=1e-3), one.key


def test_a_head_that_is_right_where_the_encoder_is_not_beats_it_for_sure(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    targets = [0, 1] * 40
    run.add("encoder", results=label_results(targets, [0.4, 0.6] * 20 + [0.6, 0.4] * 20))  # half of them
    run.add("last_linear", results=label_results(targets, [0.4, 0.6] * 22 + [0.6, 0.4] * 18))
    run.add("adapter_64", results=label_results(targets, [0.4, 0.6] * 40))  # all
    run.add("adapter_4", results=label_results(targets, [0.4, 0.6] * 20 + [0.6, 0.4] * 20))  # the encoder's twin
    certainty = Certainty(run.write(), 1.0, "dev")
    better, twin = certainty.against(certainty.run.encoder(1.0))
    assert better.gap.difference == pytest.approx(50) and better.is_sure and better.gap.low > 0
    assert better.rights is not None and (better.rights.only_ours, better.rights.only_theirs) == (40, 0)
    assert better.rights.p == pytest.approx(binomtest(0, 40).pvalue)
    assert (twin.gap.difference, twin.gap.low, twin.gap.high, twin.p) == (0, 0, 0, 1) and not twin.is_sure
    # Accuracy of one model each has an exact test; two were compared, so the smaller p counts twice (Holm).
    assert better.test == "McNemar" and better.p == pytest.approx(2 * binomtest(0, 40).pvalue)
    assert len(certainty.pairs()) == 6


def test_a_few_examples_are_never_sure(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, metrics=["matthews"])
    targets = [0, 1] * 40
    run.add("encoder", results=label_results(targets, [0.4, 0.6] * 35 + [0.6, 0.4] * 5))
    run.add("adapter_64", results=label_results(targets, [0.4, 0.6] * 39 + [0.6, 0.4]))  # right on eight more of eighty
    certainty = Certainty(run.write(), 1.0, "dev")
    (found,) = certainty.against(certainty.run.encoder(1.0))
    assert found.test == "paired bootstrap" and found.p < 0.05, "draws alone would call it sure"
    assert not found.is_enough and not found.is_sure


def test_many_models_can_still_be_told_apart(tmp_path: Path) -> None:
    """The smallest p that draws can give, times sixty comparisons, is still below 0.05."""
    run = TinyRun(tmp_path, metrics=["matthews"])
    targets = [0, 1] * 40
    run.add("encoder", results=label_results(targets, [0.4, 0.6] * 20 + [0.6, 0.4] * 20))
    for number in range(60):
        run.add(f"adapter_{number}", results=label_results(targets, [0.4, 0.6] * 40))
    certainty = Certainty(run.write(), 1.0, "dev")
    assert all(one.is_sure for one in certainty.against(certainty.run.encoder(1.0)))


def test_a_head_is_compared_with_the_encoder_at_later_snapshots_too(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    targets = [0, 1] * 40
    for at, right in ((0.5, 20), (1.0, 30)):
        run.add("encoder", at, results=label_results(targets, [0.4, 0.6] * right + [0.6, 0.4] * (40 - right)))
    run.add("adapter_64", 0.5, results=label_results(targets, [0.4, 0.6] * 32 + [0.6, 0.4] * 8))
    (found,) = Certainty(run.write(), 0.5, "dev").across()
    assert (found.ours.epochs, found.theirs.epochs) == (0.5, 1.0)
    assert found.gap.difference == pytest.approx(100 * (64 - 60) / 80)
    assert found.rights is not None and (found.rights.only_ours, found.rights.only_theirs) == (4, 0)


def test_the_interval_of_a_mean_is_near_the_normal_one(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    right = np.arange(1000) % 10 < 7  # 70 %
    run.add("encoder", results=label_results([1] * 1000, np.where(right, 0.9, 0.1).tolist()))
    certainty = Certainty(run.write(), 1.0, "dev")
    low, high = certainty.interval(certainty.groups[0], "accuracy")
    error = 100 * np.sqrt(0.7 * 0.3 / 1000)
    assert (low, high) == pytest.approx((70 - 1.96 * error, 70 + 1.96 * error), abs=0.25)


def test_seeds_count_by_their_mean(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SCORE)
    targets = [float(value) for value in range(20)]
    run.add("encoder", results=score_results(targets, [value + value % 3 for value in targets]))
    for seed in (0, 1):
        values = [value + (seed + 1) * (value % 2) for value in targets]
        run.add(f"adapter_64_seed{seed}", results=score_results(targets, values), group="adapter_64", seed=seed)
    finished = run.write()
    certainty = Certainty(finished, 1.0, "dev")
    (found,) = certainty.against(finished.encoder(1.0))
    expected = np.mean([np.corrcoef(targets, [v + (s + 1) * (v % 2) for v in targets])[0, 1] for s in (0, 1)])
    encoder = np.corrcoef(targets, [value + value % 3 for value in targets])[0, 1]
    assert found.gap.difference == pytest.approx(100 * (expected - encoder), abs=1e-6)
    assert found.rights is None, "scores are neither right nor wrong"


def test_spans_are_compared_at_the_threshold_that_each_model_has(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SPAN)
    has = [True, True, False, False]
    held = {"held_out": {"threshold": 1.0, "at_threshold": {"f1": 50.0}}}
    results = span_results([1, 0.5, 0, 0], has, [-2, 0.5, 0.5, 2])
    run.add("encoder", results=results, scores={"dev": {"at_threshold": {"f1": 62.5}}, **held})
    # At 1 the second question is answered (0.5) and so is the third (0): 1 + 0.5 + 0 + 1 of 4.
    certainty = Certainty(run.write(), 1.0, "dev")
    assert certainty.run.main == "at_threshold.f1"
    found = SPAN.measure("at_threshold.f1", results, certainty.groups[0].models[0].threshold)
    assert found(np.ones((1, 4), dtype=np.float32))[0] == pytest.approx(62.5)
