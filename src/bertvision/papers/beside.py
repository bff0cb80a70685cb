"""Published scores beside measured ones: tables for the terminal, and a report."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from bertvision.kinds import metric_title
from bertvision.papers.published import Line, PaperTable
from bertvision.pipeline.finished import FinishedRun, Group, as_kept, read_figure
from bertvision.report.block import Block, Report, Section
from bertvision.report.drawing import ROW, chart_of, colour_by, import_altair, off_zero, tips
from bertvision.report.summary import count_examples, name_source
from bertvision.report.wording import CHOSEN
from bertvision.tables import Cell, Column, Row, Table, counted

PUBLISHED, OURS, BASELINE, CONTROL = "paper", "ours", "baseline", "control"
CHOSEN_NOTE = "Scores with a star are at the no-answer threshold chosen on held-out questions."
GAP_NOTE = "The difference is ours minus the paper's."
ROWS_NOTE = 'A row such as "0.3: learned pooling" is a head on the encoder after 0.3 epochs of fine-tuning.'
SHORT = {"accuracy": ("acc.", "acc. is the accuracy."), "f1_no_answer": ("F1", "F1 is that of no answer.")}
"""Key → heading and note, where the metric's own name is too long for three columns."""
COMPANY_NOTE = "The baseline and the control, a linear layer on the last layer's states, are not in the papers."


@dataclass(frozen=True)
class Measured:
    """A line of the papers, or one of ours beside it, and what our run scored."""

    line: Line
    ours: list[float | None]
    """One for each of the line's figures."""
    chosen: list[float | None]
    """For spans: the same at the threshold chosen on held-out questions."""
    parameters: int | None = None

    @property
    def gaps(self) -> list[float]:
        """Ours minus published, where both exist."""
        pairs = zip(self.ours, self.line.scores or [None] * len(self.ours), strict=True)
        return [ours - published for ours, published in pairs if ours is not None and published is not None]


def measure(table: PaperTable, runs: dict[str, FinishedRun]) -> list[Measured]:
    """The lines of a table with our scores, and the baseline, the encoder and the control beside them."""
    found = []
    for (name, split), group in groupby(table.lines, key=lambda line: (line.run, line.split)):
        lines, run = list(group), runs.get(name)
        if run is not None:
            found += [_look_up(line, run) for line in _with_company(lines, run, split)]
        else:
            found += [Measured(line, [None] * len(line.figures), [None] * len(line.figures)) for line in lines]
    return found


def _with_company(lines: list[Line], run: FinishedRun, split: str | None) -> list[Line]:
    """The lines of a run, with the baseline first, and the encoder and the control at every snapshot if not there."""
    first, there = lines[0], {line.model for line in lines}
    snapshots = sorted({as_kept(line.epochs) for line in lines} & set(run.snapshots))
    ours = replace(first, scores=())
    company = [replace(ours, name=BASELINE, model="baseline", epochs=snapshots[0])] if snapshots else []
    company += lines
    for epochs in snapshots:
        if "encoder" not in there:
            company.append(replace(ours, name="BERT", model="encoder", epochs=epochs))
        control = run.control(epochs) if epochs in run.head_snapshots else None
        if control is not None:
            company.append(replace(ours, name=CONTROL, model=control.name, epochs=epochs))
    return company


def _look_up(line: Line, run: FinishedRun) -> Measured:
    group, split = _find(line, run), line.split or run.splits[0]
    if group is None:
        return Measured(line, [None] * len(line.figures), [None] * len(line.figures))
    if group.role == "baseline":  # it has no threshold
        own = [read_figure(group.first.scores(split), key) for key in line.figures]
        return Measured(line, own, [None] * len(own))
    ours, chosen = ([group.mean(split, f"{start}{key}") for key in line.figures] for start in ("", CHOSEN))
    return Measured(line, ours, chosen, group.first.parameters)


def _find(line: Line, run: FinishedRun) -> Group | None:
    return next((group for group in run.rows(as_kept(line.epochs)) if group.name == line.model), None)


