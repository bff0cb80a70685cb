"""The story on one page: text → task → features → encoder, fine-tuned a little → hidden states of every layer → every
head at once → predictions → scores.

    import bertvision as bv
    run = bv.run(task="rte", encoder="bert-base-uncased", heads=["learned_pooling", "adapter"])
    print(run.summary())
"""

import dataclasses
from pathlib import Path
from typing import Any

from bertvision import stages
from bertvision.config import RunConfig, build_config, load_config
from bertvision.ensembling import Ensemble, add_ensemble, add_ensembles, find_mistakes
from bertvision.errors import UserError
from bertvision.job import Job
from bertvision.progress import Reporter, RichReporter
from bertvision.results import counted, score_tables, to_markdown
from bertvision.rundir import read_json, write_text


class Run:
    """A finished run: its folder, its config and its scores."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @property
    def config(self) -> RunConfig:
        """The settings it was made with; reading them asks for the data to be there still."""
        # The folder may have been moved since it was made.
        return dataclasses.replace(load_config(self.folder), run=str(self.folder))

    @property
    def scores(self) -> dict[str, Any]:
        """What scores.json holds: snapshots → models → splits → figures."""
        return read_json(self.folder / "scores.json") or {}

    def summary(self) -> str:
        """The tables, as Markdown."""
        if not self.scores:
            raise UserError(f"'{self.folder}' has no scores yet: finish it with bv.run or `bertvision evaluate`.")
        return "\n".join(to_markdown(table) for table in score_tables(self.scores))

    def ensemble(self, *members: str, method: str = "max", name: str = "") -> dict[str, Any]:
        """Scores models that answer together, `run.ensemble("encoder", "adapter_64")`, and keeps them in the run; a
        member of another run or snapshot is "RUN:NAME@EPOCHS". Gives name → facts and scores, one for each seed."""
        scores = self.scores
        if not scores:
            raise UserError(f"'{self.folder}' has no scores yet: finish it with bv.run or `bertvision evaluate`.")
        job = Job(self.config)
        names = add_ensemble(job, Ensemble(members, method, name), scores)
        _write_summary(job, scores)
        models = [item for snapshot in scores["snapshots"].values() for item in snapshot.items()]
        return {name: facts for name, facts in models if name in names}

    def report(self, with_encoder: bool = True) -> Path:
        """Writes report.html and what lies beside it into the run folder, and gives its path."""
        from bertvision.reports.making import make_report

        return make_report([self.folder], with_encoder=with_encoder)

    def predict(self, *texts: Any, head: str | None = None) -> list[dict[str, Any]]:
        """What a head says of new text: strings, or (text, second text) pairs (question, passage)."""
        from bertvision.predictor import Predictor

        return Predictor(self.folder, head).predict_texts(list(texts))


def run(
    config: RunConfig | str | Path | None = None,
    *,
    task: str | dict[str, Any] | None = None,
    encoder: str | dict[str, Any] | None = None,
    heads: list[Any] | None = None,
    progress: bool = False,
    **settings: Any,
) -> Run:
    """Fine-tunes, trains and scores; what is done already is not done again.

    Takes a config file, a RunConfig, or the sections as keywords: `task="rte"`, `encoder="bert-base-uncased"`,
    `finetune={"epochs": 0.3}`, `data={"limit_train": 1000}`, `run="runs/mine"` …
    """
    if config is None:
        tables: dict[str, Any] = dict(settings)
        tables["task"] = {"name": task} if isinstance(task, str) else task or {}
        if encoder is not None:
            tables["encoder"] = {"name": encoder} if isinstance(encoder, str) else encoder
        if heads is not None:
            tables["heads"] = heads
        config = build_config(tables, find_more=find_mistakes)
    elif task is not None or encoder is not None or heads is not None or settings:
        raise UserError("give bv.run a config, or its sections as keywords, not both.")
    elif not isinstance(config, RunConfig):
        config = Run(config).config if Path(config).is_dir() else load_config(config, find_more=find_mistakes)
    return run_job(Job(config, RichReporter() if progress else Reporter()))


def run_job(job: Job) -> Run:
    """All stages of a job, in order."""
    _ = job.members, job.dev_splits  # mistakes in the heads, or no dev set, are said before any work
    stages.check_heads(job)
    stages.open_run(job)
    stages.finetune(job)
    stages.train(job)
    return score_job(job)


def score_job(job: Job) -> Run:
    """The last stage: figures of everything that was trained, scores.json and summary.md."""
    scores = stages.evaluate(job)
    add_ensembles(job, scores)
    if job.machine.is_main:
        _write_summary(job, scores)
    job.machine.wait()
    return Run(job.folder.path)


def _write_summary(job: Job, scores: dict[str, Any]) -> None:
    tables = "\n".join(to_markdown(table) for table in score_tables(scores))
    write_text(job.folder.path / "summary.md", _heading(job) + tables)


def _heading(job: Job) -> str:
    config = job.config.finetune
    batch = f"{config.batch_rows} windows" if config.batch_rows else f"{config.batch_tokens:,} tokens"
    train, held = len(job.examples("train")), len(job.examples("held_out"))
    lines = [
        f"# {job.task.name} with {Path(job.config.encoder.name).name}",
        "",
        f"- data: {job.task.source}",
        f"- trained on {train:,} examples; {held:,} more held out for every choice; seed {job.config.seed}",
        f"- device: {job.machine.describe()}",
        f"- fine-tuning: {counted(config.epochs, 'epoch')}, lr {config.lr:g}, {config.schedule}, {batch} a step",
        "",
    ]
    return "\n".join(lines) + "\n"
