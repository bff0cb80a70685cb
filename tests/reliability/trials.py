"""What all attacks share: trials with a seed, a ledger that accumulates, and the table of results.

An attack is a module of this folder with

    NAME, ABOUT        its name, and a sentence for the table
    TRIALS, SLICE      how many trials `make torture` and CI run
    prepare(place)     make what all trials need in a folder, once; returns anything
    attempt(made, number, random) -> Outcome
                       one trial; depends on nothing but its arguments

`make torture` runs all trials that the ledger does not have yet (tests/reliability/torture.py); test_slices.py runs the
first few of every attack.
"""

import importlib
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

ATTACKS: tuple[str, ...] = (
    "kills", "signals", "flips", "hostile", "forms", "configs", "data_files", "command_lines", "texts", "resources",
)  # fmt: skip
"""Modules of this folder, in the order of the table."""


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    case: str
    """What was attacked: a command, or a file and its reader. A line of the table."""
    result: str
    """One or two words: a column of the table."""
    is_good: bool
    detail: str = ""
    """Of a failure: what to do to see it again, and what came."""


def load_attack(name: str) -> ModuleType:
    return importlib.import_module(f"tests.reliability.{name}")


def random_of(attack: str, number: int) -> random.Random:
    """The same numbers for the same trial, whatever ran before it."""
    return random.Random(zlib.crc32(f"{attack} {number}".encode()))


class Ledger:
    """The results of all trials so far, a JSON line each. A killed session goes on where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, attack: str, number: int, outcome: Outcome) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"attack": attack, "number": number, **asdict(outcome)}) + "\n")

    def rows(self) -> Iterator[tuple[str, int, Outcome]]:
        if not self.path.is_file():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # cut off by a kill
                continue
            yield row.pop("attack"), row.pop("number"), Outcome(**row)

    def done(self, attack: str) -> set[int]:
        return {number for name, number, _ in self.rows() if name == attack}

    def table(self) -> str:
        """A line for every case: trials, results, and how many were good."""
        lines = ["| attack | case | trials | results | good |", "|---|---|---:|---|---:|"]
        found: dict[tuple[str, str], list[Outcome]] = {}
        for attack, _, outcome in self.rows():
            found.setdefault((attack, outcome.case), []).append(outcome)
        for (attack, case), outcomes in sorted(found.items()):
            counts = Counter(outcome.result for outcome in outcomes)
            shown = ", ".join(f"{count} {result}" for result, count in counts.most_common())
            good = sum(outcome.is_good for outcome in outcomes)
            lines.append(f"| {attack} | {case} | {len(outcomes)} | {shown} | {good} |")
        every = [outcome for outcomes in found.values() for outcome in outcomes]
        lines.append(f"| all | | {len(every)} | | {sum(outcome.is_good for outcome in every)} |")
        return "\n".join(lines)

    def failures(self) -> list[str]:
        return [f"{name} {number}: {one.case}: {one.detail}" for name, number, one in self.rows() if not one.is_good]
