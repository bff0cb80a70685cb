"""The pages match the kept scores, and every kept file belongs to an experiment."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertvision.report.block import Block
from paper.experiments import find_experiment, load_experiments
from paper.kept import (
    AGAIN,
    ALONE,
    KEPT,
    LOWER,
    RATES,
    Experiment,
    Mean,
    Place,
    Seconds,
    at_lower_rate,
    kept_seeds,
    load_kept,
    load_rates,
    show_seconds,
    to_text,
)
from paper.page import FOLDER, MAIN, find_differences, write_pages
from paper.runs import again_block, runs_block, tell_missing

DOCS = Path(__file__).parents[2] / "docs"
AGAINS, OTHERS = (sorted((KEPT / folder).glob("*.json")) for folder in (AGAIN, RATES))
FILES = [*sorted(KEPT.glob("*.json")), *AGAINS, *OTHERS]
WITHOUT_HEADS = "_full1_lr"
"""In the names of runs whose experiment had no heads yet."""


def _stem(run: dict[str, Any]) -> str:
    """A kept file's name."""
    return f"{run['config']}{'' if 'lr' not in run else '_lr' + format(run['lr'], 'g')}_seed{run['seed']}"


def test_the_pages_match_the_kept_scores(tmp_path: Path) -> None:
    write_pages(tmp_path)
    assert find_differences(tmp_path, DOCS) == []


