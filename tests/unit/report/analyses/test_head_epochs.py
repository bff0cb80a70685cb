from pathlib import Path
from typing import Any

import pytest
from tiny_blocks import accuracy, curve_run, drawn, layers_of
from tiny_reports import TinyRun, build_tiny_run

from bertvision.kinds import KINDS, Kind
from bertvision.report.analyses.head_epochs import epoch_losses, epochs_of_heads, epochs_on_dev, read_passes


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
    assert block is not None and block.table is not None
    rows = [row for row in block.table.rows if row[1] == "adapter_64"]
    assert [row[:3] for row in rows] == [[at, "adapter_64", number] for at in (0.5, 1.0) for number in (1, 2)]
    assert [row[3] for row in rows] == pytest.approx([0.4, 0.15, 0.8, 0.3])
    assert [row[4] for row in rows] == [65.0, 70.0, 65.0, 74.0]  # the last epoch's is the head's own figure
    assert block.sentences == [
        "The mean training loss of adapter_64 was 0.8000 in epoch 1 and 0.3000 in epoch 2.",
        "On held-out data, adapter_64 was best after epoch 2 of 2 (74.00).",
        "The last epoch was the best one for 1 of 2 heads, the control included.",
    ]


@pytest.mark.parametrize(("epochs", "ticks"), [(2, [1, 2]), (3, [1, 2, 3]), (30, list(range(1, 31, 3)))])
def test_ticks_are_whole_epochs(epochs: int, ticks: list[int], tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores=accuracy(50.0, 50.0))
    run.add("adapter_64", scores=accuracy(60.0, 60.0), epochs=epochs)
    for epoch in range(1, epochs + 1):
        run.log("train", step=10 * epoch, loss={"adapter_64": 1 / epoch})
        if epoch < epochs:
            run.log("epoch", snapshot=1.0, head="adapter_64", epoch=epoch, held_out=50.0)
    block = epochs_of_heads(run.write(), "dev")
    assert block is not None and block.picture is not None
    axes = [layer["encoding"]["x"]["axis"] for layer in layers_of(block.picture)]
    assert [axis["values"] for axis in axes] == [ticks] * len(axes)


def test_passes_that_are_not_named_belong_to_the_snapshots_in_order(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    for snapshot in (0.5, 1.0):
        run.add("encoder", snapshot, scores=accuracy(50.0))
        run.add("adapter_64", snapshot, scores=accuracy(60.0))
        for step, loss in ((50, snapshot), (90, snapshot / 4)):
            run.log("train", step=step, loss={"adapter_64": loss})
    block = epochs_of_heads(run.write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    assert [row["training loss"] for row in block.table.records()] == [0.3125, 0.625]
    assert {row["step"] for row in drawn(block)} == {50, 90}  # one epoch: the picture is of losses by step
    assert block.sentences == [
        "The mean training loss of adapter_64 was 1.0000 up to step 50 and 0.2500 in the last steps up to 90."
    ]


def test_without_a_log_there_are_no_epochs(tmp_path: Path) -> None:
    assert epochs_of_heads(curve_run(tmp_path, {1: 60.0}, {1: {"adapter_64": 61.0}}).write(), "dev") is None


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_mark_has_a_tooltip_for_every_kind(tmp_path: Path, kind: Kind) -> None:
    heads = ["learned_pooling", {"head": "adapter_64", "data_fraction": [0.1, 1.0]}]
    run = build_tiny_run(tmp_path, kind, (0.0, 1.0), seeds=2, heads=heads)
    block = epochs_of_heads(run, "dev")
    assert block is not None and block.picture is not None and block.in_words() and block.sentences
    assert all("tooltip" in layer["encoding"] for layer in layers_of(block.picture))


# ---------------------------------------------------------------------- dev


def test_dev_scores_by_epoch_stand_beside_the_encoder_alone(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, metrics=["accuracy", "f1"])
    both = lambda a, f: {split: {"accuracy": a, "f1": f} for split in ("dev", "held_out")}  # noqa: E731
    run.add("encoder", 1.0, scores=both(70.0, 60.0))
    run.add("last_linear", 1.0, scores=both(60.0, 50.0), epochs=3)
    run.add("adapter_64", 1.0, scores=both(74.0, 66.0), epochs=3)
    for step in (5, 10, 15):
        run.log("train", step=step, loss={"last_linear": 1.0, "adapter_64": 0.5})
        for name, score in (("last_linear", 60.0), ("adapter_64", 64.0 + step)) if step < 15 else ():
            dev = {"dev": {"accuracy": score, "f1": score - 8}}
            run.log("epoch", snapshot=1.0, head=name, epoch=step // 5, held_out=score, seconds=step / 2, dev=dev)
    run.log("last_epoch", snapshot=1.0, epochs={"last_linear": 3, "adapter_64": 3}, seconds=8.0)
    block = epochs_on_dev(run.write(), "dev")
    assert block is not None and block.table is not None
    rows = [row for row in block.table.records() if row["head"] == "adapter_64"]
    assert [(row["epoch"], row["accuracy"], row["F1"], row["seconds"]) for row in rows] == [
        (1, 69.0, 61.0, 2.5), (2, 74.0, 66.0, 5.0), (3, 74.0, 66.0, 8.0),
    ]  # fmt: skip
    # Of the head's three epochs (the control does not count), two are above 70.
    assert block.sentences == [
        "The heads have 3 epochs together. After 2 of them, accuracy on dev is above that of the encoder alone "
        "(70.00). It ranges from 69.00 to 74.00.",
        "These scores were used for no choice.",
    ]
    levels = [row for row in drawn(block) if row.get("model") == "encoder alone"]
    assert [row["score"] for row in levels] == [70.0]


def test_a_run_without_dev_scores_by_epoch_has_no_such_block(tmp_path: Path) -> None:
    assert epochs_on_dev(epochs_run(tmp_path).write(), "dev") is None
