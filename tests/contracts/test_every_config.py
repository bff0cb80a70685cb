"""Every config that ships loads, takes two fine-tuning steps and two head steps, and holds the published recipe."""

import csv
import dataclasses
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_model, tiny_tokenizer

from bertvision.config import RunConfig, load_config
from bertvision.encoder.states import StateShape
from bertvision.heads import Target, build_head, count_parameters
from bertvision.kinds import LABEL, SPAN
from bertvision.pipeline.job import Job
from bertvision.pipeline.members import build_members
from bertvision.pipeline.run import run_job
from bertvision.tasks import TaskConfig
from bertvision.tasks.glue import GLUE

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PAPER = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "configs" / "paper").rglob("*.toml"))}
LOCAL = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "configs").glob("*.toml"))}
RESULTS = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "configs" / "results").glob("*.toml"))}
TWINS = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "configs" / "results" / "hub").glob("*.toml"))}
KIT = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "configs" / "kit").glob("*.toml"))}
DEMO = {"demo.toml": ROOT / "src" / "bertvision" / "demo.toml"}
CONFIGS = {**PAPER, **LOCAL, **RESULTS, **TWINS, **KIT, **DEMO}


def read_tables(path: Path) -> dict[str, Any]:
    """The file as it is written, no default filled in."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_no_config_is_overlooked() -> None:
    assert [len(some) for some in (PAPER, LOCAL, RESULTS, TWINS, KIT, DEMO)] == [22, 13, 30, 21, 7, 1]
    found = {*PAPER.values(), *LOCAL.values(), *RESULTS.values(), *TWINS.values(), *KIT.values()}
    assert found == {*(ROOT / "configs").rglob("*.toml")}
    assert all(path.is_file() for path in CONFIGS.values())


# ---------------------------------------------------------------------- they run


@pytest.fixture(scope="session")
def wide_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT that takes BERT's 512 positions, so that each config keeps its own window length, and has layers
    enough for heads that name them."""
    folder = tmp_path_factory.mktemp("encoder")
    tiny_model("bert", max_position_embeddings=512, num_hidden_layers=6).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def write_table(path: Path, task: dict[str, Any], rows: int) -> Path:
    """A user's own file with the columns the config names."""
    columns = [task["text"], *([task["text_pair"]] if "text_pair" in task else [])]
    targets = ["1.5", "0", "4.25"] if task["kind"] == "score" else ["yes", "no"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, task["label"]])
        for row in range(rows):
            writer.writerow([*(f"the {column} of row {row}" for column in columns), targets[row % len(targets)]])
    return path


def data_overrides(tables: dict[str, Any], folder: Path) -> list[str]:
    """Where the task's data lies here, in place of the hub and of the user's folder."""
    task = tables["task"]
    if task["name"] in GLUE:
        return [f"task.data={FIXTURES / 'glue_tiny'}"]
    if task["name"].startswith("squad2") and "train" not in task:
        return [f"task.data={FIXTURES / 'squad_tiny'}"]
    if task["name"] == "demo":
        return ["task.train_questions=40", "task.dev_questions=8"]
    if task["name"].startswith("squad2") or task["kind"] == "span":
        return [f"task.{split}={FIXTURES / 'squad_tiny' / f'{split}-v2.0.json'}" for split in ("train", "dev")]
    return [f"task.{split}={write_table(folder / f'{split}.csv', task, rows=8)}" for split in ("train", "dev")]


def load_small(path: Path, folder: Path, encoder: Path) -> RunConfig:
    """The config on a handful of examples: two fine-tuning steps of 4 rows, and two epochs of one head step."""
    tables = read_tables(path)
    several = len(tables["train"].get("snapshots", [])) > 1
    small = {
        "encoder.name": encoder, "encoder.device": "cpu", "run": folder / "run",
        "data.limit_train": 8, "data.limit_dev": 4,
        "finetune.epochs": 1, "finetune.snapshots": [0.5] if several else [], "finetune.batch_rows": 4,
        "finetune.batch_tokens": "none",
        "train.epochs": 2, "train.snapshots": [0.5, 1] if several else [1], "train.batch_rows": 64,
        "train.batch_tokens": "none",
    }  # fmt: skip
    words = [*(f"{key}={value}" for key, value in small.items()), *data_overrides(tables, folder)]
    config = load_config(path, words)
    # Weights to begin with are of a real encoder; a tiny one's heads begin with random ones.
    return dataclasses.replace(config, heads=[without_begin(entry) for entry in config.heads])


