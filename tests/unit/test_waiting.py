"""Threads wait without spinning."""

import os
import subprocess
import sys

import pytest

from bertvision import waiting

SHOW = "import os; e = os.environ.get; print(e('OMP_WAIT_POLICY'), e('GOMP_SPINCOUNT'), bertvision.waiting.spins)"


def show(code: str, **settings: str) -> list[str]:
    """The output of a fresh process with these environment variables and no other OpenMP settings."""
    own = {key: value for key, value in os.environ.items() if key not in (*waiting.WAITING, "OMP_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{SHOW}"], env=own | settings, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_the_package_makes_threads_wait_passively() -> None:
    assert show("import bertvision") == ["PASSIVE", str(waiting.SPINS), "False"]


def test_after_torch_the_setting_reaches_only_child_processes() -> None:
    assert show("import torch, bertvision") == ["PASSIVE", str(waiting.SPINS), "True"]


@pytest.mark.parametrize("code", ["import bertvision", "import torch, bertvision"])
def test_a_users_own_setting_wins(code: str) -> None:
    assert show(code, OMP_WAIT_POLICY="ACTIVE") == ["ACTIVE", "None", "False"]
    assert show(code, GOMP_SPINCOUNT="100") == ["None", "100", "False"]
