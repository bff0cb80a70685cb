"""Keeping stores in order: what is damaged, what there is and what made it, and taking one away."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.disk import TEMPORARY
from bertvision.errors import UserError
from bertvision.progress import Bar, Reporter
from bertvision.sources.store.layout import (
    DAMAGED,
    MANIFEST,
    SHARD_NAME,
    WRITING,
    DamagedError,
    Manifest,
    Shard,
    hash_file,
    seal,
    unseal,
)
from bertvision.sources.store.places import Folder, Place, open_place

THREADS = 4  # hashing and reading leave Python to the others, so these are as many cores; servers answer them together
LEVELS = 3  # from `runs` down to runs/<run>/states/<split>_epoch_1


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written, and the examples (`first` to `stop` - 1) that hang on it."""

    file: str
    first: int
    stop: int
    why: str

    @property
    def examples(self) -> str:
        return f"examples {self.first:,} to {self.stop - 1:,}" if self.stop > self.first else "no examples"


@dataclass(frozen=True)
class Summary:
    """A store as a listing shows it; what is not known of it is None or empty."""

    path: str
    state: str
    """'whole', 'unfinished', 'damaged', or 'unreadable' (of another format)."""
    detail: str
    """How much of an unfinished store is there, what is wrong with a damaged one."""
    bytes: int
    """What its files take on the disk now."""
    examples: int | None = None
    windows: int | None = None
    tokens: int | None = None
    parts: list[str] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    dtype: str | None = None
    about: dict[str, Any] = field(default_factory=dict)
    """What made it: task, split, encoder, epochs, run … as far as the writer was told."""
    written: str | None = None


# ---------------------------------------------------------------------- verify


def verify_store(path: str | Path | Place, bar: Bar | None = None, reporter: Reporter | None = None) -> list[Damage]:
    """Reads every byte of a finished store and gives what is not as it was written; nothing where all is well.

    Damaged shards are noted in the store itself: readers then refuse them, and the writer writes just those again.
    """
    place = _as_place(path)
    sizes = place.sizes()
    _refuse_nothing_finished(place, sizes)
    found, shards = _check_manifest(place, sizes)
    lock, shown = threading.Lock(), bar or Bar()

    def advance(count: int) -> None:
        with lock:  # bars are not made for several threads
            shown.advance(count)

    advance(sizes.get(MANIFEST, 0))
    with ThreadPoolExecutor(THREADS, "store-verify") as pool:
        reasons = list(pool.map(lambda shard: _check_shard(place, shard, sizes.get(shard.file), advance), shards))
    found += [
        Damage(shard.file, shard.first, shard.stop, why) for shard, why in zip(shards, reasons, strict=True) if why
    ]
    # A shard that is missing or cut off is seen by all at a glance; only these look whole and are not.
    hidden = [shard.file for shard, why in zip(shards, reasons, strict=True) if why and _fits(shard, sizes)]
    _note_damaged(place, sizes, hidden, reporter or Reporter())
    return found


def find_leftovers(path: str | Path | Place) -> list[str]:
    """Files in a finished store that are not of it: they do no harm, and take room."""
    place = _as_place(path)
    sizes = place.sizes()
    try:
        manifest = Manifest.parse(place.read(MANIFEST), MANIFEST)
    except (UserError, FileNotFoundError):  # without it nobody can tell
        return []
    own = {shard.file for shard in manifest.shards}
    others = [name for name in sizes if name == WRITING or (SHARD_NAME.fullmatch(name) and name not in own)]
    return sorted(others) + [left.name for left in _half_written(place)]


def _refuse_nothing_finished(place: Place, sizes: dict[str, int]) -> None:
    if not _is_store(place, sizes):
        raise UserError(_say_no_store(place))
    if WRITING in sizes and MANIFEST not in sizes:
        raise UserError(
            f"the store '{place}' is not finished ({_count_written(place, sizes)}): `bertvision encode` goes on with "
            "it; there is nothing to verify before."
        )


