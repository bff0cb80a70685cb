"""`bertvision store` from the command line: output and exit codes of ls, verify, rm and export."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tiny_stores import begin_tiny_store, write_tiny_store

Command = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs with two stores, one of them unfinished."""
    write_tiny_store(tmp_path / "runs" / "a" / "states" / "train_epoch_1")
    begin_tiny_store(tmp_path / "runs" / "b" / "states" / "train_epoch_1").writer.write((0, 2))
    return tmp_path / "runs"


@pytest.fixture
def whole(runs: Path) -> Path:
    return runs / "a" / "states" / "train_epoch_1"


@pytest.fixture
def unfinished(runs: Path) -> Path:
    return runs / "b" / "states" / "train_epoch_1"


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A user at a terminal who types this."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(f"{text}\n"))


# ---------------------------------------------------------------------- ls


def test_ls_shows_sizes_and_origin(
    command: Command, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command("store", "ls", "runs")
    assert said.code == 0, said.err
    assert "2 stores" in said.out
    [first] = [line for line in said.out.splitlines() if "runs/a/states/train_epoch_1" in line]
    kilobytes = sum(file.stat().st_size for file in whole.iterdir()) / 1000
    for word in ("whole", f"{kilobytes:.0f} kB", "tokens", "0-3", "float16", "squad2 train", "tiny after 1 epoch"):
        assert word in first, word
    assert "unfinished" in said.out
    assert "runs/b/states/train_epoch_1: 5 of 9 shards written" in said.out


def test_ls_prints_json(command: Command, runs: Path, whole: Path) -> None:
    rows = command("store", "ls", runs, "--json").json
    assert [row["state"] for row in rows] == ["whole", "unfinished"]
    assert rows[0]["path"] == str(whole)
    assert rows[0]["bytes"] == sum(file.stat().st_size for file in whole.iterdir())
    assert (rows[0]["examples"], rows[0]["windows"], rows[0]["dtype"]) == (9, 18, "float16")
    assert rows[0]["about"]["task"] == "squad2"


def test_ls_searches_runs_by_default(
    command: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = command("store", "ls", "--json").json
    assert [row["path"] for row in rows] == ["runs/a/states/train_epoch_1", "runs/b/states/train_epoch_1"]
    monkeypatch.chdir(runs / "a")
    said = command("store", "ls")
    assert (said.code, said.out) == (0, "no stores in 'runs'.\n")
    assert command("store", "ls", "--json").json == []


# ---------------------------------------------------------------------- verify


def test_verify_accepts_an_intact_store(command: Command, whole: Path) -> None:
    said = command("store", "verify", whole)
    assert said.code == 0, said.err
    assert "whole" in said.out
    assert command("store", "verify", whole, "--json").json == {
        "path": str(whole),
        "whole": True,
        "damages": [],
        "leftovers": [],
    }


def test_verify_names_damaged_shards_and_their_examples(command: Command, whole: Path) -> None:
    damaged, missing = sorted(whole.glob("states-*"))[2:4]
    flip_a_bit(damaged)
    missing.unlink()
    said = command("store", "verify", whole)
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0].startswith(f"{damaged.name} (examples 2 to 2) is damaged: its checksum is wrong")
    assert lines[1] == f"{missing.name} (examples 3 to 3) is missing."
    assert lines[2].startswith("2 damaged") and "bertvision encode" in lines[2]

    found = command("store", "verify", whole, "--json")
    assert found.code == 1
    assert not found.json["whole"]
    assert [(row["file"], row["first"], row["stop"]) for row in found.json["damages"]] == [
        (damaged.name, 2, 3),
        (missing.name, 3, 4),
    ]
    assert command("store", "ls", whole, "--json").json[0]["state"] == "damaged"


def test_verify_names_a_damaged_manifest(command: Command, whole: Path) -> None:
    flip_a_bit(whole / "manifest.json")
    said = command("store", "verify", whole)
    assert said.code == 1
    assert said.out.splitlines()[0] == "manifest.json is damaged."


def test_verify_lists_leftovers_and_succeeds(command: Command, whole: Path) -> None:
    (whole / "writing.json").write_text("{}")
    said = command("store", "verify", whole)
    assert said.code == 0
    assert "harmless: writing.json" in said.out


def test_anything_but_a_finished_store_is_an_error(command: Command, runs: Path, whole: Path, unfinished: Path) -> None:
    for words, part in (
        (("verify", unfinished), "not finished (5 of 9 shards written)"),
        (("verify", runs / "a"), f"is not a store, but contains stores. Choose one: {whole}."),
        (("verify", runs / "none"), "no store at"),
        (("rm", runs / "none", "--yes"), "no store at"),
        (("rm", runs / "a", "--yes"), "is not a store, but contains stores"),
        (("export", unfinished, "--hdf5", runs / "x.h5"), "is incomplete"),
        (("verify", "nonsense://x"), "is not the address of a store"),
    ):
        said = command("store", *words)
        assert said.code == 2, words
        assert part in said.err and "Traceback" not in said.err
    assert not (runs / "x.h5").exists() and whole.exists()


# ---------------------------------------------------------------------- rm


def test_rm_asks_and_shows_what_it_removes(command: Command, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole / "notes.txt").write_text("mine")
    answer(monkeypatch, "n")
    said = command("store", "rm", whole)
    assert said.code == 1
    assert (whole / "manifest.json").exists()
    answer(monkeypatch, "y")
    said = command("store", "rm", whole)
    assert said.code == 0, said.err
    assert "kB, whole, created from squad2 train, tiny after 1 epoch, run runs/tiny" in said.out
    assert [path.name for path in whole.iterdir()] == ["notes.txt"]


def test_rm_without_a_terminal_requires_yes(command: Command, whole: Path, unfinished: Path) -> None:
    said = command("store", "rm", whole)
    assert said.code == 2
    assert "--yes" in said.err and "squad2 train" in said.err
    assert (whole / "manifest.json").exists()
    assert command("store", "rm", whole, "--yes").code == 0
    assert not whole.exists()
    assert command("store", "rm", unfinished, "--yes").code == 0
    assert not unfinished.exists()


# ---------------------------------------------------------------------- export


def test_export_writes_the_states_of_every_window(command: Command, whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "states.h5"
    said = command("store", "export", whole, "--hdf5", file)
    assert said.code == 0, said.err
    assert f"{file}: 18 windows" in said.out
    with h5py.File(file) as made:
        assert made["embeds"].shape[:2] == (18, 4) and np.isfinite(made["embeds"][:]).all()
        assert json.loads((whole / "manifest.json").read_bytes())["fingerprint"] == made.attrs["store"]
    again = command("store", "export", whole, "--hdf5", file)
    assert again.code == 2 and "already exists and is not overwritten" in again.err


# ---------------------------------------------------------------------- addresses


def test_every_command_accepts_a_url(command: Command, tmp_path: Path) -> None:
    store = "memory://store_cli/states/train"
    write_tiny_store(store)
    assert [row["path"] for row in command("store", "ls", "memory://store_cli", "--json").json] == [store]
    assert command("store", "verify", store).code == 0
    assert command("store", "export", store, "--hdf5", tmp_path / "states.h5").code == 0
    assert command("store", "rm", store, "--yes").code == 0
    assert command("store", "ls", "memory://store_cli", "--json").json == []
