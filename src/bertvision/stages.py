"""The stages of a run. Each does what is missing, leaves what is done, and can be killed and started again."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.config import EncoderConfig
from bertvision.data.packing import plan_batches, plan_pass
from bertvision.encoder.encoder import Encoder, RouteError, check_route
from bertvision.encoder.loading import identify, load_encoder, shape_of
from bertvision.encoder.output_layer import (
    CheckpointOutputLayer,
    build_output_layer,
    load_output_layer,
    restore_output_layer,
)
from bertvision.encoder.states import Part
from bertvision.environment import describe_environment
from bertvision.errors import UserError
from bertvision.evaluation.marks import FILE as MARKS
from bertvision.evaluation.marks import build_marks, save_marks
from bertvision.evaluation.outputs import compute_outputs
from bertvision.evaluation.predictions import Predictions, build_predictions, save_predictions
from bertvision.evaluation.scores import pick_threshold, score_baseline, score_predictions
from bertvision.heads import MemberConfig, build_head, count_parameters, load_head, outline_head, save_head
from bertvision.heads.saved import begin_head, check_begin
from bertvision.held_out import EachEpoch, HeldOut
from bertvision.job import HELD_OUT, Job
from bertvision.machine import Machine, drawing_from
from bertvision.results import counted
from bertvision.rundir import mark_done, read_json, write_json, writing_folder
from bertvision.sources import KeptStates, Store, pack_tokens
from bertvision.sourcing import (
    STREAMED,
    UnfinishedError,
    check_stores,
    encode_states,
    keep_of,
    open_source,
    parts_of,
    split_parts,
)
from bertvision.tasks import TargetKind
from bertvision.tasks.base import describe_task
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.finetune import Cost, Finetuning
from bertvision.training.heads import Judge, train_heads
from bertvision.training.methods import check_method
from bertvision.training.stack import Member

BASELINE, ENCODER = "baseline", "encoder"
# Operations before which compiling the layers takes longer than it saves (LOG.md): a minute or two of a large GPU.
LONG_WORK = 2e16


def open_run(job: Job) -> None:
    """Writes what was asked and where it runs, before any work; a mistake in the data is said even before that, and so
    are layers that the encoder does not have."""
    _ = job.layers
    check_stores(job)
    for split in ("train", *job.task.dev_splits):
        job.examples(split)
    if job.machine.is_main:
        job.folder.sweep()
        write_json(job.folder.path / "config.json", job.config.with_absolute_paths().to_dict())
        write_json(job.folder.path / "task.json", describe_task(job.task))
        write_json(job.folder.path / "environment.json", describe_environment(job.machine))
    job.machine.wait()


# ---------------------------------------------------------------------- fine-tuning


def finetune(job: Job) -> None:
    """Fine-tunes the encoder and keeps it at every snapshot."""
    stamp, say = job.finetune_stamp, job.reporter.say
    missing = [epochs for epochs in job.snapshots if not job.folder.is_done(job.folder.encoder(epochs), stamp)]
    job.machine.wait()  # all processes have looked before one of them writes
    if not missing:
        say(f"fine-tuning: done already (snapshots {', '.join(f'{epochs:g}' for epochs in job.snapshots)}).")
        return
    encoder = load_for_finetuning(job)
    tell_route(job, encoder)
    output = output_layer(job, encoder)
    for split in (HELD_OUT, *job.task.dev_splits):  # a question that no window holds is told before the work, not after
        if job.examples(split):
            job.features(split)
    features, config = job.features("train"), job.config.finetune
    plan = plan_batches(features.lengths, config.epochs, job.config.seed, config.batch_rows, config.batch_tokens)
    compile_if_long(job, encoder, 3 * config.epochs * float(features.lengths.sum()))
    facts: dict[str, Any] = {}

    def keep(epochs: float, cost: Cost) -> None:
        _refuse_diverged(job, encoder, output, epochs)
        if job.machine.is_main and not job.folder.is_done(job.folder.encoder(epochs), stamp):
            _save_snapshot(job, epochs, encoder, output, stamp, (facts if epochs else {}) | dataclasses.asdict(cost))
        job.machine.wait()

    checkpoints = Checkpoints(job.folder.checkpoints / "finetune", stamp, config.checkpoint_seconds)
    if config.epochs == 0:
        keep(0.0, Cost(0.0, 0))
        return
    if config.track:
        job.machine.accelerator.init_trackers("bertvision")
    work = Finetuning(
        encoder, output, features, plan, job.task.kind, config, job.config.seed, job.machine, job.reporter
    )
    if config.method != "full":
        facts["trained_parameters"] = sum(weight.numel() for weight in work.parameters)
    work.run(job.snapshots, keep, checkpoints, job.folder.log, missing)
    if config.track:
        job.machine.accelerator.end_training()
    if job.machine.is_main:
        checkpoints.clear()
    say(f"fine-tuning: {counted(work.step, 'step')}, {counted(work.tokens, 'token')}, {work.seconds:.1f} s.")


def load_for_finetuning(job: Job) -> Encoder:
    """The encoder with float32 weights, on the route its arithmetic allows; with all its layers, so that nothing in
    fine-tuning hangs on `encoder.layers`."""
    settings = job.config.encoder
    encoder = load_encoder(settings.name, job.machine.device, torch.float32, "padded")
    encoder.take_route(settings.attention, job.machine.dtype)
    check_length(job, encoder)
    check_method(encoder, job.config.finetune)
    return encoder


def check_length(job: Job, encoder: Encoder) -> None:
    """Refuses windows that the encoder can't take, before the first long text turns up in the middle of the work."""
    if encoder.max_length is not None and job.max_length > encoder.max_length:
        raise UserError(
            f"'{encoder.name}' takes at most {encoder.max_length} tokens: lower data.max_length = {job.max_length}."
        )