def _check_manifest(place: Place, sizes: dict[str, int]) -> tuple[list[Damage], list[Shard]]:
    """What is wrong with the manifest, and the shards to check: its own, or else those that are there."""
    if MANIFEST not in sizes:
        return [Damage(MANIFEST, 0, 0, "is missing")], _shards_there(sizes)
    try:
        return [], Manifest.parse(place.read(MANIFEST), f"{place}/{MANIFEST}").shards
    except DamagedError:
        return [Damage(MANIFEST, 0, 0, "is not what was written")], _shards_there(sizes)


def _shards_there(sizes: dict[str, int]) -> list[Shard]:
    """Shards as their names describe them."""
    matches = [(SHARD_NAME.fullmatch(name), size) for name, size in sorted(sizes.items())]
    return [Shard(int(found[1]), int(found[2]), 0, 0, size, {}, found[3]) for found, size in matches if found]


def _fits(shard: Shard, sizes: dict[str, int]) -> bool:
    return sizes.get(shard.file) == shard.bytes


def _check_shard(place: Place, shard: Shard, size: int | None, advance: Callable[[int], None]) -> str:
    """What is wrong with a shard, or nothing."""
    if size is None:
        return "is missing"
    if size != shard.bytes:
        return f"has {size:,} bytes, not {shard.bytes:,}"
    try:
        right = hash_file(place, shard.file, size, advance) == shard.sha256
    except FileNotFoundError:
        return "is missing"
    except PermissionError as error:  # no damage: somebody else may read it
        raise UserError(f"{shard.file} of the store '{place}' can't be read ({error}).") from None
    except OSError as error:
        return f"can't be read ({error})"
    return "" if right else "is not what was written: its checksum is wrong"


def _note_damaged(place: Place, sizes: dict[str, int], files: list[str], reporter: Reporter) -> None:
    try:
        if files:
            place.write(DAMAGED, [memoryview(seal({"files": files}))])
        elif DAMAGED in sizes:
            place.remove(DAMAGED)
    except (OSError, UserError) as error:
        reporter.say(f"this could not be noted in '{place}', where others would see it: {error}")


# ---------------------------------------------------------------------- list


def list_stores(path: str | Path | Place) -> list[Summary]:
    """The store at a path or, where it is none, those in its folders."""
    return _list(_as_place(path), LEVELS)


def _list(place: Place, levels: int) -> list[Summary]:
    try:
        sizes = place.sizes()
        if _is_store(place, sizes):
            return [_describe(place, sizes)]
        inner = place.subplaces() if levels else []
    except PermissionError:  # a folder of somebody else
        return []
    return [found for name in inner for found in _list(open_place(name), levels - 1)]


def describe_store(path: str | Path | Place) -> Summary:
    """The store at this very place."""
    place = _as_place(path)
    sizes = place.sizes()
    if not _is_store(place, sizes):
        raise UserError(_say_no_store(place))
    return _describe(place, sizes)


def _describe(place: Place, sizes: dict[str, int]) -> Summary:
    size = sum(sizes[name] for name in _files_of(sizes)) + sum(map(_size, _half_written(place)))
    if MANIFEST not in sizes:
        plan = _read_plan(place, sizes)
        state = "unfinished" if WRITING in sizes else "damaged"
        detail = _count_written(place, sizes) if WRITING in sizes else f"{MANIFEST} is missing"
        identity, ranges = plan.get("identity", {}), plan.get("shards", [])
        examples = ranges[-1][1] if ranges else None
        known = identity.get("parts", []), identity.get("layers", []), identity.get("dtype"), plan.get("about", {})
        return Summary(str(place), state, detail, size, examples, None, None, *known)
    try:
        manifest = Manifest.parse(place.read(MANIFEST), f"{place}/{MANIFEST}")
    except DamagedError:
        return Summary(str(place), "damaged", f"{MANIFEST} is not what was written", size)
    except UserError as error:
        return Summary(str(place), "unreadable", str(error), size)
    contents, about = manifest.contents, dict(manifest.about)
    written = about.pop("written", None)
    detail = _say_broken(place, manifest, sizes)
    counts = manifest.examples, manifest.windows, manifest.tokens
    kept = [str(part) for part in contents.parts], list(contents.layers), contents.dtype
    return Summary(str(place), "damaged" if detail else "whole", detail, size, *counts, *kept, about, written)


