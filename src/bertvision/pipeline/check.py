"""Check that a run can start, and estimate its cost from a few batches: time, memory and disk space."""

import dataclasses
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import psutil
import torch

from bertvision.data.packing import fill_batches, plan_batches
from bertvision.data.splits import draw
from bertvision.data.windows import Features
from bertvision.disk import existing_folder
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder, shape_of
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads import MemberConfig, build_head, count_parameters, outline_head
from bertvision.pipeline.finetune import load_for_finetuning, output_layer, with_output_rate
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import check_length
from bertvision.pipeline.states import (
    PASSES,
    StoreSpec,
    check_stores,
    fits_in_memory,
    parts_read,
    pass_of,
    weigh_states,
)
from bertvision.pipeline.train import check_heads
from bertvision.sources import StreamedSource, TowersSource
from bertvision.sources.cost import MEMORY, STORED, STREAMED, Choice, measure_encoder
from bertvision.tables import counted
from bertvision.training.finetune import Finetuning
from bertvision.training.stack import Member, build_units
from bertvision.training.train import build_buffers

HEAD_STEPS = 8  # batches of states held in memory to time the heads
SAMPLE = 5000  # examples tokenized to estimate the mean length; accurate to about 1 %
Section = dict[str, Any]


def estimate_costs(job: Job) -> dict[str, Section]:
    """Return the facts by section. Raise a single UserError that lists every problem."""
    problems: list[str] = []
    found = {
        "data": _try(lambda: _data(job), problems),
        "encoder": _try(lambda: _encoder(job), problems),
        "heads": _try(lambda: _heads(job), problems),
    }
    if not problems:
        found |= _try(lambda: _cost(job, found["data"]), problems)
    if problems:
        raise UserError("this run can't start yet:\n" + "\n".join(f"  - {problem}" for problem in problems))
    return found


def _try(part: Callable[[], Section], problems: list[str]) -> Section:
    try:
        return part()
    except UserError as error:
        if str(error) not in problems:  # two parts may report the same problem
            problems.append(str(error))
        return {}


def _data(job: Job) -> Section:
    splits = ["train", HELD_OUT, *job.dev_splits]
    facts: Section = {"task": job.task.name, "source": job.task.source, "tokens per window": job.max_length}
    facts |= {f"{split.replace('_', ' ')} examples": len(job.examples(split)) for split in splits}
    for part, named in {"train": ["train"], "held out": [HELD_OUT], "dev": job.dev_splits}.items():
        windows, tokens = zip(*(_count_tokens(job, name) for name in named), strict=True)
        facts |= {f"{part} windows": sum(windows), f"{part} tokens": sum(tokens)}
    return facts


def _count_tokens(job: Job, split: str) -> tuple[int, int]:
    """Number of windows and tokens in a split, estimated from a sample if the split is large."""
    examples = job.examples(split)
    if not examples:  # data.hold_out = 0
        return 0, 0
    sample = draw(examples, SAMPLE, job.config.seed)
    features, scale = job.build_features(sample), len(examples) / len(sample)
    return round(scale * len(features)), round(scale * int(features.lengths.sum()))


def _encoder(job: Job) -> Section:
    settings, machine = job.config.encoder, job.machine
    encoder = load_encoder(settings.name, machine.device, machine.dtype, settings.attention, layers=settings.layers)
    check_length(job, encoder)
    return {
        "name": encoder.name,
        "states": f"{encoder.shape.layers} layers of size {encoder.shape.hidden}",
        "pooled output": "yes" if encoder.shape.pooled else "no",
        "parameters": count_parameters(encoder),
        "device": job.machine.describe(),
        "route": f"{encoder.route} ({encoder.route_reason})",
    }


def _heads(job: Job) -> Section:
    check_heads(job)
    shape = shape_of(job.config.encoder.name, job.config.encoder.layers).shape
    return {
        member.name: f"{count_parameters(outline_head(member, shape, job.target)):,} parameters, "
        f"{counted(member.epochs, 'epoch')}, lr {member.lr:g}"
        for member in job.members
    }


