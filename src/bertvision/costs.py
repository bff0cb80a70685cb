"""Whether all is there and what a run will cost, measured on a few batches: seconds, memory, disk."""

import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bertvision.data.packing import fill_batches, plan_batches
from bertvision.data.splits import draw
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder, shape_of
from bertvision.errors import UserError
from bertvision.heads import build_head, count_parameters, outline_head
from bertvision.job import HELD_OUT, Job
from bertvision.results import counted
from bertvision.sources import StreamedSource, pack_tokens
from bertvision.stages import check_length, keep_of, load_for_finetuning, output_layer
from bertvision.training.finetune import Finetuning
from bertvision.training.stack import Member, build_units

HEAD_STEPS = 8  # batches of states that are kept to time the heads
SAMPLE = 1000  # examples that are tokenized to tell the length of all
Section = dict[str, Any]


def estimate_costs(job: Job) -> dict[str, Section]:
    """Sections of facts; raises one UserError with everything that is missing."""
    problems: list[str] = []
    found = {
        "data": _try(lambda: _data(job), problems),
        "encoder": _try(lambda: _encoder(job), problems),
        "heads": _try(lambda: _heads(job), problems),
    }
    if not problems:
        found["cost"] = _try(lambda: _cost(job, found["data"]), problems)
    if problems:
        raise UserError("this run can't start yet:\n" + "\n".join(f"  - {problem}" for problem in problems))
    return found


def _try(part: Callable[[], Section], problems: list[str]) -> Section:
    try:
        return part()
    except UserError as error:
        if str(error) not in problems:  # two parts may miss the same thing
            problems.append(str(error))
        return {}


def _data(job: Job) -> Section:
    splits = ["train", HELD_OUT, *job.dev_splits]
    facts: Section = {"task": job.task.name, "source": job.task.source, "tokens a window": job.max_length}
    facts |= {f"{split.replace('_', ' ')} examples": len(job.examples(split)) for split in splits}
    for part, named in {"train": ["train"], "held out": [HELD_OUT], "dev": job.dev_splits}.items():
        windows, tokens = zip(*(_count_tokens(job, name) for name in named), strict=True)
        facts |= {f"{part} windows": sum(windows), f"{part} tokens": sum(tokens)}
    return facts


def _count_tokens(job: Job, split: str) -> tuple[int, int]:
    """Windows and tokens of a split, told from a sample where it is large."""
    examples = job.examples(split)
    if not examples:  # nothing may be held out
        return 0, 0
    sample = draw(examples, SAMPLE, job.config.seed)
    features, scale = job.build_features(sample), len(examples) / len(sample)
    return round(scale * len(features)), round(scale * int(features.lengths.sum()))


def _encoder(job: Job) -> Section:
    encoder = load_encoder(job.config.encoder.name, job.machine.device, job.machine.dtype, job.config.encoder.attention)
    check_length(job, encoder)
    return {
        "name": encoder.name,
        "states": f"{encoder.shape.layers} layers of {encoder.shape.hidden}",
        "pooled output": "yes" if encoder.shape.pooled else "no",
        "parameters": count_parameters(encoder),
        "device": job.machine.describe(),
        "route": f"{encoder.route} ({encoder.route_reason})",
    }


def _heads(job: Job) -> Section:
    shape = shape_of(job.config.encoder.name).shape
    return {
        member.name: f"{count_parameters(outline_head(member, shape, job.target)):,} parameters, "
        f"{counted(member.epochs, 'epoch')}, lr {member.lr:g}"
        for member in job.members
    }


def _cost(job: Job, data: Section) -> Section:
    """Rates measured on a few batches of this machine, times what there is to do."""
    encoder = load_for_finetuning(job)
    sample = job.build_features(draw(job.examples("train"), SAMPLE, job.config.seed))
    finetune_rate = _finetune_rate(job, encoder, sample) if job.config.finetune.epochs else None
    frozen_rate, heads_rate = _heads_rates(job, sample)
    scored, trained = len(job.snapshots), len(job.head_snapshots)
    encoded, learned = _passes(job, encoder)
    tokens = data["train tokens"]
    seconds = {
        "fine-tuning": job.config.finetune.epochs * tokens / finetune_rate if finetune_rate else 0.0,
        "heads": trained * tokens * (encoded / frozen_rate + learned / heads_rate),
        "scoring": scored * (data["held out tokens"] + data["dev tokens"]) / frozen_rate,
    }
    return {
        **{f"seconds {stage}": round(value, 1) for stage, value in seconds.items()},
        "seconds in all": round(sum(seconds.values()), 1),
        "tokens a second fine-tuning": round(finetune_rate or 0),
        "tokens a second frozen": round(frozen_rate),
        "memory MB of this process": round(_memory_bytes(job) / 1e6),
        **_disk(job, encoder),
    }


