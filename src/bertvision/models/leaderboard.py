"""The leaderboard of a fit: what was tried, how it scored, what it cost, and what all layers added."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from bertvision.disk import as_form
from bertvision.errors import UserError
from bertvision.kinds import KINDS
from bertvision.tables import Column, Headings, Rows, Table, counted

PARTS = 5
"""Without folds, the spread is that of this many parts of the held-out rows."""
LAST_LAYER = ("last_lr", "last_lr_cls", "last_lr_towers", "cosine_lr")
"""Rows that read only the last layer. Its best reading is what the other layers are held against."""


@dataclass(frozen=True)
class Line:
    """One row of the leaderboard. Scores are in percent; None where there is none."""

    name: str
    cv: float | None
    """The score on rows that the model did not read."""
    cv_sd: float | None
    """Standard deviation of that score over the folds, or over five parts of the held-out rows."""
    f1_macro: float | None
    dev: float | None
    seconds: float
    parameters: int
    note: str = ""
    role: str = "head"

    def to_dict(self) -> dict[str, Any]:
        keys = ("name", "cv", "cv_sd", "f1_macro", "dev", "seconds", "parameters", "note")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Leaderboard:
    lines: Sequence[Line]
    chosen: str
    metric: str
    title: str
    """The metric's name for people."""
    how: str
    """cv or held_out."""
    folds: int
    rows: int
    """Rows that the candidates are judged on."""
    tied: int = 1
    """Models within one standard error of the best. The chosen one has the lowest log-loss of them."""

    def find(self, name: str) -> Line | None:
        return next((line for line in self.lines if line.name == name), None)

    def table(self) -> Table:
        score = self.title if self.metric in ("pearson", "spearman") else f"{self.title}, %"
        columns: Headings = [
            "", "model", Column(score, 1), Column("± sd", 1), Column("macro-F1, %", 1), Column("dev", 1),
            Column("seconds", 1), "parameters", "note",
        ]  # fmt: skip
        rows: Rows = [
            [
                "*" if line.name == self.chosen else "", line.name, line.cv, line.cv_sd, line.f1_macro, line.dev,
                line.seconds, line.parameters, line.note,
            ]
            for line in self.lines
        ]  # fmt: skip
        if not any(line.note for line in self.lines):
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        found = Table(columns, rows).without_empty()
        found.first_to_go = ("note", "seconds", "± sd")
        return found

    @property
    def where(self) -> str:
        if self.how == "cv":
            return f"{self.folds}-fold cross-validation on {counted(self.rows, 'row')}"
        return f"{counted(self.rows, 'held-out row')}"

    def why(self) -> str:
        """Which model was chosen, and why."""
        best = self.find(self.chosen)
        assert best is not None and best.cv is not None
        where = f"{'in' if self.how == 'cv' else 'on'} {self.where}"
        said = f"Chosen: {self.chosen}, the best {where}."
        if best.role == "tuned":
            said = (
                f"Chosen: {self.chosen}. A tuned encoder is taken unless another model is more than two standard "
                f"errors better {where}."
            )
        elif self.tied > 1:
            said = (
                f"Chosen: {self.chosen}, which has the lowest log-loss of the {self.tied} models that are within one "
                f"standard error of the best accuracy {where}."
            )
        baseline = next((line for line in self.lines if line.role == "baseline"), None)
        if baseline is not None and baseline.cv is not None and best.cv <= baseline.cv:
            said += " It does not beat the majority baseline, which reads no text."
        return said

    def gain(self) -> str:
        """What all layers added over the last and over the best single layer; empty if one of them was not tried."""
        compared = (*LAST_LAYER, "best_layer_lr")
        heads = [line for line in self.lines if line.role in ("head", "ensemble") and line.name not in compared]
        scored = [line for line in heads if line.cv is not None]
        lasts = [line for line in self.lines if line.name in LAST_LAYER and line.cv is not None]
        single = self.find("best_layer_lr")
        if not scored or not lasts:
            return ""
        last = max(lasts, key=lambda line: line.cv or 0.0)
        best = max(scored, key=lambda line: line.cv or 0.0)
        assert best.cv is not None and last.cv is not None
        which = "" if len(lasts) == 1 else f" ({last.name})"
        said = f"All layers ({best.name}) {_against(best.cv - last.cv)} the last layer{which}"
        if single is not None and single.cv is not None:
            said += f", and {_against(best.cv - single.cv)} the best single layer"
        return f"{said}.{self._tuning_gain(max(best.cv, last.cv))}"

    def _tuning_gain(self, untouched: float) -> str:
        """What tuning the encoder added over the best score on the untouched one; empty if it was not tried."""
        tuned = [line for line in self.lines if line.role == "tuned" and line.cv is not None]
        if not tuned:
            return ""
        best = max(tuned, key=lambda line: line.cv or 0.0)
        assert best.cv is not None
        return f" Heads on the tuned encoder ({best.name}) {_against(best.cv - untouched)} those on the untouched one."


def _against(gain: float) -> str:
    if abs(gain) < 0.05:
        return "score the same as"
    return f"add {gain:.1f} points over" if gain > 0 else f"lose {-gain:.1f} points to"


def spread(scores: Sequence[float]) -> float | None:
    """Standard deviation of a few scores."""
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else None


class Lines(list[dict[str, Any]]):
    """The rows of a leaderboard as dicts, printed as a table."""

    board: Leaderboard

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Lines":
        """`facts` are the contents of model.json."""
        found = cls(facts["leaderboard"])
        try:
            lines = as_form(list(found), list[Line])
        except ValueError as error:
            raise UserError(f"model.json is damaged (leaderboard: {error}): fit the model again.") from None
        title = KINDS[facts["kind"]].title(facts["metric"]) or facts["metric"]
        choice = facts["choice"]
        found.board = Leaderboard(
            lines, facts["chosen"], facts["metric"], title, choice["how"], choice["folds"], choice["rows"]
        )
        return found

    def __repr__(self) -> str:
        table = self.board.table()
        cells = [table.headings, *table.texts()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = [
            "  ".join(
                cell.rjust(width) if numeric else cell.ljust(width)
                for cell, width, numeric in zip(row, widths, table.is_numeric(), strict=True)
            ).rstrip()
            for row in cells
        ]
        return "\n".join([*rows, f"Scores: {self.board.where}."])

    def _repr_html_(self) -> str:
        table = self.board.table()
        rows = [("th", table.headings), *(("td", row) for row in table.texts())]
        written = ["<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>" for tag, row in rows]
        return f"<table>{''.join(written)}</table><p>Scores: {escape(self.board.where)}.</p>"
