"""The finding of a run in one sentence, for readers who stop after it.

It compares the best head with the encoder alone and with the control, says whether the difference could be chance, and
says so where an ensemble is best, where no head was trained, and where no model learned the task.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertvision.evaluation.metrics import LABEL_METRICS
from bertvision.kinds.label import LabelResults
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.certainty import Against, Certainty
from bertvision.report.ranking import baseline_figure
from bertvision.report.wording import listed, metric_in_words, opening, show_score, with_article

LAST = "a linear layer on the last layer"
SHORT = {LAST: "last layer only"}


@dataclass(frozen=True)
class Rival:
    """A model that the best one is compared with."""

    name: str
    score: float
    against: Against | None


def build_finding(certainty: Certainty) -> str:
    """What the run found, on one split at one snapshot."""
    run, epochs = certainty.run, certainty.epochs
    head, best = run.best_head(epochs), run.best(epochs)
    found = _nothing_learned(certainty)
    if not found and best is not None and best.role == "ensemble":
        found = _ensemble_finding(certainty, best, head)
    return found or (_encoder_finding(certainty) if head is None else _head_finding(certainty, head))


# ---------------------------------------------------------------------- nothing learned


def _nothing_learned(certainty: Certainty) -> str:
    """Empty where the best model is clearly above the trivial baseline."""
    run, split, key = certainty.run, certainty.split, certainty.run.main
    baseline, scores = baseline_figure(run, split, key), [group.mean(split, key) for group in certainty.groups]
    top = max((score for score in scores if score is not None), default=None)
    if baseline is None or top is None:
        return ""
    best, trivial, reached = certainty.groups[scores.index(top)], _trivial(certainty, baseline), _reached(run, top)
    if show_score(top) == show_score(baseline) or top < baseline:
        return (
            f"No model here learned the task: the best one reaches {reached}, {trivial} reaches {show_score(baseline)}."
        )
    if certainty.interval(best, key)[0] <= baseline:
        compared = f"the best one reaches {reached} against {show_score(baseline)}"
        return f"No model here is clearly better than {trivial}: {compared}; {_perhaps(certainty)}."
    return ""


def _trivial(certainty: Certainty, score: float) -> str:
    """What the baseline does. Its label is the one that scores what the baseline does, where only one does."""
    run = certainty.run
    results = certainty.results(run.encoder(certainty.epochs).models[0])
    if not isinstance(results, LabelResults):
        return run.kind.baseline_words
    metric = LABEL_METRICS[run.main]
    constants = [np.full_like(results.target, label) for label in range(len(run.task.labels))]  # each (example)
    scores = [metric.figure(results.target, constant) for constant in constants]
    same = [label for label, found in zip(run.task.labels, scores, strict=True) if abs(found - score) < 1e-6]
    return f"always answering “{same[0]}”" if len(same) == 1 else "always giving the most common label"


# ---------------------------------------------------------------------- heads, ensembles, the encoder alone


def _head_finding(certainty: Certainty, head: Group) -> str:
    run = certainty.run
    score, layers = head.mean(certainty.split, run.main) or 0.0, _layers(run)
    rivals = _rivals(certainty, head)
    top = max(rivals, key=lambda rival: round(rival.score, 1))
    if round(score, 1) > round(top.score, 1):
        read = layers if certainty.epochs else f"{layers} of the untouched encoder"
        return _raised(
            certainty, f"Reading {read} with a head of {head.first.parameters:,} parameters", score, head, rivals
        )
    others = [Rival(f"the best head on {layers}", score, None), *(rival for rival in rivals if rival is not top)]
    found = f"{_reached(run, top.score)}, {listed([f'{rival.name} {show_score(rival.score)}' for rival in others])}"
    chance = f"; {_verdict(certainty, [top])}" if round(score, 1) < round(top.score, 1) else ""
    if top.name == LAST:
        return f"Reading more than the last layer adds nothing here: {LAST} reaches {found}{chance}."
    return f"The best head does not beat {top.name}: the encoder reaches {found}{chance}."


def _rivals(certainty: Certainty, head: Group) -> list[Rival]:
    """The encoder alone and the control, with their tests against a head or an ensemble."""
    run, epochs, split = certainty.run, certainty.epochs, certainty.split
    found = [
        Rival(name, score, next((one for one in certainty.against(group) if one.ours.name == head.name), None))
        for name, group in ((_alone(certainty), run.encoder(epochs)), (LAST, run.control(epochs)))
        if group is not None and (score := group.mean(split, run.main)) is not None
    ]
    # Without fine-tuning the output layer of an encoder is usually random: beating it means nothing.
    is_random = epochs == 0 and len(found) > 1 and found[0].score <= found[1].score
    return found[1:] if is_random else found


def _ensemble_finding(certainty: Certainty, ensemble: Group, head: Group | None) -> str:
    """Empty where an ensemble that was best on held-out data is not best here."""
    run, split = certainty.run, certainty.split
    score, rivals = ensemble.mean(split, run.main) or 0.0, _rivals(certainty, ensemble)[:1]
    if head is not None and (alone := head.mean(split, run.main)) is not None:
        rivals.append(Rival("the best head alone", alone, certainty.test([(ensemble, head)])[0]))
    if any(round(rival.score, 1) >= round(score, 1) for rival in rivals):
        return ""
    members = ["the encoder" if name == "encoder" else name for name in ensemble.first.ensemble]
    return _raised(certainty, f"Combining {listed(members)}", score, ensemble, rivals)


def _raised(certainty: Certainty, subject: str, score: float, group: Group, rivals: list[Rival]) -> str:
    run = certainty.run
    names = [SHORT.get(rival.name, rival.name.removeprefix("the ")) for rival in rivals]
    start = listed([f"{show_score(rival.score)} ({name})" for rival, name in zip(rivals, names, strict=True)])
    raised = f"{subject} raises {metric_in_words(run)} from {start} to {show_score(score)}{_seeds(group)}"
    flattered = (
        "" if run.has_held_out else f"; the winner was chosen on these same {_examples(certainty)}, which flatters it"
    )
    return f"{raised}; {_verdict(certainty, rivals)}{flattered}."


def _encoder_finding(certainty: Certainty) -> str:
    run, split = certainty.run, certainty.split
    encoder, control = run.encoder(certainty.epochs), run.control(certainty.epochs)
    reached = _reached(run, encoder.mean(split, run.main) or 0.0)
    beside = control.mean(split, run.main) if control else None
    alone = _alone(certainty)
    if beside is None:
        total = f"{certainty.examples:,} {_examples(certainty)}"
        return f"{opening(alone)} reaches {reached} on {total}; no head was trained to compare it with."
    return f"No head was trained on {_layers(run)}: {alone} reaches {reached}, {LAST} {show_score(beside)}."


# ---------------------------------------------------------------------- phrases


def _reached(run: FinishedRun, score: float) -> str:
    return f"{with_article(metric_in_words(run))} of {show_score(score)}"


def _alone(certainty: Certainty) -> str:
    return f"the {'fine-tuned' if certainty.epochs else 'untouched'} encoder alone"


def _layers(run: FinishedRun) -> str:
    """The layers that the heads of a run read."""
    chosen = run.config["encoder"].get("layers")
    return "all layers" if chosen is None else f"{len(chosen)} layers"


def _seeds(group: Group) -> str:
    return f" (mean of {len(group.trained)} seeds)" if len(group.trained) > 1 else ""


def _examples(certainty: Certainty) -> str:
    noun = "questions" if certainty.run.kind.reads_answers else "examples"
    return f"{certainty.split.replace('_', ' ')} {noun}"


def _verdict(certainty: Certainty, rivals: Sequence[Rival]) -> str:
    """Whether the differences from some models are more than chance; from the first of them alone, or from all."""
    sure = [rival.against is not None and rival.against.is_sure for rival in rivals]
    if all(sure):
        return "this is more than chance"
    if sure[0]:
        return f"the gain over {rivals[0].name} is more than chance, that over {rivals[1].name} may not be"
    return _perhaps(certainty)


def _perhaps(certainty: Certainty) -> str:
    return f"with {certainty.examples:,} {_examples(certainty)} this could be chance"
