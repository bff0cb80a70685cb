"""Fit a model to a user's own questions on passages: the encoder stays frozen and runs once, and held-out articles
choose between the shipped span head, the same head continued on the questions, and a fresh ladder.

    fit = fit_questions(read_own_questions("questions.json"), Options(seed=1))
    save_span_fit(fit, Path("models/questions"))
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from bertvision.data.examples import Example
from bertvision.data.splits import draw
from bertvision.data.windows import Features, build_features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.shared import shared_encoder
from bertvision.errors import UserError
from bertvision.heads import Head, MemberConfig
from bertvision.kinds import KINDS
from bertvision.kinds.base import Scores
from bertvision.machine import Machine
from bertvision.models.clock import Clock
from bertvision.models.fit import Options, check_options
from bertvision.models.leaderboard import PARTS, spread
from bertvision.models.spans.candidates import (
    KIT,
    Asked,
    Candidate,
    find_candidates,
    kit_fits,
)
from bertvision.models.spans.leaderboard import BASELINE, Leaderboard, Line
from bertvision.models.spans.split import split_questions, warn_about
from bertvision.models.spans.trial import Trial, choose, compare
from bertvision.models.split import ROUGH, Split
from bertvision.models.table_rows import encode, rows_in_time, tokens_fit
from bertvision.models.trying import try_in_order
from bertvision.pipeline.snapshot import compute_outputs
from bertvision.progress import Reporter
from bertvision.tables import counted
from bertvision.tasks.base import Task
from bertvision.tasks.own_questions import FEWEST, OwnQuestions, check_unseen
from bertvision.tasks.squad import MAX_LENGTH, SPAN_METRICS

OVERLAP = 128
ENCODING_SHARE, FRESH_SHARE = 0.2, 0.05
"""Part of the user's time that encoding may take: training takes several times as long, and from random weights longer
still."""
TRY_SHARE = 0.6
"""Part of the user's time after which nothing new is tried. The rest is for training again on all questions."""


@dataclass
class SpanFit:
    """The outcome of a fit, in memory."""

    options: Options
    questions: OwnQuestions
    asked: Asked
    split: Split
    """Of the questions."""
    trials: list[Trial]
    fitted: dict[str, tuple[Head, MemberConfig]]
    board: Leaderboard
    dev: tuple[list[Example], Features] | None
    dev_outputs: dict[str, np.ndarray]
    seconds: float
    encode_seconds: float
    notes: list[str]
    limit: int | None
    """Questions drawn from a longer file; None: all were used."""

    @property
    def chosen(self) -> Trial:
        return next(trial for trial in self.trials if trial.name == self.board.chosen)

    @property
    def task(self) -> Task:
        return self.asked.task


def fit_questions(
    questions: OwnQuestions,
    options: Options | None = None,
    dev: OwnQuestions | None = None,
    reporter: Reporter | None = None,
) -> SpanFit:
    """Try every candidate, choose one and train it again on all questions. `dev` is scored once, after that."""
    options, reporter, started = options or Options(), reporter or Reporter(), time.monotonic()
    check_options(options)

    def left() -> float | None:
        """The seconds left of the user's time."""
        return None if options.seconds is None else max(0.0, options.seconds - (time.monotonic() - started))

    machine = Machine(options.device)
    encoder = shared_encoder(options.encoder, machine.device, machine.dtype)
    task = Task(
        "own", KINDS["span"], SPAN_METRICS, {}, windowed=True, max_length=window_length(encoder),
        source=questions.name, takes_pairs=True,
    )  # fmt: skip
    fits = kit_fits(options.encoder)
    candidates = find_candidates(options.heads, len(questions), fits)
    notes = [*questions.notes, *(check_unseen(questions, dev) if dev is not None else []), *_note_on_kit(fits, options)]
    count = len(questions)
    questions, features, more = _limit(questions, encoder, task, left(), fits, options.seed)
    split, unit = split_questions(questions.examples, options.seed)
    notes += [*more, *warn_about(split, unit), *_warnings(split)]
    for note in notes:
        reporter.say(note)
    asked, encode_seconds = _encode(task, questions, features, split, encoder, machine, options.seed, reporter)
    trials, skipped = _try_all(candidates, asked, left())
    chosen, tied = choose([trial for trial in trials if trial.role == "head"])
    again = [trial for trial in trials if dev is not None or trial is chosen or trial.role == "encoder"]
    fitted = {}
    for trial in again:
        candidate = next(candidate for candidate in candidates if candidate.name == trial.name)
        head, member, note = candidate.refit(asked, trial, Clock(left()))
        fitted[trial.name] = head, member
        if note:
            notes.append(f"{trial.name} was {note}.")
            reporter.say(notes[-1])
    found = None if dev is None else (dev.examples, features_of(encoder, task, dev))
    outputs = {} if found is None else _dev_outputs(fitted, found[1], asked)
    board = _board(trials, skipped, chosen, tied, outputs, found, split, unit, asked)
    return SpanFit(
        options, questions, asked, split, trials, fitted, board, found, outputs, time.monotonic() - started,
        encode_seconds, notes, len(questions) if len(questions) < count else None,
    )  # fmt: skip


