"""Every head side by side, from two small runs of one seed whose figures are written down here."""

import dataclasses
import tomllib
from typing import Any

import pytest
import torch
from tiny_training import member_of, random_states

from bertvision.analysis.block import Block
from bertvision.encoder.states import StateShape
from bertvision.heads import Target, build_head, list_presets
from bertvision.tasks.base import TargetKind
from results.kept import CONFIGS, Experiment
from results.zoo import KERNELS, LADDER, OWN_TOKEN, Entry, zoo_blocks

ENCODERS = {"gte": "gte-small"}


def model(dev: float, auc: float = 50.0, held_out: float = 0.0, parameters: int = 10, **facts: Any) -> dict[str, Any]:
    def scores(base: float) -> dict[str, Any]:
        names = ("f1", "exact", "forced_f1", "forced_exact")
        return {**dict.fromkeys(names, base), "no_answer_auc": auc, "at_threshold": {"f1": base, "exact": base}}

    found = {"dev": scores(dev), "held_out": scores(held_out)}
    return {"parameters": parameters, "seconds": 1.0, **facts, "scores": found}


def run(later: dict[str, dict[str, Any]], control: float) -> dict[str, Any]:
    """Encoder, control and heads after 1 epoch; as it came all heads have 20, and the control 10."""
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
    assert block.frame is not None
    return block.frame.records()


def test_heads_are_held_against_the_control_of_their_own_run(found: dict[str, Experiment]) -> None:
    as_it_came, later = rows(zoo_blocks(found, ENCODERS)[0])
    assert (as_it_came["epochs"], as_it_came["above the control, forced F1"]) == (0.0, 4)
    assert (as_it_came["forced F1 over control"], as_it_came["forced F1 over encoder"]) == ("+10.00", None)  # random
    assert (later["heads"], later["above the control, forced F1"], later["above the control, AUC"]) == (4, 3, 3)
    assert (later["best on held-out questions"], later["its parameters"]) == ("pooled_adapter_inception", 900)
    assert [later[key] for key in ("its forced F1", "forced F1 over control", "forced F1 over encoder")] == [
        73, "+3.00", "+4.00",
    ]  # fmt: skip
    assert [later[key] for key in ("its AUC", "AUC over control", "AUC over encoder")] == [82, "+4.00", "+5.00"]


def test_all_heads_of_the_zoos_seed_are_listed_by_size_after_the_levels(found: dict[str, Experiment]) -> None:
    listed = rows(zoo_blocks(found, ENCODERS)[1])
    names = [row["model"] for row in listed]
    assert names[:5] == ["baseline: never answers", *["encoder itself"] * 2, *["last_linear (control)"] * 2]
    assert names[5:] == ["adapter_64", "cnn_1xn", "ladder_64", "pooled_adapter_inception"]  # none on less data
    assert [row["looks at"] for row in listed[5:]] == [OWN_TOKEN, OWN_TOKEN, LADDER, KERNELS]
    assert [row["forced F1 after 1 epoch"] for row in listed[3:]] == [72, 70, 71, 70.5, 74, 73]  # of seed 0
    assert [row["AUC after 1 epoch"] for row in listed[3:]] == [78, 78, 80, 77, 79, 82]
    assert [row["forced F1 as it came"] for row in listed[3:]] == [10, 10, 20, 20, 20, 20]
    assert [row["config"] for row in listed[3:5]] == ["squad2_gte.toml", "squad2_gte_zoo.toml"]


def test_who_has_the_first_places_is_told(found: dict[str, Experiment]) -> None:
    block = zoo_blocks(found, ENCODERS)[0]
    (told,) = block.sentences
    assert told.startswith("2 of 4 heads look beyond their own token") and told.endswith("and 2 after 1 epoch.")
    assert block.alt.endswith("after 1 epoch from ladder_64 74.0 over adapter_64 71.0 to cnn_1xn 70.5")


def test_the_picture_has_every_head_and_both_levels(found: dict[str, Experiment]) -> None:
    picture = zoo_blocks(found, ENCODERS)[0].picture
    assert picture is not None
    first, second = (
        sorted((row["kind"], row["score"]) for layer in panel["layer"] for row in layer["data"]["values"])
        for panel in picture["vconcat"][0]["hconcat"]
    )
    heads = [(OWN_TOKEN, 71), (OWN_TOKEN, 70.5), (LADDER, 74), (KERNELS, 73)]
    assert first == sorted([(kind, 20) for kind, _ in heads] + [("control", 10)])  # the encoder is random there
    assert second == sorted([*heads, ("control", 70), ("encoder", 69)])  # of the zoo's run


def test_all_figures_of_the_zoo_follow_snapshot_by_snapshot(found: dict[str, Experiment]) -> None:
    blocks = zoo_blocks(found, ENCODERS)[2:]
    assert [block.key for block in blocks] == ["squad2_gte_zoo_1", "squad2_gte_zoo_0"]
    assert all("Seed 0 alone." in block.note for block in blocks)
    assert zoo_blocks({"squad2_gte": found["squad2_gte"]}, ENCODERS) == []
    kernels = {"squad2_gte_kernels": Experiment("squad2_gte_kernels", found["squad2_gte_zoo"].runs)}
    assert [block.title for block in zoo_blocks(kernels, ENCODERS)] == [
        "gte-small after 1 epoch, heads of squad2_gte_kernels.toml",
        "gte-small as it came, heads of squad2_gte_kernels.toml",
    ]


def heads_of(config: str) -> list[str]:
    tables = tomllib.loads((CONFIGS / f"{config}.toml").read_text(encoding="utf-8"))
    return [head for head in tables["heads"] if isinstance(head, str)]


@pytest.mark.parametrize("name", sorted({*heads_of("squad2_gte"), *heads_of("squad2_gte_zoo")}))
def test_heads_look_where_the_page_says(name: str, found: dict[str, Experiment]) -> None:
    """Another token's state changes what a head says of a token, or does not."""
    kind, settings = list_presets()[name]
    shape = StateShape(7, 32, False)
    if kind == "ladder":
        settings = {**settings, "width": 16, "attention_heads": 2}
    head = build_head(member_of(kind, TargetKind.SPAN, **settings), shape, Target(TargetKind.SPAN)).eval()
    for number, weight in enumerate(head.parameters()):  # a ladder's blocks begin with zeros, and say nothing yet
        torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(number))
    states, others = random_states(shape, [6]), [0, 1, 2, 4, 5]
    assert states.tokens is not None
    changed = states.tokens.clone()  # (token, layer, hidden)
    changed[3] = changed[3].flip(-1)
    with torch.no_grad():
        before, after = head(states), head(dataclasses.replace(states, tokens=changed, last=None))  # (token, 2)
    same = torch.allclose(before[others], after[others], atol=1e-6)
    assert same == (Entry(found["squad2_gte"], 0, name).kind == OWN_TOKEN)
    assert not torch.allclose(before[3], after[3], atol=1e-6)
