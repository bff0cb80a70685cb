"""Solve the convex heads of a run. Their states are in memory; held-out data chooses the strength of the penalty.

Where memory can't hold the states of all windows, convex heads learn from a part: half of them, a quarter, …
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads.linear import LinearHead
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.states import States, fits_in_memory, parts_read
from bertvision.sources import MemorySource, MemoryStates, Source
from bertvision.training.convex import TOLERANCE, Linear, LogisticRegression, fit_ridge
from bertvision.training.stack import Member
from bertvision.training.strengths import ROUGHLY, SCORE_STEPS, search_path, strength_at

LEAST_ROWS = 64
"""Fewer are not worth learning from."""


def solve_members(states: States, members: list[Member], source: Source, steps: list[np.ndarray]) -> None:
    """Solve the convex members. `steps` are the windows of each step of the pass, of which a member may read a part."""
    job, keep, towers = states.job, parts_read([member.head for member in members]), members[0].head.towers
    judges = bool(job.examples(HELD_OUT)) and any(member.head.config.strength is None for member in members)
    whole = _Rows(source.memory, np.arange(len(job.features("train")))) if isinstance(source, MemorySource) else None
    loaded: dict[tuple[Part, ...], tuple[_Rows, MemoryStates | None]] = {}
    with job.reporter.bar("solving convex heads", len(members), "heads") as bar:
        for member in sorted(members, key=lambda one: parts_read([one.head])):
            # A head's result must not depend on what other heads read, so each is limited by its own states.
            wanted = keep if whole is not None else parts_read([member.head])
            if wanted not in loaded:
                loaded.clear()  # memory holds the states of one reading at a time
                train = whole or _draw_rows(states, member.name, wanted, towers, steps)
                loaded[wanted] = train, states.keep(wanted, HELD_OUT, towers=towers) if judges else None
            train, held = loaded[wanted]
            own = np.unique(np.concatenate([steps[step] for step in member.steps]))  # (window)
            rows = np.flatnonzero(np.isin(train.windows, own))  # (row)
            strength = _solve(states, member, train, rows, held)
            member.taken = len(member.steps)
            if job.machine.is_main:
                facts = {"strength": strength, "windows": len(rows)}
                job.folder.log("solved", snapshot=states.epochs, head=member.name, **facts)
            bar.advance(1)


@dataclass(frozen=True)
class _Rows:
    """States in memory, and the windows of the training set that they belong to."""

    memory: MemoryStates
    windows: np.ndarray  # (row)


def _draw_rows(states: States, name: str, keep: tuple[Part, ...], towers: bool, steps: list[np.ndarray]) -> _Rows:
    """The first windows of the pass, as many as fit: memory holds half of the training set, or a quarter, …

    Halving makes the number depend little on what else is in memory, so that a resumed run nearly always gets the same
    windows."""
    job, features = states.job, states.job.features("train")
    passed = np.concatenate(steps)  # (window)
    order = passed[np.sort(np.unique(passed, return_index=True)[1])]  # (window) in the order of the first epoch
    count = len(order)
    while job.machine.agree(not fits_in_memory(job, states.encoder, keep, count * (2 if towers else 1)))[0]:
        count //= 2
    if count < LEAST_ROWS:
        raise UserError(
            f"head '{name}' is solved on states in memory, but not even those of {LEAST_ROWS:,} windows fit: free some "
            "memory, or leave the head out."
        )
    if count < len(order):
        job.reporter.say(
            f"convex heads learn from {count:,} of {len(order):,} windows: memory can't hold the states of more."
        )
    windows = np.sort(order[:count])  # (row)
    some = features.take(windows)
    with job.reporter.bar("encoding for convex heads", int(some.lengths.sum()), "tokens") as bar:
        alone = some.towers if towers else None
        memory = MemoryStates.encode(states.encoder, some, keep, job.encode_tokens, bar, alone, job.machine)
    return _Rows(memory, windows)


def _solve(states: States, member: Member, train: _Rows, rows: np.ndarray, held: MemoryStates | None) -> float:
    """Solve one member on some rows, and return the strength of its penalty."""
    head, job = member.head, states.job
    assert isinstance(head, LinearHead)
    inputs = _inputs(head, train.memory, rows)  # (row, input)
    targets = _targets(states, "train", head)[torch.from_numpy(train.windows[rows]).to(inputs.device)]  # (row)
    own, size = head.config.strength, inputs.shape[1]
    judged = None if held is None else (_inputs(head, held), _targets(states, HELD_OUT, head))
    fit, strength = _Solver(inputs, targets, job.target.labels).solve(own, judged, size)
    with torch.no_grad():
        head.output.weight.copy_(fit.weight[0].T)
        head.output.bias.copy_(fit.bias[0])
    return strength


class _Solver:
    def __init__(self, inputs: Tensor, targets: Tensor, labels: int) -> None:
        self.inputs, self.targets, self.labels = inputs, targets, labels
        self.weights = inputs.new_ones(1, len(inputs))  # (1, row)
        self.data = LogisticRegression(inputs, targets, labels, self.weights) if labels else None
        self.known: dict[int, Linear] = {}

    def solve(self, strength: float | None, judged: tuple[Tensor, Tensor] | None, size: int) -> tuple[Linear, float]:
        """The fit at a strength or, if it is None, at the best one for the judged inputs and targets."""
        if strength is not None or judged is None:
            strength = strength or strength_at(0, size)
            return self.fit(strength, None, TOLERANCE), strength
        if self.labels:
            best, _ = search_path(lambda step: self._judge(step, judged, size))
        else:
            losses = {step: self._judge(step, judged, size) for step in SCORE_STEPS}
            best = min(losses, key=lambda step: losses[step])
        return self.fit(strength_at(best, size), self.known[best], TOLERANCE), strength_at(best, size)

    def fit(self, strength: float, start: Linear | None, tolerance: float) -> Linear:
        if self.data is not None:
            return self.data.fit(strength, start, tolerance)
        return fit_ridge(self.inputs, self.targets.unsqueeze(1), [strength], self.weights)[0]

    def _judge(self, step: int, judged: tuple[Tensor, Tensor], size: int) -> float:
        near = self.known.get(step - 1) or self.known.get(step + 1)
        self.known[step] = self.fit(strength_at(step, size), near, ROUGHLY)
        inputs, targets = judged
        outputs = self.known[step](inputs)[0]  # (row, output)
        if self.labels:
            return float(functional.cross_entropy(outputs, targets))
        return float((outputs[:, 0] - targets).square().mean())


def _inputs(head: LinearHead, memory: MemoryStates, windows: np.ndarray | None = None) -> Tensor:
    """(window, input) of some windows, or of all."""
    device = next(iter(memory.parts.values())).device
    return memory.map(head.inputs, None if windows is None else torch.from_numpy(windows).to(device))


def _targets(states: States, split: str, head: LinearHead) -> Tensor:
    found = torch.from_numpy(states.job.features(split).target)  # (window)
    return found.to(head.output.weight.device, torch.long if states.job.target.labels else torch.float32)
