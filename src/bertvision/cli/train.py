"""bertvision train CONFIG [section.key=value …]"""

import typer

from bertvision.cli import Config, Overrides, app, load_job


@app.command("train", rich_help_panel="The stages of run", epilog="example: bertvision train runs/rte_embedded")
def train(config: Config, overrides: Overrides = None) -> None:
    """Train every head on the encoder's states in one pass, after fine-tuning where that is not done yet."""
    job = load_job(config, overrides)
    from bertvision.pipeline.finetune import finetune
    from bertvision.pipeline.run import open_run
    from bertvision.pipeline.train import check_heads
    from bertvision.pipeline.train import train as train_heads

    check_heads(job)  # mistakes in the heads are said before any work
    open_run(job)
    finetune(job)
    train_heads(job)
    typer.echo(f"run folder: {job.folder.path}")
