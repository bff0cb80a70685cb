"""A finished run: typed access to the contents of its folder, and the rule that decides which model is best.

    run = FinishedRun("runs/rte")
    best = run.best(run.last)                      a Group: models that differ only in their seed
    run.best_model(run.last).name                  the model `predict` uses

Among the models that finished training on all of the data, the best is the one whose main metric on held-out data,
averaged over seeds, is highest. If nothing was held out, the first dev split is used instead, and `reason` says so.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

from msgspec import Meta

from bertvision.config import RunConfig
from bertvision.data.examples import Example
from bertvision.disk import (
    DamagedError,
    as_form,
    as_path,
    check_files,
    damaged,
    parse_json,
    plain_name,
    read_json,
    unreadable,
)
from bertvision.disk.forms import Count, Epochs, EpochsName, Facts, Few, Figures, Layer, Name, Seconds, Seed, Share
from bertvision.encoder.output_layer import CONFIG as OUTPUT_LAYER
from bertvision.encoder.output_layer import OutputFile
from bertvision.errors import UserError, suggest
from bertvision.heads import CONTROLS
from bertvision.kinds import KINDS, ExampleResults, Kind, kind_in, load_results
from bertvision.kinds.base import PREDICTIONS
from bertvision.pipeline.folder import (
    BASELINE,
    ENCODER,
    HELD_OUT,
    RunFolder,
    TaskFile,
    read_task_file,
    restore_task,
)
from bertvision.pipeline.job import Job, reopen
from bertvision.pipeline.lengths import LengthsFile, read_lengths
from bertvision.pipeline.log import Log, read_log
from bertvision.settings import build_section
from bertvision.tables import counted
from bertvision.tasks.base import Task
from bertvision.tasks.glue import GLUE

K = TypeVar("K")
ROLES = ("baseline", "encoder", "control", "peer", "head", "ensemble")
SCORES, CONFIG = "scores.json", "config.json"
FITTED = "fitted"
"""The method of ensembles whose weights are fitted on held-out data."""


# ---------------------------------------------------------------------- scores


def read_figure(scores: Mapping[str, Any], key: str) -> float | None:
    """Return one score of a model, or None. A key with a dot (`at_threshold.f1`) reads a nested score."""
    value: Any = scores
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def total_of(scores: Mapping[str, Any]) -> int:
    """How many examples a model was scored on; 0 if that was not recorded."""
    found = read_figure(scores, "total")
    return int(found) if found is not None and math.isfinite(found) else 0


def as_kept(epochs: float) -> float:
    """Round a snapshot's epochs to six digits, as in scores.json and folder names: 0.3333333 → 0.333333."""
    return float(f"{epochs:g}")


def rank_by_mean(figures: Mapping[K, Sequence[float]]) -> list[K]:
    """Sort the keys by mean score, highest first. Ties keep the given order; keys without a score are left out."""
    means = {key: sum(values) / len(values) for key, values in figures.items() if values}
    return sorted(means, key=lambda key: means[key], reverse=True)


def best_by_mean(figures: Mapping[K, Sequence[float]]) -> K | None:
    """Return the key with the highest mean score; the first one in a tie."""
    return next(iter(rank_by_mean(figures)), None)


# ---------------------------------------------------------------------- scores.json


class SavedVoice(TypedDict):
    """One of the models that an ensemble combines."""

    run: str | None
    epochs: Epochs
    name: Name


class SavedEntry(TypedDict, total=False):
    """A model at a snapshot in scores.json. Older runs lack some of it."""

    scores: dict[Name, Figures]
    parameters: Count | None
    trained_parameters: Count | None
    share: Share | None
    seconds: Seconds | None
    tokens: Count | None
    memory: Count | None
    states: str | None
    failed: bool | None
    head: Name | None
    layer: Layer | None
    group: Name
    seed: Seed | None
    epochs: Annotated[int, Meta(ge=0, le=1_000_000)] | None
    data_fraction: Annotated[float, Meta(gt=0, le=1)] | None
    begun: bool | None
    peer: bool | None
    ensemble: list[str]
    voices: list[SavedVoice]
    method: Name | None
    best: Few | None
    weights: list[float] | None


class ScoresFile(TypedDict):
    """scores.json."""

    task: Name
    kind: Name
    metrics: Annotated[list[Name], Meta(min_length=1)]
    snapshots: dict[EpochsName, dict[Name, SavedEntry]]
    chosen: NotRequired[Name]
    """The model that `fit` chose."""
    chosen_by: NotRequired[str]


