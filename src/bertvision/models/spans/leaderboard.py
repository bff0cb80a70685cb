"""The leaderboard of a fit on questions: what was tried, how it scored, and what training added to the shipped head."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bertvision.models.spans.candidates import KIT
from bertvision.tables import Column, Headings, Rows, Table, counted

BASELINE = "never_answering"


@dataclass(frozen=True)
class Line:
    """One row of the leaderboard. Scores are in percent; None where there is none."""

    name: str
    f1: float | None
    """F1 on questions that the model did not read, at the no-answer threshold chosen on them."""
    exact: float | None
    f1_sd: float | None
    """Standard deviation of `f1` over the folds, or over five parts of the held-out questions."""
    answerable_f1: float | None
    """F1 on answerable questions when the model must answer."""
    dev_f1: float | None
    dev_exact: float | None
    dev_answerable_f1: float | None
    seconds: float
    parameters: int
    note: str = ""
    role: str = "head"

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "role"}


@dataclass(frozen=True)
class Leaderboard:
    lines: Sequence[Line]
    chosen: str
    how: str
    """cv or held_out."""
    folds: int
    questions: int
    """Questions that the candidates are judged on."""
    unit: str
    """What is never on both sides: article, passage or question."""
    tied: tuple[str, ...] = ()
    """Models that the best F1 can't be told apart from, and which the chosen one was chosen from."""
    gain_error: float | None = None
    """Standard error of the difference in F1 between the best trained head and the shipped one."""

    def find(self, name: str) -> Line | None:
        return next((line for line in self.lines if line.name == name), None)

    def table(self) -> Table:
        columns: Headings = [
            "", "model", Column("F1", 1), Column("± sd", 1), Column("EM", 1), Column("answerable-only F1", 1),
            Column("dev F1", 1), Column("dev EM", 1), Column("dev answerable-only F1", 1), Column("seconds", 1),
            "parameters", "note",
        ]  # fmt: skip
        rows: Rows = [
            [
                "*" if line.name == self.chosen else "", line.name, line.f1, line.f1_sd, line.exact, line.answerable_f1,
                line.dev_f1, line.dev_exact, line.dev_answerable_f1, line.seconds, line.parameters, line.note,
            ]
            for line in self.lines
        ]  # fmt: skip
        found = Table(columns, rows).without_empty()
        found.first_to_go = ("note", "seconds", "± sd", "dev EM")
        return found

    @property
    def where(self) -> str:
        apart = f"no {self.unit} on both sides"
        if self.how == "cv":
            return f"{self.folds}-fold cross-validation on {counted(self.questions, 'question')}, {apart}"
        return f"{counted(self.questions, 'held-out question')}, {apart}"

    def why(self) -> str:
        """Which model was chosen, and why."""
        best = self.find(self.chosen)
        assert best is not None and best.f1 is not None
        where = f"{'in' if self.how == 'cv' else 'on'} {self.where}"
        said = f"Chosen: {self.chosen}, the best F1 {where}."
        if len(self.tied) > 1:
            others = ", ".join(name for name in self.tied if name != self.chosen)
            said = (
                f"Chosen: {self.chosen}, which gives the answers the highest probability among the models whose F1 is "
                f"within one standard error of the best (the others: {others}) {where}."
            )
        baseline = self.find(BASELINE)
        if baseline is not None and baseline.f1 is not None and best.f1 <= baseline.f1:
            said += " It does not beat never answering."
        return said

    def gain(self) -> str:
        """What training on the questions added to the shipped head; empty if there is nothing to compare."""
        kit = self.find(KIT)
        trained = [line for line in self.lines if line.role == "head" and line.name != KIT and line.f1 is not None]
        if kit is None or kit.f1 is None or not trained:
            return ""
        shown = self.find(self.chosen)
        best = shown if shown in trained else max(trained, key=lambda line: line.f1 or 0.0)
        assert best is not None and best.f1 is not None
        error = "" if self.gain_error is None else f" (standard error {self.gain_error:.1f})"
        said = f"changes F1 by {best.f1 - kit.f1:+.1f} points{error}"
        if best.answerable_f1 is not None and kit.answerable_f1 is not None:
            said += f" and answerable-only F1 by {best.answerable_f1 - kit.answerable_f1:+.1f}"
        return f"Training on your questions ({best.name}) {said}, compared with the shipped head as it is."
