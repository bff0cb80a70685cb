"""Verdicts on claims, from small experiments with known scores."""

import re
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from paper import analysis_claims, claims
from paper.judging import FAILS, HOLDS, NO_DECAY, NOT_MEASURED, ONE_SEED, OPEN, OWN, PARTLY, UNCLEAR, Claim, Finding
from paper.kept import LOWER, Experiment, Mean, Place, at_lower_rate, load_kept, load_rates
from paper.spans import rank_correlation


def scores(base: float) -> dict[str, Any]:
    found = {"f1": base, "forced_f1": base, "no_answer_auc": base, "exact": base, "NoAns_f1": base}
    return {**found, "at_threshold": {"f1": base, "exact": base, "NoAns_f1": base}}


def model(dev: float, held_out: float, **facts: Any) -> dict[str, Any]:
    return {"parameters": 1, "seconds": 1.0, **facts, "scores": {"dev": scores(dev), "held_out": scores(held_out)}}


def squad(*seeds: dict[str, dict[str, Any]], epochs: str = "1", analyses: Any = None) -> dict[str, Experiment]:
    """One snapshot of an encoder at 50 with these heads, by seed."""
    runs = {}
    for seed, heads in enumerate(seeds):
        models = {"encoder": model(50, 50), "last_linear": model(50, 50, head="last_linear"), **heads}
        runs[seed] = {"snapshots": {epochs: models}, "analyses": analyses or {}, "metrics": ["f1"]}
    return {"squad2_gte": Experiment("squad2_gte", runs)}


def verdict(*gaps: list[float], allowed: float = 0.0) -> str:
    return Claim("", "", [Finding("", {str(n): Mean(gap) for n, gap in enumerate(gaps)}, allowed)]).verdict


def test_a_claim_holds_if_every_score_of_every_seed_is_above() -> None:
    assert verdict([1.0, 2.0], [0.5, 0.1]) == HOLDS
    assert verdict([1.0, 2.0], [3.0, -1.0]) == PARTLY  # one seed is below
    assert verdict([1.0, 2.0], [-1.0, -2.0]) == PARTLY
    assert verdict([1.0, 2.0], [-1.0, -2.0], [1.0, -0.5]) == PARTLY  # one of three
    assert verdict([1.0, 2.0], [-1.0, -2.0], [1.0, -0.5], [-1.0, -1.0]) == FAILS  # one of four
    assert verdict([-1.0, -2.0], [1.0, -1.5]) == FAILS
    assert verdict([0.0, 0.0]) == FAILS
    assert Claim("", "", []).verdict == OPEN


def test_one_seed_decides_nothing() -> None:
    assert verdict([5.0], [5.0]) == verdict([-5.0]) == verdict([5.0, 5.0], [5.0]) == ONE_SEED


def test_a_claim_may_allow_scores_below_zero() -> None:
    assert verdict([-1.0, -0.5], allowed=1.0) == HOLDS  # also exactly the allowed amount
    assert verdict([-1.5, 0.5], allowed=1.0) == FAILS  # the mean is above the limit, one seed is not
    assert verdict([-1.5, -1.5], allowed=1.0) == FAILS


def test_the_best_head_is_chosen_on_held_out_data_among_the_papers() -> None:
    heads = {
        "adapter_64": model(dev=51, held_out=60, head="adapter"),
        "adapter_386": model(dev=70, held_out=55, head="adapter"),  # better on dev, which must not count
        "ladder_64": model(dev=80, held_out=80, head="ladder"),  # not the papers'
        "adapter_64_mean": model(dev=80, held_out=80, head="adapter"),  # nor is reading means
    }
    claim = claims.beats_encoder(squad(heads, heads))
    assert claim.verdict == HOLDS and claim.seeds == 2
    gaps = ", ".join(f"{name} +1.00 ± 0.00" for name in ("F1", "F1*", "answerable-only F1", "AUC"))
    assert [str(finding) for finding in claim.findings] == [f"gte-small, adapter_64 at 1 epoch: {gaps}"]


