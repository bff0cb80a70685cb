"""A kit: one untouched encoder with a head for each of several tasks. A text goes through the encoder once. Every head
then predicts from its hidden states, and every prediction comes with its trust.

    kit = bv.load("default")
    kit.predict(["A fine film."])                          tasks on single texts
    kit.predict([("Who wrote it?", "Ada wrote it.")])      all tasks

A kit is a folder with kit.json, and for each task a folder with a head (head.safetensors, config.json) and its card.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from bertvision.data.examples import Example
from bertvision.data.texts import Pair, Text, blank, call, check_texts, too_long
from bertvision.data.windows import Features, build_features
from bertvision.disk import as_form, as_path, damaged, inside, plain_name, read_json
from bertvision.disk.forms import Count, Few, Figures, Layer, Name, Seed, Share, Tokens
from bertvision.encoder.loading import identify, load_encoder
from bertvision.errors import UserError, suggest
from bertvision.heads import Head, Target, load_head
from bertvision.heads.base import CONFIG
from bertvision.kinds import Decoding, Predictions, kind_in
from bertvision.kinds.base import Scores
from bertvision.kits.one_pass import HeadWindows, compute_in_one_pass
from bertvision.machine import Machine, sharing_cores
from bertvision.network import no_downloads
from bertvision.pipeline.begin import SHIPPED
from bertvision.pipeline.folder import TaskFacts, check_format, restore_task
from bertvision.pipeline.snapshot import compute_outputs
from bertvision.progress import Reporter
from bertvision.tasks import Task

FILE, FORMAT = "kit.json", 1


class KitTaskFile(TypedDict):
    """A task in kit.json."""

    task: TaskFacts
    pairs: bool
    max_length: Tokens
    overlap: Count
    n_best: Few
    max_answer_tokens: Tokens
    threshold: float
    head: Name
    parameters: Count
    share: Share | None
    scores: dict[Name, Figures]
    seed: Seed
    hold_out: NotRequired[float]
    """The share that was held out in training, if the run's settings had one."""
    beside: NotRequired[dict[Name, dict[Name, Figures]]]
    """Scores of the baseline and the control, for the card."""
    trust: dict[str, Any]
    """Of the form of the task's kind."""


class KitFile(TypedDict):
    """kit.json."""

    format: NotRequired[int]
    """1 where it is missing."""
    name: str
    encoder: str
    encoder_stamp: str
    layers: Annotated[list[Layer], Meta(min_length=1, max_length=1001)] | None
    tasks: Annotated[dict[Name, KitTaskFile], Meta(min_length=1)]


def read_kit_file(folder: Path) -> KitFile | None:
    """The contents of kit.json; None if there is none."""
    path = inside(folder, FILE)
    found = read_json(path, KitFile)
    if found is None:
        return None
    check_format(folder, found.get("format", FORMAT), FORMAT, "build the kit again (`bertvision kit`)")
    for name, facts in found["tasks"].items():
        plain_name(name, f"a task in {path}")
        kind = kind_in(path, facts["task"]["kind"])
        if not math.isfinite(facts["threshold"]):
            raise damaged(path, f"tasks.{name}.threshold: expected a number")
        try:
            as_form(facts["trust"], kind.trust_form)
        except ValueError as error:
            raise damaged(path, f"tasks.{name}.trust: {error}") from None
    return found


@dataclass(frozen=True)
class KitTask:
    """A task of a kit, with its head."""

    task: Task
    head: Head
    facts: KitTaskFile
    """The task's entry in kit.json: threshold, lengths, scores, parameters, trust."""

    @property
    def threshold(self) -> float:
        return self.facts["threshold"]


