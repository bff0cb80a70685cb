"""Where a run's states come from: kept in memory where they are small, else streamed or stored, whichever is cheaper.

    source, choice = open_source(job, encoder, epochs, whole, keep)

The choice and its reason are said, and kept in the run folder's sources.json.
"""

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bertvision import __version__
from bertvision.data.packing import Pass, fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import EncoderSize, shape_of, tokenizer_stamp, weights_stamp
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads import Head, outline_head
from bertvision.job import Job
from bertvision.rundir import read_json, snapshot_name, write_json
from bertvision.sources import KeptSource, KeptStates, Source, StreamedSource, kept_bytes
from bertvision.sources.cost import Choice, Rates, measure_place, weigh
from bertvision.sources.store import (
    Contents,
    DamagedError,
    Place,
    Store,
    StoredSource,
    StoreWriter,
    build_identity,
    find_differences,
    open_place,
)
from bertvision.sources.store.identity import refuse_other
from bertvision.sources.store.layout import MANIFEST, WRITING
from bertvision.sources.store.reader import read_manifest
from bertvision.sources.store.upkeep import verify_store

# States that are kept take at most this share of the memory that is free; while they are made they take three times it.
MEMORY_SHARE = 0.25
KEPT, STREAMED, STORED = "kept", "streamed", "stored"
WIDER: tuple[Part, ...] = ("cls", "mean")  # a store of both serves heads that read one of them
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
    resumed: bool = False,
) -> tuple[Source, Choice]:
    """The source of a pass over the train split, at the snapshot of so many epochs. `kept` states are taken where they
    are given; `repeats` says how many such passes are to come in all; a `resumed` pass keeps to its source."""
    features, share = job.features("train"), (job.machine.rank, job.machine.processes)
    kept = kept or keep_states(job, encoder, keep, "train", epochs)
    if kept is not None:
        choice = Choice(KEPT, kept.origin)
    else:
        passes = repeats * sum(job.tokens_of(whole.steps)) / max(1, int(features.lengths.sum()))
        choice = choose(job, encoder, epochs, keep, passes, resumed)
    _tell(job, epochs, keep, choice)
    if kept is not None:
        return KeptSource(kept, features, whole.steps, share), choice
    if choice.source == STREAMED:
        tokens = job.encode_tokens
        # Heads are done with a batch before they ask for the next.
        records = job.machine.records
        return StreamedSource(encoder, features, whole.steps, keep, tokens, share, whole.starts, records), choice
    store, memory = encode_states(job, encoder, epochs, keep), job.config.store.memory_mb << 20
    device, dtype = job.machine.device, job.machine.dtype
    return StoredSource(store, features, whole.steps, keep, device, dtype, share, memory, whole.pools), choice


def choose(
    job: Job, encoder: Encoder, epochs: float, keep: tuple[Part, ...], passes: float, resumed: bool = False
) -> Choice:
    """Streamed or stored, for so many passes over the train split."""
    asked, name = job.config.train.source, _name(epochs, "train", keep)
    if asked != "auto":
        return Choice(asked, f'train.source = "{asked}"')
    if (name, passes) not in job.choices:  # a search asks again for each population
        before = (read_json(job.folder.path / "sources.json") or {}).get(name)
        if resumed and before is not None and before["source"] != KEPT:
            choice: Choice | None = Choice(**before)
        else:
            # By all processes, since the encoder's rate is that of all at work.
            rate = measure_encoder(job, encoder, job.features("train"), keep) if passes > 1 else None
            choice = _weigh_here(job, encoder, epochs, keep, passes, rate) if job.machine.is_main else None
        # Clocks differ, and all must do the same: the first process's choice.
        job.choices[name, passes] = job.machine.gather([choice] if job.machine.is_main else [])[0]
    return job.choices[name, passes]


def _weigh_here(
    job: Job, encoder: Encoder, epochs: float, keep: tuple[Part, ...], passes: float, rate: float | None
) -> Choice:
    try:
        store, trouble = find_store(job, encoder, epochs, "train", keep)
        if store is None and trouble:
            return Choice(STREAMED, trouble)
        if rate is None and store is None:
            return Choice(STREAMED, "there is one pass over them, so nothing to gain from storing")
        if store is not None:
            place, size, missing = store.place, store.manifest.bytes, 0.0
        else:
            writer = _writer(job, encoder, epochs, "train", keep)
            place, size = writer.place, writer.bytes
            missing = sum(shard.bytes for shard in writer.missing()) / size
        rate = rate or measure_encoder(job, encoder, job.features("train"), keep)
        rates = Rates(rate, *measure_disk(place, size, bool(missing)))
        tokens = int(job.features("train").lengths.sum())
        return weigh(passes, tokens, size, missing, rates, place.free_bytes())
    except UserError as error:  # a disk that can't be used is no reason to stop: the encoder is there
        return Choice(STREAMED, f"they can't be stored ({error})")