def without_begin(entry: Any) -> Any:
    return {k: v for k, v in entry.items() if k != "begin"} if isinstance(entry, dict) else entry


def steps_taken(run: Path) -> dict[str, int]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {event["event"]: event["step"] for event in events if "step" in event}


@pytest.mark.parametrize("name", CONFIGS)
def test_two_steps_of_every_config_give_scores_of_every_model(name: str, wide_encoder: Path, tmp_path: Path) -> None:
    config = load_small(CONFIGS[name], tmp_path, wide_encoder)
    job = Job(config)
    run_job(job)
    members = build_members(config.heads, config.train, config.seed, job.task.kind)
    # The second epoch of a member with a share of the data is a step of its own.
    shares = {member.data_fraction for member in members if member.data_fraction < 1}
    assert steps_taken(tmp_path / "run") == {"finetune": 2, "train": 2 + len(shares)}
    scores = json.loads((tmp_path / "run" / "scores.json").read_text(encoding="utf-8"))["snapshots"]
    assert list(scores) == [f"{epochs:g}" for epochs in job.snapshots]
    for epochs in config.train.snapshots or []:
        models = scores[f"{epochs:g}"]
        own = {name for name, model in models.items() if "ensemble" not in model}
        assert own == {"baseline", "encoder", *(member.name for member in members)}
        assert len({model["group"] for model in models.values() if "ensemble" in model}) == len(config.ensembles)
        assert any(member.head == "last_linear" for member in members)
        for model in models.values():
            for split in job.dev_splits:
                figures = [value for value in model["scores"][split].values() if isinstance(value, int | float)]
                assert figures and all(math.isfinite(figure) for figure in figures)


def test_runs_of_different_configs_do_not_share_a_folder() -> None:
    folders = [read_tables(path)["run"] for path in CONFIGS.values()]
    assert len(set(folders)) == len(CONFIGS)


# ---------------------------------------------------------------------- those of the results page


@pytest.mark.parametrize("name", RESULTS)
def test_a_results_config_has_a_twin_on_hub_data_with_the_same_settings(name: str) -> None:
    stems = [RESULTS[name].stem, RESULTS[name].stem.replace("_gte", "").replace("_minilm", "")]
    twins = [TWINS[f"configs/results/hub/{stem}.toml"] for stem in stems if f"configs/results/hub/{stem}.toml" in TWINS]
    own, twin = read_tables(RESULTS[name]), read_tables(twins[0])
    assert twin["task"] == {"name": own["task"]["name"]}
    assert twin["encoder"] == {"name": "bert-base-uncased"}
    # A learning rate that suits the encoder; LoRA and BitFit have one for all.
    tuned = own["finetune"]["epochs"] > 0
    assert not tuned or "method" in own["finetune"] or own["finetune"]["lr"] > twin["finetune"]["lr"]
    for tables in (own, twin):
        del tables["run"], tables["task"], tables["encoder"]
        tables["finetune"].pop("lr", None)
    assert own == twin


# ---------------------------------------------------------------------- they hold the published recipes

TENTHS = [tenth / 10 for tenth in range(1, 10)]
# The 2021 recipe by task: learning rate, batch of BERT-base, batch of BERT-large, length.
RECIPE_2021 = {
    "cola": (2e-5, 16, 16, 128),
    "sst2": (2e-5, 32, 32, 128),
    "mrpc": (2e-5, 32, 32, 128),
    "stsb": (2e-5, 16, 16, 128),
    "qqp": (1e-5, 32, 32, 128),
    "mnli": (1e-5, 32, 32, 128),
    "qnli": (1e-5, 32, 32, 128),
    "rte": (2e-5, 16, 16, 250),
    "wnli": (2e-5, 32, 32, 128),
    "squad2": (2e-5, 16, 8, 384),
}
# Parameters of the 2020 heads at BERT-large: spans, then answerability; the last-layer control is first.
COUNTS_SPAN = [
    2_050, 2_076, 2_050, 68_802, 70_850, 1_643_202, 1_645_250, 414_952, 417_000, 9_910_552, 9_912_600, 398_498, 811_400,
]  # fmt: skip
COUNTS_ANSWERABLE = [2_050, 2_077, 398_499, 398_472, 20_716_634, 267_010, 269_058]
# Of the heads after those the share of BERT-large is known, in percent; then comes the less-data curve of one of them.
SHARES_SPAN = ["0.099", "0.121", "0.099", "0.093", "0.093", "0.207", "0.332", "1.994", "1.970"]


