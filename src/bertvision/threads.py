"""CPU threads on a shared machine (a busy laptop, a container, CI): how many there are. waiting.py: how they wait.

There are at most as many threads as the process may use cores: its CPU affinity, and the quota of its container. A
number that the user sets always wins. Everything that a run saves uses this number, which does not depend on the load:
with another number of threads, fine-tuning ends with other last bits. Prediction on new text uses the cores that are
free at that moment.

This module does not import torch: `machine.py` applies the number.
"""

import functools
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertvision import waiting
from bertvision.tables import counted

NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables with which users set the number of threads."""
IN_PROGRAM = "set with torch.set_num_threads"
WINDOW = 0.2
"""Seconds over which the use of the cores is measured, at least."""
TOLERATED = 0.25
"""Share of a core that other programs may use while it still counts as free."""
LARGE = 1_000
"""Tokens from which a pass is faster with all threads if no core is free. Its parallel regions are so long that waiting
for the other threads matters less than the larger share of the cores that several threads receive."""


@dataclass(frozen=True)
class Threads:
    """A number of threads and the reason for it: `str` is "2 threads: 2 of 8 cores are free"."""

    number: int
    why: str
    by_user: bool = False

    def __str__(self) -> str:
        return f"{counted(self.number, 'thread')}: {self.why}"


def choose_threads(current: int) -> Threads:
    """The number of threads for work whose results are saved. `current` is the number that torch has now.

    It depends on the limits of this process and on the user's settings, never on the load of the machine. It is never
    larger than `current`: torch uses one thread per physical core on some machines.
    """
    for name in NUMBERS:
        if os.environ.get(name):
            return Threads(current, f"{name} is set", by_user=True)
    cores, usable = _affinity(), usable_cores()
    if current not in (cores, os.cpu_count(), _physical_cores()):
        return Threads(current, IN_PROGRAM, by_user=True)
    if current < usable:
        return Threads(current, f"torch's default for {counted(usable, 'core')}")
    if usable < cores:
        return Threads(usable, f"the container may use {counted(usable, 'core')}")
    if cores < (os.cpu_count() or 1):
        return Threads(usable, f"this process may use {cores} of {os.cpu_count()} cores")
    return Threads(usable, f"this machine has {counted(usable, 'core')}")


def choose_free_threads(limit: Threads, tokens: int = 0) -> Threads:
    """The number of threads for a pass over new text: the free cores, at most `limit`, from `choose_threads`.

    If no core is free, a small pass uses one thread, which never waits for another. A large one uses all, because the
    system divides the cores between threads; not if they spin, which takes four times as long.
    """
    if limit.by_user or limit.number == 1:
        return limit
    cores, free = usable_cores(), free_cores()
    words = f"{free} of {counted(cores, 'core')} {'is' if free == 1 else 'are'} free"
    if free == 0 and tokens >= LARGE and not waiting.spins:
        return Threads(limit.number, f"{words}, but the pass is large")
    return Threads(max(1, min(limit.number, free)), words)


# ---------------------------------------------------------------------- cores that this process may use


def usable_cores(root: Path = Path("/")) -> int:
    """The number of cores that this process may use: its CPU affinity, or less if its container has a quota.

    A fraction of a core is rounded to the nearest number, and 1 is the least. `root` holds /proc and /sys.
    """
    quota = _quota(root)
    return max(1, _affinity() if math.isinf(quota) else min(_affinity(), round(quota)))


def _affinity() -> int:
    """The number of cores that the system may run this process on, or less if Python was told so (-X cpu_count)."""
    counts = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):  # Linux
        counts.append(len(os.sched_getaffinity(0)))
    if sys.version_info >= (3, 13):
        counts.append(os.process_cpu_count() or 1)
    return min(counts)


def _physical_cores() -> int | None:
    import psutil

    found: int | None = psutil.cpu_count(logical=False)
    return found


@functools.cache
def _quota(root: Path) -> float:
    """The smallest CPU quota, in cores, of the control groups that this process is in; infinite if there is none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    found = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers:
            found += [_quota_v2(folder) for folder in _folders(root, ("", "unified"), path)]
        elif "cpu" in names:
            mounts = ("cpu", controllers, ",".join(reversed(names)))
            found += [_quota_v1(folder) for folder in _folders(root, mounts, path)]
    return min(found)


def _folders(root: Path, mounts: Sequence[str], path: str) -> Iterator[Path]:
    """The folders of a control group and of those above it. Inside a container, only the upper ones may exist."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for mount in mounts:
        for count in range(len(parts), -1, -1):
            yield (root / "sys/fs/cgroup" / mount).joinpath(*parts[:count])


def _quota_v2(folder: Path) -> float:
    words = _read(folder / "cpu.max").split()  # "200000 100000": microseconds per period, or "max 100000"
    return _divide(words[0], words[1]) if len(words) == 2 else math.inf


def _quota_v1(folder: Path) -> float:
    return _divide(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))  # the quota -1: none


def _divide(quota: str, period: str) -> float:
    numbers = quota.strip(), period.strip()
    if not all(number.isdecimal() and int(number) for number in numbers):
        return math.inf
    return int(numbers[0]) / int(numbers[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# ---------------------------------------------------------------------- cores that are free


@dataclass(frozen=True)
class Use:
    """CPU seconds until a moment: of all programs on the cores of this process, and of this process alone."""

    moment: float
    everyone: float
    own: float

    def others_since(self, before: "Use") -> float:
        """The mean number of cores that other programs have used since."""
        spent = (self.everyone - before.everyone) - max(0.0, self.own - before.own)
        return max(0.0, spent / (self.moment - before.moment))


_before: Use | None = None
_free: int | None = None


def watch_cores() -> None:
    """Start to measure how busy the cores are, unless it has been started before."""
    global _before
    if _before is None:
        _before = measure_use()


def free_cores() -> int:
    """The number of usable cores that no other program has used since the last measurement; all if there is none.

    A measurement costs no waiting: it is the difference of two readings, made at least `WINDOW` seconds apart. Until
    then, the last result holds. The load of this process does not count.
    """
    global _before, _free
    watch_cores()
    assert _before is not None
    if time.monotonic() - _before.moment >= WINDOW:
        now = measure_use()
        _before, others = now, now.others_since(_before)
        _free = max(0, min(usable_cores(), math.floor(_affinity() - others + TOLERATED)))
    return usable_cores() if _free is None else _free


def measure_use() -> Use:
    """Read the counters of the system. A core that the host of a virtual machine takes away counts as used."""
    import psutil

    cores = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        cores = [times for number, times in enumerate(cores) if number in os.sched_getaffinity(0)] or cores
    # On Linux, the time of guests is part of "user" and "nice".
    unused = ("idle", "iowait", "guest", "guest_nice")
    everyone = sum(value for times in cores for name, value in times._asdict().items() if name not in unused)
    return Use(time.monotonic(), everyone, time.process_time())
