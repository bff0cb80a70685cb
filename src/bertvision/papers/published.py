"""The published experiments: their runs, and the papers' tables of scores, from papers.toml."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from bertvision.errors import UserError, suggest
from bertvision.papers.fragments import Settings, points_of, settings_of, with_output_rate
from bertvision.tables import Table

BEST_HEAD = "best head"
"""In place of a model's name: the best head on held-out data."""
SIZES = {768: "base", 1024: "large"}
"""Hidden size → the encoder of 2021 that scores were published for."""


@dataclass(frozen=True)
class PaperRun:
    name: str
    settings: Settings
    size: str | None
    """The encoder that it belongs to; None: any."""


@dataclass(frozen=True)
class Line:
    """The published scores of one model at one snapshot. Without scores, the model is shown, but nothing beside it."""

    task: str
    name: str
    run: str
    model: str
    """The name of a model of the run, or of a group of seeds."""
    epochs: float
    split: str | None
    """None: the first dev split."""
    figures: tuple[str, ...]
    """Keys of the metrics."""
    scores: tuple[float, ...]
    """One for each of `figures`, or none."""


@dataclass(frozen=True)
class PaperTable:
    title: str
    lines: list[Line]
    size: str | None


@dataclass(frozen=True)
class PaperExperiment:
    name: str
    about: str
    encoder: str
    """The name on the hub of the papers' encoder."""
    notes: list[str]
    """What differs from the papers."""
    runs: list[PaperRun]
    tables: list[PaperTable]

    def of_size(self, hidden: int) -> tuple[list[PaperRun], list[PaperTable]]:
        """The runs and tables that belong to an encoder of this hidden size. Other sizes get those of BERT-base."""
        size = SIZES.get(hidden, "base")
        return (
            [run for run in self.runs if run.size in (None, size)],
            [table for table in self.tables if table.size in (None, size)],
        )


@cache
def load_papers() -> dict[str, PaperExperiment]:
    """All published experiments by name, in file order."""
    file = read_papers_file()
    return {entry["name"]: _build(entry, file) for entry in file["experiments"]}


def read_papers_file() -> Settings:
    return tomllib.loads(files("bertvision.papers").joinpath("papers.toml").read_text(encoding="utf-8"))


def list_papers() -> Table:
    file = read_papers_file()
    rows = []
    for entry in file["experiments"]:
        runs = sum(len(list(points_of(one))) for one in entry["runs"])
        rows.append([entry["name"], entry["encoder"], runs, entry["about"]])
    return Table(["experiment", "encoder", "runs", "description"], rows, "published experiments")


def find_paper(name: str) -> PaperExperiment:
    papers = load_papers()
    if name not in papers:
        raise UserError(f"there is no published experiment '{name}': {suggest(name, papers)}")
    return papers[name]


def _build(entry: Settings, file: Settings) -> PaperExperiment:
    runs = []
    for one in entry["runs"]:
        for point in points_of(one):
            settings = settings_of(one, point, file)
            size = settings.pop("size", None)
            runs.append(PaperRun(one["name"].format(**point), with_output_rate(settings), size))
    tables = [
        PaperTable(table["title"], [line for row in table["rows"] for line in _lines(row, table)], table.get("size"))
        for table in entry["tables"]
    ]
    return PaperExperiment(entry["name"], entry["about"], entry["encoder"], entry["notes"], runs, tables)


def _lines(row: dict[str, Any], table: dict[str, Any]) -> list[Line]:
    figures = tuple(row.get("figures") or table["figures"])
    found = []
    for epochs, scores in row["at"].items():
        assert len(scores) in (0, len(figures)), f"'{row['name']}' has {len(scores)} scores for {figures}"
        run = row.get("run") or table["run"]
        shown = row.get("task", ""), row["name"], run, row["model"]
        found.append(Line(*shown, float(epochs), row.get("split"), figures, tuple(scores)))
    return found
