"""What is missing is run once for each config and seed; the command itself is a stand-in here."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bertvision.errors import UserError
from results import run_missing as running

WANTED = [("spans", 2, ["squad2_gte", "squad2_minilm"]), ("RTE", 3, ["rte"])]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands; the run of RTE's seed 2 fails. squad2_gte has seed 0 already."""
    commands: list[list[str]] = []

    def stand_in(command: list[str], **words: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        words["stdout"].write("some lines\nthere is no data\n")
        return subprocess.CompletedProcess(command, 1 if "seed=2" in command else 0)

    monkeypatch.setattr(running, "WANTED", WANTED)
    monkeypatch.setattr(running, "RUNS", tmp_path)
    monkeypatch.setattr(running, "seeds_by_config", lambda: {"squad2_gte": [0]})
    monkeypatch.setattr(running, "keep", lambda folder: (tmp_path / f"{folder.name}.kept").touch())
    monkeypatch.setattr(subprocess, "run", stand_in)
    return commands


def test_only_what_was_not_kept_is_run_and_then_kept(called: list[list[str]], tmp_path: Path) -> None:
    assert running.main(["squad2_gte", "squad2_minilm", "--at-once", "2"]) == 0
    assert sorted(command[4:6] for command in called) == [
        ["configs/results/squad2_gte.toml", "seed=1"],
        ["configs/results/squad2_minilm.toml", "seed=0"],
        ["configs/results/squad2_minilm.toml", "seed=1"],
    ]
    assert all(command[1:4] == ["-m", "bertvision", "run"] for command in called)
    kept = {path.stem for path in tmp_path.glob("*.kept")}
    assert kept == {"squad2_gte_seed1", "squad2_minilm_seed0", "squad2_minilm_seed1"}


def test_a_run_that_fails_is_told_of_and_the_others_go_on(
    called: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert running.main(["rte"]) == 1
    assert {path.stem for path in tmp_path.glob("*.kept")} == {"rte_seed0", "rte_seed1"}
    log = tmp_path / "rte_seed2.log"
    assert f"rte_seed2: failed (there is no data); all it said is in {log}" in capsys.readouterr().out
    assert log.read_text() == "some lines\nthere is no data\n"


def test_without_names_all_that_is_wanted_is_meant(called: list[list[str]]) -> None:
    assert [name for name, _ in running.missing([])] == ["squad2_gte", *["squad2_minilm"] * 2, *["rte"] * 3]
    with pytest.raises(UserError, match="no config called squad3"):
        running.missing(["rte", "squad3"])
