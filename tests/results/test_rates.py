"""The page's part on rates of fine-tuning, from small experiments whose figures are written down here."""

from typing import Any

import pytest

from results.kept import Experiment, load_kept, load_rates
from results.rates import given_rate, rate_blocks, show_rate

ENCODERS = {"gte": "gte-small"}


def model(dev: float, held_out: float, **facts: Any) -> dict[str, Any]:
    def figures(score: float) -> dict[str, Any]:
        return {"f1": score, "at_threshold": {"f1": score}, "forced_f1": score, "no_answer_auc": score}

    return {"parameters": 1, "seconds": 1.0, **facts, "scores": {"dev": figures(dev), "held_out": figures(held_out)}}


def experiment(name: str, snapshots: dict[str, Any], seeds: int = 1) -> Experiment:
    return Experiment(name, dict.fromkeys(range(seeds), {"snapshots": snapshots, "analyses": {}, "metrics": ["f1"]}))


def run(lr: float, dev: float, held_out: float, seed: int = 0) -> dict[str, Any]:
    return {"config": "squad2_gte_full1", "lr": lr, "seed": seed, "snapshots": {"1": tuned(dev, held_out)}}


def tuned(dev: float, held_out: float) -> dict[str, Any]:
    """An encoder, with a control half a point above it."""
    control = model(dev + 0.5, held_out, head="last_linear")
    return {"baseline": {"scores": {"dev": {"f1": 50.0}}}, "encoder": model(dev, held_out), "last_linear": control}


@pytest.fixture
def found() -> dict[str, Experiment]:
    """At 1 of 3 epochs the encoder has 60, the control 62 and the best head 66; at the chosen rate 70, 71 and 70.5."""
    slow = {"encoder": model(60, 60), "last_linear": model(62, 62, head="last_linear")}
    slow |= {"adapter_64": model(66, 64, head="adapter"), "pooled_adapter_386": model(68, 90, head="pooled_adapter")}
    quick = {"encoder": model(70, 70), "last_linear": model(71, 71, head="last_linear")}
    quick |= {"adapter_64": model(70.5, 72, head="adapter"), "ladder_64": model(75, 69, head="ladder")}
    return {
        "squad2_gte": experiment("squad2_gte", {"0": slow, "1": slow, "3": {"encoder": model(69, 69)}}, seeds=2),
        "squad2_gte_full1": experiment("squad2_gte_full1", {"1": tuned(55, 50)}),
        "squad2_gte_tuned": experiment("squad2_gte_tuned", {"1": quick}, seeds=2),
    }


def test_the_best_rate_is_chosen_on_held_out_questions_and_held_against_the_configs(
    found: dict[str, Experiment],
) -> None:
    rates = [run(2e-4, 58, 53), run(1e-4, 59, 52), run(2e-4, 99, 99, seed=1)]  # the best on dev is not the best
    block = rate_blocks(found, rates, ENCODERS)[0]
    assert block.frame is not None
    way = ["gte-small", "full, decay to 1 epoch"]
    assert [row[:5] for row in block.frame.rows] == [
        [*way, "5e-5", 50, 55],
        [*way, "1e-4", 52, 59],
        [*way, "2e-4 (best)", 53, 58],
    ]
    assert block.frame.rows[0][-2:] == [55.5, 55.5] and block.note.endswith("Never answering has F1 50.00.")
    told = "2e-4 instead of 5e-5 for full, decay to 1 epoch (forced F1 +3.00, AUC +3.00 on dev)"
    assert block.sentences == [f"Held-out questions choose, with gte-small {told}."]
    # Of what has several snapshots, the end of its decay counts.
    shots = {"1": tuned(90, 90), "3": tuned(66, 60)}
    found["squad2_gte_lora"] = experiment("squad2_gte_lora", shots)
    worse = {"1": tuned(95, 95), "3": tuned(68, 59)}
    block = rate_blocks(
        found, [*rates, {"config": "squad2_gte_lora", "lr": 3e-3, "seed": 0, "snapshots": worse}], ENCODERS
    )[0]
    assert block.frame is not None
    way = ["gte-small", "LoRA, decay to 3 epochs"]
    assert [row[:5] for row in block.frame.rows[3:]] == [[*way, "1e-3 (best)", 60, 66], [*way, "3e-3", 59, 68]]
    lora = "1e-3, as in the other tables, for LoRA, decay to 3 epochs"
    assert block.sentences == [f"Held-out questions choose, with gte-small {told} and {lora}."]


def test_what_heads_add_is_held_against_encoder_and_control_of_their_own_run(found: dict[str, Experiment]) -> None:
    gain, scores = rate_blocks(found, [], ENCODERS)  # nothing else was tried: no table of rates
    assert gain.frame is not None
    forced = [row[1:6] for row in gain.frame.rows]
    assert forced == [
        # Of the heads that both runs have, which leaves out the best of all; at 0 epochs there is no encoder to beat.
        ["1 of 3 epochs", "adapter_64", "60.00 ± 0.00", "+6.00 ± 0.00", "+4.00 ± 0.00"],
        ["1 epoch, rate chosen", "adapter_64", "70.00 ± 0.00", "+0.50 ± 0.00", "−0.50 ± 0.00"],
    ]
    assert gain.sentences == [
        "Forced F1 of the best head over the encoder, and in brackets over the control: with gte-small +6.00 (+4.00) "
        "at 1 of 3 epochs and +0.50 (−0.50) at 1 epoch, rate chosen."
    ]
    assert gain.picture is not None
    values = gain.picture["data"]["values"]
    assert [(value["model"], value["above"]) for value in values] == [
        ("best head", 6.0),
        ("control", 2.0),
        ("best head", 0.5),
        ("control", 1.0),
    ]
    assert scores.title == "gte-small after 1 epoch at a rate chosen on held-out questions"


def test_without_runs_nothing_is_said_of_rates() -> None:
    assert rate_blocks({}, [run(1e-4, 1, 1)], ENCODERS) == []


def test_rates_are_written_as_in_configs() -> None:
    assert [show_rate(lr) for lr in (5e-5, 2e-4, 1e-3, 0.01)] == ["5e-5", "2e-4", "1e-3", "1e-2"]
    assert given_rate("squad2_gte_tuned") == 2e-4


def test_the_chosen_rate_is_the_best_that_was_tried() -> None:
    """The config has the rate that the kept runs of decay to 1 epoch name."""
    experiments = load_kept()
    for short in ("gte", "minilm"):
        name = f"squad2_{short}_full1"
        tried = {given_rate(name): experiments[name].runs[0]}
        tried |= {run["lr"]: run for run in load_rates() if run["config"] == name and run["seed"] == 0}
        scores = {lr: run["snapshots"]["1"]["encoder"]["scores"]["held_out"]["forced_f1"] for lr, run in tried.items()}
        assert len(scores) == 4 and max(scores, key=lambda lr: scores[lr]) == given_rate(f"squad2_{short}_tuned")