class Kit:
    """A loaded kit: an encoder, and a head for each task. `bv.load` returns one."""

    @no_downloads()
    def __init__(
        self,
        folder: Path,
        tasks: Iterable[str] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        reporter: Reporter | None = None,
    ) -> None:
        """Load a kit from a folder. `tasks` selects its tasks (default: all)."""
        found = read_kit_file(folder)
        if found is None:
            raise UserError(f"'{folder}' is not a kit: it has no {FILE}. `bertvision kit` creates kits.")
        self.name, self.encoder_name = found["name"], found["encoder"]
        wanted = self._check_tasks(tasks, found["tasks"])
        self.machine, self.reporter = Machine(device, dtype), reporter or Reporter()
        if identify(self.encoder_name) != found["encoder_stamp"]:
            raise UserError(
                f"kit '{self.name}' was trained on a different version of '{self.encoder_name}': the weights, config "
                "or tokenizer differ. Rebuild the kit, or restore the original encoder."
            )
        encoder = load_encoder(self.encoder_name, self.machine.device, self.machine.dtype, layers=found["layers"])
        self.encoder = encoder.eval().requires_grad_(False)
        self.tasks = {name: self._load(inside(folder, name), found["tasks"][name]) for name in wanted}

    def _load(self, folder: Path, facts: KitTaskFile) -> KitTask:
        head, _ = load_head(folder)
        task = restore_task(facts["task"], facts["pairs"])
        if head.shape != self.encoder.shape or head.target != Target(task.kind, len(task.labels)):
            raise damaged(folder / CONFIG, "it is a head for another encoder or task")
        return KitTask(task, head.to(self.machine.device), facts)

    def _check_tasks(self, wanted: Iterable[str] | None, known: Iterable[str]) -> list[str]:
        if isinstance(wanted, str) or (wanted is not None and not isinstance(wanted, Iterable)):
            raise UserError(f"tasks must be a list of names, not '{wanted}': pass ['{wanted}'].")
        names = [str(name) for name in (known if wanted is None else wanted)]
        if not names:
            raise UserError(f"no task selected: kit '{self.name}' has {', '.join(known)}.")
        for name in names:
            if name not in known:
                raise UserError(f"kit '{self.name}' has no task '{name}': {suggest(name, known)}")
        return names

    def predict(
        self, texts: Iterable[Text], tasks: Iterable[str] | None = None, ids: Sequence[str] | None = None
    ) -> list[dict[str, dict[str, Any]]]:
        """Predict every task on every text or pair of texts. Return one dict per text: task → prediction with `trust`.

        Tasks on single texts read the first text of a pair. Tasks on pairs skip single texts. `ids` name the texts in
        error messages (default: numbers from 0).
        """
        pairs = check_texts(texts, ids)
        asked = self._choose(pairs, self._check_tasks(tasks, self.tasks))
        examples = {name: self._examples(name, pairs) for name in asked}
        predictions = self._predict(examples, {name: self._features(name, examples[name], ids) for name in asked})
        found: list[dict[str, dict[str, Any]]] = [{} for _ in pairs]
        for name in asked:
            own = self.tasks[name]
            for row in predictions[name].rows(own.threshold):
                number = int(row.pop("id"))
                found[number][name] = {**row, "trust": own.task.kind.trust_row(row, own.facts["trust"], own.threshold)}
        return found

    def predict_rows(self, pairs: Sequence[Pair], tasks: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Like `predict`, but a text that can't be predicted gets {"error": sentence}, and the others are predicted all
        the same."""
        names = self._choose(pairs, self._check_tasks(tasks, self.tasks))
        errors = {number: problem for number, pair in enumerate(pairs) if (problem := blank(*pair))}
        good = [number for number in range(len(pairs)) if number not in errors]
        try:
            rows = self.predict([pairs[number] for number in good], names) if good else []
        except UserError:
            errors |= self._too_long(names, {number: pairs[number] for number in good})
            if not any(number in errors for number in good):
                raise
            good = [number for number in good if number not in errors]
            rows = self.predict([pairs[number] for number in good], names) if good else []
        found: dict[int, dict[str, Any]] = dict(zip(good, rows, strict=True))
        return [found[number] if number in found else {"error": errors[number]} for number in range(len(pairs))]

    def score(self, name: str, examples: list[Example]) -> Scores:
        """Score a task's head on examples with targets."""
        (name,) = self._check_tasks([name], self.tasks)
        if not examples:
            raise UserError(f"no examples to score {name} on.")
        own = self.tasks[name]
        predictions = self._predict({name: examples}, {name: self.build_features(name, examples)})[name]
        kind, threshold = own.task.kind, own.threshold if own.task.kind.has_threshold else None
        return kind.score(own.task.metrics, kind.example_results(predictions, examples), threshold)

    def _predict(
        self, examples: Mapping[str, list[Example]], features: Mapping[str, Features]
    ) -> dict[str, Predictions]:
        """Predict each task on its own examples, in one pass of the encoder over all of them."""
        asked = {name: HeadWindows(self.tasks[name].head, features[name]) for name in examples}
        tokens = sum(int(own.lengths.sum()) for own in features.values())
        together = {name: one for name, one in asked.items() if one.shares_pass}
        with sharing_cores(tokens, self.reporter):
            outputs = compute_in_one_pass(self.encoder, together, self.reporter) if together else {}
            for name in asked.keys() - together.keys():
                head, kind = asked[name].head, self.tasks[name].task.kind
                outputs |= compute_outputs(self.encoder, {name: head}, features[name], kind, self.machine)
        predictions = {}
        for name, some in examples.items():
            own = self.tasks[name]
            how = Decoding(own.facts["n_best"], own.facts["max_answer_tokens"])
            predictions[name] = own.task.kind.decode(own.task, outputs[name], features[name], some, how)
        return predictions

    def _choose(self, pairs: Sequence[Pair], names: list[str]) -> list[str]:
        """Return the tasks that can be predicted on these texts: without any pair, those on single texts."""
        has_pair = any(second is not None for _, second in pairs)
        able = [name for name in names if has_pair or not self.tasks[name].task.takes_pairs]
        if not able:
            raise UserError(
                f"two texts are needed for {', '.join(names)}: give --text QUESTION --text-pair PASSAGE (in Python, "
                "pass a pair)."
            )
        return able

    def _examples(self, name: str, pairs: Sequence[Pair]) -> list[Example]:
        """Return the examples for a task, with their positions in the input as ids."""
        if self.tasks[name].task.takes_pairs:
            return [Example(str(n), first, second) for n, (first, second) in enumerate(pairs) if second is not None]
        return [Example(str(n), first) for n, (first, _) in enumerate(pairs)]

    def _features(self, name: str, examples: list[Example], ids: Sequence[str] | None) -> Features:
        try:
            return self.build_features(name, examples)
        except UserError:  # the message suggests changing a run's settings, which a kit does not have
            for example in examples:
                if not self._fits(name, example):
                    raise UserError(
                        f"{call(int(example.id), ids)} is too long for {name}: the question leaves too little room "
                        f"for the passage in {self.tasks[name].facts['max_length']} tokens. Shorten the question, or "
                        f"leave out {name} (--tasks; in Python, tasks=[…])."
                    ) from None
            raise

    def _fits(self, name: str, example: Example) -> bool:
        try:
            self.build_features(name, [example])
        except UserError:
            return False
        return True

    def _too_long(self, names: list[str], pairs: Mapping[int, Pair]) -> dict[int, str]:
        """The errors of texts that are too long for one of the tasks."""
        return {
            number: too_long(self.tasks[name].facts["max_length"], name)
            for name in names
            if self.tasks[name].task.windowed
            for number, pair in pairs.items()
            if not self._fits(name, Example(str(number), *pair))
        }

    def build_features(self, name: str, examples: list[Example]) -> Features:
        """Split a task's examples into windows."""
        facts, task, tokenizer = self.tasks[name].facts, self.tasks[name].task, self.encoder.tokenizer
        assert tokenizer is not None
        return build_features(examples, tokenizer, task.kind, task.windowed, facts["max_length"], facts["overlap"])


def load(name: str | Path = "default", tasks: Iterable[str] | None = None, **settings: Any) -> Kit:
    """Load a shipped kit by name, or any kit from its folder.

    `tasks` selects its tasks (default: all). `settings` are `device` and `dtype` (default: "auto").
    """
    return Kit(find_kit(name), tasks, **settings)


def find_kit(name: str | Path) -> Path:
    as_path(name, "the kit")  # raises for what is no path
    if not is_kit(name):
        known = ", ".join(shipped_kits())
        raise UserError(f"no kit '{name}': give a shipped kit ({known}) or a folder with {FILE} in it.")
    return Path(name) if os.path.isfile(Path(name) / FILE) else SHIPPED / str(name)


def shipped_kits() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{FILE}"))


def is_kit(name: str | Path) -> bool:
    return os.path.isfile(Path(name) / FILE) or os.path.isfile(SHIPPED / str(name) / FILE)
