"""Ensembles: several models of a run, or of several runs, that answer together.

    ensembles = [
        ["encoder", "adapter_386_skip"],                                        the paper's: maximum of probabilities
        { members = ["encoder", "adapter_64"], method = "fitted" },             weights from held-out training data
        { members = ["encoder", "runs/other:adapter_64@0.5"], name = "two" },   of another run, at another snapshot
    ]

An ensemble is scored, kept and shown as any other model. Where a member has several seeds there is one ensemble a seed.
"""

import dataclasses
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bertvision.data.examples import Example
from bertvision.disk import fingerprint, read_json, write_json
from bertvision.errors import UserError, suggest
from bertvision.kinds import Predictions
from bertvision.pipeline.ensemble_entries import MEMBER, NO_HELD_OUT, Ensemble, read_entry
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.pipeline.folder import ADDED_ENSEMBLES, HELD_OUT
from bertvision.pipeline.job import Job, reopen
from bertvision.pipeline.score import keep_scored, read_scores
from bertvision.tables import counted

ENSEMBLE_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Member:
    """One model among the members: whose run, which snapshot, which name."""

    job: Job
    model: Model

    def stamp(self, split: str) -> str:
        return str(read_json(self.model.predictions(split) / "stamp.json")["stamp"])

    def outputs(self, split: str) -> np.ndarray:
        return load_file(self.model.predictions(split) / "outputs.safetensors")["outputs"]


def add_ensembles(job: Job, scores: dict[str, Any]) -> None:
    """Scores the ensembles of the config, and those the command added, and puts them beside the other models."""
    asked = [ensemble for entry in job.config.ensembles if (ensemble := read_entry(entry, [])) is not None]
    asked += _added(job)
    if asked and job.machine.is_main:
        for ensemble in asked:
            for epochs in _snapshots_of(job, ensemble):
                try:
                    score_ensemble(job, ensemble, epochs, scores)
                except UserError as error:  # after hours of training, no reason to stop
                    job.reporter.say(f"ensemble '{ensemble.shown}' is left out: {error}")
        write_json(job.folder.path / "scores.json", scores)


def add_ensemble(job: Job, ensemble: Ensemble, scores: dict[str, Any]) -> dict[str, Any]:
    """Scores one more ensemble and remembers it, so that the next evaluation has it too; gives its entries in
    scores.json by name, one for each seed."""
    mistakes: list[str] = []
    read_entry({"members": list(ensemble.members), "method": ensemble.method, "name": ensemble.name}, mistakes)
    if _is_taken(job, ensemble, scores):
        mistakes.append(f"the run has another model '{ensemble.shown}' already: give this one a `name` of its own.")
    if mistakes:
        raise UserError(" ".join(mistakes))
    ensemble = dataclasses.replace(ensemble, members=_whole_paths(ensemble))
    added: dict[str, Any] = {}
    for epochs in _snapshots_of(job, ensemble):
        added |= score_ensemble(job, ensemble, epochs, scores)
    if not added:
        raise UserError(f"there is no ensemble '{ensemble.shown}': a member's training was stopped.")
    kept = [other for other in _added(job) if other.shown != ensemble.shown]
    write_json(job.folder.path / ADDED_ENSEMBLES, [dataclasses.asdict(one) for one in [*kept, ensemble]])
    write_json(job.folder.path / "scores.json", scores)
    return added


def _is_taken(job: Job, ensemble: Ensemble, scores: dict[str, Any]) -> bool:
    """Whether its name stands for a model, or for an ensemble of other members or another method."""
    models = FinishedRun(job.folder.path, scores).models()
    if any(ensemble.shown in (model.name, model.group) for model in models if model.role != "ensemble"):
        return True
    asked = [one for entry in job.config.ensembles if (one := read_entry(entry, [])) is not None]
    others = [one for one in [*asked, *_added(job)] if one.shown == ensemble.shown]
    return any((one.method, _whole_paths(one)) != (ensemble.method, _whole_paths(ensemble)) for one in others)


