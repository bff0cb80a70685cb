"""A whole search: fine-tune → propose a population → train it in one pass and score it on held-out data → propose the
next one … → train the winner and score it on dev, once.

    result = search(Job(load_config("configs/search_rte.toml")))

A killed search resumes with the current population, from its newest checkpoint, when called again.
"""

import dataclasses
import math
import shutil
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bertvision.api import Run
from bertvision.config import TrainConfig
from bertvision.data.packing import plan_pass
from bertvision.disk import fingerprint, read_json
from bertvision.encoder.loading import shape_of
from bertvision.encoder.states import Part
from bertvision.errors import ConfigError, UserError, suggest
from bertvision.heads import CONTROL, Head, MemberConfig, outline_head
from bertvision.pipeline.finetune import finetune
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.held_out import HeldOut
from bertvision.pipeline.job import Job
from bertvision.pipeline.run import open_run, score_job
from bertvision.pipeline.snapshot import load_snapshot, report_route
from bertvision.pipeline.states import PASSES, TOWER_PASSES, States, parts_read, pass_of
from bertvision.pipeline.train import train, train_members
from bertvision.search.history import History, write_history, write_picture
from bertvision.search.judge import Halving, plan_rungs
from bertvision.search.space import build_member, build_space, end_values, reads_of_heads, space_tables
from bertvision.search.study import Study, TriedMember
from bertvision.sources import MemoryStates
from bertvision.tables import counted
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.stack import Member

SEARCH_VERSION = 1  # increase when the same settings would try other members or score them differently
WINNER = "winner"


@dataclass(frozen=True)
class SearchResult:
    history: History
    winner: TriedMember
    run: Run
    """A run with the winner, the encoder and the control."""


def search(job: Job) -> SearchResult:
    """Try members until the budget is spent, then train the best one and score it on dev."""
    _ = job.dev_splits, _find_metric(job)  # raise before any work if something is missing
    _check_space(job)
    with job.writing():
        _keep_scores(job)
        return _search(job)


def _keep_scores(job: Job) -> None:
    """Refuse to replace the scores of a run by those of a search."""
    scores = read_json(job.folder.path / "scores.json")
    if scores is not None and not any(WINNER in models for models in scores["snapshots"].values()):
        raise UserError(
            f"'{job.folder.path}' has the scores of a run, which a search would replace: give the search a folder of "
            "its own with run=FOLDER."
        )


def _search(job: Job) -> SearchResult:
    open_run(job)
    finetune(job)
    history = try_members(job)
    winner = history.best()
    if winner is None:
        raise UserError("no member of the search finished with a score: try smaller learning rates.")
    if job.machine.is_main:
        write_picture(history, job.folder.file("search"))
    job.reporter.say(
        f"search: {winner.name} is the best of {counted(len(history.tried), 'member')}, with {history.metric} "
        f"{winner.score:.2f} on {counted(len(job.examples(HELD_OUT)), 'held-out example')}."
    )
    return SearchResult(history, winner, _run_winner(job, winner))


def try_members(job: Job) -> History:
    """Run the search itself on a snapshot of the encoder: train populations until the budget is spent."""
    metric = _find_metric(job)
    study = _open_study(job, metric)
    trainer = PopulationTrainer(job, study, metric)
    while population := job.machine.first(lambda: _next_population(job, study)):
        trainer.try_population(population)
        _write_history(job, study, metric)
    if job.machine.is_main:
        shutil.rmtree(job.folder.checkpoints / "search", ignore_errors=True)
    return _write_history(job, study, metric)


def _run_winner(job: Job, winner: TriedMember) -> Run:
    """Run the remaining stages of an ordinary run with the control and the winner as heads."""
    last = job.with_heads([CONTROL, {**winner.entry, "name": WINNER}], [_snapshot(job)])
    open_run(last)
    train(last)
    score_job(last)
    return Run(last.folder.path)


def _check_space(job: Job) -> None:
    """Build every head of the space without weights, once for each of its values, so that heads that do not fit the
    encoder are reported before any work."""
    shape = shape_of(job.config.encoder.name, job.config.encoder.layers).shape
    for head, own in build_space(job.config).heads.items():
        for point in [{}, *({key: value} for key, entry in own.items() for value in end_values(entry))]:
            try:
                config = build_member({"head": head, **point}, "x", TrainConfig(epochs=1), 0, job.task.kind)
            except ConfigError:  # valid only in combination with another value
                continue
            outline_head(config, shape, job.target)


