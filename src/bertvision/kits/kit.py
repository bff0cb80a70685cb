"""A kit: one untouched encoder with a head for each of several tasks. A text goes through the encoder once. Every head
then predicts from its hidden states, and every prediction comes with its trust.

    kit = bv.load("default")
    kit.predict("A fine film.")                            {task: result} of the tasks on single texts
    kit.predict(("Who wrote it?", "Ada wrote it."))        of all tasks

A kit is a folder with kit.json, and for each task a folder with a head (head.safetensors, config.json) and its card.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, Self, TypedDict

import numpy as np
from msgspec import Meta

from bertvision.data.examples import Example
from bertvision.data.texts import Pair, blank, call, is_alone, read_texts, too_long
from bertvision.data.windows import Features, build_features
from bertvision.disk import as_form, as_path, check_files, damaged, inside, plain_name, read_json
from bertvision.disk.forms import Count, Few, Figures, Layer, Name, Seed, Share, Tokens
from bertvision.encoder.loading import identify
from bertvision.encoder.shared import shared_encoder
from bertvision.errors import UserError, suggest
from bertvision.heads import Head, Target, load_head
from bertvision.heads.base import CONFIG
from bertvision.hub import Pushable, is_hub_name, pull
from bertvision.kinds import Decoding, Predictions, Result, kind_in
from bertvision.kinds.base import Scores
from bertvision.kits.folder import FILE, FORMAT, OWN_ENCODER, find_kit
from bertvision.kits.one_pass import HeadWindows, compute_in_one_pass
from bertvision.machine import Machine, sharing_cores
from bertvision.network import no_downloads
from bertvision.pipeline.folder import TaskFacts, check_format, restore_task
from bertvision.pipeline.predict import in_batches
from bertvision.pipeline.snapshot import compute_outputs
from bertvision.pipeline.text_states import text_states
from bertvision.progress import Reporter
from bertvision.tasks import Task


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
    own_encoder: NotRequired[bool]
    """Whether the encoder is in the kit's own folder; `encoder` is then only its title."""
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


class KitResult(dict[str, Result]):
    """The results of all tasks for one text: task → result."""

    def to_dict(self) -> dict[str, Any]:
        return {task: result.to_dict() for task, result in self.items()}

    def _repr_html_(self) -> str:
        return "".join(result._repr_html_() for result in self.values())


