"""A kit: an untouched encoder and a head for each of several tasks. A text goes through the encoder once, and all heads
say what they find in it, and how far to trust that.

    kit = bv.load("default")
    kit.predict(["A fine film."])                          every task that is about one text
    kit.predict([("Who wrote it?", "Ada wrote it.")])      every task

A kit is a folder: kit.json, and for each task a folder with its head (head.safetensors, config.json) and a card.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.data.windows import build_features
from bertvision.encoder.loading import load_encoder, weights_stamp
from bertvision.errors import UserError, suggest
from bertvision.evaluation.predictions import build_predictions
from bertvision.heads import Head, load_head
from bertvision.kits.one_pass import Asked, compute_all
from bertvision.kits.trust import trust_in
from bertvision.machine import Machine
from bertvision.progress import Reporter
from bertvision.rundir import read_json
from bertvision.tasks import Example, Task
from bertvision.tasks.base import restore_task

FILE = "kit.json"
SHIPPED = Path(__file__).parent / "shipped"
ALL = "all"

Text = str | tuple[str, str]


@dataclass(frozen=True)
class KitTask:
    """A task of a kit: its head, and what is known of it."""

    task: Task
    head: Head
    facts: dict[str, Any]
    """Whether it is about pairs, its threshold, scores, parameters, and how far to trust its answers."""

    @property
    def takes_pairs(self) -> bool:
        return bool(self.facts["pairs"])

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
        wanted = list(found["tasks"]) if tasks is None else list(tasks)
        for name in wanted:
            if name not in found["tasks"]:
                raise UserError(f"kit '{self.name}' has no task '{name}': {suggest(name, found['tasks'])}")
        self.machine, self.reporter = Machine(device, dtype), reporter or Reporter()
        if weights_stamp(self.encoder_name) != found["encoder_stamp"]:
            raise UserError(
                f"kit '{self.name}' belongs to other weights of '{self.encoder_name}' than those that are there: its "
                "heads would read what they were not trained on. Make the kit again, or bring the encoder back."
            )
        encoder = load_encoder(self.encoder_name, self.machine.device, self.machine.dtype)
        self.encoder = encoder.eval().requires_grad_(False)
        self.tasks = {name: self._load(folder / name, found["tasks"][name]) for name in wanted}

    def _load(self, folder: Path, facts: dict[str, Any]) -> KitTask:
        head, _ = load_head(folder)
        return KitTask(restore_task(facts["task"]), head.to(self.machine.device), facts)

    def predict(self, texts: Sequence[Text], tasks: Iterable[str] | None = None) -> list[dict[str, dict[str, Any]]]:
        """For each text, or pair of texts, a row of each task, by its name. Of a pair, tasks about one text are given
        the first; tasks about pairs leave single texts out."""
        asked = self._choose(texts, self.tasks if tasks is None else tasks)
        examples = {name: self._examples(name, texts) for name in asked}
        features = {name: self._features(name, examples[name]) for name in asked}
        questions = {name: Asked(self.tasks[name].head, features[name]) for name in asked}
        # Tokens of all tasks, though sequences that several ask about go through once: a bar that ends early.
        total = sum(int(one.lengths.sum()) for one in features.values())
        with self.reporter.bar("predicting", total, "tokens") as bar:
            outputs = compute_all(self.encoder, questions, bar=bar)
        found: list[dict[str, dict[str, Any]]] = [{} for _ in texts]
        for name in asked:
            own = self.tasks[name]
            n_best, longest = own.facts["n_best"], own.facts["max_answer_tokens"]
            said = build_predictions(own.task, outputs[name], features[name], examples[name], n_best, longest)
            for row in said.rows(own.threshold):
                number = int(row.pop("id"))
                found[number][name] = {**row, "trust": trust_in(row, own.facts["trust"], own.threshold)}
        return found

    def _choose(self, texts: Sequence[Text], wanted: Iterable[str]) -> list[str]:
        if not texts:
            raise UserError("there is no text to predict on.")
        for text in texts:
            if any(not part.strip() for part in ([text] if isinstance(text, str) else text)):
                raise UserError("a text to predict on is empty: give some.")
        names = list(wanted)
        for name in names:
            if name not in self.tasks:
                raise UserError(f"kit '{self.name}' has no task '{name}': {suggest(name, self.tasks)}")
        able = [
            name for name in names if not self.tasks[name].takes_pairs or any(not isinstance(t, str) for t in texts)
        ]
        if not able:
            raise UserError(
                f"{', '.join(names)}: about two texts: give both, --text QUESTION --text-pair PASSAGE "
                "(from Python a pair)."
            )
        return able

    def _examples(self, name: str, texts: Sequence[Text]) -> list[Example]:
        found = []
        for number, text in enumerate(texts):
            first, second = (text, None) if isinstance(text, str) else text
            if self.tasks[name].takes_pairs:
                if second is not None:
                    found.append(Example(str(number), first, second))
            else:
                found.append(Example(str(number), first))
        return found

    def _features(self, name: str, examples: list[Example]) -> Any:
        facts, task, tokenizer = self.tasks[name].facts, self.tasks[name].task, self.encoder.tokenizer
        assert tokenizer is not None
        return build_features(examples, tokenizer, task.kind, task.windowed, facts["max_length"], facts["overlap"])


def load(name: str | Path = "default", tasks: Iterable[str] | None = None, **settings: Any) -> Kit:
    """A kit that ships, by its name, or one of a folder."""
    return Kit(find_kit(name), tasks, **settings)


def find_kit(name: str | Path) -> Path:
    shipped = SHIPPED / str(name)
    if (shipped / FILE).is_file() and not (Path(name) / FILE).is_file():
        return shipped
    if not (Path(name) / FILE).is_file():
        there = sorted(path.parent.name for path in SHIPPED.glob(f"*/{FILE}"))
        known = f"kits that ship: {', '.join(there)}" if there else "none ships"
        raise UserError(f"there is no kit '{name}': {known}; or give the folder of one, which has {FILE} in it.")
    return Path(name)


def is_kit(name: str | Path) -> bool:
    return (Path(name) / FILE).is_file() or (SHIPPED / str(name) / FILE).is_file()
