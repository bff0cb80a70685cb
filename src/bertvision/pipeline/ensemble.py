"""Ensembles: the combined predictions of several models, from one run or several.

    ensembles = [
        ["encoder", "adapter_386_skip"],                                        as in the paper: maximum probability
        { members = ["encoder", "adapter_64"], method = "fitted" },             weights fitted on held-out data
        { members = ["encoder", "runs/other:adapter_64@0.5"], name = "two" },   another run, another snapshot
        { best = 3, method = "mean" },                                          the best heads, by their held-out loss
    ]

An ensemble is scored, saved and reported like any other model. If a member has several seeds, there is one ensemble per
seed.
"""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from bertvision.data.examples import Example
from bertvision.disk import (
    as_form,
    check_files,
    damaged,
    fingerprint,
    load_arrays,
    read_json,
    read_stamp,
    repair_of,
    write_sealed,
)
from bertvision.disk.forms import Few
from bertvision.errors import UserError, suggest
from bertvision.kinds import Predictions
from bertvision.kinds.base import OUTPUTS
from bertvision.network import no_downloads
from bertvision.pipeline.ensemble_entries import MEMBER, NO_HELD_OUT, NOTHING_TO_CHOOSE_BY, Ensemble, read_entry
from bertvision.pipeline.finished import SCORES, FinishedRun, Model, SavedEntry, ScoresFile
from bertvision.pipeline.folder import ADDED_ENSEMBLES, HELD_OUT
from bertvision.pipeline.job import Job, reopen
from bertvision.pipeline.score import keep_scored, read_scores
from bertvision.tables import counted

ENSEMBLE_VERSION = 2


class AddedEnsemble(TypedDict):
    members: list[str]
    method: str
    name: str
    best: NotRequired[Few | None]


class EnsemblesFile(TypedDict):
    """ensembles.json."""

    ensembles: list[AddedEnsemble]


@dataclasses.dataclass(frozen=True)
class Member:
    """One model of an ensemble, with the job of the run it belongs to."""

    job: Job
    model: Model

    def stamp(self, split: str) -> str:
        folder = self.model.predictions(split)
        found = read_stamp(folder)
        if found is None:
            raise UserError(f"{folder} is not complete: {repair_of(folder)}")
        return str(found["stamp"])

    def outputs(self, split: str) -> np.ndarray:
        folder = self.model.predictions(split)
        check_files(folder, OUTPUTS)
        found = load_arrays(folder / OUTPUTS)
        if "outputs" not in found:
            raise damaged(folder / OUTPUTS, "it has no outputs")
        return found["outputs"]


def add_ensembles(job: Job, scores: ScoresFile) -> None:
    """Score the ensembles in the config and those added with `bertvision ensemble`, and add them to the scores."""
    asked = [ensemble for entry in job.config.ensembles if (ensemble := read_entry(entry, [])) is not None]
    asked += _added(job)
    if asked and job.machine.is_main:
        for ensemble in asked:
            for epochs in _snapshots_of(job, ensemble):
                try:
                    score_ensemble(job, ensemble, epochs, scores)
                except UserError as error:  # not worth failing a run after hours of training
                    job.reporter.say(f"skipping ensemble '{ensemble.shown}': {error}")
        write_sealed(job.folder.path / SCORES, {**scores})


@no_downloads()
def add_ensemble(job: Job, ensemble: Ensemble, scores: ScoresFile) -> dict[str, Any]:
    """Score one more ensemble and record it, so that the next evaluation includes it. Return its entries in scores.json
    by name, one per seed."""
    mistakes: list[str] = []
    read_entry({"members": list(ensemble.members), "method": ensemble.method, "name": ensemble.name}, mistakes)
    if _is_taken(job, ensemble, scores):
        mistakes.append(
            f"the run already has another model called '{ensemble.shown}': give this one a different `name`."
        )
    if mistakes:
        raise UserError(" ".join(mistakes))
    ensemble = dataclasses.replace(ensemble, members=_whole_paths(ensemble))
    added: dict[str, Any] = {}
    for epochs in _snapshots_of(job, ensemble):
        added |= score_ensemble(job, ensemble, epochs, scores)
    if not added:
        raise UserError(f"can't build ensemble '{ensemble.shown}': the training of one of its members diverged.")
    kept = [other for other in _added(job) if other.shown != ensemble.shown]
    write_sealed(
        job.folder.path / ADDED_ENSEMBLES, {"ensembles": [dataclasses.asdict(one) for one in [*kept, ensemble]]}
    )
    write_sealed(job.folder.path / SCORES, {**scores})
    return added


