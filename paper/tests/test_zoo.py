"""All heads side by side, from two small runs with known scores."""

import dataclasses
from typing import Any

import pytest
import torch
from tiny_training import member_of, random_states

from bertvision.config import TrainConfig
from bertvision.encoder.states import StateShape
from bertvision.heads import Target, build_head, list_presets
from bertvision.kinds import LABEL, SPAN
from bertvision.pipeline.members import build_members
from bertvision.report.block import Block
from paper.experiments import find_experiment
from paper.kept import LOWER, Experiment
from paper.zoo import (
    CLS,
    FLAT,
    KERNELS,
    LADDER,
    MEANS,
    OWN_TOKEN,
    look_of_sentences,
    look_of_spans,
    sentence_zoo_block,
    zoo_blocks,
)

ENCODERS = {"gte": "gte-small"}


def model(dev: float, auc: float = 50.0, held_out: float = 0.0, parameters: int = 10, **facts: Any) -> dict[str, Any]:
    def scores(base: float) -> dict[str, Any]:
        names = ("f1", "exact", "forced_f1", "forced_exact")
        return {**dict.fromkeys(names, base), "no_answer_auc": auc, "at_threshold": {"f1": base, "exact": base}}

    found = {"dev": scores(dev), "held_out": scores(held_out)}
    return {"parameters": parameters, "seconds": 1.0, **facts, "scores": found}


def run(later: dict[str, dict[str, Any]], control: float) -> dict[str, Any]:
    """Encoder, control and heads after 1 epoch; on the untouched encoder all heads have 20, and the control 10."""
    baseline = {"parameters": 0, "scores": {"dev": {"f1": 50.0, "exact": 50.0}}}
    heads = {name: {**facts, "head": name} for name, facts in later.items()}
    early = {
        name: {**model(20, 51, 20), **facts, "scores": model(20, 51, 20)["scores"]} for name, facts in heads.items()
    }
    shots = {
        "0": {"baseline": baseline, "encoder": model(1), "last_linear": model(10, head="last_linear"), **early},
        "1": {
            "baseline": baseline,
            "encoder": model(control - 1, 77, parameters=1000),
            "last_linear": model(control, 78, head="last_linear"),
            **heads,
        },
        "3": {"encoder": model(90)},
    }
    return {"snapshots": shots, "analyses": {}}


@pytest.fixture
def found() -> dict[str, Experiment]:
    """The zoo's control is at 70, the main run's at 72; the AUC of both is 78."""
    main = {
        "adapter_64": model(71, 80, 60, parameters=20),  # above the zoo's control, below its own
        "ladder_64": model(74, 79, 61, parameters=300),
        "adapter_64_data_fraction0.1": model(99, 99, 99, data_fraction=0.1),
    }
    zoo = {
        "pooled_adapter_inception": model(73, 82, 65, parameters=900),
        "cnn_1xn": model(70.5, 77, 62, parameters=30),
    }
    other_seed = {name: model(1) for name in main}
    return {
        "squad2_gte": Experiment("squad2_gte", {0: run(main, 72), 1: run(other_seed, 72)}),
        "squad2_gte_zoo": Experiment("squad2_gte_zoo", {0: run(zoo, 70)}),
    }


def rows(block: Block) -> list[dict[str, Any]]:
    assert block.table is not None
    return block.table.records()


def test_heads_are_compared_with_the_control_of_their_own_run(found: dict[str, Experiment]) -> None:
    untouched, later = rows(zoo_blocks(found, found, ENCODERS)[0])
    assert (untouched["epochs"], untouched["above the control, answerable-only F1"]) == (0.0, 4)
    assert (untouched["answerable-only F1 over control"], untouched["answerable-only F1 over encoder"]) == (
        "+10.00",
        None,
    )  # random
    assert (later["heads"], later["above the control, answerable-only F1"], later["above the control, AUC"]) == (
        4,
        3,
        3,
    )
    assert (later["best on held-out questions"], later["its parameters"]) == ("pooled_adapter_inception", 900)
    for metric, scores in (("answerable-only F1", [73, "+3.00", "+4.00"]), ("AUC", [82, "+4.00", "+5.00"])):
        assert [later[key] for key in (f"its {metric}", f"{metric} over control", f"{metric} over encoder")] == scores


