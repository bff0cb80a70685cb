"""The main results of a run as short paragraphs: the best head against the encoder and the control, the model that
`predict` uses, the cost, the best ensemble and the trivial baseline. Also the facts about the run under its title."""

import re
from pathlib import Path

from bertvision.disk import damaged
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.certainty import Against, Certainty
from bertvision.report.finding import find_trivial
from bertvision.report.ranking import baseline_figure
from bertvision.report.wording import (
    apart,
    by_chance,
    figure_name,
    in_text,
    joined,
    listed,
    opening,
    show_p,
    signed,
    spell_time,
    tuned,
)
from bertvision.tables import counted

EMBEDDED = "all-MiniLM-L6-v2"
FOLDERS = re.compile(r"(?<!\S)[/~][^\s,]*/")  # of data files, whose names say enough


def build_facts(run: FinishedRun) -> list[str]:
    """Task, encoder, data and device, one short line each."""
    device = run.environment.get("device")
    return [
        f"{run.task.name}: {name_source(run)}",
        f"{encoder_name(run)}, {tuned(run.last)}",
        count_examples(run),
        *([str(device)] if device else []),
    ]


def name_source(run: FinishedRun) -> str:
    """Where the data came from; files without their folders."""
    return FOLDERS.sub("", run.task.source)


def count_examples(run: FinishedRun) -> str:
    data = [f"{_total(run, split):,} {split} examples" for split in run.splits]
    return ", ".join(data + ([f"{_total(run, HELD_OUT):,} held out of train"] if run.has_held_out else []))


def encoder_name(run: FinishedRun) -> str:
    name = str(run.config["encoder"]["name"])
    return EMBEDDED if name == "embedded" else Path(name).name


def _total(run: FinishedRun, split: str) -> int:
    total = run.encoder(run.last).models[0].scores(split).get("total")
    if total is None:
        raise damaged(run.folder.file("scores.json"), f"the encoder has no scores on {split!r:.60}")
    return int(total)


def build_summary(certainty: Certainty) -> list[str]:
    """The results on one split at one snapshot."""
    run, epochs = certainty.run, certainty.epochs
    best, encoder, control = run.best_head(epochs), run.encoder(epochs), run.control(epochs)
    if best is None:
        score = encoder.mean(certainty.split, run.main)
        reached = f"The encoder alone reaches {score:.2f} {figure_name(run.main)} on {certainty.split}."
        alone = "No head was trained to the end, so there is nothing to compare it with."
        return [reached, alone, _choice_sentence(run, epochs)]
    found = [
        _best_sentence(certainty, best, _find(certainty.against(encoder), best)),
        _layers_sentence(certainty, best, control) if control else "",
        _choice_sentence(run, epochs),
        _cost_sentence(run, best),
        _ensemble_sentence(certainty),
        _baseline_sentence(certainty, best),
    ]
    return [sentence for sentence in found if sentence]


def _find(found: list[Against], group: Group) -> Against | None:
    return next((one for one in found if one.ours.name == group.name), None)


def _best_sentence(certainty: Certainty, best: Group, against: Against | None) -> str:
    run, split, key = certainty.run, certainty.split, certainty.run.main
    where = "held-out training data" if run.has_held_out else f"{split} itself, which flatters it"
    own = run.encoder(certainty.epochs).mean(split, key)
    reached = f"The best head, {best.title} (chosen on {where}), reaches {best.mean(split, key):.2f} {figure_name(key)}"
    beside = f"on {split}; the encoder alone, {tuned(certainty.epochs)}, reaches {own:.2f}."
    return joined(f"{reached} {beside}", _verdict(against, "The head", "the encoder") if against else "")


def _choice_sentence(run: FinishedRun, epochs: float) -> str:
    """The model that `predict` uses by default."""
    best = run.best(epochs)
    if best is None:
        return ""
    used = f"By default, predict uses {run.best_seed(best).title}: {run.reason}."
    return joined(surprise(run, epochs), used, _passed_over(run, epochs, best))


def surprise(run: FinishedRun, epochs: float) -> str:
    """A sentence for a run whose best model is not a head on all layers; empty for other runs."""
    best, compared = run.best(epochs), run.best_head(epochs) is not None
    if best is None or best.role == "head":
        return ""
    where = "held-out data" if run.has_held_out else f"{run.judged_on} (nothing was held out)"
    found = {
        "encoder": "the encoder alone is best" + (": no head beats it there" if compared else ""),
        "control": "the control is best" + (": reading all layers adds nothing there" if compared else ""),
        "ensemble": f"the ensemble {best.name} is best",
        "peer": f"{best.name}, which reads words and no encoder, is best",
    }
    return f"On {where} {found[best.role]}."


