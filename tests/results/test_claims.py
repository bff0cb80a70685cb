"""Verdicts on claims, from small experiments whose figures are written down here."""

from typing import Any

import pytest

from results.claims import FAILS, HOLDS, OPEN, PARTLY, Finding, beats_encoder, judge, less_data, second_answers
from results.kept import Experiment, Mean

GAPS = {"f1": [1.0, 2.0], "at_threshold.f1": [1.0, 1.0], "forced_f1": [0.5, 0.1], "no_answer_auc": [3.0, 1.0]}


def scores(base: float) -> dict[str, Any]:
    found = {"f1": base, "forced_f1": base, "no_answer_auc": base, "exact": base, "forced_exact": base}
    return {**found, "at_threshold": {"f1": base, "exact": base}}


def model(dev: float, held_out: float, **facts: Any) -> dict[str, Any]:
    return {"parameters": 1, "seconds": 1.0, **facts, "scores": {"dev": scores(dev), "held_out": scores(held_out)}}


def squad(*seeds: dict[str, dict[str, Any]], analyses: dict[str, Any] | None = None) -> dict[str, Experiment]:
    """One snapshot, at 1 epoch, of an encoder at 50 with these heads, by seed."""
    runs = {}
    for seed, heads in enumerate(seeds):
        models = {"encoder": model(50, 50), "last_linear": model(50, 50, head="last_linear"), **heads}
        runs[seed] = {"snapshots": {"1": models}, "analyses": analyses or {}, "metrics": ["f1"]}
    return {"squad2_gte": Experiment("squad2_gte", runs)}


def test_a_claim_holds_where_every_comparison_holds_for_every_seed() -> None:
    right = Finding("right", {key: Mean(values) for key, values in GAPS.items()})
    mixed = Finding("one seed is below", {**right.gaps, "f1": Mean([3.0, -1.0])})
    wrong = Finding("wrong", {"f1": Mean([-1.0, -2.0]), "forced_f1": Mean([1.0, -1.5])})
    assert judge([right, right]) == HOLDS
    assert judge([right, mixed]) == PARTLY
    assert judge([right, wrong]) == PARTLY
    assert judge([wrong]) == FAILS
    assert judge([]) == OPEN


def test_the_head_that_stands_for_all_is_chosen_on_held_out_data_among_the_papers() -> None:
    heads = {
        "adapter_64": model(dev=51, held_out=60, head="adapter"),
        "adapter_386": model(dev=70, held_out=55, head="adapter"),  # better on dev, which must not count
        "ladder_64": model(dev=80, held_out=80, head="ladder"),  # not the papers'
    }
    claim = beats_encoder(squad(heads, heads))
    assert claim.verdict == HOLDS and claim.seeds == 2
    assert claim.ours == ["gte-small, adapter_64 at 1 epoch: " + ", ".join(
        f"{name} +1.00 ± 0.00" for name in ("F1", "F1*", "forced F1", "AUC")
    )]  # fmt: skip


def test_a_head_that_one_seed_lacks_does_not_stand_for_all() -> None:
    both, one = model(51, 52, head="adapter"), model(90, 90, head="adapter")
    claim = beats_encoder(squad({"adapter_64": both}, {"adapter_64": both, "adapter_386": one}))
    assert "adapter_64 at 1 epoch" in claim.ours[0]


@pytest.mark.parametrize(("tenth", "third", "verdict"), [(59.5, 59.9, HOLDS), (58.0, 59.5, PARTLY), (55, 56, FAILS)])
def test_less_data_suffices_where_it_costs_a_point_at_most(tenth: float, third: float, verdict: str) -> None:
    heads = {"adapter_386_skip": model(60, 60, head="adapter")}
    for share, score in ((0.1, tenth), (0.3, third)):
        name = f"adapter_386_skip_data_fraction{share}"
        heads[name] = model(score, score, head="adapter", data_fraction=share)
    assert less_data(squad(heads)).verdict == verdict


def test_second_answers_are_held_against_the_published_share() -> None:
    heads = {"adapter_64": model(51, 52, head="adapter")}
    shares = [("encoder itself", 44.5), ("adapter_64", 38.0), ("another", 44.0)]
    rows = [{"model": name, "% second right": share} for name, share in shares]
    claim = second_answers(squad(heads, analyses={"second_answer": rows}))
    assert claim.verdict == PARTLY
    assert claim.ours == ["gte-small at 1 epoch, seed 0: encoder itself 44.5 %, adapter_64 38.0 %"]


def test_nothing_is_claimed_without_runs() -> None:
    assert beats_encoder({}).verdict == less_data({}).verdict == second_answers({}).verdict == OPEN
