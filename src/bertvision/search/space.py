"""The search space: which settings are tried. All mistakes in it are reported before any work.

head = ["learned_pooling", "adapter"]              a list: one of these (heads or presets)
lr = { low = 1e-4, high = 1e-2, log = true }       a table: a number in this range
size = [16, 64]                                    used only with heads that have this setting
decay = 0.01                                       anything else: a fixed value
"""

import itertools
import json
from dataclasses import dataclass
from typing import Any

from bertvision.config import RunConfig, TrainConfig
from bertvision.encoder.reading import ways_to_read
from bertvision.errors import ConfigError, shorten, suggest
from bertvision.heads import HEADS, MemberConfig, default_reads, find_preset, list_presets, setting_types
from bertvision.kinds import LABEL, Kind
from bertvision.pipeline.members import TRAINING, as_list, build_members, find_head_mistakes
from bertvision.settings import MOST_ITEMS, convert
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
"""Default spaces, by position: where a head predicts."""
MOST_COMBINATIONS = 2000  # of settings checked before the search, divided among the heads


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
"""An Optuna trial, which draws a value for each setting. Optuna is not imported: checking a space does not need it."""


@dataclass(frozen=True)
class Space:
    training: dict[str, Entry]
    """Training settings, shared by all heads."""
    heads: dict[str, dict[str, Entry]]
    """Head or preset → its own settings, without those that a preset fixes."""

    def draw(self, trial: Trial) -> dict[str, Any]:
        """Draw one member, as an entry for a config's `heads`. Settings of different heads are separate parameters."""
        head = _draw(trial, "head", Choices(tuple(self.heads)))
        drawn = {key: _draw(trial, key, entry) for key, entry in self.training.items()}
        own = {key: _draw(trial, f"{head}.{key}", entry) for key, entry in self.heads[head].items()}
        return {"head": head, **own, **drawn}

    def read_entries(self) -> list[dict[str, Any]]:
        """One entry for every way in which members can read the states."""
        found: list[dict[str, Any]] = []
        for head, own in self.heads.items():
            varied = {name: entry.values for name in ("read", "pairs") if isinstance(entry := own.get(name), Choices)}
            found += [
                {"head": head, **dict(zip(varied, point, strict=True))} for point in itertools.product(*varied.values())
            ]
        return found


def _draw(trial: Trial, name: str, entry: Entry) -> Any:
    if isinstance(entry, Range):
        if entry.whole:
            return trial.suggest_int(name, int(entry.low), int(entry.high), log=entry.log)
        return trial.suggest_float(name, entry.low, entry.high, log=entry.log)
    if len(entry.values) == 1:
        return entry.values[0]
    # A study stores scalars only, so lists are drawn as JSON.
    values = {json.dumps(value) if isinstance(value, list | tuple) else value: value for value in entry.values}
    return values[trial.suggest_categorical(name, list(values))]


def build_space(config: RunConfig) -> Space:
    """Build the search space of a config without mistakes (`find_mistakes`)."""
    tables = space_tables(config)
    heads = {}
    for name in as_list(tables["head"]):
        head, fixed = find_preset(name)
        hints = setting_types(head)
        heads[name] = {
            key: _build_entry(value, hints[key]) for key, value in tables.items() if key in hints and key not in fixed
        }
    for name, reads in reads_of_heads(config).items():
        heads[name]["read"] = Choices(reads)
    training = {key: _build_entry(value, TRAINING[key]) for key, value in tables.items() if key in TRAINING}
    return Space(training, heads)


