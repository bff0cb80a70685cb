"""bertvision demo"""

from importlib.resources import as_file, files
from typing import Any

import typer

from bertvision.cli import AsJson, Overrides, Wait, app, load_job, print_run
from bertvision.tables import counted


@app.command(
    "demo", rich_help_panel="Main commands", epilog="Example: bertvision demo finetune.epochs=2 run=runs/longer_demo"
)
def demo(overrides: Overrides = None, wait: Wait = False, json: AsJson = False) -> None:
    """Run the paper's experiment in miniature, offline, on a bundled corpus, and write a report. Takes minutes."""
    with as_file(files("bertvision") / "demo.toml") as config:
        job = load_job(str(config), overrides, wait=wait)
    from bertvision.pipeline.run import run_job
    from bertvision.report.build import make_report

    if job.machine.is_main:
        job.reporter.say(_describe_work(job))
    print_run(job, run_job(job), json)
    if job.machine.is_main:
        page = make_report([job.folder.path], reporter=job.reporter, wait=wait)
        typer.echo(f"report: {page}   (open it in a browser)", err=json)


def _describe_work(job: Any) -> str:
    snapshots = " and ".join(f"{epochs:g}" for epochs in job.snapshots)
    return (
        "The paper's experiment in miniature: about four minutes on two CPU cores. If you stop it, the same command "
        "resumes it.\n"
        f"  1. Fine-tune the encoder ({job.config.encoder.name}) on {job.config.task.train_questions:,} synthetic "
        f"questions; save it after {snapshots} epochs.\n"
        f"  2. Train {counted(len(job.members), 'small head')} on the hidden states of all layers, in one pass per "
        "snapshot.\n"
        f"  3. Score everything on {job.config.task.dev_questions:,} dev questions.\n"
        "  4. Write a report."
    )
