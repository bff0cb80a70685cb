from typing import Any, cast

import pytest
import torch

from bertvision import machine
from bertvision.errors import UserError
from bertvision.machine import LostProcessError, Machine


def test_a_tracker_that_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "get_available_trackers", lambda: [])
    with pytest.raises(UserError, match="finetune.track = 'wandb' needs the package wandb: pip install wandb"):
        Machine("cpu", track="wandb")


def test_an_unavailable_device_is_reported() -> None:
    with pytest.raises(UserError, match="encoder.device = 'nonsense' can't be used on this machine"):
        Machine("nonsense")


class Launched:
    """What accelerate says in process 3 of 8, and a sum that fails."""

    num_processes, process_index, device = 8, 3, torch.device("cpu")

    def __init__(self, error: Exception) -> None:
        self.error = error

    def reduce(self, tensor: torch.Tensor, how: str) -> torch.Tensor:
        raise self.error


def launched(error: Exception, shares: bool = True) -> Machine:
    found = Machine("cpu")
    found.accelerator, found.shares = cast(Any, Launched(error)), shares
    return found


def test_a_failed_sum_means_that_another_process_is_lost() -> None:
    with pytest.raises(LostProcessError, match=r"not answered for 30 minutes \(Connection closed by peer \[127"):
        launched(RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:33669")).sum_numbers([1.0])
    with pytest.raises(torch.OutOfMemoryError):
        launched(torch.OutOfMemoryError("CUDA out of memory")).agree(True)


def test_only_the_processes_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = launched(RuntimeError())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (found.processes, found.neighbours, found.rank, found.is_main) == (8, 4, 3, False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert found.neighbours == 8


def test_a_process_with_work_of_its_own_talks_to_no_other() -> None:
    alone = launched(RuntimeError(), shares=False)
    assert (alone.processes, alone.neighbours, alone.rank, alone.is_main) == (1, 1, 0, True)
    assert alone.sum_numbers([2.0]) == [2.0] and alone.first(lambda: "found") == "found"
    alone.wait()
