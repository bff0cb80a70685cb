"""bertvision tasks [--data DIR]"""

from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import AsJson, app, print_json, print_table
from bertvision.tables import Table


@app.command("tasks", rich_help_panel="Inspect", epilog="Example: bertvision tasks --data glue_data")
def tasks(
    data: Annotated[Path | None, typer.Option(help="Describe the data files in this folder instead.")] = None,
    json: AsJson = False,
) -> None:
    """List the tasks, or describe the data files in a folder: rows, labels and lengths."""
    from bertvision.tasks import TASKS
    from bertvision.tasks.describe import describe_folder

    if data is not None:
        found = describe_folder(data)
        print_json(found) if json else print_table(_found_table(data, found))
        return
    rows: list[dict[str, Any]] = [
        {
            "name": info.name,
            "kind": str(info.kind) if info.kind else None,
            "labels": list(info.labels),
            "metrics": list(info.metrics),
            "max_length": info.max_length,
            "hub": info.hub,
            "what": info.what,
        }
        for info in TASKS.values()
    ]
    if json:
        print_json(rows)
        return
    cells = [
        [r["name"], r["kind"] or "any", str(len(r["labels"]) or ""), ", ".join(r["metrics"]), r["what"]] for r in rows
    ]
    print_table(Table(["task", "target", "labels", "metrics", "description"], cells, "tasks"))


def _found_table(folder: Path, found: list[dict[str, Any]]) -> Table:
    rows = []
    for entry in found:
        if "error" in entry:
            rows.append([entry["task"], entry["split"], "", "", "", entry["error"]])
            continue
        lengths = " / ".join(str(value) for value in entry["words"].values())
        rows.append(
            [
                entry["task"],
                entry["split"],
                f"{entry['rows']:,}",
                _targets(entry),
                lengths,
                _relative(entry["file"], folder),
            ]
        )
    columns = ["task", "split", "rows", "targets", "words (percentiles 50/90/98/100)", "file"]
    return Table(columns, rows, f"found in {folder}")


def _relative(file: str, folder: Path) -> str:
    return str(Path(file).relative_to(folder)) if Path(file).is_relative_to(folder) else file


def _targets(entry: dict[str, Any]) -> str:
    if "labels" in entry:
        return ", ".join(f"{label} {100 * share:.0f} %" for label, share in entry["labels"].items())
    if "answerable" in entry:
        return f"answerable {100 * entry['answerable']:.0f} %"
    if "scores" in entry:
        return f"mean {entry['scores']['mean']:.2f}, {entry['scores']['min']:g} to {entry['scores']['max']:g}"
    return "none"
