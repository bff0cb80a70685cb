"""What a kind of target is: one object that knows its outputs, loss, decoding, per-example results, scores, baseline,
combining, trust and table rows.

A new kind is one file in this package, with subclasses of `Kind`, `Predictions` and `ExampleResults`, and one line,

    KINDS.register("grade")(GradeKind())

which makes it known to configs, heads, training, scoring, ensembles, kits and reports. Kinds import no torch when they
are loaded: the command line needs their names.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.disk import escape_line_ends
from bertvision.errors import UserError
from bertvision.evaluation import combining, trust
from bertvision.evaluation.statistics import Measure
from bertvision.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RESULTS = "results.safetensors"
FORMER_RESULTS = "marks.safetensors"  # their name in run folders of earlier versions

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Scores = dict[str, Any]
"""Figures of one model on one split, all in percent; as scores.json has them."""
Target = int | float
"""What an example's `target` is: a label's index or a score."""

KINDS: Registry["Kind"] = Registry("kind of target")


class Packed(Protocol):
    """Hidden states of a batch, as far as a loss needs them."""

    def pad(self, values: "Tensor") -> "tuple[Tensor, Tensor]": ...


class WindowTargets(Protocol):
    """What the windows of a batch should give."""

    @property
    def start(self) -> "Tensor": ...
    @property
    def end(self) -> "Tensor": ...
    @property
    def value(self) -> "Tensor": ...


class Asked(Protocol):
    """A task, as far as decoding needs it."""

    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def windowed(self) -> bool: ...


@dataclass(frozen=True)
class Decoding:
    """Settings of decoding; kinds without candidates need none."""

    n_best: int = 20
    """Answers kept for each question."""
    longest: int = 30
    """Tokens of an answer, at most."""
    device: "torch.device | str" = "cpu"
    """Where spans are searched."""


DEFAULT = Decoding()


@dataclass(frozen=True)
class Figure:
    """A column of a score table."""

    key: str
    """Its key in the scores; a dot leads into `at_threshold`."""
    heading: str
    meaning: str = ""
    """What the heading means, where that is not plain."""
    note: str = ""
    """The same for several headings at once, under a table."""
    has_interval: bool = True
    """Whether a report gives its 95 % interval."""


@dataclass(frozen=True)
class Predictions(ABC):
    """What a model predicts for each example: what is scored, combined, analysed and saved."""

    ids: list[str]

    @abstractmethod
    def predicted(self, threshold: float = 0.0) -> list[Any]:
        """The bare prediction of each example: a label's index, a score, an answer's text."""

    @abstractmethod
    def rows(self, threshold: float = 0.0) -> Iterable[dict[str, Any]]:
        """One JSON-able row an example, with its id, as users read them."""

    def lines(self, threshold: float = 0.0) -> Iterator[str]:
        """The rows as lines of JSON."""
        return map(to_json_line, self.rows(threshold))


class ExampleResults:
    """How a model did on each example: what scores, statistics and analyses are computed from. Subclasses are frozen
    dataclasses whose fields are arrays (example, …), kept in results.safetensors."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def right(self, threshold: float = 0.0) -> Bool | None:
        """(example) whether the prediction is right; None where predictions are not right or wrong."""
        return None


@dataclass(frozen=True)
class Aim:
    """One score of one window: how much each hidden state speaks for it is what a layer map shows."""

    window: int
    said: str
    what: str
    """The score in words."""
    score: "Callable[[Tensor], Tensor]"
    """From a model's outputs for this window alone (token or 1, output)."""
    start: int = 0
    end: int = 0
    place: tuple[int, int] | None = None
    """The characters of the answer in the passage."""


