"""Every head side by side, from two small runs of one seed whose figures are written down here."""

from typing import Any

import pytest

from bertvision.analysis.block import Block
from results.kept import Experiment
from results.zoo import KERNELS, LADDER, OWN_TOKEN, zoo_blocks

ENCODERS = {"gte": "gte-small"}


def model(dev: float, held_out: float = 0.0, parameters: int = 10, **facts: Any) -> dict[str, Any]:
    """The AUC is 10 above the rest."""

    def scores(base: float) -> dict[str, Any]:
        names = ("f1", "exact", "forced_f1", "forced_exact")
        return {**dict.fromkeys(names, base), "no_answer_auc": base + 10, "at_threshold": {"f1": base, "exact": base}}

    return {
        "parameters": parameters,
        "seconds": 1.0,
        **facts,
        "scores": {"dev": scores(dev), "held_out": scores(held_out)},
    }


def run(control: float, **heads: dict[str, Any]) -> dict[str, Any]:
    """The encoder is a point below the control."""
    levels = {"baseline": {"parameters": 0, "scores": {"dev": {"f1": 50.0, "exact": 50.0}}}}
    levels |= {"encoder": model(control - 1, parameters=1000), "last_linear": model(control, head="last_linear")}
    models = levels | {name: {**facts, "head": name} for name, facts in heads.items()}
    return {"snapshots": {"0": models, "1": models, "3": {"encoder": models["encoder"]}}, "analyses": {}}


@pytest.fixture
def found() -> dict[str, Experiment]:
    """The zoo's control is at 70, the main run's at 72."""
    first = run(
        72,
        adapter_64=model(71, 60, parameters=20),  # above the zoo's control, below its own
        ladder_64=model(74, 61, parameters=300),
        adapter_64_data_fraction01=model(99, 99, data_fraction=0.1),
    )
    second = run(72, adapter_64=model(1), ladder_64=model(1))
    other = run(
        70,
        pooled_adapter_inception=model(73, 65, parameters=900),
        cnn_1xn=model(71, 62, parameters=30),
    )
    main = Experiment("squad2_gte", {0: first, 1: second})
    return {"squad2_gte": main, "squad2_gte_zoo": Experiment("squad2_gte_zoo", {0: other})}


def rows(block: Block) -> list[dict[str, Any]]:
    assert block.frame is not None
    return block.frame.records()


def test_heads_are_held_against_the_control_of_their_own_run(found: dict[str, Experiment]) -> None:
    overview = zoo_blocks(found, ENCODERS)[0]
    as_it_came, later = rows(overview)
    assert (later["heads"], later["above the control, forced F1"], later["above the control, AUC"]) == (4, 3, 3)
    assert (later["best on held-out questions"], later["its parameters"]) == ("pooled_adapter_inception", 900)
    assert (later["its forced F1"], later["forced F1 over control"], later["forced F1 over encoder"]) == (
        73,
        "+3.00",
        "+4.00",
    )
    assert (later["its AUC"], later["AUC over control"]) == (83, "+3.00")
    assert as_it_came["forced F1 over encoder"] is None  # its output layer is random there


def test_all_heads_of_the_zoos_seed_are_listed_by_size_after_the_levels(found: dict[str, Experiment]) -> None:
    listed = rows(zoo_blocks(found, ENCODERS)[1])
    names = [row["model"] for row in listed]
    assert names[:5] == ["baseline: never answers", *["encoder itself"] * 2, *["last_linear (control)"] * 2]
    assert names[5:] == ["adapter_64", "cnn_1xn", "ladder_64", "pooled_adapter_inception"]  # none on less data
    assert [row["looks at"] for row in listed[5:]] == [OWN_TOKEN, OWN_TOKEN, LADDER, KERNELS]
    assert [row["forced F1 1 epoch"] for row in listed[3:]] == [72, 70, 71, 71, 74, 73]  # of seed 0
    assert [row["config"] for row in listed[3:5]] == ["squad2_gte.toml", "squad2_gte_zoo.toml"]


def test_who_has_the_first_places_is_told(found: dict[str, Experiment]) -> None:
    (told,) = zoo_blocks(found, ENCODERS)[0].sentences
    assert told.startswith("2 of 4 heads look beyond their own token")
    assert told.endswith("they take 2 as it came and 2 after 1 epoch.")


def test_the_picture_has_every_head_and_both_levels(found: dict[str, Experiment]) -> None:
    picture = zoo_blocks(found, ENCODERS)[0].picture
    assert picture is not None
    first, second = picture["vconcat"][0]["hconcat"]
    kinds = [
        {(row["kind"], row["score"]) for layer in panel["layer"] for row in layer["data"]["values"]}
        for panel in (first, second)
    ]
    heads = {(OWN_TOKEN, 71), (LADDER, 74), (KERNELS, 73), ("control", 70)}
    assert kinds == [heads, heads | {("encoder", 69)}]


def test_without_a_zoo_there_is_nothing_to_say(found: dict[str, Experiment]) -> None:
    assert [block.key for block in zoo_blocks(found, ENCODERS)[2:]] == ["squad2_gte_zoo_1", "squad2_gte_zoo_0"]
    assert zoo_blocks({"squad2_gte": found["squad2_gte"]}, ENCODERS) == []
