"""The papers' claims, one by one: what they said, what our runs show, and whether it holds here.

A claim is a list of findings: how far one model is above another, figure by figure and seed by seed, and how far below
it may be. A figure agrees where the mean over seeds is above that and no seed is below. A claim holds where all of its
figures agree, partly where a third of them or more do, and not where fewer do; one seed decides nothing. Which head
stands for "a head" is chosen on held-out training questions, among the papers' heads: the ladder, and reading means
instead of [CLS], are ours. No claim is judged by the encoder alone at 0 epochs: its output layer is random there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import spearmanr

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import ENCODER
from bertvision.report.block import Block
from bertvision.report.wording import ENCODER as ENCODER_ITSELF
from bertvision.report.wording import signed
from bertvision.tables import Cell, Column, Table, counted
from paper.kept import LOWER, Experiment, Experiments, Mean, Place, by_encoder, show_rate
from paper.names import AUC, FORCED, JUDGED, LABELS, in_passes
from paper.sentences import glue_experiments
from paper.spans import SHARED, data_shares, head_names, rank_correlation

HOLDS, PARTLY, FAILS = "holds", "partly", "does not hold"
ONE_SEED, OPEN = "one seed", "not tested yet"
MAIN = "at_threshold.f1"
REACHES = 0.5
"""Points that a head may be below what it "reaches"; the papers' was 0.2 of F1 below."""
LESS_DATA = {0.1: 2.3, 0.3: 1.6}
"""Points of F1 by which the papers' head was below on 10 and on 30 % of the data, which they called nearly enough."""
SECOND, SECOND_RANGE = 44.0, 5.0
OUR_LAYOUT = ", kernels along tokens in a layout of ours"
OWN, NO_DECAY = "no such control", "not asked"
"""Stand for the papers' figures where the claim is a question of ours."""


@dataclass(frozen=True)
class Finding:
    """One comparison, seed by seed."""

    words: str
    gaps: dict[str, Mean]
    """By figure: how far above, or what else must be above zero for the claim to hold."""
    allowed: float = 0.0
    """How far below is still in keeping with the claim."""
    shown: str = ""
    """What people read instead of the gaps."""

    @property
    def agreeing(self) -> list[bool]:
        return [min(gap.mean, *gap.values) >= -self.allowed and gap.mean + self.allowed > 0 for gap in self.figures]

    @property
    def figures(self) -> list[Mean]:
        return list(self.gaps.values())

    def __str__(self) -> str:
        told = ", ".join(f"{LABELS.get(key, key)} {signed_mean(gap)}" for key, gap in self.gaps.items())
        return f"{self.words}: {self.shown or told}"


@dataclass(frozen=True)
class Claim:
    text: str
    paper: str
    """The papers' own figures."""
    findings: list[Finding]
    further: list[str] = field(default_factory=list)
    """What is told beside the figures, and decides nothing."""

    @property
    def agreeing(self) -> list[bool]:
        return [agrees for finding in self.findings for agrees in finding.agreeing]

    @property
    def seeds(self) -> int:
        """The fewest that any of its figures has."""
        return min((len(gap.values) for finding in self.findings for gap in finding.figures), default=0)

    @property
    def verdict(self) -> str:
        if self.seeds < 2:
            return ONE_SEED if self.findings else OPEN
        if all(self.agreeing):
            return HOLDS
        return PARTLY if 3 * sum(self.agreeing) >= len(self.agreeing) else FAILS


def signed_mean(gap: Mean) -> str:
    return signed(gap.mean) + ("" if gap.deviation is None else f" ± {gap.deviation:.2f}")


def claim_of(text: str, paper: str, found: Iterable[Finding | None], further: Iterable[str] = ()) -> Claim:
    return Claim(text, paper, [finding for finding in found if finding is not None], list(further))


