"""Parse and check the ensembles of a config or a command."""

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

from bertvision.config import RunConfig, TrainConfig
from bertvision.disk import why_not_plain
from bertvision.errors import shorten, suggest
from bertvision.evaluation.combining import METHODS
from bertvision.kinds import LABEL
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.pipeline.members import MOST_MEMBERS, NAME, build_members
from bertvision.tables import counted
from bertvision.tasks.config import target_kind

KEYS = ("members", "best", "method", "name")
NO_HELD_OUT = (
    "weights are fitted on held-out training data, but data.hold_out is 0. Use method max, mean or sum, or set "
    "data.hold_out."
)
NOTHING_TO_CHOOSE_BY = (
    "the best heads are found on held-out training data, but data.hold_out is 0. Name `members`, or set data.hold_out."
)
MEMBER = re.compile(r"(?:(?P<run>.+):)?(?P<name>[^:@]+)(?:@(?P<epochs>\d+(?:\.\d+)?))?")


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """An ensemble as the user wrote it: members as `[RUN:]NAME[@EPOCHS]`, or how many of the best heads, and how to
    combine them."""

    members: tuple[str, ...]
    method: str = "max"
    name: str = ""
    best: int | None = None

    @property
    def shown(self) -> str:
        """The given name, or one built from the members' names."""
        plain = [re.sub(r"[^\w.-]+", "_", Path(member).name).strip("_") for member in self.members]
        return self.name or "_".join([self.method, *(plain or [f"best{self.best}"])])


def read_entry(entry: Any, mistakes: list[str]) -> Ensemble | None:
    """Build an ensemble from a config entry: a list of members, or a table. Append any mistakes to `mistakes`."""
    table: Any = {"members": entry} if isinstance(entry, list) else entry
    given = {*table} & {"members", "best"} if isinstance(table, dict) else set()
    best = table.get("best") if isinstance(table, dict) else None
    if given != {"members"} and given != {"best"} or not (_are_names(table.get("members")) or _is_count(best)):
        mistakes.append(
            f"'ensembles' has the entry {shorten(entry)}: expected a list of two or more models, or a table with such "
            "a list as `members` or, instead of it, the number of heads as `best` (2 or more)."
        )
        return None
    before, method, name = len(mistakes), table.get("method", "max"), table.get("name", "")
    members: list[str] = table.get("members", [])
    twice = sorted(member for member, count in Counter(members).items() if count > 1)
    mistakes += [f"an ensemble lists the member {shorten(member)} twice." for member in twice]
    for key in table:
        if key not in KEYS:
            mistakes.append(f"an ensemble has no setting {shorten(key)}: {suggest(key, KEYS)}")
    if not isinstance(method, str) or method not in METHODS:
        mistakes.append(f"`method` of an ensemble is {shorten(method)}: {suggest(method, METHODS)}")
    if name != "" and not _is_name(name):
        mistakes.append(
            f"an ensemble's `name` can't be {shorten(name)}: use a letter, then letters, digits, '_', '-' or '.' "
            f"('{BASELINE}' and '{ENCODER}' are reserved)."
        )
    if len(mistakes) > before:
        return None
    ensemble = Ensemble(tuple(members), method, name, best)
    if why := why_not_plain(ensemble.shown):
        mistakes.append(
            f"the name of ensemble {shorten(ensemble.shown)} can't be the name of a folder: {why}. Give it a `name`."
        )
        return None
    return ensemble


def _is_name(value: Any) -> bool:
    if not isinstance(value, str) or value in (BASELINE, ENCODER) or why_not_plain(value):
        return False
    return NAME.fullmatch(value) is not None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 < value <= MOST_MEMBERS


def _are_names(value: Any) -> bool:
    is_list = isinstance(value, list) and 1 < len(value) <= MOST_MEMBERS
    return is_list and all(isinstance(name, str) and name for name in value)


def find_ensemble_mistakes(config: RunConfig) -> list[str]:
    """List the mistakes in the ensembles of a config whose heads are valid."""
    mistakes: list[str] = []
    known, kept = _own_names(config), {*config.finetune.snapshots, config.finetune.epochs}
    asked = [read_entry(entry, mistakes) for entry in config.ensembles]
    for ensemble in filter(None, asked):
        for member in ensemble.members:
            found = MEMBER.fullmatch(member)
            if found is None:
                mistakes.append(
                    f"'ensembles' has the member {shorten(member)}: write NAME, NAME@EPOCHS or RUN:NAME@EPOCHS."
                )
            elif found["run"] is None and found["name"] not in known:
                mistakes.append(
                    f"'ensembles' has the member {shorten(member)}: {suggest(found['name'], sorted(known))}"
                )
            elif found["run"] is None and found["epochs"] and float(found["epochs"]) not in kept:
                saved = ", ".join(f"{epochs:g}" for epochs in sorted(kept))
                at = counted(float(found["epochs"]), "epoch")
                mistakes.append(
                    f"'ensembles' has the member {shorten(member)}: no snapshot is saved at {at}, only at {saved}."
                )
        if ensemble.method == "fitted" and config.data.hold_out == 0:
            mistakes.append(f"ensemble '{ensemble.shown}': {NO_HELD_OUT}")
        if ensemble.best and config.data.hold_out == 0:
            mistakes.append(f"ensemble '{ensemble.shown}': {NOTHING_TO_CHOOSE_BY}")
    shown = [ensemble.shown for ensemble in asked if ensemble]
    taken = {name for name in shown if shown.count(name) > 1 or name in known}
    mistakes += [f"two models are named '{name}': give the ensemble another `name`." for name in sorted(taken)]
    return mistakes


def _own_names(config: RunConfig) -> set[str]:
    # Mistakes in [train] are reported elsewhere.
    train = TrainConfig(seeds=config.train.seeds)
    kind = target_kind(config.task) or LABEL
    members = build_members(config.heads, train, config.seed, kind, config.encoder.name)
    return {ENCODER, *(member.name for member in members), *(member.group for member in members)}
