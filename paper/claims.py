"""The papers' claims, one by one: what the papers said, what our runs show, and whether the claim holds (judging.py).

Claims about errors, second answers, passages and layers are in analysis_claims.py. No claim is judged by the encoder
alone at 0 epochs: its output layer is random there.
"""

from collections.abc import Callable, Iterable

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import ENCODER
from bertvision.report.block import Block
from bertvision.report.wording import listed
from bertvision.tables import Cell, Column, Table, counted
from paper.analysis_claims import (
    better_on_shorter,
    later_layers,
    missed_answers,
    second_answers,
    second_answers_with_an_answer,
)
from paper.judging import (
    ALPHA,
    COUNTED,
    MAIN,
    NO_DECAY,
    OWN,
    Claim,
    Finding,
    best_for_spans,
    best_of_the_papers,
    best_place,
    claim_of,
    compare,
    is_the_papers,
    range_of,
    spans,
)
from paper.kept import LOWER, Experiment, Experiments, Mean, Place, by_encoder, show_rate
from paper.names import AUC, FORCED, in_passes
from paper.sentences import glue_experiments
from paper.spans import SHARED, data_shares

REACHES = 0.5
"""Points that a head may be below the score it matches; the papers' head was 0.2 points of F1 below."""
LESS_DATA = {0.1: 2.3, 0.3: 1.6}
"""Points of F1 by which the papers' head was below on 10 % and 30 % of the data, which they called nearly enough."""
NO_ANSWER = ("NoAns_f1", "at_threshold.NoAns_f1")
ANSWERABILITY = ("accuracy", "f1_no_answer")
SPLITS = {"dev": "on dev", "held_out": "on held-out questions"}
OUR_LAYOUT = ", kernels along tokens in our layout"


# ---------------------------------------------------------------------- spans


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
            head = best_for_spans(experiments, one, epochs)
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


def longer_ensemble(experiments: Experiments) -> Claim:
    """How far the ensemble at 1 epoch is above the one at 2."""
    name, found = f"max_encoder_{SHARED}", []
    for title, one in spans(experiments):
        if {1.0, 2.0} <= set(one.head_snapshots):
            places = Place(one, 1.0, name), Place(one, 2.0, name)
            found.append(compare(f"{title}, at 1 epoch over 2 epochs", *places, allowed=REACHES))
    text = "An ensemble at 2 epochs does not beat the one at 1 epoch"
    rule = f"{SHARED}, maximum of the probabilities; up to {REACHES:g} points are allowed"
    return claim_of(text, "at 1 epoch .756/.798, at 2 .751/.796", found, rule=rule)


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


def better_on_unanswerable(experiments: Experiments) -> Claim:
    found: list[Finding | None] = []
    for title, one in spans(experiments):
        for epochs in (0.3, 1.0, 2.0):
            head = best_for_spans(experiments, one, epochs)
            if head is not None:
                places = head, Place(head.experiment, epochs, ENCODER)
                found.append(compare(f"{title}, {head.model} at {counted(epochs, 'epoch')}", *places, NO_ANSWER))
    text, rule = "Heads are better on unanswerable questions", "at threshold 0, answering less often is enough for that"
    return claim_of(text, "shown in pictures", found, rule=rule)


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
            parts.append(f"{range_of(means)} {split} ({sum(agree)} of {len(agree)} agree)")
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


def answerability_matches_later(experiments: Experiments) -> Claim:
    """The published head is above BERT at 2 epochs in F1 of "no answer", not in accuracy."""
    found, further, lacking = list[Finding | None](), list[str](), list[str]()
    for split, where in SPLITS.items():
        for title, one in by_encoder(experiments, "answerable_{}"):
            head = one.best_head(1.0, "accuracy") if 1.0 in one.head_snapshots else None
            if head is None:
                continue
            for epochs in (epochs for epochs in one.snapshots if epochs >= 2):
                words = f"{title}, {head} at 1 epoch, over BERT at {counted(epochs, 'epoch')} {where}"
                places = Place(one, 1.0, head), Place(one, epochs, ENCODER)
                finding = compare(words, *places, ANSWERABILITY, split=split)
                found += [finding] if epochs == 2 else []
                further += [f"not judged: {finding}"] if epochs > 2 and finding else []
            lacking += [one.name] if 2.0 not in one.snapshots and one.name not in lacking else []
    names = listed(lacking) if lacking else ""
    return claim_of(
        "For answerability, a head at 1 epoch beats BERT at 2",
        "accuracy and F1 of “no answer”: best heads at 1 .785/.782, BERT at 2 .793/.774",
        found,
        further,
        rule="the best head, on dev and on held-out questions",
        missing=f"{names} have no snapshot at 2 epochs. With one in experiments.toml (finetune.snapshots), new runs, "
        "kept with paper.keep, measure it"
        if lacking
        else "",
    )


def answerability_by_epoch(experiments: Experiments) -> Claim:
    """How far the head's worst epoch is above the encoder, by seed. Every run has the last epoch."""
    found, further, lacking = [], list[str](), []
    for title, one in by_encoder(experiments, "answerable_{}"):
        there, tuned = list[Finding](), [epochs for epochs in one.head_snapshots if epochs > 0]
        for epochs in tuned:
            head = one.best_head(epochs, "accuracy")
            own = one.by_seed(epochs, ENCODER, "accuracy")
            gaps = [
                min(row["accuracy"] for row in scores) - own[seed]
                for seed, rows in one.analyses("epochs_on_dev").items()
                if (scores := [row for row in rows if (row["fine-tuning"], row["head"]) == (epochs, head)])
                and seed in own
            ]
            of_head = f"of {head} at {counted(epochs, 'epoch')} of fine-tuning"
            if gaps:
                there.append(Finding(f"{title}, worst epoch {of_head}", {"accuracy": Mean(gaps)}))
            elif head is not None:
                places = Place(one, epochs, head), Place(one, epochs, ENCODER)
                further.append(f"not judged: {compare(f'{title}, last epoch {of_head}', *places, ['accuracy'])}")
        found += there
        lacking += [one.name] if tuned and not there else []
    names = listed(lacking) if lacking else ""
    return claim_of(
        "For answerability, a head beats BERT after every epoch of its training",
        "shown in a picture, 10 epochs",
        found,
        further,
        rule="the best head, accuracy on dev",
        missing=f"{names} did not score dev after each epoch of the heads. New runs with train.dev_each_epoch=true, "
        "kept with paper.keep, measure it"
        if lacking
        else "",
    )


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
    ensemble_is_better, longer_ensemble, heads_at_two, heads_at_two_over_control,
    less_data, less_data_over_control, shared_adapters, wider_adapters, learned_pooling, later_layers,
    better_on_unanswerable, better_on_shorter, missed_answers, second_answers, second_answers_with_an_answer,
    answerability, answerability_over_control, answerability_matches_later, answerability_by_epoch,
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
    "Not measured: the kept files lack what the claim needs; the scores behind the verdicts say which run would "
    "measure it. BERT is our encoder, and the control is a linear layer on the last layer, trained like the heads. "
    "The ensembles were scored when maxima were still rescaled in each window, which changes few answers. Rows that "
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
        rows += [["" if place else claim.text, line] for place, line in enumerate(claim.evidence)]
    return Block(key, title, table=Table(columns, rows), folded=True)


def count_verdicts(claims: list[Claim]) -> str:
    """1 holds, 7 hold in part and 6 do not hold."""
    counts = [(sum(claim.verdict == verdict for claim in claims), words) for verdict, words in COUNTED.items()]
    return listed([f"{count} {one if count == 1 else more}" for count, (one, more) in counts if count])
