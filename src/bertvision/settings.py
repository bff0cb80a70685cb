"""Settings as fields of dataclasses, each declared once with its default, help and allowed values.

    lr: float = setting(1e-3, "learning rate", above=0, below=math.inf)

Turns tables into dataclasses and checks the values. Mistakes are collected, with settings named as users write them.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from typing import Any

from bertvision.errors import suggest


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    type_words: str | None = None,
    off: str | None = None,
    by_task: bool = False,
) -> Any:
    """Declare a field of a section: its default, its help, and the allowed values (of each item, for a list).

    `below=math.inf` means finite. `type_words` describes the type where the annotation is too general. `off` is the
    part of a head's name that marks a switch as off. `by_task`: a config gets the default of its task.
    """
    metadata = {"help": help, "choices": choices, "at_least": at_least, "above": above, "below": below}
    metadata |= {"type": type_words} if type_words else {}
    metadata |= {"off": off} if off else {}
    metadata |= {"by_task": True} if by_task else {}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def build_section(cls: Any, table: Any, prefix: str, mistakes: list[str]) -> Any:
    """Build a dataclass from a table. Invalid values are added to `mistakes` and replaced by the default."""
    if not isinstance(table, dict):
        mistakes.append(f"[{prefix.rstrip('.')}] must be a section with keys, not {table!r}.")
        table = {}
    hints, values = typing.get_type_hints(cls), {}
    for key in table:
        if key not in hints:
            mistakes.append(f"there is no setting '{prefix}{key}': {suggest(key, hints, prefix)}")
    for item in dataclasses.fields(cls):
        hint, key = hints[item.name], prefix + item.name
        if dataclasses.is_dataclass(hint) and (item.name in table or item.default_factory is dataclasses.MISSING):
            values[item.name] = build_section(hint, table.get(item.name, {}), key + ".", mistakes)
        elif item.name in table:
            value, fits = convert(table[item.name], hint)
            if fits:
                values[item.name] = value
                mistakes += out_of_range(item, f"'{key}'", value)
            else:
                mistakes.append(f"'{key}' must be {type_of(item, hint)}, not {table[item.name]!r}.")
                values |= {item.name: ""} if _is_required(item) else {}
        elif _is_required(item):
            mistakes.append(f"'{key}' is missing: {item.metadata['help']}.")
            values[item.name] = ""
    return cls(**values)


def _is_required(item: "dataclasses.Field[Any]") -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def out_of_range(item: "dataclasses.Field[Any]", key: str, value: Any) -> Iterator[str]:
    """Messages about a value that has the right type but is not allowed."""
    choices = item.metadata.get("choices", ())
    if isinstance(value, list):
        if choices:
            yield from (f"{key} has '{each}': {suggest(each, choices)}" for each in value if each not in choices)
        wrong = [each for each in value if _range_missed(item, each)]
        yield from (f"{key} has {each:g}: each must be {_range_missed(item, each)}." for each in wrong)
    elif choices and value is not None and value not in choices:
        yield f"{key} is '{value}': {suggest(value, choices)}"
    elif words := _range_missed(item, value):
        yield f"{key} must be {words}, not {value}."


def _range_missed(item: "dataclasses.Field[Any]", value: Any) -> str:
    """The range that a number misses, in words; '' if it is in range or is not a number."""
    at_least, above, below = (item.metadata.get(key) for key in ("at_least", "above", "below"))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    # NaN, for which every comparison is false, counts as out of range.
    high_enough = (at_least is None or value >= at_least) and (above is None or value > above)
    if high_enough and (below is None or value < below):
        return ""
    if below == math.inf and high_enough:
        return "finite"
    bounded = below is not None and below != math.inf
    if at_least is not None:
        return f"from {at_least:g} to less than {below:g}" if bounded else f"at least {at_least:g}"
    return f"above {above:g} and less than {below:g}" if bounded else f"above {above:g}"


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
        return float(value), True
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
