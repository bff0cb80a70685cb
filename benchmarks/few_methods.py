"""The methods of benchmarks/few_rows.py. Each measurement runs in a process of its own:

    python benchmarks/few_methods.py '{"task": "trec", "size": 8, "draw": 0, "method": "fit", "encoder": "…"}'

The last line of its output is a JSON object. SetFit runs in an environment of its own, without BERTVision.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from user_methods import TASKS, Job, Predict, Rows, cpu_seconds, fit_last_layer, read, write


def measure(task: str, size: int, draw: int, method: str, encoder: str) -> dict[str, Any]:
    """Fit on a draw of train, predict test, and return the accuracy and the CPU seconds up to the fitted model."""
    started = time.monotonic()
    train, test = take_draw(read(task, "train", None), size, draw), read(task, "test", None)
    with tempfile.TemporaryDirectory() as work:
        file = write(task, train, Path(work))
        predict, facts = METHODS[method](Job(task, train, file, draw, encoder, Path(work)))
        cpu_fit, wall_fit = cpu_seconds(), time.monotonic() - started
        predicted = predict(test.texts)
    right = sum(one == wanted for one, wanted in zip(predicted, test.labels, strict=True))
    return {
        "accuracy": 100 * right / len(test.labels), "rows": len(train.labels), "test_rows": len(test.labels),
        "cpu_fit": round(cpu_fit, 2), "wall_fit": round(wall_fit, 2), **facts,
    }  # fmt: skip


def take_draw(rows: Rows, size: int, draw: int) -> Rows:
    """Random rows, as many for each label."""
    counts: dict[str, int] = {}
    chosen = []
    for row in np.random.default_rng(draw).permutation(len(rows.labels)).tolist():
        label = rows.labels[row]
        counts[label] = counts.get(label, 0) + 1
        if counts[label] <= size:
            chosen.append(row)
    return Rows([rows.texts[row] for row in chosen], [rows.labels[row] for row in chosen])


def fit_setfit(job: Job) -> tuple[Predict, dict[str, Any]]:
    """SetFit 1.2: the encoder is tuned on pairs of texts, then scikit-learn's logistic regression reads it."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel.from_pretrained(job.encoder)
    settings = TrainingArguments(
        output_dir=str(job.work / "setfit"), batch_size=16, num_epochs=1, num_iterations=20, seed=job.seed,
        save_strategy="no", report_to="none", show_progress_bar=False,
    )  # fmt: skip
    data = Dataset.from_dict({"text": job.train.texts, "label": job.train.labels})
    Trainer(model=model, args=settings, train_dataset=data).train()
    return lambda texts: [str(label) for label in model.predict(texts)], {}


def fit(job: Job) -> tuple[Predict, dict[str, Any]]:
    """`bertvision fit` with its defaults. Test is predicted by the saved model."""
    return fit_ours(job)


def linear(job: Job) -> tuple[Predict, dict[str, Any]]:
    """`bertvision fit --heads linear`."""
    return fit_ours(job, heads="linear")


def tune(job: Job) -> tuple[Predict, dict[str, Any]]:
    """`bertvision fit --tune`."""
    return fit_ours(job, tune=True)


def fit_ours(job: Job, **options: Any) -> tuple[Predict, dict[str, Any]]:
    from bertvision.models.fit import Options, fit_table
    from bertvision.models.model import Model
    from bertvision.models.save import save_fit
    from bertvision.tasks.own_table import read_own_table

    table = read_own_table(job.file, text="text", label=TASKS[job.task][1], kind="label")
    assert (table.texts, table.labels) == (job.train.texts, job.train.labels), "every method reads the same rows"
    found = fit_table(table, Options(seed=job.seed, **options))
    model = Model(save_fit(found, job.work / "model", str(job.file)))
    facts = {
        "chosen": found.board.chosen, "encode_seconds": round(found.encode_seconds, 2),
        "leaderboard": [line.to_dict() for line in found.board.lines],
    }  # fmt: skip
    return lambda texts: [str(row.get("label")) for row in model.predict(texts)], facts


METHODS: dict[str, Callable[[Job], tuple[Predict, dict[str, Any]]]] = {
    "setfit": fit_setfit, "last": fit_last_layer, "linear": linear, "fit": fit, "tune": tune,
}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
