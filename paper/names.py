"""What the page calls things, the figures it gives, and the colours that stay the same from picture to picture."""

from typing import Any

from bertvision.evaluation.metrics import LABEL_METRICS, SCORE_METRICS
from bertvision.heads import CONTROL
from bertvision.kinds.span import FIGURES
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.drawing import import_altair
from bertvision.report.wording import ENCODER as ENCODER_ITSELF

ENCODERS = {"gte": "gte-small", "minilm": "all-MiniLM-L6-v2"}
SQUAD = "SQuAD 2.0, partial train"
TITLES = {
    BASELINE: "baseline: never answers",
    ENCODER: ENCODER_ITSELF,
    CONTROL: f"{CONTROL} (control)",
}
SPAN_FIGURES = [(one.key, one.heading) for one in FIGURES if "Ans_" not in one.key]
"""(key in a model's scores, heading); a dot leads inside."""
SPAN_NOTES = {
    "EM": "official, at threshold 0, as the papers give it",
    "F1": "official, at threshold 0, as the papers give it",
    "EM*": "at the no-answer threshold chosen on held-out training questions",
    "F1*": "at the no-answer threshold chosen on held-out training questions",
    "answerable-only EM": "on answerable questions, when the model must answer: no threshold",
    "answerable-only F1": "on answerable questions, when the model must answer: no threshold",
    "AUC": "of the no-answer score: no threshold",
}
FORCED, AUC = "forced_f1", "no_answer_auc"
JUDGED = ("f1", "at_threshold.f1", FORCED, AUC)
"""What claims about spans are judged by: with threshold 0, with a chosen one, and without any."""
LABELS = {
    **{name: metrics[name].title for metrics in (LABEL_METRICS, SCORE_METRICS) for name in metrics},
    **{one.key: one.heading for one in FIGURES},
    "NoAns_f1": "F1 on unanswerable ones",
    "at_threshold.NoAns_f1": "F1* on unanswerable ones",
}

SECONDS = "of a run that had the GPU to itself; ≤: an upper bound, since other runs shared it"
RANDOM = "As it came, the encoder's own output layer is random: its row, and any ensemble with it, say nothing there."
COLOURS = 8
"""How many the theme has."""


def colour_by_place(field: str, places: dict[str, int], shown: list[str]) -> tuple[Any, Any]:
    """Colours and shapes of a field's values by their places in the theme, with one legend of those that are shown."""
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