def test_a_head_that_one_seed_lacks_is_not_chosen() -> None:
    both, one = model(51, 52, head="adapter"), model(90, 90, head="adapter")
    claim = claims.beats_encoder(squad({"adapter_64": both}, {"adapter_64": both, "adapter_386": one}))
    assert "adapter_64 at 1 epoch" in str(claim.findings[0])


def less_data(tenth: float, third: float) -> str:
    heads = {"adapter_386_skip": model(78.8, 78.8, head="adapter")}
    for share, score in ((0.1, tenth), (0.3, third)):
        name = f"adapter_386_skip_data_fraction{share}"
        heads[name] = model(score, score, head="adapter", data_fraction=share)
    return claims.less_data(squad(heads, heads)).verdict


def test_the_papers_own_scores_pass_their_claims() -> None:
    assert less_data(tenth=76.5, third=77.2) == HOLDS
    assert less_data(tenth=75.0, third=77.2) == PARTLY
    assert less_data(tenth=70.0, third=71.0) == FAILS
    later = squad(*[{"adapter_64": model(79.0, 79.0, head="adapter")}] * 2)
    for run in later["squad2_gte"].runs.values():
        run["snapshots"]["2"] = {"encoder": model(79.2, 79.2)}
    assert claims.reaches_later(later).verdict == HOLDS


def answers(*shares: float | None, epochs: str = "0.3", key: str = "% second right", **cells: Any) -> dict[str, Any]:
    """adapter_64 at a snapshot, with this share of right second answers by seed."""
    heads = {"adapter_64": model(51, 52, head="adapter")}
    runs = squad(*[heads] * len(shares), epochs=epochs)["squad2_gte"].runs
    for run, share in zip(runs.values(), shares, strict=True):
        run["analyses"] = {"second_answer": [{"model": "adapter_64", "% second right": 0.0, key: share, **cells}]}
    return {"squad2_gte": Experiment("squad2_gte", runs)}


def test_second_answers_of_the_head_at_03_epochs_are_compared_with_the_published_share() -> None:
    claim = claims.second_answers(answers(44.5, 43.0))
    assert claim.verdict == HOLDS and claim.missing == ""
    assert [str(finding) for finding in claim.findings] == ["gte-small, adapter_64 at 0.3 epochs: 43.75 ± 1.06 %"]
    assert claims.second_answers(answers(38.0, 38.0)).verdict == FAILS  # 6 points off
    assert claims.second_answers(answers(44.0, 38.0)).verdict == FAILS  # one seed is off
    assert claims.second_answers(answers(44.0, None)).verdict == ONE_SEED  # nothing was missed
    assert claims.second_answers(answers(None, None)).verdict == OPEN
    better = {"pooled_adapter_inception": model(51, 60, head="inception")}  # on held-out questions
    of_it = [{"model": "pooled_adapter_inception", "% second right": 30.0}]
    kernels = squad(better, better, epochs="0.3", analyses={"second_answer": of_it})["squad2_gte"].runs
    both = answers(44.0, 44.0) | {"squad2_gte_kernels": Experiment("squad2_gte_kernels", kernels)}
    assert claims.second_answers(both).verdict == FAILS


def test_a_share_at_another_snapshot_is_shown_but_not_judged() -> None:
    """At 0.3 epochs the same heads were trained, but only the last snapshot was analysed."""
    found = answers(44.0, 44.0, epochs="1")
    for run in found["squad2_gte"].runs.values():
        run["snapshots"] = {"0.3": run["snapshots"]["1"], **run["snapshots"]}
    claim = claims.second_answers(found)
    assert (claim.verdict, claim.findings, claim.found) == (NOT_MEASURED, [], "elsewhere 44 to 44 %")
    assert claim.evidence == [
        "not measured: the share at 0.3 epochs; the kept files have the last snapshot only. New runs of squad2_gte, "
        "kept with paper.keep, measure it",
        "not judged: gte-small, adapter_64 at 1 epoch: 44.00 ± 0.00 %",
    ]
    rows = [{"epochs": at, "model": "adapter_64", "% second right": share} for at, share in ((0.3, 40.0), (1.0, 9.0))]
    for run in found["squad2_gte"].runs.values():
        run["analyses"]["second_answer"] = rows  # as kept today
    claim = claims.second_answers(found)
    assert claim.verdict == HOLDS and str(claim.findings[0]).endswith("at 0.3 epochs: 40.00 ± 0.00 %")


