"""Change a kit: add, replace and remove heads. The other heads stay byte-identical, and a kit is never half changed."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertvision.disk import as_path, check_files, inside, lock_beside, sweep, write_sealed, writing_folder, writing_in
from bertvision.errors import UserError, suggest
from bertvision.kits.folder import FILE, FORMAT, is_kit
from bertvision.kits.kit import KitFile, read_kit_file
from bertvision.kits.make import KitEntry, collect, write_head
from bertvision.network import no_downloads
from bertvision.progress import Reporter


@no_downloads()
def add_heads(
    kit: Path,
    runs: Sequence[Path],
    heads: dict[str, str] | None = None,
    about: dict[str, str] | None = None,
    replace: bool = False,
    wait: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, KitEntry]:
    """Add a head for the task of each run; with `replace`, in the place of the head that the task has. Return the
    tasks that were written. `heads` and `about` are as in `make_kit`."""
    with _changing(kit, wait, reporter) as (folder, found):
        entries = collect(runs, heads, about)
        for name, entry in entries.items():
            if (name in found["tasks"]) != replace:
                has, other = ("has a", "replace") if not replace else ("has no", "add")
                raise UserError(f"'{kit}' {has} head for {name}: use `bertvision kit {other}`.")
            _check_fits(kit, found, name, entry)
        _write(folder, found, {**found["tasks"], **{name: one.facts for name, one in entries.items()}}, entries, about)
    return entries


def remove_heads(kit: Path, tasks: Sequence[str], wait: bool = False, reporter: Reporter | None = None) -> None:
    """Remove the heads of some tasks."""
    with _changing(kit, wait, reporter) as (folder, found):
        for name in tasks:
            if name not in found["tasks"]:
                raise UserError(f"'{kit}' has no head for '{name}': {suggest(name, found['tasks'])}")
        left = {name: facts for name, facts in found["tasks"].items() if name not in tasks}
        if not left:
            raise UserError(f"'{kit}' would have no head left: remove the folder instead.")
        _write(folder, found, left)


@contextmanager
def _changing(kit: Path, wait: bool, reporter: Reporter | None) -> Iterator[tuple[Path, KitFile]]:
    """The folder of a kit, locked, and what is in kit.json."""
    folder = as_path(kit, "the kit")
    with writing_in(lock_beside(folder, "the kit"), wait, (reporter or Reporter()).say):
        sweep(folder.resolve().parent)
        found = read_kit_file(folder)
        if found is None:
            hint = "is shipped with bertvision and can't be changed: copy it" if is_kit(kit) else f"has no {FILE}"
            raise UserError(f"'{kit}' {hint}. Give the folder of a kit of your own.")
        yield folder.resolve(), found


def _check_fits(kit: Path, found: KitFile, name: str, entry: KitEntry) -> None:
    """Refuse a head that reads another encoder than the kit has, or other layers of it."""
    if entry.stamp != found["encoder_stamp"]:
        raise UserError(
            f"the head for {name} reads another encoder ('{entry.encoder}') than '{kit}' has ('{found['encoder']}'): "
            "make a kit of its own, or run again with the kit's encoder."
        )
    if (None if entry.layers is None else list(entry.layers)) != found["layers"]:
        raise UserError(
            f"the head for {name} reads the layers {list(entry.layers or []) or 'all'}, but those of '{kit}' read "
            f"{found['layers'] or 'all'}. Run again with the same encoder.layers."
        )


def _write(
    folder: Path,
    found: KitFile,
    tasks: Mapping[str, object],
    new: Mapping[str, KitEntry] | None = None,
    about: dict[str, str] | None = None,
) -> None:
    """Write the kit again with these tasks, those in `new` from their runs and all others as they are."""
    new = new or {}
    kit = {"name": folder.name, **{key: one for key, one in found.items() if key not in ("format", "name", "tasks")}}
    gone = [name for name in found["tasks"] if name not in tasks or name in new]
    with writing_folder(folder, "the kit") as fresh:
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.is_file() and parts[0] not in gone and parts != (FILE,):
                to = fresh.joinpath(*parts)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(inside(folder, *parts), to)
        for name in tasks:
            if name in new:
                write_head(inside(fresh, name), new[name], kit, (about or {}).get(name))
            else:
                check_files(inside(fresh, name))  # what was damaged before is not passed on as whole
        write_sealed(fresh / FILE, {"format": FORMAT, **kit, "tasks": tasks})
