"""The page's beginning, from small experiments whose figures are written down here."""

from typing import Any

import pytest

from paper.kept import LOWER, Experiment
from paper.summary import summary_block


def model(dev: float, held_out: float, **facts: Any) -> dict[str, Any]:
    found = {
        split: {"forced_f1": score, "no_answer_auc": 2 * score}
        for split, score in (("dev", dev), ("held_out", held_out))
    }
    return {"parameters": 1, **facts, "scores": found}


def spans() -> dict[str, Experiment]:
    """Two seeds: at 0.3 epochs the head is 3 and 7 above the encoder, 0 and 4 above the control; at 2 epochs below
    both."""
    runs = {}
    for seed, score in enumerate((23.0, 27.0)):
        early = {
            "encoder": model(20, 20),
            "last_linear": model(23, 23, head="last_linear"),
            "ladder_64": model(score, 30, head="ladder"),
            "adapter_64": model(40, 25, head="adapter"),  # better on dev, which must not count
        }
        late = {**early, "encoder": model(33, 33), "last_linear": model(34, 34, head="last_linear")}
        shots = {"0": early, "0.3": early, "2": late}
        runs[seed] = {"snapshots": shots, "analyses": {}, "metrics": ["f1"]}
    return {"squad2_gte": Experiment("squad2_gte", runs)}


def test_the_best_head_on_held_out_data_is_held_against_encoder_and_control() -> None:
    block = summary_block(spans(), {})
    assert block is not None and block.table is not None
    first, second, *later = block.table.rows
    assert first == [
        "spans, gte-small",
        0.3,
        "ladder_64",
        2,
        "answerable-only F1",
        "25.00 ± 2.83",
        "+5.00 ± 2.83",
        "+2.00 ± 2.83",
    ]
    assert second[4:] == ["AUC", "50.00 ± 5.66", "+10.00 ± 5.66", "+4.00 ± 5.66"]
    assert [row[1] for row in later] == [2.0, 2.0]  # nothing is said of 0 epochs
    assert block.alt == (
        "Points above encoder and control: spans, gte-small at 0.3 epochs +5.00 and +2.00; spans, gte-small at 2 "
        "epochs −8.00 and −9.00"
    )
    assert block.picture is not None
    panels = [
        [value for layer in panel["layer"] for value in layer["data"]["values"] if "place" in value]
        for panel in block.picture["hconcat"]
    ]
    for name, values, gap in zip(("encoder", "control"), panels, (5.0, 2.0), strict=True):
        first = values[0]
        assert (first["place"], first["other"], first["gap"]) == ("spans, gte-small, 0.3 epochs", name, gap)
        assert (first["low"], first["high"]) == pytest.approx((gap - 2.83, gap + 2.83), abs=0.005)
    axis = block.picture["hconcat"][0]["layer"][0]["encoding"]["x"]
    assert axis["scale"]["domain"] == pytest.approx([-14.2, 9.4], abs=0.01)  # a fifth beyond −11.83 and 7.83
    (told,) = block.sentences
    assert told == (
        "In the mean over seeds the best head is above the encoder alone in 2 of 2 figures (2 with every seed), and "
        "above the control in 2 (0), where each task's encoder was fine-tuned least (0.3 to 0.3 epochs); in 0 of 2 "
        "figures (0 with every seed), and above the control in 0 (0), where each task's encoder was fine-tuned most (2 "
        "to 2 epochs)."
    )


def test_the_best_head_may_be_of_the_run_with_kernels() -> None:
    found = spans()
    runs = {seed: run for seed, run in spans()["squad2_gte"].runs.items()}
    for run in runs.values():
        run["snapshots"]["2"]["pooled_adapter_xception"] = model(36, 50, head="xception")
        run["snapshots"]["2"]["encoder"] = model(32, 32)
    block = summary_block({**found, "squad2_gte_kernels": Experiment("squad2_gte_kernels", runs)}, {})
    assert block is not None and block.table is not None
    row = block.table.rows[2]
    assert row[1:4] == [2.0, "pooled_adapter_xception", 2] and row[6:] == ["+4.00 ± 0.00", "+2.00 ± 0.00"]  # of its run


def test_an_untouched_encoder_is_held_against_its_own_first_epoch() -> None:
    found = spans()
    for run in found["squad2_gte"].runs.values():
        run["snapshots"]["1"] = {"encoder": model(50, 50)}
    ladder = {"encoder": model(1, 1), "ladder_64": model(48, 40, head="ladder")}
    run = {"snapshots": {"0": ladder}, "analyses": {}, "metrics": ["f1"]}
    block = summary_block({**found, "untouched_gte": Experiment("untouched_gte", {0: run})}, {})
    assert block is not None
    assert block.sentences[1].endswith("96 % with gte-small (AUC −4.00).")  # 48 of 50, and 96 less 100


def test_what_heads_add_to_encoders_fine_tuned_worse_and_better_is_told() -> None:
    """After 1 epoch the best head adds 5 to 50 at the lower rate, 2 to 55 at the other, .5 to 60 at the end of decay;
    the untouched encoder's has 48."""

    def shot(encoder: float, head: float) -> dict[str, Any]:
        models = {"encoder": model(encoder, encoder), "last_linear": model(51, 51, head="last_linear")}
        return {**models, "adapter_64": model(head, 55, head="adapter"), "ladder_64": model(90, 54, head="ladder")}

    def once(name: str, epochs: str, models: dict[str, Any], lr: float | None = None) -> Experiment:
        return Experiment(name, {0: {"snapshots": {epochs: models}, "analyses": {}, "metrics": ["f1"]}}, lr=lr)

    found = {"squad2_gte": once("squad2_gte", "1", shot(55, 57)), "squad2_gte_full1": once("", "1", shot(60, 60.5))}
    ladder = {"encoder": model(1, 1), "ladder_64": model(48, 40, head="ladder")}
    found["untouched_gte"] = once("untouched_gte", "0", ladder)
    block = summary_block(found, {"squad2_gte": once("squad2_gte", "1", shot(50, 55), LOWER)})
    assert block is not None and block.sentences[1] == (
        "To the answerable-only F1 of its own run's encoder, fine-tuned for 1 epoch worse or better, the best head adds with "
        "gte-small +5.00 to 50.00 (1 of 1 epoch, 5e-5), +2.00 to 55.00 (1 of 1 epoch, 2e-4) and +0.50 to 60.00 (decay "
        "to 1 epoch, 2e-4)."
    )
    assert block.sentences[2].endswith("; 80 % where the rate had decayed to 0 by then).")  # 48 of 60


def test_without_runs_there_is_nothing_to_begin_with() -> None:
    assert summary_block({}, {}) is None
