"""Task: where texts and targets come from. Nothing here depends on tokens, tensors or heads.

task.read("train") → [Example, …]      task.dev_splits → ("dev",), or two for MNLI
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bertvision.data.examples import Example
from bertvision.errors import UserError
from bertvision.kinds import Kind

MLP = {"head": "mlp", "lr": 1e-3, "epochs": 20, "dropout": 0.5, "name": "mlp"}
ATTENTIVE = {"head": "attentive", "lr": 2e-3, "epochs": 3, "name": "attentive"}
TEXT_HEADS = ("linear", "linear_deviation", MLP, ATTENTIVE)
PAIR_HEADS = ("linear_cosines", "linear_towers", {**MLP, "head": "mlp_towers", "name": "mlp_towers"}, "linear")
AVERAGE = {"best": 3, "method": "mean", "name": "average"}


@dataclass(frozen=True)
class Recipe:
    """Defaults of a task for settings that the config leaves out."""

    epochs: float = 0.0
    """Epochs of fine-tuning, for a config that sets nothing in [finetune]."""
    heads: tuple[Any, ...] = TEXT_HEADS
    ensembles: tuple[Any, ...] = (AVERAGE,)
    """For a config without heads."""
    lr: float = 2e-5
    """Learning rate of fine-tuning."""
    batch_rows: int = 16
    """Windows per fine-tuning step."""
    head_epochs: int = 10
    """Epochs of head training."""
    head_batch_rows: int = 64
    """Windows per step of head training."""


# Questions on passages, as in the papers.
PASSAGES = Recipe(epochs=1.0, heads=("learned_pooling", "adapter"), ensembles=())
SPAN_RECIPE = replace(PASSAGES, head_epochs=1, head_batch_rows=16)


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """The facts about a task that do not depend on its data."""

    name: str
    what: str
    kind: Kind | None = None
    """None: the config decides."""
    metrics: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Names in index order."""
    max_length: int = 128
    hub: str | None = None
    windowed: bool = False
    """Whether long passages are cut into overlapping windows."""
    recipe: Recipe = Recipe()

    @property
    def takes_pairs(self) -> bool:
        """Whether an example has two texts, each of which can be read alone."""
        return False


@dataclass(frozen=True)
class Task:
    name: str
    kind: Kind
    metrics: tuple[str, ...]
    """Names in `evaluation.metrics`; models are chosen by the first."""
    readers: Mapping[str, Callable[[], Sequence[Example]]] = field(repr=False)
    """A reader for each split that exists: "train", "dev" (MNLI: "dev_matched", "dev_mismatched"), "test" …"""
    labels: tuple[str, ...] = ()
    windowed: bool = False
    """Whether a long `text_pair` is cut into overlapping windows; if not, it is truncated."""
    max_length: int = 128
    """Default number of tokens per window."""
    source: str = ""
    """Description of where the data came from, for the run folder."""
    takes_pairs: bool = False
    """Whether an example has two texts, or a question and a passage."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.readers)

    @property
    def dev_splits(self) -> tuple[str, ...]:
        return tuple(name for name in self.readers if name.startswith("dev"))

    def read(self, split: str) -> Sequence[Example]:
        """All examples of a split, in file order, with unique ids. Those of a long table are on disk."""
        if split not in self.readers:
            available = ", ".join(self.readers) or "none"
            raise UserError(f"{self.name} has no split '{split}' in {self.source or 'its data'}: it has {available}.")
        return self.readers[split]()


def check_unique_ids(read: Callable[[], Iterable[str]], where: str) -> None:
    """Raise a UserError that names repeated ids. They are read again if there are any: only a number of 8 bytes is kept
    of each."""
    codes = np.fromiter(map(hash, read()), dtype=np.int64)  # (id,)
    codes.sort()
    again = set(codes[1:][codes[1:] == codes[:-1]].tolist())
    if not again:
        return
    counts = Counter(identity for identity in read() if hash(identity) in again)
    repeated = [identity for identity, count in counts.items() if count > 1]
    if repeated:
        more = f" and {len(repeated) - 5} more" if len(repeated) > 5 else ""
        raise UserError(
            f"{where}: ids must be unique, but these occur more than once: {', '.join(repeated[:5])}{more}. "
            "Rename or remove the duplicates."
        )
