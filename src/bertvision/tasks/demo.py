"""The demo corpus: seeded, synthetic reading comprehension in SQuAD 2.0 format.

    build_corpus("train", 3000) → {"version": …, "data": [{"title", "paragraphs": [{"context", "qas"}]}]}

A passage is about two entities of one sort, so that the type of an answer never reveals which one is meant. Names,
values and wordings are in demo_corpus.toml.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import count, islice
from random import Random
from typing import Any

from bertvision.errors import UserError, suggest

SPLITS = ("train", "dev")
VERSION = "bertvision-demo-1"
_WORDS = (45, 90)
_SENTENCES = (4, 7)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_TENS = {1: "", 2: "twenty", 3: "thirty", 4: "forty", 5: "fifty", 6: "sixty"}
_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_CHOICE = re.compile(r"\[([^\]]*)\]")
_SLOT = re.compile(r"\{(a )?(\w+)('s)?\}")


def build_corpus(split: str, questions: int, seed: int = 0) -> dict[str, Any]:
    """Build a corpus of exactly `questions` questions for `split` ("train" or "dev"), a third of them unanswerable.

    The same arguments produce the same corpus. A larger corpus starts with the smaller one of the same split and seed.
    """
    if split not in SPLITS:
        raise UserError(f"the demo corpus has no split '{split}': {suggest(split, SPLITS)}")
    if questions < 1:
        raise UserError(
            f"the demo corpus needs at least 1 question, not {questions}: set a larger number of questions."
        )
    flags = _unanswerable_flags(split, seed)
    data: list[dict[str, Any]] = []
    left = questions
    for article in count(1):
        rng = Random(f"{split}/{seed}/{article}")
        paragraphs: list[dict[str, Any]] = []
        for number in range(1, rng.randint(4, 6) + 1):
            passage = _build_passage(split, Random(f"{split}/{seed}/{article}/{number}"))
            asked = list(islice(flags, min(left, passage.rng.randint(5, 6))))
            qas = passage.ask(asked, f"{split}-{article:04d}-{number}")
            paragraphs.append({"context": passage.context, "qas": qas})
            left -= len(qas)
            if not left:
                break
        data.append({"title": f"Notes from {_Namer(split, rng).place()}", "paragraphs": paragraphs})
        if not left:
            break
    return {"version": VERSION, "data": data}


def _unanswerable_flags(split: str, seed: int) -> Iterator[bool]:
    """One True in every three, at a random position, so that any prefix has a third to within one question."""
    rng = Random(f"{split}/{seed}/flags")
    while True:
        position = rng.randrange(3)
        yield from (position == index for index in range(3))


# Contents of the corpus


@dataclass(frozen=True)
class Relation:
    """One kind of fact about an entity, with its wordings by split; `low` and `high` bound a number or a year."""

    name: str
    value: str
    sentences: dict[str, list[str]]
    questions: dict[str, list[str]]
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Sort:
    """One sort of entity: how it is named and referred to, and the facts about it."""

    name: str
    pattern: str
    """How it is named: `person`, `place`, `title`, or a template with one of those and other words."""
    introduced: bool
    """Whether the noun may precede the name: 'the town of X'."""
    noun: dict[str, str]
    doubles: dict[str, list[str]]
    """Sentences that state two facts."""
    asides: dict[str, list[str]]
    """Sentences with no fact that a question asks for."""
    relations: list[Relation]


@cache
def _corpus() -> dict[str, Any]:
    return tomllib.loads((files("bertvision.tasks") / "demo_corpus.toml").read_text(encoding="utf-8"))


def words(split: str) -> dict[str, list[str]]:
    """The names and values that one split may use."""
    return _corpus()["words"][split]


@cache
def sorts() -> list[Sort]:
    entries = [dict(entry) for entry in _corpus()["sorts"]]
    return [Sort(relations=[Relation(**relation) for relation in entry.pop("relations")], **entry) for entry in entries]


# Names and values


@dataclass
class Entity:
    """An entity that a passage is about, or one that a question names but the passage does not."""

    sort: Sort
    name: str
    short: str
    """A shorter reference after the first mention: a surname or 'the town'."""
    pronoun: str
    possessive: str
    facts: tuple[Relation, ...] = ()


@dataclass
class _Namer:
    """Generates names and values, and picks wordings of one split, never the same one twice in a passage."""

    split: str
    rng: Random
    used: set[str] = field(default_factory=set)

    def fresh(self, choices: list[str]) -> str:
        """A random choice that the passage has not used yet."""
        word = self.rng.choice([choice for choice in choices if choice not in self.used])
        self.used.add(word)
        return word

    def surname(self) -> str:
        pools = words(self.split)
        return self.fresh(pools["surname_starts"]) + self.rng.choice(pools["surname_ends"])

    def place(self) -> str:
        pools = words(self.split)
        return self.fresh(pools["place_starts"]) + self.rng.choice(pools["place_ends"])

    def title(self) -> str:
        pools = words(self.split)
        noun = self.fresh(pools["nouns"])
        if self.split == "train" and self.rng.random() < 0.3:
            return f"{noun} and {self.fresh(pools['nouns'])}"
        return f"The {self.fresh(pools['adjectives'])} {noun}"

    def entity(self, sort: Sort) -> Entity:
        pools = words(self.split)
        if sort.pattern == "person":
            woman = self.rng.random() < 0.5
            surname = self.surname()
            name = f"{self.fresh(pools['women'] if woman else pools['men'])} {surname}"
            return Entity(sort, name, surname, *(("she", "her") if woman else ("he", "his")))
        makers = {"place": self.place, "title": self.title}
        name = makers[sort.pattern]() if sort.pattern in makers else self._compose(sort.pattern)
        return Entity(sort, name, f"the {sort.noun[self.split]}", "it", "its")

    def _compose(self, pattern: str) -> str:
        pools = words(self.split)
        parts: dict[str, Callable[[], str]] = {
            "place": self.place,
            "surname": self.surname,
            "venture": lambda: self.fresh(pools["ventures"]),
            "art": lambda: self.fresh(pools["arts"]),
        }
        return _SLOT.sub(lambda slot: parts[slot[2]](), pattern)

    def value(self, relation: Relation) -> str:
        pools = words(self.split)
        match relation.value:
            case "person":
                return f"{self.fresh(pools['women'] + pools['men'])} {self.surname()}"
            case "place":
                return self.place()
            case "title":
                return self.title()
            case "trade" | "material" | "goods" | "reason":
                return self.fresh(pools[_POOL_OF[relation.value]])
        number = self._number(relation.low, relation.high)
        match relation.value:
            case "year":
                return str(number)
            case "date":
                return f"{self.rng.randint(1, 28)} {self.rng.choice(_MONTHS)} {number}"
            case "count":
                return f"{number:,}"
        assert relation.value == "small", relation.value
        return spell(number)

    def _number(self, low: int, high: int) -> int:
        while True:
            number = self.rng.randint(low, high)
            if str(number) not in self.used:
                self.used.add(str(number))
                return number


_POOL_OF = {"trade": "trades", "material": "materials", "goods": "goods", "reason": "reasons"}


def spell(number: int) -> str:
    """A number from 0 to 69 in words."""
    if number < 20:
        return _UNITS[number]
    tens, unit = divmod(number, 10)
    return _TENS[tens] + (f"-{_UNITS[unit]}" if unit else "")


# Wording


@dataclass(frozen=True)
class _Sentence:
    entity: Entity
    template: str
    relations: tuple[Relation, ...]


def _pick(template: str, rng: Random) -> str:
    """The template with each [one|another] resolved at random."""
    return _CHOICE.sub(lambda choice: rng.choice(choice[1].split("|")), template)


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _fill(template: str, subject: str, possessive: str, values: dict[str, str]) -> tuple[str, dict[str, int]]:
    """The sentence, and the character offset of each value in it."""
    text, starts, end = "", {}, 0
    for slot in _SLOT.finditer(template):
        article, name, owner = slot.groups()
        text += template[end : slot.start()]
        end = slot.end()
        if name == "S":
            text += possessive if owner else subject
            continue
        if article:
            text += "an " if values[name][0] in "aeiou" else "a "
        starts[name] = len(text)
        text += values[name]
    return _capitalise(text + template[end:]), starts


def _sentences_of(entity: Entity, namer: _Namer) -> list[_Sentence]:
    """Sentences that state each of the entity's facts once, sometimes two in one; no wording repeats in a passage."""
    split, rng = namer.split, namer.rng
    left = {relation.name: relation for relation in entity.facts}
    sentences = []
    doubles = [
        text for text in entity.sort.doubles[split] if text not in namer.used and left.keys() >= set(_slots(text))
    ]
    if doubles and rng.random() < 0.5:
        template = namer.fresh(doubles)
        sentences.append(_Sentence(entity, template, tuple(left.pop(name) for name in _slots(template))))
    for relation in left.values():
        template = namer.fresh(relation.sentences[split]).replace("v}", relation.name + "}")
        sentences.append(_Sentence(entity, _pick(template, rng), (relation,)))
    if rng.random() < 0.3:
        sentences.append(_Sentence(entity, namer.fresh(entity.sort.asides[split]), ()))
    rng.shuffle(sentences)
    if not sentences[0].relations:
        sentences.append(sentences.pop(0))
    return sentences