def tell_route(job: Job, encoder: Encoder) -> None:
    """Says how sequences go through, after comparing it with the padded way on a few of them."""
    features = job.features("train")
    try:
        with job.machine.autocast():
            check_route(encoder, pack_tokens(features, np.arange(min(4, len(features)))))
    except RouteError as error:
        encoder.take_route("padded")
        job.reporter.say(f"{error} It is padded in this run.")
    line = f"on {job.machine.describe()}; sequences go through {encoder.route}: {encoder.route_reason}."
    if line != job.route_told:
        job.reporter.say(line)
        job.route_told = line


def compile_if_long(job: Job, encoder: Encoder, tokens: float) -> None:
    """Compiles the encoder's layers where so many tokens, forward, are enough work to make up for it."""
    wanted = job.config.encoder.compile
    if wanted == "off" or (wanted == "auto" and encoder.work * tokens < LONG_WORK):
        return
    if encoder.compile_layers():
        job.reporter.say("the encoder's layers are compiled with the first batch (encoder.compile).")
    elif wanted == "on":
        job.reporter.say("the encoder's layers are not compiled: only an unpadded encoder's are (encoder.compile).")


def output_layer(job: Job, encoder: Encoder) -> Any:
    """The checkpoint's own output layer where it has one for this task, otherwise a fresh one from the seed."""
    task, device = job.task, job.machine.device
    own = load_output_layer(job.config.encoder.name, task.kind, len(task.labels))
    if own is not None and _is_for(own, job):
        return own.to(device)
    with drawing_from(torch.device("cpu"), job.config.seed, 11):
        return build_output_layer(task.kind, encoder.shape, job.target.outputs).to(device)


def _is_for(own: CheckpointOutputLayer, job: Job) -> bool:
    """Whether a checkpoint's output layer is one for this task: by its labels' names, where it has names."""
    say, labels = job.reporter.say, own.labels or ()
    if job.task.kind is TargetKind.LABEL and not own.match_labels(job.task.labels):
        if not all(label == f"LABEL_{number}" for number, label in enumerate(labels)):
            say(f"the checkpoint's output layer is for {', '.join(labels)}, not for this task: a fresh one is trained.")
            return False
        say(f"the checkpoint does not name its labels: they are taken for {', '.join(job.task.labels)}, in this order.")
    say("the checkpoint brings its own output layer: it is the encoder's row.")
    return True


