"""Guess which columns of a user's table hold the text and the label, from their names and their first rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertvision.errors import UserError, list_names, suggest
from bertvision.tasks.files import Columns, check_header
from bertvision.tasks.table_source import SHOWN, Source

# Names by rank: the first rank that occurs decides.
TEXTS = (
    ("text",),
    ("message", "sentence", "review", "question", "comment", "content", "body", "utterance", "query", "document",
     "tweet", "post", "passage", "email", "abstract"),
    ("title", "headline", "subject", "description", "summary"),
)  # fmt: skip
LABELS = (
    ("label", "labels"),
    ("category", "class", "target", "intent", "sentiment", "topic", "tag", "emotion", "genre", "y", "score", "rating",
     "stars", "grade"),
)  # fmt: skip
PAIRS = (
    ("text", "text_pair"), ("sentence1", "sentence2"), ("question", "passage"), ("question", "context"),
    ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
)  # fmt: skip
ID = "id"
ROW_NUMBERS = ("", "unnamed:_0", "index", "__index_level_0__")
"""Columns that pandas and others write in front of a table."""
CLEARLY = 1.5
"""How many times longer the text must be on average than the next column."""


@dataclass(frozen=True)
class Given:
    """The columns that the user named."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    weight: str | None = None
    id: str | None = None


def guess_columns(sample: Sequence[Mapping[str, Any]], given: Given, source: Source) -> Columns:
    """The given columns, with the others guessed. UserError if one is missing or if two would do."""
    columns = list(dict.fromkeys(name for row in sample for name in row))
    check_header(columns, source.name)
    _check_given(columns, given, source)
    identity = given.id or next((name for name in columns if _plain(name) == ID and name not in _names(given)), None)
    free = [n for n in columns if n not in _names(given) and n != identity and _plain(n) not in ROW_NUMBERS]
    label = given.label or _find(free, LABELS, "label", source)
    text, pair = given.text, given.text_pair
    if text is None and pair is None:
        text, pair = _find_pair([name for name in free if name != label])
    others = [name for name in free if name not in (label, text, pair)]
    if text is None:
        text = _find(others, TEXTS, "text", source)
        others = [name for name in others if name != text]
    if label is None:
        label = _remaining_label(sample, others, text, source)
        others = [name for name in others if name != label]
    return Columns(text or _longest(sample, others, source), pair, label, identity)


def _names(given: Given) -> set[str]:
    return {name for name in (given.text, given.text_pair, given.label, given.weight, given.id) if name}


def _check_given(columns: list[str], given: Given, source: Source) -> None:
    for option in ("text", "text_pair", "label", "weight", "id"):
        name = getattr(given, option)
        if name is not None and name not in columns:
            raise UserError(
                f"{source.name}: there is no column '{name}' ({source.option(option)}): {suggest(name, columns)}"
            )
    for first, second in (("text", "text_pair"), ("text", "label"), ("text_pair", "label"), ("label", "weight")):
        name = getattr(given, first)
        if name is not None and name == getattr(given, second):
            both = f"{source.option(first)} and {source.option(second)}"
            raise UserError(f"{both} both name column '{name}'. Give two different columns.")


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _find(columns: list[str], ranks: Sequence[Sequence[str]], what: str, source: Source) -> str | None:
    """The column with the best-known name; None if there is none."""
    for names in ranks:
        found = [name for name in columns if _plain(name) in names]
        if len(found) > 1:
            raise UserError(
                f"{source.name}: which column is the {what}? It could be "
                f"{' or '.join(repr(name) for name in found[:SHOWN])}. Choose one with {source.option(what)}."
            )
        if found:
            return found[0]
    return None


def _find_pair(columns: list[str]) -> tuple[str | None, str | None]:
    """Both texts, if the columns are exactly those of a known pair."""
    by_name = {_plain(name): name for name in columns}
    for first, second in PAIRS:
        if set(by_name) == {first, second} and len(columns) == 2:
            return by_name[first], by_name[second]
    return None, None


def _remaining_label(sample: Sequence[Mapping[str, Any]], others: list[str], text: str | None, source: Source) -> str:
    """The only column beside the text; of two unknown columns, the one with fewer and shorter values."""
    if text is not None and len(others) == 1:
        return others[0]
    if text is None and len(others) == 2:
        fewest = sorted(others, key=lambda name: _distinct(sample, name))
        shortest = sorted(others, key=lambda name: _mean_length(sample, name))
        differ = _distinct(sample, fewest[0]) < _distinct(sample, fewest[1])
        if fewest[0] == shortest[0] and differ:
            return fewest[0]
    if not others:
        raise UserError(
            f"{source.name} has no column for the label, only '{text}'. Add a column with labels or scores."
        )
    raise UserError(_unknown("label", others, source))


def _longest(sample: Sequence[Mapping[str, Any]], columns: list[str], source: Source) -> str:
    """The column of strings that is clearly the longest."""
    texts = [name for name in columns if any(isinstance(row.get(name), str) for row in sample)]
    ranked = sorted(texts, key=lambda name: _mean_length(sample, name), reverse=True)
    if not ranked or (len(ranked) > 1 and _mean_length(sample, ranked[0]) < CLEARLY * _mean_length(sample, ranked[1])):
        raise UserError(_unknown("text", columns, source))
    return ranked[0]


def _unknown(what: str, columns: Sequence[str], source: Source) -> str:
    found = f"The columns are {list_names(columns, 300)}." if columns else "No other column is left."
    return (
        f"{source.name}: can't tell which column is the {what}. {found} Name it with {source.option(what, 'COLUMN')}."
    )


def _distinct(sample: Sequence[Mapping[str, Any]], column: str) -> int:
    return len({str(row.get(column)) for row in sample})


def _mean_length(sample: Sequence[Mapping[str, Any]], column: str) -> float:
    return sum(len(str(row.get(column) or "")) for row in sample) / max(1, len(sample))
