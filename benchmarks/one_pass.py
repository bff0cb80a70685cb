"""k heads in one pass of the encoder compared with k passes with one head each: seconds, ratio and peak memory.

    python benchmarks/one_pass.py [--questions 100] [--encoder embedded] [--members 1 5 20 50] [--only spans labels]

The peer is the same loop, called once per head, so that the encoder runs each time. All passes of the peer are alike,
so at most --peer-passes of them are run; for larger k, their mean is multiplied by k (≈). Spans: members differ in
learning rate and seed; "small" is a mixed set of heads no larger than adapter_64. Labels: [CLS] states are encoded once
and held in memory, ten epochs; members of the same shape are stacked. Memory is the peak of a process with only that
pass, minus encoder and data. The last column is the largest difference between the weights of the first member in the
set and alone.
"""

import argparse
import dataclasses
import multiprocessing
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from bertvision.config import TrainConfig
from bertvision.data.packing import plan_pass
from bertvision.data.windows import Features, build_features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.heads import MemberConfig, Target, build_head
from bertvision.kinds import LABEL, SPAN, Kind
from bertvision.machine import Machine
from bertvision.pipeline.members import build_members
from bertvision.progress import Reporter
from bertvision.sources import MemorySource, MemoryStates, StreamedSource
from bertvision.tasks import TaskConfig, build_task
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.stack import Member
from bertvision.training.train import train_heads

RATES = [1e-3, 5e-4, 2e-3, 3e-4, 1.5e-3]
SMALL = ["adapter_64", "learned_pooling", "last_linear", "average_pooling"]
FAMILIES = {
    "spans": ["small", "adapter_64", "adapter_386"],
    "labels": ["learned_pooling", "adapter_64", "pooled_adapter"],
}


@dataclasses.dataclass
class Result:
    """The result of one pass."""

    encoding: float
    """Seconds to encode the states, if they are held in memory."""
    seconds: float
    members: list[Member]


class Bench:
    def __init__(self, encoder: str, questions: int, kind: Kind) -> None:
        self.machine, self.kind = Machine(), kind
        self.target = Target(kind, 2 if kind is LABEL else 0)
        self.encoder = load_encoder(encoder, self.machine.device, self.machine.dtype).requires_grad_(False)
        self.features = _features(self.encoder, questions, kind)
        self.train = TrainConfig(epochs=1 if kind is SPAN else 10, batch_rows=16 if kind is SPAN else 64)

    def configs(self, family: str, count: int) -> list[MemberConfig]:
        heads = SMALL if family == "small" else [family]
        entries = [
            {"head": heads[i % len(heads)], "lr": RATES[i % len(RATES)], "seed": i, "name": f"member{i}"}
            for i in range(count)
        ]
        members = build_members(
            ["last_linear", *entries], self.train, 0, self.kind
        )  # name the control, so that none is added
        return members[1:]

    def run(self, configs: list[MemberConfig]) -> Result:
        """Run one pass with these heads."""
        whole = plan_pass(self.features.lengths, {(self.train.epochs or 1, 1.0)}, 0, self.train.batch_rows)
        members = []
        for config in configs:
            head = build_head(config, self.encoder.shape, self.target).to(self.machine.device)
            members.append(Member(config, head, range(len(whole.steps))))
        tokens = [int(self.features.lengths[batch].sum()) for batch in whole.steps]
        with tempfile.TemporaryDirectory() as folder:
            never = Checkpoints(Path(folder), "", seconds=np.inf)
            started = time.monotonic()
            if self.kind is SPAN:
                source: Any = StreamedSource(self.encoder, self.features, whole.steps, ("tokens",), starts=whole.starts)
            else:
                source = MemorySource(
                    MemoryStates.encode(self.encoder, self.features, ("cls",)), self.features, whole.steps
                )
            encoding = time.monotonic() - started
            train_heads(members, source, tokens.__getitem__, self.machine, never, _nowhere, Reporter())
            if self.machine.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.monotonic() - started
        return Result(encoding, seconds, members)


