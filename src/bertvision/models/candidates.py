"""What `fit` tries: each candidate is fitted without the rows it is judged on, then again on all rows.

    trial = candidate.attempt(rows, split, clock)      trial.outputs (judged row, output), out of fold
    fitted = trial.refit()                             a head, or TF-IDF, on all rows

Strengths and recipes are chosen by the loss on the same held-out rows as the candidate itself.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertvision.encoder.reading import Reading
from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads import Head, MemberConfig, Target, build_head, count_parameters
from bertvision.heads.linear import LinearHead
from bertvision.heads.mlp import MLP
from bertvision.kinds import Kind
from bertvision.models.clock import Clock
from bertvision.models.split import Split
from bertvision.models.tfidf import NAME as TFIDF
from bertvision.models.tfidf import Tfidf, Words, fit_tfidf
from bertvision.sources import MemoryStates
from bertvision.training.convex import TOLERANCE, Linear, LogisticRegression, fit_ridge
from bertvision.training.perceptron import RECIPES, Components, Perceptron, Recipe, train_perceptron
from bertvision.training.strengths import FACTOR, ROUGHLY, SCORE_STEPS, OutOfTimeError, search_path, strength_at

TFIDF_STRENGTH = 0.1
COMPARED_ROWS = 3000
"""Rows by which layers are compared, about: the order of layers needs no more."""
COPIES = 6
"""How often the inputs of a fit are in memory at the worst moment."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table, encoded."""

    texts: list[str]
    """For TF-IDF: both texts of a pair, joined."""
    targets: Tensor  # (row) label indices, or scores
    weights: Tensor  # (row) of the loss; their mean is 1
    states: dict[str, Tensor]
    """Part → (row, layer, hidden)."""
    shape: StateShape
    target: Target
    seed: int
    towers: MemoryStates | None = None
    """Of pairs: the states of their texts, each encoded alone."""
    read: Reading = "mean"
    """How the encoder is read: as it was made, or the mean if it does not say."""
    device: torch.device = torch.device("cpu")
    """Where convex heads and perceptrons are fitted. The states stay on the CPU."""
    known_steps: list[int] = field(default_factory=list)
    """The best steps on the paths of strengths so far. The next path starts at the last one."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def kind(self) -> Kind:
        return self.target.kind

    @property
    def labels(self) -> int:
        return self.target.labels

    def inputs(self, head: LinearHead | MLP) -> Tensor:
        """(row, input) what the first linear layer of a head reads."""
        if head.towers:
            assert self.towers is not None, "only pairs have two towers"
            return self.towers.map(head.inputs)
        parts: dict[str, Any] = {part: self.states[part] for part in head.reads}
        with torch.no_grad():
            lengths = torch.ones(len(self), dtype=torch.int64)  # (row) nothing depends on them
            return head.inputs(HiddenStates(lengths, **parts, pooled=self.shape.pooled))

    def place(self, inputs: Tensor) -> Tensor:
        """(row, input) on the device, if it has room for the copies that a fit makes."""
        if self.device.type == "cuda" and inputs.nbytes * COPIES < torch.cuda.mem_get_info(self.device)[0]:
            return inputs.to(self.device)
        return inputs

    def loss(self, outputs: Tensor, judged: Tensor) -> float:
        """Mean loss of outputs (judged row, output): log-loss for labels, squared error for scores."""
        targets, weights = self.targets[judged], self.weights[judged]  # (judged row) each
        if self.labels:
            losses = functional.cross_entropy(outputs, targets, reduction="none")  # (judged row)
        else:
            losses = (outputs[:, 0] - targets).square()  # (judged row)
        return float((losses * weights).sum() / weights.sum())


@dataclass(frozen=True)
class Fitted:
    """A candidate fitted on all rows."""

    model: Head | Tfidf | None
    """None for the majority baseline and for averages, which are made of other candidates."""
    member: MemberConfig | None = None


@dataclass(frozen=True)
class Trial:
    """A candidate after it was judged."""

    name: str
    outputs: Tensor  # (judged row, output)
    parameters: int
    seconds: float
    refit: Callable[[], Fitted]
    role: str = "head"
    """baseline, peer (TF-IDF), encoder (the last layer), head, or ensemble."""
    note: str = ""
    members: tuple[str, ...] = ()
    """Of an average."""
    settings: dict[str, Any] = field(default_factory=dict)
    temperature: float | None = 1.0
    """What its logits were divided by; None: they can't be scaled, because the head has no final linear layer."""


class Candidate(ABC):
    name: str
    role: str = "head"

    @abstractmethod
    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        """Fit without the judged rows. Raise OutOfTimeError if the clock stops it before there is a result."""


class NoResultError(Exception):
    """A candidate has no result. The message says why, for the leaderboard."""


CUT = "cut for time"