def test_all_heads_of_the_zoos_seed_are_listed_by_size_after_the_levels(found: dict[str, Experiment]) -> None:
    listed = rows(zoo_blocks(found, found, ENCODERS)[1])
    names = [row["model"] for row in listed]
    assert names[:5] == ["baseline: never answers", *["encoder alone"] * 2, *["last_linear (control)"] * 2]
    assert names[5:] == ["adapter_64", "cnn_1xn", "ladder_64", "pooled_adapter_inception"]  # none on less data
    assert [row["looks at"] for row in listed[5:]] == [OWN_TOKEN, OWN_TOKEN, LADDER, KERNELS]
    assert [row["answerable-only F1 after 1 epoch"] for row in listed[3:]] == [72, 70, 71, 70.5, 74, 73]  # of seed 0
    assert [row["AUC after 1 epoch"] for row in listed[3:]] == [78, 78, 80, 77, 79, 82]
    assert [row["answerable-only F1 untouched"] for row in listed[3:]] == [10, 10, 20, 20, 20, 20]
    assert [row["experiment"] for row in listed[3:5]] == ["squad2_gte", "squad2_gte_zoo"]


def test_the_top_ranks_are_counted(found: dict[str, Experiment]) -> None:
    block = zoo_blocks(found, found, ENCODERS)[0]
    (sentence,) = block.sentences
    assert (
        sentence.startswith("2 of 4 heads look beyond their own token")
        and "and 2 of the top 2 after 1 epoch" in sentence
    )
    assert block.alt.endswith("after 1 epoch best ladder_64 74.0, middle adapter_64 71.0, worst cnn_1xn 70.5")


def test_the_picture_has_every_head_and_both_levels(found: dict[str, Experiment]) -> None:
    picture = zoo_blocks(found, found, ENCODERS)[0].picture
    assert picture is not None
    first, second = (
        sorted((row["kind"], row["score"]) for layer in panel["layer"] for row in layer["data"]["values"])
        for panel in picture["vconcat"][0]["hconcat"]
    )
    heads = [(OWN_TOKEN, 71), (OWN_TOKEN, 70.5), (LADDER, 74), (KERNELS, 73)]
    assert first == sorted([(kind, 20) for kind, _ in heads] + [("control", 10)])  # the encoder is random there
    assert second == sorted([*heads, ("control", 70), ("encoder", 69)])  # of the zoo's run


def test_all_scores_of_the_zoo_follow_snapshot_by_snapshot(found: dict[str, Experiment]) -> None:
    blocks = zoo_blocks(found, found, ENCODERS)[2:4]
    assert [block.key for block in blocks] == ["squad2_gte_zoo_1", "squad2_gte_zoo_0"]
    assert all("Seed 0 only." in block.note for block in blocks)
    assert [block.title for block in blocks] == [
        "gte-small after 1 epoch, heads of squad2_gte_zoo",
        "gte-small, untouched, heads of squad2_gte_zoo",
    ]
    assert zoo_blocks({}, found, ENCODERS) == []  # heads are compared with the main run at the same rate only


def test_the_other_runs_at_that_rate_follow_with_their_seeds(found: dict[str, Experiment]) -> None:
    main = found["squad2_gte"]
    lower = {name: Experiment(name, main.runs, lr=LOWER) for name in ("squad2_gte", "squad2_gte_kernels")}
    blocks = zoo_blocks(lower, {}, ENCODERS)
    shots = (" after 1 epoch", ", untouched")
    assert [block.title for block in blocks] == [
        f"gte-small{shot}, heads of {name} finetune.lr=5e-5" for name in lower for shot in shots
    ]
    assert all(block.folded and "over seeds" in block.note for block in blocks)
    assert [block.key for block in blocks[:2]] == [
        "squad2_gte_5e-5_1",
        "squad2_gte_5e-5_0",
    ]  # apart from the other rate


