"""Maintenance of stores: verify, list and remove."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.disk import TEMPORARY
from bertvision.errors import UserError
from bertvision.progress import Bar, Reporter
from bertvision.sources.store.format import DIGITS, LISTED, MANIFEST, SET_ASIDE, SHARD_NAME, WRITING, Shard
from bertvision.sources.store.location import Folder, Location, open_location
from bertvision.sources.store.scan import Scan, scan

THREADS = 4  # hashing and reading release the GIL, so each thread can use a core
LEVELS = 3  # depth of the search: from `runs` down to runs/<run>/states/<split>_epoch_1


@dataclass(frozen=True)
class Damage:
    """A damaged file and the examples in it, `first` to `stop` - 1."""

    file: str
    first: int
    stop: int
    why: str

    @property
    def examples(self) -> str:
        return f"examples {self.first:,} to {self.stop - 1:,}" if self.stop > self.first else "no examples"


@dataclass(frozen=True)
class Summary:
    """A row in a list of stores. Unknown fields are None or empty."""

    path: str
    state: str
    """'whole', 'unfinished', 'damaged', or 'unreadable' (another format)."""
    detail: str
    """Progress of an unfinished store, or the problem of a damaged one."""
    bytes: int
    """Size of its files on disk."""
    examples: int | None = None
    windows: int | None = None
    tokens: int | None = None
    parts: list[str] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    dtype: str | None = None
    about: dict[str, Any] = field(default_factory=dict)
    """Where it came from: task, split, encoder, epochs, run …, as far as the writer knew."""
    written: str | None = None


# ---------------------------------------------------------------------- verify


def verify_store(path: str | Path | Location, bar: Bar | None = None, reporter: Reporter | None = None) -> list[Damage]:
    """Read every byte of a finished store and return the damage, an empty list if there is none.

    Damaged shards are renamed, so that readers skip them and the writer rewrites only those. A renamed shard that
    proves intact, because the read error was temporary, gets its name back.
    """
    found = _scan_store(open_location(path))
    if found.is_unfinished:
        raise UserError(
            f"the store '{found.location}' is not finished ({_count_written(found)}): finish it with `bertvision "
            "encode`, then verify it."
        )
    found.refuse_other_format()
    damages, shown, reporter = [], bar or Bar(), reporter or Reporter()
    if found.manifest is None:
        damages.append(Damage(MANIFEST, 0, 0, "is damaged" if found.is_damaged else "is missing"))
    shown.advance(found.sizes.get(MANIFEST, 0))
    shards = found.manifest.shards if found.manifest is not None else found.shards
    names = {shard.file: shard.file if shard.file in found.sizes else SET_ASIDE + shard.file for shard in shards}
    # A shard that is missing or truncated need not be read.
    known = {shard.file: why for shard, why in found.broken if found.sizes.get(names[shard.file]) != shard.bytes}
    with ThreadPoolExecutor(THREADS, "store-verify") as pool:
        reasons = pool.map(
            lambda shard: known.get(shard.file) or _check_shard(found.location, shard, names[shard.file]), shards
        )
        for shard, why in zip(shards, reasons, strict=True):
            name = names[shard.file]
            shown.advance(found.sizes.get(name, 0))
            if why:
                damages.append(Damage(shard.file, shard.first, shard.stop, why))
            if shard.file in known:
                continue
            wanted = SET_ASIDE + shard.file if why else shard.file  # an intact shard that was set aside comes back
            if wanted != name:
                with _report_failure(found.location, reporter):
                    found.location.rename(name, wanted)
    if LISTED in found.sizes:  # every shard it may list has been verified
        with _report_failure(found.location, reporter):
            found.location.remove(LISTED)
    return damages


def find_leftovers(path: str | Path | Location) -> list[str]:
    """List files in a finished store that do not belong to it. They are harmless, but take space."""
    found = scan(open_location(path))
    if found.manifest is None:  # unknown without it
        return []
    shards = [shard.file for shard in found.manifest.shards]
    own = {MANIFEST, *shards, *(SET_ASIDE + name for name in shards if name not in found.sizes)}
    return sorted(name for name in found.sizes if is_of_store(name) and name not in own) + list(_half_written(found))


def _check_shard(location: Location, shard: Shard, name: str) -> str:
    """Return what is wrong with a shard that is stored under this name, or an empty string."""
    try:
        right = location.hash(name)[:DIGITS] == shard.sha256
    except FileNotFoundError:
        return "is missing"
    except PermissionError as error:  # not damage: another user may be able to read it
        raise UserError(f"{shard.file} of the store '{location}' can't be read ({error}).") from None
    except OSError as error:
        return f"can't be read ({error})"
    return "" if right else "is damaged: its checksum is wrong"


@contextmanager
def _report_failure(location: Location, reporter: Reporter) -> Iterator[None]:
    """Report an error and continue: a read-only store can still be verified."""
    try:
        yield
    except FileNotFoundError:  # another process did the same
        pass
    except (OSError, UserError) as error:
        reporter.say(f"the result could not be recorded in '{location}', so other readers will not know of it: {error}")


# ---------------------------------------------------------------------- list


def list_stores(path: str | Path | Location) -> list[Summary]:
    """List the store at a path or, if it is not a store, the stores in its subfolders."""
    return _list(open_location(path), LEVELS)


def _list(location: Location, levels: int) -> list[Summary]:
    try:
        found = scan(location)
        if found.is_store:
            return [_describe(found)]
        inner = location.subfolders() if levels else []
    except PermissionError:  # another user's folder
        return []
    return [store for path in inner for store in _list(open_location(path), levels - 1)]


def describe_store(path: str | Path | Location) -> Summary:
    """Describe the store at this location."""
    return _describe(_scan_store(open_location(path)))


def _describe(found: Scan) -> Summary:
    path, manifest = str(found.location), found.manifest
    size = sum(size for name, size in found.sizes.items() if is_of_store(name)) + sum(_half_written(found).values())
    if found.is_damaged:
        return Summary(path, "damaged", f"{MANIFEST} is damaged", size)
    if found.problem is not None:
        return Summary(path, "unreadable", str(found.problem), size)
    about = dict(found.about)
    written = about.pop("written", None)
    parts, layers = (list(found.identity.get(key, [])) for key in ("parts", "layers"))
    known = parts, layers, found.identity.get("dtype"), about, written
    examples = found.ranges[-1][1] if found.ranges else None
    if manifest is None:
        state, detail = "damaged", f"{MANIFEST} is missing"
        if found.is_unfinished:
            state, detail = "unfinished", _count_written(found)
        return Summary(path, state, detail, size, examples, None, None, *known)
    broken = f"{len(found.broken)} of {len(manifest.shards)} shards missing or damaged" if found.broken else ""
    state = "damaged" if broken else "whole"
    return Summary(path, state, broken, size, examples, manifest.windows, manifest.tokens, *known)


def _count_written(found: Scan) -> str:
    there, planned = {(shard.first, shard.stop) for shard in found.shards}, found.ranges
    return (
        f"{len(there.intersection(planned))} of {len(planned)} shards written"
        if planned
        else f"{len(there)} shards written"
    )


# ---------------------------------------------------------------------- remove


def remove_store(path: str | Path | Location) -> None:
    """Remove the files of a store, and its folder if nothing else is in it."""
    location = open_location(path)
    found = _scan_store(location)
    try:
        # The manifest first: if this is interrupted, the rest does not count as a complete store.
        own = sorted(filter(is_of_store, found.sizes), key=lambda name: (name != MANIFEST, name))
        for name in [*own, *_half_written(found)]:
            location.remove(name)
        if isinstance(location, Folder) and not any(location.folder.iterdir()):
            location.folder.rmdir()
    except OSError as error:
        raise UserError(f"the store '{location}' can't be removed ({error}).") from None


# ---------------------------------------------------------------------- a store and its files


def _scan_store(location: Location) -> Scan:
    """Scan a location. Raise UserError if it is not a store, and list the stores in its subfolders."""
    found = scan(location)
    if found.is_store:
        return found
    inner = [store.path for store in list_stores(location)]
    if inner:
        raise UserError(f"'{location}' is not a store, but contains stores. Choose one: {', '.join(inner)}.")
    raise UserError(
        f"no store at '{location}': found no {MANIFEST}, {WRITING} or shards. `bertvision store ls` lists stores."
    )


def is_of_store(name: str) -> bool:
    return name in (MANIFEST, WRITING, LISTED) or SHARD_NAME.fullmatch(name.removeprefix(SET_ASIDE)) is not None


def _half_written(found: Scan) -> dict[str, int]:
    """Temporary files of the store, from writers that were killed or are still running."""
    names = sorted(found.location.half_written().items())
    return {name: size for name, size in names if is_of_store(name.removeprefix(TEMPORARY).rsplit("@", 1)[0])}
