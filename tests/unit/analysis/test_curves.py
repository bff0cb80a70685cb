from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_reports import TinyRun, build_tiny_run

from bertvision.analysis.curves import (
    data_share,
    epoch_losses,
    epochs_of_heads,
    finetuning_curve,
    length_histogram,
    read_passes,
)
from bertvision.tasks.base import TargetKind


def accuracy(dev: float, held_out: float | None = None) -> dict[str, Any]:
    held = {} if held_out is None else {"held_out": {"accuracy": held_out}}
    return {"dev": {"accuracy": dev}, **held}


def layers_of(picture: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of a chart, those inside others too."""
    return [inner for layer in picture["layer"] for inner in (layers_of(layer) if "layer" in layer else [layer])]


def drawn(picture: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows that a picture holds."""
    own = picture.get("data", {}).get("values", [])
    return own + [row for layer in picture.get("layer", []) for row in drawn(layer)]


# ---------------------------------------------------------------------- fine-tuning


def curve_run(folder: Path, encoder: dict[float, float], heads: dict[float, dict[str, float]]) -> TinyRun:
    run = TinyRun(folder, baseline={"accuracy": 55.0})
    for epochs, value in encoder.items():
        run.add("encoder", epochs, scores=accuracy(value))
        for name, score in heads.get(epochs, {}).items():
            run.add(name, epochs, scores=accuracy(score, score))
    return run


def test_one_snapshot_has_no_curve(tmp_path: Path) -> None:
    assert finetuning_curve(curve_run(tmp_path, {1: 60.0}, {1: {"adapter_64": 61.0}}).write(), "dev") is None


def test_the_curve_says_when_the_encoder_reaches_what_a_head_reached_before(tmp_path: Path) -> None:
    heads = {0.5: {"last_linear": 61.0, "adapter_64": 66.0}, 2: {"last_linear": 70.0, "adapter_64": 75.0}}
    block = finetuning_curve(curve_run(tmp_path, {0.5: 60.0, 1: 65.0, 2: 72.0}, heads).write(), "dev")
    assert block is not None and block.frame is not None and block.picture is not None
    assert block.sentences == [
        "The encoder itself scores 60.00 (accuracy) after 0.5 epochs of fine-tuning and 72.00 after 2 epochs.",
        "After 0.5 epochs the best head on held-out data, adapter_64, scores 66.00, 6.00 above the encoder itself "
        "there; the encoder itself first reaches that at its snapshot of 2 epochs.",
        "After 2 epochs the best head on held-out data, adapter_64, scores 75.00, 3.00 above the encoder itself there.",
    ]
    assert [(row["epochs"], row["model"], row["accuracy"]) for row in block.frame.records()] == [
        (0.5, "encoder itself", 60.0),
        (0.5, "last_linear (control)", 61.0),
        (0.5, "adapter_64", 66.0),
        (1.0, "encoder itself", 65.0),
        (2.0, "encoder itself", 72.0),
        (2.0, "last_linear (control)", 70.0),
        (2.0, "adapter_64", 75.0),
    ]
    assert {"score": 55.0, "model": "baseline"} in drawn(block.picture)
    assert "60.0 at 0.5, 65.0 at 1, 72.0 at 2" in block.alt and "55.0" in block.alt


def test_a_curve_that_falls_names_its_highest_point_and_a_head_below_it_says_so(tmp_path: Path) -> None:
    block = finetuning_curve(curve_run(tmp_path, {1: 70.0, 2: 72.0, 3: 71.0}, {1: {"adapter_64": 69.5}}).write(), "dev")
    assert block is not None
    assert block.sentences[0].endswith("71.00 after 3 epochs; it is highest, 72.00, after 2 epochs.")
    assert block.sentences[1].endswith("scores 69.50, 0.50 below the encoder itself there.")


def test_of_many_heads_the_picture_shows_the_best_on_held_out_data_and_the_table_all(tmp_path: Path) -> None:
    heads = {"last_linear": 10.0} | {f"head{number}": 50.0 + number for number in range(9)}
    block = finetuning_curve(curve_run(tmp_path, {0.5: 60.0, 1: 65.0}, {1: heads}).write(), "dev")
    assert block is not None and block.frame is not None and block.picture is not None
    shown = {row["model"] for row in drawn(block.picture)}
    best = {"head8", "head7", "head6", "head5"}
    assert shown == {"encoder itself", "last_linear (control)", "baseline", *best}
    assert len(block.frame.rows) == 2 + 10 and "leaves out 5 heads" in block.note


def test_seeds_are_one_point_with_their_mean_and_deviation(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {0.5: 60.0, 1: 65.0}, {})
    for seed, value in enumerate([66.0, 68.0, 73.0]):
        run.add(f"adapter_seed{seed}", scores=accuracy(value, value), group="adapter", seed=seed)
    run.add("adapter_seed3", scores={}, group="adapter", seed=3, failed=True)
    block = finetuning_curve(run.write(), "dev")
    assert block is not None and block.frame is not None and block.picture is not None
    (row,) = [row for row in block.frame.records() if row["model"] == "adapter"]
    assert row["accuracy"] == pytest.approx(69.0) and row["seeds"] == 3
    assert row["±"] == pytest.approx(np.std([66.0, 68.0, 73.0], ddof=1))
    (point,) = [row for row in drawn(block.picture) if row["model"] == "adapter"]
    assert point["high"] - point["score"] == pytest.approx(row["±"])


def test_spans_are_compared_at_the_chosen_threshold_with_em_beside_f1(tmp_path: Path) -> None:
    block = finetuning_curve(build_tiny_run(tmp_path, TargetKind.SPAN, (0.5, 1.0)), "dev")
    assert block is not None and block.frame is not None
    headings = [column.heading for column in block.frame.columns]
    assert headings[2:4] == ["F1 at the chosen threshold", "EM at the chosen threshold"]


# ---------------------------------------------------------------------- share of the data


def test_without_shares_of_the_data_there_is_no_curve_of_them(tmp_path: Path) -> None:
    assert data_share(curve_run(tmp_path, {1: 60.0}, {1: {"adapter_64": 61.0}}).write(), "dev") is None


def test_heads_that_differ_in_their_share_alone_are_one_line(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 70.0}, {1: {"last_linear": 65.0, "adapter_64": 72.0}})
    for share, value in ((0.1, 60.0), (0.5, 69.0)):
        run.add(f"adapter_64_data_fraction{share}", scores=accuracy(value), head="adapter", data_fraction=share)
    block = data_share(run.write(), "dev")
    assert block is not None and block.frame is not None and block.picture is not None
    rows = [(row["model"], row["share of the data (%)"], row["accuracy"]) for row in block.frame.records()]
    assert rows == [("adapter_64", 10.0, 60.0), ("adapter_64", 50.0, 69.0), ("adapter_64", 100.0, 72.0)]
    assert block.sentences == [
        "adapter_64 scores 60.00 with 10 % of the training data, 12.00 below the 72.00 that it scores with 100 %."
    ]
    assert {"score": 70.0, "model": "encoder itself"} in drawn(block.picture)


