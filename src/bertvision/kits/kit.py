"""A kit: an untouched encoder and a head for each of several tasks. A text goes through the encoder once, and all heads
say what they find in it, and how far to trust that.

    kit = bv.load("default")
    kit.predict(["A fine film."])                          every task that is about one text
    kit.predict([("Who wrote it?", "Ada wrote it.")])      every task

A kit is a folder: kit.json, and for each task a folder with its head (head.safetensors, config.json) and a card.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.data.examples import Example
from bertvision.data.windows import Features, build_features
from bertvision.disk import read_json
from bertvision.encoder.loading import identify, load_encoder
from bertvision.errors import UserError, suggest
from bertvision.heads import Head, load_head
from bertvision.kinds import Decoding, Predictions
from bertvision.kinds.base import Scores
from bertvision.kits.one_pass import HeadWindows, compute_in_one_pass
from bertvision.machine import Machine, sharing_cores
from bertvision.pipeline.begin import SHIPPED
from bertvision.pipeline.folder import restore_task
from bertvision.progress import Reporter
from bertvision.tasks import Task

FILE = "kit.json"

Pair = tuple[str, str | None]
Text = str | Pair


@dataclass(frozen=True)
class KitTask:
    """A task of a kit: its head, and what is known of it."""

    task: Task
    head: Head
    facts: dict[str, Any]
    """Whether it is about pairs, its threshold, scores, parameters, and how far to trust its answers."""

    @property
    def threshold(self) -> float:
        return float(self.facts["threshold"])


class Kit:
    def __init__(
        self,
        folder: Path,
        tasks: Iterable[str] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        reporter: Reporter | None = None,
    ) -> None:
        """`tasks` absent: all that the kit has."""
        found = read_json(folder / FILE)
        if found is None:
            raise UserError(f"'{folder}' is no kit: expected {FILE} in it, as `bertvision kit` writes it.")
        self.name, self.encoder_name = str(found["name"]), str(found["encoder"])
        wanted = self._check_tasks(tasks, found["tasks"])
        self.machine, self.reporter = Machine(device, dtype), reporter or Reporter()
        if identify(self.encoder_name) != found["encoder_stamp"]:
            raise UserError(
                f"kit '{self.name}' belongs to another '{self.encoder_name}' than the one that is there (weights, "
                "config or tokenizer): its heads would read what they were not trained on. Make the kit again, or "
                "bring the encoder back."
            )
        encoder = load_encoder(self.encoder_name, self.machine.device, self.machine.dtype, layers=found["layers"])
        self.encoder = encoder.eval().requires_grad_(False)
        self.tasks = {name: self._load(folder / name, found["tasks"][name]) for name in wanted}

    def _load(self, folder: Path, facts: dict[str, Any]) -> KitTask:
        head, _ = load_head(folder)
        assert head.shape == self.encoder.shape, "a head of a kit reads all that the kit's encoder gives"
        task = restore_task({"takes_pairs": facts["pairs"], **facts["task"]})
        return KitTask(task, head.to(self.machine.device), facts)

    def _check_tasks(self, wanted: Iterable[str] | None, known: Iterable[str]) -> list[str]:
        if isinstance(wanted, str) or (wanted is not None and not isinstance(wanted, Iterable)):
            raise UserError(f"tasks is a list of names, not '{wanted}': give ['{wanted}'].")
        names = [str(name) for name in (known if wanted is None else wanted)]
        if not names:
            raise UserError(f"no task is named: kit '{self.name}' has {', '.join(known)}.")
        for name in names:
            if name not in known:
                raise UserError(f"kit '{self.name}' has no task '{name}': {suggest(name, known)}")
        return names

    def predict(
        self, texts: Iterable[Text], tasks: Iterable[str] | None = None, ids: Sequence[str] | None = None
    ) -> list[dict[str, dict[str, Any]]]:
        """For each text, or pair of texts, a row of each task, by its name. Of a pair, tasks about one text are given
        the first; tasks about pairs leave single texts out. `ids` name the texts in errors; absent: numbers from 0."""
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

    def score(self, name: str, examples: list[Example]) -> Scores:
        """A task's figures on examples that have targets."""
        (name,) = self._check_tasks([name], self.tasks)
        if not examples:
            raise UserError(f"there are no examples to score {name} on.")
        own = self.tasks[name]
        predictions = self._predict({name: examples}, {name: self.build_features(name, examples)})[name]
        kind, threshold = own.task.kind, own.threshold if own.task.kind.has_threshold else None
        return kind.score(own.task.metrics, kind.example_results(predictions, examples), threshold)

    def _predict(
        self, examples: Mapping[str, list[Example]], features: Mapping[str, Features]
    ) -> dict[str, Predictions]:
        """What each task's head predicts for its own examples, from one pass over all of them."""
        asked = {name: HeadWindows(self.tasks[name].head, features[name]) for name in examples}
        with sharing_cores():
            outputs = compute_in_one_pass(self.encoder, asked, self.reporter)
        predictions = {}
        for name, some in examples.items():
            own = self.tasks[name]
            how = Decoding(own.facts["n_best"], own.facts["max_answer_tokens"])
            predictions[name] = own.task.kind.decode(own.task, outputs[name], features[name], some, how)
        return predictions

    def _choose(self, pairs: Sequence[Pair], names: list[str]) -> list[str]:
        """Those of the tasks that the texts are enough for."""
        has_pair = any(second is not None for _, second in pairs)
        able = [name for name in names if has_pair or not self.tasks[name].task.takes_pairs]
        if not able:
            raise UserError(
                f"{', '.join(names)}: about two texts: give both, --text QUESTION --text-pair PASSAGE "
                "(from Python a pair)."
            )
        return able

    def _examples(self, name: str, pairs: Sequence[Pair]) -> list[Example]:
        """The examples that a task is asked about, by their numbers."""
        if self.tasks[name].task.takes_pairs:
            return [Example(str(n), first, second) for n, (first, second) in enumerate(pairs) if second is not None]
        return [Example(str(n), first) for n, (first, _) in enumerate(pairs)]

    def _features(self, name: str, examples: list[Example], ids: Sequence[str] | None) -> Features:
        try:
            return self.build_features(name, examples)
        except UserError:  # its words are about the settings of a run, and a kit has none to change
            for example in examples:
                try:
                    self.build_features(name, [example])
                except UserError:
                    raise UserError(
                        f"{_called(int(example.id), ids)} is too long for {name}: its question leaves too little room "
                        f"for the passage in {self.tasks[name].facts['max_length']} tokens. Shorten the question, or "
                        f"leave {name} out (--tasks; from Python tasks=[…])."
                    ) from None
            raise

    def build_features(self, name: str, examples: list[Example]) -> Features:
        """A task's windows of its examples."""
        facts, task, tokenizer = self.tasks[name].facts, self.tasks[name].task, self.encoder.tokenizer
        assert tokenizer is not None
        return build_features(examples, tokenizer, task.kind, task.windowed, facts["max_length"], facts["overlap"])


