"""Threads wait without spinning unless the user sets otherwise, and prediction uses one thread on a busy machine."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from bertvision import machine, threads

SHOW = "import os; e = os.environ.get; print(e('OMP_WAIT_POLICY'), e('GOMP_SPINCOUNT'), bertvision.threads.spins)"


def show(code: str, **settings: str) -> list[str]:
    """The output of a fresh process with these environment variables and no other OpenMP settings."""
    own = {key: value for key, value in os.environ.items() if key not in (*threads.WAITING, "OMP_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{SHOW}"], env=own | settings, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_the_package_makes_threads_wait_passively() -> None:
    assert show("import bertvision") == ["PASSIVE", str(threads.SPINS), "False"]


def test_after_torch_the_setting_reaches_only_child_processes() -> None:
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
def test_one_thread_is_used_inside_if_threads_spin_on_a_busy_machine(
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
def test_all_threads_are_used_if_they_sleep_or_the_machine_is_idle(
    monkeypatch: pytest.MonkeyPatch, spins: bool, crowded: bool
) -> None:
    monkeypatch.setattr(threads, "spins", spins)
    monkeypatch.setattr(machine, "is_crowded", lambda: crowded)
    assert count_inside() == 2


def test_a_machine_is_busy_if_more_programs_run_than_it_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(machine.psutil, "getloadavg", lambda: (4.0, 9.0, 9.0))
    assert not machine.is_crowded()  # our own work takes all cores
    monkeypatch.setattr(machine.psutil, "getloadavg", lambda: (8.0, 0.0, 0.0))
    assert machine.is_crowded()
