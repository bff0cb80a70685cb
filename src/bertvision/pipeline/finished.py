"""A finished run: typed access to what it left in its folder, and the one rule for which of its models is best.

    run = FinishedRun("runs/rte")
    best = run.best(run.last)                      a Group: models that differ only in their seed
    run.best_model(run.last).name                  what `predict` uses

The rule: of the models trained to the end on all of the data, the one with the highest mean over seeds of the main
figure on held-out training data. The first dev split stands in where nothing was held out, and `reason` says so.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from bertvision.data.examples import Example
from bertvision.disk import read_json
from bertvision.errors import UserError, suggest
from bertvision.heads import CONTROL
from bertvision.kinds import KINDS, ExampleResults, Kind, load_results
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT, RunFolder, restore_task
from bertvision.pipeline.job import Job, reopen
from bertvision.tables import counted
from bertvision.tasks.base import Task
from bertvision.tasks.config import TaskConfig
from bertvision.tasks.glue import GLUE

K = TypeVar("K")
ROLES = ("baseline", "encoder", "control", "head", "ensemble")
FITTED = "fitted"
"""The method of ensembles whose weights are fitted on held-out data."""


# ---------------------------------------------------------------------- figures


def read_figure(scores: Mapping[str, Any], key: str) -> float | None:
    """A figure of a model; a dot in the key leads into `at_threshold`."""
    value: Any = scores
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def as_kept(epochs: float) -> float:
    """A snapshot's epochs as scores.json and folders have them, to six digits: 0.3333333 is 0.333333 there."""
    return float(f"{epochs:g}")


def rank_by_mean(figures: Mapping[K, Sequence[float]]) -> list[K]:
    """Highest mean first, ties in the order given; what has no figure is left out."""
    means = {key: sum(values) / len(values) for key, values in figures.items() if values}
    return sorted(means, key=lambda key: means[key], reverse=True)


def best_by_mean(figures: Mapping[K, Sequence[float]]) -> K | None:
    """What has the highest mean; of several, the first."""
    return next(iter(rank_by_mean(figures)), None)


# ---------------------------------------------------------------------- models


@dataclass(frozen=True)
class EnsembleMember:
    """One of the models that an ensemble combines."""

    run: str | None
    """The folder of the run it belongs to; None: the ensemble's own."""
    epochs: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What scores.json says of one model at one snapshot; None where that was not recorded."""

    name: str
    epochs: float
    """How far its encoder was fine-tuned."""
    figures: Mapping[str, dict[str, Any]]
    """By split; a model whose training was stopped has none."""
    parameters: int
    trained_parameters: int | None
    """Of an encoder that was fine-tuned in part."""
    share: float | None
    """Of the encoder's parameters."""
    seconds: float | None
    tokens: int | None
    memory: int | None
    states: str | None
    """Where the states came from: kept, streamed or stored."""
    failed: bool
    """Whether its training was stopped because its outputs became NaN or infinite."""
    head: str | None
    group: str
    """The name without the seed."""
    seed: int | None
    trained_epochs: int | None
    """How many epochs a head was trained for."""
    data_fraction: float
    begun: bool
    """Whether it began with the weights of a trained head."""
    ensemble: tuple[str, ...]
    """Members as the user named them; empty: it is no ensemble."""
    members: tuple[EnsembleMember, ...]
    method: str | None
    weights: tuple[float, ...] | None

    @property
    def role(self) -> str:
        if self.name in (BASELINE, ENCODER):
            return self.name
        if self.ensemble:
            return "ensemble"
        return "control" if self.head == CONTROL else "head"

    @property
    def title(self) -> str:
        """Its name, and what it is where it is no head on all layers: last_linear (the control)."""
        roles = {"encoder": "no head", "control": "the control", "ensemble": "an ensemble"}
        return f"{self.name} ({roles[self.role]})" if self.role in roles else self.name

    @property
    def is_local(self) -> bool:
        """Whether it needs no other encoder than that of its own run and snapshot; an ensemble may."""
        return all(member.run is None and member.epochs == self.epochs for member in self.members)

    def scores(self, split: str) -> dict[str, Any]:
        """Its figures on a split, empty where it was not scored."""
        return self.figures.get(split, {})

    @property
    def threshold(self) -> float | None:
        """The no-answer threshold that was chosen on held-out questions."""
        return self.scores(HELD_OUT).get("threshold")