# ---------------------------------------------------------------------- tables


def build_table(table: PaperTable, found: list[Measured]) -> Table:
    """One row for a model at a snapshot; one for each metric too, where rows have different ones."""
    figures = {one.line.figures for one in found}
    rows = [_row(one, one.line.figures) for one in found] if len(figures) == 1 else _long_rows(found)
    made = Table.of(rows).without_empty()
    made.title = table.title
    made.first_to_go = ("parameters", "EM*", "F1*")
    return made


def _row(one: Measured, figures: Iterable[str]) -> Row:
    row = _names(one)
    for at, key in enumerate(figures):
        row |= _cells(one, at, *SHORT.get(key, (metric_title(key), "")))
    for at, key in enumerate(figures):
        row[Column(f"{metric_title(key)}*", 1, CHOSEN_NOTE)] = one.chosen[at]
    return row


def _long_rows(found: list[Measured]) -> list[Row]:
    return [
        {**_names(one), "metric": metric_title(key), **_cells(one, at)}
        for one in found
        for at, key in enumerate(one.line.figures)
    ]


def _names(one: Measured) -> Row:
    at: Cell = None if one.line.name == BASELINE else one.line.epochs
    return {
        "task": one.line.task or None,
        Column("model", None, COMPANY_NOTE): one.line.name,
        "parameters": one.parameters,
        Column("epochs", None): at,
    }


def _cells(one: Measured, at: int, metric: str = "", note: str = "") -> Row:
    published, ours = one.line.scores[at] if one.line.scores else None, one.ours[at]
    gap = ours - published if ours is not None and published is not None else None
    start = f"{metric} " if metric else ""
    return {
        Column(f"{start}{PUBLISHED}", 1, note): published,
        Column(f"{start}{OURS}", 1): ours,
        Column(f"{start}diff", 1, GAP_NOTE): gap,
    }


# ---------------------------------------------------------------------- the report


def build_report(
    title: str,
    facts: list[str],
    tables: list[tuple[PaperTable, list[Measured]]],
    runs: dict[str, FinishedRun],
    finding: str,
    notes: list[str],
) -> Report:
    blocks = [_build_block(f"table_{number}", *pair) for number, pair in enumerate(tables, start=1)]
    sections = [Section("Published and measured", blocks)]
    if runs:
        sections.append(Section("Runs", [Block(key="runs", title="Data of each run", table=_list_runs(runs))]))
    return Report(title, facts, notes, sections, finding=finding)


def _build_block(key: str, table: PaperTable, found: list[Measured]) -> Block:
    picture = _draw(found)
    has_rows = picture is not None and "layer" not in picture
    return Block(
        key=key,
        title=table.title,
        table=build_table(table, found),
        picture=picture,
        alt=f"{table.title}: published and measured",
        note=ROWS_NOTE if has_rows and len(_stages(found)) > 1 else "",
    )


def _list_runs(runs: dict[str, FinishedRun]) -> Table:
    return Table.of(
        {"run": name, "data": name_source(run), "examples": count_examples(run), "report": f"{name}/report.html"}
        for name, run in runs.items()
    )


def describe(tables: list[tuple[PaperTable, list[Measured]]]) -> str:
    """How far our scores are from the published ones, and whether heads beat BERT in both, in a few sentences."""
    every = [one for _, found in tables for one in _without_twins(found) if one.line.scores]
    gaps = [gap for one in every for gap in one.gaps]
    missing = sum(not one.gaps for one in every)
    sentences = ["No published score can be compared."]
    if gaps:
        close, mean = sum(abs(gap) <= 1 for gap in gaps), sum(gaps) / len(gaps)
        where = f"{abs(mean):.1f} points {'above' if mean > 0 else 'below'} the papers'"
        sentences = [
            f"{close} of our {counted(len(gaps), 'score')} {'is' if close == 1 else 'are'} within one point of the "
            f"papers'; on average ours are {'equal to theirs' if abs(mean) < 0.05 else where}."
        ]
    gains = [*_gains(every)]
    if gains:
        theirs, ours = (sum(gain > 0 for gain in side) for side in zip(*gains, strict=True))
        sentences.append(
            f"A head or an ensemble beats BERT at the same stage in {theirs} of {counted(len(gains), 'row')} of the "
            f"papers, and in {ours} of ours."
        )
    if missing:
        sentences.append(f"{counted(missing, 'published row')} {'has' if missing == 1 else 'have'} no score of ours.")
    return " ".join(sentences)