# ---------------------------------------------------------------------- models


@dataclass(frozen=True)
class EnsembleMember:
    """One of the models that an ensemble combines."""

    run: str | None
    """The folder of the run it belongs to; None for the ensemble's own run."""
    epochs: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model at one snapshot as recorded in scores.json. Fields that were not recorded are None."""

    name: str
    epochs: float
    """For how many epochs its encoder was fine-tuned."""
    figures: Mapping[str, dict[str, Any]]
    """Scores by split; empty for a model whose training was stopped."""
    parameters: int
    trained_parameters: int | None
    """Parameters that were trained, for an encoder that was only partly fine-tuned."""
    share: float | None
    """Its parameters as a fraction of the encoder's."""
    seconds: float | None
    tokens: int | None
    memory: int | None
    states: str | None
    """Where the states came from: memory, streamed or stored."""
    failed: bool
    """Whether its training was stopped because its outputs became NaN or infinite."""
    head: str | None
    layer: int | None
    """The only layer that the head reads; None: all that the run's heads read."""
    group: str
    """The name without the seed."""
    seed: int | None
    trained_epochs: int | None
    """How many epochs a head was trained for."""
    data_fraction: float
    begun: bool
    """Whether it started from the weights of a trained head."""
    peer: bool
    """Whether it reads no encoder: TF-IDF, in the folder of a fitted model."""
    ensemble: tuple[str, ...]
    """Members as the user named them; empty if it is not an ensemble."""
    members: tuple[EnsembleMember, ...]
    method: str | None
    best_of: int | None
    """For an ensemble of the best heads: how many."""
    weights: tuple[float, ...] | None

    @property
    def role(self) -> str:
        if self.name in (BASELINE, ENCODER):
            return self.name
        if self.peer:
            return "peer"
        if self.ensemble:
            return "ensemble"
        return "control" if self.head in CONTROLS else "head"

    @property
    def title(self) -> str:
        """Its name in a sentence, followed by its role unless it is an ordinary head: last_linear (the control)."""
        if self.role == "encoder":
            return "the encoder alone"
        roles = {"control": "the control", "ensemble": "an ensemble"}
        return f"{self.name} ({roles[self.role]})" if self.role in roles else self.name

    @property
    def is_local(self) -> bool:
        """Whether it needs only the encoder of its own run and snapshot. An ensemble may need others."""
        return all(member.run is None and member.epochs == self.epochs for member in self.members)

    def scores(self, split: str) -> dict[str, Any]:
        """Its scores on a split; empty if it was not scored there."""
        return self.figures.get(split, {})

    @property
    def threshold(self) -> float | None:
        """The no-answer threshold chosen on held-out questions."""
        return read_figure(self.scores(HELD_OUT), "threshold")