def _slots(template: str) -> list[str]:
    return [name for _, name, _ in _SLOT.findall(template) if name != "S"]


def _merge(first: list[_Sentence], second: list[_Sentence], rng: Random) -> list[_Sentence]:
    """Both lists, each in order: one after the other, or alternating every few sentences."""
    if rng.random() < 0.5:
        return first + second
    queues, merged = [first[:], second[:]], []
    while queues[0] and queues[1]:
        for _ in range(min(len(queues[0]), rng.randint(1, 3))):
            merged.append(queues[0].pop(0))
        queues.reverse()
    return merged + queues[0] + queues[1]


# Passages


@dataclass
class Passage:
    """A text about two entities, the positions of the facts in it, and the questions about it."""

    split: str
    rng: Random
    namer: _Namer
    entities: tuple[Entity, Entity]
    context: str
    answers: dict[tuple[str, str], tuple[str, int]]
    """(entity name, relation name) → the answer as it appears in the context, and its offset."""

    def ask(self, unanswerable: list[bool], prefix: str) -> list[dict[str, Any]]:
        """One question per flag, with ids `prefix-1`, `prefix-2`, …; no fact is asked for twice."""
        stated = [(entity, relation) for entity in self.entities for relation in entity.facts]
        self.rng.shuffle(stated)
        missing = self._missing()
        qas = []
        for number, flag in enumerate(unanswerable, 1):
            entity, relation = missing.pop() if flag else stated.pop()
            text, start = ("", 0) if flag else self.answers[entity.name, relation.name]
            wording = _pick(self.rng.choice(relation.questions[self.split]), self.rng)
            question, _ = _fill(wording, entity.name, _own(entity.name), {})
            answers = [] if flag else [{"text": text, "answer_start": start}]
            qas.append({"id": f"{prefix}-{number}", "question": question, "answers": answers, "is_impossible": flag})
        return qas

    def _missing(self) -> list[tuple[Entity, Relation]]:
        """Facts that the passage does not state, in random order, many of which it states about the other entity.

        Sometimes the last one, which is asked first, is about an entity that the passage does not mention.
        """
        missing = [
            (entity, relation)
            for entity in self.entities
            for relation in entity.sort.relations
            if relation not in entity.facts
        ]
        self.rng.shuffle(missing)
        first, second = self.entities
        if self.rng.random() < 0.3:
            missing.append((self.namer.entity(first.sort), self.rng.choice(first.facts + second.facts)))
        return missing


