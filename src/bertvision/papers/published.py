"""The published experiments: their runs, and the papers' tables of scores, from papers.toml."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from bertvision.errors import UserError, suggest
from bertvision.papers.fragments import Settings, pin_output_rate, points_of, settings_of
from bertvision.tables import Cell, Table

SIZES = {768: "base", 1024: "large"}
"""Hidden size → the encoder of 2021 that scores were published for."""


@dataclass(frozen=True)
class PaperRun:
    name: str
    settings: Settings
    size: str | None
    """The encoder that it belongs to; None: any."""
    examples: int
    """Size of the official training set."""


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
    data: str
    encoders: list[str]
    """The names on the hub of the papers' encoders; the first is the default."""
    notes: list[str]
    """What differs from the papers."""
    runs: list[PaperRun]
    tables: list[PaperTable]

    def count_runs(self, size: str) -> int:
        return sum(run.size in (None, size) for run in self.runs)

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
    """What each experiment needs: data, encoder and how many runs with it."""
    rows: list[list[Cell]] = []
    for paper in load_papers().values():
        first, *others = ["large" if "large" in encoder else "base" for encoder in paper.encoders]
        rows.append([paper.name, paper.data, f"BERT-{first}", paper.count_runs(first), paper.about])
        for size, encoder in zip(others, paper.encoders[1:], strict=True):
            rows.append(["", "", f"BERT-{size}", paper.count_runs(size), f"with --encoder {encoder}"])
    note = (
        "EXPERIMENT --cost measures what it takes on this machine; --quick proves in minutes that everything works. "
        "Data and encoder come from the hub, or from folders (--data, --encoder)."
    )
    return Table(["experiment", "data", "encoder", "runs", "description"], rows, "Published experiments", note)


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
            examples = file["examples"][settings["task"]["name"]]
            runs.append(PaperRun(one["name"].format(**point), pin_output_rate(settings), size, examples))
    tables = [
        PaperTable(table["title"], [line for row in table["rows"] for line in _lines(row, table)], table.get("size"))
        for table in entry["tables"]
    ]
    return PaperExperiment(
        runs=runs, tables=tables, **{key: entry[key] for key in ("name", "about", "data", "encoders", "notes")}
    )


def _lines(row: dict[str, Any], table: dict[str, Any]) -> list[Line]:
    figures = tuple(row.get("figures") or table["figures"])
    found = []
    for epochs, scores in row["at"].items():
        assert len(scores) in (0, len(figures)), f"'{row['name']}' has {len(scores)} scores for {figures}"
        run = row.get("run") or table["run"]
        shown = row.get("task", ""), row["name"], run, row["model"]
        found.append(Line(*shown, float(epochs), row.get("split"), figures, tuple(scores)))
    return found
