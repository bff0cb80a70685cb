"""Fit a model to a user's own table: encode once, try many heads, and choose by rows that they have not read.

    fit = fit_table(read_own_table("train.csv"), Options(seed=1))      save_fit(fit, Path("models/train")) saves it

The encoder stays frozen and runs once. Everything else reads its hidden states from memory.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.disk import as_path
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.reading import Reading, ways_to_read
from bertvision.encoder.shared import shared_encoder
from bertvision.encoder.states import HiddenStates
from bertvision.errors import UserError, shorten
from bertvision.heads import Target
from bertvision.interrupts import Terminated
from bertvision.kinds import ExampleResults, Predictions
from bertvision.kinds.base import Scores
from bertvision.machine import Machine
from bertvision.models.candidates import (
    Candidate,
    Fitted,
    NoResultError,
    Rows,
    Trial,
    average,
    average_outputs,
    best_by_loss,
    constant_output,
)
from bertvision.models.choose_heads import find_candidates, main_reading
from bertvision.models.clock import Clock
from bertvision.models.folder import TUNED_AVERAGE, TUNED_LAST
from bertvision.models.leaderboard import LAST_LAYER, PARTS, Leaderboard, Line, spread
from bertvision.models.split import FOLDS as USUAL_FOLDS
from bertvision.models.split import ROUGH, Split, choose_split
from bertvision.models.stepped import SteppedCandidate
from bertvision.models.table_rows import (
    build_task_of,
    encode,
    encode_towers,
    examples_of,
    features_of,
    joined_texts,
    limit_rows,
    note_cut,
    parts_for,
    targets_of,
    weights_of,
)
from bertvision.models.tfidf import Tfidf
from bertvision.models.trying import try_in_order
from bertvision.models.tuned import FOLDS, Tuning, estimate_seconds, note_limit, tuned_candidates, wants_tuning
from bertvision.pipeline.snapshot import compute_outputs
from bertvision.progress import Reporter
from bertvision.settings import MOST_SECONDS, MOST_SEED
from bertvision.sources import MemoryStates
from bertvision.tables import counted
from bertvision.tasks.base import Task
from bertvision.tasks.own_table import OwnTable, check_same_labels

LEAST_SECONDS = 20.0
"""`heads="auto"` spends as long on fitting as on encoding, but at least this."""
TRY_SHARE = 0.65
"""Part of that time after which nothing new is tried. The rest is for fitting the chosen model again on all rows."""
FIRST = ("majority", "tfidf_lr", *LAST_LAYER, "best_layer_lr")
"""What the heads are compared with: the first rows of the leaderboard."""
AVERAGED = 3
TUNED_ERRORS = 2.0
"""A tuned encoder is preferred to a model that is better by at most so many standard errors."""
FEW_MISTAKES = 10
"""With fewer mistakes on the judged rows, calibration makes no model surer."""


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
    tune: bool | str = False
    """Also try heads on an encoder that is tuned on the rows. "auto": if there are few rows, and no pairs."""


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
    skipped: dict[str, str]
    """Candidates without a result, and why."""
    fitted: dict[str, Fitted]
    board: Leaderboard
    examples: Sequence[Example]
    features: Features
    dev: tuple[list[Example], Features] | None
    dev_outputs: dict[str, np.ndarray]
    seconds: float
    encode_seconds: float
    notes: list[str]
    tuning: Tuning | None
    """None: tuning was not tried."""

    @property
    def read(self) -> Reading:
        """How the encoder is read: "mean", "cls" or "max"."""
        found: Reading = next(trial for trial in self.trials if trial.role == "encoder").settings["read"]
        return found

    @property
    def is_tuned(self) -> bool:
        """Whether the chosen model reads the tuned encoder."""
        return self.chosen.role == "tuned"

    def tuning_hint(self) -> str:
        """A sentence for users with few rows who did not tune; else empty."""
        rows = len(self.examples)
        if self.tuning is not None or not wants_tuning("auto", self.task, rows):
            return ""
        seconds = max(1.0, estimate_seconds(rows, self.encode_seconds))
        return f"With so few rows, --tune may help: it tunes the encoder too, in about {seconds:.0f} s more."

    @property
    def chosen(self) -> Trial:
        return self.trial(self.board.chosen)

    def trial(self, name: str) -> Trial:
        return next(trial for trial in self.trials if trial.name == name)

    @cached_property
    def judged(self) -> list[Example]:
        return [self.examples[row] for row in self.split.judged.tolist()]

    @cached_property
    def results(self) -> ExampleResults:
        """How the chosen model did on each row that it had not read."""
        return results_of(self.task, self.chosen.outputs.numpy(), self.judged)


def fit_table(
    table: OwnTable,
    options: Options | None = None,
    dev: OwnTable | None = None,
    reporter: Reporter | None = None,
) -> Fit:
    """Try every candidate on a table, choose one and fit it again on all rows. `dev` is scored once, after that."""
    options, reporter, started = options or Options(), reporter or Reporter(), time.monotonic()
    check_options(options)
    notes = [*table.notes, *(check_same_labels(table, dev) if dev is not None else [])]
    task = build_task_of(table, options.metric)
    ways = ways_to_read(options.encoder)
    keep = parts_for(ways)
    candidates = find_candidates(options.heads, task.kind, options.seconds, ways, task.takes_pairs)
    machine = Machine(options.device)
    encoder = shared_encoder(options.encoder, machine.device, machine.dtype)
    left = None if options.seconds is None else options.seconds - (time.monotonic() - started)
    features = features_of(encoder, task, examples_of(table, task, "train"))
    smaller, note = limit_rows(table, features, encoder, left, options.seed, keep)
    if smaller is not table:
        table, features = smaller, features_of(encoder, task, examples_of(smaller, task, "train"))
        notes.append(note)
    examples = examples_of(table, task, "train")
    labels = targets_of(examples, task).tolist() if task.labels else None
    tunes = wants_tuning(options.tune, task, len(examples))
    split = choose_split(table.texts, labels, options.seed, table.pairs, FOLDS if tunes else USUAL_FOLDS)
    notes += [*_warnings(split), *note_cut(encoder, features), *(note_limit(len(examples)) if tunes else [])]
    for note in notes:
        reporter.say(note)
    used = time.process_time()
    states, encode_seconds = encode(encoder, features, "texts", reporter, with_tokens=True, parts=keep)
    towers = None
    if task.takes_pairs:
        towers, more = encode_towers(encoder, features, "texts", reporter, keep)
        encode_seconds += more
    # Without the time in which other programs had the cores, as on the clock of the trials.
    undisturbed = min(encode_seconds, (time.process_time() - used) / torch.get_num_threads())
    rows = Rows(
        joined_texts(table), targets_of(examples, task), weights_of(table, task, examples, options.class_weight),
        states, encoder.shape, Target(task.kind, len(task.labels)), options.seed, towers, main_reading(ways),
        machine.device,
    )  # fmt: skip
    for candidate in candidates:
        if isinstance(candidate, SteppedCandidate):
            candidate.encoder, candidate.features, candidate.machine = encoder, features, machine
    trials, skipped = _try_all(candidates, rows, split, options, undisturbed, started, reporter)
    tuning = Tuning(options.encoder, features, rows, split, machine, reporter) if tunes else None
    if tuning is not None:
        trials += _try_tuned(tuning, skipped, reporter)
    metric = task.metrics[0]
    scores = {trial.name: _score(task, trial, split, examples, metric) for trial in trials}
    if task.labels and metric == "accuracy":
        chosen, tied = _choose(trials, scores, rows, split)
    else:
        chosen, tied = _highest(trials, scores), 1
    # Tuning on all rows takes long, so it is done only for a model that is used.
    known = [trial for trial in trials if trial.role != "tuned" or chosen.role == "tuned"]
    needed = _needed(chosen, known)
    others = [trial for trial in known if trial not in needed] if dev is not None else []
    fitted = _fit_again(needed, others, reporter)
    known = [trial for trial in known if {trial.name, *trial.members} <= fitted.keys()]
    found: tuple[list[Example], Features] | None = None
    outputs: dict[str, np.ndarray] = {}
    if dev is not None:
        dev_examples = examples_of(dev, task, "dev")
        found = dev_examples, features_of(encoder, task, dev_examples)
        for read_by, of in ((encoder, [trial for trial in known if trial.role != "tuned"]), *_tuned(tuning, known)):
            states, _ = encode(read_by, found[1], "dev", reporter, parts=keep)
            outputs |= _dev_outputs(of, fitted, states, joined_texts(dev), rows, read_by, found[1], machine, reporter)
    board = _board(task, trials, skipped, chosen, tied, scores, outputs, found, split, metric)
    return Fit(
        task, options, table, encoder, machine, split, trials, skipped, fitted, board, examples, features, found,
        outputs, time.monotonic() - started, encode_seconds, notes, tuning,
    )  # fmt: skip


def check_options(options: Options) -> None:
    seconds, seed, tune = options.seconds, options.seed, options.tune
    if not isinstance(tune, bool) and tune != "auto":
        raise UserError(f"tune must be True, False or 'auto', not {shorten(tune)}.")
    if seconds is not None and (not isinstance(seconds, int | float) or not 0 < seconds <= MOST_SECONDS):
        raise UserError(
            f"seconds must be a number above 0 and at most {MOST_SECONDS:g}, or None, not {shorten(seconds)}."
        )
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= MOST_SEED:
        raise UserError(f"seed must be a whole number of 0 or more, up to {MOST_SEED:,}, not {shorten(seed)}.")
    heads = [options.heads] if isinstance(options.heads, str) else options.heads
    if not isinstance(heads, Sequence) or not all(isinstance(name, str) for name in heads):
        raise UserError(f"heads must be 'auto' or names of heads, not {shorten(options.heads)}.")
    if options.metric is not None and not isinstance(options.metric, str):
        raise UserError(f"metric must be the name of a metric, or None, not {shorten(options.metric)}.")
    as_path(options.encoder, "the encoder")  # raises for what is no path


def _fit_again(needed: Sequence[Trial], others: Sequence[Trial], reporter: Reporter) -> dict[str, Fitted]:
    """Fit on all rows, and calibrate. Ctrl-C leaves out the others; the needed trials are the model."""
    fitted: dict[str, Fitted] = {}
    interrupted = False
    with reporter.bar("fitting again on all rows", len(needed) + len(others), "models") as bar:
        for trial in [*needed, *others]:
            is_needed = trial in needed
            if interrupted and not is_needed:
                continue
            try:
                found = trial.refit()
            except Terminated:
                raise
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                reporter.say("Interrupted: finishing the chosen model. Press Ctrl-C again to stop.")
                if not is_needed:
                    continue
                found = trial.refit()
            _scale(found, trial.temperature or 1.0)
            fitted[trial.name] = found
            bar.advance(1)
    return fitted


def _warnings(split: Split) -> Iterator[str]:
    rows = len(split.judged)
    if rows < ROUGH:
        yield (
            f"Only {counted(rows, 'row')} to judge by: scores can be off by {100 / max(rows, 1) ** 0.5:.0f} points, "
            "and the choice of the model may be chance. More rows help most."
        )


# ---------------------------------------------------------------------- trying


def _try_all(
    candidates: list[Candidate],
    rows: Rows,
    split: Split,
    options: Options,
    encode_seconds: float,
    started: float,
    reporter: Reporter,
) -> tuple[list[Trial], dict[str, str]]:
    """Try the candidates in order while there is time, then averages of the best. Ctrl-C ends the trying."""
    total = max(LEAST_SECONDS, encode_seconds)
    if options.seconds is not None:
        total = max(0.0, options.seconds - (time.monotonic() - started))
    limited = options.heads == "auto" or options.seconds is not None
    clock = Clock(TRY_SHARE * total if limited else None, patient=options.seconds is None)

    def attempt(candidate: Candidate, _: int) -> Trial:
        # Every model folder has the last layer, so there is always time for it.
        own = Clock(None) if candidate.role == "encoder" else clock
        return _calibrate(candidate.attempt(rows, split, own), rows, split)

    with reporter.bar("trying", len(candidates), "models") as bar:
        trials, skipped = try_in_order(candidates, clock, attempt, reporter, lambda name: bar.advance(1, name))
    return trials + _averages(trials, rows, split), skipped


def _try_tuned(tuning: Tuning, skipped: dict[str, str], reporter: Reporter) -> list[Trial]:
    """Try the heads on the tuned encoder, without a time limit. Ctrl-C ends it."""
    rows, split, candidates = tuning.rows, tuning.split, tuned_candidates(tuning)
    try:
        found = [_calibrate(one.attempt(rows, split, Clock(None)), rows, split) for one in candidates]
        return [*found, replace(average(found, rows, TUNED_AVERAGE), role="tuned")]
    except Terminated:
        raise
    except KeyboardInterrupt:
        reporter.say("Interrupted: going on without tuning. Press Ctrl-C again to stop.")
        why = "interrupted"
    except NoResultError as error:
        why = str(error)
    skipped |= {one.name: why for one in candidates}
    return []


def _averages(trials: list[Trial], rows: Rows, split: Split) -> list[Trial]:
    """The mean of the best heads on all layers, by their loss."""
    heads = [trial for trial in trials if trial.role == "head" and trial.name not in FIRST]
    best = best_by_loss(heads, rows, split.judged)[:AVERAGED]
    return [average(best, rows)] if len(best) > 1 else []


def _choose(
    trials: list[Trial], scores: dict[str, tuple[float, float | None, float | None]], rows: Rows, split: Split
) -> tuple[Trial, int]:
    """The model, and the number of models that it was chosen from.

    Models whose accuracy is within one standard error of the best can't be told apart by it. Among them, the one with
    the lowest log-loss is chosen, which is a much finer measure. The baseline reads no text, so it is never the model.
    A tuned encoder is preferred within two standard errors. It is for few rows, on which the best of many models is
    often ahead by chance (LOG.md). Not for pairs, which it reads as one sequence.
    """
    best = _highest(trials, scores)
    models = [trial for trial in trials if trial.role != "baseline"]
    tied = [trial for trial in models if _is_as_good(trial, best, rows, split)]
    tuned = [trial for trial in models if trial.role == "tuned" and rows.towers is None]
    if tuned and any(_is_as_good(trial, best, rows, split, TUNED_ERRORS) for trial in tuned):
        leader = _highest(tuned, scores)
        in_order = sorted(tuned, key=lambda trial: not trial.members)  # the average first
        return next(trial for trial in in_order if _is_as_good(trial, leader, rows, split)), len(tied)
    return best_by_loss(tied, rows, split.judged)[0], len(tied)


def _highest(trials: list[Trial], scores: dict[str, tuple[float, float | None, float | None]]) -> Trial:
    """The model with the highest score; among equals, the smallest."""
    models = [trial for trial in trials if trial.role != "baseline"]
    return max(models, key=lambda trial: (round(scores[trial.name][0], 6), -trial.parameters))


def _is_as_good(trial: Trial, best: Trial, rows: Rows, split: Split, errors: float = 1.0) -> bool:
    """Whether a model is right nearly as often as the best one: by at most so many standard errors of the
    difference."""
    targets = rows.targets[split.judged]  # (judged row)
    right, wanted = ((one.outputs.argmax(1) == targets).double() for one in (trial, best))  # (judged row) each
    behind = wanted - right  # (judged row)
    return trial is best or float(behind.mean()) <= errors * float(behind.std()) / len(behind) ** 0.5


def _needed(chosen: Trial, trials: list[Trial]) -> list[Trial]:
    """The trials to fit again: the chosen one with its members, and the last layer, which every model is shown with."""
    return [
        trial for trial in trials
        if trial is chosen or trial.name in chosen.members or trial.role == "encoder" or trial.name == TUNED_LAST
    ]  # fmt: skip


def _tuned(tuning: Tuning | None, trials: list[Trial]) -> list[tuple[Encoder, list[Trial]]]:
    """The tuned encoder, and the trials that read it; nothing if the model does not."""
    tuned = [trial for trial in trials if trial.role == "tuned"]
    return [(tuning.final.encoder, tuned)] if tuning is not None and tuned else []


def _calibrate(trial: Trial, rows: Rows, split: Split) -> Trial:
    """Divide the logits by the temperature at which held-out probabilities are right on average."""
    if not rows.labels or trial.temperature is None or trial.role == "baseline":
        return trial
    wrong = int((trial.outputs.argmax(1) != rows.targets[split.judged]).sum())
    # Without mistakes, the best temperature is 0. A few mistakes are no reason to be surer either.
    lowest = -1.0 if wrong >= FEW_MISTAKES else 0.0
    temperatures = torch.linspace(lowest, 1.5, 101).exp().tolist()
    losses = [rows.loss(trial.outputs / one, split.judged) for one in temperatures]
    best = temperatures[int(np.argmin(losses))]
    return replace(trial, outputs=trial.outputs / best, temperature=best)


def _scale(fitted: Fitted, temperature: float) -> None:
    """Divide the output layer by the temperature. No prediction changes, only its probability."""
    if isinstance(fitted.model, Tfidf):
        fitted.model.weight.div_(temperature)
        fitted.model.bias.div_(temperature)
    elif fitted.model is not None and temperature != 1.0:
        output: Any = fitted.model.output
        with torch.no_grad():
            output.weight.div_(temperature)
            output.bias.div_(temperature)


# ---------------------------------------------------------------------- scores


def decode_rows(task: Task, outputs: np.ndarray, examples: Sequence[Example]) -> Predictions:
    """Turn outputs (row, output) into predictions."""
    nothing: Any = None  # without windows, decoding reads no features
    return task.kind.decode(task, outputs, nothing, examples)


def results_of(task: Task, outputs: np.ndarray, examples: Sequence[Example]) -> ExampleResults:
    return task.kind.example_results(decode_rows(task, outputs, examples), examples)


def _scores_of(task: Task, outputs: np.ndarray, examples: Sequence[Example]) -> Scores:
    return task.kind.score(task.metrics, results_of(task, outputs, examples))


def _score(
    task: Task, trial: Trial, split: Split, examples: Sequence[Example], metric: str
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
    encoder: Encoder,
    features: Features,
    machine: Machine,
    reporter: Reporter,
) -> dict[str, np.ndarray]:
    given: dict[str, Any] = dict(states)
    keep: Any = tuple(states)
    towers: MemoryStates | None = None
    hidden = HiddenStates(torch.ones(len(texts), dtype=torch.long), **given, pooled=encoder.shape.pooled)
    found: dict[str, np.ndarray] = {}
    for trial in trials:
        model = fitted[trial.name].model
        if isinstance(model, Tfidf):
            found[trial.name] = model(texts)
        elif model is not None and not all(part in states for part in model.reads):
            on_device = {trial.name: model.to(machine.device)}
            found |= compute_outputs(encoder, on_device, features, rows.kind, machine)
        elif model is not None and model.towers:
            towers = towers or encode_towers(encoder, features, "dev", reporter, keep)[0]
            found[trial.name] = towers.map(model).numpy()
        elif model is not None:
            with torch.no_grad():
                found[trial.name] = model(hidden).numpy()
        elif trial.members:
            members = [torch.from_numpy(found[name]) for name in trial.members]
            found[trial.name] = average_outputs(members, rows.labels).numpy()
        else:
            constant = constant_output(rows, torch.arange(len(rows)))  # (output)
            found[trial.name] = constant.expand(len(texts), -1).numpy()
    return found


def _board(
    task: Task,
    trials: list[Trial],
    skipped: dict[str, str],
    chosen: Trial,
    tied: int,
    scores: dict[str, tuple[float, float | None, float | None]],
    outputs: dict[str, np.ndarray],
    dev: tuple[list[Example], Features] | None,
    split: Split,
    metric: str,
) -> Leaderboard:
    lines = []
    for trial in trials:
        cv, cv_sd, f1 = scores[trial.name]
        on_dev = None
        if dev is not None and trial.name in outputs:
            on_dev = float(_scores_of(task, outputs[trial.name], dev[0])[metric])
        note = "mean of " + ", ".join(trial.members) if trial.members else trial.note
        if trial.name == "best_layer_lr":
            note = "; ".join(filter(None, [f"layer {trial.settings['layer']}", note]))
        shown = None if metric == "f1_macro" or not task.labels else f1
        lines.append(
            Line(trial.name, cv, cv_sd, shown, on_dev, round(trial.seconds, 3), trial.parameters, note, trial.role)
        )
    lines += [Line(name, None, None, None, None, 0.0, 0, note) for name, note in skipped.items()]
    lines.sort(key=lambda line: FIRST.index(line.name) if line.name in FIRST else len(FIRST))
    title = task.kind.title(metric) or metric
    return Leaderboard(lines, chosen.name, metric, title, split.how, len(split.held), len(split.judged), tied)
