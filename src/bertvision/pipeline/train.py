"""Train all heads in one pass over the hidden states of a snapshot."""

import dataclasses
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np

from bertvision.data.packing import plan_pass
from bertvision.data.windows import Features
from bertvision.disk import mark_done, writing_folder
from bertvision.encoder.loading import shape_of
from bertvision.errors import UserError
from bertvision.heads import MemberConfig, build_head, count_parameters, outline_head, save_head
from bertvision.pipeline.begin import begin_head, check_begin
from bertvision.pipeline.convex import solve_members
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.held_out import EachEpoch, HeldOut, Outputs
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import compile_if_long, load_snapshot, report_route
from bertvision.pipeline.states import PASSES, States, parts_read, pass_of
from bertvision.sources import MemoryStates
from bertvision.sources.cost import STREAMED
from bertvision.tables import counted
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.stack import Member
from bertvision.training.train import Judge, train_heads


def check_heads(job: Job) -> None:
    """Build every head without its weights, so that heads that do not fit the encoder, and `begin` weights that do not
    fit the head, are reported before any work."""
    shape = shape_of(job.config.encoder.name, job.config.encoder.layers).shape
    own = {job.folder.head(epochs, one.name).resolve() for epochs in job.head_snapshots for one in job.members}
    for member in job.members:
        outline = outline_head(member, shape, job.target)
        if outline.towers:
            _check_pairs(job, member)
        if member.begin is None:
            continue
        check_begin(outline, member, job.task)
        if Path(member.begin).resolve() in own:
            raise UserError(
                f"head '{member.name}' begins with '{member.begin}', which this run itself writes: give the head that "
                "is saved there another `name`, or set `run` to another folder."
            )


def _check_pairs(job: Job, member: MemberConfig) -> None:
    if not job.task.takes_pairs:
        raise UserError(
            f"head '{member.name}' has pairs = 'towers', which compares two texts, but {job.task.name} has single "
            "texts: leave the setting out."
        )
    if job.task.windowed:
        raise UserError(
            f"head '{member.name}' has pairs = 'towers', but {job.task.name} cuts passages into windows, which need "
            "both texts in one sequence: leave the setting out."
        )


def train(job: Job) -> None:
    """Train every missing head on each of its snapshots."""
    for epochs in job.head_snapshots:
        missing = job.machine.first(partial(_find_missing, job, epochs))
        if missing:
            _train_on(job, epochs, [member for member in job.members if member.name in missing])
        else:
            if job.machine.is_main:
                for one in PASSES:  # left by a kill after the last head
                    shutil.rmtree(_checkpoints(job, epochs, one), ignore_errors=True)
            job.reporter.say(f"heads on the snapshot at {counted(epochs, 'epoch')}: already done.")


def _find_missing(job: Job, epochs: float) -> list[str]:
    """The names of the members that are not trained."""
    trained = job.folder.head
    return [
        member.name
        for member in job.members
        if not job.folder.is_done(trained(epochs, member.name), job.stamps.member(epochs, member))
    ]


def _checkpoints(job: Job, epochs: float, one: str) -> Path:
    """The folder for checkpoints of one pass."""
    return job.folder.checkpoints / f"heads_{epochs:g}_{one}"


def _train_on(job: Job, epochs: float, configs: list[MemberConfig]) -> None:
    encoder, _ = load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
    report_route(job, encoder)
    states = States(job, encoder, epochs)
    passes = {config.name: pass_of(outline_head(config, encoder.shape, job.target)) for config in configs}
    for one in PASSES:
        some = [config for config in configs if passes[config.name] == one]
        if not some:
            continue
        stamp = "-".join(f"{config.name}={job.stamps.member(epochs, config)}" for config in some)
        checkpoints = Checkpoints(_checkpoints(job, epochs, one), stamp, job.config.train.checkpoint_seconds)
        done = train_members(states, some, checkpoints, watched=True)
        if job.machine.is_main:
            for member in done.members:
                _save_member(job, epochs, member, done)
            checkpoints.clear()
        job.machine.wait()
        heads, at = counted(len(done.members), "head"), counted(epochs, "epoch")
        job.reporter.say(f"trained {heads} on the snapshot at {at} in one pass ({done.seconds:.1f} s).")