def _find_metric(job: Job) -> str:
    metric = job.config.search.metric or job.task.metrics[0]
    if metric not in job.task.metrics:
        raise UserError(f"'search.metric' is '{metric}': {suggest(metric, job.task.metrics)}")
    if not job.examples(HELD_OUT):
        raise UserError("a search compares members on held-out training data: set 'data.hold_out' above 0.")
    return metric


def _snapshot(job: Job) -> float:
    wanted = job.config.search.snapshot
    return job.snapshots[-1] if wanted is None else wanted


# ---------------------------------------------------------------------- the study


def _open_study(job: Job, metric: str) -> Study:
    """Open the study for exactly these settings and data. Other studies stay in the file; if this one is new, print how
    it differs from the last."""
    made_of = _describe_inputs(job, metric)
    name, config = f"search_{fingerprint(made_of)}", job.config
    path = job.folder.file("search", "study.jsonl")
    study = Study(path, name, build_space(config), config.search.sampler, config.seed)
    if job.machine.is_main:
        tried, others = study.tried(), study.other_studies()
        if tried:
            job.reporter.say(f"search: resuming after {counted(len(tried), 'member')}.")
        elif others:
            before = list(others.values())[-1].get("made_of", {})
            differs = ", ".join(key for key in {**before, **made_of} if before.get(key) != made_of.get(key))
            job.reporter.say(
                f"search: starting over. The previous search differs in {differs}; it stays in {path.name}."
            )
        study.note("made_of", made_of)
    return study


def _describe_inputs(job: Job, metric: str) -> dict[str, Any]:
    """Everything that scores and proposals depend on, which does not include the budget."""
    config = job.config
    no_effect = ("snapshots", "seeds", "stack", "encode_tokens", "checkpoint_seconds", "source", "shuffle")
    train = {key: value for key, value in dataclasses.asdict(config.train).items() if key not in no_effect}
    settings = dataclasses.asdict(config.search)
    kept = {key: settings[key] for key in ("sampler", "population", "prune", "rungs")}
    return {
        "version": SEARCH_VERSION,
        "encoder, fine-tuning or training set": f"{job.stamps.finetune}@{_snapshot(job):g}",
        "held-out part": job.stamps.data(HELD_OUT),
        "seed": config.seed,
        "[train]": train,
        "[evaluate]": config.evaluate.given(),
        "[search]": {**kept, "metric": metric},
        "space": space_tables(config),
        **({"read": {head: list(ways) for head, ways in reads.items()}} if (reads := reads_of_heads(config)) else {}),
        **job.stamps.states_settings,
    }


def _next_population(job: Job, study: Study) -> list[TriedMember]:
    """The members to try next; empty when the budget is spent."""
    settings, tried = job.config.search, study.tried()
    count = settings.population
    if all(one.state != "running" for one in tried):  # a population that was started is always finished
        if settings.members is not None:
            count = min(count, settings.members - len(tried))
        if settings.seconds is not None and sum(study.facts.get("seconds", {}).values()) >= settings.seconds:
            count = 0
    return study.take_population(count) if count > 0 else []


def _write_history(job: Job, study: Study, metric: str) -> History:
    def write() -> History:
        facts = job.task.name, metric, study.name, _snapshot(job)
        history = History(*facts, study.tried(), study.facts.get("seconds", {}))
        write_history(history, job.folder.file("search"))
        return history

    found: History = job.machine.first(write)
    return found


# ---------------------------------------------------------------------- passes


