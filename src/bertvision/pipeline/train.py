"""Train all heads in one pass over the hidden states of a snapshot."""

import dataclasses
import time
from pathlib import Path

import numpy as np

from bertvision.data.packing import plan_pass
from bertvision.disk import writing_folder
from bertvision.encoder.loading import shape_of
from bertvision.errors import UserError
from bertvision.heads import MemberConfig, build_head, count_parameters, outline_head, save_head
from bertvision.pipeline.begin import begin_head, check_begin
from bertvision.pipeline.convex import solve_members
from bertvision.pipeline.folder import HELD_OUT, mark_done
from bertvision.pipeline.held_out import EachEpoch, HeldOut
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import compile_if_long, load_snapshot, report_route
from bertvision.pipeline.states import States, parts_read
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
        if member.begin is None:
            continue
        check_begin(outline, member, job.task)
        if Path(member.begin).resolve() in own:
            raise UserError(
                f"head '{member.name}' begins with '{member.begin}', which this run itself writes: give the head that "
                "is saved there another `name`, or set `run` to another folder."
            )


def train(job: Job) -> None:
    """Train every missing head on each of its snapshots."""
    for epochs in job.head_snapshots:
        missing = [
            member
            for member in job.members
            if not job.folder.is_done(job.folder.head(epochs, member.name), job.stamps.member(epochs, member))
        ]
        if missing:
            _train_on(job, epochs, missing)
        else:
            job.reporter.say(f"heads on the snapshot at {counted(epochs, 'epoch')}: already done.")


def _train_on(job: Job, epochs: float, configs: list[MemberConfig]) -> None:
    encoder, _ = load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
    report_route(job, encoder)
    states = States(job, encoder, epochs)
    reads = {config.name: outline_head(config, encoder.shape, job.target).reads for config in configs}
    # Two passes: heads on [CLS] states in memory must not be streamed just because other heads read tokens.
    for position in ("tokens", "sequences"):
        some = [config for config in configs if ("tokens" in reads[config.name]) == (position == "tokens")]
        if not some:
            continue
        stamp = "-".join(f"{config.name}={job.stamps.member(epochs, config)}" for config in some)
        folder = job.folder.checkpoints / f"heads_{epochs:g}_{position}"
        checkpoints = Checkpoints(folder, stamp, job.config.train.checkpoint_seconds)
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
    started = time.monotonic()
    job.machine.watch_memory()
    keep = parts_read([member.head for member in members])
    stepped = [member for member in members if not member.head.convex]
    if watched and job.examples(HELD_OUT) and max((one.config.epochs for one in stepped), default=0) > 1:
        judge = EachEpoch(HeldOut(states, keep, job.task.metrics[0]), states.epochs, stepped, whole.steps)
    tokens = job.tokens_of(whole.steps)
    if not encoder.compiled:
        compile_if_long(job, encoder, repeats * sum(tokens) if "tokens" in keep else float(lengths.sum()))
    source, choice = states.open(whole, keep, kept, repeats, checkpoints.is_there())
    if len(stepped) < len(members):
        solve_members(states, [member for member in members if member.head.convex], source, whole.steps)
    before = time.monotonic() - started
    seconds = 0.0
    if stepped:
        tokens_of, log = tokens.__getitem__, job.folder.log
        seconds = train_heads(
            stepped, source, tokens_of, job.machine, checkpoints, log, job.reporter, train.stack, judge
        )
    return Trained(
        members,
        before + seconds,
        choice.source,
        {member.name: _encoded_tokens(member, whole.steps, tokens, lengths, choice.source) for member in members},
        job.machine.peak_memory(),
    )


def _encoded_tokens(
    member: Member, steps: list[np.ndarray], tokens: list[int], lengths: np.ndarray, states: str
) -> int:
    """Streamed states are computed again in each epoch, others once."""
    if states == STREAMED:
        return sum(tokens[step] for step in member.steps)
    return int(lengths[np.unique(np.concatenate([steps[step] for step in member.steps]))].sum())


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
