"""A run warns before any work about settings that would make it slow."""

from pathlib import Path

import pytest
from tiny_training import Listening

from bertvision import waiting
from bertvision.config import build_config
from bertvision.pipeline import run
from bertvision.pipeline.job import Job


@pytest.mark.parametrize(("spins", "crowded"), [(True, True), (True, False), (False, True)])
def test_spinning_threads_on_a_busy_machine_are_reported(
    tmp_path: Path,
    tiny_encoder_folder: Path,
    glue_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    spins: bool,
    crowded: bool,
) -> None:
    monkeypatch.setattr(waiting, "spins", spins)
    monkeypatch.setattr(run, "is_crowded", lambda: crowded)
    reporter = Listening()
    tables = {
        "task": {"name": "rte", "data": str(glue_folder)},
        "encoder": {"name": str(tiny_encoder_folder), "device": "cpu"},
        "run": str(tmp_path),
    }
    run.open_run(Job(build_config(tables), reporter))
    assert any("Import bertvision first" in line for line in reporter.lines) == (spins and crowded)
