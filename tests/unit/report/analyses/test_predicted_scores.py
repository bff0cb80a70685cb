from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binned_statistic, pearsonr, spearmanr
from sklearn.metrics import mean_absolute_error
from tiny_reports import TinyRun, build_tiny_run, score_results

from bertvision.kinds import LABEL, SCORE
from bertvision.kinds.score import ScoreResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analyses.predicted_scores import bin_scores, draw_evenly, mean_error, predicted_against_true


def random_results(examples: int = 200, seed: int = 0) -> ScoreResults:
    rng = np.random.default_rng(seed)
    target = rng.uniform(0, 5, examples).round(1)
    return ScoreResults(target, target + rng.normal(0, 1, examples))


def run_of(folder: Path, head: ScoreResults, encoder: ScoreResults, metrics: list[str] | None = None) -> FinishedRun:
    run = TinyRun(folder, SCORE, metrics=metrics)
    run.add("encoder", results=encoder)
    run.add("adapter_64", results=head)
    return run.write()


def test_bins_are_those_of_scipy() -> None:
    results = random_results()
    found = bin_scores(results)
    means, edges, _ = binned_statistic(results.target, results.value, "mean", bins=5)
    counts, *_ = binned_statistic(results.target, results.value, "count", bins=5)
    assert [one.predicted for one in found] == pytest.approx(means)
    assert [one.examples for one in found] == counts.tolist()
    assert [one.low for one in found] + [found[-1].high] == pytest.approx(edges)


def test_bins_without_examples_are_left_out_and_equal_scores_are_one() -> None:
    assert [one.name for one in bin_scores(score_results([0, 0.5, 5], [1, 2, 3]))] == ["0 to 1", "4 to 5"]
    (only,) = bin_scores(score_results([2, 2], [1, 2]))
    assert (only.examples, only.true, only.predicted) == (2, 2.0, 1.5)


def test_errors_and_correlations_are_those_of_scikit_learn_and_scipy(tmp_path: Path) -> None:
    head, encoder = random_results(seed=1), random_results(seed=2)
    block = predicted_against_true(run_of(tmp_path, head, encoder, ["pearson"]), "dev")
    assert block is not None and block.table is not None
    rows = {row["model"]: row for row in block.table.records() if row["true scores"] == "all"}
    for name, results in (("adapter_64", head), ("encoder alone", encoder)):
        assert rows[name]["mean absolute error"] == pytest.approx(mean_absolute_error(results.target, results.value))
        assert rows[name]["Pearson"] == pytest.approx(100 * pearsonr(results.target, results.value)[0])
        # Not among the run's metrics: from the predictions.
        assert rows[name]["Spearman"] == pytest.approx(100 * spearmanr(results.target, results.value)[0])


def test_the_ends_of_the_scale_are_described(tmp_path: Path) -> None:
    # Drawn to the middle: 1 for the lowest, 4 for the highest; the encoder is 0.5 too high throughout.
    head = score_results([0, 0, 5, 5, 5], [0.5, 1.5, 4, 4, 4])
    encoder = score_results([0, 0, 5, 5, 5], [0.5, 0.5, 5.5, 5.5, 5.5])
    block = predicted_against_true(run_of(tmp_path, head, encoder), "dev")
    assert block is not None and block.table is not None
    assert block.sentences == [
        "The mean absolute error is 1.000 for adapter_64 and 0.500 for the encoder alone.",
        "For the lowest true scores (0 to 1, 2 examples, mean 0.00), adapter_64 predicts 1.00 on average; for the "
        "highest (4 to 5, 3 examples, mean 5.00), 4.00.",
    ]
    parts = [row for row in block.table.records() if row["true scores"] == "4 to 5"]
    assert {row["model"]: (row["examples"], row["mean predicted"]) for row in parts} == {
        "encoder alone": (3, 5.5),
        "adapter_64": (3, 4.0),
    }


def test_seeds_are_averaged_in_the_table_and_one_of_them_is_drawn(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SCORE)
    run.add("encoder", results=score_results([0, 1, 2], [0, 1, 2]))
    for seed, off in enumerate([0.2, 0.6]):
        results = score_results([0, 1, 2], [off, 1 + off, 2 + off])
        run.add(f"adapter_seed{seed}", results=results, group="adapter", seed=seed)
    block = predicted_against_true(run.write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    (row,) = [row for row in block.table.records() if row["model"] == "adapter" and row["true scores"] == "all"]
    assert row["mean absolute error"] == pytest.approx(0.4)
    assert "adapter_seed0." in block.note and "means over the seeds" in block.note
    points = block.picture["layer"][0]["data"]["values"]
    assert [row["predicted"] for row in points] == pytest.approx([0.2, 1.2, 2.2])


def test_large_sets_are_drawn_evenly_from_end_to_end() -> None:
    some = draw_evenly(10_001)
    assert len(some) == 2000 and some[0] == 0 and some[-1] == 10_000 and set(np.diff(some)) == {5, 6}
    assert draw_evenly(3).tolist() == [0, 1, 2]


def test_a_mean_error_of_nothing_wrong_is_zero() -> None:
    assert mean_error(score_results([1, 2], [1, 2])) == 0.0


def test_other_kinds_have_no_scores_and_the_encoder_alone_will_do(tmp_path: Path) -> None:
    assert predicted_against_true(build_tiny_run(tmp_path / "label", LABEL), "dev") is None
    run = TinyRun(tmp_path / "score", SCORE)
    run.add("encoder", results=score_results([1, 1], [1, 2]))
    block = predicted_against_true(run.write(), "dev")
    assert block is not None and block.sentences == [
        "The mean absolute error is 0.500 for the encoder alone.",
        "All true scores are 1.00; the encoder alone predicts 1.50 on average.",
    ]
