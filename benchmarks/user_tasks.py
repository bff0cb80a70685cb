"""A user's own texts: small heads on all layers of the untouched embedded encoder compared with common methods.

    BERTVISION_REAL_DATA=… python benchmarks/user_tasks.py [--tasks trec subj …] [--seeds 3]

Peers: TF-IDF with logistic regression, and the mean of the last layer's tokens, standardised, with logistic regression.
Their strength of regularisation is chosen on the same held-out tenth of train as our head, and they are fitted again on
all of train; ours is not. The heads of GRID train in one pass of the encoder. The test set is scored once.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bertvision as bv
from bertvision.cli import quiet_libraries
from bertvision.config import build_config
from bertvision.encoder.loading import load_encoder
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.job import Job
from bertvision.sources import MemoryStates

TASKS = {
    "trec": ("tsv", "label"), "subj": ("tsv", "label"), "snips": ("tsv", "label"), "sst5": ("tsv", "label"),
    "hwu64": ("tsv", "label"), "banking77": ("csv", "category"),
}  # fmt: skip
GRID = {"read": "mean", "lr": [1e-3, 3e-3], "epochs": [10, 30]}
HEADS = [{"head": name, **GRID} for name in ("last_linear", "adapter_64", "adapter_386_skip")]
STRENGTHS = [0.01, 0.1, 1.0, 10.0, 100.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    quiet_libraries()
    columns = ["task", "TF-IDF", "last layer", "control", "all layers", "head chosen"]
    table = Table(
        *columns, title=f"test accuracy; control and heads: mean ± standard deviation over {arguments.seeds} seeds"
    )
    for task in arguments.tasks:
        with tempfile.TemporaryDirectory() as folder:
            table.add_row(task, *compare(task, folder, arguments.seeds))
        Console().print(table)


def compare(task: str, folder: str, seeds: int) -> list[str]:
    ending, label = TASKS[task]
    data = Path(os.environ["BERTVISION_REAL_DATA"], "user", task)
    settings: dict[str, Any] = {
        "task": {
            "name": "files", "kind": "label", "text": "text", "label": label,
            "train": str(data / f"train.{ending}"), "dev": str(data / f"test.{ending}"),
        },
        "data": {"hold_out": 0.1, "max_length": 128},
        "finetune": {"epochs": 0},
        "train": {"seeds": seeds},
    }  # fmt: skip
    run = FinishedRun(bv.run(**settings, heads=HEADS, run=folder, progress=True).folder)
    best = run.best_head(0.0)
    controls = [group for group in run.groups(0.0) if group.name.startswith("last_linear")]
    control = max(controls, key=lambda group: group.mean(run.judged_on, run.main) or 0.0)
    assert best is not None
    job = Job(build_config({**settings, "run": folder}))
    shown = [f"{accuracy:.1f}" for accuracy in peers(job)]
    return [*shown, *(show(group, "dev", run.main) for group in (control, best)), best.name]


def show(group: Any, split: str, key: str) -> str:
    scores = [model.scores(split)[key] for model in group.models]
    return f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1) if len(scores) > 1 else 0:.1f}"


def peers(job: Job) -> tuple[float, float]:
    """Test accuracy of TF-IDF, and of the last layer's means."""
    splits = ("train", "held_out", "dev")
    texts = [[example.text for example in job.examples(split)] for split in splits]
    targets = [np.array([example.target for example in job.examples(split)]) for split in splits]
    encoder = load_encoder(job.config.encoder.name, job.machine.device, job.machine.dtype)
    means = [MemoryStates.encode(encoder, job.features(split), ("mean",)).parts["mean"] for split in splits]
    last = [part[:, -1].float().numpy() for part in means]  # (example, hidden)
    return (
        accuracy(lambda: TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), texts, targets),
        accuracy(StandardScaler, last, targets),
    )


def accuracy(prepare: Any, inputs: list[Any], targets: list[np.ndarray]) -> float:
    """Accuracy in percent on the last of (train, held out, test). The strength is the best one on held-out data."""

    def fit(strength: float, given: Any, wanted: np.ndarray) -> Any:
        return make_pipeline(prepare(), LogisticRegression(C=strength, max_iter=2000)).fit(given, wanted)

    tried = [fit(strength, inputs[0], targets[0]).score(inputs[1], targets[1]) for strength in STRENGTHS]
    strength = STRENGTHS[int(np.argmax(tried))]
    both = inputs[0] + inputs[1] if isinstance(inputs[0], list) else np.concatenate(inputs[:2])
    return 100 * float(fit(strength, both, np.concatenate(targets[:2])).score(inputs[2], targets[2]))


if __name__ == "__main__":
    main()