def _refuse_diverged(job: Job, encoder: Encoder, output: Any, epochs: float) -> None:
    """An encoder that gives no numbers any more is worth neither keeping nor training heads on."""
    features = job.features("train")
    encoder.eval()
    output.eval()
    # Not worth compiling for.
    with torch.no_grad(), job.machine.autocast(), torch.compiler.set_stance("force_eager"):
        some = pack_tokens(features, np.arange(min(4, len(features))))
        outputs = output(encoder(some, keep=output.keep))  # (token or sequence, output)
    if not outputs.isfinite().all():
        raise UserError(
            f"fine-tuning has diverged before {counted(epochs, 'epoch')}: its outputs are no numbers any more. "
            f"Set finetune.lr lower than {job.config.finetune.lr:g} and start again."
        )


def _save_snapshot(job: Job, epochs: float, encoder: Encoder, output: Any, stamp: str, facts: dict[str, Any]) -> None:
    with writing_folder(job.folder.encoder(epochs)) as fresh:
        if epochs == 0:  # the encoder as it came: its name says it all
            place = Path(job.config.encoder.name).expanduser()
            name = str(place.absolute()) if place.is_dir() else job.config.encoder.name
            write_json(fresh / "reference.json", {"name": name, "stamp": job.encoder_stamp})
        else:
            encoder.save(fresh)
        output.save(fresh)
        parameters = count_parameters(encoder) + count_parameters(output)
        mark_done(fresh, stamp, epochs=epochs, parameters=parameters, **facts)
    job.folder.log("snapshot", epochs=epochs, **facts)


def load_snapshot(folder: Path, settings: EncoderConfig, machine: Machine) -> tuple[Encoder, Any]:
    """The frozen encoder of a snapshot's folder, in the machine's precision, and its output layer."""
    reference = read_json(folder / "reference.json")
    name = reference["name"] if reference else str(folder)
    if reference and identify(name) != reference["stamp"]:
        raise UserError(f"the encoder '{name}' is not the one this run was made with: bring that back, or run again.")
    encoder = load_encoder(name, machine.device, machine.dtype, settings.attention, layers=settings.layers)
    output = restore_output_layer(folder).to(machine.device)
    return encoder.eval().requires_grad_(False), output.eval()


# ---------------------------------------------------------------------- heads


def check_heads(job: Job) -> None:
    """Builds every head without its weights: what does not fit this encoder is said before any work, and so are
    weights to begin with that do not fit the head."""
    shape = shape_of(job.config.encoder.name, job.config.encoder.layers).shape
    own = {job.folder.head(epochs, one.name).resolve() for epochs in job.head_snapshots for one in job.members}
    for member in job.members:
        check_begin(outline_head(member, shape, job.target), member, job.task)
        if member.begin is not None and Path(member.begin).resolve() in own:  # trained here, before or after it
            raise UserError(
                f"head '{member.name}' begins with '{member.begin}', which this run writes itself: give the head that "
                "has this folder another `name`, or the run another folder (`run`)."
            )


def train(job: Job) -> None:
    """Trains every head that is missing, on each snapshot asked for, in one pass a snapshot."""
    for epochs in job.head_snapshots:
        missing = [
            member
            for member in job.members
            if not job.folder.is_done(job.folder.head(epochs, member.name), job.member_stamp(epochs, member))
        ]
        if missing:
            _train_on(job, epochs, missing)
        else:
            job.reporter.say(f"heads at {counted(epochs, 'epoch')}: done already.")


