"""The history of a search, as a table (history.csv, history.json) and a chart (history.svg, history.png)."""

import csv
import dataclasses
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.disk import write_bytes, write_json, write_text
from bertvision.errors import UserError
from bertvision.kinds import metric_title
from bertvision.search.study import TriedMember
from bertvision.tables import Table, counted

try:
    import altair
    import vl_convert  # noqa: F401  # altair writes SVG and PNG through it
except ImportError:
    raise UserError("a search needs altair to draw its history: pip install 'bertvision[search]'.") from None

SHOWN = 10  # members in the table on the terminal


@dataclass(frozen=True)
class History:
    task: str
    metric: str
    study: str
    """The study's name in study.jsonl."""
    snapshot: float
    tried: list[TriedMember]
    seconds: dict[str, float]
    """Seconds of each pass, by population and level: "0/tokens", "0/sequences"."""

    def best(self) -> TriedMember | None:
        """The member with the highest score among those that finished; the first one in a tie."""
        return next((one for one in self.ranked() if one.state == "complete"), None)

    def ranked(self) -> list[TriedMember]:
        """Finished members by score, then dropped ones by rung and score, then the rest."""
        found = [one for one in self.tried if one.state == "complete"]
        found.sort(key=lambda one: -(one.score or 0.0))
        dropped = [one for one in self.tried if one.state == "dropped"]
        found += sorted(dropped, key=lambda one: (-one.rung, -(one.score or 0.0)))
        return found + [one for one in self.tried if one.state not in ("complete", "dropped")]

    def to_dict(self) -> dict[str, Any]:
        """The contents of history.json."""
        facts = {key: getattr(self, key) for key in ("task", "metric", "study", "snapshot", "seconds")}
        best = self.best()
        tried = [{"name": one.name, **dataclasses.asdict(one)} for one in self.tried]
        return {**facts, "best": best.name if best else None, "members": tried}

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per member; `seconds_population` is the time of its whole population."""
        settings = list(dict.fromkeys(key for one in self.tried for key in one.entry))
        rows = []
        for one in self.tried:
            own = {key: one.entry.get(key) for key in settings}
            seconds = sum(value for key, value in self.seconds.items() if key.split("/")[0] == str(one.population))
            facts = {"state": one.state, "score": one.score, "rung": one.rung, "seconds_population": seconds}
            rows.append({"number": one.number, "population": one.population, **own, **facts})
        return rows

    def to_table(self) -> Table:
        """The best members, for the terminal."""
        best = [one for one in self.ranked() if one.score is not None][:SHOWN]
        settings = list(dict.fromkeys(key for one in best for key in one.entry if key != "head"))
        title = f"{self.task}: best of {counted(len(self.tried), 'member')}"
        cells = []
        for one in best:
            own = [_cell(one.entry.get(key)) for key in settings]
            cells.append([one.name, one.entry["head"], *own, f"{one.score:.2f}", one.state])
        columns = ["member", "head", *settings, f"held-out {metric_title(self.metric)}", "state"]
        states = [one.state for one in self.tried]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("complete", "dropped", "failed"))
        note = f"{counts}; {sum(self.seconds.values()):.1f} s. A dropped member shows the score of its last rung."
        return Table(columns, cells, title, note)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2g}" if isinstance(value, float) else str(value)


def write_history(history: History, folder: Path) -> None:
    """Write history.json and history.csv."""
    write_json(folder / "history.json", history.to_dict())
    rows, text = history.rows(), io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "history.csv", text.getvalue())


# ---------------------------------------------------------------------- the chart


def write_picture(history: History, folder: Path) -> None:
    """Write history.svg and history.png."""
    chart = build_chart(history)
    drawn, pixels = io.StringIO(), io.BytesIO()
    chart.save(drawn, format="svg")
    write_text(folder / "history.svg", drawn.getvalue())
    chart.save(pixels, format="png", scale_factor=2)
    write_bytes(folder / "history.png", pixels.getvalue())


def build_chart(history: History) -> Any:
    """Plot each member's score by its number, with the best so far, and by its learning rate if that was varied."""
    name = metric_title(history.metric)
    rows = [row for row in history.rows() if row["score"] is not None]
    score = altair.Y("score:Q", title=f"held-out {name}", scale=altair.Scale(zero=False))
    base = altair.Chart(altair.Data(values=rows)).encode(y=score, color=altair.Color("head:N", title="head"))
    whole = base.transform_filter("datum.state == 'complete'").mark_point(size=60, filled=True)
    others = base.transform_filter("datum.state != 'complete'").mark_point(size=60, filled=False)

    def points(x: Any) -> Any:
        return others.encode(x=x) + whole.encode(x=x)

    line = altair.Chart(altair.Data(values=_best_so_far(history))).mark_line(interpolate="step-after", color="#888888")
    line = line.encode(x="number:Q", y="score:Q")
    panels = [(line + points(altair.X("number:Q", title="member"))).properties(width=420, height=280)]
    rates = {row["lr"] for row in rows if row.get("lr") is not None}
    if len(rates) > 1:
        lr = altair.X(
            "lr:Q",
            title="learning rate",
            scale=altair.Scale(type="log"),
            axis=altair.Axis(format="~e", labelOverlap="greedy"),
        )
        panels.append(points(lr).properties(width=320, height=280))
    title = f"{history.task}: {counted(len(history.tried), 'member')} tried (hollow: dropped early)"
    return altair.hconcat(*panels).properties(title=title)


def _best_so_far(history: History) -> list[dict[str, float]]:
    best, found = None, []
    for one in history.tried:
        if one.state == "complete" and one.score is not None and (best is None or one.score > best):
            best = one.score
        if best is not None:
            found.append({"number": one.number, "score": best})
    return found
