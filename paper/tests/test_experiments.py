"""Every experiment of the results page expands, sets everything, runs and has its hub variant."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from two_steps import data_overrides, save_wide_encoder, take_two_steps
from typer.testing import CliRunner

from bertvision.config import RunConfig, build_config
from bertvision.errors import UserError
from bertvision.heads import MemberConfig, setting_types
from bertvision.pipeline.members import build_members
from bertvision.tasks.config import target_kind
from paper.experiments import app, find_experiment, load_experiments, to_text

EXPERIMENTS = load_experiments()
# One of each kind of work: spans with ensembles and less data, LoRA, BitFit, no fine-tuning, answerability, scores,
# labels. Those with the largest heads take a minute each.
SOME = [
    "squad2_gte", "squad2_gte_lora", "squad2_minilm_bitfit", "untouched_gte", "answerable_minilm", "stsb", "rte",
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
    assert len(EXPERIMENTS) == 30
    assert set(SOME) <= set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_printed_as_a_config_has_all_of_its_settings(name: str) -> None:
    one = EXPERIMENTS[name]
    for hub in (False, True):
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
        one.settings(seed, hub)["run"] for one in EXPERIMENTS.values() for seed in (0, 1) for hub in (False, True)
    ]
    assert len(set(folders)) == len(folders) == 2 * 30 * 2
    assert EXPERIMENTS["squad2_gte"].settings(1)["run"] == "runs/results/squad2_gte_seed1"


@pytest.mark.parametrize("name", EXPERIMENTS)
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


def test_changing_returned_settings_does_not_change_the_experiment() -> None:
    find_experiment("rte").settings()["finetune"]["lr"] = 7.0
    assert find_experiment("rte").settings()["finetune"]["lr"] == 1e-4


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
    CliRunner().invoke(app, ["show", "rte", "--to", str(tmp_path / "rte.toml")])
    text = (tmp_path / "rte.toml").read_text(encoding="utf-8")
    assert text.startswith("# rte: the encoder after 1 and 3 epochs") and tomllib.loads(text)["seed"] == 0
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
