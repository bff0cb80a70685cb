"""The results page is what the kept scores give, and what was kept belongs to a config."""

import json
import tomllib
from pathlib import Path

import pytest

from results import kept
from results.kept import CONFIGS, KEPT, Experiment, Mean, Place, load_kept, seeds_by_config, to_text
from results.page import PAGE, PICTURES, find_differences, write_page
from results.runs import WANTED, runs_block, tell_missing

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


def test_seconds_are_of_the_run_that_had_the_gpu_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {seed: {"snapshots": {"1": {"encoder": {"seconds": 10.0 - seed}}}, "analyses": {}} for seed in range(3)}
    assert Experiment("x", runs).seconds(1, "encoder") == 8.0
    monkeypatch.setattr(kept, "ALONE", {("x", 1)})
    assert (Experiment("x", runs).alone, Experiment("x", runs).seconds(1, "encoder")) == ([1], 9.0)
    assert Experiment("y", runs).alone == []


def test_work_of_the_encoder_counts_backward_twice_and_a_heads_pass_once() -> None:
    models = {"encoder": {"tokens": 100}, "adapter_64": {"tokens": 40}, "baseline": {}}
    one = Experiment("x", {0: {"snapshots": {"1": models}, "analyses": {}}})
    assert (one.compute(1, "encoder"), one.compute(1, "adapter_64")) == (300, 340)
    passes = [Place(one, 1, name).passes(50) for name in ("encoder", "adapter_64", "baseline")]
    assert passes == [6.0, 6.8, None]


def test_each_pass_of_heads_counts_once() -> None:
    heads = {"last_linear": 2.0, "adapter_64": 2.0, "ladder_64": 5.0}
    models = {"encoder": {"seconds": 10.0}} | {name: {"seconds": own, "head": name} for name, own in heads.items()}
    run = {"snapshots": {"1": models}, "analyses": {}, "device": "a GPU", "packages": {"torch": "2"}}
    frame = runs_block({"cola": Experiment("cola", {3: run})}).frame
    assert frame is not None and frame.rows == [["cola.toml", "3", "a GPU", "2", 10.0, 7.0]]


def test_every_config_is_wanted() -> None:
    configs = [config for _, _, names in WANTED for config in names]
    assert sorted(configs) == sorted(path.stem for path in CONFIGS.glob("*.toml"))


def test_what_is_missing_is_told_in_one_paragraph(tmp_path: Path) -> None:
    seeds = {config: list(range(wanted)) for _, wanted, configs in WANTED for config in configs}
    assert tell_missing(seeds) == []
    del seeds["squad2_gte_lora"]
    seeds |= {"squad2_minilm_lora": [1], "rte": [0, 1]}
    assert tell_missing(seeds) == [
        "Not run yet, and so not on this page: LoRA (squad2_gte_lora). Fewer seeds than wanted: LoRA "
        "(squad2_minilm_lora 1 of 3); RTE (rte 2 of 5)."
    ]
    for name in ("squad2_gte_zoo_seed1", "squad2_gte_seed0", "squad2_gte_seed2"):
        (tmp_path / f"{name}.json").write_text("{}")
    assert seeds_by_config(tmp_path) == {"squad2_gte": [0, 2], "squad2_gte_zoo": [1]}


@pytest.mark.parametrize("path", sorted(KEPT.glob("untouched_*.json")), ids=lambda path: path.stem)
def test_kept_runs_without_fine_tuning_are_of_an_encoder_that_learned_nothing(path: Path) -> None:
    models = json.loads(path.read_text(encoding="utf-8"))["snapshots"]["0"]
    assert models["encoder"]["tokens"] == 0
    assert models["last_linear"]["scores"]["dev"]["total"] == 11_873
    assert 8.3e6 < models["last_linear"]["tokens"] / 6 < 8.9e6  # six passes


@pytest.mark.parametrize("path", sorted(KEPT.glob("squad2_*.json")), ids=lambda path: path.stem)
def test_kept_runs_on_squad_are_of_the_encoder_and_the_data_that_the_page_names(path: Path) -> None:
    epochs = 2 if "_full2_" in path.stem else 1  # what decays to 2 epochs has no snapshot before
    models = json.loads(path.read_text(encoding="utf-8"))["snapshots"][str(epochs)]
    assert (
        33e6 < models["encoder"]["parameters"] < 34e6 if "gte" in path.stem else models["encoder"]["parameters"] < 23e6
    )
    assert models["encoder"]["scores"]["dev"]["total"] == 11_873
    # 95 % of 52,716 questions of about 171 tokens.
    assert 8.3e6 < models["encoder"]["tokens"] / epochs < 8.9e6
