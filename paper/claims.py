"""The papers' claims, one by one: what the papers said, what our runs show, and whether the claim holds.

A claim is a list of findings: how far one model is above another, for each metric and seed, and how far below it may
be. A score agrees if its mean over seeds is above that limit and no seed is below it. A claim holds if all of its
scores agree, partly if at least a third do, and does not hold otherwise; one seed decides nothing. A finding with a
p-value agrees only if p < 0.05. "A head" is the best of the papers' heads on held-out data; the ladder, and reading
means instead of [CLS], are ours. No claim is judged by the encoder alone at 0 epochs: its output layer is random there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import norm, spearmanr

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import ENCODER
from bertvision.report.block import Block
from bertvision.report.wording import ENCODER as ENCODER_ALONE
from bertvision.report.wording import listed, signed
from bertvision.tables import Cell, Column, Table, counted
from paper.kept import LOWER, Experiment, Experiments, Mean, Place, by_encoder, show_rate
from paper.names import AUC, FORCED, JUDGED, LABELS, in_passes
from paper.sentences import glue_experiments
from paper.spans import SHARED, data_shares, head_names, rank_correlation

HOLDS, PARTLY, FAILS = "holds", "partly", "does not hold"
UNCLEAR, ONE_SEED, OPEN = "no clear difference", "one seed", "not tested yet"
COUNTED = {
    HOLDS: ("holds", "hold"),
    PARTLY: ("holds in part", "hold in part"),
    FAILS: ("does not hold", "do not hold"),
    UNCLEAR: ("shows no clear difference", "show no clear difference"),
    ONE_SEED: ("has one seed", "have one seed"),
    OPEN: ("is not tested yet", "are not tested yet"),
}
ALPHA = 0.05
"""A finding with a p-value agrees only below this."""
MAIN = "at_threshold.f1"
REACHES = 0.5
"""Points that a head may be below the score it matches; the papers' head was 0.2 points of F1 below."""
LESS_DATA = {0.1: 2.3, 0.3: 1.6}
"""Points of F1 by which the papers' head was below on 10 % and 30 % of the data, which they called nearly enough."""
SECOND, SECOND_RANGE = 44.0, 5.0
MEDIAN_ERROR = 0.93
"""Standard error of a median, over interquartile range / √n, for roughly normal values."""
NO_ANSWER = ("NoAns_f1", "at_threshold.NoAns_f1")
SPLITS = {"dev": "on dev", "held_out": "on held-out questions"}
OUR_LAYOUT = ", kernels along tokens in our layout"
OWN, NO_DECAY = "no such control", "not tested"
"""In place of the papers' scores, for claims of our own."""


@dataclass(frozen=True)
class Finding:
    """One comparison, seed by seed."""

    words: str
    gaps: dict[str, Mean]
    """By metric: the difference, or any other value that must be above zero for the claim to hold."""
    allowed: float = 0.0
    """How far below zero still agrees with the claim."""
    shown: str = ""
    """Text shown instead of the gaps."""
    chance: float | None = None
    """The p-value of the finding, where it has one."""

    @property
    def agreeing(self) -> list[bool]:
        if self.chance is not None and self.chance >= ALPHA:
            return [False] * len(self.gaps)
        return [min(gap.mean, *gap.values) >= -self.allowed and gap.mean + self.allowed > 0 for gap in self.scores]

    @property
    def scores(self) -> list[Mean]:
        return list(self.gaps.values())

    def __str__(self) -> str:
        gaps = ", ".join(f"{LABELS.get(key, key)} {signed_mean(gap)}" for key, gap in self.gaps.items())
        return f"{self.words}: {self.shown or gaps}"


