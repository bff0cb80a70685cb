"""bertvision demo"""

from importlib.resources import as_file, files

import typer

from bertvision.cli import AsJson, Overrides, app, load_job, print_run


@app.command(
    "demo", rich_help_panel="Main commands", epilog="Example: bertvision demo finetune.epochs=2 run=runs/longer_demo"
)
def demo(overrides: Overrides = None, json: AsJson = False) -> None:
    """Run the paper's experiment in miniature, offline, on a bundled corpus, and write a report. Takes minutes."""
    with as_file(files("bertvision") / "demo.toml") as config:
        job = load_job(str(config), overrides)
    from bertvision.pipeline.run import run_job
    from bertvision.report.build import make_report

    print_run(job, run_job(job), json)
    if job.machine.is_main:
        page = make_report([job.folder.path], reporter=job.reporter)
        typer.echo(f"report: {page}", err=json)