# ---------------------------------------------------------------------- baselines and peers


class Majority(Candidate):
    """The label frequencies, or the mean score, of the rows that a fit reads."""

    name, role = "majority", "baseline"

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        everything = torch.arange(len(rows))  # (row)
        outputs = []
        for fold, held in enumerate(split.held):
            # For scores, the mean of all rows: means that differ between folds would correlate with the scores.
            used = split.used(fold) if rows.labels else everything  # (row)
            outputs.append(constant_output(rows, used).expand(len(held), -1))
        return Trial(self.name, split.join(outputs), 0, 0.0, lambda: Fitted(None), self.role)


def constant_output(rows: Rows, used: Tensor) -> Tensor:
    """(output) the log-frequencies of the labels, or the mean score, of some rows."""
    targets, weights = rows.targets[used], rows.weights[used]  # (row) each
    if rows.labels:
        counts = torch.bincount(targets, weights, minlength=rows.labels)  # (label)
        return counts.clamp(min=1e-6).log().float()
    return ((targets * weights).sum() / weights.sum()).view(1)


class TfidfCandidate(Candidate):
    name, role = TFIDF, "peer"

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        parts = []
        for fold in range(len(split.held)):
            used = split.used(fold)  # (row)
            words = Words.of([rows.texts[row] for row in used.tolist()])
            parts.append((used, words))
        if all(words is None for _, words in parts):
            raise NoResultError("not tried: the texts have no words")
        found: dict[int, Tensor] = {}
        known: dict[int, list[Linear | None]] = {}

        def judge(step: int) -> float | None:
            if found and clock.is_over():
                return None
            starts = known.get(step - 1) or known.get(step + 1) or [None] * len(parts)
            outputs: list[Tensor] = []
            known[step] = []
            for (used, words), held, start in zip(parts, split.held, starts, strict=True):
                if words is None:  # the other folds have words
                    known[step].append(None)
                    outputs.append(torch.zeros(len(held), max(1, rows.labels)))
                    continue
                fit = self._fit(rows, used, words, step, start)
                known[step].append(fit)
                outputs.append(fit_outputs(words, fit, [rows.texts[row] for row in held.tolist()]))
            found[step] = split.join(outputs)
            return rows.loss(found[step], split.judged)

        best, cut = search_path(judge, most=3)

        def refit() -> Fitted:
            words = Words.of(rows.texts)
            assert words is not None, "some of the texts have words"
            fit = self._fit(rows, torch.arange(len(rows)), words, best, None)
            return Fitted(Tfidf(words, fit.weight[0], fit.bias[0]))

        sizes = [words.weight_count(rows.labels) for _, words in parts if words is not None]
        return Trial(
            self.name, found[best], max(sizes, default=0), clock.lap(), refit, self.role, CUT if cut else "",
            settings={"strength": self._strength(best)},
        )  # fmt: skip

    def _strength(self, step: int) -> float:
        return TFIDF_STRENGTH / FACTOR**step

    def _fit(self, rows: Rows, used: Tensor, words: Words, step: int, start: Linear | None) -> Linear:
        texts = [rows.texts[row] for row in used.tolist()]
        return fit_tfidf(texts, rows.targets[used], rows.weights[used], rows.labels, self._strength(step), words, start)


def fit_outputs(words: Words, fit: Linear, texts: Sequence[str]) -> Tensor:
    return words(texts) @ fit.weight[0] + fit.bias[0]  # (row, output)


# ---------------------------------------------------------------------- convex heads


class LinearCandidate(Candidate):
    """Logistic or ridge regression on pooled states."""

    def __init__(self, name: str, head: str, settings: dict[str, Any] | None = None, role: str = "head") -> None:
        self.name, self.head, self.settings, self.role = name, head, settings or {}, role

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        inputs = self.inputs(rows)  # (row, input)
        path = StrengthPath(rows, split, inputs, clock)
        best, cut = path.search()
        rows.known_steps.append(best)
        head = self._build(rows, path.strength(best))

        def refit() -> Fitted:
            return Fitted(*with_weights(head, path.refit(best)))

        return Trial(
            self.name, path.outputs[best], count_parameters(head[0]), clock.lap(), refit, self.role,
            CUT if cut else "", settings={"head": self.head, "strength": path.strength(best), **self.settings},
        )  # fmt: skip

    def _build(self, rows: Rows, strength: float) -> tuple[LinearHead, MemberConfig]:
        member = member_of(self.name, self.head, {**self.settings, "strength": strength}, rows.seed)
        head = build_head(member, rows.shape, rows.target)
        assert isinstance(head, LinearHead)
        return head, member

    def inputs(self, rows: Rows) -> Tensor:
        head, _ = self._build(rows, 1.0)
        return rows.inputs(head)


