"""Write a store: the encoder processes one range of examples while the previous range is written to disk.

After a kill at any moment, the same call continues with the missing ranges. Several processes divide the ranges between
them; a process that finds all ranges written writes the manifest.
"""

import datetime
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
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
from bertvision.sources.store.format import (
    DIGITS,
    LISTED,
    MANIFEST,
    SHARD_BYTES,
    SHARD_TOKENS,
    WRITING,
    Contents,
    Data,
    Manifest,
    Shard,
    add_checksums,
    digest,
    outline_shard,
    plan_shards,
    seal,
    windows_of,
)
from bertvision.sources.store.location import Buffer, Location
from bertvision.sources.store.scan import is_shard_of, scan
from bertvision.sources.store.upkeep import is_of_store, verify_store

ROOM = 1.02  # required free space, as a multiple of the bytes to be written


class ShardWriter:
    """Encodes shards and writes them to a location. On a cluster, `features` and `ids` are those of single shards."""

    def __init__(
        self,
        location: Location,
        encoder: Encoder,
        features: Features,
        ids: Sequence[str],
        contents: Contents,
        fingerprint: str,
        encode_tokens: int = 8192,
        reporter: Reporter | None = None,
    ) -> None:
        """`fingerprint` is that of the store's identity."""
        assert encoder.shape.layers == len(contents.layers) and encoder.shape.hidden == contents.hidden
        self.location, self.encoder, self.features, self.ids = location, encoder, features, ids
        self.contents, self.fingerprint = contents, fingerprint
        self.encode_tokens, self.reporter = encode_tokens, reporter or Reporter()
        self.own: set[str] = set()
        """File names known to be shards of this store: cached, since each check costs a read."""

    def write_shards(self, shards: list[Shard]) -> None:
        tokens, megabytes = sum(shard.tokens for shard in shards), sum(shard.bytes for shard in shards) / 1e6
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.advance(count, f"{done / tokens * megabytes:,.0f} of {megabytes:,.0f} MB")

        with (
            self.reporter.bar(f"encoding into {self.location}", tokens, "tokens") as bar,
            ThreadPoolExecutor(1) as disk,
        ):
            writing: Future[None] | None = None
            for shard in shards:
                states = self._encode(shard, advance)
                if writing is not None:
                    writing.result()  # one shard is written while the next is encoded: memory for two shards
                writing = disk.submit(self._write_shard, shard, states)
            if writing is not None:
                writing.result()

    def _encode(self, shard: Shard, on_progress: Callable[[int], None]) -> dict[Part, Tensor]:
        """Encode a shard, and return its states in stored form. Batches never mix windows of different shards, so a
        rewritten shard is identical."""
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
        """Raise UserError with the ids of the examples whose states are NaN, infinite or too large for the dtype."""
        ids = list(dict.fromkeys(self.ids[self.features.example[window]] for window in windows))
        named = ", ".join(f"'{name}'" for name in ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        if not bool(values.isfinite().all()):
            raise UserError(
                f"the encoder's states are NaN or infinite for example {named}, so heads can't learn from them. "
                "If fine-tuning diverged, lower finetune.lr."
            )
        dtype, largest = self.contents.dtype, float(values.abs().max())
        others = "float32" if dtype == "bfloat16" else "bfloat16, int8 or float32"
        raise UserError(
            f"a state of example {named} is too large for {dtype} ({largest:.3g}; the maximum is "
            f"{torch.finfo(TORCH[dtype]).max:,.5g}): set store.dtype to {others}."
        )

    def _write_shard(self, shard: Shard, states: dict[Part, Tensor]) -> None:
        _, head = self.outline(shard.first, shard.stop)
        parts = [_bytes_of(states[part]) for part in self.contents.parts]
        windows = windows_of(self.features, shard.first, shard.stop)
        lengths = self.features.lengths[windows.start : windows.stop].astype(np.int64)  # (window)
        sizes = [self.contents.window_bytes(part, lengths) for part in self.contents.parts]
        pieces = [memoryview(add_checksums(head, parts, [own.tolist() for own in sizes])), *parts]
        assert sum(map(len, pieces)) == shard.bytes
        name = f"{shard.stem}{digest(pieces)}.safetensors"
        self.location.write(name, pieces)
        self.own.add(name)

    def outline(self, first: int, stop: int, checked: bool = True) -> tuple[Shard, Data]:
        return outline_shard(self.features, self.ids, self.contents, self.fingerprint, first, stop, checked)


class StoreWriter(ShardWriter):
    """Writes the states of all windows to a location, or only the missing shards."""

    def __init__(
        self,
        location: Location,
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
        """`ids` are those of the examples; `about` is saved in the manifest for people to read."""
        own = fingerprint(identity)
        super().__init__(location, encoder, features, ids, contents, own, encode_tokens, reporter)
        self.identity, self.about = identity, about or {}
        ranges = self._plan(shard_bytes, shard_tokens)
        self.shards = [self.outline(first, stop)[0] for first, stop in ranges]

    @property
    def bytes(self) -> int:
        """Size of the complete store, known before anything is written."""
        return sum(shard.bytes for shard in self.shards)

    def missing(self) -> list[Shard]:
        """Return the shards that are missing, incomplete or known to be damaged."""
        found = self._found()
        return [shard for shard in self.shards if shard.first not in found]

    def write(self, share: tuple[int, int] = (0, 1), make: "Make | None" = None) -> int:
        """Write this process's share (rank, processes) of the missing shards. Return the bytes written. `make` encodes
        and writes them elsewhere, on a cluster."""
        missing = self.missing()
        # Shares are taken from the plan, not from the missing shards: processes check at different times, and must not
        # write the same shard.
        gone = {shard.first for shard in missing}
        mine = [shard for shard in self.shards[share[0] :: share[1]] if shard.first in gone]
        self._check_room(sum(shard.bytes for shard in missing))
        if mine:
            found = scan(self.location)
            if WRITING not in found.sizes or not found.ranges:
                shards = [[shard.first, shard.stop] for shard in self.shards]
                plan = {"identity": self.identity, "about": self.about, "shards": shards}
                self.location.write(WRITING, [memoryview(seal(plan))])
            self.location.sweep([shard.stem for shard in mine])
            (make or StoreWriter.write_shards)(self, mine)
        return sum(shard.bytes for shard in mine)

    def finish(self) -> bool:
        """Write the manifest if every shard is written. Return False if any shard is missing."""
        written = self._found()
        if len(written) < len(self.shards):
            return False
        found, own = scan(self.location), {shard.file for shard in written.values()}
        if found.manifest is None or {shard.file for shard in found.manifest.shards} != own:
            shards = [written[shard.first] for shard in self.shards]
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            manifest = Manifest(self.identity, self.contents, shards, {**self.about, "written": now})
            self.location.write(MANIFEST, [memoryview(manifest.dump())])
        for name in found.sizes:
            if is_of_store(name) and name != MANIFEST and name not in own:
                self.location.remove(name)
        self.location.sweep([MANIFEST, WRITING, LISTED, *(shard.stem for shard in self.shards)])
        return True

    # ------------------------------------------------------------------ existing shards

    def _plan(self, shard_bytes: int, shard_tokens: int) -> list[tuple[int, int]]:
        """Return the ranges of this store's shards: those it was started with, and new ones for the gaps. Raise
        UserError if the location holds different states."""
        found = scan(self.location)
        found.refuse_other(self.identity)
        if LISTED in found.sizes:  # an earlier version found damage: rename those shards now, to rewrite them
            verify_store(self.location)
            found = scan(self.location)
        self.own |= {shard.file for shard in (found.manifest.shards if found.manifest is not None else ())}
        known = found.ranges or sorted({(s.first, s.stop) for s in found.shards if self._is_own(s.file)})
        ranges, begin, end = [], 0, len(self.ids)
        for first, stop in [*known, (end, end)]:
            if first >= begin:  # skip overlapping ranges
                ranges += plan_shards(self.features, self.contents, shard_bytes, shard_tokens, begin, first)
                ranges += [(first, stop)] if stop > first else []
                begin = stop
        return ranges

    def _found(self) -> dict[int, Shard]:
        """First example → the complete shard of this store. Those of earlier versions have no checksums of windows, and
        stay as they are."""
        expected = {shard.stem: shard for shard in self.shards}
        found = {}
        for name, size in self.location.sizes().items():
            shard = expected.get(name[: name.rfind("-") + 1])
            if shard is not None and size != shard.bytes:
                shard = self.outline(shard.first, shard.stop, checked=False)[0]
            if shard is not None and size == shard.bytes and self._is_own(name):
                found[shard.first] = replace(shard, sha256=name[len(shard.stem) :][:DIGITS])
        return found

    def _is_own(self, name: str) -> bool:
        if name not in self.own and is_shard_of(self.fingerprint, self.location, name):
            self.own.add(name)
        return name in self.own

    def _check_room(self, needed: int) -> None:
        free = self.location.free_bytes()
        if free is not None and needed and free < ROOM * needed:
            raise UserError(
                f"the states need {needed / 1e6:,.0f} MB in '{self.location}', but only {free / 1e6:,.0f} MB are free. "
                "Free some space, or set store.path to another disk, store.dtype to 'int8', or encoder.layers to fewer "
                "layers. train.source = 'streamed' needs no disk space."
            )


Make = Callable[[StoreWriter, list[Shard]], None]
"""Encodes shards of a store and writes them."""


def _bytes_of(tensor: Tensor) -> Buffer:
    numbers: Any = tensor.contiguous().view(torch.uint8).numpy()
    return memoryview(numbers).cast("B")
