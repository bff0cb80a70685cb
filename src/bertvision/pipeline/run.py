"""A whole run: text → task → features → fine-tuned encoder → hidden states of every layer → all heads in one pass →
predictions → scores.

    scores = run_job(Job(load_config("configs/rte.toml")))
"""

from pathlib import Path

from bertvision import waiting
from bertvision.disk import write_sealed, write_text
from bertvision.encoder.reading import read_as_made
from bertvision.machine import describe_environment, is_crowded
from bertvision.pipeline.ensemble import add_ensembles
from bertvision.pipeline.finetune import finetune
from bertvision.pipeline.finished import FinishedRun, ScoresFile
from bertvision.pipeline.folder import ADDED_ENSEMBLES, write_task_file
from bertvision.pipeline.job import Job
from bertvision.pipeline.score import evaluate, score_tables
from bertvision.pipeline.states import check_stores
from bertvision.pipeline.train import check_heads, train
from bertvision.tables import counted, to_markdown


def open_run(job: Job) -> None:
    """Check data, layers and stores, then write config.json, task.json and environment.json."""
    _ = job.layers
    check_stores(job)
    for split in ("train", *job.task.dev_splits):
        job.examples(split)
    if job.machine.is_main:
        write_sealed(job.folder.path / "config.json", job.config.with_absolute_paths().to_dict())
        write_task_file(job.folder.path, job.task)
        write_sealed(job.folder.path / "environment.json", describe_environment(job.machine))
    if waiting.spins and is_crowded():
        job.reporter.say(
            "this machine is busy, and torch was imported before bertvision, so its idle threads waste CPU time. "
            "Import bertvision first or set OMP_WAIT_POLICY=PASSIVE to train several times faster."
        )
    _report_reading(job)
    job.machine.wait()


def run_job(job: Job) -> ScoresFile:
    """Run all stages of a job in order. Return the contents of scores.json."""
    _ = job.members, job.dev_splits  # raise for invalid heads or a missing dev set before any work
    check_heads(job)
    with job.writing():
        open_run(job)
        finetune(job)
        train(job)
        return score_job(job)


def _report_reading(job: Job) -> None:
    """Print how the encoder is read where the config leaves it to the encoder."""
    pinned = job.config.finetune.read and all(isinstance(one, dict) and "read" in one for one in job.config.heads)
    if job.task.kind.position == "token" or pinned:
        return
    made = read_as_made(job.config.encoder.name)
    how = f"was made to be read as '{made}'" if made else "does not say how it is read: both 'cls' and 'mean' are tried"
    job.reporter.say(f"the encoder {how} (`read` of a head, finetune.read).")


def score_job(job: Job) -> ScoresFile:
    """The last stage: score every model, and write scores.json and summary.md."""
    with job.writing():
        scores = evaluate(job)
        if job.machine.is_main:  # `evaluate` may have been given other settings than the run before
            write_sealed(job.folder.path / "config.json", job.config.with_absolute_paths().to_dict())
        if job.config.ensembles or (job.folder.path / ADDED_ENSEMBLES).is_file():
            add_ensembles(job, scores)
        if job.machine.is_main:
            write_summary(job, scores)
        job.machine.wait()
    return scores


def write_summary(job: Job, scores: ScoresFile) -> None:
    tables = "\n".join(to_markdown(table) for table in score_tables(FinishedRun(job.folder.path, scores)))
    write_text(job.folder.path / "summary.md", _heading(job) + tables)


def _heading(job: Job) -> str:
    config = job.config.finetune
    batch = counted(config.batch_rows, "window") if config.batch_rows else f"{config.batch_tokens:,} tokens"
    train, held = len(job.examples("train")), len(job.examples("held_out"))
    lines = [
        f"# {job.task.name} with {Path(job.config.encoder.name).name}",
        "",
        f"- data: {job.task.source}",
        f"- training set: {counted(train, 'example')}, and {held:,} held out to choose thresholds and the best head",
        f"- seed: {job.config.seed}",
        f"- device: {job.machine.describe()}",
        f"- fine-tuning: {counted(config.epochs, 'epoch')}, learning rate {config.lr:g}, {config.schedule} schedule, "
        f"{batch} per step",
        "",
    ]
    return "\n".join(lines) + "\n"
