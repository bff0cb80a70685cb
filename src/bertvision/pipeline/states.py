"""The hidden states of one snapshot: in memory if they are small, otherwise streamed or stored, whichever is cheaper.

    states = States(job, encoder, epochs)
    source, choice = states.open(whole, keep)

The choice and its reason are printed and written to sources.json in the run folder. `bertvision check` predicts the
choice (`weigh_states`). `bertvision encode` writes stores regardless of cost (`encode`).
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from bertvision import __version__
from bertvision.data.packing import Pass
from bertvision.data.spooled import ids_of
from bertvision.disk import write_sealed
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import EncoderSize, shape_of, tokenizer_stamp, weights_stamp
from bertvision.encoder.states import POOLED, Part
from bertvision.errors import UserError
from bertvision.heads import Head, outline_head
from bertvision.pipeline.folder import snapshot_name
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import load_snapshot, report_route
from bertvision.sources import MemorySource, MemoryStates, Source, StreamedSource, TowersSource
from bertvision.sources.cost import MEMORY, STORED, STREAMED, Choice, Rates, measure_disk, measure_encoder, weigh
from bertvision.sources.store import Contents, Location, Store, StoredSource, StoreWriter, build_identity, open_location
from bertvision.sources.store.scan import Scan, scan
from bertvision.sources.store.upkeep import verify_store
from bertvision.sources.store.writer import Make

# States in memory take at most this fraction of the free memory; while they are computed, they need three times that.
MEMORY_SHARE = 0.25
WIDER: tuple[Part, ...] = ("cls", "mean")  # a store of both serves heads that read one of them
SOURCES = "sources.json"
SourcesFile = dict[str, Choice]
"""States → where they came from, and why."""
SHOWN = {MEMORY: "held in memory", STREAMED: "streamed", STORED: "stored"}


class UnfinishedError(UserError):
    """Other commands have not yet written their parts of a store."""


@dataclass(frozen=True)
class StoreSpec:
    """The store, existing or not, for some states of a split: its location, and what it must hold. Before the encoder
    is `finetuned`, its weights are unknown."""

    job: Job
    size: Encoder | EncoderSize
    epochs: float
    keep: tuple[Part, ...]
    split: str = "train"
    finetuned: bool = True

    @property
    def name(self) -> str:
        return "_".join([self.split, snapshot_name(self.epochs), *self.keep])

    @property
    def location(self) -> Location:
        """The run folder by default. In a shared location, the store's name includes task and encoder."""
        job, root = self.job, self.job.config.store.path
        if root is None:
            return open_location(job.folder.states / self.name)
        encoder = Path(job.config.encoder.name).name or "encoder"
        return open_location(f"{root.rstrip('/')}/{job.task.name}_{encoder}_{self.name}")

    @property
    def contents(self) -> Contents:
        dtype = self.job.config.store.dtype
        if dtype == "auto":
            dtype = "bfloat16" if self.job.machine.dtype == torch.bfloat16 else "float16"
        return Contents.of(self.size.shape, self.size.layers, self.keep, dtype)

    def identity(self, weights: str) -> dict[str, Any]:
        job = self.job
        overlap = {"overlap": job.config.data.overlap} if job.task.windowed else {}
        return build_identity(
            self.contents,
            weights,
            tokenizer_stamp(job.tokenizer),
            job.stamps.examples(self.split)[:16],
            {"max_length": job.max_length, **overlap},
            job.stamps.tokens(self.split),
            str(job.machine.dtype).removeprefix("torch."),
        )

    def scan(self) -> tuple[Scan, dict[str, Any] | None]:
        """Scan the location. Return what was found and the identity it must have; None if there is nothing to compare
        it with, so that a run that stores nothing hashes nothing. Read-only."""
        job, found = self.job, scan(self.location)
        found.refuse_other_format()
        if not found.is_store or not (self.finetuned or found.identity):
            return found, None
        if self.finetuned:
            return found, self.identity(job.stamps.weights(self.epochs))
        if self.epochs == 0:
            return found, self.identity(weights_stamp(job.config.encoder.name))
        # The weights are not known yet, but different fine-tuning produces different weights.
        same = found.about.get("finetune", job.stamps.finetune) == job.stamps.finetune
        return found, self.identity(found.identity.get("encoder weights", "") if same else "of another fine-tuning")

    def find(self) -> tuple[Store | None, str]:
        """Return a complete store that holds these states, possibly with others. If there is none, return None and how
        the states found in its location differ, if any were found."""
        if self.job.config.store.path is None and not self.job.folder.states.exists():
            return None, ""  # the common case: a run that stores nothing
        trouble = ""
        for keep in (self.keep, WIDER) if set(self.keep) < set(WIDER) else (self.keep,):
            found, wanted = replace(self, keep=keep).scan()
            difference = found.find_difference(wanted) if wanted else ""
            if found.manifest is not None and not found.broken and not difference:
                return Store(found.location, found.manifest), ""
            trouble = trouble or difference
        return None, trouble