def _is_taken(job: Job, ensemble: Ensemble, scores: ScoresFile) -> bool:
    """Whether its name belongs to another model, or to an ensemble with other members or another method."""
    models = FinishedRun(job.folder.path, scores).models()
    if any(ensemble.shown in (model.name, model.group) for model in models if model.role != "ensemble"):
        return True
    asked = [one for entry in job.config.ensembles if (one := read_entry(entry, [])) is not None]
    others = [one for one in [*asked, *_added(job)] if one.shown == ensemble.shown]
    return any((one.method, _whole_paths(one)) != (ensemble.method, _whole_paths(ensemble)) for one in others)


def _whole_paths(ensemble: Ensemble) -> tuple[str, ...]:
    """Return the members with absolute paths to other runs: the next evaluation may start in another directory."""
    return tuple(_with_whole_path(member) for member in ensemble.members)


def _with_whole_path(member: str) -> str:
    found = MEMBER.fullmatch(member)
    if found is None or found["run"] is None:
        return member
    return f"{Path(os.path.expanduser(found['run'])).absolute()}:{member[found.end('run') + 1 :]}"


def _added(job: Job) -> list[Ensemble]:
    path = job.folder.file(ADDED_ENSEMBLES)
    found = read_json(path)
    found = {"ensembles": found} if isinstance(found, list) else found  # earlier versions wrote a list
    try:
        added = as_form(found, EnsemblesFile)["ensembles"] if found is not None else []
    except ValueError as error:
        raise damaged(path, error) from None
    for entry in added:
        mistakes: list[str] = []
        read_entry({"members": entry["members"], "method": entry["method"], "name": entry["name"]}, mistakes)
        if mistakes:
            raise damaged(path, mistakes[0].rstrip("."))
    return [Ensemble(tuple(one["members"]), one["method"], one["name"]) for one in added]


def _snapshots_of(job: Job, ensemble: Ensemble) -> list[float]:
    """The snapshots an ensemble is scored at: all that have heads, unless its members name their own."""
    own = [found for member in ensemble.members if (found := MEMBER.fullmatch(member)) and found["run"] is None]
    fixed = [float(found["epochs"]) for found in own if found["epochs"]]
    if len(fixed) < len(own):
        return job.head_snapshots
    return [max(fixed, default=job.head_snapshots[-1])]


def score_ensemble(job: Job, ensemble: Ensemble, epochs: float, scores: ScoresFile) -> dict[str, Any]:
    """Score an ensemble at one snapshot, once per seed of its members. Return the entries added to the scores."""
    run = FinishedRun(job.folder.path, scores)
    if ensemble.best is not None:
        ensemble = dataclasses.replace(
            ensemble, members=_best_heads(job, run, ensemble.best, epochs), name=ensemble.shown
        )
    by_seed = _members_by_seed(job, run, ensemble, epochs)
    added: dict[str, Any] = {}
    for seed, members in by_seed.items():
        name = ensemble.shown if len(by_seed) == 1 else f"{ensemble.shown}_seed{seed}"
        if any(member.model.failed for member in members):
            job.reporter.say(f"skipping ensemble '{name}': the training of one of its members diverged.")
            continue
        _check_same_task(job, members)
        weights = _score_together(job, ensemble, epochs, name, members)
        added[name] = {
            **_costs(members, run.encoder(epochs).first.parameters),
            "ensemble": list(ensemble.members),
            "voices": [
                {"run": None if member.job is job else str(member.job.folder.path.absolute())}
                | {"epochs": member.model.epochs, "name": member.model.name}
                for member in members
            ],
            "method": ensemble.method,
            "group": ensemble.shown,
            "seed": seed,
            "scores": read_scores(job, epochs, name),
        }
        if ensemble.best is not None:
            added[name]["best"] = ensemble.best
        if weights is not None:
            added[name]["weights"] = [round(float(weight), 6) for weight in weights]
        scores["snapshots"][f"{epochs:g}"][name] = cast(SavedEntry, added[name])
    return added


