"""Fine-tuning: the first stage, from the pretrained encoder to its snapshots."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from bertvision.config import FinetuneConfig
from bertvision.data.packing import fill_batches, plan_batches
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.encoder.output_layer import (
    CheckpointOutputLayer,
    OutputLayer,
    OutputLayers,
    build_output_layer,
    load_output_layer,
)
from bertvision.encoder.states import pack_tokens
from bertvision.errors import UserError
from bertvision.machine import drawing_from
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.held_out import score_held_out
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import (
    Collector,
    check_length,
    compile_if_long,
    encode_batches,
    put_in_order,
    report_route,
    save_snapshot,
)
from bertvision.sources.base import pack_targets
from bertvision.tables import counted
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.contrastive import check_labels
from bertvision.training.finetune import Finetuning, Usage
from bertvision.training.methods import check_method


def finetune(job: Job) -> None:
    """Fine-tune the encoder and save every snapshot."""
    stamp, say = job.stamps.finetune, job.reporter.say
    missing = job.machine.first(
        lambda: [epochs for epochs in job.snapshots if not job.folder.is_done(job.folder.encoder(epochs), stamp)]
    )
    checkpoints = Checkpoints(job.folder.checkpoints / "finetune", stamp, job.config.finetune.checkpoint_seconds)
    if not missing:
        if job.machine.is_main:
            checkpoints.clear()  # left by a kill after the last snapshot
        say(f"fine-tuning: already done (snapshots {', '.join(f'{epochs:g}' for epochs in job.snapshots)}).")
        return
    encoder = load_for_finetuning(job)
    report_route(job, encoder)
    output = output_layer(job, encoder)
    config = with_output_rate(job, output)
    for split in (HELD_OUT, *job.task.dev_splits):  # fail now, not after training, if a question fits in no window
        if job.examples(split):
            job.features(split)
    features = job.features("train")
    plan = plan_batches(features.lengths, config.epochs, job.config.seed, config.batch_rows, config.batch_tokens)
    compile_if_long(job, encoder, 3 * config.epochs * float(features.lengths.sum()))
    facts: dict[str, Any] = {}

    def keep(epochs: float, usage: Usage) -> None:
        _refuse_diverged(job, encoder, output, epochs)
        chosen = choose_output_layer(job, encoder, output)
        if job.machine.is_main and not job.folder.is_done(job.folder.encoder(epochs), stamp):
            save_snapshot(job, epochs, encoder, chosen, stamp, (facts if epochs else {}) | dataclasses.asdict(usage))
        job.machine.wait()

    if config.epochs == 0:
        keep(0.0, Usage(0.0, 0))
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
    say(f"fine-tuned the encoder: {counted(work.step, 'step')}, {counted(work.tokens, 'token')}, {work.seconds:.1f} s.")


def load_for_finetuning(job: Job) -> Encoder:
    """Load the encoder with float32 weights and choose its attention route. All layers are loaded, so that fine-tuning
    does not depend on `encoder.layers`."""
    settings = job.config.encoder
    encoder = load_encoder(settings.name, job.machine.device, torch.float32, "padded")
    encoder.take_route(settings.attention, job.machine.dtype)
    check_length(job, encoder)
    if job.config.finetune.method == "contrastive":
        check_labels(job.task.kind)
    if job.config.finetune.method != "full":
        check_method(encoder, job.config.finetune)
    return encoder


def output_layer(job: Job, encoder: Encoder) -> Any:
    """Return the checkpoint's own output layer if it has one for this task, otherwise a new one drawn from the seed, or
    several that read the states in different ways."""
    task, device = job.task, job.machine.device
    own = load_output_layer(job.config.encoder.name, task.kind, len(task.labels))
    if own is not None and _is_for(own, job):
        return own.to(device)
    layers = {read: _new_layer(job, encoder, read).to(device) for read in job.output_reads}
    return OutputLayers(layers) if len(layers) > 1 else next(iter(layers.values()))


def _new_layer(job: Job, encoder: Encoder, read: str) -> OutputLayer:
    # [CLS] is read through the pooler, if there is one.
    part: Any = None if read == "cls" else read
    with drawing_from(torch.device("cpu"), job.config.seed, 11):
        return build_output_layer(job.task.kind, encoder.shape, job.target.outputs, part)


def with_output_rate(job: Job, output: Any) -> FinetuneConfig:
    """The settings of fine-tuning with the learning rate of this output layer. A checkpoint's own is trained already,
    so by default it learns as the encoder does."""
    config = job.config.finetune
    if isinstance(output, CheckpointOutputLayer) and config.output_lr is None:
        return dataclasses.replace(config, output_lr=config.lr)
    return dataclasses.replace(config, output_lr=job.output_rate)


def choose_output_layer(job: Job, encoder: Encoder, output: Any) -> Any:
    """Of several output layers, the one with the best score on held-out data; of equal ones, that with the lower
    loss."""
    if not isinstance(output, OutputLayers):
        return output
    judged = _judge_output_layers(job, encoder, output)
    best = max(judged, key=lambda read: judged[read])
    shown = " and ".join(f"{score:.2f} for '{read}'" for read, (score, _) in judged.items())
    metric = job.task.metrics[0]
    job.reporter.say(f"the encoder's output layer reads '{best}': held-out {metric} {shown} (finetune.read).")
    return output.layers[best]


def _judge_output_layers(job: Job, encoder: Encoder, output: OutputLayers) -> dict[str, tuple[float, float]]:
    """Score and negative loss of each output layer on held-out data."""
    features, machine, found = job.features(HELD_OUT), job.machine, Collector()
    total = torch.zeros(len(output.layers), device=machine.device)  # (layer)
    plan = fill_batches(features.lengths, np.arange(len(features)), tokens=job.encode_tokens)
    output.eval()
    with torch.no_grad(), machine.autocast(), torch.compiler.set_stance("force_eager"):
        for windows, states in encode_batches(encoder, features, plan, output.keep):
            outputs = output(states)  # (layer, sequence, output)
            found.add(windows, list(outputs))
            total += job.task.kind.loss(
                outputs, states, pack_targets(features, windows).to(machine.device), len(features)
            )
    rows = put_in_order(found.fetch(), list(output.layers), features, job.task.kind)
    scores = [score_held_out(job, rows[read], job.task.metrics[0]) for read in output.layers]
    judged = [
        (-math.inf if math.isnan(score) else score, -loss) for score, loss in zip(scores, total.tolist(), strict=True)
    ]
    return dict(zip(output.layers, machine.first(lambda: judged), strict=True))


def _is_for(own: CheckpointOutputLayer, job: Job) -> bool:
    """Whether a checkpoint's output layer is for this task, judged by its label names if it has any."""
    say, labels = job.reporter.say, own.labels or ()
    if job.task.kind.has_labels and not own.match_labels(job.task.labels):
        if not all(label == f"LABEL_{number}" for number, label in enumerate(labels)):
            say(f"the checkpoint's output layer is for {', '.join(labels)}, not for this task: using a new one.")
            return False
        say(f"the checkpoint does not name its labels: assuming {', '.join(job.task.labels)}, in this order.")
    say("the checkpoint has an output layer for this task: the encoder alone uses it.")
    return True


def _refuse_diverged(job: Job, encoder: Encoder, output: Any, epochs: float) -> None:
    """Raise UserError if the outputs are NaN or infinite: such an encoder is worth neither saving nor training on."""
    features = job.features("train")
    encoder.eval()
    output.eval()
    # Compiling would not pay off here.
    with torch.no_grad(), job.machine.autocast(), torch.compiler.set_stance("force_eager"):
        some = pack_tokens(features, np.arange(min(4, len(features))))
        outputs = output(encoder(some, keep=output.keep))  # (token or sequence, output)
    if not outputs.isfinite().all():
        raise UserError(
            f"fine-tuning diverged within {counted(epochs, 'epoch')}: the encoder's outputs are NaN or infinite. "
            f"Set finetune.lr to less than {job.config.finetune.lr:g} and start again."
        )
