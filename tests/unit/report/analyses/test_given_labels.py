from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as sklearn_confusion_matrix
from tiny_reports import TinyRun, build_tiny_run, label_results

from bertvision.kinds import SCORE
from bertvision.kinds.label import LabelResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analyses.given_labels import (
    confusion_matrix,
    count_labels,
    measure_reliability,
    reliability_curve,
)


def random_results(examples: int = 300, labels: int = 4, seed: int = 0) -> LabelResults:
    rng = np.random.default_rng(seed)
    return LabelResults(rng.integers(0, labels, examples), rng.dirichlet(np.ones(labels), examples))


def run_of(folder: Path, head: LabelResults, encoder: LabelResults | None = None) -> FinishedRun:
    run = TinyRun(folder)
    run.add("encoder", results=encoder or head)
    run.add("adapter_64", results=head)
    return run.write()


def test_counts_are_those_of_scikit_learn() -> None:
    results = random_results()
    expected = sklearn_confusion_matrix(results.target, results.predicted, labels=range(4))
    assert np.array_equal(count_labels(results, 4), expected)


def test_the_matrix_names_the_most_frequent_error_and_includes_the_encoder(tmp_path: Path) -> None:
    # Of 4 "no" 3 are right, of 2 "yes" none; the encoder says "no" to all.
    head = label_results([0, 0, 0, 0, 1, 1], [0.1, 0.2, 0.3, 0.9, 0.4, 0.2])
    encoder = label_results([0, 0, 0, 0, 1, 1], [0.1] * 6)
    block = confusion_matrix(run_of(tmp_path, head, encoder), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    rows = {(row["true label"], row["predicted label"]): row for row in block.table.records()}
    assert [rows[pair]["adapter_64"] for pair in rows] == [3, 1, 2, 0]
    assert [rows[pair]["adapter_64 (%)"] for pair in rows] == [75.0, 25.0, 100.0, 0.0]
    assert [rows[pair]["encoder alone"] for pair in rows] == [4, 0, 2, 0]
    assert block.sentences == [
        "adapter_64 labels 3 of 6 examples correctly (50.0 %) and the encoder alone 4 (66.7 %).",
        "The most frequent error of adapter_64 is predicting 'no' for 'yes': 2 examples, 100.0 % of those with the "
        "true label 'yes'.",
    ]
    shown = {(row["true"], row["given"]): row["count"] for row in block.picture["data"]["values"]}
    assert shown == {pair: rows[pair]["adapter_64"] for pair in rows}
    assert "no, no: adapter_64 (%) 75.0; no, yes: adapter_64 (%) 25.0; yes, no" in block.in_words()


def test_a_label_without_examples_has_no_percentages(tmp_path: Path) -> None:
    block = confusion_matrix(run_of(tmp_path, label_results([0, 0], [0.1, 0.2])), "dev")
    assert block is not None and block.table is not None
    assert [row["adapter_64 (%)"] for row in block.table.records()] == [100.0, 0.0, None, None]
    assert block.sentences[1] == "adapter_64 makes no errors." and "yes, yes" not in block.in_words()


def test_of_several_seeds_the_first_that_did_not_fail_is_shown_and_named(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    right, wrong = label_results([0, 1], [0.1, 0.9]), label_results([0, 1], [0.9, 0.1])
    run.add("encoder", results=right)
    run.add("adapter_seed0", scores={}, group="adapter", failed=True)
    run.add("adapter_seed1", results=wrong, group="adapter", seed=1)
    run.add("adapter_seed2", results=right, group="adapter", seed=2)
    block = confusion_matrix(run.write(), "dev")
    assert block is not None and block.sentences[0].startswith("adapter labels 0 of 2 examples correctly")
    assert "adapter has 3 seeds; the first that finished training is shown: adapter_seed1." in block.note


def test_calibration_error_is_the_mean_distance_by_bins() -> None:
    results = random_results(labels=3)
    found = measure_reliability(results)
    confidence, right = results.probabilities.max(axis=1), results.predicted == results.target
    expected = 0.0
    for low in range(10):  # its definition, bin by bin
        inside = (confidence >= low / 10) & (confidence < (low + 1) / 10)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert found.error == pytest.approx(100 * expected)


def test_the_ends_of_bins_belong_to_the_bin_above_and_certainty_to_the_last() -> None:
    found = measure_reliability(label_results([1] * 6, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]))
    assert found.bins.tolist() == [5, 6, 7, 8, 9, 9]


def test_over_and_underconfidence_are_reported(tmp_path: Path) -> None:
    # The head: 0.9 sure, half right. The encoder: 0.75 sure, all right.
    head = label_results([1, 0, 1, 0], [0.9, 0.9, 0.9, 0.9])
    encoder = label_results([1, 1, 1, 1], [0.75] * 4)
    block = reliability_curve(run_of(tmp_path, head, encoder), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    assert block.sentences == [
        "adapter_64 is overconfident by 40.0 points on average: mean confidence 90.0 %, accuracy 50.0 %, expected "
        "calibration error 40.0 points.",
        "Expected calibration error (lower is better): the encoder alone 25.0, adapter_64 40.0.",
    ]
    whole = {row["model"]: row for row in block.table.records() if row["confidence"] == "all"}
    assert whole["adapter_64"]["ECE"] == pytest.approx(40.0) and whole["encoder alone"]["ECE"] == pytest.approx(25.0)
    assert whole["encoder alone"]["confidence − accuracy"] == pytest.approx(-25.0)
    (part,) = [row for row in block.table.records() if row["confidence"] == "90 to 100 %"]
    assert (part["model"], part["examples"], part["accuracy (%)"]) == ("adapter_64", 4, 50.0)


def test_a_calibrated_model_is_neither_over_nor_underconfident(tmp_path: Path) -> None:
    block = reliability_curve(run_of(tmp_path, label_results([1, 1, 1, 0], [0.75] * 4)), "dev")
    assert block is not None and block.sentences[0].startswith(
        "adapter_64 is neither over- nor underconfident on average:"
    )


def test_other_kinds_have_no_labels(tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, SCORE)
    assert confusion_matrix(run, "dev") is None and reliability_curve(run, "dev") is None


def test_many_labels_are_drawn_without_numbers(tmp_path: Path) -> None:
    names = [f"label{number}" for number in range(9)]
    run = TinyRun(tmp_path, labels=names)
    run.add("encoder", results=random_results(labels=9))
    finished = run.write()
    matrix, curve = confusion_matrix(finished, "dev"), reliability_curve(finished, "dev")
    assert matrix is not None and matrix.picture is not None and matrix.picture["mark"]["type"] == "rect"
    assert matrix.sentences[0].startswith("The encoder alone labels ")
    assert curve is not None and len(curve.sentences) == 1
