"""Six heads in one pass of the encoder against six passes with one head each: seconds and ratio, in one run.

    python benchmarks/one_pass.py [--questions 300] [--encoder embedded] [--rounds 3]

The peer is what one does without sets of heads: the same loop, called once a head, the encoder running each time.
Rounds alternate between the two, and the median of each is shown. The last column is the largest difference between a
head's weights in the set and alone.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bertvision.config import TrainConfig
from bertvision.data.packing import plan_batches
from bertvision.data.windows import build_features
from bertvision.encoder.loading import load_encoder
from bertvision.heads import Target, build_head, build_members
from bertvision.heads.members import MemberConfig
from bertvision.machine import Machine
from bertvision.progress import Reporter
from bertvision.sources import StreamedSource
from bertvision.tasks import TargetKind, TaskConfig, build_task
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.heads import Member, train_heads

HEADS = [
    "last_linear",
    "learned_pooling",
    "average_pooling",
    {"head": "adapter", "size": 64},
    {"head": "adapter", "size": 64, "skip": True},
    "pooled_adapter",
]


class Bench:
    def __init__(self, encoder: str, questions: int) -> None:
        self.machine = Machine()
        self.encoder = load_encoder(encoder, self.machine.device, self.machine.dtype).requires_grad_(False)
        task = build_task(TaskConfig("demo", train_questions=questions))
        tokenizer = self.encoder.tokenizer
        assert tokenizer is not None
        self.features = build_features(task.read("train"), tokenizer, task.kind, task.windowed, task.max_length)
        self.plan = plan_batches(self.features.lengths, 1, 0, rows=16)
        train = TrainConfig(epochs=1, batch_rows=16)
        self.configs = build_members(HEADS, train, 0, TargetKind.SPAN)

    def train(self, configs: list[MemberConfig]) -> tuple[float, list[Member]]:
        """Seconds of one pass with these heads, and the trained heads."""
        target = Target(TargetKind.SPAN)
        members = [
            Member(config, build_head(config, self.encoder.shape, target).to(self.machine.device), self.plan.steps)
            for config in configs
        ]
        steps = self.plan.epochs[0]
        source = StreamedSource(self.encoder, self.features, steps, ("tokens",))
        tokens = [int(self.features.lengths[batch].sum()) for batch in steps]
        with tempfile.TemporaryDirectory() as folder:
            never = Checkpoints(Path(folder), "", seconds=np.inf)
            self._finish()
            started = time.monotonic()
            train_heads(members, source, tokens.__getitem__, self.machine, never, _nowhere, Reporter())
            self._finish()
        return time.monotonic() - started, members

    def _finish(self) -> None:
        if self.machine.device.type == "cuda":
            torch.cuda.synchronize()


def _nowhere(*_: object, **__: object) -> None:
    """Metrics are not kept here."""


def largest_difference(one: Member, other: Member) -> float:
    pairs = zip(one.head.parameters(), other.head.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    bench = Bench(options.encoder, options.questions)
    together_seconds, alone_seconds = [], []
    for _ in range(options.rounds):
        seconds, together = bench.train(bench.configs)
        together_seconds.append(seconds)
        alone = [bench.train([config]) for config in bench.configs]
        alone_seconds.append(sum(seconds for seconds, _ in alone))
        differences = [largest_difference(one, other[0]) for one, (_, other) in zip(together, alone, strict=True)]
    one_pass, passes = statistics.median(together_seconds), statistics.median(alone_seconds)
    tokens = int(bench.features.lengths.sum())
    table = Table(title=f"{len(HEADS)} span heads, {tokens:,} tokens, {options.encoder}, {bench.machine.describe()}")
    for column in ("how", "seconds", "tokens a second", "ratio", "largest difference in weights"):
        table.add_column(column, justify="left" if column == "how" else "right")
    count = len(HEADS)
    table.add_row(f"{count} passes, one head each", f"{passes:.2f}", f"{tokens * count / passes:,.0f}", "1", "")
    table.add_row(
        f"one pass, {count} heads", f"{one_pass:.2f}", f"{tokens / one_pass:,.0f}", f"{passes / one_pass:.2f} ×",
        f"{max(differences):.2g}",
    )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
