"""Everything that a command writes follows the umask."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.mark.parametrize(("mask", "file", "folder"), [(0o027, 0o640, 0o750), (0o022, 0o644, 0o755)])
def test_runs_stores_kits_and_reports_follow_the_umask(
    command: Command,
    write_config: Callable[..., Path],
    glue_folder: Path,
    tmp_path: Path,
    mask: int,
    file: int,
    folder: int,
) -> None:
    config = write_config(tmp_path, name="rte", data=glue_folder)
    frozen = ("finetune.epochs=0", "train.snapshots=[0]", "finetune.snapshots=[]", f"run={tmp_path}/frozen")
    before = os.umask(mask)
    try:
        for words in (
            ("run", config),
            ("encode", config),
            ("run", config, *frozen),
            ("kit", tmp_path / "frozen", "--to", tmp_path / "kit"),
            ("report", tmp_path / "run", "--no-encoder"),
        ):
            said = command(*words)
            assert said.code == 0, said.err
    finally:
        os.umask(before)
    found = {
        path: path.stat().st_mode & 0o777 for top in ("run", "frozen", "kit") for path in (tmp_path / top).rglob("*")
    }
    assert len(found) > 80
    assert not {str(path): oct(mode) for path, mode in found.items() if mode != (folder if path.is_dir() else file)}