def test_questions_whose_second_answer_is_right_have_an_answer_as_often_as_published() -> None:
    claim = claims.second_answers_with_an_answer(answers(47.0, 51.0, key="% with an answer"))
    assert claim.verdict == HOLDS and str(claim.findings[0]).endswith("at 0.3 epochs: 49.00 ± 2.83 %")
    claim = claims.second_answers_with_an_answer(answers(44.0, 44.0))  # kept by an earlier version
    assert claim.verdict == NOT_MEASURED and "the kept files do not have it" in claim.evidence[0]


def missed(*rows: dict[str, Any], epochs: str = "0.3") -> Claim:
    heads = {"adapter_64": model(51, 52, head="adapter")}
    scores = {"HasAns_exact": 40.0, "HasAns_f1": 55.0, "forced_f1": 79.0}
    heads["adapter_64"]["scores"]["dev"] |= scores
    found = squad(heads, heads, epochs=epochs, analyses={"wrong_predictions": list(rows)})
    return claims.missed_answers(found)


def test_missed_answers_are_judged_at_threshold_0() -> None:
    counts = {"model": "adapter_64", "missed answer": 30, "overlapping span": 10, "wrong span": 60}
    claim = missed({**counts, "missed, % at threshold 0": 66.0})
    assert claim.verdict == HOLDS
    assert str(claim.findings[0]) == "gte-small, adapter_64 at 0.3 epochs, at threshold 0: 66.00 ± 0.00 %"
    claim = missed(counts)
    assert claim.verdict == NOT_MEASURED
    # 60 % are wrong. Silence cost 24 points of F1, so at least 24 of 60 are silent; wrong spans have 15 points of F1,
    # so at least 15 of 60 are not.
    assert claim.evidence[1] == "gte-small, adapter_64 at 0.3 epochs: the kept scores allow 40 to 75 % at threshold 0"
    del counts["missed answer"]
    claim = missed({**counts, "said nothing": 30}, epochs="2")  # its name in earlier versions
    assert claim.evidence == ["not judged: gte-small, adapter_64 at 2 epochs, at the chosen threshold: 30.00 ± 0.00 %"]
    assert claim.verdict == OPEN  # no heads were trained at 0.3 or 1 epochs


