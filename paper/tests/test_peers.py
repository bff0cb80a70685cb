"""Pictures and tables of alternatives to heads, and the placement of labels."""

from dataclasses import replace
from typing import Any

import pytest

from paper.kept import LOWER, Experiment
from paper.labels import ALIGN, BESIDE, CHARACTER, HEIGHT, WIDTH, place_labels
from paper.peers import peer_blocks

UP, ACROSS = [0.0, 100.0], [1.0, 100.0]


def row(x: float, score: float, label: str = "1", way: str = "a") -> dict[str, Any]:
    return {"cost": x, "score": score, "label": label, "way": way}


def sides(rows: list[dict[str, Any]], joined: tuple[str, ...] = ()) -> list[tuple[int, int]]:
    """Right or left, below or above: as signs."""
    found = place_labels(rows, "cost", ACROSS, UP, joined)
    across = {name: sign for sign, name in ALIGN.items()}
    assert all(one["dx"] == BESIDE * across[one["align"]] for one in found)
    return [(across[one["align"]], (one["dy"] > 0) - (one["dy"] < 0)) for one in found]


def test_a_label_with_room_is_below_right_of_its_point() -> None:
    assert sides([row(10, 50)]) == [(1, 1)]


def test_a_label_keeps_off_marks_lines_and_other_labels() -> None:
    pixel = 100 / HEIGHT  # of score
    first, second = sides([row(10, 50), row(10.6, 50 - 8 * pixel)])  # about 7 pixels right of it and 8 below
    assert first != (1, 1) and second == (1, 1)
    along = [row(10, 50), row(20, 40)]  # a line that goes down to the right leaves through the label
    assert sides(along)[0] == (1, 1) and sides(along, ("a",))[0] != (1, 1)
    same = sides([row(10, 50, "2"), row(10, 50, "3")])
    assert same[0] != same[1]


def test_labels_stay_between_the_axes() -> None:
    long = "6 passes"
    assert CHARACTER * len(long) < WIDTH
    ((right, _),) = sides([row(99, 50, long)])
    assert right == -1
    ((_, lowest),) = sides([row(10, 0.5)])
    assert lowest != 1


def scored(score: float, **facts: Any) -> dict[str, Any]:
    own = {"f1": score, "forced_f1": score, "no_answer_auc": score, "at_threshold": {"f1": score}}
    return {"parameters": 10, "seconds": 1.0, "tokens": 100, **facts, "scores": {"dev": own, "held_out": own}}


def experiment(name: str, seeds: int, snapshots: dict[str, Any]) -> Experiment:
    base = {
        "baseline": {"parameters": 0, "scores": {"dev": {"f1": 50.0}}},
        "last_linear": scored(5, head="last_linear"),
    }
    run = {"snapshots": {epochs: {**base, **models} for epochs, models in snapshots.items()}, "analyses": {}}
    return Experiment(name, dict.fromkeys(range(seeds), run))


@pytest.fixture
def found() -> dict[str, Experiment]:
    start = {"encoder": scored(1, tokens=0), "ladder_64": scored(50, head="ladder")}
    longer = {"encoder": scored(1, tokens=0), "ladder_deep": scored(60, head="ladder", tokens=600)}
    return {
        "squad2_gte": experiment("squad2_gte", 3, {"0": start, "1": {"encoder": scored(70)}}),
        "untouched_gte": experiment("untouched_gte", 3, {"0": longer}),
        "squad2_gte_full1": experiment("squad2_gte_full1", 3, {"1": {"encoder": scored(65)}}),
        "squad2_gte_lora": experiment("squad2_gte_lora", 1, {"1": {"encoder": scored(60)}}),
    }


def test_heads_on_the_untouched_encoder_are_labelled_by_their_passes(found: dict[str, Experiment]) -> None:
    for block in peer_blocks(found, {}, "squad2_gte", "gte-small")[1:]:
        assert block.picture is not None
        rows = block.picture["data"]["values"]
        labels = {row["what"]: row["label"] for row in rows}
        assert labels["ladder_64 on the untouched encoder"] == "1 pass"
        assert labels["ladder_deep on the untouched encoder"] == "6 passes"
        assert labels["LoRA, decay to 1 epoch"] == "1"
        assert "on the untouched encoder 1 pass is ladder_64 and 6 passes is ladder_deep." in block.note


