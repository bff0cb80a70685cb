"""Where a run's states come from: kept in memory where they are small, else streamed or stored, whichever is cheaper.

    source, choice = open_source(job, encoder, epochs, whole, keep)

The choice and its reason are said, and kept in the run folder's sources.json.
"""

import dataclasses
import time
from typing import Any

import numpy as np
import psutil
import torch

from bertvision import __version__
from bertvision.data.packing import Pass, fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import tokenizer_stamp
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.job import Job
from bertvision.rundir import fingerprint, read_json, snapshot_name, write_json
from bertvision.sources import KeptSource, KeptStates, Source, StreamedSource, kept_bytes, pack_tokens
from bertvision.sources.cost import Choice, Rates, measure_place, weigh
from bertvision.sources.store import (
    Contents,
    Place,
    Store,
    StoredSource,
    StoreWriter,
    build_identity,
    find_differences,
    open_place,
)
from bertvision.sources.store.layout import MANIFEST
from bertvision.sources.store.upkeep import verify_store

# States that are kept take at most this share of the memory that is free; while they are made they take three times it.
MEMORY_SHARE = 0.25
KEPT, STREAMED, STORED = "kept", "streamed", "stored"
FEW_SECONDS = 2.0  # of encoding, to tell its rate


# ---------------------------------------------------------------------- the choice


def open_source(
    job: Job,
    encoder: Encoder,
    epochs: float,
    whole: Pass,
    keep: tuple[Part, ...],
    kept: KeptStates | None = None,
    repeats: float = 1.0,
) -> tuple[Source, Choice]:
    """The source of a pass over the train split, at the snapshot of so many epochs. `kept` states are taken where they
    are given; `repeats` says how many such passes are to come in all."""
    features, share, train = job.features("train"), (job.machine.rank, job.machine.processes), job.config.train
    kept = kept or keep_states(job, encoder, keep, "train", epochs)
    if kept is not None:
        choice = Choice(KEPT, kept.origin)
    else:
        wanted = repeats * sum(job.tokens_of(whole.steps)) / max(1, int(features.lengths.sum()))
        choice = _agree(job, lambda: choose(job, encoder, epochs, keep, wanted))
    _tell(job, epochs, keep, choice)
    if kept is not None:
        return KeptSource(kept, features, whole.steps, share), choice
    if choice.source == STREAMED:
        streamed = StreamedSource(encoder, features, whole.steps, keep, train.encode_tokens, share, whole.starts)
        return streamed, choice
    store, memory = encode_states(job, encoder, epochs, keep), job.config.store.memory_mb << 20
    machine = job.machine
    stored = StoredSource(
        store, features, whole.steps, keep, machine.device, machine.dtype, share, memory, whole.pools
    )  # fmt: skip
    return stored, choice


def choose(job: Job, encoder: Encoder, epochs: float, keep: tuple[Part, ...], passes: float) -> Choice:
    """Streamed or stored, for so many passes over the train split."""
    asked = job.config.train.source
    if asked != "auto":
        return Choice(asked, f'train.source = "{asked}"')
    identity = _identity(job, encoder, epochs, "train", keep)
    key = fingerprint(identity, round(passes, 3), str(place_of(job, epochs, "train", keep)))
    before = (read_json(job.folder.path / "sources.json") or {}).get(_name(epochs, "train", keep), {})
    if before.get("key") == key:  # a run that goes on must not change its source
        return Choice(**before)
    found, trouble = find_store(job, encoder, epochs, "train", keep)
    if found is None and trouble:
        choice = Choice(STREAMED, trouble)
    elif found is None and passes <= 1:
        choice = Choice(STREAMED, "there is one pass over them, so nothing to gain from storing")
    else:
        writer = _writer(job, encoder, epochs, "train", keep)
        missing = sum(shard.bytes for shard in writer.missing()) / writer.bytes
        rates = measure_rates(job, encoder, job.features("train"), keep, writer.place, writer.bytes)
        tokens = int(job.features("train").lengths.sum())
        choice = weigh(passes, tokens, writer.bytes, missing, rates, writer.place.free_bytes())
    return dataclasses.replace(choice, key=key)