def test_bounds_of_missed_answers_hold_for_any_predictions() -> None:
    """Random answers to questions with an answer: the share lies between the bounds."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        f1, silent = rng.choice([0.0, 0.3, 0.9, 1.0], 40), rng.random(40) < rng.random()
        exact = (f1 == 1) & ~silent
        figures = {"HasAns_exact": exact, "HasAns_f1": np.where(silent, 0, f1), "forced_f1": f1}
        heads = {"adapter_64": model(51, 52, head="adapter")}
        heads["adapter_64"]["scores"]["dev"] |= {key: 100 * float(values.mean()) for key, values in figures.items()}
        place = Place(squad(heads)["squad2_gte"], 1.0, "adapter_64")
        text = analysis_claims._bounds_of_missed("", place)
        if exact.all():
            assert text is None
            continue
        low, high = map(int, re.findall(r"allow (\d+) to (\d+) %", str(text))[0])
        share = 100 * silent[~exact].mean()
        assert low - 1 <= share <= high + 1  # both are rounded


def lengths(encoder: float | None, head: float | None, questions: int) -> dict[str, Experiment]:
    """Median passage lengths where only the encoder or only the head is right; both have quartiles 40 words apart."""
    heads = {"adapter_64": model(51, 52, head="adapter")}
    rows = [
        {"right": f"only {name}", "questions": questions, "median": words, "lower quartile": 90, "upper quartile": 130}
        for name, words in (("encoder alone", encoder), ("it", head))
    ]
    return squad(heads, heads, analyses={"passage_lengths": rows})


def test_passages_must_be_shorter_by_more_than_chance() -> None:
    # With 1,000 questions each median is off by 0.93 · 40 / √1000 = 1.18 words, and their difference by 1.66.
    claim = claims.better_on_shorter(lengths(100, 90, 1000))
    assert claim.verdict == HOLDS and "(p = 0.00)" in claim.found
    claim = claims.better_on_shorter(lengths(100, 97, 1000))
    assert (claim.agreeing, claim.verdict) == ([False], UNCLEAR)
    assert claim.findings[0].chance == pytest.approx(2 * (1 - NormalDist().cdf(3 / 1.6637)), abs=1e-3)
    assert claims.better_on_shorter(lengths(100, 110, 1000)).verdict == FAILS  # longer, and clearly so
    assert claims.better_on_shorter(lengths(100, 90, 9)).verdict == UNCLEAR  # 10 words, of a few questions
    assert claims.better_on_shorter(lengths(100, None, 1000)).verdict == OPEN
    assert claims.better_on_unanswerable(lengths(100, 90, 1000)).agreeing == [True, True]


def test_passages_are_judged_at_03_and_1_epochs_and_elsewhere_only_shown() -> None:
    found = lengths(100, 90, 1000)  # at 1 epoch
    for run in found["squad2_gte"].runs.values():
        run["snapshots"] |= {"0.3": run["snapshots"]["1"], "2": run["snapshots"]["1"]}
    claim = claims.better_on_shorter(found)  # the rows are now those of the last snapshot, 2 epochs
    assert claim.verdict == NOT_MEASURED and "passage lengths at 0.3 and 1 epochs" in claim.missing
    assert len(claim.further) == 1 and claim.further[0].startswith("not judged: gte-small at 2 epochs")
    found["squad2_gte_full1"] = Experiment("squad2_gte_full1", lengths(100, 90, 1000)["squad2_gte"].runs)
    claim = claims.better_on_shorter(found)
    assert claim.verdict == HOLDS and "passage lengths at 0.3 epochs" in claim.missing
    assert claim.findings[0].words.startswith("gte-small, learning rate decayed to 0 at 1 epoch")
    for run in found["squad2_gte"].runs.values():
        rows = run["analyses"]["passage_lengths"]
        run["analyses"] = {"passage_lengths": [{"epochs": at, **row} for at in (0.3, 1.0, 2.0) for row in rows]}
    claim = claims.better_on_shorter(found)
    assert claim.missing == "" and [finding.words.partition(",")[0] for finding in claim.findings] == [
        "gte-small at 0.3 epochs",
        "gte-small at 1 epoch",
    ]


def test_later_layers_must_weigh_more_by_more_than_chance() -> None:
    def judge(*weights: list[float]) -> Claim:
        """One encoder for each list of weights, the same with both seeds."""
        found = {}
        for name, own in zip(("squad2_gte", "squad2_minilm"), weights, strict=False):
            rows = [{"head": "learned_pooling", "layer": str(n), "weight, %": w} for n, w in enumerate(own)]
            found[name] = Experiment(name, squad({}, {}, analyses={"layer_weights": rows})["squad2_gte"].runs)
        return claims.later_layers(found)

    rising, mixed = [5, 10, 12, 13, 15, 20, 25], [12.8, 12.2, 12.0, 13.0, 10.2, 17.9, 22.0]
    assert rank_correlation(mixed) == pytest.approx(1 - 6 * 28 / (7 * 48))  # ranks are off by 3 1 1 1 4 0 0
    assert judge(rising, rising).verdict == HOLDS
    claim = judge(mixed)  # +0.50, and the upper half weighs more, but with 7 layers that is chance
    assert claim.findings[0].chance is not None and claim.findings[0].chance > 0.05
    assert (claim.agreeing, claim.verdict) == ([False], FAILS)
    assert judge(rising, mixed).verdict == PARTLY  # both encoders must agree
    assert judge(rising[::-1]).verdict == FAILS
    assert "p < 0.05 on both encoders" in claim.title and "rank correlation +0.50 (p = 0.25)" in claim.found


@pytest.mark.parametrize("rate", ["chosen", "lower"])
def test_kept_weights_and_passage_lengths_support_neither_claim(rate: str) -> None:
    """At the lower rate no passage lengths were kept at 0.3 or 1 epochs."""
    experiments = load_kept() | (at_lower_rate(load_rates()) if rate == "lower" else {})
    assert claims.later_layers(experiments).verdict == FAILS
    assert claims.better_on_shorter(experiments).verdict == (UNCLEAR if rate == "chosen" else NOT_MEASURED)


def test_an_ensemble_at_2_epochs_may_be_half_a_point_above_the_one_at_1_epoch() -> None:
    def judge(early: float, late: float) -> str:
        shots = [{"max_encoder_adapter_386_skip": model(score, score, ensemble=["a", "b"])} for score in (early, late)]
        runs = squad(shots[0], shots[0])["squad2_gte"].runs
        for run in runs.values():
            run["snapshots"]["2"] = {"encoder": model(50, 50), "last_linear": model(50, 50), **shots[1]}
        return claims.longer_ensemble({"squad2_gte": Experiment("squad2_gte", runs)}).verdict

    assert judge(79.8, 79.6) == judge(79.6, 79.8) == HOLDS
    assert judge(79.0, 80.0) == FAILS


def answerable(*snapshots: tuple[str, float, float], analyses: Any = None) -> dict[str, Experiment]:
    """The encoder's and the head's accuracy at each snapshot, with two seeds."""

    def scored(score: float, **facts: Any) -> dict[str, Any]:
        own = {"accuracy": score, "f1_no_answer": score}
        return {"parameters": 1, "seconds": 1.0, **facts, "scores": {"dev": own, "held_out": own}}

    shots = {
        at: {"baseline": scored(50), "encoder": scored(own), "learned_pooling": scored(head, head="learned_pooling")}
        for at, own, head in snapshots
    }
    run = {"snapshots": shots, "analyses": analyses or {}, "metrics": ["accuracy", "f1_no_answer"]}
    return {"answerable_gte": Experiment("answerable_gte", {0: run, 1: run})}


def test_a_head_at_1_epoch_is_compared_with_the_encoder_at_2_if_there_is_one() -> None:
    claim = claims.answerability_matches_later(answerable(("1", 70.0, 75.0), ("2", 74.0, 74.0)))
    assert (claim.verdict, claim.count, claim.missing) == (HOLDS, "4 of 4", "")
    claim = claims.answerability_matches_later(answerable(("1", 70.0, 75.0), ("3", 76.0, 76.0)))
    assert claim.verdict == NOT_MEASURED and "answerable_gte have no snapshot at 2 epochs" in claim.evidence[0]
    assert claim.evidence[1] == (
        "not judged: gte-small, learned_pooling at 1 epoch, over BERT at 3 epochs on dev: accuracy −1.00 ± 0.00, F1 no "
        "answer −1.00 ± 0.00"
    )


def test_every_epoch_of_a_head_counts() -> None:
    def judge(*accuracies: float) -> Claim:
        rows = [
            {"fine-tuning": 1.0, "head": "learned_pooling", "epoch": epoch, "accuracy": accuracy}
            for epoch, accuracy in enumerate(accuracies, start=1)
        ]
        return claims.answerability_by_epoch(answerable(("1", 70.0, 75.0), analyses={"epochs_on_dev": rows}))

    assert judge(71.0, 80.0, 75.0).verdict == HOLDS and judge(71.0, 69.0, 75.0).verdict == FAILS
    assert "worst epoch of learned_pooling at 1 epoch of fine-tuning: accuracy +1.00" in str(judge(71, 75).findings[0])
    claim = claims.answerability_by_epoch(answerable(("1", 70.0, 75.0)))
    assert claim.verdict == NOT_MEASURED and "last epoch of learned_pooling" in claim.further[0]
    assert claim.further[0].endswith("accuracy +5.00 ± 0.00")


def test_the_ladder_does_not_count_as_one_of_the_papers_heads() -> None:
    heads = {
        "adapter_64": model(10, 10, head="adapter"),
        "last_linear": model(5, 5, head="last_linear"),
        "ladder_64": model(49, 49, head="ladder"),
    }
    found = squad(heads, heads, epochs="0")
    for run in found["squad2_gte"].runs.values():
        run["snapshots"]["1"] = {"encoder": model(50, 50)}
    claim = claims.without_finetuning(found)
    assert claim.verdict == HOLDS and len(claim.further) == 1 and "ladder_64" in claim.further[0]
    deeper = squad({"ladder_128_deep": model(60, 60, head="ladder")}, epochs="0")["squad2_gte"].runs
    found["untouched_gte"] = Experiment("untouched_gte", deeper)
    claim = claims.without_finetuning(found)
    assert claim.verdict == HOLDS and len(claim.further) == 2
    assert claim.further[1] == (
        "gte-small, ladder_128_deep: answerable-only F1 60.00, AUC 60.00; the encoder alone at 1 epoch 50.00 (ours)"
    )


def test_kernels_along_tokens_are_judged_separately_without_fine_tuning() -> None:
    """24 is less than half of the encoder's 50, 26 is not."""
    one_token = {"adapter_64": model(24, 24, head="adapter")}
    found = squad(one_token, one_token, epochs="0")
    for run in found["squad2_gte"].runs.values():
        run["snapshots"]["1"] = {"encoder": model(50, 50)}
    along = {
        "pooled_adapter_inception": model(26, 30, head="inception"),
        "pooled_adapter_cnn_nxn": model(27, 20, head="cnn"),  # better on dev, which must not count
    }
    runs = squad(along, along, epochs="0")["squad2_gte"].runs
    claim = claims.without_finetuning(found | {"untouched_gte_kernels": Experiment("untouched_gte_kernels", runs)})
    assert (claim.verdict, claim.agreeing, claim.further) == (PARTLY, [True, False], [])
    assert "in our layout, pooled_adapter_inception: answerable-only F1 26.00 ± 0.00" in str(claim.findings[1])