def _own(name: str) -> str:
    return name + ("'" if name.endswith("s") else "'s")


def _build_passage(split: str, rng: Random) -> Passage:
    """Draw passages until one has the right length."""
    while True:
        passage, sentences = _draw_passage(split, rng)
        length = len(passage.context.split())
        if _WORDS[0] <= length <= _WORDS[1] and _SENTENCES[0] <= sentences <= _SENTENCES[1]:
            return passage


def _draw_passage(split: str, rng: Random) -> tuple[Passage, int]:
    namer = _Namer(split, rng)
    sort = rng.choice(sorts())
    first, second = namer.entity(sort), namer.entity(sort)
    for entity, facts in zip((first, second), rng.choice([(3, 3), (4, 3), (3, 4)]), strict=True):
        entity.facts = tuple(rng.sample(sort.relations, facts))
    sentences = _merge(_sentences_of(first, namer), _sentences_of(second, namer), rng)
    context, answers = _write(sentences, namer)
    return Passage(split, rng, namer, (first, second), context, answers), len(sentences)


def _write(sentences: list[_Sentence], namer: _Namer) -> tuple[str, dict[tuple[str, str], tuple[str, int]]]:
    """The context, and the answers in it."""
    context, answers = "", {}
    stated: dict[str, set[str]] = {}
    reported = namer.rng.choice(
        [*sentences, *[None] * len(sentences)]
    )  # in half of the passages, one sentence is hearsay
    before: _Sentence | None = None
    subject = ""
    for sentence in sentences:
        entity, template = sentence.entity, sentence.template
        names = {relation.name for relation in sentence.relations}
        subject, possessive = _refer(sentence, before, subject, entity.name in stated, namer)
        repeated = names.intersection(*stated.values()) if stated and entity.name not in stated else set()
        if repeated and template.startswith("{S} ") and namer.rng.random() < 0.5:
            template = f"{namer.rng.choice(words(namer.split)['contrasts'])} {template}"
        elif sentence is reported and names and not template.startswith(("As ", "Because ")):
            template = f"{namer.rng.choice(words(namer.split)['hearsay'])} {template[0].lower()}{template[1:]}"
        values = {relation.name: namer.value(relation) for relation in sentence.relations}
        text, starts = _fill(template, subject, possessive, values)
        context += " " if context else ""
        for name, start in starts.items():
            end = start + len(values[name])
            answers[entity.name, name] = (text[start:end], len(context) + start)
        context += text
        stated.setdefault(entity.name, set()).update(names)
        before = sentence
    return context, answers