def _whole_paths(ensemble: Ensemble) -> tuple[str, ...]:
    """Members of other runs by those runs' full paths: the next evaluation may be started elsewhere."""
    return tuple(_with_whole_path(member) for member in ensemble.members)


def _with_whole_path(member: str) -> str:
    found = MEMBER.fullmatch(member)
    if found is None or found["run"] is None:
        return member
    return f"{Path(found['run']).expanduser().absolute()}:{member[found.end('run') + 1 :]}"


def _added(job: Job) -> list[Ensemble]:
    found = read_json(job.folder.path / ADDED_ENSEMBLES) or []
    return [Ensemble(**{**entry, "members": tuple(entry["members"])}) for entry in found]


def _snapshots_of(job: Job, ensemble: Ensemble) -> list[float]:
    """Where an ensemble belongs: at each snapshot that has heads, unless its members name their own."""
    own = [found for member in ensemble.members if (found := MEMBER.fullmatch(member)) and found["run"] is None]
    fixed = [float(found["epochs"]) for found in own if found["epochs"]]
    if len(fixed) < len(own):
        return job.head_snapshots
    return [max(fixed, default=job.head_snapshots[-1])]


def score_ensemble(job: Job, ensemble: Ensemble, epochs: float, scores: dict[str, Any]) -> dict[str, Any]:
    """One ensemble at one snapshot, once for each seed of its members; gives the entries it added to the scores."""
    run = FinishedRun(job.folder.path, scores)
    by_seed = _members_by_seed(job, run, ensemble, epochs)
    added: dict[str, Any] = {}
    for seed, members in by_seed.items():
        name = ensemble.shown if len(by_seed) == 1 else f"{ensemble.shown}_seed{seed}"
        if any(member.model.failed for member in members):
            job.reporter.say(f"ensemble '{name}' is left out: a member's training was stopped.")
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
        if weights is not None:
            added[name]["weights"] = [round(float(weight), 6) for weight in weights]
        scores["snapshots"][f"{epochs:g}"][name] = added[name]
    return added


def _costs(members: list[Member], whole: int) -> dict[str, Any]:
    """What an ensemble costs: all its members' parameters, and the dearest pass, which its heads share."""
    heads = [member.model for member in members if member.model.role != "encoder"]
    parameters = sum(member.model.parameters for member in members)
    highest = {
        "seconds": max((model.seconds or 0 for model in heads), default=0),
        "tokens": max((model.tokens or 0 for model in heads), default=0),
        "memory": max((model.memory or 0 for model in heads), default=0),
    }
    return {"parameters": parameters, "share": parameters / whole, **highest, "failed": False}


def _members_by_seed(job: Job, run: FinishedRun, ensemble: Ensemble, epochs: float) -> dict[int, list[Member]]:
    """Seed → the models that answer together; one where no member has several seeds."""
    found = [_find_members(job, run, member, epochs) for member in ensemble.members]
    several = [set(members) for members in found if len(members) > 1]
    if not several:
        return {job.config.seed: [next(iter(members.values())) for members in found]}
    seeds = sorted(set.intersection(*several))
    if not seeds:
        raise UserError(f"the members of '{ensemble.shown}' have no seed in common: name single models instead.")
    return {seed: [members.get(seed) or next(iter(members.values())) for members in found] for seed in seeds}


def _find_members(job: Job, run: FinishedRun, member: str, epochs: float) -> dict[int, Member]:
    """Seed → model, of all models that a member's name stands for."""
    found = MEMBER.fullmatch(member)
    if found is None:
        raise UserError(f"'{member}' names no model: write NAME, NAME@EPOCHS or RUN:NAME@EPOCHS.")
    if found["run"] is not None:
        job, run = _open_other(job, found["run"])
        epochs = job.head_snapshots[-1]
    if found["epochs"]:
        epochs = float(found["epochs"])
    if not run.models(epochs):
        kept = ", ".join(f"{one:g}" for one in run.snapshots)
        raise UserError(
            f"'{member}': '{job.folder.path}' has no snapshot at {counted(epochs, 'epoch')}, it has {kept}."
        )
    name = found["name"]
    models = [model for model in run.models(epochs) if model.role in ("encoder", "control", "head")]
    # A model's own name goes before a group's.
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
                f"'{other.folder.path}' predicts {_describe(other)}, '{job.folder.path}' {_describe(job)}: members of "
                "an ensemble must answer the same question."
            )