def _features(encoder: Encoder, questions: int, kind: Kind) -> Features:
    """Questions of the demo corpus, with their spans or with whether they can be answered."""
    task = build_task(TaskConfig("demo", train_questions=questions))
    examples = task.read("train")
    assert encoder.tokenizer is not None
    if kind is SPAN:
        return build_features(examples, encoder.tokenizer, kind, task.windowed, task.max_length)
    labelled = [dataclasses.replace(example, target=int(bool(example.answers)), answers=None) for example in examples]
    return build_features(labelled, encoder.tokenizer, kind, False, 128)


def peak_memory(encoder: str, questions: int, kind: Kind, family: str, count: int) -> float:
    """Peak memory of one pass in MB, minus encoder and data. Call this in a fresh process, since a process does not
    return memory to the system."""
    bench = Bench(encoder, questions, kind)
    configs = bench.configs(family, count)
    if bench.machine.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        bench.run(configs)
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    before = psutil.Process().memory_info().rss
    bench.run(configs)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6 - before / 1e6


def _nowhere(*_: object, **__: object) -> None:
    """Metrics are discarded here."""


def largest_difference(one: Member, other: Member) -> float:
    pairs = zip(one.head.parameters(), other.head.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def compare(bench: Bench, family: str, counts: list[int], most: int, memory: list[float]) -> Table:
    """Compare one pass with k heads of a family and k passes, as a table; `memory` is the peak of each one-pass run."""
    bench.run(bench.configs(family, 1))  # warm-up
    alone = [bench.run([config]) for config in bench.configs(family, min(max(counts), most))]
    tokens = int(bench.features.lengths.sum())
    title = f"{bench.kind} head {family}: {len(bench.features)} windows, {tokens:,} tokens, {bench.machine.describe()}"
    table = Table(title=title, title_justify="left")
    columns = ["members", "k passes s", "one pass s", "ratio", "encoding s", "ms per member and step", "peak MB"]
    for column in [*columns, "largest difference"]:
        table.add_column(column, justify="right")
    steps = len(alone[0].members[0].steps)
    for count, peak in zip(counts, memory, strict=True):
        together = bench.run(bench.configs(family, count))
        passes = sum(one.seconds for one in alone[:count])
        if count > len(alone):
            passes = count * statistics.mean(one.seconds for one in alone)
        single = encoding_seconds(bench) if bench.kind is SPAN else together.encoding
        own = (together.seconds - single) / count / steps
        table.add_row(
            str(count), f"{'≈' if count > len(alone) else ''}{passes:.1f}", f"{together.seconds:.1f}",
            f"{passes / together.seconds:.1f} ×", f"{single:.1f}", f"{1000 * own:.2f}", f"{peak:.0f}",
            f"{largest_difference(together.members[0], alone[0].members[0]):.1g}",
        )  # fmt: skip
    return table


def encoding_seconds(bench: Bench) -> float:
    """Seconds of a pass without any head."""
    whole = plan_pass(bench.features.lengths, {(1, 1.0)}, 0, bench.train.batch_rows)
    started = time.monotonic()
    for _ in StreamedSource(bench.encoder, bench.features, whole.steps, ("tokens",), starts=whole.starts).batches():
        pass
    if bench.machine.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--questions", type=int, default=100, help="questions for spans; labels use three times as many"
    )
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--members", type=int, nargs="+", default=[1, 5, 20, 50])
    parser.add_argument("--peer-passes", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=["spans", "labels"], choices=["spans", "labels"])
    options = parser.parse_args()
    console = Console(width=150)
    for kind in options.only:
        spans = kind == "spans"
        questions = options.questions * (1 if spans else 3)
        bench = Bench(options.encoder, questions, SPAN if spans else LABEL)
        for family in FAMILIES[kind]:
            memory = []
            for count in options.members:
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    work = pool.submit(peak_memory, options.encoder, questions, bench.kind, family, count)
                    memory.append(work.result())
            console.print(compare(bench, family, options.members, options.peer_passes, memory))


if __name__ == "__main__":
    main()