def test_full_fine_tuning_at_the_lower_rate_is_a_separate_method(found: dict[str, Experiment]) -> None:
    lower = {"squad2_gte_full1": replace(found["squad2_gte_full1"], lr=LOWER)}
    found["squad2_gte_full1"] = experiment("squad2_gte_full1", 3, {"1": {"encoder": scored(80)}})
    found["squad2_gte_full2"] = experiment("squad2_gte_full2", 3, {"2": {"encoder": scored(75)}})
    lower["squad2_gte"] = experiment("squad2_gte", 3, {"3": {"encoder": scored(77)}})
    table, *pictures = peer_blocks(found, lower, "squad2_gte", "gte-small")
    assert table.table is not None
    titles = [
        "full, decay to 1 epoch",
        *(f"full at 5e-5, decay to {end}" for end in ("1 epoch", "2 epochs", "3 epochs")),
    ]
    shown = [row for row in table.table.rows if row[0] in titles]
    assert [row[0] for row in shown] == ["full, decay to 1 epoch", *titles]  # the main run also ends there
    assert [row[-2] for row in shown[1:]] == ["80.00 ± 0.00", "65.00 ± 0.00", "75.00 ± 0.00", "77.00 ± 0.00"]
    for block in pictures:
        assert block.picture is not None
        ways = {row["what"]: row["way"] for row in block.picture["data"]["values"]}
        assert ways[titles[1]] == ways[titles[2]] == "full at 5e-5, fully decayed"
        assert ways[titles[0]] == "full, fully decayed"


def test_notes_name_the_methods_with_fewer_seeds(found: dict[str, Experiment]) -> None:
    assert "Means over 3 seeds; LoRA: 1 seed." in peer_blocks(found, {}, "squad2_gte", "gte-small")[1].note
    del found["squad2_gte_lora"]
    assert "Means over 3 seeds. " in peer_blocks(found, {}, "squad2_gte", "gte-small")[1].note


def test_methods_are_compared_in_the_seconds_of_full_fine_tuning() -> None:
    """Full fine-tuning to 1 epoch takes 4 s, stopped there 4.1 s, to 2 epochs 10 s; a head at 1 epoch takes 4.1 + 5 s,
    the control by itself 1 s, LoRA 2 and 5 s."""
    head = {"ladder_64": scored(72, head="ladder", seconds=5.0), "adapter_64": scored(74, head="adapter", seconds=5.0)}
    head["adapter_64"]["scores"]["held_out"] = scored(60)["scores"]["dev"]  # better on dev only
    shots = {"1": {"encoder": scored(64, seconds=4.1), **head}, "2": {"encoder": scored(76, seconds=10.0)}}
    lora = {"1": {"encoder": scored(60, seconds=2.0)}, "2": {"encoder": scored(66, seconds=5.0)}}
    found = {
        "squad2_gte": experiment("squad2_gte", 3, shots),
        "squad2_gte_full1": experiment("squad2_gte_full1", 3, {"1": {"encoder": scored(65, seconds=4.0)}}),
        "squad2_gte_lora": experiment("squad2_gte_lora", 3, lora),
    }
    assert not [block for block in peer_blocks(found, {}, "squad2_gte", "gte-small") if block.key.endswith("_budgets")]
    found = {name: replace(one, timed=[one.runs[0]]) for name, one in found.items()}
    lower = {"squad2_gte_full1": replace(found["squad2_gte_full1"], lr=LOWER)}
    blocks = peer_blocks(found, lower, "squad2_gte", "gte-small")
    (block,) = [block for block in blocks if block.key.endswith("_budgets")]
    assert block.table is not None
    assert [column.heading for column in block.table.columns] == ["method", "in 4.1 s", "in 10.0 s"]
    assert {row[0]: row[1:] for row in block.table.rows} == {
        # A run stopped a tenth of a second later still counts.
        "full, stopped early": ["64.00 ± 0.00 (full, stopped at 1 epoch)"] * 2,
        "full, fully decayed": ["65.00 ± 0.00 (full, decay to 1 epoch)", "76.00 ± 0.00 (full, decay to 2 epochs)"],
        "full at 5e-5, fully decayed": ["65.00 ± 0.00 (full at 5e-5, decay to 1 epoch)"] * 2,
        "a head on fine-tuned states": [None, "72.00 ± 0.00 (ladder_64 on states of 1 epoch)"],
        "LoRA": ["60.00 ± 0.00 (LoRA, stopped at 1 epoch)", "66.00 ± 0.00 (LoRA, decay to 2 epochs)"],
        "last_linear (control)": [None, "5.00 ± 0.00 (last_linear (control) on states of 1 epoch)"],
    }
    assert block.sentences == [
        "Best on held-out questions: “full, decay to 1 epoch” in 4.1 s (65.00 ± 0.00 on dev) and “full, decay to 2 "
        "epochs” in 10.0 s (76.00 ± 0.00 on dev)."
    ]
    assert "a single head takes less (the control alone: 1.0 s)." in block.note


def test_seconds_of_a_shared_gpu_are_hollow_and_explained(found: dict[str, Experiment]) -> None:
    def seconds() -> tuple[list[bool], str]:
        blocks = {block.key: block for block in peer_blocks(found, {}, "squad2_gte", "gte-small")}
        block = blocks["squad2_gte_seconds"]
        assert block.picture is not None
        return [row["filled"] for row in block.picture["data"]["values"]], block.note

    filled, note = seconds()
    assert not any(filled) and "Hollow: upper bounds" in note
    found |= {name: replace(one, timed=[one.runs[0]]) for name, one in found.items()}
    filled, note = seconds()
    assert all(filled) and "Hollow" not in note
