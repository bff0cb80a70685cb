"""A snapshot: the encoder as it is kept after so many epochs of fine-tuning, and how sequences go through it."""

from pathlib import Path
from typing import Any

import numpy as np

from bertvision.config import EncoderConfig
from bertvision.disk import read_json, write_json, writing_folder
from bertvision.encoder.encoder import Encoder, RouteError, check_route
from bertvision.encoder.loading import identify, load_encoder
from bertvision.encoder.output_layer import restore_output_layer
from bertvision.encoder.states import pack_tokens
from bertvision.errors import UserError
from bertvision.heads import count_parameters
from bertvision.machine import Machine
from bertvision.pipeline.folder import mark_done
from bertvision.pipeline.job import Job

# Operations before which compiling the layers takes longer than it saves (LOG.md): a minute or two of a large GPU.
LONG_WORK = 2e16


def load_snapshot(folder: Path, settings: EncoderConfig, machine: Machine) -> tuple[Encoder, Any]:
    """The frozen encoder of a snapshot's folder, in the machine's precision, and its output layer."""
    reference = read_json(folder / "reference.json")
    name = reference["name"] if reference else str(folder)
    if reference and identify(name) != reference["stamp"]:
        raise UserError(f"the encoder '{name}' is not the one this run was made with: bring that back, or run again.")
    encoder = load_encoder(name, machine.device, machine.dtype, settings.attention, layers=settings.layers)
    output = restore_output_layer(folder).to(machine.device)
    return encoder.eval().requires_grad_(False), output.eval()


def save_snapshot(job: Job, epochs: float, encoder: Encoder, output: Any, stamp: str, facts: dict[str, Any]) -> None:
    with writing_folder(job.folder.encoder(epochs)) as fresh:
        if epochs == 0:  # the encoder as it came: its name says it all
            place = Path(job.config.encoder.name).expanduser()
            name = str(place.absolute()) if place.is_dir() else job.config.encoder.name
            write_json(fresh / "reference.json", {"name": name, "stamp": job.stamps.encoder})
        else:
            encoder.save(fresh)
        output.save(fresh)
        parameters = count_parameters(encoder) + count_parameters(output)
        mark_done(fresh, stamp, epochs=epochs, parameters=parameters, **facts)
    job.folder.log("snapshot", epochs=epochs, **facts)


def report_route(job: Job, encoder: Encoder) -> None:
    """Prints how sequences go through, after comparing it with the padded way on a few of them."""
    features = job.features("train")
    try:
        with job.machine.autocast():
            check_route(encoder, pack_tokens(features, np.arange(min(4, len(features)))))
    except RouteError as error:
        encoder.take_route("padded")
        job.reporter.say(f"{error} It is padded in this run.")
    line = f"on {job.machine.describe()}; sequences go through {encoder.route}: {encoder.route_reason}."
    job.reporter.say_if_new("route", line)


def compile_if_long(job: Job, encoder: Encoder, tokens: float) -> None:
    """Compiles the encoder's layers where so many tokens, forward, are enough work to make up for it."""
    wanted = job.config.encoder.compile
    if wanted == "off" or (wanted == "auto" and encoder.work * tokens < LONG_WORK):
        return
    if encoder.compile_layers():
        job.reporter.say("the encoder's layers are compiled with the first batch (encoder.compile).")
    elif wanted == "on":
        job.reporter.say("the encoder's layers are not compiled: only an unpadded encoder's are (encoder.compile).")


def check_length(job: Job, encoder: Encoder) -> None:
    """Refuses windows that the encoder can't take, before the first long text turns up in the middle of the work."""
    if encoder.max_length is not None and job.max_length > encoder.max_length:
        raise UserError(
            f"'{encoder.name}' takes at most {encoder.max_length} tokens: lower data.max_length = {job.max_length}."
        )
