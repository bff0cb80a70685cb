from pathlib import Path

import numpy as np
import pytest
from tiny_blocks import accuracy, curve_run, drawn, layers_of
from tiny_reports import build_tiny_run

from bertvision.kinds import KINDS, SPAN, Kind
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


def test_spans_are_compared_at_the_chosen_threshold_with_em_beside_f1(tmp_path: Path) -> None:
    block = finetuning_curve(build_tiny_run(tmp_path, SPAN, (0.5, 1.0)), "dev")
    assert block is not None and block.table is not None
    headings = [column.heading for column in block.table.columns]
    assert headings[2:4] == ["F1 at the chosen threshold", "EM at the chosen threshold"]


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_mark_has_a_tooltip_for_every_kind(tmp_path: Path, kind: Kind) -> None:
    heads = ["learned_pooling", {"head": "adapter_64", "data_fraction": [0.1, 1.0]}]
    run = build_tiny_run(tmp_path, kind, (0.0, 1.0), seeds=2, heads=heads)
    block = finetuning_curve(run, "dev")
    assert block is not None and block.picture is not None and block.in_words() and block.sentences
    assert all("tooltip" in layer["encoding"] for layer in layers_of(block.picture))
