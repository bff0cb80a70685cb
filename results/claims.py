"""The papers' claims, one by one: what they said, what our runs show, and whether it holds here.

A comparison holds where the mean over seeds is above zero and so is every seed. A claim holds where all of its
comparisons do, and does not where none has a mean above zero; else it holds partly. Which head stands for "a head" is
chosen on held-out training questions, among the papers' heads (the ladder is ours).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bertvision.analysis.block import Block, Cell, Column, Frame
from results.kept import CONTROL, ENCODER, Experiment, Mean
from results.names import ENCODERS, JUDGED, LABELS, epochs_of
from results.sentences import GLUE
from results.spans import SHARED, data_shares, head_names

HOLDS, PARTLY, FAILS, OPEN = "holds", "partly", "does not hold", "not tested yet"
MAIN = "at_threshold.f1"
NEARLY = 1.0
"""Points that a head on less data may be below one on all of it and still be "nearly" as good."""
SECOND, SECOND_RANGE = 44.0, 5.0

Experiments = dict[str, Experiment]


@dataclass(frozen=True)
class Place:
    """A model at a snapshot of an experiment."""

    experiment: Experiment
    epochs: float
    model: str

    @property
    def exists(self) -> bool:
        return self.model in self.experiment.models(self.epochs)


@dataclass(frozen=True)
class Finding:
    """One comparison: how far one model is above another, seed by seed."""

    words: str
    gaps: dict[str, Mean]
    """By figure."""

    @property
    def holding(self) -> list[bool]:
        return [gap.mean > 0 and min(gap.values) > 0 for gap in self.gaps.values()]

    @property
    def above(self) -> list[bool]:
        return [gap.mean > 0 for gap in self.gaps.values()]

    def __str__(self) -> str:
        figures = ", ".join(f"{LABELS.get(key, key)} {signed(gap)}" for key, gap in self.gaps.items())
        return f"{self.words}: {figures}"


@dataclass(frozen=True)
class Claim:
    text: str
    paper: str
    """The papers' own figures."""
    verdict: str
    ours: list[str]
    seeds: int = 0
    """The fewest that any of its figures has."""


def signed(gap: Mean) -> str:
    around = f" ± {gap.deviation:.2f}" if gap.deviation is not None else ""
    return f"{gap.mean:+.2f}{around}".replace("-", "−")


def compare(words: str, one: Place, other: Place, keys: Iterable[str] = JUDGED) -> Finding | None:
    """Over the seeds that both have; None where there is none."""
    if not one.exists or not other.exists:
        return None
    gaps = {}
    for key in keys:
        ours, theirs = (place.experiment.by_seed(place.epochs, place.model, key) for place in (one, other))
        both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if both:
            gaps[key] = Mean(both)
    return Finding(words, gaps) if gaps else None


def judge(findings: list[Finding]) -> str:
    if not findings:
        return OPEN
    if all(all(finding.holding) for finding in findings):
        return HOLDS
    return PARTLY if any(any(finding.above) for finding in findings) else FAILS


def claim_of(text: str, paper: str, found: Iterable[Finding | None]) -> Claim:
    findings = [finding for finding in found if finding is not None]
    seeds = min((len(gap.values) for finding in findings for gap in finding.gaps.values()), default=0)
    return Claim(text, paper, judge(findings), [str(finding) for finding in findings], seeds)


def fewest_seeds(experiments: Iterable[Experiment]) -> int:
    return min((len(one.seeds) for one in experiments), default=0)


# ---------------------------------------------------------------------- spans


def spans(experiments: Experiments) -> list[tuple[str, Experiment]]:
    names = {f"squad2_{short}": title for short, title in ENCODERS.items()}
    return [(title, experiments[name]) for name, title in names.items() if name in experiments]


def best_of_the_papers(experiment: Experiment, epochs: float) -> str | None:
    theirs = [name for name in head_names(experiment, epochs) if not name.startswith("ladder")]
    return experiment.best_head(epochs, MAIN, theirs)


