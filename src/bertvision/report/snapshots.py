"""Blocks that show every snapshot with heads: which ones, and bars of several snapshots side by side."""

from collections.abc import Sequence
from typing import Any

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.curves import EPOCHS
from bertvision.report.drawing import bare_chart, import_altair, tips
from bertvision.report.ranking import SERIES
from bertvision.report.wording import after_tuning, opening
from bertvision.tables import Row, counted

DESCRIBED = 3  # most snapshots described; of more, the first and the last
BAR = 13  # height of one of several bars of a model
MARGIN = {"left": 4, "top": 4, "bottom": 4, "right": 24}
"""Room for the numbers at bars that end where the picture does."""
NUMBERS = "at the bars: epochs"
"""What `label_bars` writes: a second line for the title of a legend or an axis."""


def shown_snapshots(run: FinishedRun) -> list[float]:
    """The snapshots that have heads; without heads, the last one."""
    return run.head_snapshots or [run.last]


def described_snapshots(shots: list[float]) -> list[float]:
    return shots if len(shots) <= DESCRIBED else [shots[0], shots[-1]]


def named(group: Group, shots: list[float]) -> Row:
    """The first cells of a model's row; its snapshot only if there are several."""
    return {**({EPOCHS: group.epochs} if len(shots) > 1 else {}), "model": group.title}


def begin(text: str, epochs: float, shots: list[float]) -> str:
    """The beginning of a sentence, with its snapshot if there are several."""
    return opening(f"{after_tuning(epochs)}, {text}" if len(shots) > 1 else text)


def drawn_groups(run: FinishedRun, shots: list[float]) -> list[Group]:
    """The groups in the picture of several snapshots: the encoder alone, the control, the best heads of the latest
    snapshots and the best ensemble, each at every snapshot that has it. Of one snapshot: all groups."""
    if len(shots) == 1:
        return run.groups(shots[0])
    best = {role: _best_names(run, shots, role) for role in ("control", "head", "ensemble")}
    names = [run.encoder(run.last).name, *best["control"][:1], *best["head"][: SERIES - 3], *best["ensemble"][:1]]
    return [group for name in names for epochs in shots for group in run.groups(epochs) if group.name == name]


def _best_names(run: FinishedRun, shots: list[float], role: str) -> list[str]:
    """Names of the best of a role at each snapshot, the latest first."""
    found = [run.control(epochs) if role == "control" else run.best(epochs, role) for epochs in reversed(shots)]
    return list(dict.fromkeys(group.name for group in found if group is not None))


def unseen_note(groups: list[Group], drawn: list[Group]) -> str:
    """How many models a picture leaves out."""
    left = len({group.name for group in groups} - {group.name for group in drawn})
    return f"The picture leaves out {counted(left, 'model')}; the table has all." if left else ""


def label_bars(chart: Any, ends: Sequence[dict[str, Any]], names: list[str], field: str, order: Sequence[str]) -> Any:
    """The chart with the epochs at the ends of its bars. `ends` has `model`, `epochs`, `end` and the field that sets
    bars of a model side by side."""
    altair = import_altair()
    rows = [{**row, "label": f"{row['epochs']:g}"} for row in ends]
    labels = bare_chart(rows).mark_text(align="left", baseline="middle", dx=4, fontSize=10, opacity=0.8)
    labels = labels.encode(
        y=altair.Y("model:N", sort=names, title=None),
        yOffset=altair.YOffset(f"{field}:N", sort=list(order)),
        x="end:Q",
        text="label:N",
        tooltip=tips("model:N", "epochs:Q"),
    )
    return (chart + labels).properties(padding=MARGIN)
