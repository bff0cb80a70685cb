"""Scores on held-out data: after each epoch of a run, and to compare the members of a search. On request also on dev
after each epoch."""

import math
import time

import numpy as np
import torch

from bertvision.data.packing import fill_batches
from bertvision.encoder.states import Part
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import Collector, compute_outputs, put_in_order
from bertvision.pipeline.states import States
from bertvision.sources import MemorySource
from bertvision.training.stack import Member

ROWS = 1024  # windows per batch when the states are in memory


class Outputs:
    """Computes what members that are still training output for a split. Its states are held in memory if they are
    small."""

    def __init__(self, states: States, keep: tuple[Part, ...], split: str, towers: bool = False) -> None:
        self.job, self.encoder, self.split = states.job, states.encoder, split
        self.kept = states.keep(keep, split, towers=towers)

    def of(self, members: list[Member]) -> dict[str, np.ndarray]:
        """Name → raw outputs (token or window, output); on the main process only."""
        for member in members:
            member.head.eval()
        outputs = self._kept_outputs(members) if self.kept is not None else self._streamed_outputs(members)
        for member in members:
            member.head.train()
        return outputs

    def _kept_outputs(self, members: list[Member]) -> dict[str, np.ndarray]:
        assert self.kept is not None
        features = self.job.features(self.split)
        plan = fill_batches(features.lengths, np.arange(len(features)), rows=ROWS)
        found = Collector()
        for batch in MemorySource(self.kept, features, plan).batches():
            with torch.no_grad():  # each (window, output)
                found.add(batch.windows, [member.head(batch.states) for member in members])
        return put_in_order(found.fetch(), [member.name for member in members], features, self.job.task.kind)

    def _streamed_outputs(self, members: list[Member]) -> dict[str, np.ndarray]:
        job, features = self.job, self.job.features(self.split)
        heads = {member.name: member.head for member in members}
        return compute_outputs(self.encoder, heads, features, job.task.kind, job.machine, job.encode_tokens)


class HeldOut:
    """Scores members on the held-out examples."""

    def __init__(self, states: States, keep: tuple[Part, ...], metric: str, towers: bool = False) -> None:
        self.job, self.metric = states.job, metric
        self.outputs = Outputs(states, keep, HELD_OUT, towers)

    def score(self, members: list[Member]) -> dict[str, float]:
        """Return name → score in percent, NaN if a head's outputs are NaN or infinite. All processes get the scores of
        the main process."""
        if not members:
            return {}
        outputs, machine = self.outputs.of(members), self.job.machine
        return machine.first(
            lambda: {name: score_held_out(self.job, found, self.metric) for name, found in outputs.items()}
        )


def score_held_out(job: Job, outputs: np.ndarray, metric: str) -> float:
    """The score of a model's outputs; if the task has a threshold, at the best one for this data, which predictions
    will use as well. NaN if the outputs are NaN or infinite."""
    if not np.isfinite(outputs).all():
        return math.nan
    task, examples = job.task, job.examples(HELD_OUT)
    # Only the best answer is scored.
    results = task.kind.example_results(job.decode(outputs, HELD_OUT, n_best=1), examples)
    threshold = task.kind.pick_threshold(results, job.config.evaluate.unanswerable)
    scores = task.kind.score(task.metrics, results, threshold)
    return float(scores.get("at_threshold", scores)[metric])


def score_dev(job: Job, outputs: np.ndarray, split: str) -> dict[str, float | None]:
    """The task's metrics of a model's outputs; spans at threshold 0. None if the outputs are NaN or infinite."""
    task, examples = job.task, job.examples(split)
    if not np.isfinite(outputs).all():
        return dict.fromkeys(task.metrics)
    scores = task.kind.score(task.metrics, task.kind.example_results(job.decode(outputs, split, n_best=1), examples))
    return {metric: round(float(scores[metric]), 4) for metric in task.metrics}


class EachEpoch:
    """A `training.train.Judge` that drops no member: it logs the members' scores at the end of each epoch."""

    def __init__(
        self,
        job: Job,
        held_out: HeldOut | None,
        dev: list[Outputs],
        snapshot: float,
        members: list[Member],
        steps: list[np.ndarray],
    ) -> None:
        """`steps` are the windows of each step of the pass. After the last epoch, only its seconds are logged (`end`);
        the scoring stage covers the rest. `dev` scores are for reports only."""
        self.job, self.held_out, self.dev, self.snapshot = job, held_out, dev, snapshot
        self.ends = {member.name: _epoch_ends(member, steps) for member in members}
        self.steps = {step for ends in self.ends.values() for step in ends}
        self.dev_seconds = 0.0
        """What scoring dev took, which is no part of the training."""
        self.started = time.monotonic()

    def is_due(self, step: int) -> bool:
        return step in self.steps

    def drop(self, step: int, members: list[Member]) -> list[Member]:
        seconds = time.monotonic() - self.started
        due = [member for member in members if step in self.ends[member.name]]
        scores = self.held_out.score(due) if self.held_out is not None else {}
        before = time.monotonic()
        dev = self._score_dev(due)
        self.dev_seconds += time.monotonic() - before
        for member in due if self.job.machine.is_main else ():
            score = scores.get(member.name, math.nan)
            self.job.folder.log(
                "epoch",
                snapshot=self.snapshot,
                head=member.name,
                epoch=self.ends[member.name].index(step) + 1,
                held_out=None if math.isnan(score) else round(score, 4),
                seconds=round(seconds, 4),
                **({"dev": dev[member.name]} if dev else {}),
            )
        self.started = time.monotonic()
        return []

    def _score_dev(self, members: list[Member]) -> dict[str, dict[str, dict[str, float | None]]]:
        """Name → dev split → metric → score; on the main process only."""
        found: dict[str, dict[str, dict[str, float | None]]] = {}
        for outputs in self.dev if members else ():
            for name, raw in outputs.of(members).items():
                found.setdefault(name, {})[outputs.split] = score_dev(self.job, raw, outputs.split)
        return found

    def end(self) -> None:
        """Log what the last epoch took."""
        if self.job.machine.is_main:
            epochs = {name: len(ends) + 1 for name, ends in self.ends.items()}
            seconds = round(time.monotonic() - self.started, 4)
            self.job.folder.log("last_epoch", snapshot=self.snapshot, epochs=epochs, seconds=seconds)


def _epoch_ends(member: Member, steps: list[np.ndarray]) -> list[int]:
    """The steps of the pass after which a member has finished each of its epochs, without the last."""
    seen = np.cumsum([len(steps[step]) for step in member.steps])  # (step)
    whole = [seen[-1] * epoch // member.config.epochs for epoch in range(1, member.config.epochs)]
    return [member.steps[int(np.searchsorted(seen, count))] + 1 for count in whole]
