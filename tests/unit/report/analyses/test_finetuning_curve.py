from pathlib import Path

import numpy as np
import pytest
from tiny_blocks import accuracy, answers_curve, curve_run, drawn, layers_of, rows_drawn
from tiny_reports import build_tiny_run, span_results

from bertvision.kinds import KINDS, Kind
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analyses.finetuning_curve import finetuning_curve


def test_one_snapshot_has_no_curve(tmp_path: Path) -> None:
    assert finetuning_curve(curve_run(tmp_path, {1: 60.0}, {1: {"adapter_64": 61.0}}).write(), "dev") is None


def test_the_first_snapshot_where_the_encoder_reaches_a_head_is_named(tmp_path: Path) -> None:
    heads = {0.5: {"last_linear": 61.0, "adapter_64": 66.0}, 2: {"last_linear": 70.0, "adapter_64": 75.0}}
    block = finetuning_curve(curve_run(tmp_path, {0.5: 60.0, 1: 65.0, 2: 72.0}, heads).write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    assert block.sentences == [
        "The encoder alone scores 60.00 (accuracy) after 0.5 epochs of fine-tuning and 72.00 after 2 epochs.",
        "After 0.5 epochs, adapter_64 (best head on held-out data) scores 66.00, 6.00 above the encoder alone at the "
        "same snapshot. The encoder alone first reaches this score after 2 epochs.",
        "After 2 epochs, adapter_64 (best head on held-out data) scores 75.00, 3.00 above the encoder alone at the "
        "same snapshot.",
    ]
    assert [(row["epochs"], row["model"], row["accuracy"]) for row in block.table.records()] == [
        (0.5, "encoder alone", 60.0),
        (0.5, "last_linear (control)", 61.0),
        (0.5, "adapter_64", 66.0),
        (1.0, "encoder alone", 65.0),
        (2.0, "encoder alone", 72.0),
        (2.0, "last_linear (control)", 70.0),
        (2.0, "adapter_64", 75.0),
    ]
    assert {"score": 55.0, "model": "baseline"} in drawn(block)
    assert "encoder alone: epochs 0.5, accuracy 60.00" in block.in_words() and "55.0" in block.in_words()


def test_the_highest_score_of_a_falling_curve_is_named(tmp_path: Path) -> None:
    block = finetuning_curve(curve_run(tmp_path, {1: 70.0, 2: 72.0, 3: 71.0}, {1: {"adapter_64": 69.5}}).write(), "dev")
    assert block is not None
    assert block.sentences[0].endswith("71.00 after 3 epochs. Its highest score is 72.00, after 2 epochs.")
    assert block.sentences[1].endswith("scores 69.50, 0.50 below the encoder alone at the same snapshot.")


def test_the_picture_shows_the_best_heads_on_held_out_data_and_the_table_all(tmp_path: Path) -> None:
    heads = {"last_linear": 10.0} | {f"head{number}": 50.0 + number for number in range(9)}
    block = finetuning_curve(curve_run(tmp_path, {0.5: 60.0, 1: 65.0}, {1: heads}).write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    shown = {row["model"] for row in drawn(block)}
    best = {"head8", "head7", "head6", "head5"}
    assert shown == {"encoder alone", "last_linear (control)", "baseline", *best}
    assert len(block.table.rows) == 2 + 10 and "leaves out 5 heads" in block.note


def test_seeds_are_one_point_with_their_mean_and_deviation(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {0.5: 60.0, 1: 65.0}, {})
    for seed, value in enumerate([66.0, 68.0, 73.0]):
        run.add(f"adapter_seed{seed}", scores=accuracy(value, value), group="adapter", seed=seed)
    run.add("adapter_seed3", scores={}, group="adapter", seed=3, failed=True)
    block = finetuning_curve(run.write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    (row,) = [row for row in block.table.records() if row["model"] == "adapter"]
    assert row["accuracy"] == pytest.approx(69.0) and row["seeds"] == 3
    assert row["±"] == pytest.approx(np.std([66.0, 68.0, 73.0], ddof=1))
    (point,) = [row for row in drawn(block) if row["model"] == "adapter"]
    assert point["high"] - point["score"] == pytest.approx(row["±"])


def spans_run(folder: Path, threshold: float | None) -> FinishedRun:
    """Two questions with an answer. At threshold 0 both are missed, at 2 the first is right and the second half right:
    EM 50, F1 75. The head answers always."""
    silent = span_results([1, 0.5], [True, True], [1, 1])
    heads = span_results([1, 1], [True, True], [-1, -1])
    models = [("encoder", silent, threshold), ("adapter_64", heads, threshold)]
    return answers_curve(folder, {0.3: models, 1.0: models})


def test_spans_have_scores_at_threshold_0_beside_those_at_the_chosen_one(tmp_path: Path) -> None:
    block = finetuning_curve(spans_run(tmp_path, threshold=2.0), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    names = [f"{metric} at {where}" for where in ("the chosen threshold", "threshold 0") for metric in ("F1", "EM")]
    assert block.table.headings[2:6] == names
    rows = {row["model"]: [row[name] for name in names] for row in block.table.records()}
    assert rows == {"encoder alone": [75.0, 50.0, 0.0, 0.0], "adapter_64": [100.0] * 4}
    chosen, at_zero = block.picture["hconcat"]
    for panel, score in ((chosen, 75.0), (at_zero, 0.0)):
        points = [row for row in rows_drawn(panel) if row["model"] == "encoder alone"]
        assert {row["score"] for row in points} == {score} and {row["epochs"] for row in points} == {0.3, 1.0}
    assert block.picture["resolve"]["scale"]["y"] == "shared"
    assert block.sentences[0].endswith("75.00 after 1 epoch. At threshold 0 it scores 0.00 and 0.00.")
    assert "F1 at the chosen threshold 75.00, F1 at threshold 0 0.00" in block.in_words()


def test_without_a_chosen_threshold_there_is_one_panel(tmp_path: Path) -> None:
    block = finetuning_curve(spans_run(tmp_path, threshold=None), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    assert block.table.headings[2:] == ["F1", "EM", "seeds"]
    assert "hconcat" not in block.picture and "threshold" not in " ".join(block.sentences)


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_mark_has_a_tooltip_for_every_kind(tmp_path: Path, kind: Kind) -> None:
    heads = ["learned_pooling", {"head": "adapter_64", "data_fraction": [0.1, 1.0]}]
    run = build_tiny_run(tmp_path, kind, (0.0, 1.0), seeds=2, heads=heads)
    block = finetuning_curve(run, "dev")
    assert block is not None and block.picture is not None and block.in_words() and block.sentences
    assert all("tooltip" in layer["encoding"] for layer in layers_of(block.picture))