def compare(
    words: str,
    one: Place,
    other: Place,
    keys: Iterable[str] = JUDGED,
    allowed: float = 0.0,
    split: str = "dev",
) -> Finding | None:
    """Over the seeds that both have; None where there is none."""
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
    """The best head on held-out data, of the papers' or of all, among those of two runs; the second counts where it has
    the very seeds of the first."""
    found: list[tuple[float, Place]] = []
    for one in [first] + ([more] if more is not None and more.seeds == first.seeds else []):
        head = best_of_the_papers(one, epochs, key) if theirs else one.best_head(epochs, key)
        mean = one.mean(epochs, head, key, "held_out") if head is not None else None
        if head is not None and mean is not None:
            found.append((mean.mean, Place(one, epochs, head)))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _best_for_spans(experiments: Experiments, main: Experiment, epochs: float) -> Place | None:
    """The best of the papers' heads, those with kernels along tokens among them."""
    return best_place(main, experiments.get(f"{main.name}_kernels"), epochs)


def _head_against(
    experiments: Experiments,
    snapshots: Iterable[float],
    other: str,
    later: float | None = None,
    allowed: float = 0.0,
) -> list[Finding | None]:
    """The best head of each snapshot against another model there, or at a later one; both of the same run."""
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
    return claim_of("A head beats BERT at the same fine-tuning", paper, found)


def beats_control(experiments: Experiments) -> Claim:
    found = _head_against(experiments, (0.3, 1.0), CONTROL)
    return claim_of("… and a new linear layer on the last layer, trained like the head", OWN, found)


def _at_end_of_decay(experiments: Experiments, other: str) -> list[Finding | None]:
    """The best head on the states of an encoder whose rate decayed to 0 within 1 epoch, against another model there."""
    found = []
    for title, one in by_encoder(experiments, "squad2_{}_full1"):
        head = best_of_the_papers(one, 1.0)
        if head is not None:
            found.append(compare(f"{title}, {head} at 1 epoch", Place(one, 1.0, head), Place(one, 1.0, other)))
    return found


def beats_decayed_encoder(experiments: Experiments) -> Claim:
    text = "… and beats BERT whose rate had decayed to 0 by 1 epoch"
    return claim_of(text, NO_DECAY, _at_end_of_decay(experiments, ENCODER))


def beats_decayed_control(experiments: Experiments) -> Claim:
    text = "… and, there, a new linear layer on the last layer"
    return claim_of(text, NO_DECAY, _at_end_of_decay(experiments, CONTROL))


def reaches_later(experiments: Experiments) -> Claim:
    found = _head_against(experiments, (1.0,), ENCODER, 2.0, REACHES)
    text = f"A head at 1 epoch reaches BERT at 2 (allowed: {REACHES:g} points below)"
    return claim_of(text, "head at 1 .749/.790, BERT at 2 .747/.792", found)


def heads_at_two(experiments: Experiments) -> Claim:
    paper = "BERT at 2 .747/.792, head on its states .753/.797"
    return claim_of("Heads add to BERT at 2 epochs as well", paper, _head_against(experiments, (2.0,), ENCODER))


def heads_at_two_over_control(experiments: Experiments) -> Claim:
    text = "… and to a new linear layer on the last layer there"
    return claim_of(text, OWN, _head_against(experiments, (2.0,), CONTROL))


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
    text = f"BERT and a head ({SHARED}) together, by the maximum of probabilities, do better still"
    return claim_of(text, "at 1 epoch .749/.790 → .756/.798", found)


def _less_data(experiments: Experiments, other: str) -> list[Finding | None]:
    """The head on a part of the data against another model on all of it: itself, or the control."""
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
    allowed_words = " and ".join(
        f"{allowed:g} points below on {100 * share:g} %" for share, allowed in LESS_DATA.items()
    )
    text = f"10 to 30 % of the data nearly suffices for a head (allowed, as in the paper: {allowed_words})"
    return claim_of(text, ".716/.765 on 10 %, .724/.772 on 30 %, .745/.788 on all", _less_data(experiments, SHARED))


def less_data_over_control(experiments: Experiments) -> Claim:
    text = "… and on that little is above a new linear layer on the last layer that saw all of it"
    return claim_of(text, OWN, _less_data(experiments, CONTROL))


