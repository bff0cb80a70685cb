"""Checkpoints of work under way: safetensors and JSON, written whole or not at all, only the newest kept. Interrupts
wait until a step is whole, so that what is kept is a state that training can go on from."""

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from bertvision.disk import write_json, writing_folder


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Checkpoints:
    """One folder of checkpoints of one piece of work, known by its stamp; those of other settings are dropped."""

    def __init__(self, folder: Path, stamp: str, seconds: float) -> None:
        self.folder, self.stamp, self.seconds = folder, stamp, seconds
        self.saved_at = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.seconds

    def skip(self) -> None:
        """For a process that does not write: another one has saved, and the clock starts again."""
        self.saved_at = time.monotonic()

    def save(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        saved = self.folder / f"step_{step:09d}"
        with writing_folder(saved) as fresh:
            save_file(
                {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, fresh / "state.safetensors"
            )
            write_json(fresh / "facts.json", {"stamp": self.stamp, "step": step, **facts})
        for older in self.folder.glob("step_*"):
            if older != saved:
                shutil.rmtree(older, ignore_errors=True)
        self.saved_at = time.monotonic()

    def load(self) -> Checkpoint | None:
        """The newest checkpoint of this very work, or None."""
        found = self._newest()
        if found is None:
            return None
        saved, facts = found
        return Checkpoint(facts["step"], load_file(saved / "state.safetensors"), facts)

    def is_there(self) -> bool:
        """Whether this very work was begun before."""
        return self._newest() is not None

    def _newest(self) -> tuple[Path, dict[str, Any]] | None:
        for saved in sorted(self.folder.glob("step_*"), reverse=True):
            facts = json.loads((saved / "facts.json").read_text(encoding="utf-8"))
            if facts["stamp"] == self.stamp:
                return saved, facts
        return None

    def clear(self) -> None:
        """Forgets all: the work is done, or begins anew."""
        shutil.rmtree(self.folder, ignore_errors=True)


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `add_prefix` put under a prefix."""
    start = prefix + "/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


@contextmanager
def held_interrupts() -> Iterator[list[int]]:
    """Inside, the first interrupt is only noted in the list that is given; a second one raises at once.

    The loop looks at the list after each step, keeps its state and raises KeyboardInterrupt.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread gets signals
        return

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
