"""Which models and figures an analysis shows and speaks of."""

from bertvision.pipeline.finished import FinishedRun, Group, read_figure

SERIES = 6  # lines or colours that one picture can hold


def judged_on(evidence: FinishedRun) -> str:
    """What heads are ranked on: dev only where nothing was held out."""
    return "held-out data" if evidence.has_held_out else evidence.splits[0]


def best_or_control(evidence: FinishedRun, epochs: float) -> Group | None:
    """The best head on held-out data; where there are no heads, the control."""
    return evidence.best_head(epochs) or evidence.control(epochs)


def main_models(evidence: FinishedRun) -> list[Group]:
    """The encoder itself, the control and the best head, as far as they are there."""
    at = evidence.last
    found = [evidence.encoder(at), evidence.control(at), evidence.best_head(at)]
    return [group for group in found if group is not None]


def whole_heads(evidence: FinishedRun, epochs: float) -> list[Group]:
    """Control and heads on all of the data."""
    return [group for group in evidence.groups(epochs, "control", "head") if group.is_whole]


def figure_keys(evidence: FinishedRun) -> list[str]:
    """The main figure first, then the task's others: for spans EM beside F1, at the same threshold."""
    start = "at_threshold." if evidence.main.startswith("at_threshold.") else ""
    others = [f"{start}{metric}" for metric in evidence.task.metrics]
    return [evidence.main, *(key for key in others if key != evidence.main)]


def baseline_figure(evidence: FinishedRun, split: str, key: str) -> float | None:
    """The baseline says the same whatever the threshold and however far the encoder was fine-tuned."""
    (model,) = [model for model in evidence.models(evidence.last) if model.role == "baseline"]
    return read_figure(model.scores(split), key.removeprefix("at_threshold."))