class Kind(ABC):
    position: ClassVar[str] = "sequence"
    """What an output belongs to: a "sequence", or each "token"."""
    has_labels: ClassVar[bool] = False
    """Whether targets are indices into the task's labels."""
    reads_answers: ClassVar[bool] = False
    """Whether the target is an example's `answers` (start and end in the passage) instead of its `target`."""
    checkpoint: ClassVar[str] = "ForSequenceClassification"
    """How the class of a Hugging Face checkpoint ends that brings an output layer for this kind."""
    hub_task: ClassVar[str] = "text-classification"
    """The hub's name for what such models do."""
    results: ClassVar[type[ExampleResults]]
    baseline_note: ClassVar[str]
    """What the trivial baseline does, as a sentence under a table …"""
    baseline_words: ClassVar[str]
    """… and inside a sentence."""
    right_note: ClassVar[str] = ""
    """When a prediction counts as right, where that is not plain."""
    exact_keys: ClassVar[tuple[str, ...]] = ()
    """Figures that are the share of right predictions: two models are compared by an exact test of these."""

    @property
    def name(self) -> str:
        return next(name for name in KINDS if KINDS[name] is self)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<kind {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find_kind, (self.name,)  # there is one object of each kind, in copies and pickles too

    # ------------------------------------------------------------------ learning

    @abstractmethod
    def output_count(self, labels: int) -> int:
        """How many numbers a model gives at each position."""

    def window_target(self, example: Example, answer_inside: bool) -> float:
        """What one window of an example should give; NaN where that is not known. `answer_inside`: whether the window
        holds the whole first answer, for tasks with answers."""
        return float("nan") if example.target is None else float(example.target)

    @abstractmethod
    def losses(self, outputs: "Tensor", states: Packed, targets: WindowTargets) -> "Tensor":
        """(member, window) losses from outputs (member, position, output), in float32."""

    def loss(self, outputs: "Tensor", states: Packed, targets: WindowTargets, total: "int | Tensor") -> "Tensor":
        """(member) the loss of each member from outputs (member, position, output): summed over a batch's windows and
        divided by `total`, the step's windows in all.

        Dividing by the step's total, not by what is here, makes micro-batches and processes add up to the very same
        step. Where some windows only fill a batch up, `total` is the weight of each window, 0 for those.
        """
        from torch import Tensor

        losses = self.losses(outputs.float(), states, targets)  # (member, window)
        return (losses * total).sum(1) if isinstance(total, Tensor) else losses.sum(1) / total  # (member)

    # ------------------------------------------------------------------ predicting

    @abstractmethod
    def decode(
        self, task: Asked, outputs: Array, features: Features, examples: list[Example], how: Decoding = DEFAULT
    ) -> Predictions:
        """Raw outputs of one model (token or window, output) become what it predicts for each example."""

    def rows_of(self, features: Features) -> int:
        """How many rows of outputs a model gives for some windows."""
        return len(features.input_ids) if self.position == "token" else len(features)

    # ------------------------------------------------------------------ scoring

    @abstractmethod
    def example_results(self, predictions: Any, examples: list[Example]) -> ExampleResults:
        """How predictions did on each example."""

    @abstractmethod
    def score(self, metrics: Sequence[str], results: Any, threshold: float | None = None) -> Scores:
        """All figures of a model."""

    def pick_threshold(self, results: Any) -> float | None:
        """The threshold with the best score on held-out examples; None for a kind without one."""
        return None

    @abstractmethod
    def measure(self, key: str, results: Any, threshold: float | None = None) -> Measure:
        """A figure on any draw of the examples, for the bootstrap."""

    @abstractmethod
    def baseline(self, metrics: Sequence[str], train: list[Example], examples: list[Example]) -> Scores:
        """Figures of the trivial baseline."""

    # ------------------------------------------------------------------ tables

    @abstractmethod
    def title(self, key: str) -> str | None:
        """A figure's name for people; None if it is not one of this kind's."""

    def main(self, metrics: Sequence[str], has_held_out: bool) -> str:
        """The key of the figure that models are chosen and compared by."""
        return metrics[0]

    def figures(self, metrics: Sequence[str]) -> list[Figure]:
        """The columns of a score table."""
        return [Figure(metric, self.title(metric) or metric) for metric in metrics]

    @abstractmethod
    def show_gold(self, example: Example, labels: Sequence[str]) -> str | float:
        """What is true of an example, for a cell of a table."""

    @abstractmethod
    def value_of(self, row: Mapping[str, Any]) -> Any:
        """The bare prediction in a row: a label's name, a score, an answer's text."""

    def show_row(self, row: Mapping[str, Any]) -> str:
        """What a row of predictions says, in a word …"""
        return str(self.value_of(row))

    def describe_row(self, row: Mapping[str, Any]) -> str:
        """… and on a line of its own, with what is known of it."""
        return self.show_row(row)

    # ------------------------------------------------------------------ combining

    def log_probabilities(self, outputs: Array, features: Features) -> Float:
        """(token or window, output) of raw outputs, not below `combining.LOWEST`."""
        raise NotImplementedError(f"{self} has no probabilities")

    def gold_log_probabilities(self, outputs: Array, features: Features) -> Float:
        """(observation) what a model gives to the true targets, as far as they are known."""
        raise NotImplementedError(f"{self} has no probabilities")

    def combine(
        self, outputs: list[Array], features: Features, method: str, weights: Array | None = None
    ) -> npt.NDArray[np.float32]:
        """Outputs of an ensemble, in the same form as its members': here of their probabilities."""
        self.check_rows(outputs, features)
        return combining.combine_probabilities(self.log_probabilities, outputs, features, method, weights)

    def fit_weights(self, outputs: list[Array], features: Features) -> Float:
        """(member) weights ≥ 0 from held-out training data, never from the set that is reported: here those that make
        the true targets most likely under the weighted mean of probabilities."""
        self.check_rows(outputs, features)
        gold = [self.gold_log_probabilities(output, features) for output in outputs]
        return combining.most_likely(np.stack(gold, axis=1))  # (member)

    def check_rows(self, outputs: list[Array], features: Features) -> None:
        for output in outputs:
            expected = self.rows_of(features), outputs[0].shape[1]
            assert output.shape == expected, f"a member's outputs are {output.shape}, expected {expected}"

    def combine_predictions(self, members: list[Any], method: str) -> Predictions:
        """Predictions of an ensemble whose members cut their texts into other windows: they meet at the examples."""
        raise UserError(f"members that cut texts into different windows can't be combined for a {self}.")

    # ------------------------------------------------------------------ what states speak for

    has_aim: ClassVar[bool] = False
    """Whether `aim` says what the hidden states of one example speak for, which a layer map needs."""

    def aim(self, task: Asked, said: Any, features: Features, outputs: "Tensor", threshold: float) -> "Aim":
        """The score of what was said of one example, from its predictions and the outputs (token or window, output)."""
        raise NotImplementedError

    def probability_of(self, row: Mapping[str, Any]) -> float | None:
        """What a model gave the thing it said; None where there are no probabilities."""
        return None

    # ------------------------------------------------------------------ trust

    has_threshold: ClassVar[bool] = False
    """Whether a threshold is chosen on held-out examples."""
    sureness_note: ClassVar[str] = "Sureness: the probability of the label that was said."

    def said(self, results: Any, labels: Sequence[str], threshold: float) -> dict[str, Bool]:
        """(example) for each thing that can be said, whether it was."""
        raise NotImplementedError

    def sureness(self, results: Any, threshold: float) -> Float:
        """(example) how sure a model was of what it said."""
        raise NotImplementedError

    def measure_trust(self, results: Any, labels: Sequence[str], threshold: float = 0.0) -> trust.Trust:
        """How often predictions that said the same, as surely, were right on held-out examples."""
        said, sure, right = (
            self.said(results, labels, threshold),
            self.sureness(results, threshold),
            results.right(threshold),
        )
        return {name: trust.group(sure[some], right[some]) for name, some in said.items() if some.any()}

    @abstractmethod
    def trust_row(self, row: Mapping[str, Any], known: trust.Trust, threshold: float = 0.0) -> trust.Group:
        """What is known of predictions like this one: `right` or `off_by`, and of how many `examples`."""

    # ------------------------------------------------------------------ a user's own files

    def default_metrics(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The metrics of a user's own data; the first is the one models are chosen by."""
        raise NotImplementedError

    def parse(self, cell: Any, labels: Sequence[str], place: str, column: str) -> Target:
        """The target in a cell of a user's file; raises UserError that names the place and the column."""
        raise NotImplementedError


def find_kind(name: str) -> Kind:
    return KINDS[name]


# ---------------------------------------------------------------------- files


def to_json_line(row: dict[str, Any]) -> str:
    """One row as a line: characters that some readers take for the end of a line are escaped."""
    import orjson  # as fast as hand-written formatting; a set has hundreds of thousands of candidates

    try:
        text = orjson.dumps(row).decode()
    except TypeError:  # half of a surrogate pair is no UTF-8
        text = json.dumps(row)
    return (text if text.isascii() else escape_line_ends(text)) + "\n"


def save_predictions(folder: Path, predictions: Predictions, outputs: Array | None, threshold: float) -> None:
    """predictions.jsonl for people and programs, outputs.safetensors (the raw outputs, if any) for ensembles."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "predictions.jsonl").open("wb", buffering=1 << 20) as file:
        file.writelines(line.encode() for line in predictions.lines(threshold))
    if outputs is not None:
        save_file({"outputs": np.ascontiguousarray(outputs)}, folder / "outputs.safetensors")


def save_results(folder: Path, results: ExampleResults) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(values) for name, values in vars(results).items()}, folder / RESULTS)


def load_results(folder: Path, kind: Kind) -> ExampleResults:
    from safetensors.numpy import load_file

    return kind.results(**load_file(results_file(folder)))


def results_file(folder: Path) -> Path:
    """The file with a model's per-example results."""
    former = folder / FORMER_RESULTS
    return former if former.is_file() else folder / RESULTS


def join_results(parts: Sequence[ExampleResults]) -> ExampleResults:
    """The results of all parts, one after the other."""
    columns = {name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    return type(parts[0])(**columns)


def targets_of(examples: list[Example]) -> Float:
    """(example) the targets of examples that all have one."""
    return np.array([example.target for example in examples], dtype=np.float64)