def _cost(job: Job, data: Section) -> dict[str, Section]:
    """Extrapolate from speeds measured on a few batches on this machine."""
    encoder = load_for_finetuning(job)
    sample = job.build_features(draw(job.examples("train"), SAMPLE, job.config.seed))
    finetune_rate = _finetune_rate(job, encoder, sample) if job.config.finetune.epochs else None
    frozen, frozen_rate, heads_rate = _heads_rates(job, sample)
    scored, trained = len(job.snapshots), len(job.head_snapshots)
    tokens = data["train tokens"]
    check_stores(job)
    supplies = _supplies(job, frozen, data, frozen_rate)
    learned = sum(member.epochs * member.data_fraction for member in job.members) / len(job.members)
    seconds = {
        "fine-tuning": job.config.finetune.epochs * tokens / finetune_rate if finetune_rate else 0.0,
        "heads": trained * (sum(supply.seconds for supply in supplies) + tokens * learned / heads_rate),
        "scoring": scored * (data["held out tokens"] + data["dev tokens"]) / frozen_rate,
    }
    cost = {
        **{f"seconds {stage}": round(value, 1) for stage, value in seconds.items()},
        "seconds in total": round(sum(seconds.values()), 1),
        "tokens per second, fine-tuning": round(finetune_rate or 0),
        "tokens per second, frozen": round(frozen_rate),
        "memory MB of this process": round(_memory_bytes(job) / 1e6),
        **_disk(job, encoder, trained * sum(supply.store_bytes for supply in supplies if supply.is_written)),
    }
    return {"states": {name: fact for supply in supplies for name, fact in supply.facts().items()}, "cost": cost}


@dataclass(frozen=True)
class Supply:
    """Where the states for some of the heads would come from, and at what cost."""

    keep: tuple[Part, ...]
    choice: Choice
    seconds: float
    store_bytes: int
    """Size of the states in a store, whether or not one exists."""
    is_written: bool

    def facts(self) -> Section:
        name = ", ".join(self.keep)
        facts: Section = {name: f"{self.choice.source}: {self.choice.reason}"}
        facts |= {f"{name}: {key}": value for key, value in self.choice.figures.items()}
        return facts | {f"{name}: MB in a store": round(self.store_bytes / 1e6, 1)}


def _supplies(job: Job, encoder: Encoder, data: Section, frozen_rate: float) -> list[Supply]:
    """Heads that read tokens and heads that read [CLS] or means train in separate passes."""
    tokens, windows = data["train tokens"], data["train windows"]
    heads = {member.name: outline_head(member, encoder.shape, job.target) for member in job.members}
    found = []
    for one in PASSES:
        members = [member for member in job.members if pass_of(heads[member.name]) == one]
        if not members:
            continue
        keep, passes = parts_read([heads[member.name] for member in members]), _passes(members)
        spec = StoreSpec(job, encoder, job.head_snapshots[-1], keep, finetuned=False)
        if heads[members[0].name].towers:
            found.append(_tower_supply(job, encoder, keep, passes, windows, tokens / frozen_rate))
            continue
        asked, there = job.config.train.source, _is_there(spec)
        if fits_in_memory(job, encoder, keep, windows):
            written, seconds = asked == STORED and not there, 0.0 if there else tokens / frozen_rate
            how = "read from their store" if there else "encoded once" + (" and stored" if written else "")
            choice = Choice(MEMORY, f"small enough to hold in memory; {how}")
        else:
            choice = weigh_states(spec, passes, windows, tokens, lambda: frozen_rate)
            if asked != "auto":
                choice = dataclasses.replace(choice, source=asked, reason=f'train.source = "{asked}"; {choice.reason}')
            written = choice.source == STORED and not there
            seconds = choice.figures.get(f"seconds {choice.source}", passes * tokens / frozen_rate)
        found.append(Supply(keep, choice, seconds, spec.contents.store_bytes(windows, tokens), written))
    return found


def _tower_supply(
    job: Job, encoder: Encoder, keep: tuple[Part, ...], passes: float, pairs: int, seconds: float
) -> Supply:
    """Each text of a pair alone: as many tokens as both together, if no pairs share a text."""
    if fits_in_memory(job, encoder, keep, 2 * pairs):
        choice = Choice(MEMORY, "small enough to hold in memory; each text of a pair is encoded once, alone")
        return Supply(keep, choice, seconds, 0, False)
    choice = Choice(STREAMED, "the texts of pairs, each alone, are not stored")
    return Supply(keep, choice, passes * seconds, 0, False)


def _is_there(spec: StoreSpec) -> bool:
    """Whether a store would be read. One that can't be used is ignored, as in `run`."""
    try:
        return spec.job.config.train.source != STREAMED and spec.find()[0] is not None
    except UserError:
        return False


def _passes(members: list[MemberConfig]) -> float:
    """How many times members that read tokens go through the states of the training set."""
    fractions = {member.data_fraction for member in members}
    passes = max((m.epochs for m in members if m.data_fraction == 1), default=max(fractions))
    for fraction in fractions - {1.0}:  # the first epoch is shared with the other members, later ones are not
        passes += fraction * (max(m.epochs for m in members if m.data_fraction == fraction) - 1)
    return float(passes)


