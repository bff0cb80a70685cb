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
from bertvision.errors import UserError, suggest
from bertvision.heads import Head, load_head
from bertvision.kinds import Predictions
from bertvision.machine import Machine
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT, RunFolder
from bertvision.pipeline.outputs import compute_outputs
from bertvision.pipeline.snapshot import load_snapshot
from bertvision.progress import Reporter
from bertvision.tasks import Task, TaskConfig, build_task
from bertvision.tasks.base import restore_task
from bertvision.tasks.config import files_columns
from bertvision.tasks.glue import GLUE
from bertvision.tasks.new_text import read_new_text
from bertvision.threads import sharing_cores


class Predictor:
    """One model of a run, ready for new text. The run's data need not be there any more."""

    def __init__(
        self, folder: Path | str, head: str | None = None, epochs: float | None = None, reporter: Reporter | None = None
    ) -> None:
        """`head` absent: the model with the best held-out score; a name without its seed: the best of the seeds.
        "encoder" is the fine-tuned encoder itself; an ensemble goes by its name."""
        self.folder, self.reporter = RunFolder(folder), reporter or Reporter()
        config, task = read_json(self.folder.path / "config.json"), read_json(self.folder.path / "task.json")
        scores = read_json(self.folder.path / "scores.json")
        if config is None or task is None or scores is None:
            raise UserError(f"'{folder}' is not a finished run: expected config.json, task.json and scores.json in it.")
        self.task, self.scores = restore_task(task), scores
        self.task_config = TaskConfig(**config["task"])
        self.data, self.evaluate = DataConfig(**config["data"]), EvaluateConfig(**config["evaluate"])
        self.epochs, self.name = self._choose(head, epochs)
        names = self._members(self.name)
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
        found = self._facts()["scores"].get(HELD_OUT, {})
        return float(found.get("threshold", 0.0))

    @property
    def takes_pairs(self) -> bool:
        """Whether the run was trained on two texts an example."""
        return takes_pairs(self.task, self.task_config)

    def predict_texts(self, texts: list[Any], threshold: float | None = None) -> list[dict[str, Any]]:
        """Rows for strings, or (text, second text) pairs: (question, passage) where that is the task."""
        pairs = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
        examples = [Example(str(number), text, pair) for number, (text, pair) in enumerate(pairs)]
        for example in examples:
            self._check_typed(example)
        return self.predict(examples).rows(self.threshold if threshold is None else threshold)

    def _check_typed(self, example: Example) -> None:
        if not example.text.strip() or (example.text_pair is not None and not example.text_pair.strip()):
            raise UserError("a text to predict on is empty: give some.")
        if self.takes_pairs and example.text_pair is None:
            both = ("QUESTION", "PASSAGE") if self.task.windowed else ("TEXT", "TEXT")
            raise UserError(
                f"{self.task.name} is about two texts: give both, --text {both[0]} --text-pair {both[1]} "
                f"(from Python a pair: ({both[0].lower()}, {both[1].lower()}))."
            )
        if not self.takes_pairs and example.text_pair is not None:
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
        settings, facts = self.evaluate, self._facts()
        outputs = next(iter(found.values()))  # (token or window, output)
        if len(found) > 1:
            weights = np.array(facts["weights"]) if "weights" in facts else None
            outputs = task.kind.combine(list(found.values()), features, facts["method"], weights)
        return task.kind.decode(task, outputs, features, examples, settings.n_best, settings.max_answer_tokens)

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

    def _choose(self, head: str | None, epochs: float | None) -> tuple[float, str]:
        """The snapshot and model asked for; by default the last snapshot that has heads, and its best on held-out."""
        snapshots = self.scores["snapshots"]
        with_heads = [key for key, models in snapshots.items() if set(models) - {BASELINE, ENCODER}]
        place = f"{epochs:g}" if epochs is not None else (with_heads or list(snapshots))[-1]
        if place not in snapshots:
            raise UserError(f"the run has no snapshot of {place} epochs: it has {', '.join(snapshots)}.")
        models = {name: m for name, m in snapshots[place].items() if name != BASELINE and not m.get("failed")}
        self.why = "asked for"
        if head is None:
            # Weights that were fitted on held-out data can't be judged there.
            near = {n: m for n, m in models.items() if _is_near(m, float(place)) and m.get("method") != "fitted"}
            head = max(near, key=lambda name: self._held_out_score(models[name]))
            held = HELD_OUT in models[head]["scores"]
            self.why = "best on held-out training data" if held else "nothing was held out to choose by; give --head"
        seeds = {name: model for name, model in models.items() if model.get("group") == head}
        if head not in models and seeds:
            head = max(seeds, key=lambda name: self._held_out_score(seeds[name]))
            self.why = f"of {len(seeds)} seeds the best on held-out training data"
        if head not in models:
            raise UserError(f"the run has no model '{head}' at {place} epochs: {suggest(head, models)}")
        return float(place), head

    def _held_out_score(self, model: dict[str, Any]) -> float:
        """For spans at the chosen threshold, which is the one that answers are given at."""
        found = model["scores"].get(HELD_OUT, {})
        return float(found.get("at_threshold", found).get(self.task.metrics[0], 0.0))

    def _facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.scores["snapshots"][f"{self.epochs:g}"][self.name]
        return found

    def _members(self, name: str) -> list[str]:
        """The models that answer: one, or those of an ensemble."""
        facts = self._facts()
        if "ensemble" not in facts:
            return [name]
        if not _is_near(facts, self.epochs):
            raise UserError(
                f"'{name}' has members of other runs or snapshots, and new text goes through one encoder: name an "
                "ensemble of one snapshot, or one of its members."
            )
        return [voice["name"] for voice in facts["voices"]]

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


def takes_pairs(task: Task, config: TaskConfig) -> bool:
    """Whether a task is about two texts an example."""
    if task.name in GLUE:
        return GLUE[task.name].text_pair is not None
    return task.windowed or config.text_pair is not None


def _is_near(facts: dict[str, Any], epochs: float) -> bool:
    """Whether a model needs no other encoder than that of its snapshot."""
    return all(voice["run"] is None and voice["epochs"] == epochs for voice in facts.get("voices", []))