def _refer(sentence: _Sentence, before: _Sentence | None, last: str, known: bool, namer: _Namer) -> tuple[str, str]:
    """How the sentence refers to its entity, and the possessive form."""
    entity, rng = sentence.entity, namer.rng
    noun = entity.sort.noun[namer.split]
    echoes = bool(noun) and noun[:5] in sentence.template.lower()  # avoids 'the painting was painted'
    if not known:
        fits = entity.sort.introduced and not echoes and sentence.template.startswith("{S} ")
        if fits and rng.random() < 0.6:
            link = " of " if entity.sort.pattern == "place" else " "
            return f"the {noun}{link}{entity.name}", _own(entity.name)
        return entity.name, _own(entity.name)
    chance = rng.random()
    if before is None or before.entity is not entity:
        # There are two towns, so 'the town' would be ambiguous; a surname is not.
        name = entity.short if entity.pronoun != "it" and chance < 0.5 else entity.name
        return name, _own(name)
    leads = sentence.template.startswith(("{S} ", "{S's} "))
    # 'She' is ambiguous after 'Her teacher was Rosa Varsley', and so is 'it' after 'The church of X'.
    if entity.pronoun == "it":
        clear = "{S}" in before.template and "of {S}" not in before.template
    else:
        clear = all(relation.value != "person" for relation in before.relations)
    if leads and clear and last != entity.pronoun and chance < 0.7:
        return entity.pronoun, entity.possessive
    name = entity.name if echoes or (chance > 0.9 and entity.pronoun == "it") else entity.short
    return name, _own(name)
