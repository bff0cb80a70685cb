"""A search in populations compared with plain Optuna, one member at a time: seconds, ratio, and the winner's scores.

    python benchmarks/search.py --task rte --data FOLDER [--members 50] [--population 25] [--peer-trials 3] [KEY=VALUE]

The peer is Optuna's `optimize` with the same sampler, space, data and training loop, without pruning. It is measured
twice: with an objective that runs the encoder for each trial (once, not once per epoch), and with the states held in
memory between trials, which is the best that one member at a time can do. A few of its trials are measured and scaled
to the number of members. Fine-tuning and the winner's own run are the same for all and not included.
"""

import argparse
import math
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
import torch
from rich.console import Console
from rich.table import Table

from bertvision.cli import quiet_libraries
from bertvision.config import load_config
from bertvision.pipeline.finetune import finetune
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.held_out import HeldOut
from bertvision.pipeline.job import Job
from bertvision.pipeline.run import open_run
from bertvision.pipeline.train import train_members
from bertvision.progress import RichReporter
from bertvision.search.run import PopulationTrainer, SearchResult, search, try_members
from bertvision.search.space import build_member, build_space, find_mistakes
from bertvision.search.study import quiet_optuna
from bertvision.training.checkpoint import Checkpoints

CONFIG = Path(__file__).parents[1] / "configs" / "search_rte.toml"
COLA = [
    "task.name=cola", "data.max_length=none", "data.hold_out=0.1", "finetune.lr=1e-4", "search.metric=matthews",
    "search.space.epochs=10",
]  # fmt: skip


class OneByOne:
    """Plain Optuna: each trial is a separate pass."""

    def __init__(self, job: Job, folder: Path, keep: bool) -> None:
        """`keep`: encode the states of train and held-out data before the first trial and hold them in memory."""
        self.job, self.folder = job, folder
        self.trainer = PopulationTrainer(
            job, None, job.config.search.metric or job.task.metrics[0]
        )  # only its parts are used
        _ = self.trainer.states
        started = time.monotonic()
        self.kept = self.trainer.kept if keep else None
        self.held_out = self.trainer.held_out["sequences"] if keep else None
        self.seconds_before = time.monotonic() - started

    def run(self, trials: int) -> float:
        """Mean seconds per trial."""
        sampler = optuna.samplers.TPESampler(seed=self.job.config.seed, multivariate=True, group=True)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        started = time.monotonic()
        study.optimize(self.objective, n_trials=trials)
        self._finish()
        return (time.monotonic() - started) / trials

    def objective(self, trial: optuna.Trial) -> float:
        job, trainer = self.job, self.trainer
        entry = build_space(job.config).draw(trial)
        config = build_member(entry, "alone", trainer.train, job.config.seed, job.task.kind)
        never = Checkpoints(self.folder / "never", "", math.inf)
        (member,) = train_members(trainer.states, [config], never, self.kept).members
        held_out = self.held_out or HeldOut(trainer.states, (member.head.reads,), trainer.metric)
        return held_out.score([member])[member.name]

    def _finish(self) -> None:
        if self.job.machine.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=["rte", "cola"], default="rte")
    parser.add_argument("--data", required=True)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--population", type=int, default=25)
    parser.add_argument("--peer-trials", type=int, default=3)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="other settings, as for the command line")
    options = parser.parse_args()
    quiet_libraries()
    quiet_optuna()
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [
            *(COLA if options.task == "cola" else []),
            f"task.data={options.data}", f"run={folder / 'run'}", f"search.members={options.members}",
            f"search.population={options.population}", *options.overrides,
        ]  # fmt: skip
        job = Job(load_config(CONFIG, words, find_mistakes), RichReporter())
        open_run(job)
        finetune(job)
        started = time.monotonic()
        try_members(job)
        together = time.monotonic() - started
        alone = OneByOne(job, folder, keep=False).run(options.peer_trials)
        keeping = OneByOne(job, folder, keep=True)
        kept = keeping.run(options.peer_trials)
        found = search(job)  # all members are tried, so this only trains and scores the winner
        print_seconds(options, job, together, alone * options.members, keeping.seconds_before + kept * options.members)
        print_scores(job, found)


def print_seconds(options: Any, job: Job, together: float, alone: float, kept: float) -> None:
    members, trials = options.members, options.peer_trials
    examples = f"{len(job.examples('train')):,} examples"
    table = Table(title=f"{options.task}, {members} members, {examples}, {job.machine.describe()}")
    for column in ("method", "seconds", "ratio"):
        table.add_column(column, justify="left" if column == "method" else "right")
    scaled = f"scaled from {trials} trials"
    table.add_row(f"plain Optuna, encoder in each trial ({scaled})", f"{alone:.1f}", "1")
    table.add_row(f"plain Optuna, states in memory ({scaled})", f"{kept:.1f}", f"{alone / kept:.2f} ×")
    how = f"populations of {options.population}" + (", successive halving" if job.config.search.prune else "")
    table.add_row(how, f"{together:.1f}", f"{alone / together:.2f} ×")
    Console(width=120).print(table)


def print_scores(job: Job, found: SearchResult) -> None:
    metric = found.history.metric
    split = job.dev_splits[0]
    table = Table(title=f"winner: {found.winner.name} {found.winner.entry}", title_justify="left")
    for column in ("model", "parameters", f"held-out {metric}", f"{split} {metric}"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for model in FinishedRun(found.run.folder).models(found.history.snapshot):
        shown = [f"{scores[metric]:.2f}" if (scores := model.scores(part)) else "" for part in (HELD_OUT, split)]
        table.add_row(model.name, f"{model.parameters:,}", *shown)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