def _head_against(
    experiments: Experiments, snapshots: Iterable[float], other: str, later: float | None = None
) -> list[Finding | None]:
    """The best head of each snapshot against another model there, or at a later one."""
    found = []
    for title, one in spans(experiments):
        for epochs in snapshots:
            head = best_of_the_papers(one, epochs) if epochs in one.head_snapshots else None
            if head is not None:
                words = f"{title}, {head} at {epochs_of(epochs)}"
                found.append(compare(words, Place(one, epochs, head), Place(one, later or epochs, other)))
    return found


def _pairs(experiments: Experiments, pairs: list[tuple[str, str]]) -> list[Finding | None]:
    found = []
    for title, one in spans(experiments):
        for epochs in (0.3, 1.0):
            for first, second in pairs:
                words = f"{title} at {epochs_of(epochs)}, {first} over {second}"
                found.append(compare(words, Place(one, epochs, first), Place(one, epochs, second)))
    return found


def beats_encoder(experiments: Experiments) -> Claim:
    paper = "at 0.3 epochs .654/.702 → .699/.740, at 1 .728/.777 → .749/.790 (EM/F1)"
    found = _head_against(experiments, (0.3, 1.0), ENCODER)
    return claim_of("A head beats BERT at the same fine-tuning", paper, found)


def beats_control(experiments: Experiments) -> Claim:
    found = _head_against(experiments, (0.3, 1.0), CONTROL)
    return claim_of("… and a new linear layer on the last layer, trained like the head", "no such control", found)


def reaches_later(experiments: Experiments) -> Claim:
    paper = "head at 1 .749/.790, BERT at 2 .747/.792"
    return claim_of("A head at 1 epoch reaches BERT at 2", paper, _head_against(experiments, (1.0,), ENCODER, 2.0))


def heads_at_two(experiments: Experiments) -> Claim:
    paper = "BERT at 2 .747/.792, head on its states .753/.797"
    return claim_of("Heads add to BERT at 2 epochs as well", paper, _head_against(experiments, (2.0,), ENCODER))


def ensemble_is_better(experiments: Experiments) -> Claim:
    found = []
    for title, one in spans(experiments):
        for epochs in (0.3, 1.0, 2.0):
            if epochs not in one.head_snapshots:
                continue
            both = {name: one.mean(epochs, name, MAIN, "held_out") for name in (ENCODER, SHARED)}
            better = max((mean.mean, name) for name, mean in both.items() if mean is not None)[1]
            words = f"{title} at {epochs_of(epochs)}, over the better of the two on held-out data ({better})"
            found.append(compare(words, Place(one, epochs, f"max_encoder_{SHARED}"), Place(one, epochs, better)))
    paper = "at 1 epoch .749/.790 → .756/.798"
    return claim_of("Head and BERT together (maximum of probabilities) do better still", paper, found)


def less_data(experiments: Experiments) -> Claim:
    told, near = [], []
    for title, one in spans(experiments):
        if 1.0 not in one.head_snapshots:
            continue
        shares = data_shares(one, 1.0)
        for share in (0.1, 0.3):
            if share not in shares or 1.0 not in shares:
                continue
            words = f"{title}, {share:.0%} of the data against all"
            found = compare(words, Place(one, 1.0, shares[share]), Place(one, 1.0, shares[1.0]))
            if found is not None:
                told.append(str(found))
                near += [gap.mean > -NEARLY for gap in found.gaps.values()]
    verdict = OPEN if not near else HOLDS if all(near) else PARTLY if any(near) else FAILS
    text = f"10 to 30 % of the data nearly suffices for a head (judged: at most {NEARLY:g} point below all of it)"
    return Claim(
        text,
        ".716/.765 on 10 %, .724/.772 on 30 %, .745/.788 on all",
        verdict,
        told,
        fewest_seeds(one for _, one in spans(experiments)),
    )


def shared_adapters(experiments: Experiments) -> Claim:
    pairs = [("adapter_64", "adapter_64_separate"), ("adapter_386", "adapter_386_separate")]
    paper = "at 1 epoch, 386: .749/.790 against .714/.769; at 0.3 separate ones were ahead"
    return claim_of("Shared adapters beat separate ones", paper, _pairs(experiments, pairs))


def wider_adapters(experiments: Experiments) -> Claim:
    found = _pairs(experiments, [("adapter_386", "adapter_64")])
    return claim_of("Adapters of 386 beat those of 64", "at 1 epoch .749/.790 against .739/.785", found)