class Kit(Pushable):
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
        self.folder, self.name, self.encoder_title = folder, found["name"], found["encoder"]
        self.encoder_name, self.encoder_stamp = found["encoder"], found["encoder_stamp"]
        self.layers = found["layers"]
        wanted = self._check_tasks(tasks, found["tasks"])
        self.machine, self.reporter = Machine(device, dtype), reporter or Reporter()
        if found.get("own_encoder"):
            check_files(inside(folder, OWN_ENCODER))
            self.encoder_name = str(inside(folder, OWN_ENCODER))
        if identify(self.encoder_name) != self.encoder_stamp:
            raise UserError(
                f"kit '{self.name}' was trained on a different version of '{self.encoder_title}': the weights, config "
                "or tokenizer differ. Rebuild the kit, or restore the original encoder."
            )
        self.encoder = shared_encoder(self.encoder_name, self.machine.device, self.machine.dtype, layers=self.layers)
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

    def predict(self, texts: Any, tasks: Iterable[str] | None = None, ids: Sequence[str] | None = None) -> Any:
        """Predict every task on texts: a list gives a list of {task: result}, one text or pair gives one.

        A pair is a tuple (question, passage), or a mapping with `question` and `passage` or `text` and `text_pair`.
        Tasks on single texts read the first text of a pair. Tasks on pairs skip single texts. `ids` name the texts in
        error messages (default: numbers from 0).
        """
        found = self._predict_pairs(read_texts(texts, ids), self._check_tasks(tasks, self.tasks), ids)
        return found[0] if is_alone(texts) else found

    def _predict_pairs(
        self, pairs: Sequence[Pair], names: list[str], ids: Sequence[str] | None = None
    ) -> list[KitResult]:
        if not pairs:
            return []
        asked = self._choose(pairs, names)
        examples = {name: self._examples(name, pairs) for name in asked}
        predictions = self._predict(examples, {name: self._features(name, examples[name], ids) for name in asked})
        found = [KitResult() for _ in pairs]
        for name, some in examples.items():
            own = self.tasks[name]
            results = own.task.kind.to_results(predictions[name], some, name, own.facts["trust"], own.threshold)
            for example, result in zip(some, results, strict=True):
                found[int(example.id)][name] = result
        return found

    def predict_examples(
        self, examples: Sequence[Example], tasks: Iterable[str] | None = None
    ) -> list[KitResult | dict[str, str]]:
        """Like `predict`, but a text that can't be predicted gets {"error": sentence}, and the others are predicted all
        the same."""
        pairs = [(one.text, one.text_pair) for one in examples]
        names = self._choose(pairs, self._check_tasks(tasks, self.tasks))
        errors = {number: problem for number, pair in enumerate(pairs) if (problem := blank(*pair))}
        good = [number for number in range(len(pairs)) if number not in errors]
        try:
            results = self._predict_pairs([pairs[number] for number in good], names)
        except UserError:
            errors |= self._too_long(names, {number: pairs[number] for number in good})
            if not any(number in errors for number in good):
                raise
            good = [number for number in good if number not in errors]
            results = self._predict_pairs([pairs[number] for number in good], names)
        found: dict[int, KitResult] = dict(zip(good, results, strict=True))
        return [found[number] if number in found else {"error": errors[number]} for number in range(len(pairs))]

    def predict_file(
        self, examples: Sequence[Example], one_bar: bool = False
    ) -> Iterator["KitResult | dict[str, str]"]:
        """`predict_examples` in batches: memory stays the same however many there are. With `one_bar`, one bar shows
        the progress of all; nothing may be printed meanwhile."""
        return in_batches(self, examples, self.predict_examples, one_bar)

    def states(self, texts: Any, read: str = "tokens") -> "np.ndarray | list[np.ndarray]":
        """The hidden states of each text, or of one, as float32: (token, layer, hidden), layer 0 being the embeddings.
        With `read` "cls" or "mean": (layer, hidden). Texts are cut at the longest length of the kit's tasks."""
        examples = [Example(str(number), *pair) for number, pair in enumerate(read_texts(texts))]
        longest = max(own.facts["max_length"] for own in self.tasks.values())
        found = text_states(self.encoder, examples, longest, read, self.reporter) if examples else []
        return found[0] if is_alone(texts) else found

    def save_pretrained(self, folder: Path | str, **sharing: Any) -> Path:
        """Save the loaded tasks to a new or empty folder, which `bv.load` reads on any machine. `sharing`: `license`
        and `datasets`, for the card."""
        from bertvision.kits.share import save_kit
        from bertvision.report.hub_card import Sharing

        return save_kit(self, as_path(folder, "the folder"), sharing=Sharing(**sharing))

    def _push(self, name: str, license: str | None, datasets: Sequence[str], **settings: Any) -> str:
        from bertvision.kits.share import push_kit
        from bertvision.report.hub_card import Sharing

        return push_kit(self, name, Sharing(license, datasets), **settings)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, token: str | None = None, **settings: Any
    ) -> Self:
        """Open a kit from a folder, or from the hub by its name. `settings` are those of `Kit`."""
        return cls(pull(name, (FILE,), revision, token) if is_hub_name(name) else find_kit(name), **settings)

    def __repr__(self) -> str:
        return f"<Kit {self.name}: {', '.join(self.tasks)} on {self.encoder_title}>"

    def score(self, name: str, examples: Sequence[Example]) -> Scores:
        """Score a task's head on examples with targets."""
        (name,) = self._check_tasks([name], self.tasks)
        if not examples:
            raise UserError(f"no examples to score {name} on.")
        own = self.tasks[name]
        predictions = self._predict({name: examples}, {name: self.build_features(name, examples)})[name]
        kind, threshold = own.task.kind, own.threshold if own.task.kind.has_threshold else None
        return kind.score(own.task.metrics, kind.example_results(predictions, examples), threshold)

    def _predict(
        self, examples: Mapping[str, Sequence[Example]], features: Mapping[str, Features]
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

    def _features(self, name: str, examples: Sequence[Example], ids: Sequence[str] | None) -> Features:
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

    def build_features(self, name: str, examples: Sequence[Example]) -> Features:
        """Split a task's examples into windows."""
        facts, task, tokenizer = self.tasks[name].facts, self.tasks[name].task, self.encoder.tokenizer
        assert tokenizer is not None
        return build_features(examples, tokenizer, task.kind, task.windowed, facts["max_length"], facts["overlap"])