def _train_on(job: Job, epochs: float, configs: list[MemberConfig]) -> None:
    encoder, _ = load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
    tell_route(job, encoder)
    reads = {config.name: outline_head(config, encoder.shape, job.target).reads for config in configs}
    for part in ("tokens", "sequences"):  # a head on kept [CLS] states must not be streamed for the sake of others
        some = [config for config in configs if (reads[config.name] == "tokens") == (part == "tokens")]
        if not some:
            continue
        stamp = "-".join(f"{config.name}={job.member_stamp(epochs, config)}" for config in some)
        folder = job.folder.checkpoints / f"heads_{epochs:g}_{part}"
        checkpoints = Checkpoints(folder, stamp, job.config.train.checkpoint_seconds)
        done = train_members(job, encoder, epochs, some, checkpoints, watched=True)
        if job.machine.is_main:
            for member in done.members:
                _save_member(job, epochs, member, done)
            checkpoints.clear()
        job.machine.wait()
        heads = counted(len(done.members), "head")
        job.reporter.say(f"{heads} at {counted(epochs, 'epoch')} trained in one pass of {done.seconds:.1f} s.")


def encode(job: Job, split: str = "train", part: tuple[int, int] = (0, 1)) -> list[Store]:
    """Writes the states of a split that heads read to stores, for each snapshot that has heads. What is there is
    compared with its checksums, and only what is missing or wrong is written; `part` = (number, of how many) leaves the
    rest to other commands."""
    stores, waiting = [], []
    groups = parts_of(job) if job.config.store.keep is None else split_parts(job.config.store.keep)
    for epochs in job.head_snapshots:
        encoder, _ = load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
        tell_route(job, encoder)
        for keep in groups:
            try:
                stores.append(encode_states(job, encoder, epochs, keep, split, part, verify=True))
            except UnfinishedError as unfinished:  # the other stores are written all the same
                waiting.append(str(unfinished))
    if waiting:
        raise UnfinishedError("\n".join(waiting))
    return stores


@dataclasses.dataclass(frozen=True)
class Trained:
    """Members after their pass, and what it took."""

    members: list[Member]
    seconds: float
    states: str
    """Where the states came from: kept, streamed or stored."""
    tokens: dict[str, int]
    """Tokens that went through the encoder, forward, for the sake of each member."""
    memory: int
    """The most bytes in use at once: of the GPU, or of the process."""


