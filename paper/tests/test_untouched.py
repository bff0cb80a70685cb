"""Heads on an untouched encoder, and alternatives, from small experiments with known scores."""

from typing import Any

import pytest

from bertvision.report.block import Block
from paper.kept import Experiment
from paper.names import colour_by_place
from paper.peers import FULL, HEADS, PLACES, UNTOUCHED, peer_blocks
from paper.spans import SHOWN
from paper.untouched import LINEAR, OURS, TUNED, glue_untouched, untouched_blocks
from paper.untouched import PLACES as BARS

ENCODER = 1_000


def model(dev: float, held_out: float | None = None, **facts: Any) -> dict[str, Any]:
    """All scores of a split are equal, except the AUC, which is 10 higher."""

    def scores(base: float) -> dict[str, Any]:
        names = ("f1", "exact", "forced_f1", "forced_exact", "matthews")
        return {**dict.fromkeys(names, base), "no_answer_auc": base + 10, "at_threshold": {"f1": base}}

    found = {"dev": scores(dev), "held_out": scores(dev if held_out is None else held_out)}
    return {"parameters": 10, "seconds": 1.0, "tokens": 100, **facts, "scores": found}


def experiment(name: str, snapshots: dict[str, Any], seeds: int = 2) -> Experiment:
    whole = {
        epochs: {
            "baseline": {"parameters": 0, "seconds": 0.0, "scores": {"dev": {"f1": 50.0}}},
            "last_linear": model(5, head="last_linear", parameters=2),
            **models,
        }
        for epochs, models in snapshots.items()
    }
    run = {"snapshots": whole, "analyses": {}, "metrics": ["matthews"]}
    return Experiment(name, dict.fromkeys(range(seeds), run))


def encoder(score: float, epochs: float, **facts: Any) -> dict[str, Any]:
    tokens = int(100 * epochs)
    return {"encoder": model(score, parameters=ENCODER, tokens=tokens, seconds=10 * epochs, **facts)}


@pytest.fixture
def found() -> dict[str, Experiment]:
    """The encoder has 80 at 1 of 3 epochs, and 64 with decay to 1; the best head has 72, and 4 % of its parameters."""
    ladders = {
        "ladder_better_on_dev": model(75, held_out=60, head="ladder", parameters=30, tokens=600),
        "ladder_better_held_out": model(72, held_out=65, head="ladder", parameters=40, tokens=600),
    }
    untouched = {**encoder(1, 0), **ladders, "last_linear": model(9, head="last_linear", tokens=600)}
    theirs = {"adapter_64": model(30, head="adapter"), "ladder_64": model(50, head="ladder")}
    curve = {"0": {**encoder(1, 0), **theirs}, "1": {**encoder(80, 1), "adapter_64": model(81, head="adapter")}}
    curve |= {"2": encoder(84, 2), "3": encoder(88, 3)}
    return {
        "untouched_gte": experiment("untouched_gte", {"0": untouched}),
        "squad2_gte": experiment("squad2_gte", curve),
        "squad2_gte_full1": experiment("squad2_gte_full1", {"1": encoder(64, 1)}, seeds=1),
        "squad2_gte_lora": experiment("squad2_gte_lora", {"3": encoder(70, 3, trained_parameters=7)}, seeds=1),
    }


def table(block: Block) -> dict[Any, dict[str, Any]]:
    assert block.table is not None
    return {row[block.table.columns[0].heading]: row for row in block.table.records()}


def test_heads_are_compared_with_both_versions_of_one_epoch(found: dict[str, Experiment]) -> None:
    (block,) = untouched_blocks(found, {}, {"gte": "gte-small"})
    rows = table(block)
    head = rows["ladder_better_held_out, 6 passes"]
    assert (head["parameters"], head["% of encoder"], head["passes"], head["seeds"]) == (40, 4.0, 6.0, 2)
    assert (head["answerable-only F1"], head["AUC"]) == ("72.00 ± 0.00", "82.00 ± 0.00")
    assert (head["answerable-only F1, % of 1 epoch (decayed)"], head["AUC over 1 epoch (decayed)"]) == (
        112.5,
        "+8.00",
    )  # 72 of 64
    assert (head["answerable-only F1, % of 1 epoch (stopped)"], head["AUC over 1 epoch (stopped)"]) == (
        90.0,
        "−8.00",
    )  # 72 of 80
    assert rows["encoder alone, 1 epoch, learning rate decayed to 0"]["passes"] == 3.0
    assert rows["last_linear (control), 6 passes"]["answerable-only F1"] == "9.00 ± 0.00"  # of the untouched run
    assert rows["adapter_64, 1 pass"]["passes"] == rows["ladder_64, 1 pass"]["passes"] == 1.0
    assert rows["baseline: never answers"]["F1"] == "50.00 ± 0.00"
    lora = rows["LoRA, 3 epochs"]
    assert (lora["parameters"], lora["% of encoder"], lora["passes"], lora["answerable-only F1"]) == (
        7,
        0.7,
        9.0,
        "70.00",
    )


def test_the_best_head_is_chosen_on_held_out_data_and_its_cost_is_stated(found: dict[str, Experiment]) -> None:
    (block,) = untouched_blocks(found, {}, {"gte": "gte-small"})
    assert block.sentences[0].startswith("ladder_better_held_out, with 4.0 % of the encoder's parameters")
    assert "112.5 % and +8.00 points (learning rate decayed" in block.sentences[0]
    assert "90.0 % and −8.00 points (stopped" in block.sentences[0]
    # Six forward passes are two epochs forward and backward.
    assert "fine-tuning reaches 2 epochs and answerable-only F1 84.00" in block.sentences[1]
    assert "It reaches 81.8 % of the answerable-only F1 of fine-tuning for 3 epochs" in block.sentences[1]  # 72 of 88
    assert "LoRA, 3 epochs (7 parameters), has answerable-only F1 70.00 and AUC 80.00" in block.sentences[1]


