"""Learning rates of fine-tuning, from small experiments with known scores."""

from typing import Any

import pytest

from paper.kept import LOWER, Experiment, Experiments, at_lower_rate, load_kept, load_rates, show_rate
from paper.rates import given_rate, rate_blocks

ENCODERS = {"gte": "gte-small"}


def model(dev: float, held_out: float, **facts: Any) -> dict[str, Any]:
    def scores(score: float) -> dict[str, Any]:
        return {"f1": score, "at_threshold": {"f1": score}, "forced_f1": score, "no_answer_auc": score}

    return {"parameters": 1, "seconds": 1.0, **facts, "scores": {"dev": scores(dev), "held_out": scores(held_out)}}


def experiment(name: str, snapshots: dict[str, Any], seeds: int = 1, lr: float | None = None) -> Experiment:
    run = {"snapshots": snapshots, "analyses": {}, "metrics": ["f1"]}
    return Experiment(name, dict.fromkeys(range(seeds), run), lr=lr)


def at_rate(lr: float, dev: float, held_out: float) -> Experiment:
    return experiment("squad2_gte_full1", {"1": tuned(dev, held_out)}, lr=lr)


def tuned(dev: float, held_out: float) -> dict[str, Any]:
    """An encoder, with a control half a point above it."""
    control = model(dev + 0.5, held_out, head="last_linear")
    return {"baseline": {"scores": {"dev": {"f1": 50.0}}}, "encoder": model(dev, held_out), "last_linear": control}


@pytest.fixture
def found() -> Experiments:
    """At the end of decay to 1 epoch the encoder has 70, the control 71 and the best head 70.5."""
    ended = {"encoder": model(70, 70), "last_linear": model(71, 71, head="last_linear")}
    ended |= {"adapter_64": model(70.5, 72, head="adapter"), "ladder_64": model(75, 69, head="ladder")}
    ended["baseline"] = {"parameters": 0, "scores": {"dev": {"f1": 50.0}}}
    return {"squad2_gte_full1": experiment("squad2_gte_full1", {"1": ended}, seeds=2)}


def snapshot(encoder: float, head: float) -> dict[str, Any]:
    """The control is 2 above the encoder; another head is better on dev only."""
    models = {"encoder": model(encoder, encoder), "last_linear": model(encoder + 2, 0, head="last_linear")}
    return {**models, "adapter_64": model(head, 64, head="adapter"), "ladder_64": model(99, 63, head="ladder")}


def test_the_best_rate_is_chosen_on_held_out_questions_and_compared_with_the_lowest(found: Experiments) -> None:
    rates = [at_rate(1e-4, 68, 52), at_rate(4e-4, 90, 53), at_rate(LOWER, 65, 50)]  # the best on dev is not the best
    block = rate_blocks(found, at_lower_rate(rates), rates, ENCODERS)[0]
    assert block.table is not None
    way = ["gte-small", "full, decay to 1 epoch"]
    assert [row[:5] for row in block.table.rows] == [
        [*way, "5e-5", 50, 65],
        [*way, "1e-4", 52, 68],
        [*way, "2e-4 (best)", 70, 70],
        [*way, "4e-4", 53, 90],
    ]
    assert block.table.rows[0][-2:] == [65.5, 65.5] and block.note.endswith("Never answering has F1 50.00.")
    best = "2e-4 for “full, decay to 1 epoch” (answerable-only F1 +5.00, AUC +5.00 on dev over 5e-5)"
    assert block.sentences == [f"Best on held-out questions with gte-small: {best}."]
    # In a run with several snapshots, the end of its decay counts.
    found["squad2_gte_lora"] = experiment("squad2_gte_lora", {"1": tuned(90, 90), "3": tuned(66, 60)})
    worse = experiment("squad2_gte_lora", {"1": tuned(95, 95), "3": tuned(68, 59)}, lr=1e-3)
    block = rate_blocks(found, {}, [*rates, worse], ENCODERS)[0]
    assert block.table is not None
    way = ["gte-small", "LoRA, decay to 3 epochs"]
    assert [row[:5] for row in block.table.rows[4:]] == [[*way, "1e-3", 59, 68], [*way, "3e-3 (best)", 60, 66]]