def _say_broken(place: Place, manifest: Manifest, sizes: dict[str, int]) -> str:
    """How many shards are known to be broken, without reading them."""
    noted: list[str] = []
    if DAMAGED in sizes:
        try:
            noted = unseal(place.read(DAMAGED), DAMAGED)["files"]
        except DamagedError:
            return f"{DAMAGED} is not what was written"
    count = sum(not _fits(shard, sizes) or shard.file in noted for shard in manifest.shards)
    return f"{count} of {len(manifest.shards)} shards missing or damaged" if count else ""


def _read_plan(place: Place, sizes: dict[str, int]) -> dict[str, Any]:
    """What an unfinished store will be, as far as it can be read."""
    try:
        return unseal(place.read(WRITING), WRITING) if WRITING in sizes else {}
    except DamagedError:
        return {}


def _count_written(place: Place, sizes: dict[str, int]) -> str:
    there = {(shard.first, shard.stop) for shard in _shards_there(sizes)}
    planned = [(first, stop) for first, stop in _read_plan(place, sizes).get("shards", [])]
    return f"{len(there.intersection(planned))} of {len(planned)} shards" if planned else f"{len(there)} shards so far"


# ---------------------------------------------------------------------- remove


def remove_store(path: str | Path | Place) -> None:
    """Removes the files of a store, and its folder if nothing else is in it."""
    place = _as_place(path)
    sizes = place.sizes()
    if not _is_store(place, sizes):
        raise UserError(_say_no_store(place))
    try:
        # The manifest first: cut off in the middle, what is left is no whole store to anybody.
        for name in sorted(_files_of(sizes), key=lambda name: (name != MANIFEST, name)):
            place.remove(name)
        for left in _half_written(place):
            left.unlink(missing_ok=True)
        if isinstance(place, Folder) and not any(place.folder.iterdir()):
            place.folder.rmdir()
    except OSError as error:
        raise UserError(f"the store '{place}' can't be removed ({error}).") from None


# ---------------------------------------------------------------------- what is a store, and its files


def _as_place(path: str | Path | Place) -> Place:
    return path if isinstance(path, Place) else open_place(path)


def _is_store(place: Place, sizes: dict[str, int]) -> bool:
    """Whether there are shards, or a file that only a store has: other programs have a manifest.json too."""
    if any(SHARD_NAME.fullmatch(name) for name in sizes):
        return True
    for name in (MANIFEST, WRITING):
        if name in sizes:
            try:
                return "identity" in unseal(place.read(name), name)
            except DamagedError:
                continue
    return False


def _files_of(sizes: dict[str, int]) -> list[str]:
    return [name for name in sizes if name in (MANIFEST, WRITING, DAMAGED) or SHARD_NAME.fullmatch(name)]


def _half_written(place: Place) -> list[Path]:
    """What writers that were killed (or are at work) have of the store's files under temporary names."""
    if not isinstance(place, Folder) or not place.folder.is_dir():
        return []
    found = place.folder.glob(f"{TEMPORARY}*")
    return sorted(path for path in found if _files_of({path.name.removeprefix(TEMPORARY).rsplit("@", 1)[0]: 0}))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # its writer has just given it its name
        return 0


def _say_no_store(place: Place) -> str:
    inner = [found.path for found in list_stores(place)]
    if inner:
        return f"'{place}' is no store itself; there {'is' if len(inner) == 1 else 'are'} {', '.join(inner)}: name one."
    return (
        f"there is no store at '{place}': no {MANIFEST}, no {WRITING}, no shards. `bertvision store ls` lists stores."
    )
