"""bertvision train CONFIG [section.key=value …]"""

import typer

from bertvision.cli import Config, Overrides, Wait, app, load_job


@app.command("train", rich_help_panel="Individual stages", epilog="Example: bertvision train runs/rte_embedded")
def train(config: Config, overrides: Overrides = None, wait: Wait = False) -> None:
    """Train every head in one pass of the encoder. Fine-tunes the encoder first if needed."""
    job = load_job(config, overrides, wait=wait)
    from bertvision.pipeline.finetune import finetune
    from bertvision.pipeline.run import open_run
    from bertvision.pipeline.train import check_heads
    from bertvision.pipeline.train import train as train_heads

    check_heads(job)  # report mistakes in the heads before any work
    with job.writing():
        open_run(job)
        finetune(job)
        train_heads(job)
    typer.echo(f"run folder: {job.folder.path}")