class BestLayerCandidate(Candidate):
    """The best single layer: each is tried at one strength, the best of them at several."""

    name = "best_layer_lr"

    def __init__(self, read: str, pairs: str = "joined") -> None:
        self.read, self.pairs = read, pairs

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        losses: dict[int, float] = {}
        for layer in reversed(range(rows.shape.layers)):
            path = StrengthPath(rows, split, self._on(layer).inputs(rows), clock, COMPARED_ROWS)
            loss = path.loss(path.first)
            if loss is None:
                break
            losses[layer] = loss
        if not losses:
            raise OutOfTimeError
        best = min(losses, key=lambda known: losses[known])
        spent = clock.lap()
        trial = self._on(best).attempt(rows, split, clock)
        cut = CUT if len(losses) < rows.shape.layers else trial.note
        return replace(trial, note=cut, seconds=spent + trial.seconds)

    def _on(self, layer: int) -> LinearCandidate:
        pairs = {} if self.pairs == "joined" else {"pairs": self.pairs}
        return LinearCandidate(self.name, "linear", {"read": self.read, "layer": layer, **pairs})


class StrengthPath:
    """Fits along a path of strengths, each starting from its neighbour."""

    def __init__(self, rows: Rows, split: Split, inputs: Tensor, clock: Clock, most_rows: int | None = None) -> None:
        """`most_rows`: fit to about so many of the rows, where a part is held out."""
        self.rows, self.split, self.inputs, self.clock = rows, split, rows.place(inputs), clock
        self.targets, weights = (part.to(self.inputs.device) for part in (rows.targets, rows.weights))  # (row) each
        self.outputs: dict[int, Tensor] = {}
        self.fits: dict[int, Linear] = {}
        if split.how == "cv":
            self.used = torch.arange(len(rows))  # (row)
            self.weights = weights.repeat(len(split.held), 1)  # (fit, row)
            for fold, held in enumerate(split.held):
                self.weights[fold, held] = 0
        else:
            used = split.used(0)  # (row)
            self.used = used if most_rows is None else used[:: -(-len(used) // most_rows)]  # (row)
            self.weights = weights[self.used].unsqueeze(0)  # (1, row)
        self._data: LogisticRegression | None = None
        self.first = rows.known_steps[-1] if rows.known_steps else 0

    def strength(self, step: int) -> float:
        return strength_at(step, self.inputs.shape[1])

    def search(self) -> tuple[int, bool]:
        if not self.rows.labels:
            targets = self.targets[self.used].unsqueeze(1)  # (row, 1)
            fits = fit_ridge(self.inputs[self.used], targets, [*map(self.strength, SCORE_STEPS)], self.weights)
            losses = {step: self._judge(step, fit) for step, fit in zip(SCORE_STEPS, fits, strict=True)}
            return min(losses, key=lambda known: losses[known]), False
        best, cut = search_path(self.loss, self.first)
        if not cut:
            self.loss(best, TOLERANCE)
        return best, cut

    def loss(self, step: int, tolerance: float = ROUGHLY) -> float | None:
        """The loss on the judged rows at one step of the path; None if there is no time to compute it."""
        if not self.rows.labels:
            targets = self.targets[self.used].unsqueeze(1)  # (row, 1)
            return self._judge(step, fit_ridge(self.inputs[self.used], targets, [self.strength(step)], self.weights)[0])
        if self._data is None:
            inputs, targets = self.inputs[self.used], self.targets[self.used]  # (row, input), (row)
            self._data = LogisticRegression(inputs, targets, self.rows.labels, self.weights)
        start = self.fits.get(step) or self.fits.get(step - 1) or self.fits.get(step + 1)
        fits = self._data.fit(self.strength(step), start, tolerance, self.clock.is_over)
        return None if self.clock.is_over() else self._judge(step, fits)

    def _judge(self, step: int, fits: Linear) -> float:
        self.fits[step] = fits
        outputs = [self.inputs[held] @ fits.weight[fold] + fits.bias[fold] for fold, held in enumerate(self.split.held)]
        self.outputs[step] = self.split.join([part.cpu() for part in outputs])  # (judged row, output)
        return self.rows.loss(self.outputs[step], self.split.judged)

    def refit(self, step: int) -> Linear:
        """Fit all rows."""
        weights = self.rows.weights.to(self.inputs.device).unsqueeze(0)  # (1, row)
        self._data = None  # frees the copy of the inputs
        if not self.rows.labels:
            return fit_ridge(self.inputs, self.targets.unsqueeze(1), [self.strength(step)], weights)[0]
        near = self.fits[step]
        start = Linear(near.weight.mean(0, keepdim=True), near.bias.mean(0, keepdim=True))
        data = LogisticRegression(self.inputs, self.targets, self.rows.labels, weights)
        return data.fit(self.strength(step), start)


def with_weights(built: tuple[LinearHead, MemberConfig], fit: Linear) -> tuple[Head, MemberConfig]:
    head, member = built
    with torch.no_grad():
        head.output.weight.copy_(fit.weight[0].T)
        head.output.bias.copy_(fit.bias[0])
    return head.eval(), member


# ---------------------------------------------------------------------- perceptrons


class PerceptronCandidate(Candidate):
    """A small MLP on pooled states, with the recipe that is best on held-out rows."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name, self.settings = name, settings

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        member = member_of(self.name, "mlp", self.settings, rows.seed)
        head = build_head(member, rows.shape, rows.target)
        assert isinstance(head, MLP)
        inputs = rows.place(rows.inputs(head))  # (row, input)
        outputs: dict[Recipe, Tensor] = {}
        # The basis of each fold is computed once and used by every recipe.
        bases: dict[int, tuple[Components, Tensor]] = {}
        cut = False
        for recipe in RECIPES:
            if outputs and clock.is_over():
                cut = True
                break
            found = []
            for fold, held in enumerate(split.held):
                if fold not in bases:
                    used = split.used(fold)  # (row)
                    components = Components.of(inputs[used], rows.seed)
                    bases[fold] = components, components.project(inputs[used])
                trained = self._train(rows, split.used(fold), *bases[fold], head, recipe, clock)
                if trained is None:
                    break
                found.append(trained(inputs[held]).cpu())  # (held-out row, output)
            if len(found) < len(split.held):
                cut = True
                break
            outputs[recipe] = split.join(found)  # (judged row, output)
        if not outputs:
            raise OutOfTimeError
        best = min(outputs, key=lambda known: rows.loss(outputs[known], split.judged))
        # Of many rows, those that were not held out give nearly the same basis as all of them.
        basis = bases[0][0] if split.how == "held_out" else None
        bases.clear()

        def refit() -> Fitted:
            components = basis or Components.of(inputs, rows.seed)
            everything = torch.arange(len(rows))  # (row)
            trained = self._train(rows, everything, components, components.project(inputs), head, best, Clock(None))
            assert trained is not None, "nothing stops this fit"
            head.load_state_dict(trained.state())
            return Fitted(head.eval(), member)

        settings = {"head": "mlp", "epochs": best.epochs, "lr": best.lr, "dropout": best.dropout, **self.settings}
        return Trial(
            self.name, outputs[best], count_parameters(head), clock.lap(), refit, self.role, CUT if cut else "",
            settings=settings,
        )  # fmt: skip

    def _train(
        self,
        rows: Rows,
        used: Tensor,
        components: Components,
        projected: Tensor,
        head: MLP,
        recipe: Recipe,
        clock: Clock,
    ) -> Perceptron | None:
        targets, weights = (part[used].to(projected.device) for part in (rows.targets, rows.weights))  # (row) each
        centre, spread = targets.new_zeros(()), targets.new_ones(())
        if not rows.labels:  # scores are learned on a standard scale
            centre, spread = targets.mean(), targets.std().clamp(min=1e-6)
            targets = (targets - centre) / spread  # (row)
        trained = train_perceptron(
            components, projected, targets, weights, rows.target.outputs, head.config.size, recipe, rows.seed,
            clock.is_over,
        )  # fmt: skip
        if trained is None or rows.labels:
            return trained
        return replace(trained, output=trained.output * spread, output_bias=trained.output_bias * spread + centre)


# ---------------------------------------------------------------------- averages


def average(trials: Sequence[Trial], rows: Rows, name: str = "average") -> Trial:
    """The mean of the probabilities, or scores, of several trials."""
    joined = average_outputs([trial.outputs for trial in trials], rows.labels)  # (judged row, output)
    return Trial(
        name, joined, sum(trial.parameters for trial in trials), sum(trial.seconds for trial in trials),
        lambda: Fitted(None), "ensemble", members=tuple(trial.name for trial in trials),
    )  # fmt: skip


def average_outputs(outputs: Sequence[Tensor], labels: int) -> Tensor:
    """(row, output) the log of the mean probability of each label, or the mean score."""
    stacked = torch.stack(list(outputs))  # (model, row, output)
    if not labels:
        return stacked.mean(0)
    return stacked.log_softmax(2).logsumexp(0) - math.log(len(stacked))


def member_of(name: str, head: str, settings: dict[str, Any], seed: int) -> MemberConfig:
    """The description of a head that is saved with it. It was not trained in steps of its own."""
    return MemberConfig(
        name, head, settings, lr=0.0, epochs=0, schedule="constant", warmup=0.0, decay=0.0, clip=None, seed=seed,
        group=name,
    )  # fmt: skip


def best_by_loss(trials: Iterable[Trial], rows: Rows, judged: Tensor) -> list[Trial]:
    return sorted(trials, key=lambda trial: rows.loss(trial.outputs, judged))