def _costs(members: list[Member], whole: int) -> dict[str, Any]:
    """Cost of an ensemble: the parameters of all members, and the most expensive pass among its heads."""
    heads = [member.model for member in members if member.model.role != "encoder"]
    parameters = sum(member.model.parameters for member in members)
    highest = {
        "seconds": max((model.seconds or 0 for model in heads), default=0),
        "tokens": max((model.tokens or 0 for model in heads), default=0),
        "memory": max((model.memory or 0 for model in heads), default=0),
    }
    return {"parameters": parameters, "share": parameters / whole, **highest, "failed": False}


def _members_by_seed(job: Job, run: FinishedRun, ensemble: Ensemble, epochs: float) -> dict[int, list[Member]]:
    """Return seed → models to combine; a single entry if no member has several seeds."""
    found = [_find_members(job, run, member, epochs) for member in ensemble.members]
    several = [set(members) for members in found if len(members) > 1]
    if not several:
        return {job.config.seed: [next(iter(members.values())) for members in found]}
    seeds = sorted(set.intersection(*several))
    if not seeds:
        raise UserError(f"the members of '{ensemble.shown}' have no seed in common: name individual models instead.")
    return {seed: [members.get(seed) or next(iter(members.values())) for members in found] for seed in seeds}


def _best_heads(job: Job, run: FinishedRun, count: int, epochs: float) -> tuple[str, ...]:
    """The heads with the lowest loss on held-out data, averaged over their seeds."""
    if not job.examples(HELD_OUT):
        raise UserError(NOTHING_TO_CHOOSE_BY)
    features, kind = job.features(HELD_OUT), job.task.kind
    losses = {
        group.name: sum(kind.held_out_loss(Member(job, model).outputs(HELD_OUT), features) for model in group.trained)
        / len(group.trained)
        for group in run.groups(epochs, "head") if group.is_whole
    }  # fmt: skip
    if len(losses) < 2:
        raise UserError(f"it needs two heads that finished training, but there is {counted(len(losses), 'head')}.")
    return tuple(sorted(losses, key=lambda name: losses[name])[:count])


def _find_members(job: Job, run: FinishedRun, member: str, epochs: float) -> dict[int, Member]:
    """Return seed → model, for all models that a member's name refers to."""
    found = MEMBER.fullmatch(member)
    if found is None:
        raise UserError(f"'{member}' does not name a model: write NAME, NAME@EPOCHS or RUN:NAME@EPOCHS.")
    if found["run"] is not None:
        job, run = _open_other(job, found["run"])
        epochs = job.head_snapshots[-1]
    if found["epochs"]:
        epochs = float(found["epochs"])
    if not run.models(epochs):
        kept = ", ".join(f"{one:g}" for one in run.snapshots)
        raise UserError(
            f"'{member}': '{job.folder.path}' has no snapshot at {counted(epochs, 'epoch')}, only at {kept}."
        )
    name = found["name"]
    models = [model for model in run.models(epochs) if model.role in ("encoder", "control", "head")]
    # A model's name takes precedence over a group's.
    some = [model for model in models if model.name == name] or [model for model in models if model.group == name]
    if not some:
        known = sorted({model.name for model in models} | {model.group for model in models})
        raise UserError(
            f"'{job.folder.path}' has no model '{name}' at {counted(epochs, 'epoch')}: {suggest(name, known)}"
        )
    return {model.seed or 0: Member(job, model) for model in some}


def _open_other(job: Job, run: str) -> tuple[Job, FinishedRun]:
    finished = FinishedRun(run)
    return reopen(run, job.reporter), finished


def _check_same_task(job: Job, members: list[Member]) -> None:
    for other in {id(member.job): member.job for member in members if member.job is not job}.values():
        if (other.task.kind, other.task.labels) != (job.task.kind, job.task.labels):
            raise UserError(
                f"'{other.folder.path}' predicts {_describe(other)}, but '{job.folder.path}' predicts "
                f"{_describe(job)}: all members of an ensemble must predict the same target."
            )


def _describe(job: Job) -> str:
    labels = f" ({', '.join(job.task.labels)})" if job.task.labels else ""
    return f"a {job.task.kind}{labels}"