# ---------------------------------------------------------------------- sentences


def scored(dev: float, held_out: float = 0.0, parameters: int = 10, **facts: Any) -> dict[str, Any]:
    found = {"dev": {"accuracy": dev}, "held_out": {"accuracy": held_out}}
    return {"parameters": parameters, **facts, "scores": found}


def sentence_run(control: float, heads: dict[str, dict[str, Any]]) -> dict[str, Any]:
    levels = {"baseline": {"parameters": 0, "scores": {"dev": {"accuracy": 50.0}}}, "encoder": scored(control - 1)}
    named = {name: {**facts, "head": name} for name, facts in heads.items()}
    shot = {**levels, "last_linear": scored(control, head="last_linear"), **named}
    return {"snapshots": {"0": shot, "1": shot}, "analyses": {}, "metrics": ["accuracy"], "kind": "label"}


@pytest.fixture
def sentences() -> tuple[Experiment, Experiment]:
    """Two seeds that both runs have, and a third one that one of them has. The main run's control is at 58 and 64, the
    zoo's at 63 and 65."""
    heads = [
        {"adapter_64": scored(58.004, 70, 20), "adapter_64_mean": scored(70, 60, 30)},
        {"adapter_64": scored(64.0, 70, 20), "adapter_64_mean": scored(70, 60, 30)},
    ]
    more = [
        {"flat_adapter_128": scored(66, 80, 900), "ladder_64": scored(61, parameters=500)},
        {"flat_adapter_128": scored(68, 78, 900), "ladder_64": scored(61, parameters=500)},
    ]
    main = {seed: sentence_run(58 + 6 * seed, heads[seed]) for seed in (0, 1)} | {2: sentence_run(1, heads[0])}
    zoo = {seed: sentence_run(63 + 2 * seed, more[seed]) for seed in (0, 1)}
    return Experiment("rte", main), Experiment("rte_zoo", zoo)


def test_heads_for_sentences_are_compared_over_the_seeds_that_both_runs_have(
    sentences: tuple[Experiment, Experiment],
) -> None:
    block = sentence_zoo_block(*sentences, "RTE")
    assert block is not None and block.title == "RTE: all heads, 2 seeds"
    untouched, later = rows(block)
    assert later["heads"] == 4
    assert later["above the control, accuracy"] == 2  # 70 over 61 and 67 over 64; 61.002 over 61 is rounding
    assert (later["best on held-out examples"], later["its accuracy"]) == ("flat_adapter_128", 67)
    assert (later["accuracy over control"], later["accuracy over encoder"]) == ("+3.00", "+4.00")  # of its own run
    assert untouched["accuracy over encoder"] is None


def test_heads_with_equal_scores_share_a_rank(sentences: tuple[Experiment, Experiment]) -> None:
    block = sentence_zoo_block(*sentences, "RTE")
    assert block is not None
    (sentence,) = block.sentences
    assert sentence.startswith("3 of 4 heads read more than the [CLS] states")
    assert "3 of the top 4 on the untouched encoder" in sentence  # 61.002 and 61 share the third rank


def test_a_head_that_some_seed_lacks_is_left_out(sentences: tuple[Experiment, Experiment]) -> None:
    del sentences[1].runs[1]["snapshots"]["1"]["ladder_64"]
    block = sentence_zoo_block(*sentences, "RTE")
    assert block is not None and [row["heads"] for row in rows(block)] == [3, 3]