def build_entry(name: str, epochs: float, found: Mapping[str, Any]) -> Entry:
    """The one place that knows the keys of an entry in scores.json; older runs lack some of them."""
    weights, share = found.get("weights"), found.get("share")
    return Entry(
        name=name,
        epochs=epochs,
        figures=found.get("scores", {}),
        parameters=int(found.get("parameters") or 0),
        trained_parameters=found.get("trained_parameters"),
        share=None if share is None else float(share),
        **{key: found.get(key) for key in ("seconds", "tokens", "memory", "states", "head", "seed", "method")},
        failed=bool(found.get("failed")),
        group=str(found.get("group", name)),
        trained_epochs=found.get("epochs"),
        data_fraction=float(found.get("data_fraction") or 1),
        begun=bool(found.get("begun")),
        ensemble=tuple(found.get("ensemble", ())),
        members=tuple(
            EnsembleMember(one["run"], as_kept(one["epochs"]), one["name"]) for one in found.get("voices", ())
        ),
        weights=None if weights is None else tuple(weights),
    )


@dataclass(frozen=True, kw_only=True)
class Model(Entry):
    """One model at one snapshot: the trivial baseline, the encoder alone, the control, a head or an ensemble."""

    folder: RunFolder
    kind: Kind

    def predictions(self, split: str) -> Path:
        """The folder of what it predicted on a split."""
        return self.folder.predictions(self.epochs, split) / self.name

    def results(self, split: str) -> ExampleResults:
        """How it did on each example; the baseline has none."""
        folder = self.predictions(split)
        try:
            return load_results(folder, self.kind)
        except OSError as error:
            raise UserError(
                f"'{folder}' has no results of its examples that can be read ({error}): `bertvision evaluate "
                f"{self.folder.path}` brings the run up to date."
            ) from None

    def said(self, split: str, numbers: set[int]) -> dict[int, dict[str, Any]]:
        """Its predictions for some examples, by their number in the split, as they are in predictions.jsonl."""
        with (self.predictions(split) / "predictions.jsonl").open(encoding="utf-8") as file:
            return {number: json.loads(line) for number, line in enumerate(file) if number in numbers}


@dataclass(frozen=True)
class Group:
    """Models that differ in nothing but their seed; often only one."""

    models: list[Model]

    @property
    def first(self) -> Model:
        """For what is the same for all seeds: parameters, settings, members."""
        return self.models[0]

    @property
    def name(self) -> str:
        return self.first.group

    @property
    def role(self) -> str:
        return self.first.role

    @property
    def epochs(self) -> float:
        return self.first.epochs

    @property
    def title(self) -> str:
        """What people are shown."""
        shown = {"encoder": "encoder alone", "control": f"{self.name} (control)"}.get(self.role, self.name)
        if len(self.models) == 1:
            return shown
        stopped = len(self.models) - len(self.trained)
        return f"{shown}, {len(self.models)} seeds{f', {stopped} stopped' if stopped else ''}"

    @property
    def is_whole(self) -> bool:
        """Whether it was trained on all of the data."""
        return self.first.data_fraction == 1

    @property
    def is_local(self) -> bool:
        return all(model.is_local for model in self.models)

    @property
    def is_fitted(self) -> bool:
        """Whether its weights were fitted on held-out data."""
        return self.first.method == FITTED

    @property
    def trained(self) -> list[Model]:
        """Those that were trained to the end."""
        return [model for model in self.models if not model.failed]

    def figures(self, split: str, key: str) -> list[float]:
        """A figure of each seed; a dot in the key leads into `at_threshold`."""
        found = [read_figure(model.scores(split), key) for model in self.trained]
        return [value for value in found if value is not None and math.isfinite(value)]

    def mean(self, split: str, key: str) -> float | None:
        found = self.figures(split, key)
        return sum(found) / len(found) if found else None


# ---------------------------------------------------------------------- the run