def learned_pooling(experiments: Experiments) -> Claim:
    found = _pairs(experiments, [("learned_pooling", "average_pooling")])
    return claim_of("Learned pooling beats average pooling", "before a CNN: .675/.721 against .657/.700", found)


def later_layers(experiments: Experiments) -> Claim:
    told, later = [], []
    for title, one in spans(experiments):
        for seed, rows in one.analyses("layer_weights").items():
            weights = [row["weight, %"] for row in rows if row["head"] == "learned_pooling"]
            half = len(weights) // 2
            if weights:
                upper, even = sum(weights[-half:]), 100 * half / len(weights)
                later.append(upper > even)
                told.append(f"{title}, seed {seed}: the upper {half} states have {upper:.1f} % (even: {even:.1f} %)")
    verdict = OPEN if not later else HOLDS if all(later) else PARTLY if any(later) else FAILS
    return Claim(
        "Later layers weigh more in learned pooling",
        "shown in a picture",
        verdict,
        told,
        fewest_seeds(one for _, one in spans(experiments)),
    )


def better_where(experiments: Experiments) -> Claim:
    found: list[Finding | None] = []
    told = []
    for title, one in spans(experiments):
        for epochs in (0.3, 1.0, 2.0):
            head = best_of_the_papers(one, epochs) if epochs in one.head_snapshots else None
            if head is None:
                continue
            words = f"{title}, {head} at {epochs_of(epochs)}"
            keys = ("NoAns_f1", "at_threshold.NoAns_f1")
            found.append(compare(words, Place(one, epochs, head), Place(one, epochs, ENCODER), keys))
        for seed, rows in one.analyses("passage_lengths").items():
            only = {row["right"]: row["median"] for row in rows if row["right"].startswith("only ")}
            said = ", ".join(f"{name} {median:g}" for name, median in only.items())
            told.append(f"{title}, seed {seed}, median words of the passages: {said}")
    claim = claim_of("Heads are better on unanswerable questions and on shorter passages", "shown in pictures", found)
    shorter = [_is_shorter(rows) for _, one in spans(experiments) for rows in one.analyses("passage_lengths").values()]
    verdict = PARTLY if claim.verdict == HOLDS and not all(shorter) else claim.verdict
    verdict = PARTLY if claim.verdict == FAILS and any(shorter) else verdict
    return Claim(claim.text, claim.paper, verdict, [*claim.ours, *told], claim.seeds)


def _is_shorter(rows: list[dict[str, object]]) -> bool:
    """Whether the passages of what only the head got right are shorter."""
    medians = {str(row["right"]): float(str(row["median"])) for row in rows if str(row["right"]).startswith("only ")}
    encoder = medians.pop("only encoder itself")
    return all(median < encoder for median in medians.values())


def second_answers(experiments: Experiments) -> Claim:
    told, near = [], []
    for title, one in spans(experiments):
        for seed, rows in one.analyses("second_answer").items():
            shown = {row["model"]: row["% second right"] for row in rows}
            head = best_of_the_papers(one, one.head_snapshots[-1])
            values = [shown[name] for name in ("encoder itself", head) if name in shown]
            near += [abs(value - SECOND) <= SECOND_RANGE for value in values]
            said = ", ".join(f"{name} {shown[name]:.1f} %" for name in ("encoder itself", head) if name in shown)
            told.append(f"{title} at {epochs_of(one.head_snapshots[-1])}, seed {seed}: {said}")
    verdict = OPEN if not near else HOLDS if all(near) else PARTLY if any(near) else FAILS
    text = f"The second answer is right in {SECOND:g} % of the misses (judged: within {SECOND_RANGE:g} points)"
    return Claim(text, f"{SECOND:g} %", verdict, told, fewest_seeds(one for _, one in spans(experiments)))


