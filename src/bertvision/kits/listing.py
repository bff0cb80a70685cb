"""The heads of a kit as rows, for `bertvision kit ls`."""

from typing import Any

from bertvision.kinds import KINDS
from bertvision.kits.kit import KitFile
from bertvision.pipeline.finished import read_figure


def kit_rows(kit: KitFile) -> list[dict[str, Any]]:
    """For each task: its head, what it reads, and its main score on held-out and dev data."""
    rows = []
    for name, facts in kit["tasks"].items():
        kind, metrics = KINDS[facts["task"]["kind"]], facts["task"]["metrics"]
        main = kind.main(metrics, has_held_out=True)
        title = next((figure.heading for figure in kind.figures(metrics) if figure.key == main), main)
        rows.append(
            {
                "task": name,
                "kind": str(kind),
                "reads": "pairs" if facts["pairs"] else "texts",
                "head": facts["head"],
                "parameters": facts["parameters"],
                "metric": title,
                **{split: read_figure(scores, main) for split, scores in facts["scores"].items()},
            }
        )
    splits = dict.fromkeys(split for kit_task in kit["tasks"].values() for split in kit_task["scores"])
    return [{**row, **{split: row.get(split) for split in splits}} for row in rows]
