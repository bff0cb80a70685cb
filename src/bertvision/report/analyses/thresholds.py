"""Scores as a function of the no-answer threshold (spans only)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.evaluation.spans.answers import NO_SPAN
from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.report.analysis import analysis, gives
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, colour_by, import_altair, off_zero, tips
from bertvision.report.ranking import main_models, results_of
from bertvision.report.wording import in_text, joined, listed, signed, stand_in_note, title_of
from bertvision.tables import Column, Row, Table

POINTS = 60  # evenly spaced thresholds of a curve


@dataclass(frozen=True)
class _Curve:
    """A model whose scores are drawn against the threshold."""

    title: str
    name: str
    """As used in a sentence."""
    model: Model
    results: SpanResults

    @property
    def used(self) -> float:
        """The threshold the model uses: the one chosen for it, or 0."""
        return self.model.threshold or 0.0


@analysis("Predictions", 40, "Scores against the no-answer threshold", [gives(SpanResults)])
def threshold_curve(run: FinishedRun, split: str) -> Block:
    """F1 and EM against the no-answer threshold; the chosen one is marked. The best on this split is never used."""
    groups = main_models(run)
    curves = [
        _Curve(title_of(group), in_text(group), group.trained[0], results_of(group.trained[0], split, SpanResults))
        for group in groups
    ]
    return Block(
        sentences=_describe_thresholds(curves),
        table=Table.of(_threshold_row(one, split) for one in curves),
        picture=_draw_curves(curves, _thresholds(curves)),
        drawn=["threshold", "F1", "F1 at 0", "best threshold", "best F1"],
        note=joined(
            'A model predicts "no answer" if the score of "no answer" exceeds that of the best span by more than the '
            "threshold. The best threshold on this split is for diagnosis only; no other score uses it.",
            stand_in_note(groups),
        ),
        folded=True,
    )


def _threshold_row(one: _Curve, split: str) -> Row:
    chosen, scores, results = one.model.threshold, one.model.scores(split), one.results
    best, forced = best_threshold(results), "On answerable questions; the model must answer"
    return {
        "model": one.title,
        Column("threshold", 3, "Chosen on held-out training questions"): chosen,
        Column("F1", 2, "At the chosen threshold"): None if chosen is None else _f1(results, chosen),
        Column("EM", 2, "At the chosen threshold"): None if chosen is None else _em(results, chosen),
        Column("F1 at 0", 2): _f1(results, 0.0),
        Column("EM at 0", 2): _em(results, 0.0),
        Column("best threshold", 3, "On this split, for diagnosis only"): best,
        Column("best F1", 2, "At the best threshold on this split"): _f1(results, best),
        Column("AUC", 2, "Area under the ROC curve of the no-answer score"): scores.get("no_answer_auc"),
        Column("answerable-only EM", 2, forced): scores.get("forced_exact"),
        Column("answerable-only F1", 2, forced): scores.get("forced_f1"),
    }


def _f1(results: SpanResults, threshold: float) -> float:
    return 100.0 * float(results.f1_at(threshold).mean())


def _em(results: SpanResults, threshold: float) -> float:
    return 100.0 * float(results.exact_at(threshold).mean())


def best_threshold(results: SpanResults) -> float:
    """The threshold with the highest F1 on these questions; of several, the one closest to 0."""
    order = np.argsort(results.lead)  # (example)
    leads = results.lead[order]  # (example)
    gains = np.concatenate([[0.0], np.cumsum((results.f1 - results.silent)[order])])  # (answered questions)
    tried = np.unique(np.concatenate([[0.0, np.nextafter(leads[0], -np.inf)], leads]))  # (threshold)
    # Rounded, because floating-point sums of equal scores may differ in their last digits.
    totals = np.round(gains[np.searchsorted(leads, tried, side="right")], 9)  # (threshold)
    best = tried[totals == totals.max()]  # (threshold)
    return float(best[np.argmin(np.abs(best))])


def _thresholds(curves: Sequence[_Curve]) -> list[float]:
    """The thresholds of a curve: evenly spaced over the leads without their long tails, plus 0, the chosen and the best
    ones."""
    leads = np.concatenate([one.results.lead[one.results.score > NO_SPAN] for one in curves])  # (lead)
    low, high = np.quantile(leads, [0.05, 0.9]).tolist() if len(leads) else (0.0, 0.0)
    best = [at for at in (best_threshold(one.results) for one in curves) if low < at < high]
    return sorted({0.0, *(one.used for one in curves), *best, *np.linspace(low, high, POINTS).tolist()})


def _describe_thresholds(curves: Sequence[_Curve]) -> list[str]:
    missed: list[str] = []
    changed: list[str] = []
    for one in curves:
        used = _f1(one.results, one.used)
        points = "" if missed else " points of F1"
        missed.append(f"{max(0.0, _f1(one.results, best_threshold(one.results)) - used):.2f}{points} for {one.name}")
        if one.model.threshold is not None:
            changed.append(f"{signed(used - _f1(one.results, 0.0))} for {one.name}")
    s = "" if len(curves) == 1 else "s"
    baseline = f"threshold{s} chosen on held-out questions" if len(changed) == len(curves) else f"threshold{s} in use"
    best = f"Compared with the {baseline}, the best threshold{s} on this split would add {listed(missed)}."
    unused = "Best thresholds are for diagnosis only and were not used."
    if not changed:
        return [best, f"{unused} No threshold was chosen on held-out questions, so 0 is used."]
    return [best, f"{unused} Compared with threshold 0, the chosen threshold{s} changed F1 by {listed(changed)}."]


def _draw_curves(curves: Sequence[_Curve], tried: Sequence[float]) -> dict[str, Any]:
    altair = import_altair()
    rows = [row for one in curves for row in _points(one, tried)]
    chosen = [row for one in curves if one.model.threshold is not None for row in _points(one, [one.used])]
    shown = {
        "x": altair.X("threshold:Q", title="no-answer threshold (higher: more questions answered)"),
        "y": off_zero("Y", "score:Q", "score, %"),
        "tooltip": tips(
            ("model:N", "model"),
            ("measure:N", "score"),
            ("threshold:Q", "threshold", ".3f"),
            ("score:Q", "%", ".2f"),
        ),
    }
    colour = colour_by("model", [one.title for one in curves], "model")
    dash = altair.StrokeDash(
        "measure:N", scale=altair.Scale(domain=["F1", "EM"], range=[[1, 0], [4, 3]]), title="score"
    )
    lines = chart_of(rows).mark_line().encode(**shown, color=colour, strokeDash=dash)
    zero = chart_of([{"threshold": 0.0}]).mark_rule(strokeDash=[2, 3])
    zero = zero.encode(x="threshold:Q", tooltip=altair.value("threshold 0"))
    if not chosen:
        return dict((zero + lines).to_dict())
    points = chart_of(chosen).mark_point(size=70, filled=True, opacity=1).encode(**shown, color=colour)
    return dict((zero + lines + points).to_dict())


def _points(one: _Curve, thresholds: Iterable[float]) -> list[dict[str, Any]]:
    return [
        {"model": one.title, "measure": measure, "threshold": round(at, 4), "score": round(score(one.results, at), 3)}
        for at in thresholds
        for measure, score in (("F1", _f1), ("EM", _em))
    ]
