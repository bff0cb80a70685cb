"""The Python interface: `bv.fit(…)`, `bv.run(…)`, and the Run it returns.

import bertvision as bv
model = bv.fit("train.csv", label="intent")
run = bv.run(task="rte", encoder="bert-base-uncased", heads=["learned_pooling", "adapter"])
print(run.summary())
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertvision.config import RunConfig, build_config, load_config
from bertvision.disk import as_path
from bertvision.errors import UserError
from bertvision.models.fit import Options
from bertvision.models.model import Model
from bertvision.models.own_data import MOST_ROWS, fit_own_data
from bertvision.pipeline.ensemble import add_ensemble
from bertvision.pipeline.ensemble_entries import Ensemble
from bertvision.pipeline.finished import CONFIG, SCORES, FinishedRun
from bertvision.pipeline.job import Job, find_mistakes
from bertvision.pipeline.run import run_job, write_summary
from bertvision.pipeline.score import score_tables
from bertvision.progress import Reporter, RichReporter
from bertvision.tables import counted, to_markdown


class Run:
    """A finished run: its folder, its config and its scores."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = as_path(folder, "the run folder")
        if not os.path.isfile(self.folder / CONFIG):
            raise UserError(f"'{folder}' is not a run: it has no {CONFIG}. `bv.run` and `bertvision run` make runs.")
        self._models: dict[str | None, Model] = {}

    def __repr__(self) -> str:
        if not os.path.isfile(self.folder / SCORES):
            return f"<Run {self.folder.name}: no scores yet>"
        run = self._finished
        names = [group.name for group in run.groups(run.last, "control", "head", "ensemble")]
        return f"<Run {self.folder.name}: {run.task_name}, {counted(len(names), 'model')} at {run.last:g} epochs>"

    @property
    def config(self) -> RunConfig:
        """The settings of the run. The data must still be where they say."""
        # The folder may have been moved.
        return dataclasses.replace(load_config(self.folder), run=str(self.folder))

    @property
    def scores(self) -> dict[str, Any]:
        """The contents of scores.json: snapshots → models → splits → scores."""
        return dict(self._finished.scores) if os.path.isfile(self.folder / SCORES) else {}

    @property
    def _finished(self) -> FinishedRun:
        if not os.path.isfile(self.folder / SCORES):
            raise UserError(f"'{self.folder}' has no scores yet: finish it with bv.run or `bertvision evaluate`.")
        return FinishedRun(self.folder)

    def summary(self) -> str:
        """The tables of scores as Markdown."""
        return "\n".join(to_markdown(table) for table in score_tables(self._finished))

    def ensemble(self, *members: str, method: str = "max", name: str = "", wait: bool = False) -> dict[str, Any]:
        """Combine models into an ensemble, `run.ensemble("encoder", "adapter_64")`, score it and save it in the run.

        "RUN:NAME@EPOCHS" is a member of another run or snapshot. Returns name → facts and scores, one entry per seed.
        """
        _ = self._finished  # raise if there are no scores
        job = Job(self.config, wait=wait)
        with job.writing():
            scores = self._finished.scores
            added = add_ensemble(job, Ensemble(members, method, name), scores)
            write_summary(job, scores)
        self._models.clear()  # the best model may be another one now
        return added

    def report(self, with_encoder: bool = True, wait: bool = False) -> Path:
        """Write report.html and its companion files to the run folder, and return its path."""
        from bertvision.report.build import make_report

        return make_report([self.folder], with_encoder=with_encoder, wait=wait)

    def model(self, head: str | None = None) -> Model:
        """A model of the run that predicts: the best one, or the one named `head`. It is loaded once."""
        if head not in self._models:
            self._models[head] = Model(self.folder, head)
        return self._models[head]

    def predict(self, texts: Any, head: str | None = None) -> Any:
        """Predict on new text: a list gives a list of results, one text or pair gives one. `head` defaults to the best
        model. See `Model.predict`."""
        return self.model(head).predict(texts)


def run(
    config: RunConfig | str | Path | None = None,
    *,
    task: str | dict[str, Any] | None = None,
    encoder: str | dict[str, Any] | None = None,
    heads: list[Any] | None = None,
    progress: bool = False,
    wait: bool = False,
    **settings: Any,
) -> Run:
    """Train every head in one pass and score them all. The encoder is fine-tuned first if asked. Finished stages are
    skipped.

    Takes a config file, a table or SQuAD-format file to train on, a RunConfig, or sections as keywords: `task="rte"`,
    `encoder="bert-base-uncased"`, `finetune={"epochs": 0.3}`, `data={"limit_train": 1000}`, `run="runs/mine"` …
    `wait`: if another process is writing to the run folder, wait until it ends.
    """
    reporter = RichReporter() if progress else Reporter()
    if config is None:
        tables: dict[str, Any] = dict(settings)
        tables["task"] = {"name": task} if isinstance(task, str) else task or {}
        if encoder is not None:
            tables["encoder"] = {"name": encoder} if isinstance(encoder, str) else encoder
        if heads is not None:
            tables["heads"] = heads
        config = build_config(tables, find_more=find_mistakes)
    elif task is not None or encoder is not None or heads is not None or settings:
        raise UserError("give bv.run a config or sections as keywords, not both.")
    elif not isinstance(config, RunConfig):
        is_run = os.path.isdir(as_path(config, "the config"))
        config = Run(config).config if is_run else load_config(config, (), find_mistakes, reporter.say)
    job = Job(config, reporter, wait)
    run_job(job)
    return Run(job.folder.path)


def fit(
    train: Any,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    weight: str | None = None,
    kind: str | None = None,
    dev: Any = None,
    to: str | Path | None = None,
    overwrite: bool = False,
    skip_empty: bool = False,
    rows: int | None = MOST_ROWS,
    encoder: str = "embedded",
    heads: str | Sequence[str] = "auto",
    seconds: float | None = None,
    metric: str | None = None,
    class_weight: str | dict[str, float] | None = None,
    seed: int = 0,
    tune: bool | str = False,
    progress: bool = False,
    wait: bool = False,
) -> Model:
    """Fit a model to a file or data frame, save it to `to` (default: models/<file stem>) and return it.

    A .json file holds questions on passages, in SQuAD's format; options on columns do not apply to it. Columns and kind
    ("label" or "score") that are not given are guessed. `dev` is scored once, after the choice. A table with more than
    `rows` rows is sampled; None reads all of it. `tune` also tries heads on an encoder that is tuned on the rows
    (docs/fit.md); "auto" tunes only where rows are few.
    """
    _, folder = fit_own_data(
        train,
        dev,
        to,
        options=Options(encoder, heads, seconds, seed, metric, class_weight, tune=tune),
        columns={"text": text, "text_pair": text_pair, "label": label, "weight": weight},
        kind=kind,
        overwrite=overwrite,
        skip_empty=skip_empty,
        rows=rows,
        reporter=RichReporter() if progress else Reporter(),
        wait=wait,
    )
    return Model(folder)
