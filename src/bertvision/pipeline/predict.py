"""Predictions of a trained run for new text: an answer and its position, a label with probabilities, or a score, each
with its trust."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from bertvision.config import EncoderConfig
from bertvision.data.examples import Example
from bertvision.data.texts import blank, read_texts, too_long
from bertvision.data.windows import Features, build_features
from bertvision.disk import damaged, read_stamp
from bertvision.encoder.shared import shared_encoder
from bertvision.errors import UserError, shorten
from bertvision.evaluation.trust import Trust
from bertvision.heads import Head, Target, load_head
from bertvision.heads.base import CONFIG
from bertvision.kinds import Decoding, Predictions, Result
from bertvision.kinds.base import results_file
from bertvision.machine import Machine, sharing_cores
from bertvision.network import no_downloads
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.pipeline.folder import ENCODER, HELD_OUT
from bertvision.pipeline.snapshot import compute_outputs, load_snapshot
from bertvision.pipeline.stamps import EncoderStamp, HeadStamp
from bertvision.pipeline.text_states import text_states
from bertvision.progress import Reporter
from bertvision.settings import MOST_EPOCHS
from bertvision.tables import counted
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.text_batches import MOST_ROWS, batches_of

Found = TypeVar("Found")


class Predictor:
    """One model of a run, loaded for new text. The run's data is not needed."""

    @no_downloads()
    def __init__(
        self,
        folder: Path | str,
        head: str | None = None,
        epochs: float | None = None,
        reporter: Reporter | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> None:
        """`head` names a head or an ensemble, or is "encoder" for the encoder alone (default: the run's best model on
        held-out data). A name without a seed selects the best seed. `encoder` replaces settings of the encoder."""
        check_choice(head, epochs)
        self.run, self.reporter = FinishedRun(folder), reporter or Reporter()
        self.task, config = self.run.task, self.run.settings
        self.task_config, self.data, self.evaluate = config.task, config.data, config.evaluate
        self.model, self.why = choose_model(self.run, head, epochs)
        self.folder, self.epochs, self.name = self.run.folder, self.model.epochs, self.model.name
        self._trust: dict[float, Trust | None] = {}
        self._load(members_of(self.model), dataclasses.replace(config.encoder, **encoder or {}))

    def _load(self, names: list[str], settings: EncoderConfig) -> None:
        """Load the encoder and the models with these names."""
        # Use the layers the heads were trained on: the config may have changed.
        trained = [read_stamp(self.folder.head(self.epochs, name), HeadStamp) for name in names]
        layers = next((stamp["layers"] for stamp in trained if stamp and "layers" in stamp), None)
        encoder = dataclasses.replace(settings, layers=layers)
        self.machine = Machine(encoder.device, encoder.dtype)
        self.encoder, output = load_snapshot(self.folder.encoder(self.epochs), encoder, self.machine, shared_encoder)
        self.models: dict[str, Any] = {}
        for name in names:
            self.models[name] = output if name == ENCODER else self._load_head(name)

    @property
    def threshold(self) -> float:
        """The no-answer threshold chosen on held-out questions; 0 if none was chosen."""
        return float(self.model.threshold or 0.0)

    @property
    def takes_pairs(self) -> bool:
        """Whether the run was trained on examples with two texts."""
        return self.task.takes_pairs

    def trust(self, threshold: float) -> Trust | None:
        """How often similar predictions were right on held-out data; None if nothing was held out."""
        if threshold not in self._trust:
            model, kind = self.model, self.task.kind
            known = HELD_OUT in model.figures and results_file(model.predictions(HELD_OUT)).is_file()
            found = kind.measure_trust(model.results(HELD_OUT), self.task.labels, threshold) if known else None
            self._trust[threshold] = found
        return self._trust[threshold]

    def predict_texts(self, texts: Any, threshold: float | None = None) -> list[Result]:
        """Predict one result per text. Each text is a string, or a pair such as (question, passage)."""
        examples = self.read_texts(texts)
        return self._to_results(self.predict(examples), examples, threshold) if examples else []

    def read_texts(self, texts: Any) -> list[Example]:
        """The texts as examples. UserError if one is empty, or if single texts are expected and it is a pair, or the
        other way round."""
        examples = [Example(str(number), *pair) for number, pair in enumerate(read_texts(texts))]
        for example in examples:
            if problem := self._wrong_number(example):
                raise UserError(problem)
        return examples

    def predict_file(
        self, examples: Sequence[Example], threshold: float | None = None, one_bar: bool = False
    ) -> Iterator[Result | dict[str, str]]:
        """`predict_examples` in batches: memory stays the same however many there are. With `one_bar`, one bar shows
        the progress of all; nothing may be printed meanwhile."""
        return in_batches(self, examples, lambda batch: self.predict_examples(batch, threshold), one_bar)

    def predict_examples(
        self, examples: Sequence[Example], threshold: float | None = None
    ) -> list[Result | dict[str, str]]:
        """The result of each example, in their order. An example that can't be predicted gets {"error": sentence}, and
        the others are predicted all the same."""
        # Ids in a file may be repeated, so examples are found by their numbers.
        numbered = [dataclasses.replace(one, id=str(number)) for number, one in enumerate(examples)]
        errors = {one.id: problem for one in numbered if (problem := self._problem(one))}
        good = self._fitting([one for one in numbered if one.id not in errors], errors)
        found: dict[str, Result] = {}
        if good is not None:
            results = self._to_results(self._predict(*good), good[0], threshold)
            found = {one.id: result for one, result in zip(good[0], results, strict=True)}
        return [found.get(one.id) or {"error": errors[one.id]} for one in numbered]

    def _to_results(self, predictions: Predictions, examples: list[Example], threshold: float | None) -> list[Result]:
        limit = self.threshold if threshold is None else threshold
        return self.task.kind.to_results(predictions, examples, self.task.name, self.trust(limit), limit)

    def _problem(self, example: Example) -> str | None:
        return blank(example.text, example.text_pair) or self._wrong_number(example)

    def _wrong_number(self, example: Example) -> str | None:
        """What is wrong if the task takes pairs and the example is a single text, or the other way round."""
        if self.task.takes_pairs and example.text_pair is None:
            both = ("QUESTION", "PASSAGE") if self.task.windowed else ("TEXT", "TEXT")
            return (
                f"{self.task.name} needs two texts: --text {both[0]} --text-pair {both[1]} "
                f"(in Python, a pair: ({both[0].lower()}, {both[1].lower()}))."
            )
        if not self.task.takes_pairs and example.text_pair is not None:
            return f"this run was trained on single texts ({self.task.name}): leave out the second text."
        return None

    def _fitting(self, examples: list[Example], errors: dict[str, str]) -> tuple[list[Example], Features] | None:
        """The examples that fit into a window and their features; None if there are none. Others are added to the
        errors."""
        if not examples:
            return None
        try:
            return examples, self._build_features(examples)
        except UserError:
            for example in examples:
                try:
                    self._build_features([example])
                except UserError:
                    errors[example.id] = too_long(self._max_length)
            fitting = [example for example in examples if example.id not in errors]
            if len(fitting) == len(examples):
                raise
            return (fitting, self._build_features(fitting)) if fitting else None

    @property
    def _max_length(self) -> int:
        return self.data.max_length or self.task.max_length

    def _build_features(self, examples: Sequence[Example]) -> Features:
        task, tokenizer = self.task, self.encoder.tokenizer
        assert tokenizer is not None
        return build_features(examples, tokenizer, task.kind, task.windowed, self._max_length, self.data.overlap)

    def states(self, texts: Any, read: str = "tokens") -> list[np.ndarray]:
        """The hidden states of each text: see `text_states`."""
        examples = [Example(str(number), *pair) for number, pair in enumerate(read_texts(texts))]
        return text_states(self.encoder, examples, self._max_length, read, self.reporter) if examples else []

    def __repr__(self) -> str:
        return f"<Predictor of '{self.folder.path}': {self.model.title}>"

    def predict(self, examples: Sequence[Example]) -> Predictions:
        """Predict the examples, in their order. Their targets are ignored."""
        if not examples:
            raise UserError("no text to predict on.")
        return self._predict(examples, self._build_features(examples))

    def _predict(self, examples: Sequence[Example], features: Features) -> Predictions:
        task, tokens = self.task, int(features.lengths.sum())
        with sharing_cores(tokens, self.reporter), self.reporter.bar("predicting", tokens, "tokens") as bar:
            found = compute_outputs(self.encoder, self.models, features, task.kind, self.machine, bar=bar)
        outputs = next(iter(found.values()))  # (token or window, output)
        several = len(found) > 1
        if several:
            assert self.model.method is not None, "only an ensemble has several models"
            weights = None if self.model.weights is None else np.array(self.model.weights)  # (member)
            outputs = task.kind.combine(list(found.values()), features, self.model.method, weights)
        how = Decoding(self.evaluate.n_best, self.evaluate.max_answer_tokens, are_logs=several)
        return task.kind.decode(task, outputs, features, examples, how)

    def test_splits(self, data: str | None) -> Iterator[tuple[str, Sequence[Example]]]:
        """Yield the unlabelled splits of the official data in `data` (default: the location of the run's data)."""
        own = self.task_config
        with contextlib.nullcontext() if data else no_downloads():
            task = build_task(TaskConfig(own.name, data=data) if data else own)
            splits = [split for split in task.splits if split.startswith("test") or split == "ax"]
            if not splits:
                where = "Add the test file, or give another folder with --data." if data else "Give --data FOLDER."
                raise UserError(f"no test split in {task.source}: found only {', '.join(task.splits)}. {where}")
            found = [(split, task.read(split)) for split in splits]
        yield from found

    def _load_head(self, name: str) -> Head:
        """Load a head. Raise UserError if the encoder was fine-tuned again after the head was trained."""
        encoder = read_stamp(self.folder.encoder(self.epochs), EncoderStamp)
        head = read_stamp(self.folder.head(self.epochs, name), HeadStamp)
        if encoder is None or head is None or head.get("encoder", encoder["stamp"]) != encoder["stamp"]:
            raise UserError(
                f"head '{name}' in '{self.folder.path}' was not trained on the encoder that is in the folder now: "
                f"{self.folder.repair}."
            )
        found, _ = load_head(self.folder.head(self.epochs, name))
        if found.shape != self.encoder.shape or found.target != Target(self.task.kind, len(self.task.labels)):
            raise damaged(self.folder.head(self.epochs, name) / CONFIG, "it is a head for another encoder or task")
        return found.to(self.machine.device)


class Reporting(Protocol):
    reporter: Reporter


def in_batches(
    owner: Reporting,
    examples: Sequence[Example],
    predict: Callable[[list[Example]], list[Found]],
    one_bar: bool = False,
) -> Iterator[Found]:
    """The predictions of all examples, predicted a batch at a time. With `one_bar`, the owner's bars for single batches
    are not shown."""
    if not one_bar or len(examples) <= MOST_ROWS:
        for batch in batches_of(examples, MOST_ROWS):
            yield from predict(batch)
        return
    reporter = owner.reporter
    try:
        with reporter.bar("predicting", len(examples), "texts") as bar:
            owner.reporter = Reporter()
            for batch in batches_of(examples, MOST_ROWS):
                yield from predict(batch)
                bar.advance(len(batch))
    finally:
        owner.reporter = reporter


def check_choice(head: Any, epochs: Any = None) -> None:
    """Raise UserError for what can be no model of a run."""
    if head is not None and not isinstance(head, str):
        raise UserError(f"head must be the name of a model, or None, not {shorten(head)}.")
    if epochs is not None and (not isinstance(epochs, int | float) or not 0 <= epochs <= MOST_EPOCHS):
        raise UserError(f"epochs must be a number from 0 to {MOST_EPOCHS:,}, or None, not {shorten(epochs)}.")


def choose_model(run: FinishedRun, head: str | None, epochs: float | None) -> tuple[Model, str]:
    """Return the requested model and the reason for the choice. Default: the best at the last snapshot with heads."""
    at = run.last if epochs is None else epochs
    if not run.models(at):
        kept = ", ".join(f"{one:g}" for one in run.snapshots)
        raise UserError(f"the run has no snapshot at {counted(at, 'epoch')}, only at {kept}.")
    if head is not None:
        found = run.find(head, at)
        seeds = next(group.trained for group in run.groups(at) if group.name == found.group)
        return found, "as requested" if found.name == head else f"{run.reason}, out of {counted(len(seeds), 'seed')}"
    best = run.best_model(at)
    if best is None:
        raise UserError(
            f"no model in '{run.folder.path}' has scores at {counted(at, 'epoch')}: choose one with --head."
        )
    return best, run.reason


def members_of(model: Model) -> list[str]:
    """Return the names of the models to run: the model itself, or the members of an ensemble."""
    if not model.is_local:
        raise UserError(
            f"'{model.name}' has members from other runs or snapshots, but `predict` runs only one encoder: choose an "
            "ensemble within one snapshot, or one of its members."
        )
    return [member.name for member in model.members] or [model.name]
