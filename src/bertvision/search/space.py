"""The search space: which settings are tried, and every mistake in it before any work.

head = ["learned_pooling", "adapter"]              a list: one of these (heads or presets)
lr = { low = 1e-4, high = 1e-2, log = true }       a table: a number between two
size = [16, 64]                                    tried only with heads that have the setting
decay = 0.01                                       anything else: this value
"""

import itertools
import json
from dataclasses import dataclass
from typing import Any

from bertvision.config import RunConfig, TrainConfig
from bertvision.errors import ConfigError, suggest
from bertvision.heads import HEADS, MemberConfig, find_preset, list_presets, setting_types
from bertvision.kinds import LABEL, Kind
from bertvision.pipeline.members import TRAINING, as_list, build_members, find_head_mistakes
from bertvision.settings import convert
from bertvision.tasks.config import TASKS, target_kind

DEFAULT_HEADS = ["learned_pooling", "adapter", "pooled_adapter"]
DEFAULTS: dict[str, dict[str, Any]] = {
    "token": {
        "head": DEFAULT_HEADS,
        "lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "size": [16, 32, 64, 128, 256],
        "skip": [False, True],
    },
    "sequence": {
        "head": DEFAULT_HEADS,
        "lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "size": [8, 16, 32, 64, 128],
        "read": ["cls", "mean"],
        "decay": [0.0, 0.01, 0.1],
    },
}
"""By what an output belongs to."""
MOST_COMBINATIONS = 2000  # of a head's settings that are checked before the search


@dataclass(frozen=True)
class Choices:
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    log: bool
    whole: bool


Entry = Choices | Range


Trial = Any
"""optuna's, which draws a value for each setting; optuna need not be there to check a space."""


@dataclass(frozen=True)
class Space:
    training: dict[str, Entry]
    """Settings of the training, the same for all heads."""
    heads: dict[str, dict[str, Entry]]
    """Head or preset → settings of its own; those that a preset fixes stay as they are."""

    def draw(self, trial: Trial) -> dict[str, Any]:
        """One member, as an entry of a config's `heads`. Each head's own settings are parameters of their own."""
        head = _draw(trial, "head", Choices(tuple(self.heads)))
        drawn = {key: _draw(trial, key, entry) for key, entry in self.training.items()}
        own = {key: _draw(trial, f"{head}.{key}", entry) for key, entry in self.heads[head].items()}
        return {"head": head, **own, **drawn}

    def read_entries(self) -> list[dict[str, Any]]:
        """An entry for every way in which members read the states."""
        found: list[dict[str, Any]] = []
        for head, own in self.heads.items():
            read = own.get("read")
            if isinstance(read, Choices):
                found += [{"head": head, "read": value} for value in read.values]
            else:
                found.append({"head": head})
        return found


def _draw(trial: Trial, name: str, entry: Entry) -> Any:
    if isinstance(entry, Range):
        if entry.whole:
            return trial.suggest_int(name, int(entry.low), int(entry.high), log=entry.log)
        return trial.suggest_float(name, entry.low, entry.high, log=entry.log)
    if len(entry.values) == 1:
        return entry.values[0]
    # A study keeps plain values only: lists go by their JSON.
    words = {json.dumps(value) if isinstance(value, list | tuple) else value: value for value in entry.values}
    return words[trial.suggest_categorical(name, list(words))]


def build_space(config: RunConfig) -> Space:
    """The space of a config that `find_mistakes` found none in."""
    tables = space_tables(config)
    heads = {}
    for name in as_list(tables["head"]):
        head, fixed = find_preset(name)
        hints = setting_types(head)
        heads[name] = {
            key: _build_entry(value, hints[key]) for key, value in tables.items() if key in hints and key not in fixed
        }
    training = {key: _build_entry(value, TRAINING[key]) for key, value in tables.items() if key in TRAINING}
    return Space(training, heads)


def space_tables(config: RunConfig) -> dict[str, Any]:
    """The table as it was given; a whole one for the kind of task where there is none, and heads where none are."""
    if config.search.space is None:
        return DEFAULTS[(target_kind(config.task) or LABEL).position]
    return {"head": DEFAULT_HEADS, **config.search.space}


def build_member(entry: dict[str, Any], name: str, train: TrainConfig, seed: int, kind: Kind) -> MemberConfig:
    """The member of one entry, under a name."""
    named = [member for member in build_members([{**entry, "name": name}], train, seed, kind) if member.name == name]
    assert len(named) == 1, "an entry is one member"
    return named[0]


def _build_entry(value: Any, hint: Any) -> Entry:
    if isinstance(value, dict):
        whole = not convert(0.5, hint)[1]
        return Range(value["low"], value["high"], value.get("log", False), whole)
    # A setting that is a list itself has lists as its choices.
    some = value if isinstance(value, list) and not convert(value, hint)[1] else [value]
    return Choices(tuple(convert(choice, hint)[0] for choice in some))