class States:
    """The source of the states of one snapshot. Choices are cached, because a search asks once per population."""

    def __init__(self, job: Job, encoder: Encoder, epochs: float) -> None:
        self.job, self.encoder, self.epochs = job, encoder, epochs
        self._choices: dict[tuple[str, float], Choice] = {}

    def open(
        self,
        whole: Pass,
        keep: tuple[Part, ...],
        kept: MemoryStates | None = None,
        repeats: float = 1.0,
        resumed: bool = False,
        towers: bool = False,
    ) -> tuple[Source, Choice]:
        """Return the source for a pass over the training set, and why it was chosen. `kept` states in memory are used
        if given. `repeats` is the expected total number of such passes. A `resumed` pass keeps its source. States of
        two `towers` are those of each text of a pair alone."""
        job, features = self.job, self.job.features("train")
        share = (job.machine.rank, job.machine.processes)
        kept = kept or self.keep(keep, "train", use_store=True, towers=towers)
        if kept is not None:
            choice = Choice(MEMORY, kept.origin)
        elif towers:
            choice = Choice(STREAMED, "the texts of pairs, each alone, are not stored")
        else:
            passes = repeats * sum(job.tokens_of(whole.steps)) / max(1, int(features.lengths.sum()))
            choice = self.choose(keep, passes, resumed)
        self._record(keep, choice, towers)
        if kept is not None:
            return MemorySource(kept, features, whole.steps, share), choice
        if towers:
            return TowersSource(
                self.encoder, features, whole.steps, keep, job.encode_tokens, share, whole.starts
            ), choice
        if choice.source == STREAMED:
            # Recording is safe: heads are done with a batch before they ask for the next one.
            tokens, records = job.encode_tokens, job.machine.records
            steps = (whole.steps, keep, tokens, share, whole.starts, records)
            return StreamedSource(self.encoder, features, *steps), choice
        store, memory = self.write(keep), job.config.store.memory_mb << 20
        target = job.machine.device, job.machine.dtype
        return StoredSource(store, features, whole.steps, keep, *target, share, memory, whole.pools), choice

    def choose(self, keep: tuple[Part, ...], passes: float, resumed: bool = False) -> Choice:
        """Choose between streamed and stored for the given number of passes over the training set."""
        job, spec, asked = self.job, self._spec(keep), self.job.config.train.source
        if asked != "auto":
            return Choice(asked, f'train.source = "{asked}"')
        if (spec.name, passes) not in self._choices:
            before = (job.folder.read(SOURCES, SourcesFile) or {}).get(spec.name)
            if resumed and before is not None and before.source in (STREAMED, STORED):
                choice = job.machine.first(lambda: before)
            else:
                # On all processes at once, because they also share the machine during training.
                rate = self._encoder_rate(keep) if passes > 1 else None
                lengths = job.features("train").lengths
                work = passes, len(lengths), int(lengths.sum()), lambda: rate or self._encoder_rate(keep)
                choice = job.machine.first(lambda: weigh_states(spec, *work))
            self._choices[spec.name, passes] = choice
        return self._choices[spec.name, passes]

    def _spec(self, keep: tuple[Part, ...], split: str = "train") -> StoreSpec:
        return StoreSpec(self.job, self.encoder, self.epochs, keep, split)

    def _encoder_rate(self, keep: tuple[Part, ...]) -> float:
        job = self.job
        return measure_encoder(self.encoder, job.features("train"), keep, job.encode_tokens, job.machine.records)

    def _record(self, keep: tuple[Part, ...], choice: Choice, towers: bool) -> None:
        """Print the choice and write it to sources.json."""
        job = self.job
        if not job.machine.is_main:
            return
        path, name = job.folder.path / SOURCES, self._spec(keep).name + ("_towers" if towers else "")
        known = job.folder.read(SOURCES, SourcesFile) or {}
        if known.get(name) != choice:
            write_sealed(path, {key: asdict(one) for key, one in {**known, name: choice}.items()})
        alone = ", each text alone" if towers else ""
        line = f"hidden states ({', '.join(keep)}{alone}) are {SHOWN[choice.source]}: {choice.reason}."
        job.reporter.say_if_new("states", line)

    # ------------------------------------------------------------------ in memory

    def keep(
        self, keep: tuple[Part, ...], split: str, use_store: bool = False, towers: bool = False
    ) -> MemoryStates | None:
        """Load the states of a split into memory, or return None if they are too large. They are encoded once or, with
        `use_store`, read from their store. The number of epochs plays no part in the decision: states in memory and
        streamed states round differently, and a head's result must not depend on how long another head trains."""
        job, features = self.job, self.job.features(split)
        alone = features.towers if towers else None
        windows = features if alone is None else alone.texts
        (too_large,) = job.machine.agree(not fits_in_memory(job, self.encoder, keep, len(windows)))
        if too_large:
            return None
        store = self._find_kept(keep, split) if use_store and not towers else None
        if store is not None:
            return MemoryStates.load(store, keep, features, job.machine.device, job.machine.dtype)
        what = f"encoding {split}" + (", each text alone" if towers else "")
        with job.reporter.bar(what, int(windows.lengths.sum()), "tokens") as bar:
            return MemoryStates.encode(self.encoder, features, keep, job.encode_tokens, bar, alone, job.machine)

    def _find_kept(self, keep: tuple[Part, ...], split: str) -> Store | None:
        """The store to load states into memory from, if any."""
        job, asked = self.job, self.job.config.train.source
        if asked == STORED:
            return self.write(keep, split)
        if asked != "auto":
            return None
        try:
            store, trouble = self._spec(keep, split).find()
        except UserError as error:
            store, trouble = None, str(error)
        (unseen,) = job.machine.agree(store is None)  # another process may have checked before it was finished
        if trouble:
            job.reporter.say(f"not using a store: {trouble}.")
        return None if unseen else store

    # ------------------------------------------------------------------ on disk

    def write(
        self,
        keep: tuple[Part, ...],
        split: str = "train",
        part: tuple[int, int] = (0, 1),
        verify: bool = False,
        make: Make | None = None,
    ) -> Store:
        """Write the missing shards of a split's store and return the store. With `verify`, existing shards are compared
        with their checksums, and damaged ones are written again. `part` = (index, count) leaves the other parts to
        other commands; UnfinishedError is raised while they are missing. `make` writes shards elsewhere."""
        machine, say, spec = self.job.machine, self.job.reporter.say, self._spec(keep, split)
        found = None if verify else spec.find()[0]
        (unseen,) = machine.agree(found is None)
        if found is not None and not unseen:
            return found
        writer = self._writer(spec)
        if verify and machine.is_main:
            self._verify(writer)
        machine.wait()
        # The processes of this command divide its part among themselves.
        share = part[0] * machine.processes + machine.rank, part[1] * machine.processes
        started = time.monotonic()
        (written,) = machine.sum_numbers([float(writer.write(share, make))])
        machine.wait()
        (finished,) = machine.agree(machine.is_main and writer.finish())
        if written:
            mb, seconds = written / 1e6, time.monotonic() - started
            say(f"wrote {mb:,.1f} MB to {writer.location} in {seconds:,.1f} s ({mb / seconds:,.1f} MB/s).")
        if not finished:
            raise UnfinishedError(
                f"'{writer.location}' is not complete yet: the command that writes the last part finishes the store."
            )
        return Store.open(writer.location, writer.identity)

    def _verify(self, writer: StoreWriter) -> None:
        found, reporter = scan(writer.location), self.job.reporter
        if not found.is_store or found.is_unfinished:
            return
        with reporter.bar(f"verifying {writer.location}", writer.bytes, "bytes") as bar:
            for damage in verify_store(writer.location, bar, reporter):
                again = f": writing {damage.examples} again" if damage.stop > damage.first else ""
                reporter.say(f"{damage.file} {damage.why}{again}.")

    def _writer(self, spec: StoreSpec) -> StoreWriter:
        job, config = self.job, self.job.config
        about = {
            "task": job.task.name,
            "split": spec.split,
            "encoder": config.encoder.name,
            "epochs": self.epochs,
            "finetune": job.stamps.finetune,
            "run": str(job.folder.path.absolute()),
            "bertvision": __version__,
        }
        return StoreWriter(
            spec.location,
            self.encoder,
            job.features(spec.split),
            ids_of(job.examples(spec.split)),
            spec.contents,
            spec.identity(job.stamps.weights(self.epochs)),
            about,
            job.encode_tokens,
            config.store.shard_mb << 20,
            reporter=job.reporter,
        )