def test_a_head_on_one_share_alone_is_told_without_a_comparison(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 70.0}, {})
    run.add("mine", scores=accuracy(60.0), data_fraction=0.25)
    block = data_share(run.write(), "dev")
    assert block is not None and block.sentences == ["mine, trained on 25 % of the data, scores 60.00."]


def test_the_names_of_members_are_those_the_shares_are_read_from(tmp_path: Path) -> None:
    heads = [
        "learned_pooling",
        {"head": ["adapter_64", "last_linear"], "data_fraction": [0.1, 1e-05, 1], "name": "less"},
    ]
    block = data_share(build_tiny_run(tmp_path, heads=heads), "dev")
    assert block is not None and block.frame is not None
    assert {row["model"] for row in block.frame.records()} == {"less_last_linear (control)", "less_adapter_64"}
    assert len(block.frame.rows) == 6


# ---------------------------------------------------------------------- epochs


def train(step: int, **loss: float | None) -> dict[str, Any]:
    return {"event": "train", "step": step, "loss": loss}


def epoch(number: int, score: float | None, snapshot: float = 1.0) -> dict[str, Any]:
    return {"event": "epoch", "snapshot": snapshot, "head": "a", "epoch": number, "held_out": score}


def test_steps_that_fall_back_begin_the_pass_of_the_next_snapshot() -> None:
    first, second = read_passes([train(s, a=s / 10, b=0.0) for s in (50, 90, 50, 90)], "a")
    assert first.losses == second.losses == {50: 5.0, 90: 9.0}