# ---------------------------------------------------------------------- mistakes


def find_mistakes(config: RunConfig) -> list[str]:
    """What is wrong with the heads, the search and its space, for `config.build_config`."""
    return [*find_head_mistakes(config), *_search_mistakes(config), *_space_mistakes(config)]


def _search_mistakes(config: RunConfig) -> list[str]:
    mistakes, metric = [], config.search.metric
    if config.data.hold_out == 0:
        mistakes.append("a search chooses on held-out training data: set 'data.hold_out' above 0.")
    metrics = _known_metrics(config)
    if metric is not None and metrics and metric not in metrics:
        mistakes.append(f"'search.metric' is '{metric}': {suggest(metric, metrics)}")
    return mistakes


def _known_metrics(config: RunConfig) -> tuple[str, ...]:
    kind = target_kind(config.task)
    if kind is None:
        return ()
    if TASKS[config.task.name].metrics or kind.reads_answers:
        return TASKS[config.task.name].metrics or TASKS["squad2"].metrics
    # How many labels there are is known when the data is read.
    return tuple(dict.fromkeys([*kind.default_metrics(("no", "yes")), *kind.default_metrics(())]))


def _space_mistakes(config: RunConfig) -> list[str]:
    tables = space_tables(config)
    names, mistakes = as_list(tables["head"]), []
    if not names or not all(isinstance(name, str) for name in names):
        return [f"'search.space.head' must be a head or a list of heads, not {tables['head']!r}."]
    known = [name for name in names if name in HEADS or name in list_presets()]
    for name in sorted(set(names) - set(known)):
        mistakes.append(f"'search.space.head' has '{name}': {suggest(name, {*HEADS, *list_presets()})}")
    hints = TRAINING | {key: hint for name in known for key, hint in setting_types(find_preset(name)[0]).items()}
    for key, value in tables.items():
        if key == "head":
            continue
        if key in hints:
            mistakes += _entry_mistakes(key, value, hints[key])
        elif len(known) == len(names):  # it may belong to the head that is misspelt
            heads = ", ".join(names)
            mistakes.append(f"'search.space.{key}' is no setting of {heads}: {suggest(key, hints, 'search.space.')}")
    if mistakes:
        return mistakes
    own = {key for entries in build_space(config).heads.values() for key in entries}
    for key in sorted(set(tables) - {"head", *TRAINING} - own):
        mistakes.append(f"'search.space.{key}' is fixed by each preset that is named: name the head itself to vary it.")
    return mistakes + [f"search.space: {mistake}" for mistake in _value_mistakes(config)]


def _entry_mistakes(key: str, value: Any, hint: Any) -> list[str]:
    name = f"'search.space.{key}'"
    if isinstance(value, list) and not value:
        return [f"{name} is an empty list: give values to choose from."]
    if not isinstance(value, dict):
        return []
    if not {"low", "high"} <= set(value) <= {"low", "high", "log"}:
        return [f"{name} must be a table {{low = …, high = …, log = true or false}}, not {value!r}."]
    low, high, log = value["low"], value["high"], value.get("log", False)
    wanted = int if not convert(0.5, hint)[1] else float
    if not convert(1, hint)[1]:
        return [f"{name} can't be a range: give a list of choices."]
    if not convert(low, wanted)[1] or not convert(high, wanted)[1] or not isinstance(log, bool):
        kind = "whole numbers" if wanted is int else "numbers"
        return [f"{name}: `low` and `high` must be {kind} and `log` true or false, not {value!r}."]
    if not low < high:
        return [f"{name}: `low` ({low}) must be less than `high` ({high})."]
    return [f"{name}: `low` must be above 0 where `log` is true, not {low}."] if log and low <= 0 else []


def _value_mistakes(config: RunConfig) -> list[str]:
    """What the heads say of the values: of each alone where it belongs to the training, else of all combinations."""
    space, found = build_space(config), []
    kind = target_kind(config.task) or LABEL
    for number, (head, own) in enumerate(space.heads.items()):
        combinations = itertools.product(*([(key, value) for value in end_values(entry)] for key, entry in own.items()))
        points = [dict(point) for point in itertools.islice(combinations, MOST_COMBINATIONS)]
        if number == 0:
            points += [{key: value} for key, entry in space.training.items() for value in end_values(entry)]
        for point in points:
            try:
                build_members([{"head": head, **point}], TrainConfig(epochs=1), 0, kind)
            except ConfigError as error:
                found += error.mistakes
    return list(dict.fromkeys(found))


def end_values(entry: Entry) -> tuple[Any, ...]:
    """The choices, or where the range begins and ends."""
    return entry.values if isinstance(entry, Choices) else (entry.low, entry.high)
