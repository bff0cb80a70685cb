"""Settings of experiments, merged from the fragments of a TOML file (papers.toml describes the file)."""

import itertools
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from bertvision.kinds import SPAN
from bertvision.tasks.config import TASKS

Settings = dict[str, Any]
"""Nested tables, as a config file has them."""
Point = dict[str, str]
"""Axis of a grid → its value."""


def points_of(entry: Settings) -> Iterator[Point]:
    """Every point of an entry's grid; a single empty one if it has none."""
    axes = entry.get("grid", {})
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def settings_of(entry: Settings, point: Point, file: Settings) -> Settings:
    """The merged settings of an entry at one point of its grid."""
    own = {key: value for key, value in entry.items() if key not in ("name", "base", "grid")}
    settings: Settings = {}
    for part in (_expand(entry, file["bases"]), *(file["grids"][axis][value] for axis, value in point.items()), own):
        settings = merge(settings, part)
    defaults = settings.pop("head_defaults", {})
    settings["heads"] = [_with_defaults(head, defaults) for head in settings["heads"]]
    return deepcopy(settings)


def pin_output_rate(settings: Settings) -> Settings:
    """The settings with the output layer of fine-tuning at the rate of the encoder, unless they set another."""
    if TASKS[settings["task"]["name"]].kind is SPAN:  # where it is the default
        return settings
    return {**settings, "finetune": {"output_lr": settings["finetune"]["lr"], **settings["finetune"]}}


def follow_rate(overrides: list[str]) -> list[str]:
    """The overrides, with the rate of the output layer changed wherever that of the encoder is."""
    rates = [word for word in overrides if word.startswith("finetune.lr=")]
    return [rate.replace("finetune.lr", "finetune.output_lr") for rate in rates] + overrides


def merge(below: Settings, above: Settings) -> Settings:
    """Both tables in one; `above` overrides `below`. Inner tables are merged too, lists are replaced."""
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        both[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def _expand(fragment: Settings, bases: dict[str, Settings]) -> Settings:
    """The merged settings of a fragment's bases and of their own bases."""
    found: Settings = {}
    for name in fragment.get("base", []):
        own = {key: value for key, value in bases[name].items() if key != "base"}
        found = merge(merge(found, _expand(bases[name], bases)), own)
    return found


def _with_defaults(entry: Any, defaults: Settings) -> Any:
    """An entry of `heads` with the defaults its head has a setting for. Settings would change its name, so that is
    set too."""
    from bertvision.heads import find_preset, setting_types  # imports torch, which a list of experiments needs not

    table = {"head": entry} if isinstance(entry, str) else entry
    known = setting_types(find_preset(table["head"])[0])
    missing = {key: value for key, value in defaults.items() if key in known and key not in table}
    return {**table, **missing, "name": table.get("name", table["head"])} if missing else entry
