"""Inspect a location without writing: it may hold a complete store, part of one, a store of other states, or nothing.

found = scan(open_location(path))
found.refuse_other(identity)
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bertvision.disk import DamagedError, fingerprint
from bertvision.errors import UserError
from bertvision.sources.store.format import (
    LISTED,
    MANIFEST,
    SET_ASIDE,
    SHARD_NAME,
    WRITING,
    Data,
    Manifest,
    Shard,
    WritingFile,
    find_differences,
    fit_file,
    read_header,
    unseal,
)
from bertvision.sources.store.location import Location


@dataclass(frozen=True)
class Scan:
    """The files at a location, and the contents of its manifest or, while it is being written, of writing.json."""

    location: Location
    sizes: dict[str, int]
    manifest: Manifest | None
    problem: UserError | None
    """Why the manifest can't be used."""
    identity: dict[str, Any]
    about: dict[str, Any]
    ranges: list[tuple[int, int]]
    """First and stop example of each shard, written or planned."""

    @property
    def is_store(self) -> bool:
        """Whether this is a store. A manifest.json alone is not proof: other programs also write one."""
        has_shards = any(SHARD_NAME.fullmatch(name.removeprefix(SET_ASIDE)) for name in self.sizes)
        return bool(has_shards or self.identity or (self.problem and not self.is_damaged))

    @property
    def is_damaged(self) -> bool:
        """Whether the manifest is damaged, and so counts as missing."""
        return isinstance(self.problem, DamagedError)

    @property
    def is_unfinished(self) -> bool:
        return WRITING in self.sizes and not {MANIFEST, LISTED} & self.sizes.keys()

    @cached_property
    def shards(self) -> list[Shard]:
        """The shards found, described by their file names."""
        matches = [(SHARD_NAME.fullmatch(name), size) for name, size in sorted(self.sizes.items())]
        return [Shard(int(match[1]), int(match[2]), 0, 0, size, {}, match[3]) for match, size in matches if match]

    @cached_property
    def broken(self) -> list[tuple[Shard, str]]:
        """The manifest's shards that are missing, truncated or known to be damaged, and why. Shards are not read."""
        found = []
        for shard in self.manifest.shards if self.manifest is not None else ():
            size = self.sizes.get(shard.file)
            if size is None:
                found.append((shard, "is damaged" if SET_ASIDE + shard.file in self.sizes else "is missing"))
            elif size != shard.bytes:
                found.append((shard, f"has {size:,} bytes instead of {shard.bytes:,}"))
            elif LISTED in self.sizes:
                found.append((shard, "may be damaged"))
        return found

    @property
    def bytes_there(self) -> int:
        """Total size of the shards found, without those known to be missing or damaged."""
        broken = {shard.file for shard, _ in self.broken}
        return sum(s.bytes for s in self.shards if (s.first, s.stop) in self.ranges and s.file not in broken)

    def find_difference(self, identity: dict[str, Any]) -> str:
        """Describe how the store here differs from the wanted identity; empty if it does not, or if there is none."""
        differences = find_differences(self.identity, identity) if self.identity else []
        if differences:
            return f"the store '{self.location}' holds different states ({'; '.join(differences)})"
        wanted = fingerprint(identity)
        if self.identity or not self.shards or any(is_shard_of(wanted, self.location, s.file) for s in self.shards):
            return ""
        return f"'{self.location}' holds shards of different states, without a manifest that describes them"

    def refuse_other_format(self) -> None:
        if self.problem is not None and not self.is_damaged:
            raise self.problem

    def refuse_other(self, identity: dict[str, Any]) -> None:
        """Raise UserError if the states here are not the wanted ones."""
        self.refuse_other_format()
        difference = self.find_difference(identity)
        if difference:
            raise UserError(
                f"{difference}. Set store.path to another location, or remove this store: "
                f"bertvision store rm {self.location}"
            )


def scan(location: Location) -> Scan:
    sizes, manifest, problem = location.sizes(), None, None
    data = _read(location, MANIFEST, sizes)
    try:
        manifest = Manifest.parse(data, f"{location}/{MANIFEST}") if data is not None else None
    except UserError as error:
        problem = error
    if manifest is not None:
        ranges = [(shard.first, shard.stop) for shard in manifest.shards]
        return Scan(location, sizes, manifest, None, manifest.identity, manifest.about, ranges)
    data = _read(location, WRITING, sizes)
    known: WritingFile = {"identity": {}, "shards": []}
    with suppress(DamagedError):  # the shards hold the fingerprint as well
        known = fit_file(unseal(data, WRITING), WritingFile, WRITING) if data is not None else known
    return Scan(location, sizes, None, problem, known["identity"], known.get("about", {}), known["shards"])


def _read(location: Location, name: str, sizes: dict[str, int]) -> Data | None:
    try:
        return location.read(name) if name in sizes else None
    except FileNotFoundError:  # another process has just removed it
        return None


def is_shard_of(fingerprint: str, location: Location, name: str) -> bool:
    """Whether a file is a shard of the store with this fingerprint, according to its header."""
    try:
        header, _ = read_header(location, name)
        return bool(header["__metadata__"]["store"] == fingerprint)
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        return False