def _passes(job: Job, encoder: Encoder) -> tuple[float, float]:
    """How many times train goes through the encoder for the heads, and how many times through the mean head."""
    encoded = 0.0
    streamed = [m for m in job.members if outline_head(m, encoder.shape, job.target).reads == "tokens"]
    if len(streamed) < len(job.members):  # [CLS] and mean states are kept: further epochs cost the heads' time alone
        encoded += 1
    if streamed:
        fractions = {m.data_fraction for m in streamed}
        encoded += max((m.epochs for m in streamed if m.data_fraction == 1), default=max(fractions))
        for fraction in fractions - {1.0}:  # its first epoch is part of the others', further ones are its own
            encoded += fraction * (max(m.epochs for m in streamed if m.data_fraction == fraction) - 1)
    return encoded, sum(m.epochs * m.data_fraction for m in job.members) / len(job.members)


def _finetune_rate(job: Job, encoder: Encoder, features: Features) -> float:
    config = job.config.finetune
    plan = plan_batches(features.lengths, 1, job.config.seed, config.batch_rows, config.batch_tokens)
    work = Finetuning(
        encoder, output_layer(job, encoder), features, plan, job.task.kind, config, job.config.seed, job.machine,
        job.reporter,
    )  # fmt: skip
    return _rate(work.measure_step, plan.steps, job)


def _heads_rates(job: Job, features: Features) -> tuple[float, float]:
    """Tokens a second of the frozen encoder alone, and of all heads' steps on its states alone."""
    settings, train, machine = job.config.encoder, job.config.train, job.machine
    encoder = load_encoder(settings.name, machine.device, machine.dtype, settings.attention).requires_grad_(False)
    order = np.arange(len(features))
    groups = fill_batches(features.lengths, order, tokens=train.encode_tokens)
    steps = fill_batches(features.lengths, order, train.batch_rows, train.batch_tokens)
    members = [
        Member(config, build_head(config, encoder.shape, job.target).to(machine.device), range(len(steps) + 2))
        for config in job.members
    ]
    keep = keep_of([member.head for member in members])
    batches = list(islice(StreamedSource(encoder, features, steps, keep, encode_tokens=1).batches(), HEAD_STEPS))

    def encode(step: int) -> int:
        with torch.no_grad():
            encoder(pack_tokens(features, groups[step]), keep=keep)
        return int(features.lengths[groups[step]].sum())

    units = build_units(members, train.stack, int(features.lengths[steps[0]].sum()))

    def learn(step: int) -> int:
        for unit in units:
            unit.learn(batches[step], machine)
        return int(features.lengths[batches[step].windows].sum())

    return _rate(encode, len(groups), job), _rate(learn, len(batches), job)


def _rate(work: Callable[[int], int], steps: int, job: Job, seconds: float = 2.0) -> float:
    """Tokens a second of `work(step)`, after one step to warm up, over as many steps as fit in `seconds`."""
    tokens = work(0)
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
    """What the steps above took: the device's peak, or this process's memory."""
    if job.machine.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(job.machine.device))
    return int(psutil.Process().memory_info().rss)


def _disk(job: Job, encoder: Encoder) -> Section:
    """Snapshots, and one checkpoint being written while another is there; predictions are small beside them."""
    weights = 4 * count_parameters(encoder)
    kept = sum(epochs > 0 for epochs in job.snapshots) * weights
    checkpoints = 2 * 3 * weights if job.config.finetune.epochs else 0
    place = Path(job.folder.path).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < kept + checkpoints:
        raise UserError(
            f"the run needs about {(kept + checkpoints) / 1e6:,.0f} MB in '{job.folder.path}', {free / 1e6:,.0f} MB "
            "are free: make room, keep fewer snapshots, or set `run` to a folder on another disk."
        )
    return {
        "disk MB at the end": round(kept / 1e6),
        "disk MB while it runs": round((kept + checkpoints) / 1e6),
        "disk MB free": round(free / 1e6),
    }