@dataclass(frozen=True)
class Claim:
    text: str
    paper: str
    """The papers' own scores."""
    findings: list[Finding]
    further: list[str] = field(default_factory=list)
    """More evidence, which does not affect the verdict."""
    rule: str = ""
    """How it is judged, if not by the default rule."""
    brief: str = ""
    """What we found in a few words; default: the range of the differences."""
    unsupported: str = FAILS
    """The verdict if too few scores agree."""

    @property
    def title(self) -> str:
        return f"{self.text} ({self.rule})" if self.rule else self.text

    @property
    def found(self) -> str:
        """What we found in a few words."""
        if self.brief or not self.findings:
            return self.brief
        means: dict[str, list[float]] = {}
        for finding in self.findings:
            for key, gap in finding.gaps.items():
                means.setdefault(key, []).append(gap.mean)
        if FORCED in means:
            means = {FORCED: means[FORCED]}
        elif len({len(own) for own in means.values()}) > 1 or len(means) > 2:  # different tasks have different metrics
            means = {"points": [mean for own in means.values() for mean in own]}
        ranges = ", ".join(f"{LABELS.get(key, key)} {_range(own)}" for key, own in means.items())
        return f"{ranges}; {self.count} scores agree"

    @property
    def count(self) -> str:
        return f"{sum(self.agreeing)} of {len(self.agreeing)}"

    @property
    def agreeing(self) -> list[bool]:
        return [agrees for finding in self.findings for agrees in finding.agreeing]

    @property
    def seeds(self) -> int:
        """The smallest number of seeds behind any of its scores."""
        return min((len(gap.values) for finding in self.findings for gap in finding.scores), default=0)

    @property
    def verdict(self) -> str:
        if self.seeds < 2:
            return ONE_SEED if self.findings else OPEN
        if all(self.agreeing):
            return HOLDS
        return PARTLY if 3 * sum(self.agreeing) >= len(self.agreeing) else self.unsupported


def _range(values: list[float]) -> str:
    return f"{signed(min(values))} to {signed(max(values))}"


def signed_mean(gap: Mean) -> str:
    return signed(gap.mean) + ("" if gap.deviation is None else f" ± {gap.deviation:.2f}")


def claim_of(text: str, paper: str, found: Iterable[Finding | None], further: Iterable[str] = (), **more: str) -> Claim:
    return Claim(text, paper, [finding for finding in found if finding is not None], list(further), **more)


def compare(
    words: str,
    one: Place,
    other: Place,
    keys: Iterable[str] = JUDGED,
    allowed: float = 0.0,
    split: str = "dev",
) -> Finding | None:
    """The differences over the seeds that both have; None if there are none."""
    if not one.exists or not other.exists:
        return None
    gaps = {}
    for key in keys:
        ours, theirs = (place.experiment.by_seed(place.epochs, place.model, key, split) for place in (one, other))
        both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if both:
            gaps[key] = Mean(both)
    return Finding(words, gaps, allowed) if gaps else None


# ---------------------------------------------------------------------- spans


def spans(experiments: Experiments) -> list[tuple[str, Experiment]]:
    return by_encoder(experiments, "squad2_{}")


def is_the_papers(head: str) -> bool:
    return not head.startswith("ladder") and not head.endswith("_mean")


def best_of_the_papers(experiment: Experiment, epochs: float, key: str = MAIN) -> str | None:
    theirs = [name for name in head_names(experiment, epochs) if is_the_papers(name)]
    return experiment.best_head(epochs, key, theirs) if epochs in experiment.head_snapshots else None


def best_place(
    first: Experiment, more: Experiment | None, epochs: float, key: str = MAIN, theirs: bool = True
) -> Place | None:
    """The best head on held-out data in two experiments, among the papers' heads or all. The second experiment counts
    only if it has the same seeds."""
    found: list[tuple[float, Place]] = []
    for one in [first] + ([more] if more is not None and more.seeds == first.seeds else []):
        head = best_of_the_papers(one, epochs, key) if theirs else one.best_head(epochs, key)
        mean = one.mean(epochs, head, key, "held_out") if head is not None else None
        if head is not None and mean is not None:
            found.append((mean.mean, Place(one, epochs, head)))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _best_for_spans(experiments: Experiments, main: Experiment, epochs: float) -> Place | None:
    """The best of the papers' heads, including those with kernels along tokens."""
    return best_place(main, experiments.get(f"{main.name}_kernels"), epochs)


def _head_against(
    experiments: Experiments,
    snapshots: Iterable[float],
    other: str,
    later: float | None = None,
    allowed: float = 0.0,
) -> list[Finding | None]:
    """Compare the best head of each snapshot with another model of the same run, there or at a later snapshot."""
    found = []
    for title, one in spans(experiments):
        for epochs in snapshots:
            head = _best_for_spans(experiments, one, epochs)
            if head is not None:
                words = f"{title}, {head.model} at {counted(epochs, 'epoch')}"
                places = head, Place(head.experiment, later or epochs, other)
                found.append(compare(words, *places, allowed=allowed))
    return found


