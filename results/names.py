"""What the page calls things, and the figures it gives."""

from bertvision.analysis.words import ENCODER as ENCODER_ITSELF
from bertvision.heads import CONTROL
from bertvision.results import NAMES, SPAN_COLUMNS
from bertvision.stages import BASELINE, ENCODER

ENCODERS = {"gte": "gte-small", "minilm": "all-MiniLM-L6-v2"}
SQUAD = "SQuAD 2.0, partial train"
TITLES = {
    BASELINE: "baseline: never answers",
    ENCODER: ENCODER_ITSELF,
    CONTROL: f"{CONTROL} (control)",
}
SPAN_FIGURES = [(key, heading) for key, heading in SPAN_COLUMNS if "Ans_" not in key]
"""(key in a model's scores, heading); a dot leads inside."""
SPAN_NOTES = {
    "EM": "official, at threshold 0, as the papers give it",
    "F1": "official, at threshold 0, as the papers give it",
    "EM*": "at the no-answer threshold chosen on held-out training questions",
    "F1*": "at the no-answer threshold chosen on held-out training questions",
    "forced EM": "on answerable questions, when the model must answer: no threshold",
    "forced F1": "on answerable questions, when the model must answer: no threshold",
    "AUC": "of the no-answer score: no threshold",
}
JUDGED = ("f1", "at_threshold.f1", "forced_f1", "no_answer_auc")
"""What claims about spans are judged by: with threshold 0, with a chosen one, and without any."""
LABELS = {
    **NAMES,
    **dict(SPAN_COLUMNS),
    "NoAns_f1": "F1 on unanswerable ones",
    "at_threshold.NoAns_f1": "F1* on unanswerable ones",
}


def title_of(model: str) -> str:
    return TITLES.get(model, model.replace("_data_fraction0.", " on 0.").replace("_encoder_", ": encoder, "))