def encode(
    job: Job, split: str = "train", part: tuple[int, int] = (0, 1), make: Callable[[float], Make] | None = None
) -> list[Store]:
    """Write the states that heads read to stores, for one split and each snapshot with heads. Existing shards are
    compared with their checksums, and only missing or damaged ones are written. `part` = (index, count) leaves the rest
    to other commands. `make` returns what writes the shards of a snapshot elsewhere, on a cluster."""
    stores, waiting = [], []
    groups = parts_of(job) if job.config.store.keep is None else split_parts(job.config.store.keep)
    for epochs in job.head_snapshots:
        encoder, _ = load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
        report_route(job, encoder)
        for keep in groups:
            try:
                stores.append(States(job, encoder, epochs).write(keep, split, part, True, make and make(epochs)))
            except UnfinishedError as unfinished:  # still write the other stores
                waiting.append(str(unfinished))
    if waiting:
        raise UnfinishedError("\n".join(waiting))
    return stores


# ---------------------------------------------------------------------- the choice


def fits_in_memory(job: Job, encoder: Encoder, keep: tuple[Part, ...], windows: int) -> bool:
    """Whether the states of this many windows are small enough to hold in memory."""
    if job.machine.device.type == "cuda":
        free = float(torch.cuda.mem_get_info(job.machine.device)[0])
    else:
        free = float(psutil.virtual_memory().available) / job.machine.neighbours
    needed = 4 * windows * (encoder.shape.layers + 1) * encoder.shape.hidden * len(keep)
    return "tokens" not in keep and needed < MEMORY_SHARE * free