def _pairs(
    experiments: Experiments, pairs: list[tuple[str, str]], snapshots: Iterable[float] = (0.3, 1.0)
) -> list[Finding | None]:
    found = []
    for title, one in spans(experiments):
        for epochs in snapshots:
            for first, second in pairs:
                words = f"{title} at {counted(epochs, 'epoch')}, {first} over {second}"
                found.append(compare(words, Place(one, epochs, first), Place(one, epochs, second)))
    return found


def beats_encoder(experiments: Experiments) -> Claim:
    paper = "at 0.3 epochs .654/.702 → .699/.740, at 1 .728/.777 → .749/.790"
    found = _head_against(experiments, (0.3, 1.0), ENCODER)
    return claim_of("A head beats BERT at the same stage of fine-tuning", paper, found)


def beats_control(experiments: Experiments) -> Claim:
    found = _head_against(experiments, (0.3, 1.0), CONTROL)
    return claim_of("… and beats the control", OWN, found)


def _at_end_of_decay(experiments: Experiments, other: str) -> list[Finding | None]:
    """Compare the best head with another model, on an encoder whose learning rate decayed to 0 within 1 epoch."""
    found = []
    for title, one in by_encoder(experiments, "squad2_{}_full1"):
        head = best_of_the_papers(one, 1.0)
        if head is not None:
            found.append(compare(f"{title}, {head} at 1 epoch", Place(one, 1.0, head), Place(one, 1.0, other)))
    return found


def beats_decayed_encoder(experiments: Experiments) -> Claim:
    text = "… and beats BERT once its learning rate has decayed to 0 (at 1 epoch)"
    return claim_of(text, NO_DECAY, _at_end_of_decay(experiments, ENCODER))


def beats_decayed_control(experiments: Experiments) -> Claim:
    text = "… and beats the control there"
    return claim_of(text, NO_DECAY, _at_end_of_decay(experiments, CONTROL))


def reaches_later(experiments: Experiments) -> Claim:
    found = _head_against(experiments, (1.0,), ENCODER, 2.0, REACHES)
    text, rule = "A head at 1 epoch matches BERT at 2 epochs", f"up to {REACHES:g} points below is allowed"
    return claim_of(text, "head at 1 .749/.790, BERT at 2 .747/.792", found, rule=rule)


def heads_at_two(experiments: Experiments) -> Claim:
    paper = "BERT at 2 .747/.792, head on its states .753/.797"
    return claim_of("Heads still add to BERT at 2 epochs", paper, _head_against(experiments, (2.0,), ENCODER))


def heads_at_two_over_control(experiments: Experiments) -> Claim:
    return claim_of("… and to the control at 2 epochs", OWN, _head_against(experiments, (2.0,), CONTROL))


def ensemble_is_better(experiments: Experiments) -> Claim:
    found = []
    for title, one in spans(experiments):
        for epochs in (epochs for epochs in (0.3, 1.0, 2.0) if epochs in one.head_snapshots):
            both = {name: one.mean(epochs, name, MAIN, "held_out") for name in (ENCODER, SHARED)}
            known = [(mean.mean, name) for name, mean in both.items() if mean is not None]
            if known:
                better = max(known)[1]
                words = f"{title} at {counted(epochs, 'epoch')}, over the better of the two on held-out data ({better})"
                found.append(compare(words, Place(one, epochs, f"max_encoder_{SHARED}"), Place(one, epochs, better)))
    text, rule = "An ensemble of BERT and a head is better than both", f"{SHARED}, maximum of the probabilities"
    return claim_of(text, "at 1 epoch .749/.790 → .756/.798", found, rule=rule)


def _less_data(experiments: Experiments, other: str) -> list[Finding | None]:
    """Compare the head on part of the data with another model on all of it: itself, or the control."""
    found = []
    for title, one in spans(experiments):
        shares = data_shares(one, 1.0) if 1.0 in one.head_snapshots else {}
        for share, allowed in LESS_DATA.items():
            if share in shares and 1.0 in shares:
                words = f"{title}, {SHARED} at 1 epoch on {100 * share:g} % of the data, {other} on all"
                places = Place(one, 1.0, shares[share]), Place(one, 1.0, other)
                found.append(compare(words, *places, allowed=allowed if other == SHARED else 0.0))
    return found