def test_heads_are_compared_with_encoder_and_control_of_their_own_run(found: Experiments) -> None:
    last = {"encoder": model(69, 69)}
    found["squad2_gte"] = experiment("squad2_gte", {"0": snapshot(5, 9), "1": snapshot(65, 68), "3": last}, seeds=2)
    rates = [experiment("squad2_gte", {"0.3": snapshot(50, 60), "1": snapshot(60, 66), "3": last}, seeds=2, lr=LOWER)]
    # A head of the run with kernels along tokens is compared with that run's encoder.
    along = {"1": snapshot(61, 0) | {"pooled_adapter_xception": model(68, 65, head="xception")}}
    rates.append(experiment("squad2_gte_kernels", along, seeds=2, lr=LOWER))
    # No other rate was tried: there is no table of rates.
    gain, scores = rate_blocks(found, at_lower_rate(rates), rates, ENCODERS)
    assert gain.table is not None
    assert [row[1:7] for row in gain.table.rows] == [
        ["5e-5", "0.3 of 3 epochs", "adapter_64", "50.00 ± 0.00", "+10.00 ± 0.00", "+8.00 ± 0.00"],
        ["5e-5", "1 of 3 epochs", "pooled_adapter_xception", "61.00 ± 0.00", "+7.00 ± 0.00", "+5.00 ± 0.00"],
        # At 0 epochs there is no encoder to beat.
        ["2e-4", "1 of 3 epochs", "adapter_64", "65.00 ± 0.00", "+3.00 ± 0.00", "+1.00 ± 0.00"],
        ["2e-4", "decay to 1 epoch", "adapter_64", "70.00 ± 0.00", "+0.50 ± 0.00", "−0.50 ± 0.00"],
    ]
    assert gain.picture is not None
    values = gain.picture["data"]["values"]
    assert [(value["encoder"], value["model"], value["above"]) for value in values[-4:]] == [
        (65.0, "best head", 3.0),
        (65.0, "control", 2.0),
        (70.0, "best head", 0.5),
        (70.0, "control", 1.0),
    ]
    assert scores.title == "gte-small after 1 epoch, learning rate decayed to 0"


def test_without_runs_there_are_no_blocks() -> None:
    assert rate_blocks({}, {}, [at_rate(1e-4, 1, 1)], ENCODERS) == []


def test_rates_are_written_as_in_configs() -> None:
    assert [show_rate(lr) for lr in (5e-5, 2e-4, 1e-3, 0.01)] == ["5e-5", "2e-4", "1e-3", "1e-2"]
    assert given_rate("squad2_gte_full1") == 2e-4


@pytest.mark.parametrize(("way", "end", "count"), [("full1", "1", 4), ("lora", "3", 3), ("bitfit", "3", 4)])
def test_the_chosen_rate_is_the_best_that_was_tried(way: str, end: str, count: int) -> None:
    """The experiments have the best rate of the kept runs; the main runs have that of decay to 1 epoch."""
    experiments, rates = load_kept(), load_rates()
    for short in ("gte", "minilm"):
        name = f"squad2_{short}_{way}"
        tried = {given_rate(name): experiments[name].runs[0]}
        tried |= {one.lr: one.runs[0] for one in rates if one.name == name and one.lr is not None}
        scores = {lr: run["snapshots"][end]["encoder"]["scores"]["held_out"]["forced_f1"] for lr, run in tried.items()}
        assert len(scores) == count and max(scores, key=lambda lr: scores[lr]) == given_rate(name)
        # The page says that these were run at the lower rate only.
        assert given_rate(f"squad2_{short}_full2") == given_rate(f"squad2_{short}_zoo") == LOWER
        assert given_rate(f"answerable_{short}") == LOWER
        if way == "full1":
            assert given_rate(name) == given_rate(f"squad2_{short}") == given_rate(f"squad2_{short}_kernels")
