"""Device, precision and processes, through accelerate: the same code runs on a laptop, on many GPUs and on several
machines (`torchrun`, `accelerate launch`).

`describe_environment` is saved in every run folder.
"""

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import InitProcessGroupKwargs

from bertvision import threads
from bertvision.disk import clear_disk_errors, temporary
from bertvision.errors import UserError
from bertvision.progress import Reporter
from bertvision.tables import counted
from bertvision.threads import Threads

Found = TypeVar("Found")

# Linux records the peak memory of a process, and allows resetting it.
PEAK_STATUS, PEAK_RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")

PACKAGES = (
    *("bertvision", "torch", "transformers", "tokenizers", "accelerate", "safetensors"),
    *("numpy", "scikit-learn", "scipy"),
)
PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others. The main process alone scores and saves, which can take minutes."""
CROWDED = 1.5
"""Load per core above which a machine counts as busy; our own threads make up a load of one per core."""


class LostProcessError(UserError):
    """Another process of the launch has ended or does not answer."""


class Machine:
    """The device of this process, and communication with the other processes of a launch."""

    def __init__(
        self,
        device: str = "auto",
        dtype: str = "auto",
        track: str | None = None,
        folder: Path | None = None,
        record: bool = True,
        shares: bool = False,
    ) -> None:
        """`shares`: whether the processes of a launch divide the work. Otherwise each has work of its own."""
        if track and track not in {str(getattr(found, "value", found)) for found in get_available_trackers()}:
            raise UserError(f"finetune.track = '{track}' needs the package {track}: pip install {track}.")
        self.shares = shares
        several = shares and int(os.environ.get("WORLD_SIZE") or 1) > 1
        with _together() if several else contextlib.nullcontext():
            self.accelerator = Accelerator(
                cpu=several and _is_on_cpu(device),
                log_with=track,
                project_dir=str(folder) if folder else None,
                kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
            )
        self.device = self.accelerator.device if device == "auto" else _explicit_device(device)
        self.dtype = _choose_dtype(self.device, dtype)
        self.threads = limit_threads()
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)  # graphs are recorded on the current one
        # Several processes sum their gradients between the parts of a step, so their steps are not recorded.
        on_cuda = self.device.type == "cuda" and torch.version.hip is None
        self.records = record and on_cuda and self.processes == 1
        """Whether small steps are recorded and replayed (`encoder/recording.py`)."""

    @property
    def rank(self) -> int:
        return self.accelerator.process_index if self.shares else 0

    @property
    def processes(self) -> int:
        return self.accelerator.num_processes if self.shares else 1

    @property
    def neighbours(self) -> int:
        """How many processes of the launch share the memory of this machine, with this one."""
        return min(self.processes, int(os.environ.get("LOCAL_WORLD_SIZE") or self.processes))

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.processes > 1:
            with _together():
                self.accelerator.wait_for_everyone()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Half-precision arithmetic on float32 weights if the dtype is half precision, else nothing."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum the gradients of all processes. Each process saw its own windows of the batch."""
        if self.processes == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        used = torch.tensor([float(p.grad is not None) for p in parameters], device=gradients[0].device)  # (parameter)
        flat = torch.cat([used, *(gradient.flatten() for gradient in gradients)])  # (parameter + weight)
        used, *parts = self._reduce(flat, "sum").split([len(used), *(p.numel() for p in parameters)])
        for parameter, part, count in zip(parameters, parts, used.tolist(), strict=True):
            # A parameter that no process used (the pooler, for spans) gets none: with zeros it would still decay.
            parameter.grad = part.view_as(parameter) if count else None

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its mean over all processes."""
        if self.processes > 1:
            for tensor in tensors:
                tensor.copy_(self._reduce(tensor, "mean"))

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        """Each number summed over all processes."""
        if self.processes == 1:
            return numbers
        mine = torch.tensor(numbers, dtype=torch.float64, device=self.accelerator.device)  # (number)
        summed: list[float] = self.sum_tensor(mine).tolist()
        return summed

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor summed over all processes."""
        return tensor if self.processes == 1 else self._reduce(tensor, "sum")

    def _reduce(self, tensor: torch.Tensor, how: str) -> torch.Tensor:
        with _together():
            found: torch.Tensor = self.accelerator.reduce(tensor, how)
        return found

    def agree(self, *wishes: bool) -> list[bool]:
        """For each flag, whether any process sets it. Clocks and signals differ, but all processes must act alike."""
        return [votes > 0 for votes in self.sum_numbers([float(wish) for wish in wishes])]

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all processes, on every process."""
        if self.processes == 1:
            return items
        from accelerate.utils import gather_object

        with _together():
            return gather_object(items)

    def first(self, find: Callable[[], Found]) -> Found:
        """What the main process finds, on every process. Clocks, and caches of shared disks, differ."""
        return self.gather([find()] if self.is_main else [])[0]

    def check_shared(self, folder: Path) -> None:
        """Raise UserError if a folder is not the same one for all processes: they may be on several machines."""
        if self.processes == 1:
            return
        probe = folder / self.first(lambda: f"{temporary(Path('shared'))}{secrets.token_hex(8)}")
        if self.is_main:
            with clear_disk_errors(folder):
                probe.touch()
        self.wait()
        (is_missing,) = self.agree(not probe.exists())
        if self.is_main:
            probe.unlink(missing_ok=True)
        if is_missing:
            raise UserError(
                f"run = '{folder}' is not the same folder for all {self.processes} processes: set `run` to the full "
                "path of a folder on a disk that all machines share."
            )

    def watch_memory(self) -> None:
        """Reset the peak that `peak_memory` reports."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif PEAK_RESET.exists():
            with contextlib.suppress(OSError):  # not permitted: the peak is then the one since the process started
                PEAK_RESET.write_text("5")

    def peak_memory(self) -> int:
        """Peak memory since `watch_memory`, in bytes: of the GPU, or of the process."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        if PEAK_STATUS.exists():
            found = re.search(r"VmHWM:\s+(\d+) kB", PEAK_STATUS.read_text())
            if found:
                return int(found[1]) * 1024
        return psutil.Process().memory_info().rss

    def describe(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        many = f", {self.processes} processes" if self.processes > 1 else ""
        return f"{name}, {str(self.dtype).removeprefix('torch.')}{many}"


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """What all processes do together. Raise LostProcessError if it fails because of another one."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of every library for communication: a closed connection, or no answer in time
        minutes = counted(round(PATIENCE.total_seconds() / 60), "minute")
        reason = re.sub(r"^\[\S*\] ", "", str(error)).split("\n")[0].strip(" .")[:120]
        raise LostProcessError(
            f"another process of this launch has ended, or has not answered for {minutes} ({reason}); its own message "
            "may say why. Finished work is saved: run the same command again to resume."
        ) from error


