"""The hidden states of one snapshot: in memory where they are small, else streamed or stored, whichever is cheaper.

    states = States(job, encoder, epochs)
    source, choice = states.open(whole, keep)

The choice and its reason are printed, and written to the run folder's sources.json. `bertvision check` makes the same
choice beforehand (`weigh_states`), `bertvision encode` writes stores whatever they cost (`encode`).
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
from bertvision.disk import read_json, write_json
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import EncoderSize, shape_of, tokenizer_stamp, weights_stamp
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads import Head, outline_head
from bertvision.pipeline.folder import snapshot_name
from bertvision.pipeline.job import Job
from bertvision.pipeline.snapshot import load_snapshot, report_route
from bertvision.sources import MemorySource, MemoryStates, Source, StreamedSource
from bertvision.sources.cost import MEMORY, STORED, STREAMED, Choice, Rates, measure_disk, measure_encoder, weigh
from bertvision.sources.store import Contents, Location, Store, StoredSource, StoreWriter, build_identity, open_location
from bertvision.sources.store.scan import Scan, scan
from bertvision.sources.store.upkeep import verify_store

# States that are kept take at most this share of the memory that is free; while they are made they take three times it.
MEMORY_SHARE = 0.25
WIDER: tuple[Part, ...] = ("cls", "mean")  # a store of both serves heads that read one of them


class UnfinishedError(UserError):
    """Other commands have not written their parts of a store yet."""


@dataclass(frozen=True)
class StoreSpec:
    """The store that some states of a split have or would have: where it lies, and what it must hold. Until the encoder
    is `finetuned`, its weights are not known."""

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
        """The run folder has its own stores; a location that is shared tells them apart by task and encoder."""
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
        """What lies in the location, and the identity it must have: None where there is nothing to compare it with, so
        that a run that stores nothing hashes nothing. Only reads."""
        job, found = self.job, scan(self.location)
        found.refuse_other_format()
        if not found.is_store or not (self.finetuned or found.identity):
            return found, None
        if self.finetuned:
            return found, self.identity(job.stamps.weights(self.epochs))
        if self.epochs == 0:
            return found, self.identity(weights_stamp(job.config.encoder.name))
        # Weights are not known yet, but other fine-tuning gives other ones.
        same = found.about.get("finetune", job.stamps.finetune) == job.stamps.finetune
        return found, self.identity(found.identity.get("encoder weights", "") if same else "of another fine-tuning")

    def find(self) -> tuple[Store | None, str]:
        """A whole store of these very states, or of these and others; where there is none, how what lies there instead
        differs."""
        if self.job.config.store.path is None and not self.job.folder.states.exists():
            return None, ""  # a run that stores nothing, as most do
        trouble = ""
        for keep in (self.keep, WIDER) if set(self.keep) < set(WIDER) else (self.keep,):
            found, wanted = replace(self, keep=keep).scan()
            difference = found.find_difference(wanted) if wanted else ""
            if found.manifest is not None and not found.broken and not difference:
                return Store(found.location, found.manifest), ""
            trouble = trouble or difference
        return None, trouble


class States:
    """Where the states of one snapshot come from. Choices are remembered: a search asks for each population."""

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
    ) -> tuple[Source, Choice]:
        """The source of a pass over the train split. `kept` states are used where they are given; `repeats` is how many
        such passes there will be in all; a `resumed` pass stays with its source."""
        job, features = self.job, self.job.features("train")
        share = (job.machine.rank, job.machine.processes)
        kept = kept or self.keep(keep, "train", use_store=True)
        if kept is not None:
            choice = Choice(MEMORY, kept.origin)
        else:
            passes = repeats * sum(job.tokens_of(whole.steps)) / max(1, int(features.lengths.sum()))
            choice = self.choose(keep, passes, resumed)
        self._record(keep, choice)
        if kept is not None:
            return MemorySource(kept, features, whole.steps, share), choice
        if choice.source == STREAMED:
            # Heads are done with a batch before they ask for the next.
            tokens, records = job.encode_tokens, job.machine.records
            steps = (whole.steps, keep, tokens, share, whole.starts, records)
            return StreamedSource(self.encoder, features, *steps), choice
        store, memory = self.write(keep), job.config.store.memory_mb << 20
        target = job.machine.device, job.machine.dtype
        return StoredSource(store, features, whole.steps, keep, *target, share, memory, whole.pools), choice

    def choose(self, keep: tuple[Part, ...], passes: float, resumed: bool = False) -> Choice:
        """Streamed or stored, for so many passes over the train split."""
        job, spec, asked = self.job, self._spec(keep), self.job.config.train.source
        if asked != "auto":
            return Choice(asked, f'train.source = "{asked}"')
        if (spec.name, passes) not in self._choices:
            before = (read_json(job.folder.path / "sources.json") or {}).get(spec.name)
            if resumed and before is not None and before["source"] in (STREAMED, STORED):
                choice: Choice | None = Choice(**before)
            else:
                # By all processes, since the encoder's rate is that of all at work.
                rate = self._encoder_rate(keep) if passes > 1 else None
                lengths = job.features("train").lengths
                work = passes, len(lengths), int(lengths.sum()), lambda: rate or self._encoder_rate(keep)
                choice = weigh_states(spec, *work) if job.machine.is_main else None
            # Clocks differ, and all must do the same: the first process's choice.
            self._choices[spec.name, passes] = job.machine.gather([choice] if job.machine.is_main else [])[0]
        return self._choices[spec.name, passes]

    def _spec(self, keep: tuple[Part, ...], split: str = "train") -> StoreSpec:
        return StoreSpec(self.job, self.encoder, self.epochs, keep, split)

    def _encoder_rate(self, keep: tuple[Part, ...]) -> float:
        job = self.job
        return measure_encoder(self.encoder, job.features("train"), keep, job.encode_tokens, job.machine.records)

    def _record(self, keep: tuple[Part, ...], choice: Choice) -> None:
        """Prints the choice, and writes it down."""
        job = self.job
        if not job.machine.is_main:
            return
        path, name = job.folder.path / "sources.json", self._spec(keep).name
        known, entry = read_json(path) or {}, asdict(choice)
        if known.get(name) != entry:
            write_json(path, {**known, name: entry})
        job.reporter.say_if_new("states", f"states ({', '.join(keep)}) are {choice.source}: {choice.reason}.")

    # ------------------------------------------------------------------ in memory

    def keep(self, keep: tuple[Part, ...], split: str, use_store: bool = False) -> MemoryStates | None:
        """The states of a split in memory where they are small, None where they are not: encoded once or, with
        `use_store`, read from their store. How long members train has no say in it: states that were kept and states
        that were streamed round differently, and a head must not end elsewhere because another one trains longer."""
        job, features = self.job, self.job.features(split)
        (too_large,) = job.machine.agree(not fits_in_memory(job, self.encoder, keep, len(features)))
        if too_large:
            return None
        store = self._find_kept(keep, split) if use_store else None
        if store is not None:
            return MemoryStates.load(store, keep, features, job.machine.device, job.machine.dtype)
        with job.reporter.bar(f"encoding {split} once", int(features.lengths.sum()), "tokens") as bar:
            return MemoryStates.encode(self.encoder, features, keep, job.encode_tokens, bar)

    def _find_kept(self, keep: tuple[Part, ...], split: str) -> Store | None:
        """The store that states to be kept are read from, if any."""
        job, asked = self.job, self.job.config.train.source
        if asked == STORED:
            return self.write(keep, split)
        if asked != "auto":
            return None
        try:
            store, trouble = self._spec(keep, split).find()
        except UserError as error:
            store, trouble = None, str(error)
        (unseen,) = job.machine.agree(store is None)  # it may have been finished this very moment
        if trouble:
            job.reporter.say(f"{trouble}: it is not used.")
        return None if unseen else store

    # ------------------------------------------------------------------ on disk

    def write(
        self, keep: tuple[Part, ...], split: str = "train", part: tuple[int, int] = (0, 1), verify: bool = False
    ) -> Store:
        """The store of a split's states, after writing what is missing of it. With `verify` existing shards are checked
        with their checksums, and those that differ are written again. `part` = (number, of how many) leaves
        the other parts to other commands; UnfinishedError then says that they are missing."""
        machine, say, spec = self.job.machine, self.job.reporter.say, self._spec(keep, split)
        found = None if verify else spec.find()[0]
        (unseen,) = machine.agree(found is None)
        if found is not None and not unseen:
            return found
        writer = self._writer(spec)
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
            say(f"stored {mb:,.1f} MB in {writer.location} in {seconds:,.1f} s ({mb / seconds:,.1f} MB/s).")
        if not finished:
            raise UnfinishedError(
                f"'{writer.location}' waits for the other parts: the command that writes the last one finishes it."
            )
        return Store.open(writer.location, writer.identity)

    def _verify(self, writer: StoreWriter) -> None:
        found, reporter = scan(writer.location), self.job.reporter
        if not found.is_store or found.is_unfinished:
            return
        with reporter.bar(f"reading {writer.location}", writer.bytes, "bytes") as bar:
            for damage in verify_store(writer.location, bar, reporter):
                again = f": {damage.examples} are written again" if damage.stop > damage.first else ""
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
            [example.id for example in job.examples(spec.split)],
            spec.contents,
            spec.identity(job.stamps.weights(self.epochs)),
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
                stores.append(States(job, encoder, epochs).write(keep, split, part, verify=True))
            except UnfinishedError as unfinished:  # the other stores are written all the same
                waiting.append(str(unfinished))
    if waiting:
        raise UnfinishedError("\n".join(waiting))
    return stores


# ---------------------------------------------------------------------- the choice


def fits_in_memory(job: Job, encoder: Encoder, keep: tuple[Part, ...], windows: int) -> bool:
    """Whether the states of so many windows are small enough to be kept."""
    if job.machine.device.type == "cuda":
        free = float(torch.cuda.mem_get_info(job.machine.device)[0])
    else:
        free = float(psutil.virtual_memory().available) / job.machine.processes
    needed = 4 * windows * (encoder.shape.layers + 1) * encoder.shape.hidden * len(keep)
    return "tokens" not in keep and needed < MEMORY_SHARE * free


def weigh_states(
    spec: StoreSpec, passes: float, windows: int, tokens: int, encoder_rate: Callable[[], float]
) -> Choice:
    """Streamed or stored, whichever is cheaper for so many passes over these states."""
    asked = spec.job.config.train.source
    try:
        store, trouble = spec.find()
        if store is not None:
            location, size, missing = store.location, store.manifest.bytes, 0.0
        elif trouble:
            return Choice(STREAMED, trouble)
        elif passes <= 1 and asked == "auto":
            return Choice(STREAMED, "there is one pass over them, so nothing to gain from storing")
        else:
            location, size = spec.location, spec.contents.store_bytes(windows, tokens)
            missing = max(0.0, 1 - scan(location).bytes_there / size)
        rates = Rates(encoder_rate(), *measure_disk(location, size, bool(missing)))
        return weigh(passes, tokens, size, missing, rates, location.free_bytes())
    except UserError as error:  # a disk that can't be used is no reason to stop: the encoder is there
        if asked == STORED:
            raise
        return Choice(STREAMED, f"they can't be stored ({error})")


def check_stores(job: Job) -> None:
    """Where states are to be stored, refuses a location that can't be opened or that holds other states, as far as that
    can be seen before fine-tuning."""
    if job.config.train.source == STORED:
        size = shape_of(job.config.encoder.name, job.config.encoder.layers)
        for epochs in job.head_snapshots:
            for keep in parts_of(job):
                found, wanted = StoreSpec(job, size, epochs, keep, finetuned=False).scan()
                if wanted:
                    found.refuse_other(wanted)


# ---------------------------------------------------------------------- parts


def parts_of(job: Job) -> list[tuple[Part, ...]]:
    """What the job's heads read: tokens apart from the others, as they are trained."""
    size = shape_of(job.config.encoder.name, job.config.encoder.layers)
    return split_parts({outline_head(member, size.shape, job.target).reads for member in job.members})


def split_parts(parts: Iterable[str]) -> list[tuple[Part, ...]]:
    found = set(parts)
    together: tuple[tuple[Part, ...], ...] = (("tokens",), ("cls", "mean"))
    groups = [tuple(name for name in group if name in found) for group in together]
    return [group for group in groups if group]


def parts_read(heads: list[Head]) -> tuple[Part, ...]:
    """Which parts of the states these heads read."""
    found: set[Part] = {head.reads for head in heads}
    return tuple(sorted(found))
