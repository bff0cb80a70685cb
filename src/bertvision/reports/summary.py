"""The answer first, in plain words: what was trained on what, which head is best and by how much, is it more than
chance, what did it cost, and what do all layers add over the last one."""

from pathlib import Path

from bertvision.analysis.certainty import Against, Certainty
from bertvision.analysis.evidence import Evidence, Group
from bertvision.analysis.scores import in_words
from bertvision.job import HELD_OUT
from bertvision.results import counted
from bertvision.stages import BASELINE


def build_facts(evidence: Evidence) -> list[str]:
    """What was trained on what, a line each."""
    finetune = evidence.config["finetune"]
    lines = [
        f"Task: {evidence.task.name}, {evidence.task.source}",
        f"Encoder: {encoder_name(evidence)}, fine-tuned for {counted(evidence.last, 'epoch')} "
        f"(learning rate {finetune['lr']:g})",
        f"Scored on: {', '.join(_split_words(evidence, split) for split in evidence.splits)}",
    ]
    if evidence.has_held_out:
        lines.append(f"Held out of train for every choice: {_total(evidence, HELD_OUT):,} examples")
    device = evidence.environment.get("device")
    if device:
        lines.append(f"Made on: {device}")
    return lines


def encoder_name(evidence: Evidence) -> str:
    return Path(evidence.config["encoder"]["name"]).name


def _split_words(evidence: Evidence, split: str) -> str:
    return f"{split} ({_total(evidence, split):,} examples)"


def _total(evidence: Evidence, split: str) -> int:
    return int(evidence.encoder(evidence.last).models[0].scores(split)["total"])


def build_summary(certainty: Certainty) -> list[str]:
    """What the run found, of one split at one snapshot."""
    evidence, epochs = certainty.evidence, certainty.epochs
    best = evidence.best_head(epochs)
    if best is None:
        return [_encoder_alone(certainty), "No head was trained to its end, so there is nothing to compare with it."]
    encoder, control = evidence.encoder(epochs), evidence.control(epochs)
    found = [
        _best_sentence(certainty, best, _find(certainty.against(encoder), best)),
        _layers_sentence(best, _find(certainty.against(control), best)) if control else "",
        _cost_sentence(evidence, best),
        _ensemble_sentence(certainty),
        _baseline_sentence(certainty, best),
    ]
    return [sentence for sentence in found if sentence]


def _encoder_alone(certainty: Certainty) -> str:
    evidence, split = certainty.evidence, certainty.split
    score = evidence.encoder(certainty.epochs).mean(split, evidence.main)
    return f"The encoder itself reaches {in_words(evidence)} {score:.2f} on {split}."


def _find(found: list[Against], group: Group) -> Against | None:
    return next((one for one in found if one.ours.name == group.name), None)


def _best_sentence(certainty: Certainty, best: Group, against: Against | None) -> str:
    evidence, split, key = certainty.evidence, certainty.split, certainty.evidence.main
    where = "held-out training data" if evidence.has_held_out else f"{split} itself, which flatters it"
    score, name = best.mean(split, key), in_words(evidence)
    own = evidence.encoder(certainty.epochs).mean(split, key)
    spoken = f"The best head, {best.title} (chosen on {where}), reaches {name} {score:.2f} on {split}"
    if against is None:
        return f"{spoken}; the encoder itself {own:.2f}."
    so_far = f"fine-tuned for {counted(certainty.epochs, 'epoch')}"
    return f"{spoken}; the encoder itself, {so_far}, {own:.2f}. {_verdict(against)}"


def _verdict(against: Against, subject: str = "It is") -> str:
    gap = against.gap
    side = "above" if gap.difference >= 0 else "below"
    figures = f"95 % interval {gap.low:+.2f} to {gap.high:+.2f}, corrected p {_p(against.p)}"
    sure = "more than chance" if against.is_sure else "could be chance"
    return f"{subject} {abs(gap.difference):.2f} {side} ({figures}): {sure}."


def _p(value: float) -> str:
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def _layers_sentence(best: Group, against: Against | None) -> str:
    if against is None:
        return ""
    gap, sure = against.gap, "more than chance" if against.is_sure else "could be chance"
    verb = "adds" if gap.difference >= 0 else "costs"
    return (
        f"Reading all layers {verb} {abs(gap.difference):.2f} over the control, a new linear layer on the last one "
        f"({gap.low:+.2f} to {gap.high:+.2f}, corrected p {_p(against.p)}): {sure}."
    )


def _cost_sentence(evidence: Evidence, best: Group) -> str:
    facts, encoder = best.facts, evidence.encoder(best.epochs).facts
    trained = [model for model in evidence.models(best.epochs) if model.role in ("control", "head")]
    with_it = f", with {len(trained) - 1} others in the same pass" if len(trained) > 1 else ""
    return (
        f"{best.name} has {facts['parameters']:,} parameters, {100 * facts['share']:.3g} % of the encoder's "
        f"{encoder['parameters']:,}; it was trained in {_seconds(facts['seconds'])}{with_it}, after "
        f"{_seconds(encoder['seconds'])} of fine-tuning."
    )


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _ensemble_sentence(certainty: Certainty) -> str:
    evidence, split = certainty.evidence, certainty.split
    group = evidence.best(certainty.epochs, "ensemble")
    if group is None:
        return ""
    against = _find(certainty.against(evidence.encoder(certainty.epochs)), group)
    members, method = " and ".join(group.facts["ensemble"]), group.facts["method"]
    spoken = f"Together, {members} ({method}) reach {group.mean(split, evidence.main):.2f}"
    return f"{spoken}. {_verdict(against, 'They are')}" if against else f"{spoken}."


def _baseline_sentence(certainty: Certainty, best: Group) -> str:
    evidence, split = certainty.evidence, certainty.split
    scores = next(model for model in evidence.models(certainty.epochs) if model.name == BASELINE).scores(split)
    value, score = scores.get(evidence.main.removeprefix("at_threshold.")), best.mean(split, evidence.main)
    if value is None or score is None:
        return ""
    trivial = {
        "span": "never answering",
        "label": "always giving the majority label",
        "score": "always giving the mean",
    }
    side = "" if score > value else " The best head is not above that."
    return f"The trivial baseline, {trivial[str(evidence.kind)]}, has {value:.2f}.{side}"
