"""The finding of a run in one sentence, for readers who stop after it.

It compares the best head with the encoder alone and with the control, says whether the difference could be chance, and
says so where an ensemble is best, where no head was trained, and where no model beats the trivial baseline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertvision.evaluation.metrics import LABEL_METRICS
from bertvision.kinds.label import LabelResults
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.certainty import Against, Certainty
from bertvision.report.ranking import baseline_figure
from bertvision.report.wording import listed, metric_in_words, opening, show_main, with_article

BEST = "the best head"
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
    found = _no_better_than_baseline(certainty)
    if not found and best is not None and best.role == "ensemble":
        found = _ensemble_finding(certainty, best, head)
    return found or (_encoder_finding(certainty) if head is None else _head_finding(certainty, head))


# ---------------------------------------------------------------------- no better than the baseline


def _no_better_than_baseline(certainty: Certainty) -> str:
    """Empty where the best model is clearly better than predicting the same for every example."""
    run, split, key = certainty.run, certainty.split, certainty.run.main
    trivial, scores = find_trivial(certainty), [group.mean(split, key) for group in certainty.groups]
    top = max((score for score in scores if score is not None), default=None)
    if trivial is None or top is None:
        return ""
    best, (name, baseline) = certainty.groups[scores.index(top)], trivial
    examples = f"{certainty.examples:,} {_examples(certainty)}"
    if show_main(run, top) == show_main(run, baseline) or top < baseline:
        compared = f"the best one reaches {_reached(run, top)}, and {name} reaches {show_main(run, baseline)}"
        return f"No model here has learned the task: on {examples}, {compared}."
    compared = f"the best one reaches {_reached(run, top)} against {show_main(run, baseline)}"
    if certainty.interval(best, key)[0] <= baseline:
        return f"No model here is clearly better than {name}: {compared}; {_perhaps(certainty)}."
    return ""


def find_trivial(certainty: Certainty) -> tuple[str, float] | None:
    """What needs no model, in words, and its score. For labels, the baseline predicts the majority label of train. On a
    split with another majority, a model that always predicts that one scores higher without having learned anything, so
    the best label counts."""
    run = certainty.run
    baseline = baseline_figure(run, certainty.split, run.main)
    results = certainty.results(run.encoder(certainty.epochs).models[0])
    if baseline is None or not isinstance(results, LabelResults):
        return None if baseline is None else (run.kind.baseline_words, baseline)
    metric = LABEL_METRICS[run.main]
    constants = [np.full_like(results.target, label) for label in range(len(run.task.labels))]  # each (example)
    scores = [metric.figure(results.target, constant) for constant in constants]
    best = [label for label, score in zip(run.task.labels, scores, strict=True) if score > max(scores) - 1e-6]
    return f"always predicting “{best[0]}”" if len(best) == 1 else run.kind.baseline_words, max(scores)


# ---------------------------------------------------------------------- heads, ensembles, the encoder alone


def _head_finding(certainty: Certainty, head: Group) -> str:
    run = certainty.run
    score, layers = head.mean(certainty.split, run.main) or 0.0, _layers(run, head)
    rivals = _rivals(certainty, head)
    top = max(rivals, key=lambda rival: round(rival.score, 1))
    if round(score, 1) > round(top.score, 1):
        read = layers if certainty.epochs else f"{layers} of the untouched encoder"
        return _raised(
            certainty, f"Reading {read} with a head of {head.first.parameters:,} parameters", score, head, rivals
        )
    chosen = _chosen(certainty, head)
    ours = f"the best head on {layers}" if chosen == BEST else "that head"
    others = [Rival(ours, score, None), *(rival for rival in rivals if rival is not top)]
    difference = "the difference between the first two" if len(others) > 1 else "the difference"
    chance = f"; {_verdict(certainty, [top], difference)}" if round(score, 1) < round(top.score, 1) else ""
    adds_nothing = top.name == LAST and chosen == BEST
    first = LAST if adds_nothing else "the linear layer" if top.name == LAST else "the encoder"
    scores = [f"{rival.name} {show_main(run, rival.score)}" for rival in others]
    found = listed([f"{first} reaches {_reached(run, top.score)}", *scores])
    if adds_nothing:
        return f"Reading more than the last layer adds nothing here: {found}{chance}."
    return f"{opening(chosen)} does not beat {top.name}: {found}{chance}."


def _chosen(certainty: Certainty, head: Group) -> str:
    """The best head, unless another one scores higher here: the choice was made on held-out data."""
    run, split = certainty.run, certainty.split
    score, heads = head.mean(split, run.main) or 0.0, run.groups(certainty.epochs, "head")
    is_top = all(round(group.mean(split, run.main) or 0.0, 1) <= round(score, 1) for group in heads if group.is_whole)
    return BEST if is_top else "the head chosen on held-out data"


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
    start = listed([f"{show_main(run, rival.score)} ({name})" for rival, name in zip(rivals, names, strict=True)])
    raised = f"{subject} raises {metric_in_words(run)} from {start} to {show_main(run, score)}{_seeds(group)}"
    flattered = (
        "" if run.has_held_out else f"; the winner was chosen on these same {_examples(certainty)}, which flatters it"
    )
    trivial = find_trivial(certainty)
    below = ""
    if trivial is not None and round(score, 1) <= round(trivial[1], 1):  # another head may be above it
        below = f"; {trivial[0]} reaches {show_main(run, trivial[1])}"
    return f"{raised}; {_verdict(certainty, rivals)}{flattered}{below}."


def _encoder_finding(certainty: Certainty) -> str:
    run, split = certainty.run, certainty.split
    encoder, control = run.encoder(certainty.epochs), run.control(certainty.epochs)
    reached = _reached(run, encoder.mean(split, run.main) or 0.0)
    beside = control.mean(split, run.main) if control else None
    alone = _alone(certainty)
    if beside is None:
        total = f"{certainty.examples:,} {_examples(certainty)}"
        return f"{opening(alone)} reaches {reached} on {total}; no head was trained to compare it with."
    return (
        f"No head was trained on {_layers(run, None)}: {alone} reaches {reached} and {LAST} {show_main(run, beside)}."
    )


# ---------------------------------------------------------------------- phrases


def _reached(run: FinishedRun, score: float) -> str:
    return f"{with_article(metric_in_words(run))} of {show_main(run, score)}"


def _alone(certainty: Certainty) -> str:
    return f"the {'fine-tuned' if certainty.epochs else 'untouched'} encoder alone"


def _layers(run: FinishedRun, head: Group | None) -> str:
    """The layers that a head reads, or the heads of a run."""
    if head is not None and head.first.layer is not None:
        return f"layer {head.first.layer}"
    chosen = run.settings.encoder.layers
    return "all layers" if chosen is None else f"{len(chosen)} layers"


def _seeds(group: Group) -> str:
    return f" (mean of {len(group.trained)} seeds)" if len(group.trained) > 1 else ""


def _examples(certainty: Certainty) -> str:
    noun = "questions" if certainty.run.kind.reads_answers else "examples"
    return f"{certainty.split.replace('_', ' ')} {noun}"


def _verdict(certainty: Certainty, rivals: Sequence[Rival], subject: str = "this") -> str:
    """Whether the differences from one or two models are more than chance."""
    sure = [rival.name for rival in rivals if rival.against is not None and rival.against.is_sure]
    unsure = [rival.name for rival in rivals if rival.name not in sure]
    if not unsure:
        return f"{subject} is more than chance"
    if sure:
        return f"the gain over {listed(sure)} is more than chance, but the gain over {listed(unsure)} may not be"
    return _perhaps(certainty, subject)


def _perhaps(certainty: Certainty, subject: str = "this") -> str:
    comma = "" if subject == "this" else ","
    return f"with {certainty.examples:,} {_examples(certainty)}{comma} {subject} could be chance"