def _note_on_kit(fits: bool, options: Options) -> list[str]:
    if fits:
        return []
    return [
        f"The shipped span head reads only the embedded encoder, not '{options.encoder}': heads are trained from "
        "random weights."
    ]


def _encode(
    task: Task,
    questions: OwnQuestions,
    features: Features,
    split: Split,
    encoder: Encoder,
    machine: Machine,
    seed: int,
    reporter: Reporter,
) -> tuple[Asked, float]:
    """The questions with their states, and the seconds that it took to compute them."""
    tokens, seconds = None, 0.0
    if tokens_fit(encoder, features):
        states, seconds = encode(encoder, features, "questions", reporter, with_tokens=True)
        tokens = states["tokens"]
    judged = [questions.examples[number] for number in split.judged.tolist()]
    windows = build_span_features(encoder, task, judged)
    asked = Asked(
        task, questions.examples, features, _of_windows(split, features), judged, windows, encoder, machine, tokens,
        seed, reporter,
    )  # fmt: skip
    return asked, seconds


def _dev_outputs(
    fitted: dict[str, tuple[Head, MemberConfig]], features: Features, asked: Asked
) -> dict[str, np.ndarray]:
    heads = {name: head.to(asked.machine.device).eval() for name, (head, _) in fitted.items()}
    with asked.reporter.bar("scoring dev", int(features.lengths.sum()), "tokens") as bar:
        return compute_outputs(asked.encoder, heads, features, asked.task.kind, asked.machine, bar=bar)


# ---------------------------------------------------------------------- windows


def window_length(encoder: Encoder) -> int:
    return min(MAX_LENGTH, encoder.max_length or MAX_LENGTH)


