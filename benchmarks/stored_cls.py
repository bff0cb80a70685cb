"""Heads on stored [CLS] states compared with scikit-learn's LogisticRegression on the same states: time and accuracy.

    python benchmarks/stored_cls.py --data FOLDER/SST-2 [--folder RUN] [--epochs 10] [KEY=VALUE …]

The states of SST-2's train split are encoded into a store once; that time is reported separately and is 0 if the store
exists. Then each head trains alone for ten epochs from the store, and finally all of them in one pass. The peer takes
the last layer's [CLS] state, which is what the control `last_linear` reads, in float32 from the same store. Reading the
store counts for both. Each model is scored on dev once, with the settings given here; nothing is chosen on dev.
"""

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertvision.cli import quiet_libraries
from bertvision.config import load_config
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates
from bertvision.pipeline.finetune import finetune
from bertvision.pipeline.job import Job
from bertvision.pipeline.members import find_head_mistakes
from bertvision.pipeline.run import open_run
from bertvision.pipeline.snapshot import load_snapshot
from bertvision.pipeline.states import States, StoreSpec, encode
from bertvision.pipeline.train import train_members
from bertvision.progress import RichReporter
from bertvision.sources import MemoryStates, Store
from bertvision.training.checkpoint import Checkpoints

CONFIG = Path(__file__).parents[1] / "configs" / "sst2.toml"
HEADS = [
    {"head": head, "read": "cls", "name": head}
    for head in ("last_linear", "learned_pooling", "average_pooling", "adapter_64", "pooled_adapter")
]
SNAPSHOT = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--folder", help="run folder; its store is used if there is one")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    quiet_libraries()
    with tempfile.TemporaryDirectory() as temporary:
        words = [f"task.data={arguments.data}", f"run={arguments.folder or temporary}"]
        words += [f"train.epochs={arguments.epochs}", *arguments.overrides]
        config = load_config(CONFIG, words, find_head_mistakes)
        job = Job(dataclasses.replace(config, heads=HEADS), RichReporter())
        open_run(job)
        finetune(job)
        compare(job)


def compare(job: Job) -> None:
    started = time.monotonic()
    encode(job)
    encoding = time.monotonic() - started
    encoder, _ = load_snapshot(job.folder.encoder(SNAPSHOT), job.config.encoder, job.machine)
    store, _ = StoreSpec(job, encoder, SNAPSHOT, ("cls",)).find()
    assert store is not None
    dev = MemoryStates.encode(encoder, job.features("dev"), ("cls",))
    tokens, size = store.manifest.tokens, store.manifest.bytes / 1e6
    table = Table(
        title=f"{len(store):,} sentences, {tokens:,} tokens; store {size:,.0f} MB, written in {encoding:.1f} s",
        caption=f"{job.config.train.epochs} epochs; seconds include reading the store; "
        f"{torch.get_num_threads()} threads",
    )
    for column in ("model", "states", "seconds", "dev accuracy"):
        table.add_column(column, justify="right" if column in ("seconds", "dev accuracy") else "left")
    for name in [member.name for member in job.members]:
        table.add_row(*train(job, encoder, dev, [name]))
    table.add_row(*train(job, encoder, dev, [member.name for member in job.members]))
    for scaled in (False, True):
        table.add_row(*fit(job, store, dev, scaled))
    Console().print(table)


def train(job: Job, encoder: Encoder, dev: MemoryStates, names: list[str]) -> tuple[str, str, str, str]:
    """Train heads in one pass from the store."""
    started = time.monotonic()
    configs = [member for member in job.members if member.name in names]
    with tempfile.TemporaryDirectory() as folder:
        never = Checkpoints(Path(folder), "", float("inf"))
        members = train_members(States(job, encoder, SNAPSHOT), configs, never).members
    seconds = time.monotonic() - started
    truth = job.features("dev").target
    found = []
    for member in members:
        with torch.no_grad():
            outputs = member.head.eval()(states_of(dev))  # (window, label)
        found.append(f"{100 * np.mean(outputs.argmax(dim=-1).numpy() == truth):.2f}")
    return " + ".join(names), "all layers of [CLS]", f"{seconds:.1f}", " / ".join(found)


def fit(job: Job, store: Store, dev: MemoryStates, scaled: bool) -> tuple[str, str, str, str]:
    """Fit scikit-learn's model on raw or standardised states."""
    started = time.monotonic()
    kept = MemoryStates.load(store, ("cls",), job.features("train"), torch.device("cpu"), torch.float32)
    model = LogisticRegression(max_iter=1000)
    model = make_pipeline(StandardScaler(), model) if scaled else model
    model.fit(last_of(kept), job.features("train").target)
    seconds = time.monotonic() - started
    right = np.mean(model.predict(last_of(dev)) == job.features("dev").target)
    name = "LogisticRegression" + (", standardised" if scaled else "")
    return name, "last layer of [CLS]", f"{seconds:.1f}", f"{100 * right:.2f}"


def states_of(kept: MemoryStates) -> HiddenStates:
    lengths = torch.ones(len(kept.parts["cls"]), dtype=torch.int64)
    return HiddenStates(lengths, cls=kept.parts["cls"], pooled=kept.pooled)


def last_of(kept: MemoryStates) -> np.ndarray:
    return states_of(kept).last_cls.numpy()  # (window, hidden)


if __name__ == "__main__":
    main()
