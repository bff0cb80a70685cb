"""bertvision store ls | verify | rm | export"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import App, AsJson, app, print_json, print_table
from bertvision.errors import UserError
from bertvision.tables import Table, counted

StorePath = Annotated[str, typer.Argument(help="The store: a folder, or an address such as s3://…", show_default=False)]


group = App(help="List, verify, remove or export stores of hidden states.", no_args_is_help=True)
app.add_typer(group, name="store", rich_help_panel="Inspect")


@group.command("ls", epilog="Example: bertvision store ls runs")
def ls(
    path: Annotated[str, typer.Argument(help="A store, or a folder or address that contains stores.")] = "runs",
    json: AsJson = False,
) -> None:
    """List stores with their size, contents and origin."""
    from dataclasses import asdict

    from bertvision.sources.store.upkeep import list_stores

    if path != "runs" and "://" not in path and not Path(os.path.expanduser(path)).exists():
        raise UserError(f"'{path}' does not exist: give a store, or a folder or address that contains stores.")
    found = list_stores(path)
    if json:
        print_json([asdict(store) for store in found])
        return
    if not found:
        typer.echo(f"no stores in '{path}'.")
        return
    rows = [_row(store) for store in found]
    details = [f"{store.path}: {store.detail}." for store in found if store.detail]
    first_to_go = ("tokens", "windows", "written", "layers", "created from", "examples")
    title = f"{counted(len(found), 'store')}, {_format_size(sum(store.bytes for store in found))}"
    print_table(Table(list(rows[0]), [list(row.values()) for row in rows], title, "\n".join(details), first_to_go))


def _row(store: Any) -> dict[str, str]:
    return {
        "store": store.path,
        "state": store.state,
        "size": _format_size(store.bytes),
        **{name: _format_count(getattr(store, name)) for name in ("examples", "windows", "tokens")},
        "contents": ", ".join(store.parts),
        "layers": _format_layers(store.layers),
        "dtype": store.dtype or "",
        "created from": _describe_origin(store.about),
        "written": str(store.written or "")[:16].replace("T", " "),
    }


@group.command("verify", epilog="Example: bertvision store verify runs/rte/states/train_epoch_1_cls")
def verify(path: StorePath, json: AsJson = False) -> None:
    """Check every byte of a store against its checksums. The exit code is 1 if anything is damaged.

    Damaged shards are renamed, so that they are never read and `bertvision encode` writes them again.
    """
    from dataclasses import asdict

    from bertvision.progress import RichReporter
    from bertvision.sources.store.upkeep import describe_store, find_leftovers, verify_store

    reporter, store = RichReporter(), describe_store(path)
    with reporter.bar(f"verifying {path}", store.bytes, "bytes") as bar:
        damages = verify_store(path, bar, reporter)
    leftovers = find_leftovers(path)
    if json:
        rows = [{**asdict(damage), "examples": damage.examples} for damage in damages]
        print_json({"path": store.path, "whole": not damages, "damages": rows, "leftovers": leftovers})
    else:
        for damage in damages:
            examples = f" ({damage.examples})" if damage.stop > damage.first else ""
            typer.echo(f"{damage.file}{examples} {damage.why}.")
        advice = f"{counted(len(damages), 'damaged file')}: `bertvision encode` writes only these again."
        typer.echo(advice if damages else f"{path}: whole, {_format_size(store.bytes)}, all checksums match.")
        if leftovers:
            typer.echo(f"leftover files, harmless: {', '.join(leftovers)}.")
    if damages:
        raise typer.Exit(1)


@group.command("rm", epilog="Example: bertvision store rm runs/rte/states/train_epoch_1_cls")
def rm(
    path: StorePath,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it without asking for confirmation.")] = False,
) -> None:
    """Remove the files of a store, and its folder if nothing else is in it."""
    from bertvision.sources.store.upkeep import describe_store, remove_store

    store = describe_store(path)
    origin = _describe_origin(store.about)
    what = f"{store.path}: {_format_size(store.bytes)}, {store.state}{', created from ' + origin if origin else ''}"
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"{what}. The removal can't be confirmed without a terminal: pass --yes.")
        typer.confirm(f"{what}. Remove it?", abort=True)
    remove_store(path)
    typer.echo(f"removed {what}.")


@group.command("export", epilog="Example: bertvision store export runs/rte/states/train_epoch_1_cls --hdf5 rte.h5")
def export(
    path: StorePath,
    hdf5: Annotated[Path, typer.Option(metavar="FILE", help="The HDF5 file to write.", show_default=False)],
) -> None:
    """Export a store to one HDF5 file, padded and in float32, in the layout of the original BERTVision."""
    from bertvision.progress import RichReporter
    from bertvision.sources.store import Store
    from bertvision.sources.store.export import export_hdf5

    store = Store.open(path)
    with RichReporter().bar(f"writing {hdf5}", len(store) * len(store.contents.parts), "windows") as bar:
        export_hdf5(store, hdf5, bar)
    typer.echo(
        f"{hdf5}: {counted(len(store), 'window')}, {_format_size(Path(os.path.expanduser(hdf5)).stat().st_size)}."
    )


# ---------------------------------------------------------------------- formatting


def _format_size(count: float) -> str:
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:.0f} {units[0]}" if units[0] == "bytes" or count >= 99.95 else f"{count:.1f} {units[0]}"


def _format_count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _format_layers(layers: list[int]) -> str:
    """'0-12' for consecutive layers, otherwise a list."""
    if len(layers) > 2 and layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    return ", ".join(map(str, layers))


def _describe_origin(about: dict[str, Any]) -> str:
    """'rte train, bert-base-uncased after 1 epoch, run runs/rte'; unknown parts are left out."""
    task = " ".join(str(about[key]) for key in ("task", "split") if key in about)
    encoder, epochs = str(about.get("encoder", "")), about.get("epochs")
    if encoder and isinstance(epochs, int | float):
        encoder += f" after {counted(epochs, 'epoch')}"
    run = f"run {about['run']}" if "run" in about else ""
    return ", ".join(filter(None, [task, encoder, run]))