def measure_rates(
    job: Job, encoder: Encoder, features: Features, keep: tuple[Part, ...], place: Place, store_bytes: int
) -> Rates:
    """What the encoder and the disk do here, on a few batches."""
    fits = store_bytes < psutil.virtual_memory().available / 2
    return Rates(measure_encoder(job, encoder, features, keep), *measure_place(place, fits))


def measure_encoder(job: Job, encoder: Encoder, features: Features, keep: tuple[Part, ...]) -> float:
    """Tokens a second of the frozen encoder, after one batch to warm up."""
    groups = fill_batches(features.lengths, np.arange(len(features)), tokens=job.config.train.encode_tokens)

    def run(group: np.ndarray) -> int:
        with torch.no_grad():
            encoder.eval()(pack_tokens(features, group), keep=keep)
        if job.machine.device.type == "cuda":
            torch.cuda.synchronize(job.machine.device)
        return int(features.lengths[group].sum())

    run(groups[0])
    started, tokens = time.monotonic(), 0
    for group in [*groups[1:], groups[0]]:
        tokens += run(group)
        if time.monotonic() - started > FEW_SECONDS:
            break
    return tokens / (time.monotonic() - started)


def _tell(job: Job, epochs: float, keep: tuple[Part, ...], choice: Choice) -> None:
    """Says the choice, and keeps it."""
    if not job.machine.is_main:
        return
    path, name = job.folder.path / "sources.json", _name(epochs, "train", keep)
    kept, entry = read_json(path) or {}, dataclasses.asdict(choice)
    if kept.get(name) != entry:
        write_json(path, {**kept, name: entry})
    line = f"states ({', '.join(keep)}) are {choice.source}: {choice.reason}."
    if line != job.source_told:
        job.reporter.say(line)
        job.source_told = line


def _agree(job: Job, ask: Any) -> Choice:
    """The first process's choice: clocks differ, and all must do the same."""
    choice = ask()  # by all of them, since the encoder's rate is that of all at work
    agreed: Choice = job.machine.gather([choice] if job.machine.is_main else [])[0]
    return agreed


# ---------------------------------------------------------------------- kept in memory


def keep_states(
    job: Job, encoder: Encoder, keep: tuple[Part, ...], split: str, epochs: float | None = None
) -> KeptStates | None:
    """The states of a split where they are small, None where they are not: encoded once or, where the snapshot's epochs
    are given, from its store. How long members train has no say in it: kept and streamed states round otherwise, and a
    head must not end elsewhere because another one trains longer."""
    features = job.features(split)
    (too_large,) = job.machine.agree(not fits_in_memory(job, encoder, keep, len(features)))
    if too_large:
        return None
    store, asked = None, job.config.train.source
    if epochs is not None and asked == STORED:
        store = encode_states(job, encoder, epochs, keep, split)
    elif epochs is not None and asked == "auto":
        store = find_store(job, encoder, epochs, split, keep)[0]
    if store is not None:
        return KeptStates.load(store, keep, features, job.machine.device, job.machine.dtype)
    with job.reporter.bar(f"encoding {split} once", int(features.lengths.sum()), "tokens") as bar:
        return KeptStates.encode(encoder, features, keep, job.config.train.encode_tokens, bar)


def fits_in_memory(job: Job, encoder: Encoder, keep: tuple[Part, ...], windows: int) -> bool:
    """Whether the states of so many windows are small enough to be kept."""
    needed = kept_bytes(windows, encoder.shape.layers + 1, encoder.shape.hidden, len(keep))
    return "tokens" not in keep and needed < MEMORY_SHARE * _free_memory(job)


def _free_memory(job: Job) -> float:
    """Bytes one process may count on, where the states would lie."""
    if job.machine.device.type == "cuda":
        return float(torch.cuda.mem_get_info(job.machine.device)[0])
    return float(psutil.virtual_memory().available) / job.machine.processes


# ---------------------------------------------------------------------- stores