def _finetune_rate(job: Job, encoder: Encoder, features: Features) -> float:
    output = output_layer(job, encoder)
    config = with_output_rate(job, output)
    plan = plan_batches(features.lengths, 1, job.config.seed, config.batch_rows, config.batch_tokens)
    work = Finetuning(
        encoder, output, features, plan, job.task.kind, config, job.config.seed, job.machine,
        job.reporter,
    )  # fmt: skip
    try:
        return _rate(work.measure_step, plan.steps, job)
    finally:
        if work.half is not None:
            work.half.end()


def _heads_rates(job: Job, features: Features) -> tuple[Encoder, float, float]:
    """Return the frozen encoder, its tokens per second, and the tokens per second of all heads' steps without it."""
    settings, train, machine = job.config.encoder, job.config.train, job.machine
    encoder = load_encoder(
        settings.name, machine.device, machine.dtype, settings.attention, layers=settings.layers
    ).requires_grad_(False)
    order = np.arange(len(features))
    steps = fill_batches(features.lengths, order, train.batch_rows, train.batch_tokens)
    members = [
        Member(config, build_head(config, encoder.shape, job.target).to(machine.device), range(len(steps) + 2))
        for config in job.members
    ]
    alone = [member.head for member in members if member.head.towers]
    keep = parts_read([member.head for member in members if not member.head.towers])
    batches = list(islice(StreamedSource(encoder, features, steps, keep, encode_tokens=1).batches(), HEAD_STEPS))
    paired = TowersSource(encoder, features, steps, parts_read(alone), 1).batches() if alone else iter(())
    pairs = list(islice(paired, HEAD_STEPS))

    units, buffers = build_units(members, train.stack, int(features.lengths[steps[0]].sum())), build_buffers(machine)

    def learn(step: int) -> int:
        buffered = buffers.put(batches[step]) if buffers is not None else None
        for unit in units:
            if unit.members[0].head.towers:
                unit.learn(pairs[step], machine)
            else:
                unit.learn(batches[step], machine, buffered)
        return int(features.lengths[batches[step].windows].sum())

    frozen_rate = measure_encoder(encoder, features, keep, job.encode_tokens, machine.records)
    return encoder, frozen_rate, _rate(learn, len(batches), job)


def _rate(work: Callable[[int], int], steps: int, job: Job, seconds: float = 2.0) -> float:
    """Tokens per second of `work(step)`, measured for about `seconds` after a warm-up of one or a few steps."""
    for _ in range(3 if job.machine.records else 1):  # a step is recorded the second time its size comes up
        work(0)
    _finish(job)
    started, tokens = time.monotonic(), 0
    for step in range(1, max(2, steps)):
        tokens += work(step if step < steps else 0)
        _finish(job)
        if time.monotonic() - started > seconds:
            break
    return tokens / (time.monotonic() - started)


def _finish(job: Job) -> None:
    if job.machine.device.type == "cuda":
        torch.cuda.synchronize(job.machine.device)


def _memory_bytes(job: Job) -> int:
    """Memory used by the measured steps: the GPU's peak, or that of this process."""
    if job.machine.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(job.machine.device))
    return int(psutil.Process().memory_info().rss)


def _disk(job: Job, encoder: Encoder, stored: int) -> Section:
    """Disk space for snapshots, for states stored in the run folder, and for two checkpoints (one is written before the
    other is removed). Predictions are negligible."""
    weights = 4 * count_parameters(encoder)
    learning = 4 * sum(weight.numel() for weight in encoder.parameters() if weight.requires_grad)
    kept = sum(epochs > 0 for epochs in job.snapshots) * weights + (0 if job.config.store.path else stored)
    checkpoints = 2 * (weights + 2 * learning) if job.config.finetune.epochs else 0
    free = shutil.disk_usage(existing_folder(job.folder.path)).free
    if free < kept + checkpoints:
        raise UserError(
            f"the run needs about {(kept + checkpoints) / 1e6:,.0f} MB in '{job.folder.path}', but only "
            f"{free / 1e6:,.0f} MB are free. Free some space, save fewer snapshots, or set `run` to a folder on "
            "another disk."
        )
    return {
        "disk MB at the end": round(kept / 1e6),
        "disk MB while it runs": round((kept + checkpoints) / 1e6),
        "disk MB free": round(free / 1e6),
    }
