"""bertvision run CONFIG_OR_DATA [section.key=value …]"""

from bertvision.cli import AsJson, Config, Overrides, Wait, app, load_job, print_run


@app.command(
    "run",
    rich_help_panel="Main commands",
    epilog="Example: bertvision run configs/rte.toml finetune.epochs=0.3 data.limit_train=500",
)
def run(config: Config, overrides: Overrides = None, wait: Wait = False, json: AsJson = False) -> None:
    """Train every head in one pass and score them all. Fine-tunes the encoder first if asked. Skips finished stages."""
    job = load_job(config, overrides, wait=wait)
    from bertvision.pipeline.run import run_job

    print_run(job, run_job(job), json)
