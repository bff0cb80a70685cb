"""How CPU threads behave on a machine that is shared: a busy laptop, a container, CI.

OpenMP's threads spin at the end of every parallel region until the last one arrives. Where another program holds a
core, each of the hundreds of small calls of a kit then waits a time slice. Threads that sleep at once double the time
of a kit on an idle machine. A short spin before they sleep is nearly the best of both (benchmarks/busy_cores.py).
OpenMP reads the setting when torch is loaded.
"""

import os
import sys

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Settings by which users decide themselves how threads wait."""
SPINS = 1000
"""Looks at the others before a thread goes to sleep: some microseconds. GNU's OpenMP, which torch brings on Linux,
reads this; others know only the policy."""

spins = False
"""Whether torch was loaded before the setting could reach it."""


def wait_passively() -> None:
    """Lets OpenMP's threads sleep while they wait; called by `import bertvision`, before torch is loaded."""
    global spins
    if not any(name in os.environ for name in WAITING):
        spins = "torch" in sys.modules  # too late for this process, in time for those it starts
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)