def shared_adapters(experiments: Experiments) -> Claim:
    pairs = [("adapter_64", "adapter_64_separate"), ("adapter_386", "adapter_386_separate")]
    paper = "at 1 epoch, 386: .749/.790 against .714/.769; at 0.3 separate ones were ahead"
    earlier = [str(finding) for finding in _pairs(experiments, pairs, (0.3,)) if finding is not None]
    text = "Shared adapters beat separate ones (judged: at 1 epoch)"
    return claim_of(text, paper, _pairs(experiments, pairs, (1.0,)), earlier)


def wider_adapters(experiments: Experiments) -> Claim:
    found = _pairs(experiments, [("adapter_386", "adapter_64")])
    return claim_of("Adapters of 386 beat those of 64", "at 1 epoch .749/.790 against .739/.785", found)


def learned_pooling(experiments: Experiments) -> Claim:
    found = _pairs(experiments, [("learned_pooling", "average_pooling")])
    zoos = {name: experiments[f"{name}_zoo"] for name in experiments if f"{name}_zoo" in experiments}
    before_cnn = _pairs(zoos, [("pooled_cnn_1xn", "pooled_cnn_1xn_average")])
    further = [f"not judged, one seed at {show_rate(LOWER)}: {finding}" for finding in before_cnn if finding]
    text, paper = "Learned pooling beats average pooling", "before a CNN: .675/.721 against .657/.700"
    return claim_of(text, paper, found, further)


def later_layers(experiments: Experiments) -> Claim:
    found, further = [], []
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
            words = f"{title}, weight of the upper {half} states above an even share, and rank correlation with depth"
            found.append(Finding(words, {"points": upper, "correlation": ranks}))
            chance = spearmanr(np.mean(weights, axis=0), range(len(weights[0]))).pvalue
            further.append(
                f"{title}: mean weights whose ranks go with depth as much come by chance with p = {chance:.2f}"
            )
    text = "Later layers weigh more in learned pooling (judged: the upper half, and all layers by their ranks)"
    return claim_of(text, "shown in a picture", found, further)


def better_on_unanswerable(experiments: Experiments) -> Claim:
    found: list[Finding | None] = []
    for title, one in spans(experiments):
        for epochs in (0.3, 1.0, 2.0):
            head = _best_for_spans(experiments, one, epochs)
            if head is not None:
                places = head, Place(head.experiment, epochs, ENCODER)
                keys = ("NoAns_f1", "at_threshold.NoAns_f1")
                found.append(compare(f"{title}, {head.model} at {counted(epochs, 'epoch')}", *places, keys))
    text = "Heads are better on unanswerable questions (at threshold 0 that is silence more than knowledge)"
    return claim_of(text, "shown in pictures", found)


def better_on_shorter(experiments: Experiments) -> Claim:
    found = [_shorter_passages(title, one) for title, one in spans(experiments)]
    text = "Heads are better on shorter passages (the best head of each main run, the ladder too)"
    return claim_of(text, "shown in pictures", found)


def _shorter_passages(title: str, experiment: Experiment) -> Finding | None:
    """By how many words the passages of what only the head got right are shorter, in the median."""
    found = []
    for rows in experiment.analyses("passage_lengths").values():
        only = {row["right"]: row["median"] for row in rows if row["right"].startswith("only ")}
        encoder = only.pop(f"only {ENCODER_ITSELF}", None)
        found += [encoder - median for median in only.values() if encoder is not None and median is not None]
    words = (
        f"{title}, median length of passages in words, where only the encoder is right, minus that where only the "
        "head is (the best head on held-out data, on the last states)"
    )
    return Finding(words, {"words": Mean(found)}) if found else None


