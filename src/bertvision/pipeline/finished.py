"""Evidence: all that a finished run left in its folder, for analyses and reports to read."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertvision.data.examples import Example
from bertvision.disk import read_json
from bertvision.errors import UserError
from bertvision.heads.members import CONTROL
from bertvision.kinds import Kind, Marks, load_marks
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT, RunFolder
from bertvision.pipeline.job import Job, reopen
from bertvision.pipeline.scoreboard import read_figure
from bertvision.tasks.base import Task, restore_task

ROLES = ("baseline", "encoder", "control", "head", "ensemble")


@dataclass(frozen=True)
class Model:
    """One model at one snapshot: the trivial baseline, the encoder itself, the control, a head or an ensemble."""

    name: str
    epochs: float
    """How far its encoder was fine-tuned."""
    facts: dict[str, Any]
    """Its entry in scores.json: parameters, seconds, tokens, memory, scores …"""
    run: RunFolder
    kind: Kind

    @property
    def role(self) -> str:
        if self.name in (BASELINE, ENCODER):
            return self.name
        if "ensemble" in self.facts:
            return "ensemble"
        return "control" if self.facts.get("head") == CONTROL else "head"

    @property
    def group(self) -> str:
        """The name without the seed."""
        return str(self.facts.get("group", self.name))

    @property
    def failed(self) -> bool:
        return bool(self.facts.get("failed"))

    def scores(self, split: str) -> dict[str, Any]:
        found: dict[str, Any] = self.facts["scores"].get(split, {})
        return found

    @property
    def threshold(self) -> float | None:
        """The no-answer threshold that was chosen on held-out questions."""
        return self.scores(HELD_OUT).get("threshold")

    def marks(self, split: str) -> Marks:
        """How it did on each example; the baseline has none."""
        folder = self.run.predictions(self.epochs, split) / self.name
        try:
            return load_marks(folder, self.kind)
        except OSError as error:
            raise UserError(
                f"'{folder}' has no marks of its examples that can be read ({error}): `bertvision evaluate "
                f"{self.run.path}` brings the run up to date."
            ) from None

    def said(self, split: str, numbers: set[int]) -> dict[int, dict[str, Any]]:
        """Its predictions for some examples, by their number in the split, as they are in predictions.jsonl."""
        path = self.run.predictions(self.epochs, split) / self.name / "predictions.jsonl"
        with path.open(encoding="utf-8") as file:
            return {number: json.loads(line) for number, line in enumerate(file) if number in numbers}


@dataclass(frozen=True)
class Group:
    """Models that differ in nothing but their seed; often only one."""

    models: list[Model]

    @property
    def name(self) -> str:
        return self.models[0].group

    @property
    def role(self) -> str:
        return self.models[0].role

    @property
    def epochs(self) -> float:
        return self.models[0].epochs

    @property
    def facts(self) -> dict[str, Any]:
        return self.models[0].facts

    @property
    def title(self) -> str:
        """What people are shown."""
        shown = {"encoder": "encoder itself", "control": f"{self.name} (control)"}.get(self.role, self.name)
        if len(self.models) == 1:
            return shown
        stopped = len(self.models) - len(self.well)
        return f"{shown}, {len(self.models)} seeds{f', {stopped} stopped' if stopped else ''}"

    @property
    def is_whole(self) -> bool:
        """Whether it was trained on all of the data."""
        return bool(self.facts.get("data_fraction", 1) == 1)

    @property
    def well(self) -> list[Model]:
        """Those that were trained to the end."""
        return [model for model in self.models if not model.failed]

    def figures(self, split: str, key: str) -> list[float]:
        """A figure of each seed; a dot in the key leads into `at_threshold`."""
        found = [read_figure(model.scores(split), key) for model in self.well]
        return [value for value in found if value is not None]

    def mean(self, split: str, key: str) -> float | None:
        found = self.figures(split, key)
        return sum(found) / len(found) if found else None


class Evidence:
    def __init__(self, folder: Path | str) -> None:
        self.run = RunFolder(folder)
        found = read_json(self.run.path / "scores.json")
        if found is None:
            raise UserError(
                f"'{folder}' has no scores.json: expected the folder of a run that was scored. Finish it with "
                f"`bertvision run {folder}` (or `evaluate`)."
            )
        self.scores: dict[str, Any] = found

    @property
    def name(self) -> str:
        return self.run.path.absolute().name

    @cached_property
    def task(self) -> Task:
        """Name, kind, labels and metrics; not the data."""
        return restore_task(read_json(self.run.path / "task.json"))

    @property
    def kind(self) -> Kind:
        return self.task.kind

    @cached_property
    def config(self) -> dict[str, Any]:
        return dict(read_json(self.run.path / "config.json"))

    @cached_property
    def environment(self) -> dict[str, Any]:
        return dict(read_json(self.run.path / "environment.json") or {})

    @cached_property
    def splits(self) -> list[str]:
        """The dev splits that were scored."""
        return list(next(iter(self.scores["snapshots"].values()))[BASELINE]["scores"])

    @cached_property
    def has_held_out(self) -> bool:
        return any(HELD_OUT in model.facts["scores"] for model in self.models())

    @cached_property
    def main(self) -> str:
        """The key of the figure that models are compared by: spans by F1 at the threshold chosen on held-out data."""
        return self.kind.main(self.task.metrics, self.has_held_out)

    @cached_property
    def snapshots(self) -> list[float]:
        return [float(epochs) for epochs in self.scores["snapshots"]]

    @cached_property
    def head_snapshots(self) -> list[float]:
        """The snapshots that heads were trained on; the last one is what a report speaks of first."""
        heads = {model.epochs for model in self.models() if model.role in ("control", "head")}
        return [epochs for epochs in self.snapshots if epochs in heads]

    @property
    def last(self) -> float:
        return (self.head_snapshots or self.snapshots)[-1]

    def models(self, epochs: float | None = None) -> list[Model]:
        """All models of a snapshot, or of all of them."""
        return [
            Model(name, float(at), facts, self.run, self.kind)
            for at, models in self.scores["snapshots"].items()
            if epochs is None or float(at) == epochs
            for name, facts in models.items()
        ]

    def groups(self, epochs: float, *roles: str) -> list[Group]:
        """The models of a snapshot by group, in the run's order; of these roles, or of all but the baseline."""
        found: dict[str, list[Model]] = {}
        for model in self.models(epochs):
            if model.role in (roles or ROLES[1:]):
                found.setdefault(model.group, []).append(model)
        return [group for group in map(Group, found.values()) if group.well]

    def encoder(self, epochs: float) -> Group:
        return self.groups(epochs, "encoder")[0]

    def control(self, epochs: float) -> Group | None:
        """The last-layer control on all of the data."""
        found = [group for group in self.groups(epochs, "control") if group.is_whole]
        return found[0] if found else None

    def best_head(self, epochs: float) -> Group | None:
        return self.best(epochs, "head")

    def best(self, epochs: float, role: str) -> Group | None:
        """The one on all of the data with the highest main figure on held-out training data; on the first dev split
        where nothing was held out."""
        split = HELD_OUT if self.has_held_out else self.splits[0]
        scored = [(group.mean(split, self.main), group) for group in self.groups(epochs, role) if group.is_whole]
        # Weights that were fitted on held-out data can't be judged there, if there are others.
        scored = [one for one in scored if one[1].facts.get("method") != "fitted"] or scored
        known = [(value, group) for value, group in scored if value is not None]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    def head_folder(self, model: Model) -> Path:
        return self.run.head(model.epochs, model.name)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, oldest first; what a kill cut off is left out."""
        path, found = self.run.path / "metrics.jsonl", []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    @cached_property
    def lengths(self) -> dict[str, tuple[list[int], list[int]]]:
        """Split → token lengths of windows, and how many windows have them."""
        found = read_json(self.run.path / "lengths.json") or {}
        return {split: (one["lengths"], one["windows"]) for split, one in found.items()}

    @cached_property
    def job(self) -> Job:
        return reopen(self.run.path)

    def examples(self, split: str) -> list[Example] | None:
        """The examples of a split, or None where the data are no longer there."""
        try:
            found = self.job.examples(split)
        except UserError:
            return None
        # Files may have changed since: texts of other examples beside these scores would be wrong.
        stamp = (read_json(self.run.path / "lengths.json") or {}).get(split, {}).get("stamp")
        return found if stamp in (None, self.job.stamps.data(split)) else None