def without_finetuning(experiments: Experiments) -> Claim:
    told: list[str] = []
    unable: list[bool] = []
    for title, one in spans(experiments):
        own = one.mean(1.0, ENCODER, "forced_f1")
        if 0.0 not in one.head_snapshots or own is None:
            continue
        for name in (best_of_the_papers(one, 0.0), one.best_head(0.0, MAIN)):
            mean = one.mean(0.0, name, "forced_f1") if name else None
            auc = one.mean(0.0, name, "no_answer_auc") if name else None
            if mean is not None and not any(f", {name}:" in line for line in told if line.startswith(title)):
                told.append(f"{title}, {name}: forced F1 {mean}, AUC {auc}; the encoder itself at 1 epoch {own}")
        theirs = best_of_the_papers(one, 0.0)
        best = one.mean(0.0, theirs, "forced_f1") if theirs else None
        unable += [best.mean < own.mean / 2] if best is not None else []
    verdict = OPEN if not unable else HOLDS if all(unable) else PARTLY if any(unable) else FAILS
    text = "Heads can't learn spans on an encoder without fine-tuning (judged: less than half its forced F1 at 1 epoch)"
    return Claim(
        text, "no head learned; BERT at 0 .036/.051", verdict, told, fewest_seeds(one for _, one in spans(experiments))
    )


# ---------------------------------------------------------------------- sentences


def answerability(experiments: Experiments) -> Claim:
    found = []
    for short, title in ENCODERS.items():
        one = experiments.get(f"answerable_{short}")
        for epochs in one.head_snapshots if one is not None else []:
            if one is not None and epochs > 0:
                words = f"{title}, learned_pooling at {epochs_of(epochs)}"
                places = Place(one, epochs, "learned_pooling"), Place(one, epochs, ENCODER)
                found.append(compare(words, *places, one.first["metrics"][:1]))
    paper = "accuracy at 0.2 .687 → .697, at 1 .761 → .782, at 3 .804 → .811"
    return claim_of("For answerability learned pooling alone beats BERT", paper, found)


def glue_heads(experiments: Experiments) -> Claim:
    found = []
    for name, title in GLUE.items():
        one = experiments.get(name)
        for epochs in one.head_snapshots if one is not None else []:
            assert one is not None
            metric = one.first["metrics"][0]
            head = one.best_head(epochs, metric)
            if head is not None:
                words = f"{title}, {head} at {epochs_of(epochs)}"
                found.append(compare(words, Place(one, epochs, head), Place(one, epochs, ENCODER), [metric]))
    paper = "BERT-base at 1 epoch: ahead on MRPC, RTE, STS-B, CoLA, behind or equal on the rest"
    return claim_of("On GLUE a head beats the encoder that it reads", paper, found)


CLAIMS: list[Callable[[Experiments], Claim]] = [
    beats_encoder, beats_control, reaches_later, ensemble_is_better, heads_at_two, less_data, shared_adapters,
    wider_adapters, learned_pooling, later_layers, better_where, second_answers, answerability, without_finetuning,
    glue_heads,
]  # fmt: skip


def claims_blocks(experiments: Experiments) -> list[Block]:
    found = [claim(experiments) for claim in CLAIMS]
    columns = [Column("claim"), Column("here"), Column("seeds", None, "the fewest that any of its figures has")]
    columns.append(Column("the papers (EM/F1 of BERT-large on SQuAD 2.0, unless said otherwise)"))
    rows: list[list[Cell]] = [[claim.text, claim.verdict, claim.seeds or None, claim.paper] for claim in found]
    seen = [claim for claim in found if claim.ours]
    evidence_columns = [Column("claim"), Column("what our runs show: how far above, and ± over seeds")]
    evidence: list[list[Cell]] = [[claim.text, line] for claim in seen for line in claim.ours]
    words = {HOLDS: "hold", PARTLY: "hold partly", FAILS: "do not hold", OPEN: "are not tested yet"}
    counts = {verdict: sum(claim.verdict == verdict for claim in found) for verdict in words}
    told = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items() if count)
    note = (
        "A comparison holds where the mean over seeds and every seed is above zero, by F1 at threshold 0, F1 at the "
        "chosen threshold, forced F1 and AUC alike; a claim holds where all of its comparisons do, partly where some "
        "are above zero. The head that stands for all is the best of the papers' on held-out training questions."
    )
    return [
        Block("claims", "Claim by claim", [f"Of {len(found)} claims {told}."], Frame(columns, rows), note=note),
        Block("claims_evidence", "The figures behind it", frame=Frame(evidence_columns, evidence), folded=True),
    ]