def test_the_paper_configs_are_the_published_experiments() -> None:
    names = {f"configs/paper/2021/{task}_{size}.toml" for task in RECIPE_2021 for size in ("base", "large")}
    assert set(PAPER) == names | {f"configs/paper/2020/{task}_large.toml" for task in ("squad2", "squad2_answerable")}


@pytest.mark.parametrize("name", PAPER)
def test_paper_configs_load_as_they_are_and_read_data_and_encoder_from_the_hub(name: str) -> None:
    config = load_config(PAPER[name])
    task, _, size = PAPER[name].stem.rpartition("_")
    assert config.task == TaskConfig(task)
    assert config.encoder.name == f"bert-{size}-uncased"
    assert config.data.limit_train is None and config.data.limit_dev is None


@pytest.mark.parametrize("name", PAPER)
def test_paper_configs_write_every_number_of_the_recipe(name: str) -> None:
    tables = read_tables(PAPER[name])
    recipe = {"epochs", "snapshots", "lr", "schedule", "warmup", "decay", "clip", "batch_rows"}
    assert set(tables["finetune"]) == set(tables["train"]) == recipe
    assert {"max_length", "hold_out"} <= set(tables["data"])


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("task", RECIPE_2021)
def test_2021_configs_hold_the_published_recipe(task: str, size: str) -> None:
    tables = read_tables(PAPER[f"configs/paper/2021/{task}_{size}.toml"])
    lr, base, large, length = RECIPE_2021[task]
    finetune, train, is_span = tables["finetune"], tables["train"], task == "squad2"
    assert (finetune["lr"], finetune["batch_rows"]) == (lr, base if size == "base" else large)
    assert (finetune["decay"], finetune["warmup"], finetune["schedule"]) == (0.01, 0.1, "linear")
    assert finetune["epochs"] == 1
    assert tables["data"]["max_length"] == length
    assert (train["lr"], train["batch_rows"], train["epochs"]) == ((1e-3, 16, 1) if is_span else (1e-3, 64, 10))
    grids = [entry for entry in tables["heads"] if isinstance(entry, dict)]
    assert [entry["head"] for entry in grids] == ([] if is_span else ["adapter", "flat_adapter"])
    assert all(entry["size"] == [8, 16, 32] and entry["lr"] == [3e-4, 1e-3] for entry in grids)
    assert is_span or grids[1]["tokens"] == length


@pytest.mark.parametrize(
    ("task", "head_snapshots", "head_rows", "head_epochs"),
    [("squad2", [0.3, 1, 2], 16, 1), ("squad2_answerable", [0.2, 1, 3], 64, 10)],
)
def test_2020_configs_hold_the_published_recipe(
    task: str, head_snapshots: list[float], head_rows: int, head_epochs: int
) -> None:
    tables = read_tables(PAPER[f"configs/paper/2020/{task}_large.toml"])
    finetune, train = tables["finetune"], tables["train"]
    assert (finetune["lr"], finetune["schedule"], finetune["batch_rows"]) == (1e-5, "constant", 4)
    assert (finetune["warmup"], finetune["decay"]) == (0, 0)  # AdamW without decay is Adam
    assert finetune["epochs"] == 6 and finetune["snapshots"] == [0, *TENTHS, 1, 2, 3, 4, 5, 6]
    assert (tables["data"]["max_length"], tables["data"]["overlap"]) == (386, 128)
    assert train["snapshots"] == head_snapshots
    assert (train["lr"], train["schedule"], train["warmup"], train["decay"]) == (1e-3, "constant", 0, 0)
    assert (train["batch_rows"], train["epochs"]) == (head_rows, head_epochs)


@pytest.mark.parametrize(
    ("task", "target", "counts"),
    [
        ("squad2", Target(SPAN), COUNTS_SPAN),
        ("squad2_answerable", Target(LABEL, 2), COUNTS_ANSWERABLE),
    ],
)
def test_2020_heads_have_the_published_parameter_counts(task: str, target: Target, counts: list[int]) -> None:
    config = load_config(PAPER[f"configs/paper/2020/{task}_large.toml"])
    members = build_members(config.heads, config.train, config.seed, target.kind)
    with torch.device("meta"):
        heads = [build_head(member, StateShape(25, 1024, True), target) for member in members]
    found = [count_parameters(head) for head in heads]
    assert found[: len(counts)] == counts
    rest = found[len(counts) :]
    if task == "squad2":
        assert [f"{100 * parameters / 335_143_938:.3f}" for parameters in rest[:9]] == SHARES_SPAN
        fractions = [member.data_fraction for member in members[-9:]]
        assert rest[9:] == [417_000] * 9 and fractions == TENTHS
    else:
        assert not rest