def check_same_examples(job: Job, other: Job, split: str) -> None:
    """Raise UserError, naming the examples, if two runs were not scored on the same ones."""
    if split != HELD_OUT and split not in other.dev_splits:
        raise UserError(
            f"'{other.folder.path}' was not scored on '{split}', only on {', '.join(other.dev_splits)}: all members of "
            "an ensemble must be scored on the same examples."
        )
    ours = {example.id: example for example in job.examples(split)}
    theirs = {example.id: example for example in other.examples(split)}
    here, there = f"'{job.folder.path}'", f"'{other.folder.path}'"
    differences = [
        (f"only in {here}", [name for name in ours if name not in theirs]),
        (f"only in {there}", [name for name in theirs if name not in ours]),
        ("with a different text or target", [n for n in ours if n in theirs and _differ(ours[n], theirs[n])]),
    ]
    wrong = [f"{counted(len(names), 'example')} {where} ({_first(names)})" for where, names in differences if names]
    if wrong:
        raise UserError(
            f"all members of an ensemble must be scored on the same examples, but those of {split} differ: "
            f"{'; '.join(wrong)}. Score both runs on the same data (task.dev, data.limit_dev, data.hold_out, seed)."
        )
    if list(ours) != list(theirs):
        raise UserError(
            f"{here} and {there} have the examples of {split} in different orders: score both runs on the same file."
        )


def _differ(one: Example, other: Example) -> bool:
    def content(example: Example) -> Any:
        return example.text, example.text_pair, example.target, example.answers

    return bool(content(one) != content(other))


def _first(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", …" if len(names) > 3 else "")


def _score_together(job: Job, ensemble: Ensemble, epochs: float, name: str, members: list[Member]) -> np.ndarray | None:
    """Predict and score on every split where that is still missing. Return the fitted weights, if any."""
    fitted = ensemble.method == "fitted"
    splits = job.scored_splits
    if fitted and HELD_OUT not in splits:
        raise UserError(f"ensemble '{name}': {NO_HELD_OUT}")
    for other in {id(member.job): member.job for member in members if member.job is not job}.values():
        for split in list(splits):
            try:
                check_same_examples(job, other, split)
            except UserError as error:
                if split != HELD_OUT or fitted:
                    raise
                # Runs with different seeds hold out different examples, but share dev: it can be scored, but nothing
                # can be chosen.
                job.reporter.say(
                    f"ensemble '{name}' is scored on dev only, with a no-answer threshold of 0 where there is one: "
                    f"{error}"
                )
                splits.remove(HELD_OUT)
                shutil.rmtree(job.folder.predictions(epochs, HELD_OUT, name), ignore_errors=True)
    together = Combination(job, ensemble, members)
    for split in splits:
        stamp = fingerprint(
            "ensemble", ENSEMBLE_VERSION, ensemble.method,
            *(member.stamp(each) for member in members for each in sorted({split, HELD_OUT} & set(splits))),
        )  # fmt: skip
        if not job.folder.is_done(job.folder.predictions(epochs, split, name), stamp):
            keep_scored(job, epochs, split, name, stamp, together.predict(split))
    return together.weights if fitted else None


class Combination:
    """Several models whose outputs are combined into one prediction."""

    def __init__(self, job: Job, ensemble: Ensemble, members: list[Member]) -> None:
        self.job, self.ensemble, self.members = job, ensemble, members

    @cached_property
    def alike(self) -> bool:
        """Whether all members split the examples into the same windows with the same tokens."""
        if not self.job.task.windowed:
            return True  # one window per example, whatever its tokens
        hashes = {member.job.stamps.tokens(self.job.dev_splits[0]) for member in self.members}
        return len(hashes) == 1

    @cached_property
    def weights(self) -> np.ndarray:
        outputs = [member.outputs(HELD_OUT) for member in self.members]
        return self.job.task.kind.fit_weights(outputs, self.job.features(HELD_OUT))  # (member)

    def predict(self, split: str) -> Predictions:
        job, method = self.job, self.ensemble.method
        if not self.alike:
            return self._predict_apart(split)
        weights = self.weights if method == "fitted" else None
        outputs = [member.outputs(split) for member in self.members]
        combined = job.task.kind.combine(outputs, job.features(split), method, weights)  # (token or window, output)
        return job.decode(combined, split, are_logs=True)

    def _predict_apart(self, split: str) -> Predictions:
        """Combine members whose windows differ example by example: answers by their position, or probabilities."""
        settings = self.job.config.evaluate
        predictions = [member.job.decode(member.outputs(split), split, settings) for member in self.members]
        try:
            return self.job.task.kind.combine_predictions(predictions, self.ensemble.method)
        except UserError as error:
            raise UserError(f"ensemble '{self.ensemble.shown}': {error}") from None
