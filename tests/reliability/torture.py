"""All attacks: `make torture`, or some of them:

    .venv/bin/python -m tests.reliability.torture [--only kills] [--trials 200] [--ledger FILE]

Prints the table of all trials so far, and exits with 1 if one of them failed. Trials that are in the ledger are not run
again: remove it after a change to the code.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from tests import conftest  # noqa: F401  no hub, one thread
from tests.reliability.trials import ATTACKS, Ledger, load_attack, random_of

LEDGER = Path(__file__).parents[2] / "runs" / "torture.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--trials", type=int, help="of each attack; default: its own number")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    arguments = parser.parse_args()
    ledger = Ledger(arguments.ledger)
    for name in arguments.only:
        attack = load_attack(name)
        done, started = ledger.done(name), time.monotonic()
        wanted = [number for number in range(arguments.trials or attack.TRIALS) if number not in done]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as place:
            made = attack.prepare(Path(place))
            for count, number in enumerate(wanted, start=1):
                outcome = attack.attempt(made, number, random_of(name, number))
                ledger.add(name, number, outcome)
                if not outcome.is_good:
                    print(f"{name} {number}: {outcome.case}: {outcome.detail}", flush=True)
                if count % 50 == 0 or count == len(wanted):
                    left = (time.monotonic() - started) / count * (len(wanted) - count)
                    print(f"{name}: {count} of {len(wanted)} trials, about {left:.0f} s left", flush=True)
    print(ledger.table())
    sys.exit(1 if ledger.failures() else 0)


if __name__ == "__main__":
    main()
