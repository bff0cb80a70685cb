"""A run's scores as tables: on the terminal, and as summary.md in the run folder."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bertvision.kinds import KINDS, Figure, Kind
from bertvision.tables import Table
from bertvision.words import counted

SECONDS = {"seconds": "seconds: the encoder's fine-tuning so far; a head's pass, which all heads share."}
FIRST_TO_GO = ("forced EM", "F1 has", "F1 no", "seconds", "% of encoder", "forced F1")
SEEDS_NOTE = "±: standard deviation over the seeds, which change a head's start and dropout; the data's order is one."
BEGUN = "began with the weights of a trained head; what that one learned from, and its seconds, are not counted here."


def score_tables(scores: dict[str, Any]) -> list[Table]:
    """A table for each snapshot that has heads and each dev split, and the fine-tuning curve where there is one."""
    tables = []
    snapshots = scores["snapshots"]
    splits = [split for split in next(iter(snapshots.values()))["baseline"]["scores"]]
    for split in splits:
        with_heads = {epochs: models for epochs, models in snapshots.items() if len(models) > 2}
        for epochs, models in (with_heads or {last(snapshots): snapshots[last(snapshots)]}).items():
            tables.append(_model_table(scores, epochs, models, split))
        if len(snapshots) > 1:
            tables.append(_curve_table(scores, snapshots, split))
    return tables


def last(snapshots: dict[str, Any]) -> str:
    return list(snapshots)[-1]


def _model_table(scores: dict[str, Any], epochs: str, models: dict[str, Any], split: str) -> Table:
    columns = _score_figures(scores, models, split)
    groups: dict[str, list[str]] = {}
    for name, model in models.items():
        groups.setdefault(model.get("group", name), []).append(name)
    rows = []
    for group, names in groups.items():
        model = models[names[0]]
        share = f"{100 * model['share']:.3f}" if "share" in model else ""
        well = [models[name]["scores"].get(split, {}) for name in names if not models[name].get("failed")]
        figures = [_spread([read_figure(found, one.key) for found in well]) for one in columns] if well else ["stopped"]
        if len(names) > 1:
            stopped = f", {len(names) - len(well)} stopped" if len(well) < len(names) else ""
            shown = f"{_model_name(group, model)}, {len(names)} seeds{stopped}"
        else:
            shown = _model_name(names[0], model)
        figures += [""] * (len(columns) - len(figures))
        rows.append([shown, f"{model['parameters']:,}", share, *figures, _seconds(model)])
    headings = ["model", "parameters", "% of encoder", *(one.heading for one in columns), "seconds"]
    title = f"{scores['task']} {split}, encoder fine-tuned for {counted(float(epochs), 'epoch')}"
    spread = [SEEDS_NOTE] if any(len(names) > 1 for names in groups.values()) else []
    begun = begun_note([group for group, names in groups.items() if models[names[0]].get("begun")])
    notes = [KINDS[scores["kind"]].baseline_note, *spread, *([begun] if begun else [])]
    return Table(title, headings, rows, " ".join(notes), FIRST_TO_GO, meanings_of(columns) | SECONDS)


def begun_note(names: list[str]) -> str:
    """What is told of heads that did not begin with random weights; nothing where there is none."""
    return f"{', '.join(names)} {BEGUN}" if names else ""


def _curve_table(scores: dict[str, Any], snapshots: dict[str, Any], split: str) -> Table:
    columns = _score_figures(scores, snapshots[last(snapshots)], split)
    rows = []
    for epochs, models in snapshots.items():
        encoder = models["encoder"]
        figures = [figure(encoder["scores"][split], one.key) for one in columns]
        rows.append([epochs, *figures, _seconds(encoder)])
    title = f"{scores['task']} {split}, fine-tuning curve of the encoder itself"
    headings = ["epochs", *(one.heading for one in columns), "seconds"]
    return Table(title, headings, rows, first_to_go=FIRST_TO_GO, meanings=meanings_of(columns) | SECONDS)


def _score_figures(scores: dict[str, Any], models: dict[str, Any], split: str) -> list[Figure]:
    found = [model["scores"].get(split, {}) for model in models.values()]
    return score_figures(KINDS[scores["kind"]], scores["metrics"], found)


def score_figures(kind: Kind, metrics: Sequence[str], found: list[dict[str, Any]]) -> list[Figure]:
    """The columns of a table of these scores: figures that any of them has."""
    return [one for one in kind.figures(metrics) if any(figure(scores, one.key) for scores in found)]


def meanings_of(figures: Iterable[Figure]) -> dict[str, str]:
    """By heading, for the line under a table."""
    return {one.heading: one.note for one in figures if one.note}


def read_figure(scores: dict[str, Any], key: str) -> float | None:
    """A figure of a model; a dot in the key leads into `at_threshold`."""
    value: Any = scores
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def figure(scores: dict[str, Any], key: str) -> str:
    """As a table shows it, empty where there is none."""
    return _spread([read_figure(scores, key)])


def _spread(values: list[float | None]) -> str:
    """One figure, or the mean of several and their standard deviation."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return f"{known[0]:.2f}" if known else ""
    return f"{statistics.mean(known):.2f} ± {statistics.stdev(known):.2f}"


def _model_name(name: str, model: dict[str, Any]) -> str:
    if name == "encoder":
        return "encoder itself"
    return f"{name} (control)" if model.get("head") == "last_linear" else name


def _seconds(model: dict[str, Any]) -> str:
    """Fine-tuning so far for the encoder; for a head its own share of the pass."""
    return f"{model['seconds']:.1f}" if model["parameters"] else ""