def _is_on_cpu(device: str) -> bool:
    """Whether several processes run on CPUs. Their communication needs to be told so."""
    return device.startswith("cpu") or not torch.accelerator.is_available() or torch.backends.mps.is_available()


def _explicit_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0][:80]
        raise UserError(
            f"encoder.device = '{name}' can't be used on this machine ({reason}): try 'auto' or 'cpu'."
        ) from None
    return device


def _choose_dtype(device: torch.device, name: str) -> torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name != "auto":
        if name not in known:
            raise UserError(f"dtype is '{name}': choose from auto, {' or '.join(known)}.")
        return known[name]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16
    return torch.float32


@contextlib.contextmanager
def drawing_from(device: torch.device, *seeds: int) -> Iterator[None]:
    """Random draws inside depend only on these seeds, and leave the global generator unchanged."""
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every device
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@functools.cache
def limit_threads() -> Threads:
    """Limit torch to the cores that this process may use. Done once per process; the user's own number wins.

    The number does not depend on the load of the machine, because everything that a run saves must be reproducible:
    with another number of threads, fine-tuning ends with other last bits.
    """
    chosen = threads.choose_threads(torch.get_num_threads())
    if chosen.number != torch.get_num_threads():
        torch.set_num_threads(chosen.number)
    threads.watch_cores()
    return chosen


@contextlib.contextmanager
def sharing_cores(tokens: int = 0, reporter: Reporter | None = None) -> Iterator[Threads]:
    """Use only the free cores inside, for a pass over so many tokens of new text (`threads.choose_free_threads`).

    A number of threads set by the user (OMP_NUM_THREADS, torch.set_num_threads) is respected. For prediction only:
    training must not depend on the load of the machine.
    """
    limit, before = limit_threads(), torch.get_num_threads()
    if before != limit.number:
        limit = Threads(before, threads.IN_PROGRAM, by_user=True)
    chosen = threads.choose_free_threads(limit, tokens)
    if reporter:
        reporter.detail("threads", str(chosen))
    with using_threads(chosen.number):
        yield chosen


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Use so many of torch's threads inside."""
    before = torch.get_num_threads()
    if number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_crowded() -> bool:
    """Whether the average load of the last minute, per core, is above `CROWDED`."""
    return psutil.getloadavg()[0] > CROWDED * (psutil.cpu_count() or 1)


def describe_environment(machine: Machine) -> dict[str, Any]:
    """Versions, commit and device."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "device": machine.describe(),
        "processes": machine.processes,
        "threads": torch.get_num_threads(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Output of git in the checkout that contains this package; None if it is installed or git is missing."""
    folder = Path(__file__).resolve().parent
    if "site-packages" in folder.parts:
        return None
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
