"""Claims about errors, second answers, passages and layers, from the analyses kept with each run.

Files kept by earlier versions have these analyses of the last snapshot only, and without some columns. A claim of the
papers about another snapshot is then not measured; what is there is shown, but not judged.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.stats import norm, spearmanr

from bertvision.report.wording import ENCODER as ENCODER_ALONE
from bertvision.report.wording import listed, signed
from bertvision.tables import counted
from paper.judging import ALPHA, FAILS, UNCLEAR, Claim, Finding, best_for_spans, claim_of, signed_mean, spans
from paper.kept import Experiment, Experiments, Mean, Place
from paper.spans import rank_correlation

HEAD_AT = 0.3
"""The epochs of fine-tuning under the papers' head whose second answers were counted."""
BOTH = (0.3, 1.0)
"""The snapshots of the papers' other analyses."""
SECOND, SECOND_HAS, MISSED = 44.0, 47.0, 65.0
NEAR = 5.0
"""Percentage points that a share may be off."""
LAST_ONLY, NOT_KEPT = "the kept files have the last snapshot only", "the kept files do not have it"
MEDIAN_ERROR = 0.93
"""Standard error of a median, over interquartile range / √n, for roughly normal values."""
Read = Callable[[dict[str, Any]], float | None]
"""Takes a share, in percent, from a kept row; None if the row lacks it."""


# ---------------------------------------------------------------------- layers


def later_layers(experiments: Experiments) -> Claim:
    """With few layers, weights can rise with depth by chance: each encoder's rank correlation needs p < ALPHA."""
    found = []
    for title, one in spans(experiments):
        weights = [
            [row["weight, %"] for row in rows if row["head"] == "learned_pooling"]
            for rows in one.analyses("layer_weights").values()
        ]
        weights = [own for own in weights if own]
        if weights:
            half = len(weights[0]) // 2
            even = 100 * half / len(weights[0])
            upper = Mean([sum(own[-half:]) - even for own in weights])
            ranks = Mean([rank_correlation(own) for own in weights])
            chance = float(spearmanr(np.mean(weights, axis=0), range(len(weights[0]))).pvalue)
            shown = (
                f"{signed_mean(ranks)}, p = {chance:.2f} for the mean weights; the upper {half} states together weigh "
            )
            shown += f"{signed_mean(upper)} points more than an even share"
            words = f"{title}, rank correlation of weight and depth"
            found.append(Finding(words, {"correlation": ranks}, shown=shown, chance=chance))
    return claim_of(
        "Later layers weigh more in learned pooling",
        "shown in a picture",
        found,
        rule=f"the rank correlation with depth must have p < {ALPHA:g} on both encoders",
        brief="rank correlation " + listed([_with_chance(finding) for finding in found]) if found else "",
    )


def _with_chance(finding: Finding) -> str:
    return f"{signed(finding.scores[0].mean)} (p = {finding.chance:.2f})"


# ---------------------------------------------------------------------- passages


def better_on_shorter(experiments: Experiments) -> Claim:
    """Medians of a few hundred passages differ by a few words by chance: the difference needs p < ALPHA."""
    found, lacking, further = list[Finding](), list[tuple[str, float]](), list[str]()
    for title, one in spans(experiments):
        decayed = experiments.get(f"{one.name}_full1")
        for epochs in BOTH:
            here = _shorter_passages(title, one, epochs)
            if here is None and epochs == 1.0 and decayed is not None:
                here = _shorter_passages(f"{title}, learning rate decayed to 0", decayed, epochs)
            found += [here] if here is not None else []
            is_kept = here is not None or bool(one.rows_at("passage_lengths", epochs))
            lacking += [] if is_kept or epochs not in one.head_snapshots else [(one.name, epochs)]
        further += [
            f"not judged: {more}"
            for epochs in one.head_snapshots
            if epochs not in (0.0, *BOTH) and (more := _shorter_passages(title, one, epochs)) is not None
        ]
    return claim_of(
        "Heads are better on shorter passages",
        "shown in pictures, at 0.3 and 1 epochs",
        found,
        further,
        rule=f"best head of each run, ladders included; the difference must have p < {ALPHA:g} on both encoders",
        brief=f"median passage shorter by {listed([_with_chance(one) for one in found])} words" if found else "",
        unsupported=UNCLEAR if all((finding.chance or 0.0) >= ALPHA for finding in found) else FAILS,
        missing=_lacking("passage lengths", LAST_ONLY, lacking),
    )


