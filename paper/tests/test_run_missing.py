"""Missing runs are run once per experiment and seed, and kept. The commands are stubs."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertvision.errors import UserError
from paper import run_missing as running
from paper.experiments import find_experiment

SEEDS = {"squad2_gte": 2, "squad2_minilm": 2, "rte": 3}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands; the run of RTE's seed 2 fails, and seed 1 can't be kept. squad2_gte has seed 0 already."""
    commands: list[list[str]] = []

    def stand_in(command: list[str], **words: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command[1:])
        fails = "--seed=2" in command or (command[2] == "paper.keep" and command[-1].endswith("rte_seed1"))
        words["stdout"].write(f"some lines\n{'there is no data' if fails else 'done'}\n")
        return subprocess.CompletedProcess(command, 1 if fails else 0)

    wanted = {name: replace(find_experiment(name), seeds=seeds) for name, seeds in SEEDS.items()}
    monkeypatch.setattr(running, "load_experiments", lambda: wanted)
    monkeypatch.setattr(running, "RUNS", tmp_path)
    monkeypatch.setattr(running, "kept_seeds", lambda: {"squad2_gte": [0]})
    monkeypatch.setattr(subprocess, "run", stand_in)
    return commands


def test_only_missing_runs_are_run_and_kept(called: list[list[str]], tmp_path: Path) -> None:
    assert running.main(["squad2_gte", "squad2_minilm", "--at-once", "2"]) == 0
    runs = [command for command in called if command[1] == "paper.experiments"]
    assert all(command[:3] == ["-m", "paper.experiments", "run"] for command in runs)
    assert sorted(command[3:5] for command in runs) == [
        ["squad2_gte", "--seed=1"],
        ["squad2_minilm", "--seed=0"],
        ["squad2_minilm", "--seed=1"],
    ]
    names = ("squad2_gte_seed1", "squad2_minilm_seed0", "squad2_minilm_seed1")
    kept = [command for command in called if command[1] != "paper.experiments"]
    assert sorted(kept) == [["-m", "paper.keep", str(tmp_path / name)] for name in names]


def test_failures_are_reported_and_the_other_runs_continue(
    called: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert running.main(["rte"]) == 1
    output = capsys.readouterr().out
    assert "rte_seed0: kept, " in output
    for seed, text in ((1, "some lines\ndone\nsome lines\nthere is no data\n"), (2, "some lines\nthere is no data\n")):
        log = tmp_path / f"rte_seed{seed}.log"
        assert f"rte_seed{seed}: failed (there is no data); see {log}" in output
        assert log.read_text() == text  # a failed run is not kept


def test_without_names_all_experiments_are_checked(called: list[list[str]]) -> None:
    assert [name for name, _ in running.missing([])] == ["squad2_gte", *["squad2_minilm"] * 2, *["rte"] * 3]
    for name in ("squad3", "rte_base"):
        with pytest.raises(UserError, match=f"no experiment '{name}'"):
            running.missing(["rte", name])
