"""A search as users run it: on every kind of target, killed and resumed, with choices on held-out data only."""

import builtins
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from bertvision.config import build_config
from bertvision.errors import UserError
from bertvision.pipeline import score, train
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.held_out import HeldOut
from bertvision.pipeline.job import Job
from bertvision.search import run as flow
from bertvision.search.space import find_mistakes
from bertvision.search.study import Study
from bertvision.sources import MemoryStates

Tables = dict[str, Any]
Build = Callable[..., Job]
# Learning rates far apart: scores differ, and the worst members are dropped early.
SPACE = {"head": ["learned_pooling", "adapter"], "lr": {"low": 1e-4, "high": 1.0, "log": True}, "size": [2, 4]}


class Killed(BaseException):
    """Simulates a kill: no code catches it."""


@pytest.fixture(scope="module")
def rte_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pairs whose label depends on one word."""
    folder = tmp_path_factory.mktemp("rte")
    for split, count in (("train", 40), ("dev", 8)):
        rows = [f"{n}\tthe {'king' if n % 2 else 'river'} {n}\tit is {n}\t{_label(n % 2)}" for n in range(count)]
        (folder / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")
    return folder


def _label(entailed: int) -> str:
    return "entailment" if entailed else "not_entailment"


@pytest.fixture(scope="module")
def build_in(tiny_encoder_folder: Path, rte_files: Path) -> Build:
    """build_in(folder, search={…}) → a job on tiny RTE, population 4 of 8; other sections and tasks as keywords."""

    def make(folder: Path, **sections: Tables) -> Job:
        search = {"members": 8, "population": 4, "sampler": "random", "space": SPACE, **sections.pop("search", {})}
        tables = {
            "task": {"name": "rte", "data": str(rte_files)},
            "data": {"max_length": 48, "overlap": 16, "hold_out": 0.25},
            "encoder": {"name": str(tiny_encoder_folder), "device": "cpu"},
            "finetune": {"epochs": 0}, "train": {"epochs": 4, "batch_rows": 8, "stack": 1},
            "search": search, "run": str(folder),
        }  # fmt: skip
        merged = {key: {**value, **sections.get(key, {})} if key != "run" else value for key, value in tables.items()}
        return Job(build_config(merged, find_more=find_mistakes))

    return make


@pytest.fixture
def build(tmp_path: Path, build_in: Build) -> Build:
    """build("run", …) → a job whose run folder is inside the test's temporary folder."""
    return lambda run="run", **sections: build_in(tmp_path / run, **sections)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, build_in: Build) -> flow.SearchResult:
    """An undisturbed search."""
    return flow.search(build_in(tmp_path_factory.mktemp("undisturbed")))