def test_a_pass_that_was_killed_goes_on_and_what_is_done_again_counts_once() -> None:
    log = [train(50, a=5.0), epoch(1, 60.0), train(100, a=4.0), train(100, a=3.0), epoch(2, 70.0), train(150, a=2.0)]
    killed = [*log[:2], train(100, a=4.0), train(120, a=3.9)]  # another head ended at 120
    (only,) = read_passes([*killed, train(50, a=4.5), epoch(1, 61.0), *log[3:]], "a")
    assert only.losses == {50: 4.5, 100: 3.0, 150: 2.0} and only.scores == {1: 61.0, 2: 70.0} and only.snapshot == 1.0


def test_a_head_that_failed_on_one_snapshot_keeps_its_pass_on_the_other() -> None:
    early, late = read_passes([train(50, a=1.0), train(90, a=0.5), train(50, a=2.0), train(60, a=None)], "a")
    assert early.losses == {50: 1.0, 90: 0.5} and late.losses == {50: 2.0}
    early, late = read_passes([train(50, a=2.0), train(60, a=None), train(50, a=1.0), train(90, a=0.5)], "a")
    assert early.losses == {50: 2.0} and late.losses == {50: 1.0, 90: 0.5}


def test_losses_are_shared_out_evenly_among_the_epochs() -> None:
    assert epoch_losses({5: 1.0, 10: 0.8, 15: 0.6, 20: 0.4, 25: 0.3, 30: 0.1}, 3) == pytest.approx(
        {1: 0.9, 2: 0.5, 3: 0.2}
    )
    assert epoch_losses({50: 1.0, 60: 0.5}, 6) == {5: 1.0, 6: 0.5}  # logged too seldom: epochs without a loss


def epochs_run(folder: Path) -> TinyRun:
    """Two snapshots, trained one after the other: 2 epochs of 2 logged losses each."""
    run = TinyRun(folder)
    for snapshot, last in ((0.5, 70.0), (1.0, 74.0)):
        run.add("encoder", snapshot, scores=accuracy(50.0, 50.0))
        for name, score in (("last_linear", 60.0), ("adapter_64", last)):
            run.add(name, snapshot, scores=accuracy(1.0, score), epochs=2)
        for step, loss in ((5, 0.9), (10, 0.7), (15, 0.5), (20, 0.1)):
            run.log("train", step=step, loss={"last_linear": 1.0, "adapter_64": loss * snapshot})
            if step == 10:
                run.log("epoch", snapshot=snapshot, head="last_linear", epoch=1, held_out=61.0)
                run.log("epoch", snapshot=snapshot, head="adapter_64", epoch=1, held_out=65.0)
    return run


def test_the_epochs_of_a_head_have_their_losses_and_scores_on_each_snapshot(tmp_path: Path) -> None:
    block = epochs_of_heads(epochs_run(tmp_path).write(), "dev")
    assert block is not None and block.frame is not None
    rows = [row for row in block.frame.rows if row[1] == "adapter_64"]
    assert [row[:3] for row in rows] == [[at, "adapter_64", number] for at in (0.5, 1.0) for number in (1, 2)]
    assert [row[3] for row in rows] == pytest.approx([0.4, 0.15, 0.8, 0.3])
    assert [row[4] for row in rows] == [65.0, 70.0, 65.0, 74.0]  # the last epoch's is the head's own figure
    assert block.sentences == [
        "The mean training loss of adapter_64 was 0.8000 in epoch 1 and 0.3000 in epoch 2.",
        "On held-out data adapter_64 was best after epoch 2 of 2 (74.00).",
        "1 of 2 heads, the control included, did no better after an earlier epoch than after the last.",
    ]