@dataclasses.dataclass(frozen=True)
class Trained:
    """Members after their pass, and its cost."""

    members: list[Member]
    seconds: float
    states: str
    """Where the states came from: memory, streamed or stored."""
    tokens: dict[str, int]
    """Tokens the encoder processed (forward) for each member."""
    memory: int
    """Peak memory in bytes: of the GPU, or of the process."""


def train_members(
    states: States,
    configs: list[MemberConfig],
    checkpoints: Checkpoints,
    kept: MemoryStates | None = None,
    judge: Judge | None = None,
    repeats: float = 1.0,
    watched: bool = False,
) -> Trained:
    """Train these members in one pass over the training set, on the states of a snapshot. `kept` states in memory are
    not encoded again. `repeats` is the expected number of such passes. `watched` members are scored on held-out data
    after each epoch."""
    job, encoder = states.job, states.encoder
    train, lengths = job.config.train, job.features("train").lengths
    wanted = {(config.epochs, config.data_fraction) for config in configs}
    whole = plan_pass(lengths, wanted, job.config.seed, train.batch_rows, train.batch_tokens, train.shuffle)
    members = []
    for config in configs:
        head = build_head(config, encoder.shape, job.target)
        if config.begin is not None:
            begin_head(head, config, job.task)
        head = head.to(job.machine.device)
        members.append(Member(config, head, whole.courses[config.epochs, config.data_fraction]))
    keep, towers = parts_read([member.head for member in members]), members[0].head.towers
    stepped = [member for member in members if not member.head.convex]
    watched = watched and max((one.config.epochs for one in stepped), default=0) > 1
    is_dev_scored = watched and train.dev_each_epoch
    dev = [Outputs(states, keep, split, towers) for split in job.dev_splits] if is_dev_scored else []
    started = time.monotonic()
    job.machine.watch_memory()
    watch = None
    if watched:
        held_out = HeldOut(states, keep, job.task.metrics[0], towers) if job.examples(HELD_OUT) else None
        judge = watch = EachEpoch(job, held_out, dev, states.epochs, stepped, whole.steps)
    tokens = job.tokens_of(whole.steps)
    if not encoder.compiled:
        compile_if_long(job, encoder, repeats * sum(tokens) if "tokens" in keep else float(lengths.sum()))
    source, choice = states.open(whole, keep, kept, repeats, checkpoints.is_there(), towers)
    if len(stepped) < len(members):
        solve_members(states, [member for member in members if member.head.convex], source, whole.steps)
    before = time.monotonic() - started
    seconds = 0.0
    if stepped:
        tokens_of, log = tokens.__getitem__, job.folder.log
        seconds = train_heads(
            stepped, source, tokens_of, job.machine, checkpoints, log, job.reporter, train.stack, judge
        )
    if watch is not None:
        watch.end()
        seconds -= watch.dev_seconds
    return Trained(
        members,
        before + seconds,
        choice.source,
        {member.name: _encoded_tokens(member, whole.steps, job.features("train"), choice.source) for member in members},
        job.machine.peak_memory(),
    )


def _encoded_tokens(member: Member, steps: list[np.ndarray], features: Features, states: str) -> int:
    """Streamed states are computed again in each epoch, others once. Convex heads hold theirs in memory."""
    own = [steps[step] for step in member.steps]
    parts = own if states == STREAMED and not member.head.convex else [np.unique(np.concatenate(own))]
    if not member.head.towers:
        return sum(int(features.lengths[windows].sum()) for windows in parts)
    towers = features.towers
    return sum(int(towers.texts.lengths[towers.needed(pairs)].sum()) for pairs in parts)


def _save_member(job: Job, epochs: float, member: Member, done: Trained) -> None:
    with writing_folder(job.folder.head(epochs, member.config.name)) as fresh:
        save_head(fresh, member.head, member.config)
        mark_done(
            fresh,
            job.stamps.member(epochs, member.config),
            encoder=job.stamps.finetune,
            layers=job.layers,
            states=done.states,
            seconds=round(done.seconds, 3),
            tokens=done.tokens[member.name],
            memory=done.memory,
            failed=member.failed,
            parameters=count_parameters(member.head),
        )