def measure_disk(place: Place, store_bytes: int, writes: bool = True) -> tuple[float, float]:
    """Bytes a second that the place of a store of this size writes (where it is to be written) and reads."""
    return measure_place(place, store_bytes < psutil.virtual_memory().available / 2, writes)


def measure_encoder(job: Job, encoder: Encoder, features: Features, keep: tuple[Part, ...]) -> float:
    """Tokens a second of the frozen encoder, after a batch or a few to warm up."""
    groups = fill_batches(features.lengths, np.arange(len(features)), tokens=job.encode_tokens)
    warm = 3 if job.machine.records else 1  # the second batch of a size is recorded
    plan = [*groups[:1] * warm, *groups[1:], *groups[:1]]
    source = StreamedSource(encoder, features, plan, keep, encode_tokens=1, recorded=job.machine.records)
    started, tokens = time.monotonic(), 0
    for step, batch in enumerate(source.batches()):
        if job.machine.device.type == "cuda":
            torch.cuda.synchronize(job.machine.device)
        if step < warm:
            started = time.monotonic()
            continue
        tokens += int(features.lengths[batch.windows].sum())
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
        store, trouble = find_store(job, encoder, epochs, split, keep)
        (unseen,) = job.machine.agree(store is None)  # it may have been finished this very moment
        store = None if unseen else store
        if trouble:
            job.reporter.say(f"{trouble}: it is not used.")
    if store is not None:
        return KeptStates.load(store, keep, features, job.machine.device, job.machine.dtype)
    with job.reporter.bar(f"encoding {split} once", int(features.lengths.sum()), "tokens") as bar:
        return KeptStates.encode(encoder, features, keep, job.encode_tokens, bar)


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
    many) leaves the other parts to other commands; UnfinishedError then says that they are missing."""
    machine, say = job.machine, job.reporter.say
    found, _ = (None, "") if verify else find_store(job, encoder, epochs, split, keep)
    (unseen,) = machine.agree(found is None)
    if found is not None and not unseen:
        return found
    writer = _writer(job, encoder, epochs, split, keep)
    place, sizes = writer.place, writer.place.sizes()
    if verify and machine.is_main and sizes and (MANIFEST in sizes or WRITING not in sizes):
        with job.reporter.bar(f"reading {place}", writer.bytes, "bytes") as bar:
            for damage in verify_store(place, bar, job.reporter):
                again = f": {damage.examples} are written again" if damage.stop > damage.first else ""
                say(f"{damage.file} {damage.why}{again}.")
    machine.wait()
    # The processes of this command share its part between them.
    share = part[0] * machine.processes + machine.rank, part[1] * machine.processes
    started = time.monotonic()
    (written,) = machine.sum_numbers([float(writer.write(share))])
    machine.wait()
    (finished,) = machine.agree(machine.is_main and writer.finish())
    if written:
        seconds = time.monotonic() - started
        say(f"stored {written / 1e6:,.1f} MB in {place} in {seconds:,.1f} s ({written / 1e6 / seconds:,.1f} MB/s).")
    if not finished:
        raise UnfinishedError(f"'{place}' waits for the other parts: the command that writes the last one finishes it.")
    return Store.open(place, writer.identity)


class UnfinishedError(UserError):
    """Other commands have not written their parts of a store yet."""


def check_stores(job: Job) -> None:
    """Where states are to be stored, refuses a place that can't be opened or that holds other states, as far as that
    can be seen before fine-tuning."""
    if job.config.train.source == STORED:
        for epochs in job.head_snapshots:
            for keep in parts_of(job):
                there_already(job, epochs, keep)


def there_already(job: Job, epochs: float, keep: tuple[Part, ...]) -> bool:
    """Whether a whole store of the train split's states is there, as far as can be seen without the weights; one of
    other states is refused."""
    place = place_of(job, epochs, "train", keep)
    try:
        manifest = read_manifest(place)
    except DamagedError:  # written again when its turn comes
        return False
    if manifest is None:
        return False
    if epochs == 0:
        weights = weights_stamp(job.config.encoder.name)
    else:  # not known yet, but other fine-tuning gives other weights
        same = manifest.about.get("finetune", job.finetune_stamp) == job.finetune_stamp
        weights = manifest.identity.get("encoder weights", "") if same else "of another fine-tuning"
    size = shape_of(job.config.encoder.name, job.config.encoder.layers)
    wanted = _identity(job, contents_of(job, size, keep), weights, "train")
    refuse_other(str(place), manifest.identity, wanted)
    return True


def parts_of(job: Job) -> list[tuple[Part, ...]]:
    """What the job's heads read: tokens apart from the others, as they are trained."""
    size = shape_of(job.config.encoder.name, job.config.encoder.layers)
    return split_parts({outline_head(member, size.shape, job.target).reads for member in job.members})