def _passed_over(run: FinishedRun, epochs: float, best: Group) -> str:
    """Models with a higher score that could not be chosen, and why."""
    place, key = run.judged_on, run.main
    limit = best.mean(place, key) or 0.0
    higher = [group for group in run.groups(epochs) if (group.mean(place, key) or 0.0) > limit]
    named = [f"{group.name} ({_why_not(run, group)})" for group in higher]
    return f"Higher there, but not chosen: {listed(named)}." if named else ""


def _why_not(run: FinishedRun, group: Group) -> str:
    if not group.is_whole:
        return f"trained on {100 * group.first.data_fraction:g} % of the data"
    if not run.has_seen_all(group):
        return "a member was trained on part of the data"
    return "its weights were fitted on that data" if group.is_local else "it needs more than one encoder"


def _verdict(against: Against, subject: str, other: str) -> str:
    """The head is 2.97 above the encoder (95 % interval …): could be chance."""
    gap = against.gap
    scores = f"95 % interval {signed(gap.low)} to {signed(gap.high)}, corrected {show_p(against.p)}"
    return f"{subject} is {apart(gap.difference)} {other} ({scores}): {chance_of(against)}."


def chance_of(against: Against) -> str:
    """Whether a difference could be chance, if that can be tested at all."""
    return by_chance(against.is_sure) if against.is_enough else "the two differ on too few examples to say more"


def _layers_sentence(certainty: Certainty, best: Group, control: Group) -> str:
    """What all layers add to the last one: for the best head, and for a head as small as the control."""
    found = certainty.against(control)
    against = _find(found, best)
    small = next((one for one in found if one.ours.first.head == "learned_pooling"), None)
    if against is None:
        return ""
    size = f"{control.first.parameters:,} parameters"
    sentence = _verdict(against, best.name, f"the control, a linear layer with {size} on the last layer")
    if small is None or small.ours.name == best.name:
        return sentence
    subject = f"{small.ours.name}, which reads all layers with {small.ours.first.parameters:,} parameters,"
    return f"{sentence} {_verdict(small, subject, 'that control')}"


def _cost_sentence(run: FinishedRun, best: Group) -> str:
    head, encoder = best.first, run.encoder(best.epochs).first
    trained = [model for model in run.models(best.epochs) if model.role in ("control", "head")]
    others = 0 if run.chosen is not None else len(trained) - 1  # `fit` trains heads one after the other
    with_it = f", with {counted(others, 'other')} in the same pass" if others > 0 else ""
    after = f", after {spell_time(encoder.seconds or 0)} of fine-tuning" if best.epochs else ""
    return (
        f"{best.name} has {head.parameters:,} parameters, {100 * (head.share or 0):.3g} % of the encoder's "
        f"{encoder.parameters:,}. It was trained in {spell_time(head.seconds or 0)}{with_it}{after}."
    )


def _ensemble_sentence(certainty: Certainty) -> str:
    """The best ensemble against the better of its own members."""
    run, split = certainty.run, certainty.split
    group = run.best(certainty.epochs, "ensemble")
    if group is None:
        return ""
    members = ["the encoder" if name == "encoder" else name for name in group.first.ensemble]
    combined = f"Together, {listed(members)} ({group.first.method}{_weights(group)}) reach "
    combined += f"{group.mean(split, run.main):.2f}."
    member = run.best_of(run.members_of(group))
    if member is None:
        return combined
    (against,) = certainty.test([(group, member)])
    where = "on held-out data" if run.has_held_out else f"on {split}"
    its = "better" if len(members) == 2 else "best"
    return f"{combined} {_verdict(against, 'The ensemble', f'{in_text(member)}, its {its} member {where}')}"


def _weights(group: Group) -> str:
    weights = group.first.weights
    return f", weights {listed([f'{weight:.2f}' for weight in weights])}" if weights else ""


def _baseline_sentence(certainty: Certainty, best: Group) -> str:
    run, split = certainty.run, certainty.split
    value, score = baseline_figure(run, split, run.main), best.mean(split, run.main)
    trivial = find_trivial(certainty)
    if value is None or score is None or trivial is None:
        return ""
    name, highest = trivial
    higher = f"{opening(name)} scores {highest:.2f}." if round(highest, 2) > round(value, 2) else ""
    below = "" if score > max(value, highest) else "The best head is not above that."
    return joined(f"The trivial baseline, {run.kind.baseline_words}, scores {value:.2f}.", higher, below)
