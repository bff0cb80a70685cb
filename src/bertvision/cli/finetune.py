"""bertvision finetune CONFIG [section.key=value …]"""

import typer

from bertvision.cli import Config, Overrides, app, load_job


@app.command(
    "finetune",
    rich_help_panel="The stages of run",
    epilog="example: bertvision finetune configs/rte.toml finetune.snapshots='[0.3, 1]'",
)
def finetune(config: Config, overrides: Overrides = None) -> None:
    """Fine-tune the encoder a little and keep it at every snapshot (the first stage of run)."""
    job = load_job(config, overrides)
    from bertvision.pipeline.finetune import finetune as finetune_encoder
    from bertvision.pipeline.run import open_run

    open_run(job)
    finetune_encoder(job)
    typer.echo(f"run folder: {job.folder.path}")