def split_parts(parts: Iterable[str]) -> list[tuple[Part, ...]]:
    found = set(parts)
    together: tuple[tuple[Part, ...], ...] = (("tokens",), ("cls", "mean"))
    groups = [tuple(name for name in group if name in found) for group in together]
    return [group for group in groups if group]


def find_store(
    job: Job, encoder: Encoder, epochs: float, split: str, keep: tuple[Part, ...]
) -> tuple[Store | None, str]:
    """A whole store of these very states, or of these and others; and where none is, what stands in its place."""
    trouble = ""
    weights = job.hash_weights(epochs)
    for parts in (keep, WIDER) if set(keep) < set(WIDER) else (keep,):
        place = place_of(job, epochs, split, parts)
        try:
            store = Store.open(place)
        except UserError:  # none, unfinished, or damaged: the writer sees to it
            continue
        wanted = _identity(job, contents_of(job, encoder, parts), weights, split)
        differences = find_differences(store.manifest.identity, wanted)
        if not differences:
            return store, ""
        trouble = trouble or f"the store '{place}' holds other states (it differs in: {'; '.join(differences)})"
    if not trouble:
        try:
            _writer(job, encoder, epochs, split, keep)
        except UserError as error:
            trouble = str(error)
    return None, trouble


def _writer(job: Job, encoder: Encoder, epochs: float, split: str, keep: tuple[Part, ...]) -> StoreWriter:
    config, contents = job.config, contents_of(job, encoder, keep)
    about = {
        "task": job.task.name,
        "split": split,
        "encoder": config.encoder.name,
        "epochs": epochs,
        "finetune": job.finetune_stamp,
        "run": str(job.folder.path.absolute()),
        "bertvision": __version__,
    }
    return StoreWriter(
        place_of(job, epochs, split, keep),
        encoder,
        job.features(split),
        [example.id for example in job.examples(split)],
        contents,
        _identity(job, contents, job.hash_weights(epochs), split),
        about,
        job.encode_tokens,
        config.store.shard_mb << 20,
        reporter=job.reporter,
    )


def contents_of(job: Job, encoder: Encoder | EncoderSize, keep: tuple[Part, ...]) -> Contents:
    dtype = job.config.store.dtype
    if dtype == "auto":
        dtype = "bfloat16" if job.machine.dtype == torch.bfloat16 else "float16"
    return Contents.of(encoder.shape, encoder.layers, keep, dtype)


def place_of(job: Job, epochs: float, split: str, keep: tuple[Part, ...]) -> Place:
    """The run folder has its own stores; a place that is shared tells them apart by task and encoder."""
    name, root = _name(epochs, split, keep), job.config.store.path
    if root is None:
        return open_place(job.folder.states / name)
    encoder = Path(job.config.encoder.name).name or "encoder"
    return open_place(f"{root.rstrip('/')}/{job.task.name}_{encoder}_{name}")


def _name(epochs: float, split: str, keep: tuple[Part, ...]) -> str:
    return "_".join([split, snapshot_name(epochs), *keep])


def _identity(job: Job, contents: Contents, weights: str, split: str) -> dict[str, Any]:
    overlap = {"overlap": job.config.data.overlap} if job.task.windowed else {}
    return build_identity(
        contents,
        weights,
        tokenizer_stamp(job.tokenizer),
        job.hash_examples(split)[:16],
        {"max_length": job.max_length, **overlap},
        job.hash_tokens(split),
        str(job.machine.dtype).removeprefix("torch."),
    )


def keep_of(heads: list[Head]) -> tuple[Part, ...]:
    """Which parts of the states these heads read."""
    found: set[Part] = {head.reads for head in heads}
    return tuple(sorted(found))