def test_no_claim_is_judged_by_an_encoder_that_learned_nothing() -> None:
    heads = {"adapter_64": model(90, 90, head="adapter"), "adapter_386_skip": model(90, 90, head="adapter")}
    heads["max_encoder_adapter_386_skip"] = model(90, 90, ensemble={})
    runs = squad(heads, heads, epochs="0")["squad2_gte"].runs
    names = ("squad2_gte", "squad2_minilm", "answerable_gte", "cola", "rte")
    found = {name: Experiment(name, runs) for name in names}
    assert [claim(found).verdict for claim in claims.CLAIMS] == [OPEN] * len(claims.CLAIMS)
    later = squad(heads, heads, epochs="3")["squad2_gte"].runs
    both = [{**run, "snapshots": run["snapshots"] | later[seed]["snapshots"]} for seed, run in runs.items()]
    cola = {"cola": Experiment("cola", dict(enumerate(both)))}
    for claim in (claims.glue_heads(cola), claims.glue_heads_over_control(cola)):
        assert [str(finding) for finding in claim.findings] == ["CoLA, adapter_64 at 3 epochs: F1 +40.00 ± 0.00"]


def test_the_passes_of_a_ladder_are_shown() -> None:
    curve = squad({"adapter_64": model(10, 10, head="adapter")}, epochs="0")
    for run in curve["squad2_gte"].runs.values():
        run["snapshots"]["1"] = {"encoder": model(50, 50, tokens=100)}
    longer = {"encoder": model(1, 1, tokens=0), "ladder_128_deep": model(60, 60, head="ladder", tokens=600)}
    run = {"snapshots": {"0": longer}, "analyses": {}, "metrics": ["f1"]}
    claim = claims.without_finetuning({**curve, "untouched_gte": Experiment("untouched_gte", {0: run})})
    assert claim.further[0].startswith("gte-small, ladder_128_deep, 6 passes: answerable-only F1 60.00")