def weigh_states(
    spec: StoreSpec, passes: float, windows: int, tokens: int, encoder_rate: Callable[[], float]
) -> Choice:
    """Choose streamed or stored, whichever is cheaper for the given number of passes over these states."""
    asked = spec.job.config.train.source
    try:
        store, trouble = spec.find()
        if store is not None:
            location, size, missing = store.location, store.manifest.bytes, 0.0
        elif trouble:
            return Choice(STREAMED, trouble)
        elif passes <= 1 and asked == "auto":
            return Choice(STREAMED, "there is only one pass over them, so storing them would not save time")
        else:
            location, size = spec.location, spec.contents.store_bytes(windows, tokens)
            missing = max(0.0, 1 - scan(location).bytes_there / size)
        rates = Rates(encoder_rate(), *measure_disk(location, size, bool(missing)))
        return weigh(passes, tokens, size, missing, rates, location.free_bytes())
    except UserError as error:  # an unusable disk need not stop the run: the states can be streamed
        if asked == STORED:
            raise
        return Choice(STREAMED, f"they can't be stored ({error})")


def check_stores(job: Job) -> None:
    """If states are to be stored, raise UserError for a location that can't be opened or holds other states, as far as
    that is known before fine-tuning."""
    if job.config.train.source == STORED:
        refuse_towers(job)
        size = shape_of(job.config.encoder.name, job.config.encoder.layers)
        for epochs in job.head_snapshots:
            for keep in parts_of(job):
                found, wanted = StoreSpec(job, size, epochs, keep, finetuned=False).scan()
                if wanted:
                    found.refuse_other(wanted)


# ---------------------------------------------------------------------- parts


def parts_of(job: Job) -> list[tuple[Part, ...]]:
    """The parts of the states that the job's heads read, grouped by training pass: tokens apart from the rest."""
    size = shape_of(job.config.encoder.name, job.config.encoder.layers)
    heads = [outline_head(member, size.shape, job.target) for member in job.members]
    return split_parts(parts_read([head for head in heads if not head.towers]))


def refuse_towers(job: Job) -> None:
    """Raise UserError if a head reads two towers, whose states are not stored."""
    size = shape_of(job.config.encoder.name, job.config.encoder.layers)
    for member in job.members:
        if outline_head(member, size.shape, job.target).towers:
            raise UserError(
                f"head '{member.name}' has pairs = 'towers': the states of single texts are not stored. Use "
                "train.source = 'auto' or 'streamed', or name heads in `heads` that read pairs as one sequence."
            )


TOWER_PASSES = ("tower_tokens", "towers")
PASSES = ("tokens", "sequences", *TOWER_PASSES)
"""Heads that read the same states train in one pass. Others have their own: small states in memory must not be streamed
just because other heads read tokens."""


def pass_of(head: Head) -> str:
    if "tokens" in head.reads:
        return "tower_tokens" if head.towers else "tokens"
    return "towers" if head.towers else "sequences"


def split_parts(parts: Iterable[str]) -> list[tuple[Part, ...]]:
    found = set(parts)
    together: tuple[tuple[Part, ...], ...] = (("tokens",), POOLED)
    groups = [tuple(name for name in group if name in found) for group in together]
    return [group for group in groups if group]


def parts_read(heads: list[Head]) -> tuple[Part, ...]:
    """The parts of the states that these heads read."""
    return tuple(sorted({part for head in heads for part in head.reads}))
