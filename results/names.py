"""What the page calls things, and the figures it gives."""

from dataclasses import dataclass

ENCODERS = {"gte": "gte-small", "minilm": "all-MiniLM-L6-v2"}
SQUAD = "SQuAD 2.0, partial train"
TITLES = {
    "baseline": "baseline: never answers",
    "encoder": "encoder itself",
    "last_linear": "last_linear (control)",
}


@dataclass(frozen=True)
class Figure:
    key: str
    """In a model's scores; a dot leads inside."""
    heading: str
    note: str


SPAN_FIGURES = [
    Figure("exact", "EM", "exact match at threshold 0, as the papers give it"),
    Figure("f1", "F1", "at threshold 0"),
    Figure("at_threshold.exact", "EM*", "at the no-answer threshold chosen on held-out training questions"),
    Figure("at_threshold.f1", "F1*", "at the no-answer threshold chosen on held-out training questions"),
    Figure("forced_exact", "forced EM", "on answerable questions, when the model must answer: no threshold"),
    Figure("forced_f1", "forced F1", "on answerable questions, when the model must answer: no threshold"),
    Figure("no_answer_auc", "AUC", "of the no-answer score: no threshold"),
]
JUDGED = ("f1", "at_threshold.f1", "forced_f1", "no_answer_auc")
"""What claims about spans are judged by: with threshold 0, with a chosen one, and without any."""
LABELS = {
    "accuracy": "accuracy",
    "matthews": "Matthews",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "f1_no_answer": "F1 of no answer",
    "f1_has_answer": "F1 of answerable",
    "NoAns_f1": "F1 on unanswerable ones",
    "at_threshold.NoAns_f1": "F1* on unanswerable ones",
    **{figure.key: figure.heading for figure in SPAN_FIGURES},
}


def title_of(model: str) -> str:
    return TITLES.get(model, model.replace("_data_fraction0.", " on 0.").replace("_encoder_", ": encoder, "))


def epochs_of(epochs: float) -> str:
    return f"{epochs:g} epoch" + ("" if epochs == 1 else "s")
