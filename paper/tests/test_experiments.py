"""Every experiment expands, sets everything, runs, has its hub variant, and follows the published recipe."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from two_steps import data_overrides, save_wide_encoder, take_two_steps
from typer.testing import CliRunner

from bertvision.config import RunConfig, build_config
from bertvision.encoder.states import StateShape
from bertvision.errors import UserError
from bertvision.heads import MemberConfig, Target, build_head, count_parameters, setting_types
from bertvision.kinds import LABEL, SPAN
from bertvision.pipeline.members import build_members
from bertvision.tasks import TaskConfig
from bertvision.tasks.config import target_kind
from paper.experiments import FILE, app, find_experiment, load_experiments, merge, page_experiments, to_text

EXPERIMENTS = load_experiments()
RESULTS = page_experiments()
PAPERS = [name for name in EXPERIMENTS if name not in RESULTS]
# One of each kind of work: spans with ensembles and less data, LoRA, BitFit, no fine-tuning, answerability, scores, and
# the papers' labels and spans. Those with the largest heads take a minute each.
SOME = [
    "squad2_gte", "squad2_gte_lora", "squad2_minilm_bitfit", "untouched_gte", "answerable_minilm", "stsb",
    "2021/rte_base", "2021/squad2_large",
]  # fmt: skip


def build(name: str) -> RunConfig:
    """With the hub's paths, since the local data files may be missing."""
    settings = EXPERIMENTS[name].settings()
    return build_config(settings | {"task": {"name": settings["task"]["name"]}})


def members_of(config: RunConfig) -> list[MemberConfig]:
    kind = target_kind(config.task)
    assert kind is not None
    return build_members(config.heads, config.train, config.seed, kind)


# ---------------------------------------------------------------------- what they are