def test_answerability_is_judged_on_held_out_questions_too() -> None:
    heads = {"learned_pooling": model(dev=51, held_out=49, head="learned_pooling")}
    runs = squad(heads, heads)["squad2_gte"].runs
    for run in runs.values():
        run["snapshots"]["1"]["last_linear"] = model(52, 52, head="last_linear")
    found = {"answerable_gte": Experiment("answerable_gte", runs)}
    claim = claims.answerability(found)
    assert (claim.agreeing, claim.verdict) == ([True, False], PARTLY)  # above 50 on dev, below on held-out questions
    assert claims.answerability_over_control(found).verdict == FAILS
    assert str(claim.findings[1]) == "gte-small, learned_pooling at 1 epoch on held-out questions: F1 −1.00 ± 0.00"
    assert claim.found == (
        "accuracy +1.00 to +1.00 on dev (1 of 1 agree) and −1.00 to −1.00 on held-out questions (0 of 1 agree)"
    )


def test_shared_adapters_are_judged_at_one_epoch() -> None:
    early = {"adapter_64": model(40, 40, head="adapter"), "adapter_64_separate": model(60, 60, head="adapter")}
    late = {"adapter_64": model(60, 60, head="adapter"), "adapter_64_separate": model(40, 40, head="adapter")}
    runs = {seed: {"snapshots": {"0.3": early, "1": late}, "analyses": {}, "metrics": ["f1"]} for seed in (0, 1)}
    claim = claims.shared_adapters({"squad2_gte": Experiment("squad2_gte", runs)})
    assert claim.verdict == HOLDS and len(claim.further) == 1 and "at 0.3 epochs" in claim.further[0]


