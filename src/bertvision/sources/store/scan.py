"""What lies at a location, found out without writing anything: a whole store, a part of one, other states, or nothing.

found = scan(open_location(path))
found.refuse_other(identity)
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bertvision.disk import fingerprint
from bertvision.errors import UserError
from bertvision.sources.store.format import (
    LISTED,
    MANIFEST,
    SET_ASIDE,
    SHARD_NAME,
    WRITING,
    DamagedError,
    Data,
    Manifest,
    Shard,
    find_differences,
    read_header,
    unseal,
)
from bertvision.sources.store.location import Location


@dataclass(frozen=True)
class Scan:
    """The files at a location, and what its manifest says or, before there is one, writing.json."""

    location: Location
    sizes: dict[str, int]
    manifest: Manifest | None
    problem: UserError | None
    """Why the manifest that is there can't be used."""
    identity: dict[str, Any]
    about: dict[str, Any]
    ranges: list[tuple[int, int]]
    """The examples of each shard that the store has or will have."""

    @property
    def is_store(self) -> bool:
        """Whether there are shards, or a file that only a store has: other programs have a manifest.json too."""
        has_shards = any(SHARD_NAME.fullmatch(name.removeprefix(SET_ASIDE)) for name in self.sizes)
        return bool(has_shards or self.identity or (self.problem and not self.is_damaged))

    @property
    def is_damaged(self) -> bool:
        """Whether the manifest is not what was written, and so counts as missing."""
        return isinstance(self.problem, DamagedError)

    @property
    def is_unfinished(self) -> bool:
        return WRITING in self.sizes and not {MANIFEST, LISTED} & self.sizes.keys()

    @cached_property
    def shards(self) -> list[Shard]:
        """The shards that are there, as their names describe them."""
        matches = [(SHARD_NAME.fullmatch(name), size) for name, size in sorted(self.sizes.items())]
        return [Shard(int(match[1]), int(match[2]), 0, 0, size, {}, match[3]) for match, size in matches if match]

    @cached_property
    def broken(self) -> list[tuple[Shard, str]]:
        """Shards of the manifest that are missing, cut off or known to be damaged, and why; none of them is read."""
        found = []
        for shard in self.manifest.shards if self.manifest is not None else ():
            size = self.sizes.get(shard.file)
            if size is None:
                found.append((shard, "is damaged" if SET_ASIDE + shard.file in self.sizes else "is missing"))
            elif size != shard.bytes:
                found.append((shard, f"has {size:,} bytes, not {shard.bytes:,}"))
            elif LISTED in self.sizes:
                found.append((shard, "may be damaged"))
        return found

    @property
    def bytes_there(self) -> int:
        """Of shards that the store has or will have, and that nothing is known against."""
        broken = {shard.file for shard, _ in self.broken}
        return sum(s.bytes for s in self.shards if (s.first, s.stop) in self.ranges and s.file not in broken)

    def find_difference(self, identity: dict[str, Any]) -> str:
        """In words, how that which lies here is not of these states; empty where it is of them, or nothing is there."""
        differences = find_differences(self.identity, identity) if self.identity else []
        if differences:
            return f"the store '{self.location}' holds other states (it differs in: {'; '.join(differences)})"
        wanted = fingerprint(identity)
        if self.identity or not self.shards or any(is_shard_of(wanted, self.location, s.file) for s in self.shards):
            return ""
        return f"'{self.location}' holds shards of other states, and no manifest that says which"

    def refuse_other_format(self) -> None:
        if self.problem is not None and not self.is_damaged:
            raise self.problem

    def refuse_other(self, identity: dict[str, Any]) -> None:
        """Raises where other states lie here than the wanted ones."""
        self.refuse_other_format()
        difference = self.find_difference(identity)
        if difference:
            raise UserError(
                f"{difference}. Set store.path to another location, or remove it: bertvision store rm {self.location}"
            )


def scan(location: Location) -> Scan:
    sizes, manifest, problem, known = location.sizes(), None, None, {}
    data = _read(location, MANIFEST, sizes)
    try:
        manifest = Manifest.parse(data, f"{location}/{MANIFEST}") if data is not None else None
    except UserError as error:
        problem = error
    if manifest is not None:
        ranges = [(shard.first, shard.stop) for shard in manifest.shards]
        return Scan(location, sizes, manifest, None, manifest.identity, manifest.about, ranges)
    data = _read(location, WRITING, sizes)
    with suppress(DamagedError):  # shards say for themselves what they are of
        known = unseal(data, WRITING) if data is not None else {}
    ranges = [(first, stop) for first, stop in known.get("shards", [])]
    return Scan(location, sizes, None, problem, known.get("identity", {}), known.get("about", {}), ranges)


def _read(location: Location, name: str, sizes: dict[str, int]) -> Data | None:
    try:
        return location.read(name) if name in sizes else None
    except FileNotFoundError:  # another process has just removed it
        return None


def is_shard_of(fingerprint: str, location: Location, name: str) -> bool:
    """Whether a file says that it is a shard of the store with this fingerprint."""
    try:
        header, _ = read_header(location, name)
        return bool(header["__metadata__"]["store"] == fingerprint)
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        return False