class PopulationTrainer:
    """Trains populations on the states of one snapshot, which are encoded only once if they are small."""

    def __init__(self, job: Job, study: Study, metric: str) -> None:
        self.job, self.study, self.metric = job, study, metric
        self.train = dataclasses.replace(job.config.train, seeds=1)
        self._kept: dict[str, MemoryStates | None] = {}
        self._held_out: dict[str, HeldOut] = {}

    @cached_property
    def states(self) -> States:
        job, epochs = self.job, _snapshot(self.job)
        encoder, _ = load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
        report_route(job, encoder)
        return States(job, encoder, epochs)

    def try_population(self, population: list[TriedMember]) -> None:
        """Train and score a population. Heads that read tokens and heads that read [CLS] or means train in separate
        passes."""
        first, last = population[0], population[-1]
        names = first.name if first is last else f"{first.name} to {last.name}"
        self.job.reporter.say(f"search: training population {first.population + 1} ({names}).")
        passes = {one.number: pass_of(self._outline(self._member(one))) for one in population}
        for level in PASSES:
            some = [one for one in population if passes[one.number] == level]
            if any(one.state == "running" for one in some):  # otherwise this pass finished before a kill
                self._try_in_one_pass(some, level)

    def _try_in_one_pass(self, some: list[TriedMember], level: str) -> None:
        job, configs = self.job, [self._member(one) for one in some]
        numbers = {one.name: one.number for one in some}

        def report(scores: dict[str, tuple[int, float]]) -> None:
            if job.machine.is_main:
                self.study.report({numbers[name]: found for name, found in scores.items()})

        started = time.monotonic()
        held_out, kept = self.held_out(level), self.kept(level)
        encoding = time.monotonic() - started
        judge = Halving(self._rungs(configs), held_out.score, report) if job.config.search.prune else None
        stamp = fingerprint(self.study.name, list(numbers))
        folder = job.folder.checkpoints / "search" / level
        checkpoints = Checkpoints(folder, stamp, job.config.train.checkpoint_seconds)
        done = train_members(self.states, configs, checkpoints, kept, judge, self._populations())
        members, started = done.members, time.monotonic()
        scores = held_out.score([member for member in members if not member.failed and not member.dropped])
        seconds = done.seconds + encoding + time.monotonic() - started
        if job.machine.is_main:
            outcomes = self._record_outcomes(members, numbers, scores, f"{some[0].population}/{level}", seconds)
            checkpoints.clear()
            states = [state for _, state, _ in outcomes]
            best = max((score for _, state, score in outcomes if state == "complete"), default=math.nan)
            job.reporter.say(
                f"tried {counted(len(members), 'head')} in one pass ({seconds:.1f} s): {states.count('dropped')} "
                f"dropped, {states.count('failed')} failed; best {self.metric} {best:.2f}."
            )
        job.machine.wait()

    def _record_outcomes(
        self, members: list[Member], numbers: dict[str, int], scores: dict[str, float], key: str, seconds: float
    ) -> list[tuple[int, str, float]]:
        """Record the outcome of a pass in the study. Return (number, state, score) for each member."""
        self.study.note("seconds", {**self.study.facts.get("seconds", {}), key: round(seconds, 3)})
        tried = self.study.tried()
        outcomes = []
        for member in members:
            number, score = numbers[member.name], scores.get(member.name, math.nan)
            state = "failed" if math.isnan(score) else "complete"
            if member.dropped and not member.failed and tried[number].score is not None:
                state = "dropped"
            outcomes.append((number, state, score))
        self.study.finish(outcomes)
        return outcomes

    def _member(self, one: TriedMember) -> MemberConfig:
        return build_member(one.entry, one.name, self.train, self.job.config.seed, self.job.task.kind)

    def _outline(self, config: MemberConfig) -> Head:
        return outline_head(config, self.states.encoder.shape, self.job.target)

    @cached_property
    def _parts(self) -> dict[str, tuple[Part, ...]]:
        """All parts that members may read, by pass: encoded once for the whole search."""
        entries = build_space(self.job.config).read_entries()
        heads = [self._outline(build_member(entry, "x", self.train, 0, self.job.task.kind)) for entry in entries]
        return {one: parts_read([head for head in heads if pass_of(head) == one]) for one in PASSES}

    def kept(self, level: str) -> MemoryStates | None:
        """The states of the training set, if they can be in memory."""
        if "tokens" in self._parts[level]:
            return None
        if level not in self._kept:
            self._kept[level] = self.states.keep(
                self._parts[level], "train", use_store=True, towers=level in TOWER_PASSES
            )
        return self._kept[level]

    def held_out(self, level: str) -> HeldOut:
        if level not in self._held_out:
            self._held_out[level] = HeldOut(self.states, self._parts[level], self.metric, level in TOWER_PASSES)
        return self._held_out[level]

    def _populations(self) -> float:
        """The expected number of populations; 2 if only the time is limited."""
        settings = self.job.config.search
        return 2.0 if settings.members is None else float(math.ceil(settings.members / settings.population))

    def _rungs(self, configs: list[MemberConfig]) -> dict[tuple[int, float], list[int]]:
        """The rungs of each course, from the same plan of the pass that training uses."""
        job, train = self.job, self.job.config.train
        wanted = {(config.epochs, config.data_fraction) for config in configs}
        batches = train.batch_rows, train.batch_tokens, train.shuffle
        plan = plan_pass(job.features("train").lengths, wanted, job.config.seed, *batches)
        return plan_rungs(plan.courses, job.config.search.rungs)
