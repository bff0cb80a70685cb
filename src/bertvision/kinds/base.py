"""The base class of all kinds of target. A kind defines the outputs, loss, decoding, per-example results, scores,
baseline, ensembles, trust and table rows for one kind of target.

To add a kind, add a module to this package with subclasses of `Kind`, `Predictions`, `ExampleResults` and `Result`, and
register it:

    KINDS.register("grade")(GradeKind())

Configs, heads, training, scoring, ensembles, kits and reports then support it. Kinds must not import torch at module
level: the command line needs their names, and importing torch is slow.
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
from bertvision.disk import check_files, damaged, escape_line_ends, load_arrays
from bertvision.errors import UserError
from bertvision.evaluation import combining, trust
from bertvision.evaluation.statistics import Measure
from bertvision.kinds.result import Result
from bertvision.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PREDICTIONS, RESULTS, OUTPUTS = "predictions.jsonl", "results.safetensors", "outputs.safetensors"
FORMER_RESULTS = "marks.safetensors"  # the file name in run folders of earlier versions

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Scores = dict[str, Any]
"""Scores of one model on one split, in percent, as in scores.json."""
Target = int | float
"""An example's `target`: the index of a label, or a score."""

KINDS: Registry["Kind"] = Registry("kind of target")


class Packed(Protocol):
    """The part of a batch of hidden states that a loss needs."""

    def pad(self, values: "Tensor") -> "tuple[Tensor, Tensor]": ...


class WindowTargets(Protocol):
    """The targets of the windows of a batch."""

    @property
    def start(self) -> "Tensor": ...
    @property
    def end(self) -> "Tensor": ...
    @property
    def value(self) -> "Tensor": ...


class Asked(Protocol):
    """The part of a task that decoding needs."""

    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def windowed(self) -> bool: ...


@dataclass(frozen=True)
class Decoding:
    """Settings for decoding. Kinds without candidates ignore them."""

    n_best: int = 20
    """Candidate answers to keep per question."""
    longest: int = 30
    """Maximum length of an answer, in tokens."""
    device: "torch.device | str" = "cpu"
    """Device on which spans are searched."""
    are_logs: bool = False
    """Whether the outputs are log-probabilities, which an ensemble's are, instead of logits. Maxima of probabilities do
    not sum to 1 in a window. As in the papers, they are compared across windows as they are."""


DEFAULT = Decoding()


@dataclass(frozen=True)
class Figure:
    """A column of a score table."""

    key: str
    """The metric's key in the scores. A dot leads into a nested dictionary: `at_threshold.f1`."""
    heading: str
    meaning: str = ""
    """Explanation of the heading, if it needs one."""
    note: str = ""
    """Explanation printed below a table. Columns that belong together share one note."""
    has_interval: bool = True
    """Whether a report shows the 95 % interval of this metric."""


@dataclass(frozen=True)
class Predictions(ABC):
    """A model's predictions, one per example."""

    ids: list[str]

    @abstractmethod
    def predicted(self, threshold: float = 0.0) -> list[Any]:
        """Return the bare prediction for each example: the index of a label, a score, or the text of an answer."""

    @abstractmethod
    def rows(self, threshold: float = 0.0) -> Iterable[dict[str, Any]]:
        """Return one JSON-serialisable row per example, with its id, in the form that users see."""

    def lines(self, threshold: float = 0.0) -> Iterator[str]:
        """Return the rows as lines of JSON."""
        return map(to_json_line, self.rows(threshold))


class ExampleResults:
    """How a model did on each example. Scores, statistics and analyses are computed from these results.

    Subclasses are frozen dataclasses whose fields are arrays (example, …), saved in results.safetensors.
    """

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def right(self, threshold: float = 0.0) -> Bool | None:
        """(example) whether the prediction is right; None for kinds whose predictions are not right or wrong."""
        return None


@dataclass(frozen=True)
class Aim:
    """The scalar that a layer map explains: one score of one window. The map shows how much each hidden state
    contributed to it."""

    window: int
    said: str
    """The prediction, as text."""
    what: str
    """Description of the score."""
    score: "Callable[[Tensor], Tensor]"
    """Computes the score from a model's outputs for this window alone (token or 1, output)."""
    start: int = 0
    """First token of the answer in the window."""
    end: int = 0
    """Last token of the answer in the window."""
    place: tuple[int, int] | None = None
    """Characters of the answer in the passage: the first, and one past the last."""