def second_answers(experiments: Experiments) -> Claim:
    found = []
    for title, one in spans(experiments):
        if not one.head_snapshots:
            continue
        last = one.head_snapshots[-1]
        head = _best_for_spans(experiments, one, last)
        for where, name in [(one, ENCODER_ITSELF), *([(head.experiment, head.model)] if head is not None else [])]:
            shares = [
                row["% second right"]
                for rows in where.analyses("second_answer").values()
                for row in rows
                if row["model"] == name and row["% second right"] is not None
            ]
            if shares:
                near = Mean([SECOND_RANGE - abs(share - SECOND) for share in shares])
                words = f"{title}, {name} at {counted(last, 'epoch')}"
                found.append(Finding(words, {"near": near}, shown=f"{Mean(shares)} %"))
    text = f"The second answer is right in {SECOND:g} % of the misses (judged: within {SECOND_RANGE:g} points)"
    return claim_of(text, f"{SECOND:g} %", found)


def without_finetuning(experiments: Experiments) -> Claim:
    found, further = [], []
    for title, one in spans(experiments):
        kernels, longer = (experiments.get(one.name.replace("squad2", "untouched") + end) for end in ("_kernels", ""))
        for where, layout in ((one, ""), (kernels, OUR_LAYOUT)):
            head = best_of_the_papers(where, 0.0, FORCED) if where is not None else None
            if where is not None and head is not None:
                found.append(_half_of_encoder(f"{title}{layout}", Place(where, 0.0, head), one))
        for where in (one, longer):
            head = where.best_head(0.0, FORCED) if where is not None and 0.0 in where.snapshots else None
            if where is not None and head is not None and not is_the_papers(head):
                finding = _half_of_encoder(title, Place(where, 0.0, head), one)
                further += [f"{finding} (ours)"] if finding else []
    text = (
        "The papers' heads can't learn spans on an encoder without fine-tuning (judged: less than half of the "
        "encoder's answerable-only F1 at 1 epoch, after one pass; of heads that see one token, and of those with kernels along "
        "tokens)"
    )
    return claim_of(text, "no head learned; BERT at 0 .036/.051", found, further)


def _half_of_encoder(title: str, head: Place, tuned: Experiment) -> Finding | None:
    """How far an untouched encoder's head is below half of what the encoder alone has at 1 epoch."""
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
    paper = "accuracy at 0.2 .687 → .697, at 1 .761 → .782, at 3 .804 → .811"
    held_out = [
        f"on held-out questions, of which fewer have no answer: {finding}"
        for finding in _pooling_against(experiments, ENCODER, "held_out")
        if finding is not None
    ]
    text = "For answerability learned pooling alone beats BERT"
    return claim_of(text, paper, _pooling_against(experiments, ENCODER), held_out)


def answerability_over_control(experiments: Experiments) -> Claim:
    text = "… and a new linear layer on the last layer, trained like it"
    return claim_of(text, OWN, _pooling_against(experiments, CONTROL))


def _pooling_against(experiments: Experiments, other: str, split: str = "dev") -> list[Finding | None]:
    found = []
    for title, one in by_encoder(experiments, "answerable_{}"):
        for epochs in (epochs for epochs in one.head_snapshots if epochs > 0):
            words = f"{title}, learned_pooling at {counted(epochs, 'epoch')}"
            places = Place(one, epochs, "learned_pooling"), Place(one, epochs, other)
            found.append(compare(words, *places, one.first["metrics"][:1], split=split))
    return found


def glue_heads(experiments: Experiments) -> Claim:
    paper = "BERT-base at 1 epoch: ahead on MRPC, RTE, STS-B, CoLA, behind or equal on the rest"
    found = [finding for finding in _glue_gaps(experiments, ENCODER) if finding]
    earlier = [agrees for finding in found if "at 1 epoch" in finding.words for agrees in finding.agreeing]
    further = [f"at 1 epoch, as in the paper, {sum(earlier)} of {counted(len(earlier), 'figure')} agree"]
    return claim_of("On GLUE a head beats the encoder that it reads", paper, found, further if earlier else [])