def test_no_experiment_is_overlooked() -> None:
    assert (len(RESULTS), len(PAPERS)) == (30, 22)
    tasks = [*RECIPE_2021]
    assert set(SOME) <= set(EXPERIMENTS)
    assert set(PAPERS) == {f"2021/{task}_{size}" for task in tasks for size in ("base", "large")} | {
        f"2020/{task}_large" for task in ("squad2", "squad2_answerable")
    }
    assert set(tomllib.loads(FILE.read_text(encoding="utf-8"))["published"]) == set(PAPERS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_printed_as_a_config_has_all_of_its_settings(name: str) -> None:
    one = EXPERIMENTS[name]
    for hub in (False, True)[: 1 + (one.hub is not None)]:
        assert tomllib.loads(to_text(one, 3, hub)) == one.settings(3, hub)
    assert build(name).seed == 0 and one.settings(3)["seed"] == 3


PINNED = {
    "data": {"max_length", "overlap", "hold_out"},
    "finetune": {"epochs", "method", "lora_rank", "lora_alpha", "lr", "schedule", "warmup", "decay", "clip", "read"},
    "train": {"snapshots", "lr", "epochs", "seeds", "schedule", "warmup", "decay", "clip", "shuffle"},
    "evaluate": {"n_best", "max_answer_tokens"},
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_leaves_nothing_that_matters_to_the_defaults(name: str) -> None:
    settings, config = EXPERIMENTS[name].settings(), build(name)
    for section, keys in PINNED.items():
        assert keys <= set(settings[section])
    assert all(len({"batch_rows", "batch_tokens"} & set(settings[section])) == 1 for section in ("finetune", "train"))
    assert settings["finetune"]["read"] == "cls"
    assert settings["task"]["name"] == "squad2" or settings["finetune"]["output_lr"] == settings["finetune"]["lr"]
    for member in members_of(config) if settings["task"]["name"] != "squad2" else []:
        assert "read" in member.settings or "read" not in setting_types(member.head)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_pinned_settings_of_heads_rename_no_member(name: str) -> None:
    """Heads keep the names they have without the defaults, which kept scores and ensembles refer to."""
    config = build(name)
    entries: list[Any] = []
    for entry in EXPERIMENTS[name].settings()["heads"]:
        plain = isinstance(entry, dict) and entry.get("read") == "cls"
        entries.append({k: v for k, v in entry.items() if k not in ("read", "name")} if plain else entry)
    kind = target_kind(config.task)
    assert kind is not None
    unpinned = build_members(entries, config.train, config.seed, kind)
    assert [member.name for member in members_of(config)] == [member.name for member in unpinned]


def test_runs_of_different_experiments_and_seeds_do_not_share_a_folder() -> None:
    folders = [
        one.settings(seed, hub)["run"]
        for one in EXPERIMENTS.values()
        for seed in (0, 1)
        for hub in (False, True)[: 1 + (one.hub is not None)]
    ]
    assert len(set(folders)) == len(folders) == 2 * (30 * 2 + 22)
    assert EXPERIMENTS["squad2_gte"].settings(1)["run"] == "runs/results/squad2_gte_seed1"
    assert EXPERIMENTS["2020/squad2_large"].settings()["run"] == "runs/paper/2020/squad2_large_seed0"


@pytest.mark.parametrize("name", RESULTS)
def test_the_hub_variant_has_the_same_settings_on_the_hubs_data_with_bert_base(name: str) -> None:
    own, hub = (EXPERIMENTS[name].settings(0, on_hub) for on_hub in (False, True))
    assert hub["task"] == {"name": own["task"]["name"]}
    assert hub["encoder"] == {"name": "bert-base-uncased"}
    # A learning rate that suits the encoder; LoRA and BitFit have one for all.
    rates = own["finetune"].pop("lr"), hub["finetune"].pop("lr")
    if "output_lr" in own["finetune"]:
        assert rates == (own["finetune"].pop("output_lr"), hub["finetune"].pop("output_lr"))
    if own["finetune"]["epochs"] == 0:
        assert rates[0] == rates[1]
    elif own["finetune"]["method"] == "full":
        assert rates[0] > rates[1] == (5e-5 if name.endswith("_full1") else 2e-5)
    else:
        assert rates[1] == 1e-3
    for tables in (own, hub):
        del tables["run"], tables["task"], tables["encoder"]
    assert own == hub


def test_experiments_that_are_on_the_hub_anyway_have_no_variant() -> None:
    with pytest.raises(UserError, match="from the hub already"):
        EXPERIMENTS["2021/rte_base"].settings(0, hub=True)


def test_changing_returned_settings_does_not_change_the_experiment() -> None:
    find_experiment("rte").settings()["finetune"]["lr"] = 7.0
    assert find_experiment("rte").settings()["finetune"]["lr"] == 1e-4


def test_merging_goes_into_tables_and_replaces_lists() -> None:
    below = {"train": {"lr": 1, "epochs": 2}, "heads": ["a", "b"], "seed": 0}
    above = {"train": {"lr": 3}, "heads": ["c"]}
    assert merge(below, above) == {"train": {"lr": 3, "epochs": 2}, "heads": ["c"], "seed": 0}
    assert below["train"] == {"lr": 1, "epochs": 2}


# ---------------------------------------------------------------------- they run


@pytest.fixture(scope="session")
def wide_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wide_encoder(tmp_path_factory.mktemp("encoder"))


ALL = [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS]


@pytest.mark.parametrize("name", ALL)
def test_two_steps_of_an_experiment_give_scores_of_every_model(name: str, wide_encoder: Path, tmp_path: Path) -> None:
    take_two_steps(EXPERIMENTS[name].settings(), wide_encoder, tmp_path)


def test_the_command_lists_shows_and_writes_experiments(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["list"]).output
    assert all(f" {name} " in listed for name in EXPERIMENTS)
    shown = CliRunner().invoke(app, ["show", "squad2_gte", "--hub", "--seed", "1"]).output
    assert tomllib.loads(shown) == EXPERIMENTS["squad2_gte"].settings(1, hub=True)
    CliRunner().invoke(app, ["show", "2021/rte_base", "--to", str(tmp_path / "rte.toml")])
    text = (tmp_path / "rte.toml").read_text(encoding="utf-8")
    assert text.startswith("# 2021/rte_base: a row of the GLUE table") and ".639 → .726 accuracy" in text
    found = CliRunner().invoke(app, ["show", "squad2_get"])
    assert isinstance(found.exception, UserError) and "did you mean 'squad2_gte'?" in str(found.exception)


def test_the_command_runs_an_experiment_with_overrides(wide_encoder: Path, tmp_path: Path) -> None:
    data = data_overrides({"name": "rte"}, tmp_path)
    words = [f"encoder.name={wide_encoder}", f"run={tmp_path / 'run'}", "data.limit_train=8", "data.limit_dev=4"]
    words += ["finetune.epochs=0", "finetune.snapshots=[]", "train.snapshots=[0]", "train.epochs=1", "ensembles=[]"]
    ended = CliRunner().invoke(app, ["run", "rte", *data, "--seed", "1", *words], catch_exceptions=False)
    assert ended.exit_code == 0 and "adapter_64_mean" in ended.output and "run folder:" in ended.output
    config = tomllib.loads(to_text(EXPERIMENTS["rte"], 1, False))
    assert '"seed": 1' in (tmp_path / "run" / "config.json").read_text() and config["train"]["epochs"] == 10


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
# Parameters of the 2020 heads with BERT-large: spans, then answerability; the control is first.
COUNTS_SPAN = [
    2_050, 2_076, 2_050, 68_802, 70_850, 1_643_202, 1_645_250, 414_952, 417_000, 9_910_552, 9_912_600, 398_498, 811_400,
]  # fmt: skip
COUNTS_ANSWERABLE = [2_050, 2_077, 398_499, 398_472, 20_716_634, 267_010, 269_058]
# The heads after those: only their percentage of BERT-large is known. The less-data curve of one of them comes last.
SHARES_SPAN = ["0.099", "0.121", "0.099", "0.093", "0.093", "0.207", "0.332", "1.994", "1.970"]


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_experiments_read_data_and_encoder_from_the_hub(name: str) -> None:
    config = build_config(EXPERIMENTS[name].settings())
    task, _, size = name.partition("/")[2].rpartition("_")
    assert config.task == TaskConfig(task)
    assert config.encoder.name == f"bert-{size}-uncased"
    assert config.data.limit_train is None and config.data.limit_dev is None


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("task", RECIPE_2021)
def test_2021_experiments_follow_the_published_recipe(task: str, size: str) -> None:
    tables = EXPERIMENTS[f"2021/{task}_{size}"].settings()
    lr, base, large, length = RECIPE_2021[task]
    finetune, train, is_span = tables["finetune"], tables["train"], task == "squad2"
    assert (finetune["lr"], finetune["batch_rows"]) == (lr, base if size == "base" else large)
    assert (finetune["decay"], finetune["warmup"], finetune["schedule"]) == (0.01, 0.1, "linear")
    assert finetune["epochs"] == 1
    assert tables["data"]["max_length"] == length
    assert (train["lr"], train["batch_rows"], train["epochs"]) == ((1e-3, 16, 1) if is_span else (1e-3, 64, 10))
    grids = [entry for entry in tables["heads"] if isinstance(entry, dict) and "size" in entry]
    assert [entry["head"] for entry in grids] == ([] if is_span else ["adapter", "flat_adapter"])
    assert all(entry["size"] == [8, 16, 32] and entry["lr"] == [3e-4, 1e-3] for entry in grids)
    assert is_span or grids[1]["tokens"] == length


@pytest.mark.parametrize(
    ("task", "head_snapshots", "head_rows", "head_epochs"),
    [("squad2", [0.3, 1, 2], 16, 1), ("squad2_answerable", [0.2, 1, 3], 64, 10)],
)
def test_2020_experiments_follow_the_published_recipe(
    task: str, head_snapshots: list[float], head_rows: int, head_epochs: int
) -> None:
    tables = EXPERIMENTS[f"2020/{task}_large"].settings()
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
    members = members_of(build(f"2020/{task}_large"))
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