def reads_of_heads(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """What heads read of sequences where the space does not say: as the encoder was made, or in both common ways."""
    tables, kind = space_tables(config), target_kind(config.task) or LABEL
    found: dict[str, tuple[str, ...]] = {}
    if "read" in tables or kind.position == "token":
        return found
    for name in as_list(tables["head"]):
        if reads := default_reads(name, ways_to_read(config.encoder.name)):
            found[name] = tuple(reads)
    return found


def space_tables(config: RunConfig) -> dict[str, Any]:
    """The `search.space` table of a config, with default heads if it names none. Without a table: the default space for
    the task's kind."""
    if config.search.space is None:
        return DEFAULTS[(target_kind(config.task) or LABEL).position]
    return {"head": DEFAULT_HEADS, **config.search.space}


def build_member(entry: dict[str, Any], name: str, train: TrainConfig, seed: int, kind: Kind) -> MemberConfig:
    """Build the member of one entry, with the given name."""
    named = [member for member in build_members([{**entry, "name": name}], train, seed, kind) if member.name == name]
    assert len(named) == 1, "an entry is one member"
    return named[0]


def _build_entry(value: Any, hint: Any) -> Entry:
    if isinstance(value, dict):
        whole = not convert(0.5, hint)[1]
        return Range(value["low"], value["high"], value.get("log", False), whole)
    # If the setting itself takes a list, its choices are lists.
    some = value if isinstance(value, list) and not convert(value, hint)[1] else [value]
    return Choices(tuple(convert(choice, hint)[0] for choice in some))


# ---------------------------------------------------------------------- mistakes


def find_mistakes(config: RunConfig) -> list[str]:
    """List the mistakes in the heads, the search and its space, for `config.build_config`."""
    return [*find_head_mistakes(config), *_search_mistakes(config), *_space_mistakes(config)]


def _search_mistakes(config: RunConfig) -> list[str]:
    mistakes, metric = [], config.search.metric
    if config.data.hold_out == 0:
        mistakes.append("a search compares members on held-out training data: set 'data.hold_out' above 0.")
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
    # The number of labels is unknown until the data is read, so allow the metrics for two labels and for more.
    return tuple(dict.fromkeys([*kind.default_metrics(("no", "yes")), *kind.default_metrics(())]))


def _space_mistakes(config: RunConfig) -> list[str]:
    tables = space_tables(config)
    names, mistakes = as_list(tables["head"]), []
    if not 0 < len(names) <= MOST_ITEMS or not all(isinstance(name, str) for name in names):
        return [f"'search.space.head' must be a head or a list of heads, not {shorten(tables['head'])}."]
    known = [name for name in names if name in HEADS or name in list_presets()]
    for name in sorted(set(names) - set(known)):
        mistakes.append(f"'search.space.head' has {shorten(name)}: {suggest(name, {*HEADS, *list_presets()})}")
    hints = TRAINING | {key: hint for name in known for key, hint in setting_types(find_preset(name)[0]).items()}
    for key, value in tables.items():
        if key == "head":
            continue
        if key in hints:
            mistakes += _entry_mistakes(key, value, hints[key])
        elif len(known) == len(names):  # otherwise it may belong to the misspelt head
            heads = ", ".join(names)
            hint = suggest(key, hints, "search.space.")
            mistakes.append(f"{shorten(f'search.space.{key}')} is not a setting of {heads}: {hint}")
    if mistakes:
        return mistakes
    own = {key for entries in build_space(config).heads.values() for key in entries}
    for key in sorted(set(tables) - {"head", *TRAINING} - own):
        mistakes.append(f"'search.space.{key}' is fixed by every preset in the space: name the head itself to vary it.")
    return mistakes + [f"search.space: {mistake}" for mistake in _value_mistakes(config)]


def _entry_mistakes(key: str, value: Any, hint: Any) -> list[str]:
    name = f"'search.space.{key}'"
    if isinstance(value, list) and not 0 < len(value) <= MOST_ITEMS:
        return [f"{name} has {len(value):,} values: list 1 to {MOST_ITEMS:,} values to try."]
    if not isinstance(value, dict):
        return []
    if not {"low", "high"} <= set(value) <= {"low", "high", "log"}:
        return [f"{name} must be a table {{low = …, high = …, log = true or false}}, not {shorten(value)}."]
    low, high, log = value["low"], value["high"], value.get("log", False)
    wanted = int if not convert(0.5, hint)[1] else float
    if not convert(1, hint)[1]:
        return [f"{name} can't be a range: give a list of choices."]
    if not convert(low, wanted)[1] or not convert(high, wanted)[1] or not isinstance(log, bool):
        kind = "whole numbers" if wanted is int else "numbers"
        return [f"{name}: `low` and `high` must be {kind} and `log` true or false, not {shorten(value)}."]
    if not low < high:
        return [f"{name}: `low` ({low}) must be less than `high` ({high})."]
    return [f"{name}: `low` must be above 0 if `log` is true, not {low}."] if log and low <= 0 else []


def _value_mistakes(config: RunConfig) -> list[str]:
    """Mistakes that the heads' own checks find: training settings are checked one at a time, head settings in all
    combinations."""
    space, found = build_space(config), []
    kind = target_kind(config.task) or LABEL
    for number, (head, own) in enumerate(space.heads.items()):
        combinations = itertools.product(*([(key, value) for value in end_values(entry)] for key, entry in own.items()))
        points = [dict(point) for point in itertools.islice(combinations, 1 + MOST_COMBINATIONS // len(space.heads))]
        if number == 0:
            points += [{key: value} for key, entry in space.training.items() for value in end_values(entry)]
        for point in points:
            try:
                build_members([{"head": head, **point}], TrainConfig(epochs=1), 0, kind)
            except ConfigError as error:
                found += error.mistakes
    return list(dict.fromkeys(found))


def end_values(entry: Entry) -> tuple[Any, ...]:
    """The choices, or both ends of the range."""
    return entry.values if isinstance(entry, Choices) else (entry.low, entry.high)