def test_changed_missing_and_left_over_files_are_found(tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    for folder in (made, there):
        (folder / FOLDER).mkdir(parents=True)
        (folder / MAIN).write_text("scores")
    assert find_differences(made, there) == []
    (made / MAIN).write_text("other scores")
    (made / FOLDER / "new.svg").write_text("")
    (there / FOLDER / "old.svg").write_text("")
    found = find_differences(made, there)
    assert found == [
        "docs/results.md differs",
        "docs/results/new.svg is missing",
        "docs/results/old.svg is left over",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}_{path.stem}")
def test_kept_runs_have_every_head_of_their_experiment_at_every_snapshot(path: Path) -> None:
    run = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == _stem(run)
    settings = find_experiment(run["config"]).settings()
    wanted = {*settings["finetune"].get("snapshots", []), settings["finetune"]["epochs"]}
    assert {float(epochs) for epochs in run["snapshots"]} == wanted
    if WITHOUT_HEADS in path.stem:
        settings |= {"heads": [], "ensembles": []}
    names = {head if isinstance(head, str) else head.get("name", head["head"]) for head in settings["heads"]}
    names |= {"baseline", "encoder", "last_linear"}
    for epochs in settings["train"]["snapshots"]:
        models = run["snapshots"][f"{epochs:g}"]
        assert names <= set(models)
        assert len(models) >= len(names) + len(settings["ensembles"])


def test_kept_files_contain_no_paths_of_the_machine_they_were_made_on() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "/tmp" not in text and "/home" not in text and "/work" not in text


def test_only_the_seconds_of_a_repeated_run_count(tmp_path: Path) -> None:
    def run(name: str, seed: int, score: float, seconds: float) -> None:
        models = {"encoder": {"seconds": seconds, "scores": {"dev": {"f1": score}}}}
        text = to_text({"config": "squad2_gte", "seed": seed, "analyses": {}, "snapshots": {"1": models}})
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    run("squad2_gte_seed0.json", 0, 50.0, 30.0)
    run("squad2_gte_seed1.json", 1, 52.0, 20.0)
    assert load_kept(tmp_path)["squad2_gte"].seconds(1, "encoder") == Seconds(20.0, alone=False)
    run("again/squad2_gte_seed0.json", 0, 60.0, 25.0)
    (one,) = load_kept(tmp_path).values()
    assert one.by_seed(1, "encoder", "f1") == {0: 50.0, 1: 52.0}
    assert one.seconds(1, "encoder") == Seconds(25.0, alone=True)  # although a run that shared the GPU took fewer


def test_upper_bounds_are_marked_in_tables() -> None:
    assert show_seconds(Seconds(12.34, alone=True), 1) == 12.34
    assert show_seconds(Seconds(1234.56, alone=False), 1) == "≤ 1,234.6"
    assert show_seconds(Seconds(0.0, alone=False), 0) == 0.0  # nothing was tuned
    assert show_seconds(None, 0) is None


def test_a_mean_shows_the_standard_deviation_of_several_seeds() -> None:
    assert str(Mean([1.0, 2.0, 3.0])) == "2.00 ± 1.00"
    assert str(Mean([1.25])) == "1.25"


def test_the_seconds_of_a_head_include_fine_tuning() -> None:
    models = {"encoder": {"seconds": 10.0}, "adapter_64": {"seconds": 3.0}, "baseline": {"seconds": 0.0}}
    slower = {name: {"seconds": 2 * facts["seconds"]} for name, facts in models.items()}
    runs = {seed: {"snapshots": {"1": found}, "analyses": {}} for seed, found in enumerate((slower, models))}
    one = Experiment("x", runs)
    found = [one.seconds(1, name) for name in ("encoder", "adapter_64", "baseline")]
    assert found == [Seconds(10.0, alone=False), Seconds(13.0, alone=False), None]  # of the fastest seed


def test_runs_that_had_the_gpu_to_themselves_set_the_seconds() -> None:
    runs = {seed: {"snapshots": {"1": {"encoder": {"seconds": 10.0 - seed}}}, "analyses": {}} for seed in range(3)}
    assert Experiment("x", runs).seconds(1, "encoder") == Seconds(8.0, alone=False)
    assert Experiment("x", runs, timed=[runs[1]]).seconds(1, "encoder") == Seconds(9.0, alone=True)


@pytest.mark.parametrize("path", AGAINS, ids=lambda path: path.stem)
def test_repeated_runs_have_a_first_run(path: Path) -> None:
    assert any((folder / path.name).is_file() for folder in (KEPT, KEPT / RATES))


def test_seconds_at_another_rate_count_if_the_same_models_were_trained(tmp_path: Path) -> None:
    def run(name: str, seconds: float, lr: float | None, heads: list[str]) -> None:
        models = {"encoder": {"seconds": seconds}} | {head: {"seconds": 5.0} for head in heads}
        rate = {} if lr is None else {"lr": lr}
        about = {"config": "squad2_gte_full1", **rate, "seed": 0, "analyses": {}}
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(to_text({**about, "snapshots": {"1": models}}), encoding="utf-8")

    run("squad2_gte_full1_seed0.json", 50.0, None, ["last_linear", "adapter_64"])
    run("rates/squad2_gte_full1_lr5e-05_seed0.json", 40.0, 5e-5, ["last_linear"])
    (one,), (other,) = load_kept(tmp_path).values(), load_rates(tmp_path)
    found = [some.seconds(1, "encoder") for some in (one, other)]
    assert found == [Seconds(50.0, alone=False), Seconds(40.0, alone=False)]
    run("again/squad2_gte_full1_lr5e-05_seed0.json", 12.0, 5e-5, ["last_linear"])
    (one,), (other,) = load_kept(tmp_path).values(), load_rates(tmp_path)
    assert [some.seconds(1, "encoder") for some in (one, other)] == [Seconds(12.0, alone=True)] * 2
    # Its pass also trained another head, and shared the GPU.
    assert one.seconds(1, "last_linear") == Seconds(17.0, alone=False)
    assert other.seconds(1, "last_linear") == Seconds(17.0, alone=True)
    assert (one.again, len(other.again)) == ([], 1)
    assert at_lower_rate([other]) == {"squad2_gte_full1": other}


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_runs_with_other_rates_are_of_an_experiment_that_was_kept(path: Path) -> None:
    run = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == _stem(run)
    assert run["lr"] != find_experiment(run["config"]).settings()["finetune"]["lr"]
    like = json.loads((KEPT / f"{run['config']}_seed{run['seed']}.json").read_text(encoding="utf-8"))
    for epochs, models in like["snapshots"].items():
        facts = [shots[epochs]["encoder"] for shots in (run["snapshots"], like["snapshots"])]
        assert facts[0]["tokens"] == models["encoder"]["tokens"]
        assert facts[0]["scores"] != facts[1]["scores"] or epochs == "0"  # no effect before the first step


@pytest.mark.parametrize(("config", "lr", "seed"), sorted(ALONE))
def test_runs_that_had_the_gpu_to_themselves_were_kept(config: str, lr: float, seed: int) -> None:
    path = KEPT / RATES / f"{_stem({'config': config, 'lr': lr, 'seed': seed})}.json"
    (one,) = [one for one in load_rates() if (one.name, one.lr) == (config, lr)]
    assert path.is_file() and one.runs[seed] in one.timed


def test_a_backward_pass_counts_twice_and_a_head_pass_once() -> None:
    models = {"encoder": {"tokens": 100}, "adapter_64": {"tokens": 40}, "baseline": {}}
    one = Experiment("x", {0: {"snapshots": {"1": models}, "analyses": {}}})
    assert (one.compute(1, "encoder"), one.compute(1, "adapter_64")) == (300, 340)
    passes = [Place(one, 1, name).passes(50) for name in ("encoder", "adapter_64", "baseline")]
    assert passes == [6.0, 6.8, None]


def test_each_pass_of_heads_counts_once() -> None:
    heads = {"last_linear": 2.0, "adapter_64": 2.0, "ladder_64": 5.0}
    models = {"encoder": {"seconds": 10.0}} | {name: {"seconds": own, "head": name} for name, own in heads.items()}
    run = {"snapshots": {"1": models}, "analyses": {}, "device": "a GPU", "packages": {"torch": "2"}}
    frame = runs_block({"cola": Experiment("cola", {3: run})}, []).table
    assert frame is not None and frame.rows == [["cola", "3", "a GPU", "2", "≤ 10", "≤ 7"]]
    again = [run | {"seed": 3}]
    others = [Experiment("cola", {1: run}, lr=3e-4)]
    frame = runs_block({"cola": Experiment("cola", {3: run}, again, again)}, others).table
    assert frame is not None and frame.rows == [
        ["cola", "3, 3 again", "a GPU", "2", 10.0, 7.0],
        ["cola finetune.lr=3e-4", "1", "a GPU", "2", "≤ 10", "≤ 7"],
    ]


def test_two_runs_of_a_seed_are_compared_model_by_model_and_claim_by_claim() -> None:
    """In the second run the head is below the encoder at 2 epochs by every metric; the AUC moves twice as far."""

    def run(seed: int, encoder: float, head: float) -> dict[str, Any]:
        models = {
            name: {"parameters": 1, "scores": dict.fromkeys(("dev", "held_out"), all_scores(score)), **facts}
            for name, score, facts in (
                ("encoder", encoder, {}), ("adapter_64", head, {"head": "adapter"}), ("baseline", 50.0, {}),
                ("last_linear", encoder, {"head": "last_linear"}),
            )
        }  # fmt: skip
        return {"seed": seed, "snapshots": {"2": models}, "analyses": {}, "metrics": ["f1"]}

    def all_scores(score: float) -> dict[str, Any]:
        return {"f1": score, "forced_f1": score, "no_answer_auc": 2 * score, "at_threshold": {"f1": score}}

    def apart(runs: dict[str, dict[int, Any]], again: list[Any], lr: float | None = LOWER) -> Block | None:
        """A zoo has its experiment's own rate."""
        zoos = {name: Experiment(name, own) for name, own in runs.items() if name.endswith("_zoo")}
        found = {name: Experiment(name, own, again, lr=lr) for name, own in runs.items() if name not in zoos}
        return again_block(zoos, found) if lr is not None else again_block(found | zoos, {})

    runs = {seed: run(seed, 60.0, 61.0) for seed in range(2)}
    assert apart({"squad2_gte": runs}, []) is None
    block = apart({"squad2_gte": runs}, [run(1, 60.5, 59.0)])
    assert block is not None and block.table is not None
    title = "squad2_gte finetune.lr=5e-5"
    assert block.table.rows == [
        [title, 1, "again", "scores", 3, *[0.5, 2.0] * 3, 1.0, 4.0],  # 0.5, 0.5 and 2.0 apart
        [title, 1, "again", "heads over the control", 1, *[2.5, 2.5] * 3, 5.0, 5.0],  # +1.0, and −1.5
    ]
    assert "“Heads still add to BERT at 2 epochs” from “holds” to “does not hold”" in block.sentences[0]
    block = apart({"squad2_gte": runs}, [run(1, 60.0, 60.5)])
    assert block is not None and "no verdict would change" in block.sentences[0]
    # A zoo is a second run of the heads that it shares with the kernels, and the main run of encoder and control.
    kernels = {0: run(0, 60.0, 61.0), 1: run(1, 60.0, 61.0)}
    zoo, main = run(0, 60.0, 59.0), run(0, 58.0, 50.0)
    for other in (zoo, main):
        other["snapshots"]["2"]["cnn_1xn"] = other["snapshots"]["2"]["adapter_64"]
    del main["snapshots"]["2"]["adapter_64"]
    three = {"squad2_gte": {0: main, 1: run(1, 58.0, 50.0)}, "squad2_gte_zoo": {0: zoo}, "squad2_gte_kernels": kernels}
    block = apart(three, [])
    assert block is not None and block.table is not None
    rate = " finetune.lr=5e-5"
    assert [row[:5] for row in block.table.rows][:3] == [
        [f"squad2_gte_kernels{rate}", 0, "squad2_gte_zoo", "scores", 3],
        [f"squad2_gte_kernels{rate}", 0, "squad2_gte_zoo", "heads over the control", 1],
        [f"squad2_gte_kernels{rate}", 0, f"squad2_gte{rate}", "scores", 2],
    ]
    assert block.table.rows[2][5:7] == [2.0, 2.0]
    assert "“Heads still add to BERT at 2 epochs” from “holds” to “does not hold”" in block.sentences[0]
    # At the main runs' learning rate, a zoo is not a second run and changes no verdict.
    block = apart(three, [], lr=None)
    assert block is not None and block.table is not None
    assert {row[2] for row in block.table.rows} == {"squad2_gte"}
    assert "no verdict would change" in block.sentences[0]


def test_missing_runs_are_named_in_one_paragraph(tmp_path: Path) -> None:
    seeds = {name: list(range(one.seeds)) for name, one in load_experiments().items()}
    assert tell_missing(seeds) == []
    del seeds["squad2_gte_lora"]
    seeds |= {"squad2_minilm_lora": [1], "rte": [0, 1]}
    assert tell_missing(seeds) == [
        "Not run yet: squad2_gte_lora. Some seeds are missing: squad2_minilm_lora (1 of 3), rte (2 of 5)."
    ]
    for name in ("squad2_gte_zoo_seed1", "squad2_gte_seed0", "squad2_gte_seed2"):
        (tmp_path / f"{name}.json").write_text("{}")
    assert kept_seeds(tmp_path) == {"squad2_gte": [0, 2], "squad2_gte_zoo": [1]}


@pytest.mark.parametrize("path", sorted(KEPT.glob("untouched_*.json")), ids=lambda path: path.stem)
def test_kept_runs_without_fine_tuning_are_of_an_encoder_that_learned_nothing(path: Path) -> None:
    models = json.loads(path.read_text(encoding="utf-8"))["snapshots"]["0"]
    assert models["encoder"]["tokens"] == 0
    assert models["last_linear"]["scores"]["dev"]["total"] == 11_873
    passes = 1 if "_kernels_" in path.stem else 6
    assert 8.3e6 < models["last_linear"]["tokens"] / passes < 8.9e6


@pytest.mark.parametrize("path", sorted(KEPT.glob("squad2_*.json")), ids=lambda path: path.stem)
def test_kept_runs_on_squad_are_of_the_encoder_and_the_data_that_the_page_names(path: Path) -> None:
    epochs = 2 if "_full2_" in path.stem else 1  # a run that decays to 2 epochs has no earlier snapshot
    models = json.loads(path.read_text(encoding="utf-8"))["snapshots"][str(epochs)]
    assert (
        33e6 < models["encoder"]["parameters"] < 34e6 if "gte" in path.stem else models["encoder"]["parameters"] < 23e6
    )
    assert models["encoder"]["scores"]["dev"]["total"] == 11_873
    # 95 % of 52,716 questions of about 171 tokens.
    assert 8.3e6 < models["encoder"]["tokens"] / epochs < 8.9e6