def _without_twins(found: list[Measured]) -> Iterator[Measured]:
    """Without rows of ours that stand beside the same published score as a row before."""
    seen = set()
    for one in found:
        key = one.line.run, one.line.split, one.line.epochs, one.line.scores
        is_twin = key in seen and one.line.model.startswith("max_")
        seen.add(key)
        if not is_twin:
            yield one


def _gains(every: list[Measured]) -> Iterator[tuple[float, float]]:
    """Of each published head or ensemble, how far it is above BERT at the same snapshot, published and ours; by the
    first metric."""
    alone = {(one.line.run, one.line.split, one.line.epochs): one for one in every if one.line.model == "encoder"}
    for one in every:
        encoder = alone.get((one.line.run, one.line.split, one.line.epochs))
        if encoder is not None and encoder is not one and one.ours[0] is not None and encoder.ours[0] is not None:
            yield one.line.scores[0] - encoder.line.scores[0], one.ours[0] - encoder.ours[0]


def _draw(found: list[Measured]) -> dict[str, Any] | None:
    """The first metric of each line: a curve if only one model has published scores, else two points for each row."""
    points = [*_points(found)]
    if not points:
        return None
    keys = {one.line.figures[0] for one in found}
    title = metric_title(*keys) if len(keys) == 1 else "score"
    published = [point for point in points if point["scores"] == PUBLISHED]
    if len({point["model"] for point in published}) == 1 < len(published):
        return _draw_curve(points, title, published[0]["model"])
    return _draw_rows(points, title)


def _points(found: list[Measured]) -> Iterator[dict[str, Any]]:
    at_one = len(_stages(found)) == 1
    for one in found:
        if one.line.name == BASELINE:
            continue
        name = " ".join(filter(None, [one.line.task, one.line.name]))
        row = name if at_one else f"{one.line.epochs:g}: {name}"
        for scores, values in ((PUBLISHED, one.line.scores), (OURS, one.ours)):
            if values and values[0] is not None:
                yield {"model": name, "epochs": one.line.epochs, "row": row, "scores": scores, "score": values[0]}


def _stages(found: list[Measured]) -> set[float]:
    return {one.line.epochs for one in found}


def _draw_curve(points: list[dict[str, Any]], title: str, model: str) -> dict[str, Any]:
    """A curve of this model; the others are points."""
    altair = import_altair()
    base = chart_of(points).encode(
        x=altair.X("epochs:Q", title="epochs of fine-tuning"), y=off_zero("Y", "score:Q", title), color=_colour(),
        tooltip=_tips(title), shape=altair.Shape("model:N", title=None),
    )  # fmt: skip
    line = base.transform_filter(altair.FieldEqualPredicate(field="model", equal=model)).mark_line()
    return dict((line + base.mark_point()).to_dict())


def _draw_rows(points: list[dict[str, Any]], title: str) -> dict[str, Any]:
    order = list(dict.fromkeys(point["row"] for point in points))
    y = import_altair().Y("row:N", sort=order, title=None)
    base = chart_of(points, max(ROW, ROW // 2 * len(order))).encode(
        x=off_zero("X", "score:Q", title), y=y, color=_colour(), tooltip=_tips(title)
    )
    return dict(base.mark_point(filled=True, size=60).to_dict())


def _colour() -> Any:
    return colour_by("scores", [PUBLISHED, OURS]).legend(title=None)


def _tips(title: str) -> list[Any]:
    return tips("model:N", "epochs:Q", "scores:N", ("score:Q", title, ".1f"))