def _describe(job: Job) -> str:
    labels = f" ({', '.join(job.task.labels)})" if job.task.labels else ""
    return f"a {job.task.kind}{labels}"


def check_same_examples(job: Job, other: Job, split: str) -> None:
    """Refuses members that answer other examples, and says which."""
    if split != HELD_OUT and split not in other.dev_splits:
        raise UserError(f"'{other.folder.path}' was not scored on '{split}': it has {', '.join(other.dev_splits)}.")
    ours = {example.id: example for example in job.examples(split)}
    theirs = {example.id: example for example in other.examples(split)}
    here, there = f"'{job.folder.path}'", f"'{other.folder.path}'"
    told = [
        (f"only {here} has", [name for name in ours if name not in theirs]),
        (f"only {there} has", [name for name in theirs if name not in ours]),
        ("both have, with another text or target,", [n for n in ours if n in theirs and _differ(ours[n], theirs[n])]),
    ]
    wrong = [f"{words} {len(names)} ({_first(names)})" for words, names in told if names]
    if wrong:
        raise UserError(
            f"members of an ensemble must answer the same examples, those of {split} differ: {'; '.join(wrong)}. "
            "Score both runs on the same data (task.dev, data.limit_dev, data.hold_out, seed)."
        )
    if list(ours) != list(theirs):
        raise UserError(f"{here} and {there} have the examples of {split} in another order: score both on one file.")


def _differ(one: Example, other: Example) -> bool:
    def told(example: Example) -> Any:
        return example.text, example.text_pair, example.target, example.answers

    return bool(told(one) != told(other))


def _first(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", …" if len(names) > 3 else "")


def _score_together(job: Job, ensemble: Ensemble, epochs: float, name: str, members: list[Member]) -> np.ndarray | None:
    """Predictions and scores on every split, where they are not there yet; gives the fitted weights."""
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
                # Runs with other seeds hold out other examples; dev is the same, and a choice is all that is lost.
                job.reporter.say(f"ensemble '{name}' is scored on dev alone, and a no-answer threshold is 0: {error}")
                splits.remove(HELD_OUT)
                shutil.rmtree(job.folder.predictions(epochs, HELD_OUT) / name, ignore_errors=True)
    together = Combination(job, ensemble, members)
    for split in splits:
        stamp = fingerprint(
            "ensemble", ENSEMBLE_VERSION, ensemble.method,
            *(member.stamp(each) for member in members for each in sorted({split, HELD_OUT} & set(splits))),
        )  # fmt: skip
        if not job.folder.is_done(job.folder.predictions(epochs, split) / name, stamp):
            keep_scored(job, epochs, split, name, stamp, together.predict(split))
    return together.weights if fitted else None


class Combination:
    """Models that answer together."""

    def __init__(self, job: Job, ensemble: Ensemble, members: list[Member]) -> None:
        self.job, self.ensemble, self.members = job, ensemble, members

    @cached_property
    def alike(self) -> bool:
        """Whether all cut their examples into the same windows of the same tokens."""
        if not self.job.task.windowed:
            return True  # one window an example, whatever its tokens
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
        return job.decode(job.task.kind.combine(outputs, job.features(split), method, weights), split)

    def _predict_apart(self, split: str) -> Predictions:
        """Members whose windows differ meet at the examples: in answers by their place, or in probabilities."""
        settings = self.job.config.evaluate
        said = [member.job.decode(member.outputs(split), split, settings) for member in self.members]
        try:
            return self.job.task.kind.combine_predictions(said, self.ensemble.method)
        except UserError as error:
            raise UserError(f"ensemble '{self.ensemble.shown}': {error}") from None
