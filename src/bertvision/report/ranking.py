"""Select the models and metrics that an analysis shows."""

from dataclasses import dataclass
from typing import TypeVar

from bertvision.kinds import ExampleResults, Figure
from bertvision.kinds.base import Bool
from bertvision.pipeline.finished import FinishedRun, Group, Model, read_figure
from bertvision.pipeline.score import score_figures
from bertvision.report.wording import CHOSEN, stand_in_note, title_of

SERIES = 6  # most lines or colours in one picture
M = TypeVar("M", bound=ExampleResults)


def judged_on(run: FinishedRun) -> str:
    """The data that heads are ranked on: held-out data, or dev if none was held out."""
    return "held-out data" if run.has_held_out else run.splits[0]


# ---------------------------------------------------------------------- models


def best_or_control(run: FinishedRun, epochs: float) -> Group | None:
    """The best head on held-out data, or the control if the run has no heads."""
    return run.best_head(epochs) or run.control(epochs)


def main_models(run: FinishedRun) -> list[Group]:
    """The encoder alone, the control and the best head, without those the run does not have."""
    at = run.last
    found = [run.encoder(at), run.control(at), run.best_head(at)]
    return [group for group in found if group is not None]


def whole_heads(run: FinishedRun, epochs: float) -> list[Group]:
    """The control and the heads trained on all of the data."""
    return [group for group in run.groups(epochs, "control", "head") if group.is_whole]


def names_drawn(run: FinishedRun, groups: list[Group], most: int) -> list[str]:
    """Names of the at most `most` groups shown in a picture: the control, the best heads, the best ensemble."""
    names: dict[str, list[str]] = {"control": [], "head": [], "ensemble": []}
    for group in run.ranked(groups):
        if group.name not in names.setdefault(group.role, []):
            names[group.role].append(group.name)
    controls, ensembles = names["control"][:1], names["ensemble"][:1]
    return [*controls, *names["head"][: most - len(controls) - len(ensembles)], *ensembles]


@dataclass(frozen=True)
class Pair:
    """The encoder alone and the best head, one model each."""

    encoder: Model
    head: Model
    name: str
    """The head's name as displayed."""
    note: str
    """Which seed is shown, if there are several."""


def pair_of(run: FinishedRun, epochs: float | None = None) -> Pair:
    """The encoder and the best head on it at a snapshot (default: the last one); of several seeds, the first that
    finished training."""
    at = run.last if epochs is None else epochs
    best = run.best_head(at)
    assert best is not None, "the caller must check that there is a best head"
    return Pair(run.encoder(at).trained[0], best.trained[0], title_of(best), stand_in_note([best]))


# ---------------------------------------------------------------------- per-example results


def results_of(model: Model, split: str, kind: type[M]) -> M:
    found = model.results(split)
    assert isinstance(found, kind), f"{model.name} has no {kind.__name__}"
    return found


def right_of(model: Model, split: str) -> Bool:
    """(example) Whether the model got each example right; spans at the model's own threshold."""
    right = model.results(split).right(model.threshold or 0.0)  # (example)
    assert right is not None, f"a {model.kind} is not right or wrong"
    return right


# ---------------------------------------------------------------------- metrics


def figure_keys(run: FinishedRun) -> list[str]:
    """Keys of the main metric and the task's others, in this order; for spans EM and F1, at the same threshold."""
    start = CHOSEN if run.main.startswith(CHOSEN) else ""
    others = [f"{start}{metric}" for metric in run.task.metrics]
    return [run.main, *(key for key in others if key != run.main)]


def keys_at_zero(run: FinishedRun) -> list[str]:
    """Keys of the same metrics at no-answer threshold 0; empty unless another threshold was chosen."""
    return [key.removeprefix(CHOSEN) for key in figure_keys(run) if key.startswith(CHOSEN)]


def figure_columns(run: FinishedRun) -> list[Figure]:
    """The metrics of a run, the main one first."""
    known = [run.encoder(run.last).models[0].scores(run.splits[0])]
    return sorted(score_figures(run.kind, run.task.metrics, known), key=lambda one: one.key != run.main)


def heading_of(run: FinishedRun, key: str) -> str:
    return next((one.heading for one in figure_columns(run) if one.key == key), key)


def baseline_figure(run: FinishedRun, split: str, key: str) -> float | None:
    """The baseline's score. It does not depend on the threshold or the snapshot."""
    (model,) = [model for model in run.models(run.last) if model.role == "baseline"]
    return read_figure(model.scores(split), key.removeprefix(CHOSEN))