def _shorter_passages(title: str, experiment: Experiment, epochs: float) -> Finding | None:
    """By how many words the median passage is shorter where only the head is right than where only the encoder is."""
    gaps, errors = [], []
    for rows in experiment.rows_at("passage_lengths", epochs).values():
        only = {row["right"]: row for row in rows if row["right"].startswith("only ") and row["median"] is not None}
        encoder = only.pop(f"only {ENCODER_ALONE}", None)
        if encoder is not None:
            gaps += [encoder["median"] - head["median"] for head in only.values()]
            errors += [np.hypot(_error_of_median(encoder), _error_of_median(head)) for head in only.values()]
    if not gaps:
        return None
    # All seeds are scored on the same questions, so the mean over seeds counts as no more certain than one of them.
    chance = float(2 * norm.sf(abs(np.mean(gaps)) / np.mean(errors)))
    words = (
        f"{title} at {counted(epochs, 'epoch')}, median length of the passages in words, only the encoder right minus "
    )
    words += "only the head right"
    shown = f"{signed_mean(Mean(gaps))}, p = {chance:.2f}"
    return Finding(words, {"words": Mean(gaps)}, shown=shown, chance=chance)


def _error_of_median(row: dict[str, Any]) -> float:
    return float(MEDIAN_ERROR * (row["upper quartile"] - row["lower quartile"]) / np.sqrt(row["questions"]))


# ---------------------------------------------------------------------- shares of answers


def second_answers(experiments: Experiments) -> Claim:
    text = f"Where the answer is wrong, the second one is right in {SECOND:g} %"
    return _judge_share(experiments, text, SECOND, ("second_answer", "% second right"), (HEAD_AT,))


def second_answers_with_an_answer(experiments: Experiments) -> Claim:
    text = f"{SECOND_HAS:g} % of the questions whose second answer is right have an answer"
    return _judge_share(experiments, text, SECOND_HAS, ("second_answer", "% with an answer"), (HEAD_AT,))


def missed_answers(experiments: Experiments) -> Claim:
    """The papers use no threshold, so the share at threshold 0 counts."""
    return _judge_share(
        experiments,
        f"About {MISSED:g} % of the wrong predictions on questions with an answer are “no answer”",
        MISSED,
        ("wrong_predictions", "missed, % at threshold 0"),
        BOTH,
        "at threshold 0",
        _missed_at_own,
        "at the chosen threshold",
        _bounds_of_missed,
    )


def _missed_at_own(row: dict[str, Any]) -> float | None:
    """The share at the chosen threshold; in files of earlier versions, from the counts of errors."""
    missed = row.get("missed answer", row.get("said nothing", 0))
    wrong = missed + row["overlapping span"] + row["wrong span"]
    return 100 * missed / wrong if wrong else None


def _bounds_of_missed(title: str, place: Place) -> str | None:
    """Limits of the share at threshold 0 that follow from the kept scores. Being silent cost what F1 rises by when the
    model must answer, at most 1 a question; and a wrong span has an F1 below 1."""
    keys = ("HasAns_exact", "HasAns_f1", "forced_f1")
    exact, f1, forced = (place.mean(key) for key in keys)
    if exact is None or f1 is None or forced is None or exact.mean == 100:
        return None
    low, high = (100 * part / (100 - exact.mean) for part in (forced.mean - f1.mean, 100 - f1.mean))
    where = f"{title}, {place.model} at {counted(place.epochs, 'epoch')}"
    return f"{where}: the kept scores allow {low:.0f} to {min(high, 100):.0f} % at threshold 0"


