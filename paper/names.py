"""The pages' names for models and metrics, and the colours, which are the same in every picture."""

from typing import Any

from bertvision.evaluation.metrics import LABEL_METRICS, SCORE_METRICS
from bertvision.heads import CONTROL
from bertvision.kinds.span import FIGURES
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.drawing import import_altair
from bertvision.report.wording import ENCODER as ENCODER_ALONE

ENCODERS = {"gte": "gte-small", "minilm": "all-MiniLM-L6-v2"}
SQUAD = "SQuAD 2.0 (part of the training set)"
TITLES = {
    BASELINE: "baseline: never answers",
    ENCODER: ENCODER_ALONE,
    CONTROL: f"{CONTROL} (control)",
}
SPAN_FIGURES = [(one.key, one.heading) for one in FIGURES if "Ans_" not in one.key]
"""(key in a model's scores, column heading). A dot reads inside `at_threshold`."""
SPAN_NOTES = {
    "EM": "official metric at threshold 0, as in the papers",
    "F1": "official metric at threshold 0, as in the papers",
    "EM*": "at the no-answer threshold chosen on held-out questions",
    "F1*": "at the no-answer threshold chosen on held-out questions",
    "answerable-only EM": "on answerable questions, when the model must answer; needs no threshold",
    "answerable-only F1": "on answerable questions, when the model must answer; needs no threshold",
    "AUC": "area under the ROC curve of the no-answer score; needs no threshold",
}
FORCED, AUC = "forced_f1", "no_answer_auc"
JUDGED = ("f1", "at_threshold.f1", FORCED, AUC)
"""The metrics that claims about spans are judged by: at threshold 0, at the chosen threshold, and without one."""
LABELS = {
    **{name: metrics[name].title for metrics in (LABEL_METRICS, SCORE_METRICS) for name in metrics},
    **{one.key: one.heading for one in FIGURES},
    "NoAns_f1": "NoAns F1",
    "at_threshold.NoAns_f1": "NoAns F1*",
}

SECONDS = "of a run that had the GPU to itself; ≤: upper bound, since other runs shared the GPU"
RANDOM = "An untouched encoder's own output layer is random: its row, and any ensemble with it, mean nothing."
COLOURS = 8
"""The number of colours in the theme."""


def colour_by_place(field: str, places: dict[str, int], shown: list[str]) -> tuple[Any, Any]:
    """Colours and shapes for a field's values, by their positions in the theme, with a legend of the `shown` ones."""
    altair, names = import_altair(), {place: name for name, place in places.items()}
    domain = [names.get(place, f"place {place}") for place in range(COLOURS)]
    shapes = ["circle", "square", "diamond", "cross", "triangle-right", "triangle-up", "triangle-down", "cross"]
    legend = altair.Legend(title=None, values=shown, labelLimit=260, orient="bottom", columns=3)
    colour = altair.Color(f"{field}:N", scale=altair.Scale(domain=domain), legend=legend)
    return colour, altair.Shape(f"{field}:N", scale=altair.Scale(domain=domain, range=shapes), legend=legend)


def title_of(model: str) -> str:
    return TITLES.get(model, model.replace("_data_fraction0.", " on 0.").replace("_encoder_", ": encoder, "))


def in_passes(passes: float) -> str:
    return "1 pass" if round(passes) == 1 else f"{passes:.0f} passes"
