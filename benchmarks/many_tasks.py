"""Texts per second for one task and for seven: a kit, whose encoder runs once, compared with a fine-tuned model per
task.

    python benchmarks/many_tasks.py [--kit default] [--pairs 200] [--device cpu] [--rounds 3]

The texts are the demo's questions with their passages. Spans, answerability and three pair tasks read both; two
single-text tasks read the question. Ours is `kits/one_pass.py` with the kit's heads, from token ids to raw outputs. The
peer is plain transformers: for each task, a model of the encoder's shape with a linear output layer, in batches of 32
sorted by length and padded to their longest row. The peer's weights are random, since speed does not depend on them.
Tokenizing and decoding are the same for both and are left out. The best of several rounds counts.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import AutoModel

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.heads import count_parameters
from bertvision.kinds import SPAN
from bertvision.kits.folder import find_kit
from bertvision.kits.kit import Kit
from bertvision.kits.one_pass import HeadWindows, compute_in_one_pass
from bertvision.progress import Reporter
from bertvision.tasks import TaskConfig, build_task

PEER_ROWS = 32


def read_pairs(count: int) -> list[Example]:
    corpus = build_task(TaskConfig("demo", train_questions=count, dev_questions=8))
    return [Example(str(number), one.text, one.text_pair) for number, one in enumerate(corpus.read("train")[:count])]


def features_of(kit: Kit, task: str, pairs: list[Example]) -> Features:
    examples = pairs if kit.tasks[task].takes_pairs else [Example(one.id, one.text) for one in pairs]
    return kit.build_features(task, examples)


class Peer:
    """One fine-tuned model: the encoder's shape, and a linear output layer on the last layer's states."""

    def __init__(self, model: nn.Module, output: nn.Linear, features: Features, is_span: bool) -> None:
        self.model, self.output, self.features, self.is_span = model, output, features, is_span

    @torch.no_grad()
    def run(self, device: torch.device, dtype: torch.dtype) -> None:
        own = self.features
        order = np.argsort(-own.lengths, kind="stable")  # (window,)
        for first in range(0, len(order), PEER_ROWS):
            rows = order[first : first + PEER_ROWS]
            longest = int(own.lengths[rows].max())
            ids, types, mask = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(3))
            for row, window in enumerate(rows):
                tokens, length = own.tokens_of(int(window)), int(own.lengths[window])
                ids[row, :length] = torch.from_numpy(own.input_ids[tokens].astype(np.int64))
                types[row, :length] = torch.from_numpy(own.type_ids[tokens].astype(np.int64))
                mask[row, :length] = 1
            given = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                states = self.model(**{name: part.to(device) for name, part in given.items()}).last_hidden_state
                outputs = self.output(states if self.is_span else states[:, 0])  # (row, [token,] output)
            outputs.float().cpu()


def best_of(rounds: int, work: Callable[[], object]) -> float:
    work()  # warm-up
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", default="default")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    kit = Kit(find_kit(options.kit), device=options.device)
    machine, encoder, pairs = kit.machine, kit.encoder, read_pairs(options.pairs)
    features = {task: features_of(kit, task, pairs) for task in kit.tasks}
    asked = {task: HeadWindows(own.head, features[task]) for task, own in kit.tasks.items()}
    plain = AutoModel.from_config(encoder.model.config, dtype=torch.float32).to(machine.device).eval()
    peers = {}
    for task, own in kit.tasks.items():
        output = nn.Linear(encoder.shape.hidden, own.head.target.outputs).to(machine.device)
        peers[task] = Peer(plain, output, features[task], own.task.kind is SPAN)
    heads = sum(count_parameters(one.head) for one in asked.values())
    title = f"{machine.describe()}, {len(pairs)} pairs; parameters: {heads:,} in all heads of the kit, "
    title += f"{len(peers)} × {count_parameters(plain):,} in separate models"
    table = Table(title=title, title_justify="left")
    for heading in ("tasks", "separate models, texts/s", "kit, texts/s", "speed-up"):
        table.add_column(heading, justify="left" if heading == "tasks" else "right")
    rows = {f"{task} alone": [task] for task in ("squad2", "sst2") if task in kit.tasks}
    for name, tasks in {**rows, f"all {len(peers)}": list(kit.tasks)}.items():
        theirs = best_of(options.rounds, lambda: [peers[task].run(machine.device, machine.dtype) for task in tasks])  # noqa: B023
        some = {task: asked[task] for task in tasks}
        ours = best_of(options.rounds, lambda: compute_in_one_pass(encoder, some, Reporter()))  # noqa: B023
        count = len(pairs)
        table.add_row(name, f"{count / theirs:,.1f}", f"{count / ours:,.1f}", f"{theirs / ours:.2f}")
        print(f"{name}: {count / theirs:,.1f} · {count / ours:,.1f} texts/s", flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
