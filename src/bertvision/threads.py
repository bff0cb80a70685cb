"""How CPU threads behave on a machine that is shared: a busy laptop, a container, CI.

OpenMP's threads spin at the end of every parallel region until the last one arrives. Where another program holds a
core, each of the hundreds of small calls of a kit then waits a time slice. Threads that sleep at once double the time
of a kit on an idle machine. A short spin before they sleep is nearly the best of both (benchmarks/busy_cores.py).
OpenMP reads the setting when torch is loaded.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Settings by which users decide themselves how threads wait."""
SPINS = 1000
"""Looks at the others before a thread goes to sleep: some microseconds. GNU's OpenMP, which torch brings on Linux,
reads this; others know only the policy."""
CROWDED = 1.5
"""Running programs per core from which a machine counts as busy; our own work is one per core."""

_spins = False


def wait_passively() -> None:
    """Lets OpenMP's threads sleep while they wait; called by `import bertvision`, before torch is loaded."""
    global _spins
    if not any(name in os.environ for name in WAITING):
        _spins = "torch" in sys.modules  # too late for this process, in time for those it starts
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


@contextmanager
def sharing_cores() -> Iterator[None]:
    """One thread for the work inside, where torch was loaded first, so that its threads spin, and the machine is busy.

    A single thread waits for nobody. A number of threads set by the user (OMP_NUM_THREADS) stays. For prediction only:
    the number of threads can change the last bit of a sum, and training must give the same weights every time."""
    import torch

    before = torch.get_num_threads()
    if not _spins or before == 1 or "OMP_NUM_THREADS" in os.environ or not is_crowded():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_crowded() -> bool:
    """Whether more programs want to run than there are cores, over the last minute."""
    import psutil

    return psutil.getloadavg()[0] > CROWDED * (psutil.cpu_count() or 1)
