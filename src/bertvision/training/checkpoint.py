"""Checkpoints for resuming training: safetensors and JSON, written atomically; only the newest is kept. Interrupts are
held back until a step is complete, so that every checkpoint is a consistent state."""

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

from msgspec import Meta
from safetensors.torch import save_file
from torch import Tensor

from bertvision.disk import DamagedError, Stamp, check_files, load_tensors, mark_done, read_stamp, writing_folder
from bertvision.disk.forms import Count, Seconds
from bertvision.interrupts import SIGNALS, interruption


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, Tensor]
    facts: "CheckpointStamp"


class CheckpointStamp(Stamp):
    """What a checkpoint says besides its tensors, of fine-tuning or of training heads."""

    step: Annotated[int, Meta(ge=0, le=10**12)]
    seconds: Seconds
    tokens: NotRequired[Count]
    memory_tokens: NotRequired[Annotated[int, Meta(ge=1, le=10**12)]]
    failed: NotRequired[list[str]]
    dropped: NotRequired[list[str]]


class Checkpoints:
    """The checkpoint folder of one training stage. Checkpoints with another stamp (other settings) are ignored."""

    def __init__(self, folder: Path, stamp: str, seconds: float) -> None:
        self.folder, self.stamp, self.seconds = folder, stamp, seconds
        self.saved_at = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.seconds

    def skip(self) -> None:
        """Reset the timer in a process that does not write, after the main process has saved."""
        self.saved_at = time.monotonic()

    def save(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        saved = self.folder / f"step_{step:09d}"
        with writing_folder(saved) as fresh:
            save_file(
                {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, fresh / "state.safetensors"
            )
            mark_done(fresh, self.stamp, step=step, **facts)
        for older in self.folder.glob("step_*"):
            if older != saved:
                shutil.rmtree(older, ignore_errors=True)
        self.saved_at = time.monotonic()

    def load(self) -> Checkpoint | None:
        """Load the newest checkpoint with this stamp, or return None."""
        found = self._newest()
        if found is None:
            return None
        saved, facts = found
        return Checkpoint(facts["step"], load_tensors(saved / "state.safetensors"), facts)

    def is_there(self) -> bool:
        """Whether a checkpoint with this stamp exists."""
        return self._newest() is not None

    def _newest(self) -> tuple[Path, CheckpointStamp] | None:
        for saved in sorted(self.folder.glob("step_*"), reverse=True):
            with contextlib.suppress(DamagedError):  # the work since the last one is done again
                facts = read_stamp(saved, CheckpointStamp)
                if facts is not None and facts["stamp"] == self.stamp:
                    check_files(saved)
                    return saved, facts
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `add_prefix` put under this prefix, with their original names."""
    start = prefix + "/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


@contextmanager
def held_interrupts() -> Iterator[list[int]]:
    """Inside this context, the first signal to end is only added to the yielded list; a second one raises at once.

    The training loop checks the list after each step, saves a checkpoint and raises `interruption(*list)`. A signal
    that comes after its last check is raised at the end of the context.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread receives signals
        return

    def note(number: int, frame: Any) -> None:
        if received:
            raise interruption(number)
        received.append(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    held = [number for number in SIGNALS if before[number] not in (signal.SIG_IGN, None)]
    try:
        for number in held:
            signal.signal(number, note)
        yield received
    finally:
        for number in held:
            signal.signal(number, before[number])
    if received:
        raise interruption(*received)
