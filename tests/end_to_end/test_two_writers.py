"""Two commands at once on one folder: the second is told who is at work, or waits. Readers are never refused."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertvision as bv
from bertvision.cli import COMMANDS
from bertvision.disk import REPORT_LOCK, lock_beside, lock_in, writing_in
from bertvision.errors import UserError

Command = Callable[..., Any]
BUSY = "another process is writing to"


@pytest.fixture
def rte(tmp_path: Path, write_config: Callable[..., Path], glue_folder: Path) -> Path:
    return write_config(tmp_path, name="rte", data=glue_folder)


@pytest.mark.parametrize("name", ["run", "finetune", "encode", "train", "evaluate", "search"])
def test_a_stage_of_a_run_that_another_process_writes_is_refused(name: str, rte: Path, command: Command) -> None:
    with writing_in(lock_in(rte.parent / "run")):
        said = command(name, rte)
        assert said.code == 2 and f"{BUSY} '{rte.parent / 'run'}'" in said.err and "--wait" in said.err
        assert [path.name for path in (rte.parent / "run").iterdir()] == [".lock"], "nothing was written"
    assert not (rte.parent / "run").exists()


def test_every_command_that_writes_a_folder_can_wait(command: Command) -> None:
    readers = {"predict", "check", "tasks", "heads", "settings", "store", "push", "kit ls"}
    kits = [f"kit {name}" for name in ("make", "add", "replace", "rm", "ls")]
    for name in (*(one for one in COMMANDS if one != "kit"), *kits):
        assert ("--wait" in command(*name.split(), "--help").out) == (name not in readers), name


def test_waiting_is_said_once_and_then_the_run_is_made(rte: Path, command: Command) -> None:
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with writing_in(lock_in(rte.parent / "run")):
            begun.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait(60)
    threading.Timer(1.0, done.set).start()
    started = time.monotonic()
    said = command("run", rte, "finetune.epochs=0", "--wait")
    thread.join()
    assert said.code == 0, said.err
    assert time.monotonic() - started >= 0.9 and said.err.count("waiting: ") == 1
    assert not list((rte.parent / "run").glob(".lock*"))


def test_while_a_run_is_written_it_can_be_read_and_reported(
    finished: Callable[..., Path], glue_folder: Path, command: Command, tmp_path: Path
) -> None:
    run = finished(name="rte", data=glue_folder)
    with writing_in(lock_in(run)):
        assert command("predict", run, "--text", "a king", "--text-pair", "a man").code == 0
        assert command("check", run).code == 0
        said = command("report", run, "--no-encoder", "--to", tmp_path / "page")
        assert said.code == 0 and (tmp_path / "page" / "report.html").is_file()
        refused = command("ensemble", run, "encoder", "adapter_4")
        assert refused.code == 2 and BUSY in refused.err
        with pytest.raises(UserError, match=BUSY):
            bv.Run(run).ensemble("encoder", "adapter_4")
    with writing_in(lock_in(tmp_path / "page", REPORT_LOCK)):
        refused = command("report", run, "--no-encoder", "--to", tmp_path / "page")
    assert refused.code == 2 and BUSY in refused.err and "--to" in refused.err
    assert not list(tmp_path.rglob(".lock*"))


def test_kits_models_and_features_have_locks_that_leave_no_file(
    finished: Callable[..., Path], glue_folder: Path, rte: Path, command: Command, tmp_path: Path
) -> None:
    run = finished("finetune.epochs=0", name="rte", data=glue_folder)
    (tmp_path / "rows.csv").write_text("text,label\n" + "a king,yes\na river,no\n" * 10)
    for place, words in (
        (lock_beside(tmp_path / "kit"), ("kit", run, "--to", tmp_path / "kit")),
        (lock_beside(tmp_path / "model"), ("fit", tmp_path / "rows.csv", "--to", tmp_path / "model")),
        (lock_in(tmp_path / "features"), ("features", rte, "--to", tmp_path / "features")),
    ):
        with writing_in(place):
            said = command(*words)
        assert said.code == 2 and BUSY in said.err and "set `--to` to another folder" in said.err, words
        assert not place.file.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "rows.csv"]
    with writing_in(lock_beside(tmp_path / "model")), pytest.raises(UserError, match=BUSY):
        bv.fit(tmp_path / "rows.csv", to=tmp_path / "model")


def test_a_search_does_not_replace_the_scores_of_a_run(rte: Path, command: Command) -> None:
    assert command("run", rte, "finetune.epochs=0").code == 0
    run = rte.parent / "run"
    before = (run / "scores.json").read_bytes()
    for words in ((rte, "heads=[]"), (run, "heads=[]")):
        said = command("search", *words, "finetune.epochs=0", "search.members=2", "search.population=2")
        assert said.code == 2 and "has the scores of a run, which a search would replace" in said.err
        assert "run=FOLDER" in said.err
    assert (run / "scores.json").read_bytes() == before and not (run / "search").exists()
    assert command("predict", run, "--head", "adapter_4", "--text", "a", "--text-pair", "b").code == 0


def test_checkpoints_that_a_kill_left_after_the_last_stage_are_removed(rte: Path, command: Command) -> None:
    assert command("run", rte).code == 0
    run = rte.parent / "run"
    for name in ("finetune", "heads_1_sequences"):
        (run / "checkpoints" / name / "step_000000001").mkdir(parents=True)
        (run / "checkpoints" / name / "step_000000001" / "state.safetensors").touch()
    (run / "checkpoints" / "search" / "tokens").mkdir(parents=True)
    assert command("run", rte).code == 0
    assert not (run / "checkpoints").exists()