def check_texts(texts: Iterable[Text], ids: Sequence[str] | None = None) -> list[Pair]:
    """Every text as a pair, the second None where there is none."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise UserError("texts to predict on are a list: give [text], or [(text, second text)].")
    texts = list(texts)
    if ids is not None and len(ids) != len(texts):
        raise UserError(f"there are {len(texts)} texts and {len(ids)} ids: give one for each.")
    pairs = []
    for number, text in enumerate(texts):
        match (text, None) if isinstance(text, str) else text:
            case [str() as first, str() | None as second]:
                pass
            case _:
                raise UserError(f"{_called(number, ids)} is neither a text nor a pair of texts: {text!r:.80}.")
        if not first.strip() or (second is not None and not second.strip()):
            raise UserError(f"{_called(number, ids)} is empty: give some text to predict on, of a pair both.")
        pairs.append((first, second))
    if not pairs:
        raise UserError("there is no text to predict on.")
    return pairs


def _called(number: int, ids: Sequence[str] | None) -> str:
    return f"text {number}" if ids is None else f"'{ids[number]}'"


def load(name: str | Path = "default", tasks: Iterable[str] | None = None, **settings: Any) -> Kit:
    """A kit that ships, by its name, or one of a folder."""
    return Kit(find_kit(name), tasks, **settings)


def find_kit(name: str | Path) -> Path:
    if not is_kit(name):
        known = ", ".join(shipped_kits())
        raise UserError(f"there is no kit '{name}': {known} ships; or give the folder of one, which has {FILE} in it.")
    return Path(name) if (Path(name) / FILE).is_file() else SHIPPED / str(name)


def shipped_kits() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{FILE}"))


def is_kit(name: str | Path) -> bool:
    return (Path(name) / FILE).is_file() or (SHIPPED / str(name) / FILE).is_file()