def test_passes_that_are_not_named_belong_to_the_snapshots_in_order(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    for snapshot in (0.5, 1.0):
        run.add("encoder", snapshot, scores=accuracy(50.0))
        run.add("adapter_64", snapshot, scores=accuracy(60.0))
        for step, loss in ((50, snapshot), (90, snapshot / 4)):
            run.log("train", step=step, loss={"adapter_64": loss})
    block = epochs_of_heads(run.write(), "dev")
    assert block is not None and block.frame is not None and block.picture is not None
    assert [row["training loss"] for row in block.frame.records()] == [0.3125, 0.625]
    assert {row["step"] for row in drawn(block.picture)} == {50, 90}  # one epoch: the picture is of losses by step
    assert block.sentences == [
        "The training loss of adapter_64 was 1.0000 in the mean up to step 50 and 0.2500 in the last steps up to 90."
    ]


def test_without_a_log_there_are_no_epochs(tmp_path: Path) -> None:
    assert epochs_of_heads(curve_run(tmp_path, {1: 60.0}, {1: {"adapter_64": 61.0}}).write(), "dev") is None


# ---------------------------------------------------------------------- lengths


def test_lengths_have_the_quantiles_of_all_windows(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 60.0}, {})
    run.lengths(train={10: 3, 30: 6, 100: 1}, dev={20: 1, 128: 3}, held_out={7: 1})
    block = length_histogram(run.write(), "dev")
    assert block is not None and block.frame is not None and block.picture is not None
    train_row, dev_row = block.frame.rows
    assert train_row == ["train", 10, pytest.approx(31.0), 30, 100, 100, 0, 0.0]
    assert dev_row == ["dev", 4, pytest.approx(101.0), 128, 128, 128, 3, 75.0]
    assert block.sentences[2] == (
        "As long as a window may be (128 tokens) are 0 of train (0.0 %) and 3 of dev (75.0 %): their text may have "
        "been cut."
    )
    rows = [(row["split"], row["from"], row["to"], row["windows"], row["share"]) for row in drawn(block.picture)]
    assert rows == [
        ("train", 9, 12, 3, 30.0),
        ("train", 29, 32, 6, 60.0),
        ("train", 97, 100, 1, 10.0),
        ("dev", 17, 20, 1, 25.0),
        ("dev", 125, 128, 3, 75.0),
    ]


def test_a_length_of_ones_own_is_the_limit_and_short_texts_are_not_cut(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 60.0}, {})
    run.lengths(dev={20: 1})
    block = length_histogram(run.write(data={"max_length": 21}), "dev")
    assert block is not None
    assert block.sentences == [
        "Of 1 window of dev half have at most 20 tokens and 95 % at most 20; the longest has 20.",
        "None is as long as a window may be (21 tokens): no text was cut.",
    ]


def test_a_run_that_kept_no_lengths_has_no_histogram(tmp_path: Path) -> None:
    assert length_histogram(curve_run(tmp_path, {1: 60.0}, {}).write(), "dev") is None


@pytest.mark.parametrize("kind", list(TargetKind))
def test_every_mark_has_a_tooltip_for_every_kind(tmp_path: Path, kind: TargetKind) -> None:
    heads = ["learned_pooling", {"head": "adapter_64", "data_fraction": [0.1, 1.0]}]
    evidence = build_tiny_run(tmp_path, kind, (0.0, 1.0), seeds=2, heads=heads)
    for analyse in (finetuning_curve, data_share, epochs_of_heads, length_histogram):
        block = analyse(evidence, "dev")
        assert block is not None and block.picture is not None and block.alt and block.sentences
        layers = layers_of(block.picture) if "layer" in block.picture else [block.picture]
        assert all("tooltip" in layer["encoding"] for layer in layers)
