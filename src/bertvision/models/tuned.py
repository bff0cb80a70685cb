"""Heads on an encoder that is tuned on the user's rows (`tune`): contrastive fine-tuning.

Every fold has an encoder of its own, tuned without the rows that judge it. The encoder of the model is tuned on all
rows, and only if a head on it is chosen. Heads on it have fixed settings: nothing is chosen on the judged rows.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.config import CONTRASTIVE_LR, CONTRASTIVE_ROWS, FinetuneConfig
from bertvision.data.packing import BatchPlan
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.encoder.output_layer import OutputLayer
from bertvision.encoder.reading import Reading
from bertvision.encoder.states import HiddenStates
from bertvision.errors import UserError
from bertvision.heads import build_head, count_parameters
from bertvision.heads.linear import LinearHead
from bertvision.machine import Machine
from bertvision.models.candidates import Candidate, Fitted, NoResultError, Rows, Trial, member_of, with_weights
from bertvision.models.clock import Clock
from bertvision.models.folder import TUNED, TUNED_LAST
from bertvision.models.split import Split
from bertvision.models.table_rows import encode, parts_for
from bertvision.progress import Reporter
from bertvision.tables import counted
from bertvision.tasks.base import Task
from bertvision.training.contrastive import plan_pairs
from bertvision.training.convex import Linear, LogisticRegression
from bertvision.training.finetune import Finetuning, Usage
from bertvision.training.strengths import strength_at

LEAST_STEPS, LEAST_EPOCHS, WARMUP = 40, 8, 0.2
"""Of tuning. Chosen on other draws than the reported ones (LOG.md)."""
FOLDS = 3
"""Folds of a cross-validation with tuning: each costs nearly as much as tuning the encoder of the model."""
MOST_TUNED = 2000
"""Rows that an encoder is tuned on. More would take hours on a CPU; heads on the tuned encoder read all rows."""
MOST_ROWS = 1000
"""`tune="auto"` tunes on at most so many rows. A guess: only up to 100 rows were measured (LOG.md)."""
STEP_COST = 3.0
"""Time of a step of tuning, in that of encoding its rows: a backward pass takes about as long as two forward passes."""


def wants_tuning(tune: bool | str, task: Task, rows: int) -> bool:
    """Whether a fit tunes its encoder. With "auto" it does not on pairs: both texts would be tuned as one sequence,
    which was behind two towers on an untouched encoder (LOG.md)."""
    kind = task.kind
    if tune is True and not kind.has_labels:
        raise UserError(f"tuning compares texts by their labels, but the table has a {kind}: leave out --tune (tune).")
    return tune is True or (tune == "auto" and kind.has_labels and not task.takes_pairs and rows <= MOST_ROWS)


def note_limit(rows: int) -> list[str]:
    """A note on rows that the encoder is not tuned on, if there are any."""
    note = f"Tuning reads {MOST_TUNED:,} of {rows:,} rows, as many of each label as possible. The heads read all rows."
    return [note] if rows > MOST_TUNED else []


def limit_tuned(used: Tensor, targets: Tensor, seed: int) -> Tensor:
    """The rows to tune on: all, or a draw with as many rows of each label as possible."""
    if len(used) <= MOST_TUNED:
        return used
    drawn = used[torch.from_numpy(np.random.default_rng([seed, 7]).permutation(len(used)))]  # (row)
    found = torch.zeros(len(drawn), dtype=torch.long)  # (row) how many rows of the same label come before
    for label in targets[drawn].unique():
        own = targets[drawn] == label  # (row)
        found[own] = torch.arange(int(own.sum()))
    return drawn[found.argsort(stable=True)[:MOST_TUNED]].sort().values  # (row)


def count_epochs(rows: int) -> int:
    """Epochs of tuning: few rows are read more often."""
    return max(LEAST_EPOCHS, -(-LEAST_STEPS // -(-min(rows, MOST_TUNED) // CONTRASTIVE_ROWS)))


def estimate_seconds(rows: int, encode_seconds: float) -> float:
    """How long tuning would take, with its cross-validation."""
    return count_epochs(rows) * encode_seconds * min(1.0, MOST_TUNED / max(1, rows)) * STEP_COST * FOLDS


def tuning_config(rows: int, read: Reading) -> FinetuneConfig:
    return FinetuneConfig(
        epochs=float(count_epochs(rows)), method="contrastive", snapshots=[0.0], lr=CONTRASTIVE_LR, read=read,
        schedule="linear", warmup=WARMUP, batch_rows=CONTRASTIVE_ROWS,
    )  # fmt: skip


class Tuned(NamedTuple):
    """An encoder tuned on some rows, and the states of all rows."""

    encoder: Encoder
    states: dict[str, Tensor]
    """Part → (row, layer, hidden)."""
    usage: Usage
    trained: int
    """Number of weights that were tuned."""


@dataclass
class Tuning:
    """The encoders that are tuned on the rows of a table."""

    name: str
    features: Features
    rows: Rows
    split: Split
    machine: Machine
    reporter: Reporter
    seconds: float = 0.0
    """Of tuning the encoders of the folds."""
    _folds: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def states_of(self, fold: int) -> dict[str, Tensor]:
        """The states of all rows, from an encoder tuned without those that a fold holds out."""
        if fold not in self._folds:
            found = self._tune(self.split.used(fold), f"tuning without fold {fold + 1}")
            self.seconds += found.usage.seconds
            self._folds[fold] = found.states
        return self._folds[fold]

    @cached_property
    def final(self) -> Tuned:
        """The encoder of the model, tuned on all rows."""
        try:
            return self._tune(torch.arange(len(self.rows)), "tuning on all rows")
        except NoResultError as error:
            raise UserError(f"tuning on all rows {error}: fit again without --tune (tune).") from None

    def _tune(self, used: Tensor, what: str) -> Tuned:
        rows, machine = self.rows, self.machine
        used = limit_tuned(used, rows.targets, rows.seed)
        config = tuning_config(len(used), rows.read)
        encoder = load_encoder(self.name, machine.device, torch.float32, "padded")
        encoder.take_route("auto", machine.dtype)
        draws = torch.Generator().manual_seed(rows.seed)
        output = OutputLayer(rows.kind, rows.read, encoder.shape.hidden, rows.labels, dropout=0.0, generator=draws)
        dealt = plan_pairs(rows.targets[used].numpy(), int(config.epochs), CONTRASTIVE_ROWS, rows.seed)
        plan = BatchPlan([[used.numpy()[batch] for batch in batches] for batches in dealt.epochs])
        work = Finetuning(
            encoder, output.to(machine.device), self.features, plan, rows.kind, config, rows.seed, machine,
            self.reporter,
        )  # fmt: skip
        clock, trained = Clock(None), sum(weight.numel() for weight in work.parameters)
        with self.reporter.bar(what, plan.steps, "steps") as bar:
            work.run_through(lambda _: bar.advance(1))
        usage = Usage(round(clock.lap(), 2), work.tokens, machine.peak_memory())
        encoder.eval().requires_grad_(False)
        states, _ = encode(encoder, self.features, "texts", Reporter(), parts=parts_for([rows.read]))
        if not all(part.isfinite().all() for part in states.values()):
            raise NoResultError("failed: the encoder's states became NaN or infinite")
        return Tuned(encoder, states, usage, trained)


class TunedCandidate(Candidate):
    """Logistic regression on pooled states of the tuned encoder, at a fixed strength."""

    def __init__(self, name: str, head: str, settings: dict[str, Any], tuning: Tuning) -> None:
        self.name, self.head, self.settings, self.tuning = name, head, settings, tuning

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        member = member_of(self.name, self.head, dict(self.settings), rows.seed)
        head = build_head(member, rows.shape, rows.target)
        assert isinstance(head, LinearHead)
        outputs = []
        for fold, held in enumerate(split.held):
            inputs = self._inputs(head, self.tuning.states_of(fold))  # (row, input)
            fit = self._fit(rows, inputs, split.used(fold))
            outputs.append(inputs[held] @ fit.weight[0] + fit.bias[0])  # (held-out row, output)
        spent = f"{self.tuning.seconds:.0f} s"
        note = f"each of the {counted(len(split.held), 'fold')} tuned its own encoder, {spent} in all"
        if split.how == "held_out":
            note = f"the encoder was tuned without the judged rows, {spent}"

        def refit() -> Fitted:
            inputs = self._inputs(head, self.tuning.final.states)
            return Fitted(*with_weights((head, member), self._fit(rows, inputs, torch.arange(len(rows)))))

        return Trial(
            self.name, split.join(outputs), count_parameters(head), clock.lap(), refit, "tuned", note,
            settings={"head": self.head, **self.settings},
        )  # fmt: skip

    def _inputs(self, head: LinearHead, states: dict[str, Tensor]) -> Tensor:
        parts: dict[str, Any] = {part: states[part] for part in head.reads}
        lengths = torch.ones(len(next(iter(parts.values()))), dtype=torch.int64)  # (row)
        return head.inputs(HiddenStates(lengths, **parts, pooled=head.shape.pooled))  # (row, input)

    def _fit(self, rows: Rows, inputs: Tensor, used: Tensor) -> Linear:
        weights = rows.weights[used].unsqueeze(0)  # (1, row)
        data = LogisticRegression(inputs[used], rows.targets[used], rows.labels, weights)
        return data.fit(strength_at(0, inputs.shape[1]))


def tuned_candidates(tuning: Tuning) -> list[TunedCandidate]:
    return [
        TunedCandidate(TUNED_LAST, "last_lr", {"read": tuning.rows.read}, tuning),
        TunedCandidate(f"{TUNED}linear", "linear", {"read": tuning.rows.read}, tuning),
    ]
