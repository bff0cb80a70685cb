"""bertvision finetune CONFIG [section.key=value …]"""

import typer

from bertvision.cli import Config, Overrides, Wait, app, load_job


@app.command(
    "finetune",
    rich_help_panel="Individual stages",
    epilog="Example: bertvision finetune configs/rte.toml finetune.snapshots='[0.3, 1]'",
)
def finetune(config: Config, overrides: Overrides = None, wait: Wait = False) -> None:
    """Fine-tune the encoder and save it at every snapshot."""
    job = load_job(config, overrides, wait=wait)
    from bertvision.pipeline.finetune import finetune as finetune_encoder
    from bertvision.pipeline.run import open_run

    with job.writing():
        open_run(job)
        if not job.config.finetune.epochs:
            job.reporter.say("finetune.epochs is 0: the encoder stays untouched. Set finetune.epochs to fine-tune it.")
        finetune_encoder(job)
    typer.echo(f"run folder: {job.folder.path}")
