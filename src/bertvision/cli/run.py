"""bertvision run CONFIG [section.key=value …]"""

import typer

from bertvision.cli.output import AsJson, Config, Overrides, load_job, print_run


def add_to(app: typer.Typer) -> None:
    app.command(
        "run",
        rich_help_panel="Run",
        epilog="example: bertvision run configs/rte.toml finetune.epochs=0.3 data.limit_train=500",
    )(run)


def run(config: Config, overrides: Overrides = None, json: AsJson = False) -> None:
    """Fine-tune, train every head in one pass, score: all stages, each only where it is not done yet."""
    job = load_job(config, overrides)
    from bertvision.pipeline.run import run_job

    print_run(job, run_job(job), json)
