"""The hidden states of one snapshot: in memory where they are small, else streamed or stored, whichever is cheaper.

    states = States(job, encoder, epochs)
    source, choice = states.open(whole, keep)

The choice and its reason are printed, and written to the run folder's sources.json.
"""

import dataclasses
import time

import numpy as np
import psutil
import torch

from bertvision.data.packing import Pass, fill_batches
from bertvision.data.windows import Features
from bertvision.disk import read_json, write_json
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads import Head
from bertvision.pipeline.job import Job
from bertvision.pipeline.stores import STORED, Stores, measure_disk, store_name
from bertvision.sources import KeptSource, KeptStates, Source, StreamedSource, kept_bytes
from bertvision.sources.cost import Choice, Rates, weigh
from bertvision.sources.store import Store, StoredSource

# States that are kept take at most this share of the memory that is free; while they are made they take three times it.
MEMORY_SHARE = 0.25
KEPT, STREAMED = "kept", "streamed"
FEW_SECONDS = 2.0  # of encoding, to measure its rate


class States:
    """Where the states of one snapshot come from. Choices are remembered: a search asks for each population."""

    def __init__(self, job: Job, encoder: Encoder, epochs: float) -> None:
        self.job, self.encoder, self.epochs = job, encoder, epochs
        self._choices: dict[tuple[str, float], Choice] = {}

    @property
    def stores(self) -> Stores:
        return Stores(self.job, self.encoder, self.epochs)

    def open(
        self,
        whole: Pass,
        keep: tuple[Part, ...],
        kept: KeptStates | None = None,
        repeats: float = 1.0,
        resumed: bool = False,
    ) -> tuple[Source, Choice]:
        """The source of a pass over the train split. `kept` states are used where they are given; `repeats` is how many
        such passes there will be in all; a `resumed` pass stays with its source."""
        job, features = self.job, self.job.features("train")
        share = (job.machine.rank, job.machine.processes)
        kept = kept or self.keep(keep, "train", use_store=True)
        if kept is not None:
            choice = Choice(KEPT, kept.origin)
        else:
            passes = repeats * sum(job.tokens_of(whole.steps)) / max(1, int(features.lengths.sum()))
            choice = self.choose(keep, passes, resumed)
        self._record(keep, choice)
        if kept is not None:
            return KeptSource(kept, features, whole.steps, share), choice
        if choice.source == STREAMED:
            # Heads are done with a batch before they ask for the next.
            tokens, records = job.encode_tokens, job.machine.records
            steps = (whole.steps, keep, tokens, share, whole.starts, records)
            return StreamedSource(self.encoder, features, *steps), choice
        store, memory = self.stores.write(keep), job.config.store.memory_mb << 20
        place = job.machine.device, job.machine.dtype
        return StoredSource(store, features, whole.steps, keep, *place, share, memory, whole.pools), choice

    def choose(self, keep: tuple[Part, ...], passes: float, resumed: bool = False) -> Choice:
        """Streamed or stored, for so many passes over the train split."""
        job, name = self.job, store_name(self.epochs, "train", keep)
        asked = job.config.train.source
        if asked != "auto":
            return Choice(asked, f'train.source = "{asked}"')
        if (name, passes) not in self._choices:
            before = (read_json(job.folder.path / "sources.json") or {}).get(name)
            if resumed and before is not None and before["source"] != KEPT:
                choice: Choice | None = Choice(**before)
            else:
                # By all processes, since the encoder's rate is that of all at work.
                rate = measure_encoder(job, self.encoder, job.features("train"), keep) if passes > 1 else None
                choice = self._weigh(keep, passes, rate) if job.machine.is_main else None
            # Clocks differ, and all must do the same: the first process's choice.
            self._choices[name, passes] = job.machine.gather([choice] if job.machine.is_main else [])[0]
        return self._choices[name, passes]

    def _weigh(self, keep: tuple[Part, ...], passes: float, rate: float | None) -> Choice:
        job = self.job
        try:
            store, trouble = self.stores.find(keep, "train")
            if store is None and trouble:
                return Choice(STREAMED, trouble)
            if rate is None and store is None:
                return Choice(STREAMED, "there is one pass over them, so nothing to gain from storing")
            if store is not None:
                place, size, missing = store.place, store.manifest.bytes, 0.0
            else:
                place, size, missing = self.stores.measure_missing(keep)
            rate = rate or measure_encoder(job, self.encoder, job.features("train"), keep)
            rates = Rates(rate, *measure_disk(place, size, bool(missing)))
            tokens = int(job.features("train").lengths.sum())
            return weigh(passes, tokens, size, missing, rates, place.free_bytes())
        except UserError as error:  # a disk that can't be used is no reason to stop: the encoder is there
            return Choice(STREAMED, f"they can't be stored ({error})")

    def _record(self, keep: tuple[Part, ...], choice: Choice) -> None:
        """Prints the choice, and writes it down."""
        job = self.job
        if not job.machine.is_main:
            return
        path, name = job.folder.path / "sources.json", store_name(self.epochs, "train", keep)
        known, entry = read_json(path) or {}, dataclasses.asdict(choice)
        if known.get(name) != entry:
            write_json(path, {**known, name: entry})
        job.reporter.say_if_new("states", f"states ({', '.join(keep)}) are {choice.source}: {choice.reason}.")

    def keep(self, keep: tuple[Part, ...], split: str, use_store: bool = False) -> KeptStates | None:
        """The states of a split in memory where they are small, None where they are not: encoded once or, with
        `use_store`, read from their store. How long members train has no say in it: states that were kept and states
        that were streamed round differently, and a head must not end elsewhere because another one trains longer."""
        job, features = self.job, self.job.features(split)
        (too_large,) = job.machine.agree(not fits_in_memory(job, self.encoder, keep, len(features)))
        if too_large:
            return None
        store = self._find_kept(keep, split) if use_store else None
        if store is not None:
            return KeptStates.load(store, keep, features, job.machine.device, job.machine.dtype)
        with job.reporter.bar(f"encoding {split} once", int(features.lengths.sum()), "tokens") as bar:
            return KeptStates.encode(self.encoder, features, keep, job.encode_tokens, bar)

    def _find_kept(self, keep: tuple[Part, ...], split: str) -> Store | None:
        """The store that states to be kept are read from, if any."""
        job, asked = self.job, self.job.config.train.source
        if asked == STORED:
            return self.stores.write(keep, split)
        if asked != "auto":
            return None
        store, trouble = self.stores.find(keep, split)
        (unseen,) = job.machine.agree(store is None)  # it may have been finished this very moment
        if trouble:
            job.reporter.say(f"{trouble}: it is not used.")
        return None if unseen else store


def fits_in_memory(job: Job, encoder: Encoder, keep: tuple[Part, ...], windows: int) -> bool:
    """Whether the states of so many windows are small enough to be kept."""
    needed = kept_bytes(windows, encoder.shape.layers + 1, encoder.shape.hidden, len(keep))
    return "tokens" not in keep and needed < MEMORY_SHARE * _free_memory(job)


def _free_memory(job: Job) -> float:
    """Bytes one process may count on, where the states would lie."""
    if job.machine.device.type == "cuda":
        return float(torch.cuda.mem_get_info(job.machine.device)[0])
    return float(psutil.virtual_memory().available) / job.machine.processes


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


def parts_read(heads: list[Head]) -> tuple[Part, ...]:
    """Which parts of the states these heads read."""
    found: set[Part] = {head.reads for head in heads}
    return tuple(sorted(found))
