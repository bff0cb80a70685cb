"""The stores of a run's states on disk: where they lie, what they must hold, and how one is written."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch

from bertvision import __version__
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import EncoderSize, shape_of, tokenizer_stamp, weights_stamp
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads import outline_head
from bertvision.pipeline.folder import snapshot_name
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import load_snapshot, report_route
from bertvision.sources.cost import measure_place
from bertvision.sources.store import (
    Contents,
    DamagedError,
    Place,
    Store,
    StoreWriter,
    build_identity,
    find_differences,
    open_place,
)
from bertvision.sources.store.identity import refuse_other
from bertvision.sources.store.layout import MANIFEST, WRITING
from bertvision.sources.store.reader import read_manifest
from bertvision.sources.store.upkeep import verify_store

STORED = "stored"
WIDER: tuple[Part, ...] = ("cls", "mean")  # a store of both serves heads that read one of them


class UnfinishedError(UserError):
    """Other commands have not written their parts of a store yet."""


class Stores:
    """Stores of the states of one snapshot."""

    def __init__(self, job: Job, encoder: Encoder, epochs: float) -> None:
        self.job, self.encoder, self.epochs = job, encoder, epochs

    def find(self, keep: tuple[Part, ...], split: str) -> tuple[Store | None, str]:
        """A whole store of these very states, or of these and others; and where there is none, what is in its place."""
        job, trouble = self.job, ""
        candidates = (keep, WIDER) if set(keep) < set(WIDER) else (keep,)
        names = [store_name(self.epochs, split, parts) for parts in candidates]
        if job.config.store.path is None and not any((job.folder.states / name).exists() for name in names):
            return None, ""  # a run that stores nothing, as most do
        weights = job.stamps.weights(self.epochs)
        for parts in candidates:
            place = place_of(job, self.epochs, split, parts)
            try:
                store = Store.open(place)
            except UserError:  # none, unfinished, or damaged: the writer sees to it
                continue
            wanted = _identity(job, contents_of(job, self.encoder, parts), weights, split)
            differences = find_differences(store.manifest.identity, wanted)
            if not differences:
                return store, ""
            trouble = trouble or f"the store '{place}' holds other states (it differs in: {'; '.join(differences)})"
        if not trouble:
            try:
                self._writer(keep, split)
            except UserError as error:
                trouble = str(error)
        return None, trouble

    def measure_missing(self, keep: tuple[Part, ...]) -> tuple[Place, int, float]:
        """Where the store of the train split would lie, its bytes, and the share of them that is not there yet."""
        writer = self._writer(keep, "train")
        return writer.place, writer.bytes, sum(shard.bytes for shard in writer.missing()) / writer.bytes

    def write(
        self, keep: tuple[Part, ...], split: str = "train", part: tuple[int, int] = (0, 1), verify: bool = False
    ) -> Store:
        """The store of a split's states, after writing what is missing of it. With `verify` existing shards are checked
        with their checksums, and those that differ are written again. `part` = (number, of how many) leaves
        the other parts to other commands; UnfinishedError then says that they are missing."""
        machine, say = self.job.machine, self.job.reporter.say
        found, _ = (None, "") if verify else self.find(keep, split)
        (unseen,) = machine.agree(found is None)
        if found is not None and not unseen:
            return found
        writer = self._writer(keep, split)
        if verify and machine.is_main:
            self._verify(writer)
        machine.wait()
        # The processes of this command share its part between them.
        share = part[0] * machine.processes + machine.rank, part[1] * machine.processes
        started = time.monotonic()
        (written,) = machine.sum_numbers([float(writer.write(share))])
        machine.wait()
        (finished,) = machine.agree(machine.is_main and writer.finish())
        if written:
            mb, seconds = written / 1e6, time.monotonic() - started
            say(f"stored {mb:,.1f} MB in {writer.place} in {seconds:,.1f} s ({mb / seconds:,.1f} MB/s).")
        if not finished:
            raise UnfinishedError(
                f"'{writer.place}' waits for the other parts: the command that writes the last one finishes it."
            )
        return Store.open(writer.place, writer.identity)

    def _verify(self, writer: StoreWriter) -> None:
        job, place, sizes = self.job, writer.place, writer.place.sizes()
        if not sizes or (MANIFEST not in sizes and WRITING in sizes):
            return
        with job.reporter.bar(f"reading {place}", writer.bytes, "bytes") as bar:
            for damage in verify_store(place, bar, job.reporter):
                again = f": {damage.examples} are written again" if damage.stop > damage.first else ""
                job.reporter.say(f"{damage.file} {damage.why}{again}.")

    def _writer(self, keep: tuple[Part, ...], split: str) -> StoreWriter:
        job, config = self.job, self.job.config
        contents = contents_of(job, self.encoder, keep)
        about = {
            "task": job.task.name,
            "split": split,
            "encoder": config.encoder.name,
            "epochs": self.epochs,
            "finetune": job.stamps.finetune,
            "run": str(job.folder.path.absolute()),
            "bertvision": __version__,
        }
        return StoreWriter(
            place_of(job, self.epochs, split, keep),
            self.encoder,
            job.features(split),
            [example.id for example in job.examples(split)],
            contents,
            _identity(job, contents, job.stamps.weights(self.epochs), split),
            about,
            job.encode_tokens,
            config.store.shard_mb << 20,
            reporter=job.reporter,
        )


def encode(job: Job, split: str = "train", part: tuple[int, int] = (0, 1)) -> list[Store]:
    """Writes the states of a split that heads read to stores, for each snapshot that has heads. Existing ones are
    compared with their checksums, and only what is missing or wrong is written; `part` = (number, of how many) leaves
    the rest to other commands."""
    stores, waiting = [], []
    groups = parts_of(job) if job.config.store.keep is None else split_parts(job.config.store.keep)
    for epochs in job.head_snapshots:
        encoder, _ = load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
        report_route(job, encoder)
        for keep in groups:
            try:
                stores.append(Stores(job, encoder, epochs).write(keep, split, part, verify=True))
            except UnfinishedError as unfinished:  # the other stores are written all the same
                waiting.append(str(unfinished))
    if waiting:
        raise UnfinishedError("\n".join(waiting))
    return stores


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
        same = manifest.about.get("finetune", job.stamps.finetune) == job.stamps.finetune
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


def measure_disk(place: Place, store_bytes: int, writes: bool = True) -> tuple[float, float]:
    """Bytes a second that the place of a store of this size writes (where it is to be written) and reads."""
    return measure_place(place, store_bytes < psutil.virtual_memory().available / 2, writes)


def contents_of(job: Job, encoder: Encoder | EncoderSize, keep: tuple[Part, ...]) -> Contents:
    dtype = job.config.store.dtype
    if dtype == "auto":
        dtype = "bfloat16" if job.machine.dtype == torch.bfloat16 else "float16"
    return Contents.of(encoder.shape, encoder.layers, keep, dtype)


def place_of(job: Job, epochs: float, split: str, keep: tuple[Part, ...]) -> Place:
    """The run folder has its own stores; a place that is shared tells them apart by task and encoder."""
    name, root = store_name(epochs, split, keep), job.config.store.path
    if root is None:
        return open_place(job.folder.states / name)
    encoder = Path(job.config.encoder.name).name or "encoder"
    return open_place(f"{root.rstrip('/')}/{job.task.name}_{encoder}_{name}")


def store_name(epochs: float, split: str, keep: tuple[Part, ...]) -> str:
    return "_".join([split, snapshot_name(epochs), *keep])


def _identity(job: Job, contents: Contents, weights: str, split: str) -> dict[str, Any]:
    overlap = {"overlap": job.config.data.overlap} if job.task.windowed else {}
    return build_identity(
        contents,
        weights,
        tokenizer_stamp(job.tokenizer),
        job.stamps.examples(split)[:16],
        {"max_length": job.max_length, **overlap},
        job.stamps.tokens(split),
        str(job.machine.dtype).removeprefix("torch."),
    )