def overlap_of(task: Task) -> int:
    """Tokens that neighbouring windows share: 128, or a third of a short window."""
    return min(OVERLAP, task.max_length // 3)


def features_of(encoder: Encoder, task: Task, questions: OwnQuestions) -> Features:
    try:
        return build_span_features(encoder, task, questions.examples)
    except UserError as error:
        raise UserError(
            f"{questions.name}: {error} (`fit` reads windows of {task.max_length} tokens, which can't be changed.)"
        ) from None


def build_span_features(encoder: Encoder, task: Task, examples: list[Example]) -> Features:
    assert encoder.tokenizer is not None
    return build_features(examples, encoder.tokenizer, task.kind, True, task.max_length, overlap_of(task))


def _of_windows(split: Split, features: Features) -> Split:
    """The split of the questions as one of their windows."""
    windows = [np.flatnonzero(np.isin(features.example, held.numpy())) for held in split.held]  # (held window) each
    return Split([torch.from_numpy(found) for found in windows], len(features))


def _limit(
    questions: OwnQuestions, encoder: Encoder, task: Task, seconds: float | None, fits: bool, seed: int
) -> tuple[OwnQuestions, Features, list[str]]:
    """The questions that there is time for, their windows, and a note if these are not all."""
    features, count = features_of(encoder, task, questions), len(questions)
    if seconds is None:
        return questions, features, []
    windows = rows_in_time(encoder, features, (ENCODING_SHARE if fits else FRESH_SHARE) * seconds)
    most = max(10 * FEWEST, int(count * windows / len(features)))
    kept = list(draw(questions.examples, most, seed))
    if len(kept) == count:
        return questions, features, []
    note = f"Using {len(kept):,} of {count:,} questions, drawn at random: there is no time for more."
    smaller = replace(questions, examples=kept)
    return smaller, features_of(encoder, task, smaller), [note]


def _warnings(split: Split) -> list[str]:
    count = len(split.judged)
    if count >= ROUGH:
        return []
    return [
        f"Only {counted(count, 'question')} to judge by: scores can be off by {100 / count**0.5:.0f} points, and the "
        "choice of the model may be chance. More questions help most."
    ]


# ---------------------------------------------------------------------- trying


def _try_all(candidates: list[Candidate], asked: Asked, left: float | None) -> tuple[list[Trial], dict[str, str]]:
    """Try the candidates in order while there is time. Ctrl-C ends the trying."""
    clock = Clock(None if left is None else TRY_SHARE * left)

    def attempt(candidate: Candidate, tried: int) -> Trial:
        # Every folder has the last layer and one head, so there is always time for them.
        return candidate.attempt(asked, clock if tried > 1 else Clock(None))

    trials, skipped = try_in_order(candidates, clock, attempt, asked.reporter)
    if not any(trial.role == "head" for trial in trials):
        raise UserError(f"no head could be trained: {'; '.join(f'{name}: {why}' for name, why in skipped.items())}.")
    return trials, skipped


# ---------------------------------------------------------------------- the leaderboard


def _board(
    trials: list[Trial],
    skipped: dict[str, str],
    chosen: Trial,
    tied: list[Trial],
    outputs: dict[str, np.ndarray],
    dev: tuple[list[Example], Features] | None,
    split: Split,
    unit: str,
    asked: Asked,
) -> Leaderboard:
    kind = asked.task.kind
    lines = [_baseline_line(asked, dev)]
    for trial in trials:
        scores = kind.score(SPAN_METRICS, trial.results, trial.threshold)
        on_dev: Scores = {}
        if dev is not None:
            examples, features = dev
            decoded = kind.decode(asked.task, outputs[trial.name], features, examples)
            on_dev = kind.score(SPAN_METRICS, kind.example_results(decoded, examples), trial.threshold)
        lines.append(
            Line(
                trial.name, *_figures(scores), _spread(trial, split), scores.get("forced_f1"), *_figures(on_dev),
                on_dev.get("forced_f1"), round(trial.seconds, 3), trial.parameters, trial.note, trial.role,
            )
        )  # fmt: skip
    empty = (None,) * 7
    lines += [Line(name, *empty, 0.0, 0, note) for name, note in skipped.items()]
    best = _best_trained(trials, chosen)
    kit = next((trial for trial in trials if trial.name == KIT), None)
    error = compare(best, kit)[1] if best is not None and kit is not None else None
    names = tuple(trial.name for trial in tied)
    return Leaderboard(lines, chosen.name, split.how, len(split.held), len(split.judged), unit, names, error)


def _best_trained(trials: list[Trial], chosen: Trial) -> Trial | None:
    trained = [trial for trial in trials if trial.role == "head" and trial.name != KIT]
    return chosen if chosen in trained else max(trained, key=lambda trial: trial.f1, default=None)


def _figures(scores: Scores) -> tuple[float | None, float | None]:
    at = scores.get("at_threshold", {})
    return at.get("f1"), at.get("exact")


def _spread(trial: Trial, split: Split) -> float | None:
    """Standard deviation of F1 over the folds, or over parts of the held-out questions."""
    f1 = 100 * trial.results.f1_at(trial.threshold)  # (judged question)
    place = {row: number for number, row in enumerate(split.judged.tolist())}
    parts: Sequence[torch.Tensor] = split.held
    if split.how == "held_out":
        parts = [split.held[0][part::PARTS] for part in range(PARTS)]
    return spread([float(f1[[place[row] for row in part.tolist()]].mean()) for part in parts])


def _baseline_line(asked: Asked, dev: tuple[list[Example], Features] | None) -> Line:
    kind = asked.task.kind
    own = kind.baseline(SPAN_METRICS, [], asked.judged_examples)
    on_dev = kind.baseline(SPAN_METRICS, [], dev[0]) if dev is not None else {}
    return Line(
        BASELINE, own["f1"], own["exact"], None, None, on_dev.get("f1"), on_dev.get("exact"), None, 0.0, 0, "",
        "baseline",
    )  # fmt: skip
