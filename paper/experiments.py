"""The experiments of the results page and of the papers, from experiments.toml:

python -m paper.experiments list
python -m paper.experiments show squad2_gte --seed 1 [--hub] [--to FILE]               print it as a config
python -m paper.experiments run squad2_gte --seed 1 [--hub] [section.key=value …]      like `bertvision run CONFIG`
"""

import itertools
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
from bertvision.heads import find_preset, setting_types
from bertvision.kinds import SPAN
from bertvision.report.toml import to_toml
from bertvision.tables import Table
from bertvision.tasks.config import TASKS

FILE = Path(__file__).with_name("experiments.toml")
Settings = dict[str, Any]
"""Nested tables, as a config file has them."""


@dataclass(frozen=True)
class ExperimentConfig:
    name: str
    about: str
    seeds: int
    """The number of seeds to run."""
    on_page: bool
    """Whether it belongs to the results page."""
    published: str | None
    """The papers' own scores."""
    common: Settings
    """The settings that both variants share."""
    local: Settings
    """The data and encoder that the results were measured with."""
    hub: Settings | None
    """The hub's data and BERT-base instead; None where there is only one variant."""

    def settings(self, seed: int = 0, hub: bool = False) -> Settings:
        """The experiment as the tables of a config file."""
        if hub and self.hub is None:
            raise UserError(f"'{self.name}' has no variant for --hub: its data and encoder come from the hub already.")
        whole = merge(self.common, (self.hub or {}) if hub else self.local)
        whole |= {"seed": seed, "run": whole["run"].format(name=self.name, seed=seed)}
        if TASKS[whole["task"]["name"]].kind is not SPAN:  # where it is the default
            whole["finetune"] = {"output_lr": whole["finetune"]["lr"], **whole["finetune"]}
        order = [field.name for field in fields(RunConfig)]
        assert whole.keys() <= {*order}, f"experiments.toml has unknown sections: {whole.keys() - {*order}}"
        return {section: deepcopy(whole[section]) for section in order if section in whole}


# ---------------------------------------------------------------------- reading the file


@cache
def load_experiments(path: Path = FILE) -> dict[str, ExperimentConfig]:
    """All experiments by name, in file order."""
    file = tomllib.loads(path.read_text(encoding="utf-8"))
    found: dict[str, ExperimentConfig] = {}
    for entry in file["experiments"]:
        axes = entry.get("grid", {})
        for point in itertools.product(*axes.values()):
            experiment = _build(entry, dict(zip(axes, point, strict=True)), file)
            assert experiment.name not in found, f"two experiments are called '{experiment.name}'"
            found[experiment.name] = experiment
    return found


def find_experiment(name: str) -> ExperimentConfig:
    experiments = load_experiments()
    if name not in experiments:
        raise UserError(f"there is no experiment '{name}': {suggest(name, experiments)}")
    return experiments[name]


def page_experiments() -> dict[str, ExperimentConfig]:
    """The experiments of the results page."""
    return {name: one for name, one in load_experiments().items() if one.on_page}


def _build(entry: Settings, point: dict[str, str], file: Settings) -> ExperimentConfig:
    """The experiment of one point of an entry's grid."""
    own = {key: value for key, value in entry.items() if key not in ("name", "base", "grid")}
    fragments = [file["grids"][axis][value] for axis, value in point.items()]
    settings: Settings = {}
    for part in (_expand(entry, file["bases"]), *fragments, own):
        settings = merge(settings, part)
    defaults = settings.pop("head_defaults", {})
    settings["heads"] = [_with_defaults(head, defaults) for head in settings["heads"]]
    name = entry["name"].format(**point)
    return ExperimentConfig(
        name,
        about=settings.pop("about"),
        seeds=settings.pop("seeds"),
        on_page=settings.pop("page"),
        published=file["published"].get(name),
        local=settings.pop("local", {}),
        hub=settings.pop("hub", None),
        common=settings,
    )


def _expand(fragment: Settings, bases: dict[str, Settings]) -> Settings:
    """The merged settings of a fragment's bases and of their own bases."""
    found: Settings = {}
    for name in fragment.get("base", []):
        own = {key: value for key, value in bases[name].items() if key != "base"}
        found = merge(merge(found, _expand(bases[name], bases)), own)
    return found


def merge(below: Settings, above: Settings) -> Settings:
    """Both tables in one; `above` overrides `below`. Inner tables are merged too, lists are replaced."""
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        both[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def _with_defaults(entry: Any, defaults: Settings) -> Any:
    """An entry of `heads` with the defaults its head has a setting for. Settings would change its name, so that is
    set too."""
    table = {"head": entry} if isinstance(entry, str) else entry
    known = setting_types(find_preset(table["head"])[0])
    missing = {key: value for key, value in defaults.items() if key in known and key not in table}
    return {**table, **missing, "name": table.get("name", table["head"])} if missing else entry


# ---------------------------------------------------------------------- the command

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="The experiments of the results page and the papers."
)
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
    if "output_lr" in experiment.settings(seed, hub)["finetune"]:  # it is that of the encoder
        rates = [word for word in words if word.startswith("finetune.lr=")]
        words = [rate.replace("finetune.lr", "finetune.output_lr") for rate in rates] + words
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.toml"
        write_text(path, to_text(experiment, seed, hub))
        run_config(str(path), words)


def to_text(experiment: ExperimentConfig, seed: int, hub: bool) -> str:
    """A complete config, below a comment that describes it."""
    about = f"{experiment.name}: {experiment.about}" + (" (on the hub's data with BERT-base)" if hub else "")
    published = "" if experiment.published is None else f"\n\nPublished: {experiment.published}"
    comment = [f"# {line}".rstrip() for line in (about + published).split("\n")]
    settings = experiment.settings(seed, hub)
    lists = [_one_a_line(key, settings.pop(key)) for key in ("heads", "ensembles") if settings.get(key)]
    return "\n".join([*comment, *lists, to_toml(settings)])


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