def test_our_own_questions_are_counted_separately() -> None:
    heads = {"adapter_64": model(51, 52, head="adapter")}
    block = claims.claims_blocks(squad(heads, heads), {})[0]
    assert block.table is not None
    ours = [row for row in block.table.rows if str(row[0]).startswith("…")]
    assert [row[5] for row in ours].count(OWN) == 5 and [row[5] for row in ours].count(NO_DECAY) == 2
    assert len(ours) == 7 and f"Of the papers' {len(claims.CLAIMS) - 7} claims, " in block.sentences[0]
    assert "5e-5" not in block.sentences[0] and all(row[3] is None for row in block.table.rows)  # no lower rate


def test_claims_are_also_judged_at_the_lower_rate() -> None:
    """The encoder is at 50; heads are above it here, and below at the lower rate."""
    here, there = ({"adapter_64": model(score, 52, head="adapter")} for score in (51, 49))
    lower = {"squad2_gte": Experiment("squad2_gte", squad(there, there)["squad2_gte"].runs, lr=LOWER)}
    table, evidence, at_lower = claims.claims_blocks(squad(here, here), lower)
    assert table.table is not None and evidence.table is not None and at_lower.table is not None
    rows = {str(row[0]): row for row in table.table.rows}
    assert rows["A head beats BERT at the same stage of fine-tuning"][1:4] == [HOLDS, "4 of 4", f"{FAILS}, 0 of 4"]
    assert rows["On GLUE, a head beats its encoder"][3] is None
    changed = sum(str(row[3]).startswith(FAILS) for row in table.table.rows)
    judged = sum(row[3] is not None for row in table.table.rows)
    assert f"With encoders fine-tuned at 5e-5, {changed} of {judged} verdicts would differ." in table.sentences[0]
    lines = [[str(cell) for cell in row] for row in at_lower.table.rows]
    assert len({text for text, _ in lines if text}) == judged
    assert "answerable-only F1 −1.00 ± 0.00" in lines[0][1] and "answerable-only F1 +1.00 ± 0.00" in str(
        evidence.table.rows[0][1]
    )


