"""Settings as fields of dataclasses, each declared once with its default, help and allowed values.

    lr: float = setting(1e-3, "learning rate", above=0, below=MOST_RATE)

Turns tables into dataclasses and checks the values. Mistakes are collected, with settings named as users write them.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from typing import Any

from bertvision.disk import why_no_path, why_no_text
from bertvision.errors import shorten, suggest

MOST_ITEMS = 1000
"""Of a list, if a setting does not say."""
MOST_DEPTH = 20
"""Of tables and lists in each other."""
MOST_SEED = 2**32 - 1
MOST_EPOCHS = 10_000
MOST_SECONDS = 1e9
"""Some thirty years."""
MOST_RATE = 3e38
"""Learning rates and weight decays are below this: larger numbers are infinite in single precision. One that is only
far too high is reported when the training diverges."""
MOST_LAYERS = 1000
MOST_WIDTH = 100_000
"""Of the layers of a head. The number of its parameters has a bound of its own, `heads.base.MOST_PARAMETERS`."""


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    most_items: int = MOST_ITEMS,
    is_path: bool = False,
    type_words: str | None = None,
    off: str | None = None,
    by_task: bool = False,
) -> Any:
    """Declare a field of a section: its default, its help, and the allowed values (of each item, for a list).

    `below=math.inf` means finite. `most_items` of a list. `is_path`: a file or folder, which may not exist.
    `type_words` describes the type where the annotation is too general. `off` is the part of a head's name that marks a
    switch as off. `by_task`: a config gets the default of its task.
    """
    metadata = {
        "help": help, "choices": choices, "at_least": at_least, "above": above, "below": below, "at_most": at_most,
        "most_items": most_items, "is_path": is_path,
    }  # fmt: skip
    metadata |= {"type": type_words} if type_words else {}
    metadata |= {"off": off} if off else {}
    metadata |= {"by_task": True} if by_task else {}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def build_section(cls: Any, table: Any, prefix: str, mistakes: list[str]) -> Any:
    """Build a dataclass from a table. Invalid values are added to `mistakes` and replaced by the default."""
    if not isinstance(table, dict):
        mistakes.append(f"[{prefix.rstrip('.')}] must be a section with keys, not {shorten(table)}.")
        table = {}
    hints, values = typing.get_type_hints(cls), {}
    for key in table:
        if key not in hints:
            mistakes.append(f"there is no setting {shorten(prefix + str(key))}: {suggest(str(key), hints, prefix)}")
    for item in dataclasses.fields(cls):
        hint, key = hints[item.name], prefix + item.name
        if dataclasses.is_dataclass(hint) and (item.name in table or item.default_factory is dataclasses.MISSING):
            values[item.name] = build_section(hint, table.get(item.name, {}), key + ".", mistakes)
        elif item.name in table:
            value, fits = convert(table[item.name], hint)
            wrong = [f"'{key}' must be {type_of(item, hint)}, not {shorten(table[item.name])}."]
            wrong = list(out_of_range(item, f"'{key}'", value)) if fits else wrong
            mistakes += wrong
            if not wrong:
                values[item.name] = value
            elif _is_required(item):
                values[item.name] = ""
        elif _is_required(item):
            mistakes.append(f"'{key}' is missing: {item.metadata['help']}.")
            values[item.name] = ""
    return cls(**values)


def _is_required(item: "dataclasses.Field[Any]") -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def out_of_range(item: "dataclasses.Field[Any]", key: str, value: Any) -> Iterator[str]:
    """Messages about a value that has the right type but is not allowed."""
    choices, most = item.metadata.get("choices", ()), item.metadata.get("most_items", MOST_ITEMS)
    if isinstance(value, list | tuple):
        if len(value) > most:
            yield f"{key} has {len(value):,} entries, but can have at most {most:,}."
            return
        if choices:
            yield from (f"{key} has '{each}': {suggest(each, choices)}" for each in value if each not in choices)
        wrong = [each for each in value if _range_missed(item, each)]
        yield from (f"{key} has {each:g}: each must be {_range_missed(item, each)}." for each in wrong)
        if "" in value:
            yield f"{key} has an empty text: leave it out."
    elif choices and value is not None and value not in choices:
        yield f"{key} is {shorten(value)}: {suggest(value, choices)}"
    elif value == "":
        yield f"{key} is empty: leave it out for its default."
    elif item.metadata.get("is_path") and isinstance(value, str) and (why := why_no_path(value)):
        yield f"{key} can't be {shorten(value)}: {why}."
    elif words := _range_missed(item, value):
        yield f"{key} must be {words}, not {value}."


def _range_missed(item: "dataclasses.Field[Any]", value: Any) -> str:
    """The range that a number misses, in words; '' if it is in range or is not a number."""
    at_least, above, below, at_most = (item.metadata.get(key) for key in ("at_least", "above", "below", "at_most"))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    # NaN, for which every comparison is false, counts as out of range.
    high_enough = (at_least is None or value >= at_least) and (above is None or value > above)
    if high_enough and (below is None or value < below) and (at_most is None or value <= at_most):
        return ""
    if at_most is not None and value > at_most:
        return f"at most {_number(at_most)}"
    if below == math.inf and high_enough:
        return "finite"
    high = f"less than {_number(below)}" if below is not None and below != math.inf else ""
    if at_least is not None:
        return f"from {at_least:g} to {high}" if high else f"at least {_number(at_least)}"
    return f"above {above:g} and {high}" if high else f"above {above:g}"


def _number(value: float) -> str:
    """1,000,000; 1e+09; 0.5"""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e10 else f"{value:g}"


def find_unfit(value: Any, key: str = "") -> Iterator[str]:
    """Messages about values that no setting can have: numbers beyond 64 bits, texts that can't be saved, and tables or
    lists in each other without end. They are found before anything is made of them."""
    waiting = [(key, value, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        if isinstance(value, str):
            if why := why_no_text(value):
                yield f"'{key}' can't be {shorten(value)}: {why}."
        elif isinstance(value, int) and abs(value) >= 2**63:
            yield f"'{key}' is too large: whole numbers have at most 18 digits."
        elif isinstance(value, dict | list | tuple):
            if depth >= MOST_DEPTH:
                yield f"'{shorten(key, 60)[1:-1]}' has tables or lists nested more than {MOST_DEPTH} deep."
                return
            if isinstance(value, dict):
                for name in value:
                    if not isinstance(name, str) or why_no_text(name) or len(name) > MOST_ITEMS:
                        yield f"{shorten(name)} can't be the name of a setting."
                        continue
                    waiting.append((f"{key}.{name}" if key else name, value[name], depth + 1))
            else:
                waiting += [(key, each, depth + 1) for each in value]


def list_settings(cls: Any, prefix: str = "") -> Iterator[tuple[str, str, Any, str]]:
    """(key, type, default, help) of every setting."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from list_settings(hints[item.name], f"{prefix}{item.name}.")
            continue
        default = item.default_factory() if callable(item.default_factory) else item.default
        default = "required" if default is dataclasses.MISSING else default
        default = "by task" if item.metadata.get("by_task") else default
        yield prefix + item.name, type_of(item, hints[item.name]), default, item.metadata["help"]


def convert(value: Any, hint: Any) -> tuple[Any, bool]:
    """The value converted to the annotated type, and whether it fits. An int is accepted as a float."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value, True
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and value == "none":  # TOML has no null
            return None, True
        for choice in arguments:
            converted, fits = convert(value, choice)
            if fits:
                return converted, True
        return value, False
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            return value, False
        items = [convert(item, arguments[0]) for item in value]
        return [item for item, _ in items], all(fits for _, fits in items)
    if hint is type(None):
        return None, value is None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return (float(value), True) if abs(value) < 2**1023 else (value, False)
    return value, isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)


def type_of(item: "dataclasses.Field[Any]", hint: Any) -> str:
    return item.metadata.get("type") or describe_type(hint)


def describe_type(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", type(None): "none"}
    plurals = {int: "whole numbers", float: "numbers", str: "strings"}
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(describe_type(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (list, tuple):
        item = typing.get_args(hint)[0]
        return f"a list of {plurals.get(item) or describe_type(item)}"
    return words.get(hint, "any value")
