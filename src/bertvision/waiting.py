"""How CPU threads wait. OpenMP threads spin at the end of every parallel region until the last one arrives. If another
program occupies a core, each of the hundreds of small calls of a kit then waits for a time slice. Threads that sleep
immediately double the time of a kit on an idle machine. A short spin before sleeping is close to the best of both
(benchmarks/busy_cores.py). OpenMP reads the setting when torch is loaded.
"""

import os
import sys

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables with which users control how threads wait; if one is set, we change nothing."""
SPINS = 1000
"""Spins before a thread goes to sleep: a few microseconds. Read by GNU OpenMP, which torch ships on Linux; other
implementations know only the policy."""

spins = False
"""Whether torch was loaded before the setting could take effect."""


def wait_passively() -> None:
    """Make OpenMP threads sleep while they wait. Called by `import bertvision`, before torch is loaded."""
    global spins
    if not any(name in os.environ for name in WAITING):
        spins = "torch" in sys.modules  # too late for this process, but child processes inherit it
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)