def less_data(experiments: Experiments) -> Claim:
    limits = listed([f"{allowed:g} points below on {100 * share:g} %" for share, allowed in LESS_DATA.items()])
    text, rule = "10 to 30 % of the data is nearly enough for a head", f"allowed, as in the paper: {limits}"
    paper = ".716/.765 on 10 %, .724/.772 on 30 %, .745/.788 on all"
    return claim_of(text, paper, _less_data(experiments, SHARED), rule=rule)


def less_data_over_control(experiments: Experiments) -> Claim:
    text = "… and enough to beat the control on all of the data"
    return claim_of(text, OWN, _less_data(experiments, CONTROL))


def shared_adapters(experiments: Experiments) -> Claim:
    pairs = [("adapter_64", "adapter_64_separate"), ("adapter_386", "adapter_386_separate")]
    paper = "at 1 epoch, 386: .749/.790 vs. .714/.769; at 0.3 separate ones were ahead"
    earlier = [str(finding) for finding in _pairs(experiments, pairs, (0.3,)) if finding is not None]
    found = _pairs(experiments, pairs, (1.0,))
    return claim_of("Shared adapters beat separate ones", paper, found, earlier, rule="at 1 epoch")


def wider_adapters(experiments: Experiments) -> Claim:
    found = _pairs(experiments, [("adapter_386", "adapter_64")])
    return claim_of("Adapters of size 386 beat those of size 64", "at 1 epoch .749/.790 vs. .739/.785", found)


def learned_pooling(experiments: Experiments) -> Claim:
    found = _pairs(experiments, [("learned_pooling", "average_pooling")])
    zoos = {name: experiments[f"{name}_zoo"] for name in experiments if f"{name}_zoo" in experiments}
    before_cnn = _pairs(zoos, [("pooled_cnn_1xn", "pooled_cnn_1xn_average")])
    further = [f"not judged, one seed at {show_rate(LOWER)}: {finding}" for finding in before_cnn if finding]
    text, paper = "Learned pooling beats average pooling", "before a CNN: .675/.721 vs. .657/.700"
    return claim_of(text, paper, found, further)


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


def better_on_unanswerable(experiments: Experiments) -> Claim:
    found: list[Finding | None] = []
    for title, one in spans(experiments):
        for epochs in (0.3, 1.0, 2.0):
            head = _best_for_spans(experiments, one, epochs)
            if head is not None:
                places = head, Place(head.experiment, epochs, ENCODER)
                found.append(compare(f"{title}, {head.model} at {counted(epochs, 'epoch')}", *places, NO_ANSWER))
    text, rule = "Heads are better on unanswerable questions", "at threshold 0, answering less often is enough for that"
    return claim_of(text, "shown in pictures", found, rule=rule)


def better_on_shorter(experiments: Experiments) -> Claim:
    """Medians of a few hundred passages differ by a few words by chance: the difference needs p < ALPHA."""
    found = [finding for title, one in spans(experiments) if (finding := _shorter_passages(title, one)) is not None]
    return claim_of(
        "Heads are better on shorter passages",
        "shown in pictures",
        found,
        rule=f"best head of each main run, ladders included; the difference must have p < {ALPHA:g} on both encoders",
        brief=f"median passage shorter by {listed([_with_chance(one) for one in found])} words" if found else "",
        unsupported=UNCLEAR if all((finding.chance or 0.0) >= ALPHA for finding in found) else FAILS,
    )


