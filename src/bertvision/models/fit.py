"""Fit a model to a user's own table: encode once, try many heads, choose by held-out rows, save.

    found = fit_table(read_own_table("train.csv"), Options(), Path("models/train"))

The encoder stays frozen and runs once. Everything else reads its pooled hidden states from memory.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertvision.data.examples import Example
from bertvision.data.windows import Features, build_features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.shared import shared_encoder
from bertvision.encoder.states import HiddenStates, Part
from bertvision.errors import UserError
from bertvision.heads import Target
from bertvision.kinds.base import Scores
from bertvision.machine import Machine
from bertvision.models.candidates import (
    Candidate,
    Fitted,
    OutOfTime,
    Rows,
    Split,
    Trial,
    auto_candidates,
    average,
    average_outputs,
    best_by_loss,
)
from bertvision.models.choose_heads import find_candidates
from bertvision.models.clock import Clock
from bertvision.models.leaderboard import PARTS, Leaderboard, Line, spread
from bertvision.models.split import ROUGH, choose_split
from bertvision.models.states_cache import StatesCache
from bertvision.models.tfidf import Tfidf
from bertvision.progress import Reporter
from bertvision.sources import MemoryStates
from bertvision.tables import counted
from bertvision.tasks.base import Task
from bertvision.tasks.own_table import OwnTable, check_same_labels

MAX_LENGTH = 256
LEAST_SECONDS = 20.0
"""`heads="auto"` spends as long on fitting as on encoding, but at least this."""
REFIT_SHARE = 0.7
"""Part of the time after which nothing new is tried: the chosen model is fitted again on all rows."""
AVERAGED = 3
KEEP: tuple[Part, ...] = ("deviation", "mean")


@dataclass(frozen=True)
class Options:
    encoder: str = "embedded"
    heads: str | Sequence[str] = "auto"
    seconds: float | None = None
    seed: int = 0
    metric: str | None = None
    """The metric to choose by; None: accuracy for labels, Pearson's correlation for scores."""
    class_weight: str | dict[str, float] | None = None
    """None: every row counts the same. "balanced": every label does. Or label → weight."""
    device: str = "auto"


@dataclass
class Fit:
    """The outcome of a fit, in memory."""

    task: Task
    options: Options
    table: OwnTable
    encoder: Encoder
    machine: Machine
    split: Split
    trials: list[Trial]
    skipped: list[str]
    """Candidates for which there was no time."""
    fitted: dict[str, Fitted]
    board: Leaderboard
    examples: list[Example]
    features: Features
    dev: tuple[list[Example], Features] | None
    dev_outputs: dict[str, np.ndarray]
    temperature: dict[str, float]
    seconds: float
    encode_seconds: float
    notes: list[str]

    @property
    def chosen(self) -> Trial:
        return self.trial(self.board.chosen)

    def trial(self, name: str) -> Trial:
        return next(trial for trial in self.trials if trial.name == name)

    @cached_property
    def judged(self) -> list[Example]:
        return [self.examples[row] for row in self.split.judged.tolist()]

    def outputs(self, trial: Trial) -> np.ndarray:
        """(judged row, output) out-of-fold outputs, calibrated."""
        found: np.ndarray = trial.outputs.numpy() / np.float32(self.temperature.get(trial.name, 1.0))
        return found


