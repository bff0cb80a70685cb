"""What a trained run says of new text: an answer with its place, a label with probabilities, or a score."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.config import DataConfig, EncoderConfig, EvaluateConfig
from bertvision.data.examples import Example
from bertvision.data.windows import build_features
from bertvision.disk import read_json
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads import Head, load_head
from bertvision.kinds import Decoding, Predictions
from bertvision.machine import Machine, sharing_cores
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.pipeline.folder import ENCODER
from bertvision.pipeline.snapshot import compute_outputs, load_snapshot
from bertvision.progress import Reporter
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.config import files_columns
from bertvision.tasks.new_text import read_new_text


class Predictor:
    """One model of a run, ready for new text. The run's data need not be there any more."""

    def __init__(
        self, folder: Path | str, head: str | None = None, epochs: float | None = None, reporter: Reporter | None = None
    ) -> None:
        """`head` absent: the run's best on held-out data; a name without its seed: the best of the seeds.
        "encoder" is the fine-tuned encoder alone; an ensemble goes by its name."""
        self.run, self.reporter = FinishedRun(folder), reporter or Reporter()
        self.task, config = self.run.task, self.run.config
        self.task_config = TaskConfig(**config["task"])
        self.data, self.evaluate = DataConfig(**config["data"]), EvaluateConfig(**config["evaluate"])
        self.model, self.why = _choose(self.run, head, epochs)
        self.folder, self.epochs, self.name = self.run.folder, self.model.epochs, self.model.name
        names = _members(self.model)
        # A head reads the layers it was trained on: the config may have been given others since.
        trained = [read_json(self.folder.head(self.epochs, name) / "stamp.json") or {} for name in names]
        layers = next((stamp["layers"] for stamp in trained if "layers" in stamp), None)
        encoder = dataclasses.replace(EncoderConfig(**config["encoder"]), layers=layers)
        self.machine = Machine(encoder.device, encoder.dtype)
        self.encoder, output = load_snapshot(self.folder.encoder(self.epochs), encoder, self.machine)
        self.models: dict[str, Any] = {}
        keep: set[Part] = set()
        for name in names:
            self.models[name] = output if name == ENCODER else self._load_head(name)
            keep.update(output.keep if name == ENCODER else (self.models[name].reads,))
        self.keep = tuple(sorted(keep))

    @property
    def threshold(self) -> float:
        """The no-answer threshold chosen on held-out questions, 0 where none was."""
        return float(self.model.threshold or 0.0)

    @property
    def takes_pairs(self) -> bool:
        """Whether the run was trained on two texts an example."""
        return self.task.takes_pairs

    def predict_texts(self, texts: list[Any], threshold: float | None = None) -> list[dict[str, Any]]:
        """Rows for strings, or (text, second text) pairs: (question, passage) where that is the task."""
        pairs = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
        examples = [Example(str(number), text, pair) for number, (text, pair) in enumerate(pairs)]
        for example in examples:
            self._check_typed(example)
        return list(self.predict(examples).rows(self.threshold if threshold is None else threshold))

    def _check_typed(self, example: Example) -> None:
        if not example.text.strip() or (example.text_pair is not None and not example.text_pair.strip()):
            raise UserError("a text to predict on is empty: give some.")
        if self.task.takes_pairs and example.text_pair is None:
            both = ("QUESTION", "PASSAGE") if self.task.windowed else ("TEXT", "TEXT")
            raise UserError(
                f"{self.task.name} is about two texts: give both, --text {both[0]} --text-pair {both[1]} "
                f"(from Python a pair: ({both[0].lower()}, {both[1].lower()}))."
            )
        if not self.task.takes_pairs and example.text_pair is not None:
            raise UserError(f"this run was trained on single texts ({self.task.name}): give no second one.")

    def predict(self, examples: list[Example]) -> Predictions:
        """Predictions for examples, targets left aside, in their order."""
        if not examples:
            raise UserError("there is no text to predict on.")
        task, length, tokenizer = self.task, self.data.max_length or self.task.max_length, self.encoder.tokenizer
        assert tokenizer is not None
        features = build_features(examples, tokenizer, task.kind, task.windowed, length, self.data.overlap)
        with sharing_cores(), self.reporter.bar("predicting", int(features.lengths.sum()), "tokens") as bar:
            found = compute_outputs(self.encoder, self.models, self.keep, features, task.kind, self.machine, bar=bar)
        outputs = next(iter(found.values()))  # (token or window, output)
        if len(found) > 1:
            assert self.model.method is not None, "several models answer as an ensemble only"
            weights = None if self.model.weights is None else np.array(self.model.weights)  # (member)
            outputs = task.kind.combine(list(found.values()), features, self.model.method, weights)
        how = Decoding(self.evaluate.n_best, self.evaluate.max_answer_tokens)
        return task.kind.decode(task, outputs, features, examples, how)

    def read(self, path: Path) -> list[Example]:
        """New text from a file in any form the run's task can have."""
        return read_new_text(self.task, path, files_columns(self.task_config))

    def test_splits(self, data: str | None) -> Iterator[tuple[str, list[Example]]]:
        """The unlabelled splits of the official data in `data` (absent: where the run's own data was)."""
        own = self.task_config
        task = build_task(TaskConfig(own.name, data=data) if data else own)
        splits = [split for split in task.splits if split.startswith("test") or split == "ax"]
        if not splits:
            raise UserError(f"no test split in {task.source}: it has {', '.join(task.splits)}. Give --data FOLDER.")
        yield from ((split, task.read(split)) for split in splits)

    def _load_head(self, name: str) -> Head:
        """A head, which belongs to the weights it was trained on: fine-tuning may have been done anew since."""
        encoder = read_json(self.folder.encoder(self.epochs) / "stamp.json")
        head = read_json(self.folder.head(self.epochs, name) / "stamp.json")
        if encoder is None or head is None or head.get("encoder", encoder["stamp"]) != encoder["stamp"]:
            raise UserError(
                f"head '{name}' in '{self.folder.path}' was not trained on the encoder that is there now: "
                f"`bertvision run {self.folder.path}` brings the run up to date."
            )
        return load_head(self.folder.head(self.epochs, name))[0].to(self.machine.device)


def _choose(run: FinishedRun, head: str | None, epochs: float | None) -> tuple[Model, str]:
    """The model asked for, and why it is this one; by default the best at the last snapshot that has heads."""
    at = run.last if epochs is None else epochs
    if not run.models(at):
        kept = ", ".join(f"{one:g}" for one in run.snapshots)
        raise UserError(f"the run has no snapshot of {at:g} epochs: it has {kept}.")
    if head is not None:
        found = run.find(head, at)
        seeds = next(group.trained for group in run.groups(at) if group.name == found.group)
        return found, "asked for" if found.name == head else f"{run.reason} (of {len(seeds)} seeds)"
    best = run.best_model(at)
    if best is None:
        raise UserError(f"no model of '{run.folder.path}' was scored at {at:g} epochs: name one with --head.")
    return best, run.reason


def _members(model: Model) -> list[str]:
    """The models that answer: one, or those of an ensemble."""
    if not model.is_local:
        raise UserError(
            f"'{model.name}' has members of other runs or snapshots, and new text goes through one encoder: name an "
            "ensemble of one snapshot, or one of its members."
        )
    return [member.name for member in model.members] or [model.name]