def _shorter_passages(title: str, experiment: Experiment) -> Finding | None:
    """By how many words the median passage is shorter where only the head is right than where only the encoder is."""
    gaps, errors = [], []
    for rows in experiment.analyses("passage_lengths").values():
        only = {row["right"]: row for row in rows if row["right"].startswith("only ") and row["median"] is not None}
        encoder = only.pop(f"only {ENCODER_ALONE}", None)
        if encoder is not None:
            gaps += [encoder["median"] - head["median"] for head in only.values()]
            errors += [np.hypot(_error_of_median(encoder), _error_of_median(head)) for head in only.values()]
    if not gaps:
        return None
    # All seeds are scored on the same questions, so the mean over seeds counts as no more certain than one of them.
    chance = float(2 * norm.sf(abs(np.mean(gaps)) / np.mean(errors)))
    words = f"{title}, median length of the passages in words, only the encoder right minus only the head right"
    shown = f"{signed_mean(Mean(gaps))}, p = {chance:.2f}"
    return Finding(words, {"words": Mean(gaps)}, shown=shown, chance=chance)


def _error_of_median(row: dict[str, Any]) -> float:
    return float(MEDIAN_ERROR * (row["upper quartile"] - row["lower quartile"]) / np.sqrt(row["questions"]))


def second_answers(experiments: Experiments) -> Claim:
    found, all_shares = [], []
    for title, one in spans(experiments):
        if not one.head_snapshots:
            continue
        last = one.head_snapshots[-1]
        head = _best_for_spans(experiments, one, last)
        for where, name in [(one, ENCODER_ALONE), *([(head.experiment, head.model)] if head is not None else [])]:
            shares = [
                row["% second right"]
                for rows in where.analyses("second_answer").values()
                for row in rows
                if row["model"] == name and row["% second right"] is not None
            ]
            if shares:
                all_shares.append(Mean(shares).mean)
                near = Mean([SECOND_RANGE - abs(share - SECOND) for share in shares])
                words = f"{title}, {name} at {counted(last, 'epoch')}"
                found.append(Finding(words, {"near": near}, shown=f"{Mean(shares)} %"))
    text, rule = (
        f"Where the answer is wrong, the second one is right in {SECOND:g} %",
        f"within {SECOND_RANGE:g} points",
    )
    brief = f"{min(all_shares):.0f} to {max(all_shares):.0f} %" if all_shares else ""
    return claim_of(text, f"{SECOND:g} %", found, rule=rule, brief=brief)


def without_finetuning(experiments: Experiments) -> Claim:
    found, further = [], []
    narrow, wide = list[float](), list[float]()
    for title, one in spans(experiments):
        kernels, longer = (experiments.get(one.name.replace("squad2", "untouched") + end) for end in ("_kernels", ""))
        for where, layout, scores in ((one, "", narrow), (kernels, OUR_LAYOUT, wide)):
            head = best_of_the_papers(where, 0.0, FORCED) if where is not None else None
            if where is not None and head is not None:
                place = Place(where, 0.0, head)
                found.append(_half_of_encoder(f"{title}{layout}", place, one))
                scores += [mean.mean for mean in [place.mean(FORCED)] if mean is not None]
        for where in (one, longer):
            head = where.best_head(0.0, FORCED) if where is not None and 0.0 in where.snapshots else None
            if where is not None and head is not None and not is_the_papers(head):
                finding = _half_of_encoder(title, Place(where, 0.0, head), one)
                further += [f"{finding} (ours)"] if finding else []
    text = "The papers' heads can't learn spans on an untouched encoder"
    rule = "below half of the encoder's answerable-only F1 at 1 epoch, after one pass; heads that see one token and "
    rule += "heads with kernels along tokens are judged separately"
    parts = [
        f"{min(scores):.0f} to {max(scores):.0f} {words}"
        for words, scores in (("for heads that see one token", narrow), ("with kernels along tokens", wide))
        if scores
    ]
    brief = f"answerable-only F1 {listed(parts)}" if parts else ""
    return claim_of(text, "no head learned; BERT at 0 .036/.051", found, further, rule=rule, brief=brief)


def _half_of_encoder(title: str, head: Place, tuned: Experiment) -> Finding | None:
    """How far a head on an untouched encoder is below half of the encoder's own score at 1 epoch."""
    own = tuned.by_seed(1.0, ENCODER, FORCED) if 1.0 in tuned.snapshots else {}
    scores = head.experiment.by_seed(0.0, head.model, FORCED)
    both = [seed for seed in scores if seed in own]
    if not both:
        return None
    shown = f"answerable-only F1 {Mean([scores[seed] for seed in both])}, AUC {head.mean(AUC)}; "
    shown += f"the encoder alone at 1 epoch {Mean([own[seed] for seed in both])}"
    passes = head.passes(tuned.entry(1.0, ENCODER).tokens)
    words = f"{title}, {head.model}" + ("" if passes is None else f", {in_passes(passes)}")
    return Finding(words, {"": Mean([own[seed] / 2 - scores[seed] for seed in both])}, shown=shown)