def test_heads_are_judged_on_an_encoder_whose_rate_had_decayed() -> None:
    """The encoder is at 50, the control at 48, and the best head on held-out data at 51."""
    there = {"adapter_64": model(51, 52, head="adapter"), "learned_pooling": model(60, 51, head="learned_pooling")}
    there["last_linear"] = model(48, 48, head="last_linear")
    ended = {"squad2_gte_full1": Experiment("squad2_gte_full1", squad(there, there)["squad2_gte"].runs)}
    for judge, values in {claims.beats_decayed_encoder: [1, 1], claims.beats_decayed_control: [3, 3]}.items():
        claim = judge(ended)
        assert claim.verdict == HOLDS and claim.findings[0].gaps["forced_f1"].values == values
        assert claim.findings[0].words == "gte-small, adapter_64 at 1 epoch"
        assert judge(squad(there, there)).verdict == OPEN


def test_the_best_head_may_come_from_a_second_run_with_the_same_seeds() -> None:
    first = squad(*[{"adapter_64": model(51, 60, head="adapter")}] * 2)
    along = {"pooled_adapter_xception": model(55, 61, head="xception"), "ladder_64": model(90, 90, head="ladder")}
    runs = squad(along, along)["squad2_gte"].runs
    for run in runs.values():
        run["snapshots"]["1"]["encoder"] = model(53, 53)  # another run's encoder is another one, if not by much
    both = first | {"squad2_gte_kernels": Experiment("squad2_gte_kernels", runs)}
    (finding,) = claims.beats_encoder(both).findings
    assert finding.words == "gte-small, pooled_adapter_xception at 1 epoch"
    assert {gap.mean for gap in finding.scores} == {2.0}
    place = claims.best_place(*both.values(), 1.0, theirs=False)
    assert place is not None and place.model == "ladder_64"
    del runs[1]
    (finding,) = claims.beats_encoder(both).findings
    assert finding.words == "gte-small, adapter_64 at 1 epoch"  # a seed is missing: it counts no more


def test_glue_heads_of_the_zoo_count_as_the_papers_heads() -> None:
    main, zoo = (
        squad(*[{"adapter_64": model(51, 60, head="adapter")}] * 2),
        {"flat_adapter_128": model(58, 61, head="flat")},
    )
    found = {"rte": Experiment("rte", main["squad2_gte"].runs)}
    found["rte_zoo"] = Experiment("rte_zoo", squad(zoo, zoo)["squad2_gte"].runs)
    assert [str(finding) for finding in claims.glue_heads(found).findings] == [
        "RTE, flat_adapter_128 at 1 epoch: F1 +8.00 ± 0.00"
    ]


def test_a_head_on_little_data_is_compared_with_the_control_too() -> None:
    heads = {"adapter_386_skip": model(55, 55, head="adapter")}
    for share, score in ((0.1, 49), (0.3, 54)):
        name = f"adapter_386_skip_data_fraction{share}"
        heads[name] = model(score, score, head="adapter", data_fraction=share)
    found = squad(heads, heads)  # the control is at 50
    assert claims.less_data(found).agreeing == [False] * 4 + [True] * 4  # 6 and 1 below: 2.3 and 1.6 are allowed
    assert claims.less_data_over_control(found).agreeing == [False] * 4 + [True] * 4


def test_glue_at_the_papers_epoch_is_counted_separately() -> None:
    heads = {"adapter_64": model(51, 51, head="adapter")}
    early, late = (squad(heads, heads, epochs=epochs)["squad2_gte"].runs for epochs in ("1", "3"))
    runs = {seed: {**run, "snapshots": run["snapshots"] | late[seed]["snapshots"]} for seed, run in early.items()}
    runs[1]["snapshots"]["3"]["adapter_64"] = model(40, 51, head="adapter")
    claim = claims.glue_heads({"rte": Experiment("rte", runs)})
    assert (claim.agreeing, claim.further) == ([True, False], ["at 1 epoch, as in the paper, 1 of 1 score agree"])


def test_nothing_is_claimed_without_runs() -> None:
    for claim in claims.CLAIMS:
        assert claim({}).verdict == OPEN