def build_entry(name: str, epochs: float, found: SavedEntry) -> Entry:
    """The model that an entry of scores.json describes."""
    weights = found.get("weights")
    return Entry(
        name=name,
        epochs=epochs,
        figures=found.get("scores", {}),
        parameters=found.get("parameters") or 0,
        trained_parameters=found.get("trained_parameters"),
        share=found.get("share"),
        seconds=found.get("seconds"),
        tokens=found.get("tokens"),
        memory=found.get("memory"),
        states=found.get("states"),
        head=found.get("head"),
        layer=found.get("layer"),
        seed=found.get("seed"),
        method=found.get("method"),
        failed=bool(found.get("failed")),
        group=found.get("group", name),
        trained_epochs=found.get("epochs"),
        data_fraction=found.get("data_fraction") or 1.0,
        begun=bool(found.get("begun")),
        peer=bool(found.get("peer")),
        ensemble=tuple(found.get("ensemble", ())),
        best_of=found.get("best"),
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
        """The folder of its predictions on a split."""
        return self.folder.predictions(self.epochs, split, self.name)

    def results(self, split: str) -> ExampleResults:
        """Its per-example results on a split; the baseline has none."""
        folder = self.predictions(split)
        try:
            return load_results(folder, self.kind)
        except OSError as error:
            raise UserError(
                f"can't read the per-example results in '{folder}' ({error}): run `bertvision evaluate "
                f"{self.folder.path}` to write them again."
            ) from None

    def said(self, split: str, numbers: set[int]) -> dict[int, dict[str, Any]]:
        """Its predictions for some examples, read from predictions.jsonl and keyed by their index in the split."""
        path = self.predictions(split) / PREDICTIONS
        check_files(path.parent, path.name)
        try:
            with path.open("rb") as file:
                lines = {number: line for number, line in enumerate(file) if number in numbers}
            if missing := numbers - lines.keys():
                raise ValueError(f"it has no line {min(missing) + 1:,}")
            rows: dict[int, dict[str, Any]] = {number: parse_json(line) for number, line in lines.items()}
            for row in rows.values():
                as_form(row, self.kind.row_form)
            return rows
        except OSError as error:
            raise UserError(unreadable(path, error)) from None
        except ValueError as error:
            raise damaged(path, error) from None


@dataclass(frozen=True)
class Group:
    """Models that differ only in their seed; often a single one."""

    models: list[Model]

    @property
    def first(self) -> Model:
        """Any one of the models, for what all seeds share: parameters, settings, members."""
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
        """The name shown in tables and reports."""
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
        """The models that finished training."""
        return [model for model in self.models if not model.failed]

    def figures(self, split: str, key: str) -> list[float]:
        """One score for each seed, without missing and non-finite ones; see `read_figure` for the key."""
        found = [read_figure(model.scores(split), key) for model in self.trained]
        return [value for value in found if value is not None and math.isfinite(value)]

    def mean(self, split: str, key: str) -> float | None:
        found = self.figures(split, key)
        return sum(found) / len(found) if found else None


# ---------------------------------------------------------------------- the run


class EnvironmentFile(TypedDict, total=False):
    """environment.json, which machine.py writes. The rest of it is for people."""

    device: str
    packages: dict[str, str | None]


def read_scores_file(folder: RunFolder) -> ScoresFile:
    """The contents of scores.json. Raise UserError if there is none."""
    path = folder.file(SCORES)
    found = read_json(path, ScoresFile)
    if found is None:
        raise not_finished(folder, SCORES)
    kind = kind_in(path, found["kind"])
    if unknown := [metric for metric in found["metrics"] if kind.title(metric) is None]:
        raise damaged(path, f"a {kind} has no metric '{unknown[0]}'")
    return found


def not_finished(folder: RunFolder, name: str) -> UserError:
    return UserError(f"'{folder.path}' is not a finished run or model: it has no {name}. To write it, {folder.repair}.")


class FinishedRun:
    """Everything in the folder of a finished run."""

    def __init__(self, folder: Path | str, scores: ScoresFile | None = None) -> None:
        """`scores` are the contents of scores.json, for callers that already have them."""
        self.folder = RunFolder(as_path(folder, "the run folder"))
        self.scores: ScoresFile = read_scores_file(self.folder) if scores is None else scores

    def _missing(self, name: str) -> UserError:
        return not_finished(self.folder, name)

    @property
    def name(self) -> str:
        return self.folder.path.absolute().name

    @cached_property
    def task(self) -> Task:
        """The task's name, kind, labels and metrics, without its data."""
        facts = read_task_file(self.folder.path)
        if facts is None:
            raise self._missing("task.json")
        if facts["kind"] != self.scores["kind"]:
            raise damaged(self.folder.path / "task.json", "its kind is not that of scores.json")
        takes_pairs = facts["takes_pairs"] if "takes_pairs" in facts else _took_pairs(facts, self.settings)
        return restore_task(facts, takes_pairs)

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
    def config(self) -> Facts:
        """The contents of config.json, as they were written."""
        found = read_json(self.folder.file(CONFIG), Facts)
        if found is None:
            raise self._missing(CONFIG)
        return found

    @cached_property
    def settings(self) -> RunConfig:
        """The settings in config.json. The run's data is not needed, unlike in `job`."""
        mistakes: list[str] = []
        found: RunConfig = build_section(RunConfig, self.config, "", mistakes)
        if mistakes:
            raise damaged(self.folder.path / CONFIG, mistakes[0].rstrip("."))
        return found

    @cached_property
    def environment(self) -> EnvironmentFile:
        return read_json(self.folder.file("environment.json"), EnvironmentFile) or {}

    # ------------------------------------------------------------------ snapshots, splits and models

    @cached_property
    def snapshots(self) -> list[float]:
        return [float(epochs) for epochs in self.scores["snapshots"]]

    @cached_property
    def _models(self) -> list[Model]:
        self._check_names()
        return [
            Model(**vars(build_entry(name, float(at), found)), folder=self.folder, kind=self.kind)
            for at, models in self.scores["snapshots"].items()
            for name, found in models.items()
        ]

    def _check_names(self) -> None:
        """Refuse names of models and splits that could be paths, before any of them is used."""
        where = self.folder.path / "scores.json"
        for models in self.scores["snapshots"].values():
            for name, found in models.items():
                plain_name(name, f"a model's name in {where}")
                for split in found.get("scores", {}):
                    plain_name(split, f"a split's name in {where}")

    def models(self, epochs: float | None = None) -> list[Model]:
        """The models of one snapshot, or of all snapshots."""
        return [model for model in self._models if epochs is None or model.epochs == as_kept(epochs)]

    def rows(self, epochs: float) -> list[Group]:
        """All models of a snapshot by group, in the run's order, including the baseline and stopped ones."""
        found: dict[str, list[Model]] = {}
        for model in self.models(epochs):
            found.setdefault(model.group, []).append(model)
        return [Group(models) for models in found.values()]

    def groups(self, epochs: float, *roles: str) -> list[Group]:
        """The groups of a snapshot that finished training, with the given roles (default: all but the baseline)."""
        return [group for group in self.rows(epochs) if group.trained and group.role in (roles or ROLES[1:])]

    @cached_property
    def splits(self) -> list[str]:
        """The dev splits on which the run was scored."""
        baseline = next((model for model in self._models if model.role == "baseline"), None)
        if baseline is None:
            raise UserError(
                f"scores.json in '{self.folder.path}' lists no models: score the run again (`bertvision evaluate`)."
            )
        return list(baseline.figures)

    @cached_property
    def has_held_out(self) -> bool:
        return any(HELD_OUT in model.figures for model in self._models)

    @cached_property
    def head_snapshots(self) -> list[float]:
        """The snapshots heads were trained on. A report starts with the last one."""
        heads = {model.epochs for model in self._models if model.role in ("control", "head")}
        return [epochs for epochs in self.snapshots if epochs in heads]

    @property
    def last(self) -> float:
        _ = self.splits  # raises if the run has no models
        return (self.head_snapshots or self.snapshots)[-1]

    def encoder(self, epochs: float) -> Group:
        found = self.groups(epochs, "encoder")
        if not found:
            raise damaged(self.folder.path / SCORES, f"snapshots: there is no {ENCODER} at {counted(epochs, 'epoch')}")
        return found[0]

    def control(self, epochs: float) -> Group | None:
        """The control trained on all of the data; the best, if it reads the states in several ways."""
        found = [group for group in self.groups(epochs, "control") if group.is_whole]
        alike = [group for group in found if group.first.head == found[0].first.head]
        return self.ranked(alike)[0] if alike else None

    def find(self, name: str, epochs: float, *roles: str) -> Model:
        """The model with this name, or the best seed of the group with this name."""
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
        """The key of the metric that models are ranked by. For spans: F1 at the threshold chosen on held-out data."""
        return self.kind.main(self.metrics, self.has_held_out)

    @property
    def judged_on(self) -> str:
        """The split that models are ranked on: held-out data, or dev if nothing was held out."""
        return HELD_OUT if self.has_held_out else self.splits[0]

    @property
    def chosen(self) -> str | None:
        """The model that `fit` chose; None for a run, whose best model is found by its scores."""
        return self.scores.get("chosen")

    @property
    def reason(self) -> str:
        """Why the best model is called best."""
        if self.chosen is not None:
            return f"chosen by {self.scores.get('chosen_by', 'fit')}"
        if self.has_held_out:
            return "best on held-out training data"
        return f"best on {self.judged_on} (nothing was held out, so its score there is optimistic)"

    def ranked(self, groups: Iterable[Group]) -> list[Group]:
        """Sort groups by their main metric, best first. Ties keep the given order; groups without a score come last."""
        some = list(groups)
        order = rank_by_mean({at: group.figures(self.judged_on, self.main) for at, group in enumerate(some)})
        return [some[at] for at in order] + [group for at, group in enumerate(some) if at not in order]

    def best_of(self, groups: Iterable[Group]) -> Group | None:
        """The best of some groups; the first one in a tie, None if none has a score."""
        found = self.ranked(groups)
        return found[0] if found and found[0].figures(self.judged_on, self.main) else None

    def best(self, epochs: float, *roles: str) -> Group | None:
        """The best group of a snapshot with the given roles (default: all but the baseline). Ties go to the encoder,
        then the control, then the heads in the run's order."""
        groups = [group for group in self.groups(epochs, *roles) if not self._is_random(group)]
        whole = [group for group in groups if self.has_seen_all(group)]
        whole.sort(key=lambda group: ROLES.index(group.role))
        local = [group for group in whole if group.is_local]
        # Held-out data can't judge an ensemble whose weights were fitted on it, and an ensemble over several encoders
        # can't be used as one model: both are considered only if there is nothing else.
        return self.best_of([group for group in local if not group.is_fitted] or local or whole)

    def _is_random(self, group: Group) -> bool:
        """Whether it is an untouched encoder with an output layer that never learned. A checkpoint may bring one that
        did, and a fitted model has one on its last layer."""
        if group.role != "encoder" or group.epochs != 0 or self.chosen is not None:
            return False
        check_files(self.folder.encoder(0.0), OUTPUT_LAYER)
        layer = read_json(self.folder.encoder(0.0) / OUTPUT_LAYER, OutputFile)
        return layer is not None and layer["form"] == "linear"

    def has_seen_all(self, group: Group) -> bool:
        """Whether a model, or every member of an ensemble, was trained on all of the data."""
        return all(one.is_whole for one in (group, *self.members_of(group)))

    def members_of(self, ensemble: Group) -> list[Group]:
        """The members of an ensemble that belong to its own run and snapshot; empty for other models."""
        members = [member for model in ensemble.models for member in model.members]
        names = {member.name for member in members if member.run is None and member.epochs == ensemble.epochs}
        return [group for group in self.groups(ensemble.epochs) if any(model.name in names for model in group.models)]

    def best_head(self, epochs: float) -> Group | None:
        """The best head, excluding the control and ensembles."""
        return self.best(epochs, "head")

    def best_seed(self, group: Group) -> Model:
        """The best seed of a group: the model to use for predictions."""
        figures = {at: Group([model]).figures(self.judged_on, self.main) for at, model in enumerate(group.trained)}
        best = best_by_mean(figures)
        return group.trained[best or 0]

    def best_model(self, epochs: float, *roles: str) -> Model | None:
        """The best seed of the best group: the default model for predictions."""
        if self.chosen is not None and not roles:
            return self.find(self.chosen, epochs)
        group = self.best(epochs, *roles)
        return None if group is None else self.best_seed(group)

    # ------------------------------------------------------------------ other files

    def head_folder(self, model: Model) -> Path:
        return self.folder.head(model.epochs, model.name)

    @cached_property
    def log(self) -> Log:
        """The lines of metrics.jsonl, oldest first."""
        return read_log(self.folder.path)

    @cached_property
    def lengths(self) -> dict[str, tuple[list[int], list[int]]]:
        """Split → window lengths in tokens, and the number of windows of each length."""
        return {split: (one["lengths"], one["windows"]) for split, one in self._lengths.items()}

    @cached_property
    def uncut_lengths(self) -> dict[str, tuple[list[int], list[int]]]:
        """Split → text lengths in tokens before texts were cut into windows, and the number of texts of each length.
        Without splits of which they were not recorded."""
        found = {split: one["uncut"] for split, one in self._lengths.items() if "uncut" in one}
        return {split: (one["lengths"], one["texts"]) for split, one in found.items()}

    @cached_property
    def _lengths(self) -> LengthsFile:
        return read_lengths(self.folder.path)

    @cached_property
    def job(self) -> Job:
        return reopen(self.folder.path)

    def examples(self, split: str) -> Sequence[Example] | None:
        """The examples of a split, or None if the data is gone or has changed."""
        try:
            found = self.job.examples(split)
        except DamagedError:
            raise
        except UserError:
            return None
        # The files may have changed: these scores must not appear next to other texts.
        known = self._lengths.get(split)
        stamp = known.get("stamp") if known else None
        return found if stamp in (None, self.job.stamps.data(split)) else None


def _took_pairs(task: TaskFile, config: RunConfig) -> bool:
    """Whether a run's examples have two texts, for a task.json that is older than `takes_pairs`."""
    if task["name"] in GLUE:
        return GLUE[task["name"]].text_pair is not None
    return task["windowed"] or config.task.text_pair is not None