# ---------------------------------------------------------------------- sentences


def answerability(experiments: Experiments) -> Claim:
    """Judged on held-out questions too: on dev, where more questions have no answer, saying "no answer" more often is
    enough to gain."""
    paper = "accuracy at 0.2 .687 → .697, at 1 .761 → .782, at 3 .804 → .811"
    found = _pooling_against(experiments, ENCODER)
    text, rule = "For answerability, learned pooling beats BERT", "on dev and on held-out questions"
    return claim_of(text, paper, found, rule=rule, brief=_by_split(found))


def answerability_over_control(experiments: Experiments) -> Claim:
    found = _pooling_against(experiments, CONTROL)
    return claim_of(
        "… and beats the control", OWN, found, rule="on dev and on held-out questions", brief=_by_split(found)
    )


def _by_split(found: list[Finding]) -> str:
    """The range of the differences on dev and on held-out questions."""
    parts = []
    for split in SPLITS.values():
        own = [finding for finding in found if finding.words.endswith(split)]
        means = [gap.mean for finding in own for gap in finding.scores]
        agree = [agrees for finding in own for agrees in finding.agreeing]
        if means:
            parts.append(f"{_range(means)} {split} ({sum(agree)} of {len(agree)} agree)")
    return f"accuracy {listed(parts)}" if parts else ""


def _pooling_against(experiments: Experiments, other: str) -> list[Finding]:
    found = []
    for split, where in SPLITS.items():
        for title, one in by_encoder(experiments, "answerable_{}"):
            for epochs in (epochs for epochs in one.head_snapshots if epochs > 0):
                words = f"{title}, learned_pooling at {counted(epochs, 'epoch')} {where}"
                places = Place(one, epochs, "learned_pooling"), Place(one, epochs, other)
                found.append(compare(words, *places, one.first["metrics"][:1], split=split))
    return [finding for finding in found if finding is not None]


def glue_heads(experiments: Experiments) -> Claim:
    paper = "BERT-base at 1 epoch: ahead on MRPC, RTE, STS-B, CoLA, behind or equal on the rest"
    found = [finding for finding in _glue_gaps(experiments, ENCODER) if finding]
    earlier = [agrees for finding in found if "at 1 epoch" in finding.words for agrees in finding.agreeing]
    further = [f"at 1 epoch, as in the paper, {sum(earlier)} of {counted(len(earlier), 'score')} agree"]
    return claim_of("On GLUE, a head beats its encoder", paper, found, further if earlier else [])


def glue_heads_over_control(experiments: Experiments) -> Claim:
    return claim_of("… and beats the control", OWN, _glue_gaps(experiments, CONTROL))


def _glue_gaps(experiments: Experiments, other: str) -> list[Finding | None]:
    found = []
    for title, one, zoo in glue_experiments(experiments):
        metric = one.first["metrics"][0]
        for epochs in (epochs for epochs in one.head_snapshots if epochs > 0):
            head = best_place(one, zoo, epochs, metric)
            if head is not None:
                words = f"{title}, {head.model} at {counted(epochs, 'epoch')}"
                found.append(compare(words, head, Place(head.experiment, epochs, other), [metric]))
    return found


