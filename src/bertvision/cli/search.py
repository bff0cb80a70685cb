"""bertvision search CONFIG [section.key=value …]"""

from typing import Any

import typer

from bertvision.cli import AsJson, Config, Overrides, Wait, app, load_job, print_json, print_run, print_table


@app.command(
    "search",
    rich_help_panel="Main commands",
    epilog="Example: bertvision search configs/search_rte.toml search.members=100 search.sampler=random",
)
def search(config: Config, overrides: Overrides = None, wait: Wait = False, json: AsJson = False) -> None:
    """Search for the best head and settings on held-out data, then score the winner on dev."""
    job = load_job(config, overrides, _find_mistakes, wait)
    from bertvision.search.run import search as run_search
    from bertvision.search.study import quiet_optuna

    quiet_optuna()
    found = run_search(job)
    if not job.machine.is_main:
        return
    if json:
        print_json({"run": str(found.run.folder), "search": found.history.to_dict(), **found.run.scores})
        return
    print_table(found.history.to_table())
    typer.echo(f"history: {job.folder.path / 'search'} (history.csv, history.svg, study.jsonl)\n")
    print_run(job, found.run.scores, as_json=False)


def _find_mistakes(config: Any) -> list[str]:
    from bertvision.search.space import find_mistakes

    return find_mistakes(config)