class Kind(ABC):
    position: ClassVar[str] = "sequence"
    """Where a model predicts: once per "sequence", or for each "token"."""
    has_labels: ClassVar[bool] = False
    """Whether targets are indices into the task's labels."""
    reads_answers: ClassVar[bool] = False
    """Whether the target is an example's `answers` (start and end in the passage) instead of its `target`."""
    checkpoint: ClassVar[str] = "ForSequenceClassification"
    """Suffix of the Hugging Face classes whose checkpoints include an output layer for this kind."""
    hub_task: ClassVar[str] = "text-classification"
    """The matching task on the Hugging Face Hub."""
    results: ClassVar[type[ExampleResults]]
    row_form: ClassVar[Any] = dict[str, Any]
    """The form of a line of predictions.jsonl that is read back."""
    trust_form: ClassVar[Any] = trust.RatedTrust
    """The form of what `measure_trust` returns, in a file."""
    baseline_note: ClassVar[str]
    """What the trivial baseline does, as a sentence below a table."""
    baseline_words: ClassVar[str]
    """What the trivial baseline does, as a phrase inside a sentence."""
    right_note: ClassVar[str] = ""
    """When a prediction counts as right, if that needs an explanation."""
    exact_keys: ClassVar[tuple[str, ...]] = ()
    """Metrics that are the fraction of right predictions. Two models are compared on them with an exact test."""

    @property
    def name(self) -> str:
        return next(name for name in KINDS if KINDS[name] is self)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<kind {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find_kind, (self.name,)  # copying and unpickling return the one registered object

    # ------------------------------------------------------------------ training

    @abstractmethod
    def output_count(self, labels: int) -> int:
        """Return the number of outputs per position."""

    def window_target(self, example: Example, answer_inside: bool) -> float:
        """Return the target of one window of an example, NaN if unknown.

        `answer_inside` says whether the window contains the whole first answer. It matters only for tasks with answers.
        """
        return float("nan") if example.target is None else float(example.target)

    @abstractmethod
    def losses(self, outputs: "Tensor", states: Packed, targets: WindowTargets) -> "Tensor":
        """(member, window) losses from outputs (member, position, output), in float32."""

    def loss(self, outputs: "Tensor", states: Packed, targets: WindowTargets, total: "int | Tensor") -> "Tensor":
        """(member) the loss of each member from outputs (member, position, output), summed over the batch's windows
        and divided by `total`, the number of windows in the whole step.

        Dividing by the step's total instead of the batch's makes micro-batches and processes add up to exactly the same
        step. If some windows are only padding, `total` holds a weight for each window, 0 for the padding.
        """
        from torch import Tensor

        losses = self.losses(outputs.float(), states, targets)  # (member, window)
        return (losses * total).sum(1) if isinstance(total, Tensor) else losses.sum(1) / total  # (member)

    # ------------------------------------------------------------------ predicting

    @abstractmethod
    def decode(
        self, task: Asked, outputs: Array, features: Features, examples: Sequence[Example], how: Decoding = DEFAULT
    ) -> Predictions:
        """Turn the raw outputs of one model (token or window, output) into predictions for the examples."""

    def rows_of(self, features: Features) -> int:
        """Return the number of rows of outputs for these windows."""
        return len(features.input_ids) if self.position == "token" else len(features)

    # ------------------------------------------------------------------ scoring

    @abstractmethod
    def example_results(self, predictions: Any, examples: Sequence[Example]) -> ExampleResults:
        """Compare the predictions with the targets of the examples."""

    @abstractmethod
    def score(self, metrics: Sequence[str], results: Any, threshold: float | None = None) -> Scores:
        """Compute all scores of a model from its per-example results."""

    def pick_threshold(self, results: Any, unanswerable: float | None = None) -> float | None:
        """Return the threshold with the best score on held-out examples, None for kinds without a threshold.
        `unanswerable` is the share of unanswerable questions to expect; None: as in the examples."""
        return None

    @abstractmethod
    def measure(self, key: str, results: Any, threshold: float | None = None) -> Measure:
        """Return a function that computes a metric on any resample of the examples, for the bootstrap."""

    @abstractmethod
    def baseline(self, metrics: Sequence[str], train: Sequence[Example], examples: Sequence[Example]) -> Scores:
        """Return the scores of the trivial baseline."""

    # ------------------------------------------------------------------ tables

    @abstractmethod
    def title(self, key: str) -> str | None:
        """Return the display name of a metric, None if it does not belong to this kind."""

    def main(self, metrics: Sequence[str], has_held_out: bool) -> str:
        """Return the key of the main metric, by which models are chosen and compared."""
        return metrics[0]

    def figures(self, metrics: Sequence[str]) -> list[Figure]:
        """Return the columns of a score table."""
        return [Figure(metric, self.title(metric) or metric) for metric in metrics]

    @abstractmethod
    def show_gold(self, example: Example, labels: Sequence[str]) -> str | float:
        """Return the gold target of an example, for a table cell."""

    @abstractmethod
    def value_of(self, row: Mapping[str, Any]) -> Any:
        """Return the bare prediction in a row: the name of a label, a score, or the text of an answer."""

    def show_row(self, row: Mapping[str, Any]) -> str:
        """Format the prediction in a row briefly, for a table cell."""
        return str(self.value_of(row))

    @abstractmethod
    def result(self, row: Mapping[str, Any], **shared: Any) -> Result:
        """Return the prediction in a row as the object that users get. `shared` are the fields of every `Result`."""

    def to_results(
        self, predictions: Predictions, examples: list[Example], task: str, known: trust.Trust | None, threshold: float
    ) -> list[Any]:
        """Return the results of all examples. `known` is what was measured on held-out examples, None if nothing."""
        return [
            self.result(
                row, task=task, text=one.text, text_pair=one.text_pair,
                trust=None if known is None else self.trust_row(row, known, threshold),
            )
            for row, one in zip(predictions.rows(threshold), examples, strict=True)
        ]  # fmt: skip

    # ------------------------------------------------------------------ combining

    def log_probabilities(self, outputs: Array, features: Features) -> Float:
        """(token or window, output) log-probabilities of raw outputs, not below `combining.LOWEST`."""
        raise NotImplementedError(f"{self} has no probabilities")

    def gold_log_probabilities(self, outputs: Array, features: Features) -> Float:
        """(observation) a model's log-probabilities of the gold targets, where these are known."""
        raise NotImplementedError(f"{self} has no probabilities")

    def held_out_loss(self, outputs: Array, features: Features) -> float:
        """How far a model's outputs are from the gold targets: the mean negative log-likelihood."""
        return -float(self.gold_log_probabilities(outputs, features).mean())

    def combine(
        self, outputs: list[Array], features: Features, method: str, weights: Array | None = None
    ) -> npt.NDArray[np.float32]:
        """Combine the outputs of an ensemble's members into outputs of the same form, by default from their
        probabilities."""
        self.check_rows(outputs, features)
        return combining.combine_probabilities(self.log_probabilities, outputs, features, method, weights)

    def fit_weights(self, outputs: list[Array], features: Features) -> Float:
        """(member) weights ≥ 0, fitted on held-out training data, never on the split that is reported.

        By default they maximise the likelihood of the gold targets under the weighted mean of probabilities.
        """
        self.check_rows(outputs, features)
        gold = [self.gold_log_probabilities(output, features) for output in outputs]
        return combining.most_likely(np.stack(gold, axis=1))  # (member)

    def check_rows(self, outputs: list[Array], features: Features) -> None:
        for output in outputs:
            expected = self.rows_of(features), outputs[0].shape[1]
            assert output.shape == expected, f"a member's outputs are {output.shape}, expected {expected}"

    def combine_predictions(self, members: list[Any], method: str) -> Predictions:
        """Combine the predictions of members that split their texts into different windows, example by example."""
        raise UserError(f"members that split texts into different windows can't be combined for a {self}.")

    # ------------------------------------------------------------------ layer maps

    has_aim: ClassVar[bool] = False
    """Whether the kind implements `aim`, which layer maps need."""

    def aim(self, task: Asked, said: Any, features: Features, outputs: "Tensor", threshold: float) -> "Aim":
        """Return the score behind one example's prediction, for a layer map. `said` holds the predictions for this
        example, `outputs` (token or window, output) the outputs of its windows."""
        raise NotImplementedError

    def probability_of(self, row: Mapping[str, Any]) -> float | None:
        """Return the probability of the prediction in a row, None for kinds without probabilities."""
        return None

    # ------------------------------------------------------------------ trust

    has_threshold: ClassVar[bool] = False
    """Whether a threshold is chosen on held-out examples."""
    sureness_note: ClassVar[str] = "Confidence: the probability of the predicted label."

    def said(self, results: Any, labels: Sequence[str], threshold: float) -> dict[str, Bool]:
        """Return a mask (example) for each possible prediction: where the model predicted it."""
        raise NotImplementedError

    def sureness(self, results: Any, threshold: float) -> Float:
        """(example) the model's confidence in its prediction."""
        raise NotImplementedError

    def measure_trust(self, results: Any, labels: Sequence[str], threshold: float = 0.0) -> trust.Trust:
        """Measure how often the same prediction, with similar confidence, was right on held-out examples."""
        predicted = self.said(results, labels, threshold)
        confidence, right = self.sureness(results, threshold), results.right(threshold)  # (example), (example)
        return {name: trust.group(confidence[some], right[some]) for name, some in predicted.items() if some.any()}

    @abstractmethod
    def trust_row(self, row: Mapping[str, Any], known: trust.Trust, threshold: float = 0.0) -> trust.Group:
        """Look up how well similar predictions did on held-out data: `right` or `off_by`, and the number of
        `examples`."""

    # ------------------------------------------------------------------ a user's own files

    def default_metrics(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the metrics for a user's own data. The first is the one by which models are chosen."""
        raise NotImplementedError

    def parse(self, cell: Any, labels: Sequence[str], place: str, column: str) -> Target:
        """Return the target in a cell of a user's file. Raise a UserError that names `place` and `column` if the cell
        is invalid."""
        raise NotImplementedError


def find_kind(name: str) -> Kind:
    return KINDS[name]


def kind_in(path: Path, name: str) -> Kind:
    """The kind that a file names."""
    if name not in KINDS:
        raise damaged(path, f"there is no kind of target '{name[:60]}'")
    return KINDS[name]


# ---------------------------------------------------------------------- files


def to_json_line(row: dict[str, Any]) -> str:
    """Format a row as one line of JSON. Characters that some readers treat as line breaks are escaped."""
    import orjson  # fast: a split has hundreds of thousands of candidates

    try:
        text = orjson.dumps(row).decode()
    except TypeError:  # half of a surrogate pair is not valid UTF-8
        text = json.dumps(row)
    return (text if text.isascii() else escape_line_ends(text)) + "\n"


def save_predictions(folder: Path, predictions: Predictions, outputs: Array | None, threshold: float) -> None:
    """Write predictions.jsonl and, if there are raw outputs, outputs.safetensors, which ensembles read."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / PREDICTIONS).open("wb", buffering=1 << 20) as file:
        file.writelines(line.encode() for line in predictions.lines(threshold))
    if outputs is not None:
        save_file({"outputs": np.ascontiguousarray(outputs)}, folder / OUTPUTS)


def save_results(folder: Path, results: ExampleResults) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(values) for name, values in vars(results).items()}, folder / RESULTS)


def load_results(folder: Path, kind: Kind) -> ExampleResults:
    path = results_file(folder)
    check_files(folder, path.name)
    try:
        return kind.results(**load_arrays(path))
    except TypeError as error:
        raise damaged(path, error) from None


def results_file(folder: Path) -> Path:
    """Return the path of a model's per-example results."""
    former = folder / FORMER_RESULTS
    return former if former.is_file() else folder / RESULTS


def join_results(parts: Sequence[ExampleResults]) -> ExampleResults:
    """Concatenate the results of all parts."""
    columns = {name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    return type(parts[0])(**columns)


def targets_of(examples: Sequence[Example]) -> Float:
    """(example) the targets; every example must have one."""
    return np.array([example.target for example in examples], dtype=np.float64)
