"""The experiments of the results page, from experiments.toml (those of the papers: `bertvision reproduce`):

python -m paper.experiments list
python -m paper.experiments show squad2_gte --seed 1 [--hub] [--to FILE]               print it as a config
python -m paper.experiments run squad2_gte --seed 1 [--hub] [section.key=value …]      like `bertvision run CONFIG`
"""

import tempfile
import tomllib
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import Overrides, print_table
from bertvision.cli.run import run as run_config
from bertvision.config import RunConfig
from bertvision.disk import write_text
from bertvision.errors import UserError, suggest
from bertvision.papers.fragments import Settings, follow_rate, merge, pin_output_rate, points_of, settings_of
from bertvision.papers.published import read_papers_file
from bertvision.report.toml import to_toml
from bertvision.tables import Table

FILE = Path(__file__).with_name("experiments.toml")


@dataclass(frozen=True)
class ExperimentConfig:
    name: str
    about: str
    seeds: int
    """The number of seeds to run."""
    common: Settings
    """The settings that both variants share."""
    local: Settings
    """The data and encoder that the results were measured with."""
    hub: Settings
    """The hub's data and BERT-base instead."""

    def settings(self, seed: int = 0, hub: bool = False) -> Settings:
        """The experiment as the tables of a config file."""
        whole = merge(self.common, self.hub if hub else self.local)
        whole = pin_output_rate(whole | {"seed": seed, "run": whole["run"].format(name=self.name, seed=seed)})
        order = [field.name for field in fields(RunConfig)]
        assert whole.keys() <= {*order}, f"experiments.toml has unknown sections: {whole.keys() - {*order}}"
        return {section: deepcopy(whole[section]) for section in order if section in whole}


# ---------------------------------------------------------------------- reading the file


@cache
def load_experiments(path: Path = FILE) -> dict[str, ExperimentConfig]:
    """All experiments by name, in file order."""
    file = tomllib.loads(path.read_text(encoding="utf-8"))
    file["bases"] = {**read_papers_file()["bases"], **file["bases"]}
    found: dict[str, ExperimentConfig] = {}
    for entry in file["experiments"]:
        for point in points_of(entry):
            settings = settings_of(entry, point, file)
            own = {key: settings.pop(key) for key in ("about", "seeds", "local", "hub")}
            name = entry["name"].format(**point)
            assert name not in found, f"two experiments are called '{name}'"
            found[name] = ExperimentConfig(name, common=settings, **own)
    return found


def find_experiment(name: str) -> ExperimentConfig:
    experiments = load_experiments()
    if name not in experiments:
        raise UserError(f"there is no experiment '{name}': {suggest(name, experiments)}")
    return experiments[name]


# ---------------------------------------------------------------------- the command

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The experiments of the results page.")
Name = Annotated[str, typer.Argument(help="An experiment that `list` shows.", show_default=False)]
Seed = Annotated[int, typer.Option(help="Random seed.")]
OnHub = Annotated[bool, typer.Option("--hub", help="The hub's data and BERT-base instead of local files.")]
To = Annotated[Path | None, typer.Option(help="Write the config to this file.", show_default=False)]


@app.command("list")
def list_all() -> None:
    """List all experiments: name, seeds, task, encoder, description."""
    rows = []
    for one in load_experiments().values():
        settings = one.settings()
        rows.append([one.name, str(one.seeds), settings["task"]["name"], settings["encoder"]["name"], one.about])
    print_table(Table(title="experiments", columns=["name", "seeds", "task", "encoder", "description"], rows=rows))


@app.command()
def show(name: Name, seed: Seed = 0, hub: OnHub = False, to: To = None) -> None:
    """Print an experiment as a config with all of its settings."""
    text = to_text(find_experiment(name), seed, hub)
    if to is None:
        typer.echo(text, nl=False)
    else:
        write_text(to, text)


@app.command()
def run(name: Name, overrides: Overrides = None, seed: Seed = 0, hub: OnHub = False) -> None:
    """Run an experiment, like `bertvision run CONFIG`."""
    experiment, words = find_experiment(name), list(overrides or [])
    if "output_lr" in experiment.settings(seed, hub)["finetune"]:
        words = follow_rate(words)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.toml"
        write_text(path, to_text(experiment, seed, hub))
        run_config(str(path), words)


def to_text(experiment: ExperimentConfig, seed: int, hub: bool) -> str:
    """A complete config, below a comment that describes it."""
    about = f"{experiment.name}: {experiment.about}" + (" (on the hub's data with BERT-base)" if hub else "")
    settings = experiment.settings(seed, hub)
    lists = [_one_a_line(key, settings.pop(key)) for key in ("heads", "ensembles") if settings.get(key)]
    return "\n".join([f"# {about}", *lists, to_toml(settings)])


def _one_a_line(key: str, items: list[Any]) -> str:
    """A list in TOML, one item per line."""
    whole = [to_toml({key: [item]}) for item in items]
    texts = [text[text.index("[") + 1 : text.rindex("]")].strip() for text in whole]
    return "\n".join([f"{key} = [", *(f"    {text}," for text in texts), "]"])


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