def test_the_picture_has_means_over_seeds_and_the_spread_of_the_controls(
    sentences: tuple[Experiment, Experiment],
) -> None:
    block = sentence_zoo_block(*sentences, "RTE")
    assert block is not None and block.picture is not None
    untouched, later = block.picture["vconcat"][0]["hconcat"]
    band, rules, marks = (layer["data"]["values"] for layer in later["layer"])
    assert band == [{"low": pytest.approx(64 - 2**0.5), "high": pytest.approx(64 + 2**0.5)}]  # of 63 and 65
    assert {row["kind"]: row["score"] for row in rules} == {"control": 64, "encoder": 63}
    found = {row["kind"]: row["score"] for row in marks}
    assert found == {CLS: pytest.approx(61.002), MEANS: 70, FLAT: 67, LADDER: 61}
    assert marks[0]["kind"] == CLS, "others lie on top of it"
    assert [row["kind"] for row in untouched["layer"][1]["data"]["values"]] == ["control"]  # the encoder is random


def test_one_seed_of_heads_for_sentences_is_not_drawn(sentences: tuple[Experiment, Experiment]) -> None:
    main, zoo = sentences
    assert sentence_zoo_block(main, Experiment("rte_zoo", {0: zoo.runs[0]}), "RTE") is None
    assert sentence_zoo_block(main, Experiment("rte_zoo", {7: zoo.runs[0], 8: zoo.runs[1]}), "RTE") is None


# ---------------------------------------------------------------------- what heads look at


def entries_of(*names: str) -> list[Any]:
    return [entry for name in names for entry in find_experiment(name).settings()["heads"]]


def spread_weights(head: torch.nn.Module) -> None:
    """Make all weights nonzero: a ladder's blocks start at zero and have no effect."""
    for number, weight in enumerate(head.parameters()):
        torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(number))


@pytest.mark.parametrize("name", [one for one in entries_of("squad2_gte", "squad2_gte_zoo") if isinstance(one, str)])
def test_heads_for_spans_look_where_the_page_says(name: str) -> None:
    """Whether another token's state changes a token's output."""
    shape = StateShape(7, 32, False)
    kind, settings = list_presets()[name]
    if kind == "ladder":
        settings = {**settings, "width": 16, "attention_heads": 2}
    head = build_head(member_of(kind, SPAN, **settings), shape, Target(SPAN)).eval()
    spread_weights(head)
    states, others = random_states(shape, [6]), [0, 1, 2, 4, 5]
    assert states.tokens is not None
    changed = states.tokens.clone()  # (token, layer, hidden)
    changed[3] = changed[3].flip(-1)
    with torch.no_grad():
        before, after = head(states), head(dataclasses.replace(states, tokens=changed, last=None))  # (token, 2)
    same = torch.allclose(before[others], after[others], atol=1e-6)
    assert same == (look_of_spans(name) == OWN_TOKEN)
    assert not torch.allclose(before[3], after[3], atol=1e-6)


@pytest.mark.parametrize("entry", entries_of("cola", "cola_zoo"), ids=str)
def test_heads_for_sentences_look_where_the_page_says(entry: Any) -> None:
    """Whether states other than [CLS] change the output."""
    member = build_members([entry], TrainConfig(epochs=1, batch_rows=4), 0, LABEL)[-1]
    shape = StateShape(7, 64, True)
    head = build_head(member, shape, Target(LABEL, 2)).eval()
    spread_weights(head)
    states, others = random_states(shape, [6, 5]), random_states(shape, [6, 5], seed=1)
    elsewhere = dataclasses.replace(states, tokens=others.tokens, mean=others.mean, last=None)
    with torch.no_grad():
        said, changed, at_cls = (
            head(given) for given in (states, elsewhere, dataclasses.replace(states, cls=others.cls))
        )
    look = look_of_sentences(member.name)
    assert torch.equal(said, changed) == (look == CLS)
    assert torch.equal(said, at_cls) == (look != CLS)
    if look != CLS:
        assert look == {"ladder": LADDER, "flat_adapter": FLAT}.get(member.head, MEANS)