def _judge_share(
    experiments: Experiments,
    text: str,
    published: float,
    column: tuple[str, str],
    snapshots: Iterable[float],
    where: str = "",
    read_other: Read | None = None,
    where_other: str = "",
    bounds: Callable[[str, Place], str | None] | None = None,
) -> Claim:
    """Compare a share, a column of a kept analysis, with the published one, for the best of the papers' heads. Other
    snapshots are shown, with `read_other` if given, but not judged."""
    key, heading = column
    read: Read = lambda row: row.get(heading)  # noqa: E731
    found, further, others = list[Finding](), list[str](), list[Mean]()
    lacking: list[tuple[str, float]] = []
    for title, one in spans(experiments):
        for epochs in (epochs for epochs in one.head_snapshots if epochs > 0):
            head = best_for_spans(experiments, one, epochs)
            if head is None:
                continue
            rows = _rows(head, key)
            shares = _mean(rows, read)
            if epochs in snapshots and shares is not None:
                near = Mean([NEAR - abs(share - published) for share in shares.values])
                found.append(Finding(f"{_words(title, head)}{_comma(where)}", {"near": near}, shown=f"{shares} %"))
            elif epochs in snapshots and not any(heading in row for row in rows):
                lacking.append((head.experiment.name, epochs))
                limits = bounds(title, head) if bounds else None
                further += [limits] if limits else []
        for name, other in _not_judged(experiments, title, one, snapshots):
            shares = _mean(_rows(other, key), read_other or read)
            if shares is not None:
                others.append(shares)
                further.append(f"not judged: {_words(name, other)}{_comma(where_other)}: {shares} %")
    means = [finding.shown for finding in found]
    brief = listed(means) if means else ""
    if not found and others:
        values = [share.mean for share in others]
        brief = f"elsewhere {min(values):.0f} to {max(values):.0f} %"
    snapshot = listed([f"{epochs:g}" for epochs in snapshots])
    rule = f"the best head at {snapshot} epochs{_comma(where)}; within {NEAR:g} points"
    why = NOT_KEPT if not others else f"{LAST_ONLY}{_comma(where_other)}"
    missing = _lacking("the share", why, lacking)
    return claim_of(text, f"{published:g} %", found, further, rule=rule, brief=brief, missing=missing)


def _not_judged(
    experiments: Experiments, title: str, one: Experiment, judged: Iterable[float]
) -> Iterable[tuple[str, Place]]:
    """Heads at the other snapshots of a run, and where the learning rate had decayed to 0 at 1 epoch."""
    for epochs in (epochs for epochs in one.head_snapshots if epochs > 0 and epochs not in judged):
        head = best_for_spans(experiments, one, epochs)
        if head is not None:
            yield title, head
    decayed = experiments.get(f"{one.name}_full1")
    if decayed is not None:
        head = best_for_spans(experiments, decayed, 1.0)
        if head is not None:
            yield f"{title}, learning rate decayed to 0", head


def _rows(place: Place, key: str) -> list[dict[str, Any]]:
    """The rows of a model in a kept analysis, one per seed that has it."""
    rows = [row for rows in place.experiment.rows_at(key, place.epochs).values() for row in rows]
    return [row for row in rows if row["model"] == place.model]


def _mean(rows: list[dict[str, Any]], read: Read) -> Mean | None:
    """The share over seeds; None if no seed has it."""
    shares = [share for row in rows if (share := read(row)) is not None]
    return Mean(shares) if shares else None


def _words(title: str, place: Place) -> str:
    return f"{title}, {place.model} at {counted(place.epochs, 'epoch')}"


def _comma(where: str) -> str:
    return f", {where}" if where else ""


def _lacking(what: str, why: str, places: list[tuple[str, float]]) -> str:
    """What the kept files lack, why, and which runs would measure it."""
    if not places:
        return ""
    names, epochs = (list(dict.fromkeys(part)) for part in zip(*places, strict=True))
    snapshots = listed([f"{one:g}" for one in sorted(epochs)])
    return f"{what} at {snapshots} epochs; {why}. New runs of {listed(names)}, kept with paper.keep, measure it"
