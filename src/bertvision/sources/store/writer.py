"""Writing a store: the encoder runs over a range of examples while the range before goes to the disk.

Killed at any moment, the same call goes on with the ranges that are not there yet. Several processes take ranges
between them; whoever finds all of them there writes the manifest.
"""

import datetime
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.disk import fingerprint
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import Part, pack_tokens
from bertvision.errors import UserError
from bertvision.progress import Reporter
from bertvision.sources.store.dtypes import TORCH, find_unfit, to_stored
from bertvision.sources.store.identity import refuse_other
from bertvision.sources.store.layout import (
    DAMAGED,
    MANIFEST,
    SHARD_BYTES,
    SHARD_NAME,
    SHARD_TOKENS,
    WRITING,
    Contents,
    DamagedError,
    Data,
    Manifest,
    Shard,
    digest,
    facts_of,
    hash_file,
    outline_shard,
    plan_shards,
    read_header,
    seal,
    unseal,
    windows_of,
)
from bertvision.sources.store.places import Buffer, Place

ROOM = 1.02  # the disk must have this much of what will be written


class StoreWriter:
    """Writes the states of some features to a place, or what is missing of them."""

    def __init__(
        self,
        place: Place,
        encoder: Encoder,
        features: Features,
        ids: Sequence[str],
        contents: Contents,
        identity: dict[str, Any],
        about: dict[str, Any] | None = None,
        encode_tokens: int = 8192,
        shard_bytes: int = SHARD_BYTES,
        shard_tokens: int = SHARD_TOKENS,
        reporter: Reporter | None = None,
    ) -> None:
        """`ids` are the examples'; `about` is kept for people to read."""
        assert encoder.shape.layers == len(contents.layers) and encoder.shape.hidden == contents.hidden
        self.place, self.encoder, self.features, self.ids = place, encoder, features, ids
        self.contents, self.identity, self.about = contents, identity, about or {}
        self.encode_tokens, self.reporter = encode_tokens, reporter or Reporter()
        self.fingerprint = fingerprint(identity)
        self.most = shard_bytes, shard_tokens
        self.asked: dict[str, bool] = {}
        """Whether a file is a shard of this store, by name: what was found, since looking may cost a question each."""
        self.shards = [self._outline_one(first, stop)[0] for first, stop in self._plan()]

    @property
    def bytes(self) -> int:
        """What the whole store takes on the disk, known before anything is written."""
        return sum(shard.bytes for shard in self.shards)

    def missing(self) -> list[Shard]:
        """The shards that are not there, not whole, or known to be damaged."""
        found = self._found()
        return [shard for shard in self.shards if shard.first not in found]

    def write(self, share: tuple[int, int] = (0, 1)) -> int:
        """Writes this process's share (rank, processes) of what is missing; gives the bytes written."""
        missing = self.missing()
        # By the plan, not by what is missing: processes look at different moments and must not meet.
        gone = {shard.first for shard in missing}
        mine = [shard for shard in self.shards[share[0] :: share[1]] if shard.first in gone]
        self._check_room(sum(shard.bytes for shard in missing))
        if mine:
            if WRITING not in self.place.sizes():
                shards = [[shard.first, shard.stop] for shard in self.shards]
                plan = {"identity": self.identity, "about": self.about, "shards": shards}
                self.place.write(WRITING, [memoryview(seal(plan))])
            self.place.sweep([shard.stem for shard in mine])
            self._write_shards(mine)
        return sum(shard.bytes for shard in mine)

    def finish(self) -> bool:
        """Writes the manifest if every shard is there; else another process is still at work, and False is given."""
        names = self._found()
        if len(names) < len(self.shards):
            return False
        sizes, written = self.place.sizes(), self._manifest()
        if written is None or {shard.file for shard in written.shards} != set(names.values()):
            shards = [_named(shard, names[shard.first]) for shard in self.shards]
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            manifest = Manifest(self.identity, self.contents, shards, {**self.about, "written": now})
            self.place.write(MANIFEST, [memoryview(manifest.dump())])
        for name in sizes:
            if name in (WRITING, DAMAGED) or (SHARD_NAME.fullmatch(name) and name not in names.values()):
                self.place.remove(name)
        self.place.sweep([MANIFEST, WRITING, DAMAGED, *(shard.stem for shard in self.shards)])
        return True

    # ------------------------------------------------------------------ what is there

    def _plan(self) -> list[tuple[int, int]]:
        """The ranges of this store's shards: those it was begun with, else new ones. Other states in its place are
        refused."""
        manifest = self._manifest()
        if manifest is not None:
            return [(shard.first, shard.stop) for shard in manifest.shards]
        data = self._read(WRITING)
        if data is not None:
            try:
                plan = unseal(data, f"{self.place}/{WRITING}")
            except DamagedError:  # shards say for themselves what they are of
                self.place.remove(WRITING)
            else:
                refuse_other(str(self.place), plan["identity"], self.identity)
                return [(first, stop) for first, stop in plan["shards"]]
        names = [name for name in self.place.sizes() if SHARD_NAME.fullmatch(name)]
        mine = [name for name in names if self._is_mine(name)]
        if names and not mine:
            raise UserError(
                f"'{self.place}' holds shards of other states, and no manifest that says which: set store.path to "
                f"another place, or remove it: bertvision store rm {self.place}"
            )
        return self._complete(sorted({_range_of(name) for name in mine}))

    def _complete(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The given ranges, none over another, and new ones for what lies between them."""
        found, place, end = [], 0, len(self.ids)
        for first, stop in [*ranges, (end, end)]:
            if first >= place:
                found += plan_shards(self.features, self.contents, *self.most, place, first)
                found += [(first, stop)] if stop > first else []
                place = stop
        return found

    def _manifest(self) -> Manifest | None:
        """The manifest that is there; one of other states is refused, and a damaged one is as good as none."""
        data = self._read(MANIFEST)
        if data is None:
            return None
        try:
            manifest = Manifest.parse(data, f"{self.place}/{MANIFEST}")
        except DamagedError:
            return None
        refuse_other(str(self.place), manifest.identity, self.identity)
        self.asked |= {shard.file: True for shard in manifest.shards}
        return manifest

    def _read(self, name: str) -> Data | None:
        try:
            return self.place.read(name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _outline_one(self, first: int, stop: int) -> tuple[Shard, Data]:
        return outline_shard(self.features, self.ids, self.contents, self.fingerprint, first, stop)

    def _found(self) -> dict[int, str]:
        """First example → name, of the files that are whole shards of this very store."""
        expected, damaged = {shard.stem: shard for shard in self.shards}, self._damaged()
        found = {}
        for name, size in self.place.sizes().items():
            shard = expected.get(name[: name.rfind("-") + 1])
            if shard is not None and size == shard.bytes and name not in damaged and self._is_mine(name):
                found[shard.first] = name
        return found

    def _is_mine(self, name: str) -> bool:
        if name not in self.asked:
            try:
                header, _ = read_header(self.place, name)
                self.asked[name] = bool(header["__metadata__"]["store"] == self.fingerprint)
            except (ValueError, KeyError, TypeError, FileNotFoundError):
                return False
        return self.asked[name]

    def _damaged(self) -> list[str]:
        """Names of the shards that a look at their checksums found wrong, and that were not written again since."""
        data, sizes = self._read(DAMAGED), self.place.sizes()
        if data is None:
            return []
        try:
            listed = [str(name) for name in unseal(data, DAMAGED)["files"]]
        except DamagedError:  # what it said is lost: any of them may be meant
            listed = [name for name in sizes if SHARD_NAME.fullmatch(name)]
        return [name for name in listed if name in sizes and hash_file(self.place, name, sizes[name]) not in name]

    def _check_room(self, needed: int) -> None:
        free = self.place.free_bytes()
        if free is not None and needed and free < ROOM * needed:
            raise UserError(
                f"the states need {needed / 1e6:,.0f} MB in '{self.place}', {free / 1e6:,.0f} MB are free: make room, "
                "set store.path to another disk, store.dtype to 'int8', or encoder.layers to fewer layers; "
                "train.source = 'streamed' needs no disk at all."
            )

    # ------------------------------------------------------------------ writing

    def _write_shards(self, shards: list[Shard]) -> None:
        tokens = sum(shard.tokens for shard in shards)
        done = Progress(sum(shard.bytes for shard in shards) / tokens, tokens)
        with self.reporter.bar(f"encoding into {self.place}", tokens, "tokens") as bar, ThreadPoolExecutor(1) as disk:
            writing: Future[None] | None = None
            for shard in shards:
                states = self._encode(shard, lambda count: bar.advance(count, done.note(count)))
                if writing is not None:
                    writing.result()  # one shard on its way to the disk while one is filled: memory is that of two
                writing = disk.submit(self._write_shard, shard, states)
            if writing is not None:
                writing.result()

    def _encode(self, shard: Shard, on_progress: Callable[[int], None]) -> dict[Part, Tensor]:
        """The states of a shard as they are stored. Windows of other shards have no say in how they are batched, so
        that a shard written anew is the same."""
        windows = np.array(windows_of(self.features, shard.first, shard.stop))
        lengths = self.features.lengths[windows].astype(np.int64)  # (window)
        starts = np.cumsum(lengths) - lengths  # (window)
        dtype = TORCH[self.contents.dtype]
        found: dict[Part, Tensor] = {
            part: torch.empty(self.contents.shape(part, shard.windows, shard.tokens), dtype=dtype)
            for part in self.contents.parts
        }
        longest_first = np.argsort(-lengths, kind="stable")
        for some in fill_batches(lengths, longest_first, tokens=self.encode_tokens):
            with torch.no_grad():
                states = self.encoder.eval()(pack_tokens(self.features, windows[some]), keep=self.contents.parts)
            before = np.cumsum(lengths[some]) - lengths[some]  # (window of the batch)
            tokens = np.repeat(starts[some] - before, lengths[some]) + np.arange(lengths[some].sum())  # (token)
            for part in self.contents.parts:
                values = states.read(part)
                stored = to_stored(values, self.contents.dtype)
                unfit = find_unfit(values, stored)
                if len(unfit):
                    owners = np.repeat(some, lengths[some]) if part == "tokens" else some
                    self._refuse(values[unfit], windows[owners[unfit.numpy()]])
                found[part][torch.from_numpy(tokens if part == "tokens" else some)] = stored.cpu()
            on_progress(int(lengths[some].sum()))
        return found

    def _refuse(self, values: Tensor, windows: np.ndarray) -> None:
        """Says in which examples the numbers are none, or too large for their stored form."""
        ids = list(dict.fromkeys(self.ids[self.features.example[window]] for window in windows))
        named = ", ".join(f"'{name}'" for name in ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        if not bool(values.isfinite().all()):
            raise UserError(
                f"the encoder gives states that are no numbers (NaN or infinite) for example {named}: nothing can be "
                "learned from them. Fine-tuning may have diverged (lower finetune.lr)."
            )
        dtype, largest = self.contents.dtype, float(values.abs().max())
        others = "float32" if dtype == "bfloat16" else "bfloat16, int8 or float32"
        raise UserError(
            f"a state of example {named} is too large for {dtype} ({largest:.3g}; at most "
            f"{torch.finfo(TORCH[dtype]).max:,.5g}): set store.dtype to {others}."
        )

    def _write_shard(self, shard: Shard, states: dict[Part, Tensor]) -> None:
        _, head = self._outline_one(shard.first, shard.stop)
        facts = facts_of(self.features, windows_of(self.features, shard.first, shard.stop))
        pieces = [memoryview(head)]
        pieces += [memoryview(value.astype(value.dtype.newbyteorder("<")).tobytes()) for value in facts.values()]
        pieces += [_bytes_of(states[part]) for part in self.contents.parts]
        pieces = [piece for piece in pieces if len(piece)]
        assert sum(map(len, pieces)) == shard.bytes
        name = f"{shard.stem}{digest(pieces)}.safetensors"
        self.place.write(name, pieces)
        self.asked[name] = True


class Progress:
    """The bytes so far and in all, told from the tokens."""

    def __init__(self, bytes_a_token: float, tokens: int) -> None:
        self.bytes_a_token, self.all, self.done = bytes_a_token, tokens, 0

    def note(self, more: int) -> str:
        self.done += more
        return f"{self.done * self.bytes_a_token / 1e6:,.0f} of {self.all * self.bytes_a_token / 1e6:,.0f} MB"


def _bytes_of(tensor: Tensor) -> Buffer:
    numbers: Any = tensor.contiguous().view(torch.uint8).numpy()
    return memoryview(numbers).cast("B")


def _named(shard: Shard, file: str) -> Shard:
    sha256 = file.removeprefix(shard.stem).removesuffix(".safetensors")
    return Shard(shard.first, shard.stop, shard.windows, shard.tokens, shard.bytes, shard.at, sha256)


def _range_of(name: str) -> tuple[int, int]:
    first, stop = name.removeprefix("states-").split("-")[:2]
    return int(first), int(stop)
