"""The first trials of every attack. `make torture` runs all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.trials import ATTACKS, Ledger, Outcome, load_attack, random_of

ROOT = Path(__file__).parents[2]
FORKING = ("kills", "signals")
"""Attacks whose children are forks. They need a process of their own: drawing does not survive a fork, and other tests
may have drawn in this one."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_silently_wrong_outside_its_folder_or_a_traceback(name: str, tmp_path: Path) -> None:
    attack = load_attack(name)
    if name in FORKING:
        words = ["--only", name, "--trials", str(attack.SLICE), "--ledger", str(tmp_path / "ledger.jsonl")]
        run = [sys.executable, "-m", "tests.reliability.torture", *words]
        done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    made = attack.prepare(tmp_path)
    outcomes = [attack.attempt(made, number, random_of(name, number)) for number in range(attack.SLICE)]
    assert not [f"{number}: {one.case}: {one.detail}" for number, one in enumerate(outcomes) if not one.is_good]


def test_a_ledger_accumulates_and_shows_what_failed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.done("flips") == set() and "| all | | 0 | | 0 |" in ledger.table()
    ledger.add("flips", 0, Outcome("head → predict", "refused", True))
    ledger.add("flips", 3, Outcome("head → predict", "silent", False, "bit 17"))
    with ledger.path.open("a") as file:
        file.write('{"attack": "fl')  # a kill
    assert ledger.done("flips") == {0, 3} and ledger.failures() == ["flips 3: head → predict: bit 17"]
    assert "| flips | head → predict | 2 | 1 refused, 1 silent | 1 |" in ledger.table()


def test_a_trial_has_its_own_numbers() -> None:
    assert random_of("flips", 3).random() == random_of("flips", 3).random() != random_of("flips", 4).random()