def test_kernels_along_tokens_follow_the_best_head_that_sees_one(found: dict[str, Experiment]) -> None:
    kernels = {"pooled_adapter_inception": model(40, head="inception"), "pooled_adapter_cnn_nxn": model(35, head="cnn")}
    found["untouched_gte_kernels"] = experiment("untouched_gte_kernels", {"0": {**encoder(1, 0), **kernels}}, seeds=3)
    (block,) = untouched_blocks(found, {}, {"gte": "gte-small"})
    rows = table(block)
    titles = ["adapter_64, 1 pass", "pooled_adapter_inception, 1 pass", "pooled_adapter_cnn_nxn, 1 pass"]
    assert [title for title in rows if title in titles] == titles  # in this order, and before the ladders
    assert (rows[titles[1]]["answerable-only F1"], rows[titles[1]]["seeds"]) == ("40.00 ± 0.00", 3)
    assert sum(title.startswith("last_linear") for title in rows) == 1


def test_heads_are_compared_with_the_encoder_at_the_lower_rate_as_well(found: dict[str, Experiment]) -> None:
    lower = {"squad2_gte": experiment("squad2_gte", {"1": encoder(60, 1)})}
    (block,) = untouched_blocks(found, lower, {"gte": "gte-small"})
    head = table(block)["ladder_better_held_out, 6 passes"]
    assert head["answerable-only F1, % of 1 epoch (5e-5)"] == 120.0  # 72 of 60
    assert head["AUC over 1 epoch (5e-5)"] == "+12.00"
    assert "120.0 % and +12.00 points (stopped at 1 of 3 epochs, at 5e-5)." in block.sentences[0]


def test_without_a_run_that_decays_to_one_epoch_the_other_version_remains(found: dict[str, Experiment]) -> None:
    del found["squad2_gte_full1"]
    (block,) = untouched_blocks(found, {}, {"gte": "gte-small"})
    assert block.table is not None
    headings = [column.heading for column in block.table.columns]
    assert "AUC over 1 epoch (stopped)" in headings and "AUC over 1 epoch (decayed)" not in headings
    assert untouched_blocks({"untouched_gte": found["untouched_gte"]}, {}, {"gte": "gte-small"}) == []


def test_sentence_tasks_compare_the_best_untouched_head_with_the_fine_tuned_encoder() -> None:
    heads = {
        "adapter_64": model(30, held_out=9, head="adapter"),
        "ladder_64": model(20, held_out=10, head="ladder", parameters=33),
    }
    one = experiment("cola", {"0": {**encoder(-3, 0), **heads}, "1": encoder(15, 1), "3": encoder(26, 3)})
    block = glue_untouched({"cola": one})
    assert block is not None
    row = table(block)["CoLA"]
    assert (row["best head, untouched"], row["its parameters"], row["its score"]) == ("ladder_64", 33, "20.00 ± 0.00")
    assert (row["head over 1 epoch"], row["head over 3 epochs"]) == ("+5.00", "−6.00")
    assert (row["control, untouched"], row["its passes"]) == ("5.00 ± 0.00", 1.0)
    zoo = experiment("cola_zoo", {"0": {**encoder(-3, 0), "flat_adapter_128": model(22, held_out=11, head="flat")}})
    block = glue_untouched({"cola": one, "cola_zoo": zoo})
    assert block is not None and table(block)["CoLA"]["best head, untouched"] == "flat_adapter_128"
    assert glue_untouched({"cola": experiment("cola", {"1": {**encoder(1, 1), **heads}})}) is None


def test_peers_have_untouched_heads_of_both_runs_and_every_level(found: dict[str, Experiment]) -> None:
    block, work, seconds, parameters = peer_blocks(found, {}, "squad2_gte", "gte-small")
    rows = table(block)
    best = rows["ladder_better_held_out on the untouched encoder"]
    assert (best["passes"], best["trained parameters"], best["seconds"]) == (6.0, 40, "≤ 1.0")  # others shared it
    assert "ladder_64 on the untouched encoder" in rows and "ladder_better_on_dev on the untouched encoder" not in rows
    head = rows["adapter_64 on states of 1 epoch"]
    assert (head["passes"], head["trained parameters"], head["seconds"]) == (4.0, 1_010, "≤ 11.0")
    assert rows["LoRA, decay to 3 epochs"]["trained parameters"] == 7
    levels = {"baseline: never answers", "last_linear (control) on the untouched encoder", "full, stopped at 1 epoch"}
    assert levels <= set(rows) and {"full, decay to 1 epoch", "full, decay to 3 epochs"} <= set(rows)
    for drawn in (work, seconds, parameters):
        assert drawn.picture is not None
        scores = {row["what"]: row["score"] for row in drawn.picture["data"]["values"]}
        assert scores["ladder_better_held_out on the untouched encoder"] == 72.0
    assert "upper bounds" in seconds.note


def test_encoder_control_and_ladder_have_the_same_colours_in_all_pictures() -> None:
    assert BARS[TUNED] == PLACES[FULL] == SHOWN.index("encoder") == 0
    assert BARS[LINEAR] == SHOWN.index("last_linear") and BARS[LINEAR] not in PLACES.values()
    assert BARS[OURS] == PLACES[UNTOUCHED] == SHOWN.index("ladder_128_last4")
    colour, shape = colour_by_place("way", PLACES, [FULL, HEADS])
    for channel in (colour.to_dict(), shape.to_dict()):
        domain = channel["scale"]["domain"]
        assert [domain.index(family) for family in PLACES] == list(PLACES.values())
        assert channel["legend"]["values"] == [FULL, HEADS]