@pytest.fixture(autouse=True)
def no_picture(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Skip drawing, which takes longer than a tiny search: only the test of the command does it."""
    if "command" not in request.fixturenames:
        monkeypatch.setattr(flow, "write_picture", lambda *_: None)


def history_of(made: Job | flow.SearchResult) -> list[Tables]:
    folder = made.folder.path if isinstance(made, Job) else made.run.folder
    return json.loads((folder / "search" / "history.json").read_text())["members"]


def winner_of(found: flow.SearchResult) -> bytes:
    return (found.run.folder / "snapshots/epoch_0/heads/winner/head.safetensors").read_bytes()


def held_out_score(found: flow.SearchResult, metric: str, at_threshold: bool = False) -> float:
    (models,) = [models for models in found.run.scores["snapshots"].values() if flow.WINNER in models]
    scores = models[flow.WINNER]["scores"][HELD_OUT]
    return (scores["at_threshold"] if at_threshold else scores)[metric]


# ---------------------------------------------------------------------- results


def test_a_search_chooses_the_best_on_held_out_and_ends_as_a_run(build: Build) -> None:
    job = build()
    found = flow.search(job)
    members = history_of(job)
    assert len(members) == 8 and [one["population"] for one in members] == [0] * 4 + [1] * 4
    # In each population, four members start, two are left after the first rung, one after the second.
    assert [one["state"] for one in members].count("complete") == 2
    whole = [one for one in members if one["state"] == "complete"]
    assert found.winner.name == max(whole, key=lambda one: one["score"])["name"]
    assert held_out_score(found, "accuracy") == pytest.approx(found.winner.score)
    assert list(found.run.scores["snapshots"]["0"]) == ["baseline", "encoder", "last_linear", "winner"]
    assert "winner" in (job.folder.path / "summary.md").read_text()
    assert not (job.folder.checkpoints / "search" / "sequences").exists(), "a finished search needs no checkpoint"
    journal = JournalFileBackend(str(job.folder.path / "search" / "study.jsonl"))
    study = optuna.load_study(study_name=None, storage=JournalStorage(journal))
    assert study.best_trial.number == found.winner.number
    config = json.loads((job.folder.path / "snapshots/epoch_0/heads/winner/config.json").read_text())["member"]
    assert config["lr"] == found.winner.entry["lr"] and config["seed"] == job.config.seed


def test_at_each_rung_the_better_half_continues(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fake scores: the higher a member's number, the better it is."""

    def by_number(self: HeldOut, some: list[Any]) -> dict[str, float]:
        return {one.name: float(one.name[-3:]) if one.name[-3:].isdigit() else 0.0 for one in some}

    monkeypatch.setattr(HeldOut, "score", by_number)
    job = build()
    flow.search(job)
    outcomes = [(one["state"], one["rung"]) for one in history_of(job)]
    assert outcomes == [("dropped", 1), ("dropped", 1), ("dropped", 2), ("complete", 2)] * 2


def test_without_pruning_all_members_finish(build: Build) -> None:
    job = build(search={"prune": False})
    flow.search(job)
    assert [(one["state"], one["rung"]) for one in history_of(job)] == [("complete", 0)] * 8


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("name", ["squad2", "stsb", "cola"])
def test_every_kind_of_target_is_searched(
    name: str, sampler: str, build: Build, glue_folder: Path, squad_folder: Path
) -> None:
    data = squad_folder if name == "squad2" else glue_folder
    metric = {"squad2": "f1", "stsb": "pearson", "cola": "matthews"}[name]
    job = build(task={"name": name, "data": str(data)}, search={"sampler": sampler}, train={"batch_rows": 2})
    found = flow.search(job)
    assert len(history_of(job)) == 8 and found.history.metric == metric
    assert held_out_score(found, metric, at_threshold=name == "squad2") == pytest.approx(found.winner.score, abs=1e-3)


def test_heads_on_tokens_and_on_states_in_memory_share_a_population(build: Build) -> None:
    space = {"head": ["ladder", "adapter"], "width": 32, "blocks": 1, "size": 2, "read": ["cls", "mean"]}
    search = {"space": space | {"lr": SPACE["lr"]}, "members": 4, "seconds": 1e9}
    found = flow.search(build(search=search))
    assert [one.entry["head"] for one in found.history.tried].count("ladder") in (1, 2, 3)
    assert set(found.history.seconds) == {"0/tokens", "0/sequences"}
    patch = killing(
        flow.PopulationTrainer, "_record_outcomes", 2
    )  # the pass over tokens is reported, the other one is not
    with pytest.raises(Killed):
        flow.search(build("killed", search=search))
    patch.undo()
    patch = killing(flow.PopulationTrainer, "_try_in_one_pass", 2)  # one pass is left
    assert history_of(flow.search(build("killed", search=search))) == history_of(found)
    patch.undo()


def test_a_diverging_member_fails_and_the_search_continues(build: Build) -> None:
    job = build(search={"space": {"head": "adapter", "size": 2, "lr": [1e-3, 2e-3, 1e38]}})
    flow.search(job)
    members = history_of(job)
    absurd = [one for one in members if one["entry"]["lr"] == 1e38]
    assert absurd and {one["state"] for one in absurd} == {"failed"}
    assert all(one["score"] is not None for one in members if one not in absurd)


def test_a_search_in_which_all_members_fail_reports_it(build: Build) -> None:
    with pytest.raises(UserError, match="no member of the search finished with a score"):
        flow.search(build(search={"space": {"head": "learned_pooling", "lr": 1e38}}))


def test_an_intermediate_snapshot_can_be_searched(build: Build) -> None:
    finetune = {"epochs": 1, "snapshots": [0.5], "lr": 1e-3, "batch_rows": 8}
    found = flow.search(build(finetune=finetune, search={"snapshot": 0.5, "members": 4}))
    scores = found.run.scores["snapshots"]
    assert "winner" in scores["0.5"] and "winner" not in scores["1"]


# ---------------------------------------------------------------------- choices use held-out data only


def test_dev_data_does_not_affect_the_search(
    build: Build, undisturbed: flow.SearchResult, rte_files: Path, tmp_path: Path
) -> None:
    turned = tmp_path / "turned"
    turned.mkdir()
    (turned / "train.tsv").write_text((rte_files / "train.tsv").read_text())
    rows = [f"{n}\tno {n}\tnothing {n}\tentailment" for n in range(5)]
    (turned / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")
    other = flow.search(build(task={"data": str(turned)}))
    assert history_of(other) == history_of(undisturbed) and other.winner == undisturbed.winner


def test_dev_is_encoded_once_after_all_choices(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    job, seen = build(), []
    encode, compute, choose = MemoryStates.encode, score.compute_outputs, flow._run_winner

    def note(features: Any) -> None:
        seen.append(next(split for split in ("train", HELD_OUT, "dev") if features is job.features(split)))

    def encode_noted(encoder: Any, features: Any, *rest: Any) -> Any:
        note(features)
        return encode(encoder, features, *rest)

    def compute_noted(encoder: Any, models: Any, features: Any, *rest: Any) -> Any:
        note(features)
        return compute(encoder, models, features, *rest)

    def choose_noted(*arguments: Any) -> Any:
        seen.append("chosen")
        return choose(*arguments)

    monkeypatch.setattr(MemoryStates, "encode", encode_noted)
    monkeypatch.setattr(score, "compute_outputs", compute_noted)
    monkeypatch.setattr(flow, "_run_winner", choose_noted)
    flow.search(job)
    # The states of the search once each; then the winner: scores per epoch, training, held-out scores, dev.
    assert seen == [HELD_OUT, "train", "chosen", HELD_OUT, "train", HELD_OUT, "dev"]


# ---------------------------------------------------------------------- killed and resumed


def killing(place: Any, name: str, call: int) -> Any:
    """A context in which the `call`-th call of a function simulates a kill."""
    patch, real, calls = pytest.MonkeyPatch(), getattr(place, name), []

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            raise Killed
        return real(*arguments, **named)

    patch.setattr(place, name, counted)
    return patch


@pytest.mark.parametrize(
    ("place", "name", "call", "checkpoint_seconds"),
    [
        (HeldOut, "score", 1, 0.0),  # at the first rung
        (HeldOut, "score", 3, 0.0),  # after the first pass, before its scores are reported
        (HeldOut, "score", 5, 0.0),  # at the second rung of the second population
        (HeldOut, "score", 5, 1e9),  # the same, without a checkpoint of the pass
        (Study, "report", 2, 0.0),
        (Study, "finish", 1, 1e9),
        (optuna.Study, "tell", 3, 0.0),  # some members of a population are reported
        (optuna.Study, "tell", 3, 1e9),
        (optuna.Study, "add_trial", 6, 0.0),  # half a population is written
        (flow, "write_history", 1, 0.0),  # between populations
        (flow, "_run_winner", 1, 0.0),  # before the winner is trained
    ],
)
def test_a_killed_search_resumes_to_the_same_history(
    place: Any, name: str, call: int, checkpoint_seconds: float, build: Build, undisturbed: flow.SearchResult
) -> None:
    train = {"checkpoint_seconds": checkpoint_seconds}
    patch = killing(place, name, call)
    with pytest.raises(Killed):
        flow.search(build(train=train))
    patch.undo()
    found = flow.search(build(train=train))
    assert history_of(found) == history_of(undisturbed)
    assert found.winner == undisturbed.winner
    assert winner_of(found) == winner_of(undisturbed)


def test_a_search_resumes_after_sigkill(build: Build, undisturbed: flow.SearchResult) -> None:
    job = build(train={"checkpoint_seconds": 0.0})
    script = f"""
import os, signal, torch
from bertvision.config import build_config
from bertvision.pipeline.job import Job
from bertvision.pipeline import held_out
from bertvision.search import run as flow
torch.set_num_threads(1)
real, calls = held_out.HeldOut.score, []
def score(self, members):
    calls.append(members)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, members)
held_out.HeldOut.score = score
flow.search(Job(build_config({job.config.to_dict()!r})))
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=120, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = flow.search(job)
    assert history_of(found) == history_of(undisturbed)
    assert winner_of(found) == winner_of(undisturbed)


def test_a_larger_budget_continues_the_same_study(build: Build, undisturbed: flow.SearchResult) -> None:
    assert len(history_of(flow.search(build(search={"members": 4})))) == 4
    assert history_of(flow.search(build())) == history_of(undisturbed)


def test_finished_members_are_not_tried_again(
    build_in: Build, undisturbed: flow.SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (flow, train, score):
        monkeypatch.setattr(module, "load_snapshot", lambda *_: pytest.fail("the encoder is not needed"))
    again = flow.search(build_in(undisturbed.run.folder))
    assert again.history == undisturbed.history


def test_other_settings_start_a_new_study_and_keep_the_old_one(build: Build) -> None:
    first = flow.search(build())
    other = flow.search(build(search={"space": {**SPACE, "size": [3]}}))
    assert other.history.study != first.history.study
    assert {one.entry.get("size") for one in other.history.tried} <= {3, None}
    again = flow.search(build())
    assert again.history.tried == first.history.tried


def test_a_checkpoint_of_other_settings_is_ignored(build: Build) -> None:
    train = {"checkpoint_seconds": 0.0}
    patch = killing(HeldOut, "score", 2)  # two of four are dropped by now
    with pytest.raises(Killed):
        flow.search(build(train=train))
    patch.undo()
    found = flow.search(build(train=train, search={"prune": False, "members": 4}))
    assert [one.state for one in found.history.tried] == ["complete"] * 4


def test_no_population_starts_after_the_time_limit_and_none_is_cut_short(build: Build) -> None:
    job = build(search={"members": None, "seconds": 1e-6})
    found = flow.search(job)
    assert len(found.history.tried) == 4 and all(one.state != "running" for one in found.history.tried)


# ---------------------------------------------------------------------- the command


def test_the_command_prints_the_best_and_the_dev_scores(
    tmp_path: Path, command: Callable[..., Any], write_config: Callable[..., Path], glue_folder: Path
) -> None:
    config = write_config(tmp_path, name="rte", data=glue_folder)
    words = ["search.members=4", "search.population=4", 'search.space.head=["adapter"]', "search.space.size=[2,4]"]
    said = command("search", config, *words)
    assert said.code == 0, said.err
    assert "member_000" in said.out and "held-out accuracy" in said.out and "last_linear (control)" in said.out
    assert (tmp_path / "run" / "search" / "history.svg").is_file()
    again = command("search", tmp_path / "run", "--json")
    assert again.code == 0, again.err
    assert len(again.json["search"]["members"]) == 4 and again.json["search"]["best"]
    assert set(again.json["snapshots"]["1"]) == {"baseline", "encoder", "last_linear", "winner"}
    assert "resuming after 4 members" in again.err
    wrong = command("search", config, "search.space.sice=[1]", "search.sampler=grid", "train.lr=-1")
    assert wrong.code == 2 and all(word in wrong.err for word in ("3 mistakes", "sice", "grid", "train.lr"))
    assert command("predict", tmp_path / "run", "--head", "winner", "--text", "a", "--text-pair", "b").code == 0


@pytest.mark.parametrize("package", ["optuna", "altair", "vl_convert"])
def test_a_missing_package_is_named_before_any_work(
    package: str, tmp_path: Path, command: Callable[..., Any], write_config: Callable[..., Path], glue_folder: Path
) -> None:
    real, patch = builtins.__import__, pytest.MonkeyPatch()

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **named)

    for module in [name for name in sys.modules if name.startswith(("bertvision.search.", package))]:
        patch.delitem(sys.modules, module)
    patch.setattr(builtins, "__import__", without)
    said = command("search", write_config(tmp_path, name="rte", data=glue_folder))
    patch.undo()
    assert said.code == 2 and "pip install 'bertvision[search]'" in said.err
    assert not (tmp_path / "run").exists()


def test_written_scores_are_never_nan(build: Build) -> None:
    job = build(search={"space": {"head": "adapter", "size": 2, "lr": [1e-3, 1e38]}})
    flow.search(job)
    text = (job.folder.path / "search" / "history.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert all(one["score"] is None or math.isfinite(one["score"]) for one in history_of(job))