def fit_table(
    table: OwnTable,
    options: Options | None = None,
    dev: OwnTable | None = None,
    reporter: Reporter | None = None,
    cache: StatesCache | None = None,
) -> Fit:
    """Try every candidate on a table, choose one and fit it again on all rows. `dev` is scored once, after that.
    `cache` holds the states of texts that earlier fits encoded."""
    options, reporter = options or Options(), reporter or Reporter()
    started, notes = time.monotonic(), list(table.notes)
    notes += check_same_labels(table, dev) if dev is not None else []
    task = _build_task(table, options)
    candidates = auto_candidates() if options.heads == "auto" else find_candidates(options.heads)
    examples = _examples(table, task, "train")
    split = choose_split(
        _joined(table), [int(example.target or 0) for example in examples] if task.labels else None, options.seed
    )
    notes += _warnings(table, split)
    for note in notes:
        reporter.say(note)
    machine = Machine(options.device)
    encoder = shared_encoder(options.encoder, machine.device, machine.dtype)
    features = _features(encoder, task, examples)
    _note_cut(encoder, features, len(examples), reporter)
    states, encode_seconds = _encode(encoder, features, "texts", reporter, cache)
    rows = Rows(
        _joined(table), _targets(examples, task), _weights(table, task, examples, options), states, encoder.shape,
        Target(task.kind, len(task.labels)), options.seed,
    )  # fmt: skip
    trials, skipped = _try_all(candidates, rows, split, options, encode_seconds, started, reporter)
    names, metric = {trial.name: trial for trial in trials}, options.metric or task.metrics[0]
    scores = {trial.name: _score(task, trial, split, examples, metric) for trial in trials}
    chosen = _choose(trials, scores)
    wanted = [trial for trial in trials if dev is not None or trial in _needed(chosen, names)]
    fitted = {}
    with reporter.bar("fitting again on all rows", len(wanted), "models") as bar:
        for trial in wanted:
            fitted[trial.name] = trial.refit()
            bar.advance(1)
    temperature = {trial.name: _temperature(trial, rows, split) for trial in trials} if task.labels else {}
    _calibrate(fitted, temperature)
    found = None
    outputs: dict[str, np.ndarray] = {}
    if dev is not None:
        dev_examples = _examples(dev, task, "dev")
        found = dev_examples, _features(encoder, task, dev_examples)
        states, _ = _encode(encoder, found[1], "dev", reporter)
        outputs = _dev_outputs(trials, fitted, states, _joined(dev), rows)
    board = _board(task, trials, skipped, chosen, scores, outputs, found, split, metric)
    return Fit(
        task, options, table, encoder, machine, split, trials, skipped, fitted, board, examples, features, found,
        outputs, temperature, time.monotonic() - started, encode_seconds, notes,
    )  # fmt: skip


# ---------------------------------------------------------------------- the table


def _build_task(table: OwnTable, options: Options) -> Task:
    labels = tuple(sorted(set(table.labels or ())))
    metrics = ("accuracy", "f1_macro") if table.kind.has_labels else table.kind.default_metrics(())
    if options.metric is not None and options.metric not in metrics:
        raise UserError(f"metric is '{options.metric}': choose from {', '.join(metrics)}.")
    if options.metric is not None:
        metrics = (options.metric, *(metric for metric in metrics if metric != options.metric))
    return Task("own", table.kind, metrics, {}, labels, False, MAX_LENGTH, table.name, table.pairs is not None)


def _examples(table: OwnTable, task: Task, split: str) -> list[Example]:
    index = {label: number for number, label in enumerate(task.labels)}
    targets: Sequence[float] = (
        [index[label] for label in table.labels] if table.labels is not None else table.scores or []
    )
    pairs: Sequence[str | None] = table.pairs or [None] * len(table)
    # Ids as `run` gives them, so that a report finds the texts in the file again.
    return [
        Example(f"{split}-{row}", text, pair, target)
        for row, (text, pair, target) in enumerate(zip(table.texts, pairs, targets, strict=True))
    ]


def _joined(table: OwnTable) -> list[str]:
    """Each text, or both texts of a pair."""
    if table.pairs is None:
        return table.texts
    return [f"{text}\n{pair}" for text, pair in zip(table.texts, table.pairs, strict=True)]


def _targets(examples: list[Example], task: Task) -> torch.Tensor:
    dtype = torch.long if task.labels else torch.float32
    return torch.tensor([example.target for example in examples], dtype=dtype)  # (row)


def _weights(table: OwnTable, task: Task, examples: list[Example], options: Options) -> torch.Tensor:
    """(row) weights of the loss, with a mean of 1."""
    weights = torch.ones(len(examples)) if table.weights is None else torch.tensor(table.weights, dtype=torch.float32)
    if options.class_weight is not None and task.labels:
        targets = _targets(examples, task)  # (row)
        weights = weights * _class_weights(options.class_weight, task, targets, weights)[targets]
    return weights / weights.mean().clamp(min=1e-12)  # (row)


