"""The results page is what the kept scores give, and what was kept belongs to a config."""

import json
import tomllib
from pathlib import Path

import pytest

from results.kept import CONFIGS, KEPT, Experiment, Mean, load_kept, to_text
from results.page import PAGE, PICTURES, find_differences, write_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_kept_scores_give(tmp_path: Path) -> None:
    write_page(tmp_path)
    assert find_differences(tmp_path, DOCS) == []


def test_a_difference_is_found_whichever_way_it_is(tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    for folder in (made, there):
        (folder / PICTURES).mkdir(parents=True)
        (folder / PAGE).write_text("figures")
    assert find_differences(made, there) == []
    (made / PAGE).write_text("other figures")
    (made / PICTURES / "new.svg").write_text("")
    (there / PICTURES / "old.svg").write_text("")
    found = find_differences(made, there)
    assert found == [
        "docs/results.md differs",
        "docs/results/new.svg is missing",
        "docs/results/old.svg is no longer made",
    ]


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_kept_has_every_head_of_its_config_at_every_snapshot(path: Path) -> None:
    run = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == f"{run['config']}_seed{run['seed']}"
    config = tomllib.loads((CONFIGS / f"{run['config']}.toml").read_text(encoding="utf-8"))
    wanted = {*config["finetune"].get("snapshots", []), config["finetune"]["epochs"]}
    assert {float(epochs) for epochs in run["snapshots"]} == wanted
    names = {head if isinstance(head, str) else head.get("name", head["head"]) for head in config["heads"]}
    for epochs in config["train"].get("snapshots", [config["finetune"]["epochs"]]):
        models = run["snapshots"][f"{epochs:g}"]
        assert {"baseline", "encoder", "last_linear", *names} <= set(models)
        assert len(models) >= 3 + len(names) + len(config.get("ensembles", []))


def test_kept_files_name_no_place_of_the_machine_they_were_made_on() -> None:
    for path in KEPT.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert "/tmp" not in text and "/home" not in text and "/work" not in text


def test_runs_of_one_seed_with_more_heads_are_joined(tmp_path: Path) -> None:
    def run(config: str, seed: int, heads: dict[str, float]) -> None:
        models = {name: {"scores": {"dev": {"f1": score}}} for name, score in heads.items()}
        kept = {"config": config, "seed": seed, "analyses": {}, "snapshots": {"1": models}}
        (tmp_path / f"{config}_seed{seed}.json").write_text(to_text(kept), encoding="utf-8")

    run("squad2_gte", 0, {"adapter_64": 1.0})
    run("squad2_gte_zoo", 0, {"adapter_64": 9.0, "cnn_1xn": 2.0})
    run("squad2_gte", 1, {"adapter_64": 3.0})
    found = load_kept(tmp_path)
    assert list(found) == ["squad2_gte"]
    one = found["squad2_gte"]
    assert one.by_seed(1, "adapter_64", "f1") == {0: 1.0, 1: 3.0}  # a model counts once a seed
    assert one.by_seed(1, "cnn_1xn", "f1") == {0: 2.0}


def test_a_mean_shows_the_standard_deviation_of_several_seeds() -> None:
    assert str(Mean([1.0, 2.0, 3.0])) == "2.00 ± 1.00"
    assert str(Mean([1.25])) == "1.25"


def test_a_head_costs_the_fine_tuning_before_it_as_well() -> None:
    models = {"encoder": {"seconds": 10.0}, "adapter_64": {"seconds": 3.0}, "baseline": {"seconds": 0.0}}
    slower = {name: {"seconds": 2 * facts["seconds"]} for name, facts in models.items()}
    runs = {seed: {"snapshots": {"1": found}, "analyses": {}} for seed, found in enumerate((slower, models))}
    one = Experiment("x", runs)
    assert (one.seconds(1, "encoder"), one.seconds(1, "adapter_64")) == (10.0, 13.0)  # of the fastest seed


@pytest.mark.parametrize("path", sorted(KEPT.glob("squad2_*.json")), ids=lambda path: path.stem)
def test_kept_runs_on_squad_are_of_the_encoder_and_the_data_that_the_page_names(path: Path) -> None:
    models = json.loads(path.read_text(encoding="utf-8"))["snapshots"]["1"]
    assert (
        33e6 < models["encoder"]["parameters"] < 34e6 if "gte" in path.stem else models["encoder"]["parameters"] < 23e6
    )
    assert models["encoder"]["scores"]["dev"]["total"] == 11_873
    # 95 % of 52,716 questions of about 171 tokens.
    assert 8.3e6 < models["encoder"]["tokens"] < 8.9e6