class FinishedRun:
    """Everything that a run left in its folder."""

    def __init__(self, folder: Path | str, scores: dict[str, Any] | None = None) -> None:
        """`scores`: what scores.json holds or will hold, where the caller has it at hand."""
        self.folder = RunFolder(folder)
        self.scores: dict[str, Any] = self._read("scores") if scores is None else scores

    def _read(self, name: str) -> dict[str, Any]:
        found = read_json(self.folder.path / f"{name}.json")
        if found is None:
            raise UserError(
                f"'{self.folder.path}' is not a finished run: it has no {name}.json. Finish it with `bertvision run "
                f"{self.folder.path}` (or `evaluate`)."
            )
        return dict(found)

    @property
    def name(self) -> str:
        return self.folder.path.absolute().name

    @cached_property
    def task(self) -> Task:
        """Name, kind, labels and metrics; not the data."""
        described = self._read("task")
        if "takes_pairs" in described:
            return restore_task(described)
        return restore_task({**described, "takes_pairs": _took_pairs(described, self.config)})

    @property
    def task_name(self) -> str:
        return str(self.scores["task"])

    @cached_property
    def kind(self) -> Kind:
        return KINDS[self.scores["kind"]]

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.scores["metrics"])

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._read("config")

    @cached_property
    def environment(self) -> dict[str, Any]:
        return dict(read_json(self.folder.path / "environment.json") or {})

    # ------------------------------------------------------------------ snapshots, splits and models

    @cached_property
    def snapshots(self) -> list[float]:
        return [float(epochs) for epochs in self.scores["snapshots"]]

    @cached_property
    def _models(self) -> list[Model]:
        return [
            Model(**vars(build_entry(name, float(at), found)), folder=self.folder, kind=self.kind)
            for at, models in self.scores["snapshots"].items()
            for name, found in models.items()
        ]

    def models(self, epochs: float | None = None) -> list[Model]:
        """All models of a snapshot, or of all of them."""
        return [model for model in self._models if epochs is None or model.epochs == as_kept(epochs)]

    def rows(self, epochs: float) -> list[Group]:
        """All models of a snapshot by group, in the run's order, the baseline and those that were stopped too."""
        found: dict[str, list[Model]] = {}
        for model in self.models(epochs):
            found.setdefault(model.group, []).append(model)
        return [Group(models) for models in found.values()]

    def groups(self, epochs: float, *roles: str) -> list[Group]:
        """The models of a snapshot that were trained to the end; of these roles, or of all but the baseline."""
        return [group for group in self.rows(epochs) if group.trained and group.role in (roles or ROLES[1:])]

    @cached_property
    def splits(self) -> list[str]:
        """The dev splits that were scored."""
        baseline = next((model for model in self._models if model.role == "baseline"), None)
        if baseline is None:
            raise UserError(
                f"'{self.folder.path}' has no models in its scores.json: score it again (`bertvision evaluate`)."
            )
        return list(baseline.figures)

    @cached_property
    def has_held_out(self) -> bool:
        return any(HELD_OUT in model.figures for model in self._models)

    @cached_property
    def head_snapshots(self) -> list[float]:
        """The snapshots that heads were trained on; the last one is what a report speaks of first."""
        heads = {model.epochs for model in self._models if model.role in ("control", "head")}
        return [epochs for epochs in self.snapshots if epochs in heads]

    @property
    def last(self) -> float:
        _ = self.splits  # there are models
        return (self.head_snapshots or self.snapshots)[-1]

    def encoder(self, epochs: float) -> Group:
        return self.groups(epochs, "encoder")[0]

    def control(self, epochs: float) -> Group | None:
        """The last-layer control on all of the data."""
        found = [group for group in self.groups(epochs, "control") if group.is_whole]
        return found[0] if found else None

    def find(self, name: str, epochs: float, *roles: str) -> Model:
        """The model of that name, or of several seeds that share the name the best."""
        groups = self.groups(epochs, *roles)
        models = {model.name: model for group in groups for model in group.trained}
        if name in models:
            return models[name]
        seeds = next((group for group in groups if group.name == name), None)
        if seeds is None:
            at = counted(epochs, "epoch")
            raise UserError(f"'{self.folder.path}' has no model '{name}' at {at}: {suggest(name, list(models))}")
        return self.best_seed(seeds)

    # ------------------------------------------------------------------ the best

    @cached_property
    def main(self) -> str:
        """The key of the figure that models are compared by: spans by F1 at the threshold chosen on held-out data."""
        return self.kind.main(self.metrics, self.has_held_out)

    @property
    def judged_on(self) -> str:
        """The split that models are ranked on: dev only where nothing was held out."""
        return HELD_OUT if self.has_held_out else self.splits[0]

    @property
    def reason(self) -> str:
        """Why the best model is called that."""
        if self.has_held_out:
            return "best on held-out training data"
        return f"nothing was held out: best on {self.judged_on}, which flatters its score there"

    def ranked(self, groups: Iterable[Group]) -> list[Group]:
        """Best first, ties in the order given; those without a figure last."""
        some = list(groups)
        order = rank_by_mean({at: group.figures(self.judged_on, self.main) for at, group in enumerate(some)})
        return [some[at] for at in order] + [group for at, group in enumerate(some) if at not in order]

    def best_of(self, groups: Iterable[Group]) -> Group | None:
        """The best of some groups, the first of equals; None where none has a figure."""
        found = self.ranked(groups)
        return found[0] if found and found[0].figures(self.judged_on, self.main) else None

    def best(self, epochs: float, *roles: str) -> Group | None:
        """The best of a snapshot: of these roles, or of all but the baseline. Ties go to the encoder, then the control,
        then the heads in the run's order."""
        whole = [group for group in self.groups(epochs, *roles) if self.has_seen_all(group)]
        whole.sort(key=lambda group: ROLES.index(group.role))
        local = [group for group in whole if group.is_local]
        # Weights that were fitted on held-out data can't be judged there, and an ensemble over several encoders can't
        # be used as one model: such are compared only where there is nothing else.
        return self.best_of([group for group in local if not group.is_fitted] or local or whole)

    def has_seen_all(self, group: Group) -> bool:
        """Whether it, or every member of an ensemble, was trained on all of the data."""
        return all(one.is_whole for one in (group, *self.members_of(group)))

    def members_of(self, ensemble: Group) -> list[Group]:
        """Those of an ensemble's members that belong to the same run and snapshot; none of what is no ensemble."""
        members = [member for model in ensemble.models for member in model.members]
        names = {member.name for member in members if member.run is None and member.epochs == ensemble.epochs}
        return [group for group in self.groups(ensemble.epochs) if any(model.name in names for model in group.models)]

    def best_head(self, epochs: float) -> Group | None:
        """The best of those that read all layers: neither the control nor an ensemble."""
        return self.best(epochs, "head")

    def best_seed(self, group: Group) -> Model:
        """The model that stands for its group in use."""
        figures = {at: Group([model]).figures(self.judged_on, self.main) for at, model in enumerate(group.trained)}
        best = best_by_mean(figures)
        return group.trained[best or 0]

    def best_model(self, epochs: float, *roles: str) -> Model | None:
        """The best seed of the best group: the model that is used where none is named."""
        group = self.best(epochs, *roles)
        return None if group is None else self.best_seed(group)

    # ------------------------------------------------------------------ what else lies in the folder

    def head_folder(self, model: Model) -> Path:
        return self.folder.head(model.epochs, model.name)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, oldest first; what a kill cut off is left out."""
        path, found = self.folder.path / "metrics.jsonl", []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    @cached_property
    def lengths(self) -> dict[str, tuple[list[int], list[int]]]:
        """Split → token lengths of windows, and how many windows have them."""
        found = read_json(self.folder.path / "lengths.json") or {}
        return {split: (one["lengths"], one["windows"]) for split, one in found.items()}

    @cached_property
    def job(self) -> Job:
        return reopen(self.folder.path)

    def examples(self, split: str) -> list[Example] | None:
        """The examples of a split, or None where the data are no longer there."""
        try:
            found = self.job.examples(split)
        except UserError:
            return None
        # Files may have changed since: texts of other examples beside these scores would be wrong.
        stamp = (read_json(self.folder.path / "lengths.json") or {}).get(split, {}).get("stamp")
        return found if stamp in (None, self.job.stamps.data(split)) else None


def _took_pairs(task: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a run was about two texts an example, where its task.json is older than `takes_pairs`."""
    if task["name"] in GLUE:
        return GLUE[task["name"]].text_pair is not None
    return bool(task["windowed"]) or TaskConfig(**config["task"]).text_pair is not None