def _class_weights(
    wanted: str | dict[str, float], task: Task, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """(label)"""
    if wanted == "balanced":
        counts = torch.bincount(targets, weights, minlength=len(task.labels)).float()  # (label)
        return weights.sum() / (len(task.labels) * counts.clamp(min=1e-12))
    if not isinstance(wanted, dict):
        raise UserError(f"class_weight is {wanted!r}: give 'balanced', or a dict from label to weight.")
    named = {str(label): float(weight) for label, weight in wanted.items()}
    unknown = [label for label in named if label not in task.labels]
    if unknown:
        raise UserError(f"class_weight has labels that the data lacks: {', '.join(unknown)}.")
    if any(not 0 < weight < float("inf") for weight in named.values()):
        raise UserError("class_weight must have positive, finite weights.")
    return torch.tensor([named.get(label, 1.0) for label in task.labels])


def _warnings(table: OwnTable, split: Split) -> Iterator[str]:
    rows = len(split.judged)
    if rows < ROUGH:
        yield (
            f"Only {counted(rows, 'row')} to judge by: scores can be off by {100 / max(rows, 1) ** 0.5:.0f} points, "
            "and the choice of the model may be chance. More rows help most."
        )


# ---------------------------------------------------------------------- encoding


def _features(encoder: Encoder, task: Task, examples: list[Example]) -> Features:
    assert encoder.tokenizer is not None
    return build_features(examples, encoder.tokenizer, task.kind, False, most_tokens(encoder))


def most_tokens(encoder: Encoder) -> int:
    """Tokens of a text that are read."""
    return min(MAX_LENGTH, encoder.max_length or MAX_LENGTH)


def _note_cut(encoder: Encoder, features: Features, rows: int, reporter: Reporter) -> None:
    length = most_tokens(encoder)
    full = int((features.lengths >= length).sum())
    if full:
        reporter.say(f"{full:,} of {rows:,} texts have {length} tokens or more; only the first {length} are read.")


def _encode(
    encoder: Encoder, features: Features, what: str, reporter: Reporter, cache: StatesCache | None = None
) -> tuple[dict[str, torch.Tensor], float]:
    """Part → (row, layer, hidden), in float32 on the CPU; and the seconds that it took."""
    with reporter.bar(f"encoding {what}", int(features.lengths.sum()), "tokens") as bar:
        if cache is not None:
            return cache.encode(encoder, features, KEEP, bar)
        started = time.monotonic()
        found = MemoryStates.encode(encoder, features, KEEP, bar=bar)
    return {part: states.float().cpu() for part, states in found.parts.items()}, time.monotonic() - started


# ---------------------------------------------------------------------- trying


def _try_all(
    candidates: list[Candidate],
    rows: Rows,
    split: Split,
    options: Options,
    encode_seconds: float,
    started: float,
    reporter: Reporter,
) -> tuple[list[Trial], list[str]]:
    """Try the candidates in order while there is time, then averages of the best. Ctrl-C ends the trying."""
    total = max(LEAST_SECONDS, encode_seconds)
    if options.seconds is not None:
        total = max(0.0, options.seconds - (time.monotonic() - started))
    limited = options.heads == "auto" or options.seconds is not None
    clock = Clock(REFIT_SHARE * total if limited else None)
    trials: list[Trial] = []
    skipped: list[str] = []
    with _keeping_the_best(clock, reporter), reporter.bar("trying", len(candidates), "models") as bar:
        for candidate in candidates:
            if clock.is_over() and len(trials) > 1:
                skipped.append(candidate.name)
                continue
            try:
                trials.append(candidate.attempt(rows, split, clock))
            except OutOfTime:
                skipped.append(candidate.name)
            except KeyboardInterrupt:
                if not trials:
                    raise
                clock.stop()
                skipped.append(candidate.name)
            bar.advance(1, candidate.name)
    return trials + _averages(trials, rows, split), skipped


@contextlib.contextmanager
def _keeping_the_best(clock: Clock, reporter: Reporter) -> Iterator[None]:
    yield
    if clock.stopped:
        reporter.say("Interrupted: going on with the best model so far. Press Ctrl-C again to stop.")


def _averages(trials: list[Trial], rows: Rows, split: Split) -> list[Trial]:
    """The mean of the best heads on all layers, by their loss."""
    heads = [trial for trial in trials if trial.role == "head" and trial.name != "best_layer_lr"]
    best = best_by_loss(heads, rows, split.judged)[:AVERAGED]
    return [average(best, rows)] if len(best) > 1 else []


def _choose(trials: list[Trial], scores: dict[str, tuple[float, float | None, float | None]]) -> Trial:
    """The best model; among equals, the smallest. The baseline reads no text, so it is never the model."""
    models = [trial for trial in trials if trial.role != "baseline"]
    return max(models, key=lambda trial: (round(scores[trial.name][0], 6), -trial.parameters))


def _needed(chosen: Trial, names: dict[str, Trial]) -> list[Trial]:
    """The trials to fit again: the chosen one with its members, and the last layer, which every model is shown with."""
    last = next((trial for trial in names.values() if trial.role == "encoder"), None)
    return [trial for trial in (chosen, *(names[name] for name in chosen.members), last) if trial is not None]


def _temperature(trial: Trial, rows: Rows, split: Split) -> float:
    """The factor by which logits are divided so that held-out probabilities are right on average."""
    scale = torch.linspace(-1.5, 1.5, 121).exp()  # (temperature)
    losses = [rows.loss(trial.outputs / one, split.judged) for one in scale]
    return float(scale[int(np.argmin(losses))])


def _calibrate(fitted: dict[str, Fitted], temperature: dict[str, float]) -> None:
    """Divide the output layers by their temperature. No prediction changes, only its probability."""
    for name, one in fitted.items():
        factor = temperature.get(name, 1.0)
        if isinstance(one.model, Tfidf):
            one.model.weight.div_(factor)
            one.model.bias.div_(factor)
        elif one.model is not None:
            with torch.no_grad():
                output: Any = one.model.output
                output.weight.div_(factor)
                output.bias.div_(factor)


# ---------------------------------------------------------------------- scores


def _scores_of(task: Task, outputs: np.ndarray, examples: list[Example]) -> Scores:
    nothing: Any = None  # without windows, decoding reads no features
    predictions = task.kind.decode(task, outputs, nothing, examples)
    return task.kind.score(task.metrics, task.kind.example_results(predictions, examples))


def _score(
    task: Task, trial: Trial, split: Split, examples: list[Example], metric: str
) -> tuple[float, float | None, float | None]:
    """The score on the judged rows, its spread, and macro-F1."""
    judged, outputs = split.judged, trial.outputs.numpy()
    whole = _scores_of(task, outputs, [examples[row] for row in judged.tolist()])
    parts = split.held if split.how == "cv" else [split.held[0][part::PARTS] for part in range(PARTS)]
    at = {row: number for number, row in enumerate(judged.tolist())}
    each = []
    for part in parts:
        rows = part.tolist()
        each.append(_scores_of(task, outputs[[at[row] for row in rows]], [examples[row] for row in rows])[metric])
    return float(whole[metric]), spread(each), whole.get("f1_macro")


def _dev_outputs(
    trials: list[Trial],
    fitted: dict[str, Fitted],
    states: dict[str, torch.Tensor],
    texts: list[str],
    rows: Rows,
) -> dict[str, np.ndarray]:
    given: dict[str, Any] = dict(states)
    hidden = HiddenStates(torch.ones(len(texts), dtype=torch.long), **given)
    found: dict[str, np.ndarray] = {}
    for trial in trials:
        model = fitted[trial.name].model
        if isinstance(model, Tfidf):
            found[trial.name] = model(texts)
        elif model is not None:
            with torch.no_grad():
                found[trial.name] = model(hidden).numpy()
        elif trial.members:
            members = [torch.from_numpy(found[name]) for name in trial.members]
            found[trial.name] = average_outputs(members, rows.labels).numpy()
        else:
            found[trial.name] = _constant(rows, len(texts))
    return found


def _constant(rows: Rows, count: int) -> np.ndarray:
    """(row, output) the outputs of the majority baseline."""
    if rows.labels:
        frequencies = torch.bincount(rows.targets, rows.weights, minlength=rows.labels).clamp(min=1e-6)  # (label)
        return frequencies.log().float().expand(count, -1).numpy()
    return np.full((count, 1), float((rows.targets * rows.weights).sum() / rows.weights.sum()), dtype=np.float32)


def _board(
    task: Task,
    trials: list[Trial],
    skipped: list[str],
    chosen: Trial,
    scores: dict[str, tuple[float, float | None, float | None]],
    outputs: dict[str, np.ndarray],
    dev: tuple[list[Example], Features] | None,
    split: Split,
    metric: str,
) -> Leaderboard:
    lines = []
    for trial in trials:
        cv, cv_sd, f1 = scores[trial.name]
        on_dev = float(_scores_of(task, outputs[trial.name], dev[0])[metric]) if dev is not None else None
        note = "mean of " + ", ".join(trial.members) if trial.members else trial.note
        if trial.name == "best_layer_lr":
            note = "; ".join(filter(None, [f"layer {trial.settings['layer']}", note]))
        shown = None if metric == "f1_macro" or not task.labels else f1
        lines.append(
            Line(trial.name, cv, cv_sd, shown, on_dev, round(trial.seconds, 3), trial.parameters, note, trial.role)
        )
    lines += [Line(name, None, None, None, None, 0.0, 0, "not tried: out of time") for name in skipped]
    title = task.kind.title(metric) or metric
    return Leaderboard(lines, chosen.name, metric, title, split.how, len(split.held), len(split.judged))