Judge = Callable[[Experiments], Claim]
CLAIMS: list[Judge] = [
    beats_encoder, beats_control, beats_decayed_encoder, beats_decayed_control, reaches_later,
    ensemble_is_better, heads_at_two, heads_at_two_over_control,
    less_data, less_data_over_control, shared_adapters, wider_adapters, learned_pooling, later_layers,
    better_on_unanswerable, better_on_shorter, second_answers, answerability, answerability_over_control,
    without_finetuning, glue_heads, glue_heads_over_control,
]  # fmt: skip
NOTE = (
    "A score agrees if its mean over seeds is above zero (or above what the claim allows) and no seed is below. A "
    "claim holds if all of its scores agree, partly if at least a third do, and does not hold otherwise; one seed "
    f"decides nothing. Where a p-value is given, p must also be below {ALPHA:g}. The more seeds, the likelier one is "
    "below: GLUE has five. Spans are judged by F1 at threshold 0, F1 at the chosen threshold, answerable-only F1 and "
    "AUC, unless the claim says otherwise. “A head” is the papers' best head on held-out data, among those that all "
    "seeds have: by F1 at the chosen threshold for spans (on untouched encoders by answerable-only F1) and by the "
    "task's first metric otherwise. The more heads, the likelier one is best by luck. Where the learning rate had "
    "decayed, four of the papers' heads were run, none with kernels along tokens. Answerability was run at 5e-5 only. "
    "BERT is our encoder, and the control is a linear layer on the last layer, trained like the heads. Rows that "
    "begin with … are claims of our own."
)


def judge_all(experiments: Experiments) -> dict[Judge, Claim]:
    return {judge: judge(experiments) for judge in CLAIMS}


def is_own(claim: Claim) -> bool:
    """Whether it is a claim of our own."""
    return claim.paper in (OWN, NO_DECAY)


def claims_blocks(experiments: Experiments, lower: Experiments) -> list[Block]:
    """Every claim, with the verdict at the lower learning rate in the next column."""
    found, there = judge_all(experiments), judge_at_lower(experiments, lower)
    rate = show_rate(LOWER)
    columns = [Column("claim"), Column("verdict"), Column("scores that agree")]
    columns.append(Column(f"at {rate}", None, "with encoders fine-tuned at this lower learning rate, if both were run"))
    columns += [Column("seeds", None, "the fewest of any of its scores")]
    columns.append(Column("the papers (EM/F1 of BERT-large on SQuAD 2.0, unless stated otherwise)"))
    rows: list[list[Cell]] = []
    for judge, claim in found.items():
        agreeing = claim.count if claim.findings else None
        other = f"{there[judge].verdict}, {there[judge].count}" if judge in there else None
        rows.append([claim.title, claim.verdict, agreeing, other, claim.seeds or None, claim.paper])
    claims = list(found.values())
    theirs = [claim for claim in claims if not is_own(claim)]
    lines = [f"Of the papers' {len(theirs)} claims, {count_verdicts(theirs)}."]
    for paper, words in ((OWN, "about the control"), (NO_DECAY, "about encoders whose learning rate had decayed")):
        own = [claim for claim in claims if claim.paper == paper]
        lines.append(f"Of our own {len(own)} claims {words}, {count_verdicts(own)}.")
    if there:
        changed = sum(found[judge].verdict != claim.verdict for judge, claim in there.items())
        lines.append(f"With encoders fine-tuned at {rate}, {changed} of {len(there)} verdicts would differ.")
    blocks = [
        Block("claims", "Claim by claim", [" ".join(lines)], Table(columns, rows), note=NOTE),
        _evidence_block("claims_evidence", "The scores behind the verdicts", claims),
    ]
    return blocks + ([_evidence_block("claims_lower", f"The scores at {rate}", [*there.values()])] if there else [])


def judge_at_lower(experiments: Experiments, lower: Experiments) -> dict[Judge, Claim]:
    """The claims that depend on the learning rate of fine-tuning, judged by the runs at the lower one."""
    found = {judge: (judge(experiments), judge(experiments | lower)) for judge in CLAIMS}
    return {judge: there for judge, (here, there) in found.items() if there.findings not in ([], here.findings)}


def _evidence_block(key: str, title: str, claims: list[Claim]) -> Block:
    columns = [Column("claim"), Column("differences, mean ± standard deviation over seeds")]
    rows: list[list[Cell]] = []
    for claim in claims:
        lines = [*map(str, claim.findings), *claim.further]
        rows += [["" if place else claim.text, line] for place, line in enumerate(lines)]
    return Block(key, title, table=Table(columns, rows), folded=True)


def count_verdicts(claims: list[Claim]) -> str:
    """1 holds, 7 hold in part and 6 do not hold."""
    counts = [(sum(claim.verdict == verdict for claim in claims), words) for verdict, words in COUNTED.items()]
    return listed([f"{count} {one if count == 1 else more}" for count, (one, more) in counts if count])
