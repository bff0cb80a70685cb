import time
from pathlib import Path

import pytest
import torch

from bertvision.training import checkpoint as module
from bertvision.training.checkpoint import Checkpoints, add_prefix, strip_prefix

TENSORS = {"a/w": torch.arange(6.0).reshape(2, 3), "a/half": torch.ones(2, dtype=torch.bfloat16)}


def test_a_saved_checkpoint_is_loaded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", "stamp", 100)
    assert checkpoints.load() is None
    checkpoints.save(7, TENSORS, {"seconds": 1.25})
    found = Checkpoints(tmp_path / "c", "stamp", 100).load()
    assert found is not None and found.step == 7 and found.facts["seconds"] == 1.25
    assert found.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(found.tensors[name], TENSORS[name]) for name in TENSORS)
    assert found.tensors["a/half"].dtype == torch.bfloat16


def test_only_the_newest_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "stamp", 100)
    for step in (9, 10, 1_000):
        checkpoints.save(step, TENSORS, {"seconds": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001000"]


def test_checkpoints_of_other_settings_are_ignored_and_removed_by_the_next_save(tmp_path: Path) -> None:
    Checkpoints(tmp_path, "other", 100).save(50, TENSORS, {"seconds": 1.0})
    mine = Checkpoints(tmp_path, "stamp", 100)
    assert mine.load() is None
    mine.save(3, TENSORS, {"seconds": 1.0})
    found = mine.load()
    assert found is not None and found.step == 3 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("failing", ["save_file", "mark_done"])
def test_a_failed_save_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    checkpoints = Checkpoints(tmp_path, "stamp", 100)
    checkpoints.save(3, TENSORS, {"seconds": 1.0})

    def fail(*args: object, **facts: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, failing, fail)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(4, TENSORS, {"seconds": 1.0})
    found = checkpoints.load()
    assert found is not None and found.step == 3 and len(list(tmp_path.iterdir())) == 1


def test_a_checkpoint_is_due_after_the_interval_and_not_again_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    checkpoints = Checkpoints(tmp_path, "stamp", 60)
    assert not checkpoints.is_due()
    now[0] += 60
    assert checkpoints.is_due()
    checkpoints.save(1, TENSORS, {"seconds": 1.0})
    assert not checkpoints.is_due()


def test_clearing_removes_all_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", "stamp", 100)
    checkpoints.clear()
    checkpoints.save(1, TENSORS, {"seconds": 1.0})
    checkpoints.clear()
    assert checkpoints.load() is None and not (tmp_path / "c").exists()


def test_stripping_a_prefix_returns_only_its_names() -> None:
    tensors = add_prefix("adapter/head", {"w": torch.ones(1)}) | add_prefix("adapter/head2", {"w": torch.zeros(1)})
    assert list(strip_prefix("adapter/head", tensors)) == ["w"] and strip_prefix("adapter/head", tensors)["w"] == 1


def test_a_transposed_tensor_can_be_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "stamp", 100)
    checkpoints.save(1, {"t": torch.arange(6.0).reshape(2, 3).T}, {"seconds": 1.0})
    found = checkpoints.load()
    assert found is not None and found.tensors["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_process_that_does_not_write_resets_its_timer(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "stamp", seconds=0.05)
    time.sleep(0.06)
    assert checkpoints.is_due()
    checkpoints.skip()
    assert not checkpoints.is_due()