def encode_states(
    job: Job,
    encoder: Encoder,
    epochs: float,
    keep: tuple[Part, ...],
    split: str = "train",
    part: tuple[int, int] = (0, 1),
    verify: bool = False,
) -> Store:
    """The store of a split's states at a snapshot, after writing what is missing of it. With `verify` shards that are
    there are read and compared with their checksums, and those that differ written again. `part` = (number, of how
    many) leaves the other parts to other commands."""
    machine, say = job.machine, job.reporter.say
    writer = _writer(job, encoder, epochs, split, keep)
    place = writer.place
    if verify and machine.is_main and (MANIFEST in place.sizes() or not writer.missing()):
        with job.reporter.bar(f"reading {place}", writer.bytes, "bytes") as bar:
            for damage in verify_store(place, bar, job.reporter):
                say(f"{damage.file} {damage.why}: {damage.examples} are written again.")
    machine.wait()
    # The processes of this command share its part between them.
    share = part[0] * machine.processes + machine.rank, part[1] * machine.processes
    started = time.monotonic()
    written = writer.write(share)
    machine.wait()
    finished = writer.finish() if machine.is_main else True
    machine.wait()
    if written:
        seconds = time.monotonic() - started
        say(f"stored {written / 1e6:,.0f} MB in {place} in {seconds:,.1f} s ({written / 1e6 / seconds:,.0f} MB/s).")
    if not finished:
        raise UnfinishedError(f"'{place}' waits for the other parts: the command that writes the last one finishes it.")
    return Store.open(place, writer.identity)


class UnfinishedError(UserError):
    """Other commands have not written their parts of a store yet."""


def find_store(
    job: Job, encoder: Encoder, epochs: float, split: str, keep: tuple[Part, ...]
) -> tuple[Store | None, str]:
    """A whole store of these very states, or None; and what stands in its place instead, where something does."""
    place, identity = place_of(job, epochs, split, keep), _identity(job, encoder, epochs, split, keep)
    try:
        store = Store.open(place)
        differences = find_differences(store.manifest.identity, identity)
        if not differences:
            return store, ""
        return None, f"the store '{place}' holds other states (it differs in: {'; '.join(differences)})"
    except UserError:  # none, unfinished, or damaged: the writer sees to it
        try:
            _writer(job, encoder, epochs, split, keep)
        except UserError as error:
            return None, str(error)
        return None, ""


def _writer(job: Job, encoder: Encoder, epochs: float, split: str, keep: tuple[Part, ...]) -> StoreWriter:
    config, task = job.config, job.task
    about = {
        "task": task.name,
        "split": split,
        "encoder": config.encoder.name,
        "epochs": epochs,
        "run": str(job.folder.path.absolute()),
        "bertvision": __version__,
    }
    return StoreWriter(
        place_of(job, epochs, split, keep),
        encoder,
        job.features(split),
        [example.id for example in job.examples(split)],
        contents_of(job, encoder, keep),
        _identity(job, encoder, epochs, split, keep),
        about,
        config.train.encode_tokens,
        config.store.shard_mb << 20,
        reporter=job.reporter,
    )


def contents_of(job: Job, encoder: Encoder, keep: tuple[Part, ...]) -> Contents:
    dtype = job.config.store.dtype
    if dtype == "auto":
        dtype = "bfloat16" if job.machine.dtype == torch.bfloat16 else "float16"
    return Contents.of(encoder.shape, encoder.layers, keep, dtype)


def place_of(job: Job, epochs: float, split: str, keep: tuple[Part, ...]) -> Place:
    root = job.config.store.path or str(job.folder.states)
    return open_place(f"{root.rstrip('/')}/{_name(epochs, split, keep)}")


def _name(epochs: float, split: str, keep: tuple[Part, ...]) -> str:
    return "_".join([split, snapshot_name(epochs), *keep])


def _identity(job: Job, encoder: Encoder, epochs: float, split: str, keep: tuple[Part, ...]) -> dict[str, Any]:
    overlap = {"overlap": job.config.data.overlap} if job.task.windowed else {}
    return build_identity(
        contents_of(job, encoder, keep),
        job.hash_weights(epochs),
        tokenizer_stamp(job.tokenizer),
        job.hash_examples(split)[:16],
        {"max_length": job.max_length, **overlap},
        job.hash_tokens(split),
        str(job.machine.dtype).removeprefix("torch."),
    )