def glue_heads_over_control(experiments: Experiments) -> Claim:
    text = "… and a new linear layer on the last layer, trained like the head"
    return claim_of(text, OWN, _glue_gaps(experiments, CONTROL))


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
    "A figure agrees where the mean over seeds is above zero, or what the claim allows, and no seed is below. A claim "
    "holds where all of its figures agree, partly where a third of them or more do, and does not where fewer do; one "
    "seed decides nothing. The more seeds there are, the likelier one is below: GLUE has five. Figures of spans are F1 "
    "at threshold 0, F1 at the chosen threshold, answerable-only F1 and AUC, unless the claim says what it is judged by. Where "
    "a claim is of a head in general, it is the best of the papers' that all seeds have, on held-out training data, by "
    "F1 at the chosen threshold for spans (without fine-tuning by answerable-only F1) and by the task's first figure for "
    "sentences; where every head was run, more of them could win there by luck. Where the rate had decayed, four of "
    "the papers' heads were run, and none with kernels along tokens. Answerability was run at 5e-5 only. BERT is the "
    "encoder at hand."
)


def claims_blocks(experiments: Experiments, lower: Experiments) -> list[Block]:
    """Every claim, and beside it what the runs say whose encoders were fine-tuned at the lower rate."""
    found, there = {judge: judge(experiments) for judge in CLAIMS}, judge_at_lower(experiments, lower)
    rate = show_rate(LOWER)
    columns = [Column("claim"), Column("here"), Column("figures that agree")]
    columns.append(Column(f"at {rate}", None, "with encoders fine-tuned at this lower rate, where both were run"))
    columns += [Column("seeds", None, "the fewest that any of its figures has")]
    columns.append(Column("the papers (EM/F1 of BERT-large on SQuAD 2.0, unless said otherwise)"))
    rows: list[list[Cell]] = []
    for judge, claim in found.items():
        agreeing = _agreeing(claim) if claim.findings else None
        other = f"{there[judge].verdict}, {_agreeing(there[judge])}" if judge in there else None
        rows.append([claim.text, claim.verdict, agreeing, other, claim.seeds or None, claim.paper])
    claims = list(found.values())
    parts = {paper: [claim for claim in claims if claim.paper == paper] for paper in (OWN, NO_DECAY)}
    theirs = [claim for claim in claims if claim.paper not in parts]
    told = f"Of the papers' {len(theirs)} claims: {_count(theirs)}. Lines that begin with … are questions of ours. Of "
    told += f"{len(parts[OWN])}, which ask the same against our control: {_count(parts[OWN])}. Of "
    told += f"{len(parts[NO_DECAY])}, where the encoder's rate had decayed: {_count(parts[NO_DECAY])}."
    lines = [told]
    if there:
        changed = sum(found[judge].verdict != claim.verdict for judge, claim in there.items())
        lines.append(f"With encoders fine-tuned at {rate}, the verdict on {changed} of {len(there)} would be another.")
    blocks = [
        Block("claims", "Claim by claim", lines, Table(columns, rows), note=NOTE),
        _evidence_block("claims_evidence", "The figures behind it", claims),
    ]
    return blocks + ([_evidence_block("claims_lower", f"The figures at {rate}", [*there.values()])] if there else [])


def judge_at_lower(experiments: Experiments, lower: Experiments) -> dict[Judge, Claim]:
    """The claims that hang on the rate of fine-tuning and have runs at the lower one, as these judge them."""
    found = {judge: (judge(experiments), judge(experiments | lower)) for judge in CLAIMS}
    return {judge: there for judge, (here, there) in found.items() if there.findings not in ([], here.findings)}


def _agreeing(claim: Claim) -> str:
    return f"{sum(claim.agreeing)} of {len(claim.agreeing)}"


def _evidence_block(key: str, title: str, claims: list[Claim]) -> Block:
    columns = [Column("claim"), Column("what our runs show: how far above, ± over seeds")]
    rows: list[list[Cell]] = []
    for claim in claims:
        lines = [*map(str, claim.findings), *claim.further]
        rows += [["" if place else claim.text, line] for place, line in enumerate(lines)]
    return Block(key, title, table=Table(columns, rows), folded=True)


def _count(claims: list[Claim]) -> str:
    verdicts = (HOLDS, PARTLY, FAILS, ONE_SEED, OPEN)
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in verdicts}
    return ", ".join(f"{verdict} {count}" for verdict, count in counts.items() if count)
