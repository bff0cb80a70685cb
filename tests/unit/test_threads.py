"""Threads wait without spinning unless the user says otherwise, and prediction makes room on a busy machine."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from bertvision import machine, threads

SHOW = "import os; e = os.environ.get; print(e('OMP_WAIT_POLICY'), e('GOMP_SPINCOUNT'), bertvision.threads.spins)"


def show(code: str, **settings: str) -> list[str]:
    """What a fresh process prints with these settings of the environment and no other of OpenMP's."""
    own = {key: value for key, value in os.environ.items() if key not in (*threads.WAITING, "OMP_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{SHOW}"], env=own | settings, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_the_package_makes_threads_wait_passively() -> None:
    assert show("import bertvision") == ["PASSIVE", str(threads.SPINS), "False"]


def test_after_torch_it_is_too_late_for_this_process_and_in_time_for_its_children() -> None:
    assert show("import torch, bertvision") == ["PASSIVE", str(threads.SPINS), "True"]


@pytest.mark.parametrize("code", ["import bertvision", "import torch, bertvision"])
def test_a_users_own_setting_wins(code: str) -> None:
    assert show(code, OMP_WAIT_POLICY="ACTIVE") == ["ACTIVE", "None", "False"]
    assert show(code, GOMP_SPINCOUNT="100") == ["None", "100", "False"]


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def count_inside() -> int:
    with machine.sharing_cores():
        return torch.get_num_threads()


@pytest.mark.usefixtures("two_threads")
def test_one_thread_is_used_where_threads_spin_on_a_busy_machine_and_only_for_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "spins", True)
    monkeypatch.setattr(machine, "is_crowded", lambda: True)
    assert count_inside() == 1
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert count_inside() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("spins", "crowded"), [(False, True), (True, False)])
def test_threads_that_sleep_or_an_idle_machine_keep_all_of_them(
    monkeypatch: pytest.MonkeyPatch, spins: bool, crowded: bool
) -> None:
    monkeypatch.setattr(threads, "spins", spins)
    monkeypatch.setattr(machine, "is_crowded", lambda: crowded)
    assert count_inside() == 2


def test_a_machine_is_busy_where_more_programs_run_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(machine.psutil, "getloadavg", lambda: (4.0, 9.0, 9.0))
    assert not machine.is_crowded()  # our own work takes all cores
    monkeypatch.setattr(machine.psutil, "getloadavg", lambda: (8.0, 0.0, 0.0))
    assert machine.is_crowded()