def train_members(
    job: Job,
    encoder: Encoder,
    epochs: float,
    configs: list[MemberConfig],
    checkpoints: Checkpoints,
    kept: KeptStates | None = None,
    judge: Judge | None = None,
    repeats: float = 1.0,
    watched: bool = False,
) -> Trained:
    """Trains these members in one pass over the train split, on the states of a snapshot. States that were kept before
    are not encoded again; `repeats` says how many such passes are to come; `watched` members are scored on held-out
    examples after each epoch."""
    train, lengths = job.config.train, job.features("train").lengths
    wanted = {(config.epochs, config.data_fraction) for config in configs}
    whole = plan_pass(lengths, wanted, job.config.seed, train.batch_rows, train.batch_tokens, train.shuffle)
    members = []
    for config in configs:
        head = build_head(config, encoder.shape, job.target)
        begin_head(head, config, job.task)
        head = head.to(job.machine.device)
        members.append(Member(config, head, whole.courses[config.epochs, config.data_fraction]))
    started = time.monotonic()
    job.machine.watch_memory()
    keep = keep_of([member.head for member in members])
    if watched and job.examples(HELD_OUT) and max(config.epochs for config in configs) > 1:
        judge = EachEpoch(HeldOut(job, encoder, keep, job.task.metrics[0]), epochs, members, whole.steps)
    tokens = job.tokens_of(whole.steps)
    if not encoder.compiled:
        compile_if_long(job, encoder, repeats * sum(tokens) if "tokens" in keep else float(lengths.sum()))
    source, choice = open_source(job, encoder, epochs, whole, keep, kept, repeats, checkpoints.is_there())
    before = time.monotonic() - started
    seconds = train_heads(
        members, source, tokens.__getitem__, job.machine, checkpoints, job.folder.log, job.reporter, train.stack, judge
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
    """Streamed states are made again in each epoch, others once."""
    if states == STREAMED:
        return sum(tokens[step] for step in member.steps)
    return int(lengths[np.unique(np.concatenate([steps[step] for step in member.steps]))].sum())


def _save_member(job: Job, epochs: float, member: Member, done: Trained) -> None:
    with writing_folder(job.folder.head(epochs, member.config.name)) as fresh:
        save_head(fresh, member.head, member.config)
        mark_done(
            fresh,
            job.member_stamp(epochs, member.config),
            encoder=job.finetune_stamp,
            layers=job.layers,
            states=done.states,
            seconds=round(done.seconds, 3),
            tokens=done.tokens[member.name],
            memory=done.memory,
            failed=member.failed,
            parameters=count_parameters(member.head),
        )


# ---------------------------------------------------------------------- scoring


@dataclasses.dataclass(frozen=True)
class Row:
    """One model at one snapshot: what its predictions are stamped with, and what it costs."""

    name: str
    stamp: str
    facts: dict[str, Any]


def evaluate(job: Job) -> dict[str, Any]:
    """Scores the baseline, the encoder at every snapshot and every head; writes scores.json and gives it back."""
    scores: dict[str, Any] = {
        "task": job.task.name,
        "kind": str(job.task.kind),
        "metrics": list(job.task.metrics),
        "snapshots": {},
    }
    baseline = {s: score_baseline(job.task, job.examples("train"), job.examples(s)) for s in job.dev_splits}
    for epochs in job.snapshots:
        rows = _rows(job, epochs)
        _predict_missing(job, epochs, rows)
        models = {BASELINE: {"scores": baseline, "parameters": 0, "seconds": 0.0}}
        for row in rows:
            models[row.name] = {
                **row.facts,
                "scores": {} if row.facts.get("failed") else read_scores(job, epochs, row.name),
            }
        scores["snapshots"][f"{epochs:g}"] = models
    if job.machine.is_main:
        write_json(job.folder.path / "scores.json", scores)
        _keep_lengths(job)
    return scores


def _keep_lengths(job: Job) -> None:
    """How many windows of each length there are, for those who ask later without a tokenizer at hand."""
    path = job.folder.path / "lengths.json"
    known, found = read_json(path) or {}, {}
    for split in ("train", *([HELD_OUT] if job.examples(HELD_OUT) else []), *job.dev_splits):
        stamp = job.data_stamp(split)
        if known.get(split, {}).get("stamp") == stamp:
            found[split] = known[split]
        else:
            lengths, counts = np.unique(job.features(split).lengths, return_counts=True)
            found[split] = {"stamp": stamp, "lengths": lengths.tolist(), "windows": counts.tolist()}
    if found != known:
        write_json(path, found)


def _rows(job: Job, epochs: float) -> list[Row]:
    """The models to score at a snapshot: the encoder, and the heads where heads are trained."""
    found = read_json(job.folder.encoder(epochs) / "stamp.json")
    if found is None or found["stamp"] != job.finetune_stamp:
        raise UserError(
            f"'{job.folder.path}' has no encoder fine-tuned by these settings to {counted(epochs, 'epoch')}: "
            "run `bertvision finetune` (or `run`) with this config first."
        )
    whole = found["parameters"]
    facts = {key: found.get(key) for key in ("parameters", "seconds", "tokens", "memory")}
    if "trained_parameters" in found:  # not all of them learned
        facts["trained_parameters"] = found["trained_parameters"]
    rows = [Row(ENCODER, f"{found['stamp']}@{epochs:g}", {**facts, "share": 1.0})]
    for member in job.members if epochs in job.head_snapshots else []:
        stamp = job.member_stamp(epochs, member)
        found = read_json(job.folder.head(epochs, member.name) / "stamp.json")
        if found is None or found["stamp"] != stamp:
            job.reporter.say(
                f"head '{member.name}' is not trained by these settings: it is left out (`bertvision train`)."
            )
            continue
        keys = ("parameters", "seconds", "tokens", "memory", "states", "failed")
        own = {"share": found["parameters"] / whole, "head": member.head, "group": member.group, "seed": member.seed}
        own |= {"epochs": member.epochs, "data_fraction": member.data_fraction}
        own |= {"begun": True} if member.begin_stamp else {}
        rows.append(Row(member.name, stamp, {key: found.get(key) for key in keys} | own))
    return rows


def _predict_missing(job: Job, epochs: float, rows: list[Row]) -> None:
    """One pass a split for all models whose predictions are not there; held-out first, for the threshold."""
    held = [HELD_OUT] if job.examples(HELD_OUT) else []
    parts: tuple[Encoder, Any] | None = None
    for split in [*held, *job.dev_splits]:
        todo = [row for row in rows if not row.facts.get("failed") and not _is_predicted(job, epochs, split, row)]
        if not todo:
            continue
        parts = parts or load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
        encoder, output = parts
        models: dict[str, Any] = {}
        keep: set[Part] = set()
        for row in todo:
            model: Any = output if row.name == ENCODER else load_head(job.folder.head(epochs, row.name))[0]
            keep.update(output.keep if row.name == ENCODER else (model.reads,))
            models[row.name] = model.to(job.machine.device).eval()
        features = job.features(split)
        with job.reporter.bar(f"scoring {len(todo)} models on {split}", int(features.lengths.sum()), "tokens") as bar:
            outputs = compute_outputs(
                encoder, models, tuple(sorted(keep)), features, job.task.kind, job.machine,
                job.encode_tokens, bar,
            )  # fmt: skip
        if job.machine.is_main:
            for row in todo:
                _keep_predictions(job, epochs, split, row, outputs[row.name])
        job.machine.wait()


def _is_predicted(job: Job, epochs: float, split: str, row: Row) -> bool:
    folder = job.folder.predictions(epochs, split) / row.name
    return job.folder.is_done(folder, job.predictions_stamp(row.stamp, split)) and (folder / MARKS).is_file()


def _keep_predictions(job: Job, epochs: float, split: str, row: Row, outputs: np.ndarray) -> None:
    examples, features, settings = job.examples(split), job.features(split), job.config.evaluate
    longest, device = settings.max_answer_tokens, job.machine.device
    predictions = build_predictions(job.task, outputs, features, examples, settings.n_best, longest, device)
    keep_scored(job, epochs, split, row.name, job.predictions_stamp(row.stamp, split), predictions, outputs)


def keep_scored(
    job: Job,
    epochs: float,
    split: str,
    name: str,
    stamp: str,
    predictions: Predictions,
    outputs: np.ndarray | None = None,
) -> None:
    """Scores a model's predictions and keeps both; those on held-out questions come first, for the threshold."""
    examples, threshold = job.examples(split), None
    marks = build_marks(predictions, examples)
    if job.task.kind is TargetKind.SPAN and job.examples(HELD_OUT):
        if split == HELD_OUT:
            threshold = pick_threshold(predictions, examples, marks)
        else:
            chosen = read_json(job.folder.predictions(epochs, HELD_OUT) / name / "stamp.json")
            threshold = chosen["scores"]["threshold"] if chosen else 0.0
    scores = score_predictions(job.task, predictions, examples, threshold, marks)
    with writing_folder(job.folder.predictions(epochs, split) / name) as fresh:
        save_predictions(fresh, predictions, outputs, threshold or 0.0)
        save_marks(fresh, marks)
        mark_done(fresh, stamp, scores=scores)
    job.folder.log("scores", epochs=epochs, split=split, model=name, scores=scores)


def read_scores(job: Job, epochs: float, name: str) -> dict[str, Any]:
    """Split → figures of a model that was scored there."""
    splits = [*([HELD_OUT] if job.examples(HELD_OUT) else []), *job.dev_splits]
    found = {split: read_json(job.folder.predictions(epochs, split) / name / "stamp.json") for split in splits}
    return {split: stamp["scores"] for split, stamp in found.items() if stamp is not None}
